//! Scripts of only the commands that a decision cannot do without, which look at no answer: the
//! floor of what a decision costs Redis.

use tower_ratelimit::redis::{self, Cmd, aio::MultiplexedConnection};

/// The end of the state of each limiter is read; what a decision writes of it stands between this
/// and [`END`].
const LOG: &str = "
local call, replies = redis.call, {}
call('TIME')
for at = 1, #KEYS do
  call('GETRANGE', KEYS[at], '-260', '-1')
";
/// A record, and what stands behind all, are written over what stood there.
const BEHIND: &str = "
  call('SETRANGE', KEYS[at], '44', 'twenty-two of a record and forty of a limit and of all records')
";
/// The same of 63 callers.
const BEHIND_FOR_ALL: &str = "
  call('SETRANGE', KEYS[at], '14080', string.rep('x', 63 * 22 + 40))
";
/// The expiry is put off, so all is written, and nothing of what was there lives.
const WHOLE: &str = "
  call('SET', KEYS[at], 'twenty-two of a record and forty of a limit and of all records', 'PX', '7200000')
";
/// The same of three limits.
const WHOLE_OF_SEVERAL: &str = "
  call('SET', KEYS[at], 'twenty-two of a record and forty of a limit and of all records'
    .. 'sixty that say of two more limits what they say of the first', 'PX', '7200000')
";
const END: &str = "
  replies[at] = 1
end
return replies[2] and replies or 1
";
/// The time, and the callers, are written over what stood there.
const AT_TAT: &str = "
  call('SETRANGE', KEYS[at], '27', 'tat, the caller and three before it, and the kind')
";
const GCRA: &str = "redis.call('GET', KEYS[1])\nredis.call('TIME')\n";
const REFUSE: &str = "return 1";
const ADMIT: &str = "
redis.call('SETRANGE', KEYS[1], '27', 'seven, and ten of a caller, and thirty of other')
return '8 bytes.8 bytes.8 bytes.'
";

/// Calls of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) name: &'static str,
    script: &'static [&'static str],
    /// The limiters of a call
    pub(crate) limiters: usize,
    /// How many callers it decides for
    pub(crate) callers: usize,
    /// How long the state of each limiter is, and the argument
    bytes: [usize; 2],
}

pub(crate) const LONE_IN_USE: Calls = Calls {
    name: "lone, log in use",
    script: &[LOG, BEHIND, END],
    limiters: 1,
    callers: 1,
    bytes: [84, 34],
};
pub(crate) const LONE_EXPIRED: Calls = Calls {
    name: "lone, log expired",
    script: &[LOG, WHOLE, END],
    bytes: [62, 34],
    ..LONE_IN_USE
};
pub(crate) const RUN: Calls = Calls {
    name: "63 at once on a key",
    script: &[LOG, BEHIND_FOR_ALL, END],
    callers: 63,
    bytes: [14_120, 545],
    ..LONE_IN_USE
};
pub(crate) const BATCH_OF_12: Calls = Calls {
    name: "12 keys at once, log expired",
    limiters: 12,
    callers: 12,
    bytes: [62, 247],
    ..LONE_EXPIRED
};
pub(crate) const BATCH_OF_64: Calls = Calls {
    name: "64 keys at once, log expired",
    limiters: 64,
    callers: 64,
    bytes: [62, 1183],
    ..LONE_EXPIRED
};
pub(crate) const BATCH_OF_64_BY_GCRA: Calls = Calls {
    name: "64 keys at once, GCRA",
    script: &[LOG, AT_TAT, END],
    bytes: [76, 1182],
    ..BATCH_OF_64
};
pub(crate) const LIST: Calls = Calls {
    name: "list of three limits, log expired",
    limiters: 3,
    bytes: [62, 63],
    ..LONE_EXPIRED
};
pub(crate) const SEVERAL: Calls = Calls {
    name: "three limits of a rule, log expired",
    script: &[LOG, WHOLE_OF_SEVERAL, END],
    bytes: [122, 60],
    ..LONE_EXPIRED
};
pub(crate) const REFUSED_GCRA: Calls = Calls {
    name: "GCRA, refused",
    script: &[GCRA, REFUSE],
    bytes: [76, 50],
    ..LONE_IN_USE
};
pub(crate) const ADMITTED_GCRA: Calls = Calls {
    name: "GCRA, admitted",
    script: &[GCRA, ADMIT],
    ..REFUSED_GCRA
};

impl Calls {
    /// Brings its script, or one that only returns in its place.
    pub(crate) async fn load(
        &self,
        connection: &mut MultiplexedConnection,
        only_returns: bool,
    ) -> String {
        let script = if only_returns {
            String::from("return 1")
        } else {
            self.script.concat()
        };
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(script);
        load.query_async(connection).await.unwrap()
    }

    /// Makes each limiter of so many calls as it is to be found.
    pub(crate) async fn prepare(&self, connection: &mut MultiplexedConnection, calls: usize) {
        let state = vec![0_u8; self.bytes[0]];
        for limiters in (0..calls * self.limiters).collect::<Vec<_>>().chunks(100) {
            let mut pipeline = redis::pipe();
            for limiter in limiters {
                let key = Self::key(*limiter);
                pipeline.set_ex(&key, state.as_slice(), 3600).ignore();
            }
            pipeline.exec_async(connection).await.unwrap();
        }
    }

    /// The call of this number, with as many keys and as long an argument as a layer has for it.
    pub(crate) fn call(&self, hash: &str, call: usize) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(hash).arg(self.limiters);
        for limiter in call * self.limiters..(call + 1) * self.limiters {
            command.arg(Self::key(limiter));
        }
        command.arg(vec![1_u8; self.bytes[1]]);
        command
    }

    fn key(limiter: usize) -> String {
        format!("ratelimit:{{user-{limiter:07}}}:floor~")
    }
}
