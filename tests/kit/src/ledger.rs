//! The grants of servers, by their own clocks: every entry that a script has written to a log.

use std::collections::BTreeMap;

use crate::monitor::{Seen, bytes_of};
use crate::{
    OwnLog, is_state_key, label_and_used, number_of, own_log::Record, permits_of, windows,
};

/// One grant, as it stands in a log.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    /// The server's time in ms
    score: i64,
    permits: i64,
    given_back: bool,
    /// The number of data losses, and of resets of the log, before
    epoch: u32,
}

/// The last number of permits used and the highest, by the label and the number of data losses
/// before.
type Labels = BTreeMap<(u64, u32), (i64, i64)>;

/// The grants of each log.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By the key of the log, then by the member; in our own format, by a record's id
    logs: BTreeMap<String, BTreeMap<Vec<u8>, Vec<Entry>>>,
    /// By the key of the calendar
    calendars: BTreeMap<String, Labels>,
    /// The label that was written last, by the key of the calendar
    labels: BTreeMap<String, u64>,
    /// The number of losses of all data
    epoch: u32,
    /// The number of resets of each log that was reset
    resets: BTreeMap<String, u32>,
    /// The first mistake in the books of a whole state of our own format
    mistake: Option<String>,
    /// The first grant that was found twice in such a state
    twice: Option<String>,
}

impl Ledger {
    /// Reads one command of a server, in order. A ZADD without a grant replaces a lost log, or sets
    /// back a score.
    pub fn read(&mut self, seen: &Seen) {
        let words: Vec<&str> = seen.words.iter().map(String::as_str).collect();
        match (seen.by_script, &*words) {
            (true, ["SET", key, state, ..]) if is_state_key(key) => {
                self.written(key, 0, &bytes_of(state));
            }
            (true, ["SETRANGE", key, offset, bytes]) if is_state_key(key) => {
                let offset = offset.parse().expect("an offset");
                self.written(key, offset, &bytes_of(bytes));
            }
            // The one key of such a limiter has all of it.
            (false, ["DEL", key]) if is_state_key(key) => self.reset(key),
            (true, ["ZADD", log, "NX", entries @ ..]) => {
                for entry in entries.chunks(2) {
                    let score: f64 = entry[0].parse().expect("a score");
                    self.granted(log, score as i64, &bytes_of(entry[1]));
                }
            }
            (true, ["ZREM", log, members @ ..]) => {
                for member in members {
                    let entries = self.logs.get_mut(*log);
                    let entries = entries.and_then(|log| log.get_mut(&bytes_of(member)));
                    if let Some(last) = entries.and_then(|entries| entries.last_mut()) {
                        last.given_back = true;
                    }
                }
            }
            (false, ["FLUSHALL" | "FLUSHDB", ..]) => self.data_lost(),
            _ => {}
        }
    }

    /// Records what is written into a state of our own format. States of other kinds are not
    /// looked at: they do not show each grant.
    fn written(&mut self, key: &str, offset: usize, bytes: &[u8]) {
        if let Some(log) = OwnLog::of(bytes) {
            if offset == 0 {
                let (mistake, twice) = (log.mistake(), log.twice());
                let mistake = mistake.map(|it| format!("{key}: {it}"));
                let twice = twice.map(|it| format!("{key}: {it:?} of {log:?}"));
                self.mistake = self.mistake.take().or(mistake);
                self.twice = self.twice.take().or(twice);
            }
            for record in log.records.iter().filter(|it| !it.is_merged()) {
                self.recorded(key, record);
            }
        } else if offset == 0 && bytes.ends_with(&[21, 183]) {
            let (label, used) = label_and_used(bytes);
            self.labels.insert(key.to_owned(), label);
            self.used(key, label, used);
        } else if let (12, Some(label)) = (offset, self.labels.get(key)) {
            // What is used, and behind it what does not matter here.
            self.used(key, *label, number_of(&bytes[..7]).cast_signed());
        }
    }

    /// Records what a log has of one grant by now. Its first time stands: what sets it back, or
    /// moves permits that were ahead into the log, must keep them in use for as long.
    fn recorded(&mut self, log: &str, record: &Record) {
        let (permits, score) = (record.permits, record.time);
        let epoch = self.epoch_of(log);
        let log = self.logs.entry(log.to_owned()).or_default();
        let entries = log.entry(record.id.clone()).or_default();
        match entries.last_mut().filter(|last| last.epoch == epoch) {
            // One that was given back and is there again was executed again.
            Some(last) if !last.given_back || permits == 0 => {
                (last.permits, last.given_back) = (permits, permits == 0);
            }
            _ => entries.push(Entry {
                score,
                permits,
                given_back: permits == 0,
                epoch,
            }),
        }
    }

    fn used(&mut self, key: &str, label: u64, used: i64) {
        let epoch = self.epoch_of(key);
        let labels = self.calendars.entry(key.to_owned()).or_default();
        let known = labels.entry((label, epoch)).or_default();
        *known = (used, known.1.max(used));
    }

    fn calendar(&self, key: &str) -> impl Iterator<Item = &(i64, i64)> {
        let labels = self.calendars.get(key).into_iter();
        labels.flat_map(BTreeMap::values)
    }

    /// Records that all limiters start with all permits.
    fn data_lost(&mut self) {
        self.epoch += 1;
    }

    /// Records that one limiter starts with all permits.
    fn reset(&mut self, log: &str) {
        *self.resets.entry(log.to_owned()).or_default() += 1;
    }

    fn epoch_of(&self, log: &str) -> u32 {
        self.epoch + self.resets.get(log).copied().unwrap_or(0)
    }

    /// Records an entry, unless it is recorded already.
    fn granted(&mut self, log: &str, score: i64, member: &[u8]) {
        // What replaces a lost log was granted before, or never.
        if member[1..].starts_with(b"heal:") {
            return;
        }
        let (permits, epoch) = (i64::from(permits_of(member)), self.epoch_of(log));
        let log = self.logs.entry(log.to_owned()).or_default();
        let entries = log.entry(member.to_owned()).or_default();
        // Sent again, or delivered twice: an existing entry stays, also when it has expired. One
        // that was dropped meanwhile is created again, which does not show here.
        let stands = entries
            .last()
            .is_some_and(|last| !last.given_back && last.epoch == epoch);
        if !stands {
            entries.push(Entry {
                score,
                permits,
                given_back: false,
                epoch,
            });
        }
    }

    /// The logs that anything was written to.
    pub fn logs(&self) -> impl Iterator<Item = &str> {
        self.logs.keys().map(String::as_str)
    }

    /// Returns the most permits in any window of this length without a data loss, or under any
    /// label of a calendar: the third oracle compares it with the rate.
    pub fn fullest_window(&self, log: &str, interval: i64) -> i64 {
        let windows = (0..=self.epoch_of(log))
            .map(|epoch| self.fullest(log, interval, |it| it.epoch == epoch));
        let labels = self.calendar(log).map(|(_, most)| *most);
        windows.chain(labels).max().unwrap_or(0)
    }

    /// The same, whatever was lost: what a caller of the limiter can have seen.
    pub fn fullest_window_of_all(&self, log: &str, interval: i64) -> i64 {
        self.fullest(log, interval, |_| true)
    }

    fn fullest(&self, log: &str, interval: i64, counts: impl Fn(&Entry) -> bool) -> i64 {
        let entries = self.logs.get(log).into_iter().flat_map(BTreeMap::values);
        let mut grants: Vec<_> = entries
            .flatten()
            .filter(|entry| !entry.given_back && counts(entry))
            .collect();
        grants.sort_by_key(|entry| entry.score);
        let grants = grants.iter().map(|grant| (grant.score, grant.permits));
        windows(grants, interval).into_iter().max().unwrap_or(0)
    }

    /// Permits that were granted and not given back.
    pub fn kept(&self, log: &str) -> i64 {
        let entries = self.logs.get(log).into_iter().flat_map(BTreeMap::values);
        let kept = entries.flatten().filter(|entry| !entry.given_back);
        let used = self.calendar(log).map(|(last, _)| *last);
        kept.map(|entry| entry.permits).chain(used).sum()
    }

    pub fn granted_permits(&self) -> i64 {
        self.logs.keys().map(|log| self.kept(log)).sum()
    }

    /// # Panics
    ///
    /// If the books of a state were wrong when it was written, or a grant was in it twice, which
    /// `may` be.
    pub fn check_books(&self, may: bool) {
        assert_eq!(self.mistake, None, "O7: books");
        assert!(may || self.twice.is_none(), "O7: twice: {:?}", self.twice);
    }
}

/// The checks themselves can fail.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::escaped;

    /// A record of a log of our own: its id, its callers (1; 0 of a slot, 255 of what a settlement
    /// charged), its permits and its time.
    type Written = (u8, u8, u64, u64);

    fn member(id: u8, permits: u8) -> String {
        escaped(&[&[16][..], &[id; 16], &[permits, 0, 0, 0]].concat())
    }

    impl Ledger {
        fn script(&mut self, words: &[&str]) {
            self.seen(true, words);
        }

        fn seen(&mut self, by_script: bool, words: &[&str]) {
            self.read(&Seen {
                micros: 0,
                by_script,
                words: words.iter().map(|&word| word.to_owned()).collect(),
            });
        }

        fn grant(&mut self, score: i64, id: u8, permits: u8) {
            let (score, member) = (score.to_string(), member(id, permits));
            self.script(&["ZADD", "log", "NX", &score, &member]);
        }

        /// Writes records at an offset, of which this many are ahead, before the log's end.
        fn write(&mut self, offset: &str, records: &[Written], ahead: u8) {
            self.write_used(offset, records, ahead, None);
        }

        /// The same; the one window, if there is any, has so many permits. What is behind the
        /// records matters nowhere else.
        fn write_used(&mut self, offset: &str, all: &[Written], ahead: u8, used: Option<u8>) {
            let record = |&(id, callers, permits, time): &Written| {
                let [permits, time] = [permits, time].map(|it| escaped(&it.to_le_bytes()[..6]));
                escaped(&[id; 8]) + &escaped(&[0, callers]) + &permits + &time
            };
            let records: String = all.iter().map(record).collect();
            let window = used.map(|used| [&[0; 13][..], &[used], &[0; 16]].concat());
            let windows = u8::from(window.is_some());
            let end = [0, 0, 0, 0, 0, 0, ahead, windows, 17, 183];
            let state = records + &escaped(&window.unwrap_or_default()) + &escaped(&end);
            match offset {
                "" => self.script(&["SET", "n~", &state, "PX", "9"]),
                _ => self.script(&["SETRANGE", "n~", offset, &state]),
            }
        }
    }

    #[test]
    fn a_window_that_is_too_full_is_found() {
        let mut ledger = Ledger::default();
        for (score, id, permits) in [(0, 1, 2), (60, 2, 1), (100, 3, 2), (159, 4, 1)] {
            ledger.grant(score, id, permits);
        }
        assert_eq!(ledger.fullest_window("log", 100), 4, "from 60 to 159");
        assert_eq!(ledger.fullest_window("log", 99), 3);
        assert_eq!(ledger.kept("log"), 6);
    }

    #[test]
    fn a_day_that_is_too_full_is_found() {
        let mut ledger = Ledger::default();
        let bytes = |number: u64, width: usize| escaped(&number.to_le_bytes()[..width]);
        let begins = |ledger: &mut Ledger, label, used| {
            let parts = [bytes(label, 6), bytes(0, 6), bytes(used, 7), bytes(0, 7)];
            let state = parts.concat() + &escaped(&[0; 46]) + &escaped(&[21, 183]);
            ledger.script(&["SET", "n~", &state, "PX", "9"]);
        };
        begins(&mut ledger, 20_261_101, 7);
        for used in [9, 6] {
            ledger.script(&["SETRANGE", "n~", "12", &bytes(used, 7)]);
        }
        begins(&mut ledger, 20_261_102, 8);
        assert_eq!(ledger.fullest_window("n~", 100), 9);
        assert_eq!(ledger.kept("n~"), 14);
        ledger.data_lost();
        begins(&mut ledger, 20_261_102, 5);
        assert_eq!(ledger.fullest_window("n~", 100), 9);
        assert_eq!(ledger.kept("n~"), 19);
    }

    #[test]
    fn an_own_log_that_is_too_full_is_found() {
        let mut ledger = Ledger::default();
        ledger.write("", &[(1, 1, 2, 100)], 0);
        ledger.write("22", &[(2, 1, 3, 150)], 0);
        assert_eq!(ledger.fullest_window("n~", 100), 5);
        assert_eq!(ledger.fullest_window("n~", 50), 3);
        // A slot, of grants that are known.
        ledger.write("", &[(1, 0, 2, 100), (2, 1, 3, 150), (3, 1, 1, 210)], 0);
        assert_eq!(ledger.fullest_window("n~", 100), 5, "one has expired");
        assert_eq!(ledger.kept("n~"), 6);
        ledger.write("0", &[(2, 1, 3, 50)], 0);
        let fullest = ledger.fullest_window("n~", 100);
        assert_eq!(fullest, 5, "no grant is earlier than it was");
        for lost in [&["DEL", "n~"][..], &["FLUSHALL"]] {
            ledger.seen(false, lost);
            ledger.write("", &[(4, 1, 3, 220)], 0);
            assert_eq!(ledger.fullest_window("n~", 100), 5, "{lost:?}");
        }
        assert_eq!(ledger.fullest_window_of_all("n~", 100), 10);
    }

    #[test]
    fn what_is_settled_in_an_own_log_counts_as_settled() {
        let mut ledger = Ledger::default();
        ledger.write("", &[(1, 1, 2, 100), (2, 1, 2, 101)], 0);
        ledger.write("22", &[(2, 1, 1, 101)], 0);
        assert_eq!(ledger.kept("n~"), 3, "one is given back");
        ledger.write("0", &[(1, 1, 0, 100), (2, 1, 1, 101)], 0);
        assert_eq!(ledger.kept("n~"), 1);
        ledger.write("44", &[(2, 255, 5, 120)], 0);
        assert_eq!(ledger.kept("n~"), 6, "more is charged");
        ledger.write("44", &[(2, 255, 0, 120)], 0);
        assert_eq!(ledger.kept("n~"), 1);
        ledger.write("", &[(1, 1, 2, 900)], 0);
        assert_eq!(ledger.kept("n~"), 3, "executed after it was given back");
        assert_eq!(ledger.fullest_window("n~", 10), 2);
    }

    #[test]
    fn books_that_are_wrong_are_found() {
        let records = [(1, 1, 2, 100), (2, 1, 3, 101), (3, 1, 7, 140)];
        let books = |records: &[Written], used| {
            let mut ledger = Ledger::default();
            ledger.write_used("", records, 1, used);
            (ledger.mistake, ledger.twice)
        };
        let fine = books(&records, Some(5));
        assert_eq!(fine, (None, None), "what is ahead is in no window");
        let mistake = books(&records, Some(4)).0.unwrap();
        assert!(mistake.starts_with("n~: not the 5 permits"), "{mistake}");
        let twice = [&records[..], &records[1..2]].concat();
        assert!(books(&twice, None).1.is_some());
    }

    #[test]
    fn permits_ahead_of_an_own_log_are_one_grant() {
        let mut ledger = Ledger::default();
        ledger.write("", &[(1, 1, 2, 100), (2, 1, 7, 140)], 1);
        assert_eq!(ledger.fullest_window("n~", 100), 9);
        ledger.write("22", &[(2, 1, 7, 145), (3, 1, 1, 145)], 0);
        assert_eq!(ledger.kept("n~"), 10);
        let fullest = ledger.fullest_window("n~", 5);
        assert_eq!(fullest, 7, "from the time they were fetched for");
    }

    #[test]
    fn what_comes_twice_counts_once_and_what_is_given_back_not_at_all() {
        let mut ledger = Ledger::default();
        ledger.grant(0, 1, 2);
        ledger.grant(5, 1, 2);
        assert_eq!(ledger.kept("log"), 2);
        ledger.script(&["ZREM", "log", &member(1, 2)]);
        assert_eq!(ledger.kept("log"), 0);
        ledger.grant(9, 1, 2);
        assert_eq!(ledger.kept("log"), 2, "executed after it was given back");
        ledger.grant(900, 1, 2);
        assert_eq!(ledger.kept("log"), 2, "and found when it had expired");
    }

    #[test]
    fn lost_data_ends_a_window_and_is_seen_in_that_of_all() {
        let mut ledger = Ledger::default();
        ledger.grant(0, 1, 3);
        ledger.seen(false, &["FLUSHALL"]);
        ledger.grant(1, 2, 2);
        assert_eq!(ledger.fullest_window("log", 100), 3);
        assert_eq!(ledger.fullest_window_of_all("log", 100), 5);
        ledger.reset("log");
        ledger.grant(2, 2, 2);
        ledger.grant(3, 3, 2);
        assert_eq!(ledger.fullest_window("log", 100), 4);
    }
}
