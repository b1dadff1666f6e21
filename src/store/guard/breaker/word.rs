//! What is known of one node, in one number, and how that changes: pure, so that threads can take turns at it.

use std::time::Duration;

/// The first pause, and the longest: a server that is back is found within about a second.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a probe is waited for: one that is kept and not polled must not be the last.
pub(crate) const LONGEST_PROBE: Duration = Duration::from_secs(1);

const PHASE_BITS: u32 = 2;
const PAUSE_BITS: u32 = 6;
const GENERATION_BITS: u32 = 16;

/// The state of a breaker. Times are milliseconds since some beginning; 40 bits of them are 34 years.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) phase: Phase,
    /// Pauses in a row since it opened.
    pub(crate) pauses: u8,
    /// Another one each time that it opens: what was begun before tells nothing of what is after.
    pub(crate) generation: u16,
    /// When the phase is over, if it ends by itself.
    pub(crate) until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Everybody asks.
    Closed,
    /// Nobody asks; after its end, one does.
    Open,
    /// One asks. If nothing was heard of it by the end, another one does.
    Probing,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    All,
    /// The one whose change to this state comes first.
    One(Word),
    Nobody,
}

impl Word {
    pub(crate) const NEW: Self = Self {
        phase: Phase::Closed,
        pauses: 0,
        generation: 0,
        until: 0,
    };

    pub(crate) fn entry(self, now: u64) -> Entry {
        match self.phase {
            Phase::Closed => Entry::All,
            Phase::Open | Phase::Probing if now < self.until => Entry::Nobody,
            Phase::Open | Phase::Probing => Entry::One(Self {
                phase: Phase::Probing,
                until: now + millis(LONGEST_PROBE),
                ..self
            }),
        }
    }

    /// Open from now on, or once more. `spread` is any number, from which the pause gets its jitter.
    pub(crate) fn opened(self, now: u64, spread: u64) -> Self {
        Self {
            phase: Phase::Open,
            pauses: self.pauses.saturating_add(1).min((1 << PAUSE_BITS) - 1),
            generation: self.generation.wrapping_add(1),
            until: now + pause(self.pauses, spread),
        }
    }

    /// Returns the state after a probe from which nothing was learnt: the next one may ask at once.
    ///
    /// Not a probe's, or that of an earlier probe whose time ended in this millisecond would be
    /// taken for the present one, and its failure for news.
    pub(crate) fn unanswered(self, now: u64) -> Self {
        Self {
            phase: Phase::Open,
            until: now,
            ..self
        }
    }

    pub(crate) fn closed(self) -> Self {
        Self {
            generation: self.generation,
            ..Self::NEW
        }
    }

    pub(crate) fn pack(self) -> u64 {
        let phase = match self.phase {
            Phase::Closed => 0,
            Phase::Open => 1,
            Phase::Probing => 2,
        };
        let high = self.until << GENERATION_BITS | u64::from(self.generation);
        (high << PAUSE_BITS | u64::from(self.pauses)) << PHASE_BITS | phase
    }

    pub(crate) fn unpack(packed: u64) -> Self {
        let bits = |shift: u32, count: u32| packed >> shift & ((1 << count) - 1);
        Self {
            phase: match bits(0, PHASE_BITS) {
                0 => Phase::Closed,
                1 => Phase::Open,
                _ => Phase::Probing,
            },
            // As many bits as were put in.
            pauses: bits(PHASE_BITS, PAUSE_BITS) as u8,
            generation: bits(PHASE_BITS + PAUSE_BITS, GENERATION_BITS) as u16,
            until: packed >> (PHASE_BITS + PAUSE_BITS + GENERATION_BITS),
        }
    }
}

/// Twice as long each time, up to the longest; of that, somewhere between the half and all, so that processes do not ask
/// together.
fn pause(before: u8, spread: u64) -> u64 {
    let longest = millis(LONGEST_PAUSE);
    let whole = millis(FIRST_PAUSE) << before.min(10);
    let whole = whole.min(longest);
    whole / 2 + spread % (whole - whole / 2 + 1)
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
