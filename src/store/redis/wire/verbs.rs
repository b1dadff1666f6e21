//! The verbs, and what carries them out: see `lua/lib/verbs.lua`. Pure.

use redis::Value;

use super::{
    arguments::{Arguments, Word},
    format::{flag_byte, keys, limit_fields, random_id, time},
    reply::{flag, second},
};
use crate::{
    clock::Millis,
    error::Error,
    name::Name,
    store::{ExpireWhen, Op, Outcome},
};

/// What carries out an [`Op`].
pub(crate) enum Way {
    Script(Verb),
    /// PTTL of the hash
    TimeToLive,
    /// HMGET of the hash
    Inspect,
    /// DEL
    Delete,
}

impl Way {
    pub(crate) fn of(op: &Op, now: Option<Millis>) -> Result<Self, Error> {
        let now = time(now);
        let id = || random_id().map(|id| Word::from(id.0));
        Ok(Self::Script(match op {
            Op::TrySetRate(limit) => Verb::changes("try_set_rate", limit_fields(limit)),
            Op::SetRate {
                limit,
                keep,
                existing,
            } => {
                let mut argv = Vec::from(limit_fields(limit));
                argv.extend([now, flag_byte(*keep), flag_byte(*existing)]);
                Verb::changes("set_rate", argv)
            }
            Op::Release(permits) => {
                Verb::counts("release", [Word::number(permits), now, id()?]).once()
            }
            Op::Expire(millis, when) => {
                let when = match when {
                    ExpireWhen::Always => Word::default(),
                    ExpireWhen::NotSet => Word::from(*b"NX"),
                    ExpireWhen::Set => Word::from(*b"XX"),
                    ExpireWhen::Greater => Word::from(*b"GT"),
                    ExpireWhen::Less => Word::from(*b"LT"),
                };
                Verb::changes("expire", [Word::number(millis), when])
            }
            Op::ClearExpire => Verb::changes("clear_expire", []),
            Op::Available => Verb::counts("available", [now, id()?]),
            // Sent again it would find nothing to repair, and say so.
            Op::Repair => Verb::counts("repair", [now]).once(),
            Op::Rename(new_name) => Verb {
                to: Some(new_name.clone()),
                ..Verb::changes("rename", []).once()
            },
            Op::TimeToLive => return Ok(Self::TimeToLive),
            Op::Inspect => return Ok(Self::Inspect),
            Op::Delete => return Ok(Self::Delete),
        }))
    }
}

/// A verb of a script, with its arguments, the same for every algorithm.
pub(crate) struct Verb {
    word: &'static str,
    argv: Vec<Word>,
    /// The name that the limiter gets.
    to: Option<Name>,
    /// Whether it must not be sent twice.
    pub(crate) once: bool,
    /// Reads the reply.
    pub(crate) read: fn(&Value) -> Result<Outcome, Error>,
}

impl Verb {
    fn changes(word: &'static str, argv: impl Into<Vec<Word>>) -> Self {
        Self {
            word,
            argv: argv.into(),
            to: None,
            once: false,
            read: |reply| flag(reply).map(Outcome::Changed),
        }
    }

    fn counts(word: &'static str, argv: impl Into<Vec<Word>>) -> Self {
        Self {
            read: |reply| second(reply).map(Outcome::Permits),
            ..Self::changes(word, argv)
        }
    }

    fn once(self) -> Self {
        Self { once: true, ..self }
    }

    pub(crate) fn arguments(self, name: &Name, client_id: &str) -> Arguments {
        let mut all = Vec::from(keys(name, client_id));
        all.extend(self.to.iter().flat_map(|to| keys(to, client_id)));
        arguments(all, self.word, self.argv)
    }
}

/// Returns the arguments of a verb's script.
pub(crate) fn arguments(
    keys: impl IntoIterator<Item = impl AsRef<[u8]>>,
    verb: &str,
    argv: impl IntoIterator<Item = Word>,
) -> Arguments {
    let mut arguments = Arguments::new(keys, [verb]);
    argv.into_iter().for_each(|word| arguments.push(word));
    arguments
}
