//! The verbs that take no permits, carried out in Redis and by the model: those of every kind, and
//! how a sliding log settles.

use super::*;
use crate::{
    algorithm::limiter::Counter as _,
    store::redis::{
        redisson::{
            format::{fields, optional},
            reply::flag,
            sliding_log, verbs,
        },
        script::ScriptCall,
    },
    values::clock::Millis,
};

impl<K: Kind> Pair<K> {
    /// Has a verb carried out whose reply is a flag.
    fn changes(&mut self, command: &Cmd) -> bool {
        let script = self.scripts().verbs;
        flag(&self.call(script, command).unwrap()).unwrap()
    }

    fn verb(&self, verb: &str) -> Cmd {
        verbs::start(self.scripts().verbs, &self.keys, verb, false).command
    }

    /// Has a verb carried out whose reply is an error or numbers.
    fn counts(&mut self, command: &Cmd) -> (Value, Result<i64, ErrorKind>) {
        self.number(self.scripts().verbs, command)
    }

    /// The time that a verb is given, and what the model takes for it.
    fn given(&mut self) -> (Millis, i64) {
        let now = self.now();
        (now.cast_unsigned(), now)
    }

    pub(crate) fn set_rate(&mut self, limit: Limit, keep: bool, existing: bool) {
        let (given, now) = self.given();
        let mut command = self.verb("set_rate");
        command
            .arg(fields(&limit.stored()))
            .arg((given, keep, existing));
        let expected = !existing || self.model.limit().is_some();
        assert_eq!(self.changes(&command), expected);
        if expected {
            let now = self.instant(now);
            let limit = limit.stored();
            self.model.set(|limiter| limiter.set_rate(limit, keep, now));
        }
        self.compare();
    }

    pub(crate) fn try_set_rate(&mut self, limit: Limit) -> bool {
        let limit = limit.stored();
        let set = self.changes(self.verb("try_set_rate").arg(fields(&limit)));
        let expected = self.model.set(|limiter| limiter.try_set_rate(limit));
        assert_eq!(set, expected);
        self.compare();
        set
    }

    pub(crate) fn release(&mut self, permits: u32) {
        let ((given, now), id) = (self.given(), self.new_id());
        let mut command = self.verb("release");
        let (_, replied) = self.counts(command.arg((permits, given, &id.0)));
        let now = Now::millis(now).by_caller(true);
        let release = |limiter: &mut LimiterState| limiter.release(permits.into(), now, id);
        assert_eq!(replied, self.model.verb(release));
        self.compare();
    }

    pub(crate) fn repair(&mut self) -> Result<i64, ErrorKind> {
        let (given, now) = self.given();
        let (reply, replied) = self.counts(self.verb("repair").arg(given));
        let now = Now::millis(now).by_caller(true);
        assert_eq!(replied, self.model.verb(|limiter| limiter.repair(now)));
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
        let command = self.count_command(id, self.asks(true).now);
        let (reply, replied) = self.counts(&command);
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

    pub(crate) fn count_command(&self, id: PermitId, given: Option<Millis>) -> Cmd {
        let mut command = self.verb("available");
        optional(&mut command, given);
        command.arg(&id.0).take()
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
        // By its own entry, also where the model merges grants in slots.
        let charge = self.charge(sent, limit);
        let receipt = charge.counted(|of| of.counting.slots = None).to_send();
        let given = self.given_to_settle(sent, keep);
        let call = (sliding_log::SCRIPTS.settle)(&receipt, keep, self.asks_at(given)).unwrap();
        let replied = self.settled(&call, (sent, keep), given, |model, now| {
            model.settle(&receipt, None, keep, now)
        });
        self.model.state.count_by(self.counting);
        if let Ok(..0) = replied {
            self.check_ttls();
        }
        replied
    }

    /// What is given back says nothing of the time it used, and so is given one.
    pub(crate) fn given_to_settle(&mut self, sent: Sent, keep: u32) -> Option<i64> {
        (self.clock != Clock::Server || keep < sent.permits).then(|| self.now())
    }

    /// What a settlement says of its caller.
    pub(crate) fn asks_at(&self, given: Option<i64>) -> redisson::CallSettings<'static> {
        redisson::CallSettings {
            now: given.map(i64::cast_unsigned),
            ..self.asks(false)
        }
    }

    /// Has a receipt settled by the script and by the model.
    pub(crate) fn settled(
        &mut self,
        call: &ScriptCall,
        (sent, keep): (Sent, u32),
        given: Option<i64>,
        by_model: impl FnOnce(&mut LimiterState<SlidingLog>, Now) -> Result<i64, ErrorKind>,
    ) -> Result<i64, ErrorKind> {
        let (reply, replied) = self.number(call.script, &call.command);
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
