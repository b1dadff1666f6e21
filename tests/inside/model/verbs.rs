//! The verbs that take no permits, carried out in Redis and by the model: those of every kind, and
//! how a sliding log settles.

use redis::Value;

use super::pair::{CLIENT, Clock, Kind, Pair, Sent};
use crate::store::redis::wire::{
    self,
    arguments::{Arguments, Word},
    script::{SETTLE, Script, Verbs},
};
use crate::{
    algorithm::sliding_log::Limiter,
    clock::{Millis, Now},
    error::ErrorKind,
    limit::{Limit, LimitSource, RateType},
    receipt::PermitId,
};

impl<K: Kind> Pair<K> {
    fn verbs() -> Verbs {
        Verbs::of(K::ALGORITHM)
    }

    fn verb<const N: usize>(
        &mut self,
        script: &Script,
        argv: [Word; N],
    ) -> (Value, Result<i64, ErrorKind>) {
        self.number(script, &Arguments::new(&self.keys, argv))
    }

    /// The time that a verb is given, and what the model takes for it.
    fn given(&mut self) -> (Word, i64) {
        let now = self.now();
        (wire::time(Some(now.cast_unsigned())), now)
    }

    pub(crate) fn set_rate(&mut self, limit: Limit, keep: bool, existing: bool) {
        let (given, now) = self.given();
        let mut argv: Vec<_> = wire::limit_fields(&limit.stored()).into();
        argv.extend([given, wire::flag_byte(keep), wire::flag_byte(existing)]);
        let reply = self
            .call(Self::verbs().set_rate, &Arguments::new(&self.keys, argv))
            .unwrap();
        let expected = !existing || self.model.limit().is_some();
        assert_eq!(wire::flag(&reply).unwrap(), expected);
        if expected {
            let now = self.instant(now);
            self.model.set_rate(limit.stored(), keep, now);
        }
        self.compare();
    }

    pub(crate) fn try_set_rate(&mut self, limit: Limit) -> bool {
        let limit = limit.stored();
        let arguments = Arguments::new(&self.keys, wire::limit_fields(&limit));
        let reply = self.call(Self::verbs().try_set_rate, &arguments).unwrap();
        let set = wire::flag(&reply).unwrap();
        assert_eq!(set, self.model.try_set_rate(limit));
        // It may be the script of a log, which passes on the limit's life; the next call of a window
        // mends its end.
        K::compare(self, false);
        set
    }

    pub(crate) fn release(&mut self, permits: u32) {
        let ((given, now), id) = (self.given(), self.new_id());
        let argv = [Word::number(permits), given, Word::from(id.0)];
        let (_, replied) = self.verb(Self::verbs().release, argv);
        let now = self.instant(now);
        assert_eq!(replied, self.model.release(permits.into(), now, id));
        self.compare();
    }

    pub(crate) fn repair(&mut self) -> Result<i64, ErrorKind> {
        let (given, now) = self.given();
        let (reply, replied) = self.verb(Self::verbs().repair, [given]);
        let now = self.instant(now);
        assert_eq!(replied, self.model.repair(now));
        if let Ok(lost) = replied {
            let left = self.model.clone().available(now, PermitId([0; 16]));
            let numbers: Vec<i64> = redis::from_redis_value(reply).unwrap();
            assert_eq!(numbers, [1, lost, left.unwrap()]);
        }
        self.compare();
        replied
    }

    pub(crate) fn available(&mut self) -> Result<i64, ErrorKind> {
        let id = self.new_id();
        let arguments = self.available_arguments(id, self.asks(true).now);
        let (reply, replied) = self.number(Self::verbs().available, &arguments);
        let numbers: Vec<i64> = redis::from_redis_value(reply).unwrap();
        let now = match (self.clock, &*numbers) {
            (Clock::Given(now), _) | (Clock::Server, &[_, _, now, _, _]) => now,
            // Errors of the model come before it looks at the time.
            (Clock::Server, _) => 0,
        };
        let instant = self.instant(now);
        assert_eq!(replied, self.model.available(instant, id));
        if let (Ok(available), Some(limit)) = (&replied, self.model.in_force()) {
            assert_eq!(numbers, [1, *available, now, limit.rate, limit.interval]);
        }
        self.compare();
        replied
    }

    pub(crate) fn available_arguments(&self, id: PermitId, given: Option<Millis>) -> Arguments {
        Arguments::new(&self.keys, [wire::time(given), Word::from(id.0)])
    }
}

impl Pair {
    pub(crate) fn give_back(&mut self, sent: Sent) -> bool {
        self.settle(sent, 0, LimitSource::Store).unwrap() != 0
    }

    /// Settles an acquire at `keep` permits; how many were credited, below zero: charged.
    pub(crate) fn settle(
        &mut self,
        sent: Sent,
        keep: u32,
        limit: LimitSource,
    ) -> Result<i64, ErrorKind> {
        if keep == sent.permits {
            return Ok(0);
        }
        let receipt = self.receipt(sent, limit);
        let given = self.given_to_settle(sent, keep);
        let arguments = wire::settle(&receipt, keep, CLIENT, given.map(i64::cast_unsigned));
        let replied = self.settled(&SETTLE, &arguments, (sent, keep), given, |model, now| {
            model.settle(&receipt, keep, now)
        });
        if let Ok(..0) = replied {
            self.check_ttls();
        }
        replied
    }

    /// What is given back says nothing of the time it used, and so is given one.
    pub(crate) fn given_to_settle(&mut self, sent: Sent, keep: u32) -> Option<i64> {
        (self.clock != Clock::Server || keep < sent.permits).then(|| self.now())
    }

    /// Has a receipt settled by the script and by the model.
    pub(crate) fn settled(
        &mut self,
        script: &Script,
        arguments: &Arguments,
        (sent, keep): (Sent, u32),
        given: Option<i64>,
        by_model: impl FnOnce(&mut Limiter, Now) -> Result<i64, ErrorKind>,
    ) -> Result<i64, ErrorKind> {
        let (reply, replied) = self.number(script, arguments);
        let now = match (given, reply) {
            (Some(now), _) => now,
            (None, Value::Array(numbers)) if numbers.len() == 3 => {
                redis::from_redis_value(numbers[2].clone()).unwrap()
            }
            // Errors of the model come before it looks at the time.
            (None, _) => 0,
        };
        // Without the hash nothing says which client's keys those of a limit per client are, so
        // nothing is found then.
        let lost = self.rate_type == RateType::PerClient && self.model.limit.is_none();
        let expected = if lost && keep < sent.permits {
            Ok(0)
        } else {
            by_model(&mut self.model, Now::millis(now))
        };
        assert_eq!(replied, expected, "{sent:?} at {keep}");
        self.compare();
        replied
    }
}
