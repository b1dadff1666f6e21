//! The verbs that take no permits, carried out in Redis and by the model.

use redis::Value;

use super::pair::{Clock, How, Pair, Sent};
use crate::store::redis::wire::{
    self,
    arguments::Word,
    sliding_log::{SCRIPTS, VERBS},
    verbs,
};
use crate::{
    clock::Now,
    error::ErrorKind,
    limit::{Limit, LimitSource, RateType},
    receipt::Receipt,
};

impl Pair {
    fn verb(&mut self, verb: &str, argv: impl IntoIterator<Item = Word>) -> Value {
        let arguments = verbs::arguments(&self.keys, verb, argv);
        self.call(&VERBS, &arguments).unwrap()
    }

    pub(crate) fn set_rate(&mut self, limit: Limit, keep: bool, existing: bool) {
        let now = self.now();
        let mut argv: Vec<_> = wire::format::limit_fields(&limit.stored()).into();
        argv.push(wire::format::time(Some(now.cast_unsigned())));
        argv.push(wire::format::flag_byte(keep));
        argv.push(wire::format::flag_byte(existing));
        let reply = self.verb("set_rate", argv);
        let expected = !existing || self.model.limit.is_some();
        assert_eq!(wire::reply::flag(&reply).unwrap(), expected);
        if expected {
            self.model.set_rate(limit.stored(), keep, Now::millis(now));
        }
        self.compare();
    }

    pub(crate) fn release(&mut self, permits: u32) {
        let (now, id) = (self.now(), self.new_id());
        let now_given = wire::format::time(Some(now.cast_unsigned()));
        let argv = [Word::number(permits), now_given, Word::from(id.0)];
        let reply = self.verb("release", argv);
        let replied = wire::reply::second(&reply).map_err(|error| error.kind());
        assert_eq!(
            replied,
            self.model.release(permits.into(), Now::millis(now), id)
        );
        self.compare();
    }

    pub(crate) fn repair(&mut self) -> Result<i64, ErrorKind> {
        let now = self.now();
        let argv = [wire::format::time(Some(now.cast_unsigned()))];
        let reply = self.verb("repair", argv);
        let replied = wire::reply::second(&reply).map_err(|error| error.kind());
        assert_eq!(replied, self.model.repair(Now::millis(now)));
        if let (Ok(lost), Some(limit)) = (replied, self.model.limit) {
            let left = self.model.value.unwrap_or(limit.rate);
            let numbers: Vec<i64> = redis::from_redis_value(reply).unwrap();
            assert_eq!(numbers, [1, lost, left]);
        }
        self.compare();
        replied
    }

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
        // What is given back says nothing of the time it used.
        let given = (self.clock != Clock::Server || keep < sent.permits).then(|| self.now());
        let ask = wire::Ask {
            now: given.map(i64::cast_unsigned),
            ..self.asks(false)
        };
        let call = (SCRIPTS.settle)(&receipt, keep, ask).unwrap();
        let reply = self.call(call.script, &call.arguments).unwrap();
        let now = match (given, &reply) {
            (Some(now), _) => now,
            (None, Value::Array(numbers)) if numbers.len() == 3 => {
                redis::from_redis_value(numbers[2].clone()).unwrap()
            }
            // Errors of the model come before it looks at the time.
            (None, _) => 0,
        };
        let replied = wire::reply::second(&reply).map_err(|error| error.kind());
        // Without the hash nobody knows whose keys those of a limit per client are: nothing is found then.
        let lost = self.rate_type == RateType::PerClient && self.model.limit.is_none();
        let expected = if lost && keep < sent.permits {
            Ok(0)
        } else {
            self.model.settle(&receipt, keep, Now::millis(now))
        };
        assert_eq!(replied, expected, "{sent:?} at {keep}");
        self.compare();
        if let Ok(..0) = replied {
            self.check_ttls();
        }
        replied
    }

    pub(crate) fn receipt(&self, sent: Sent, limit: LimitSource) -> Receipt {
        let how = How {
            limit,
            rewrite: false,
            exact: false,
        };
        let charge = self.charge(sent, how);
        charge.receipt()
    }

    pub(crate) fn available(&mut self) -> Result<i64, ErrorKind> {
        let id = self.new_id();
        let given = match self.clock {
            Clock::Given(now) => Some(now.cast_unsigned()),
            Clock::Server => None,
        };
        let reply = self
            .call(&VERBS, &self.available_arguments(id, given))
            .unwrap();
        let replied = wire::reply::second(&reply).map_err(|error| error.kind());
        let now = match (&reply, self.clock) {
            (_, Clock::Given(now)) => now,
            (Value::Array(numbers), Clock::Server) if numbers.len() == 5 => {
                redis::from_redis_value(numbers[2].clone()).unwrap()
            }
            _ => 0,
        };
        assert_eq!(replied, self.model.available(Now::millis(now), id));
        if let (Ok(available), Some(limit)) = (&replied, self.model.limit) {
            let numbers: Vec<i64> = redis::from_redis_value(reply).unwrap();
            assert_eq!(numbers, [1, *available, now, limit.rate, limit.interval]);
        }
        self.compare();
        replied
    }

    pub(crate) fn try_set_rate(&mut self, limit: Limit) -> bool {
        let reply = self.verb("try_set_rate", wire::format::limit_fields(&limit.stored()));
        let set = wire::reply::flag(&reply).unwrap();
        assert_eq!(set, self.model.try_set_rate(limit.stored()));
        self.compare();
        set
    }
}
