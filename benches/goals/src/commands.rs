//! Scripts of only the commands that a decision cannot do without, which look at no answer: the
//! floor of what a decision costs Redis.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tower_ratelimit::redis::{self, Cmd, aio::MultiplexedConnection};

/// The commands of one limiter that brings an entry of its own. Its keys come at `at`: the hash,
/// the value and the log.
const FIND: &str = "
local call, replies = redis.call, {}
local time = call('TIME')
local now = time[1] .. string.sub('00000' .. time[2], -6, -4)
for at = 1, #KEYS, 3 do
  local value, log = KEYS[at + 1], KEYS[at + 2]
  call('HMGET', KEYS[at], 'rate', 'interval', 'type', 'keepAliveTime')
  call('GET', value)
";
/// The newest entry says that nothing was lost.
const TAKE: &str = "
  call('ZRANGE', log, '-1', '-1', 'WITHSCORES')
  call('ZADD', log, 'NX', now, ARGV[2])
  call('INCRBY', value, '-1')
";
/// An expired entry is looked at, and goes in place of the one that comes.
const REPLACE: &str = "
  call('ZCARD', log)
  call('ZRANGE', log, '0', '1', 'WITHSCORES')
  call('ZADD', log, 'NX', now, ARGV[2])
  call('ZREMRANGEBYRANK', log, '0', '0')
";
/// Of many expired entries a page goes, and as many as are taken.
const REPLACE_OF_MANY: &str = "
  call('ZCARD', log)
  call('ZRANGE', log, '0', '1', 'WITHSCORES')
  call('ZCOUNT', log, '-inf', string.format('%d', now - 60000))
  call('ZRANGE', log, '0', '100')
  call('ZADD', log, 'NX', now, ARGV[2])
  call('ZREMRANGEBYRANK', log, '0', '100')
  call('ZRANGE', log, '0', '0', 'WITHSCORES')
  call('INCRBY', value, '100')
";
/// Many callers of one limiter, whose members come as one argument.
const TAKE_FOR_ALL: &str = "
  call('ZCARD', log)
  call('ZRANGE', log, '0', '0', 'WITHSCORES')
  local add, last, members = { 'ZADD', log, 'NX' }, 3, ARGV[2]
  for start = 1, #members, 21 do
    add[last + 1], add[last + 2] = now, string.sub(members, start, start + 20)
    last = last + 2
  end
  call(unpack(add))
  call('ZCOUNT', log, '(' .. now, '+inf')
  call('INCRBY', value, '-63')
";
const END: &str = "
  call('PTTL', value)
  replies[#replies + 1] = '1099511627775 0'
end
return replies[2] and replies or replies[1]
";
const GCRA: &str = "redis.call('GET', KEYS[1])\nredis.call('TIME')\n";
const REFUSE: &str = "return 1";
const ADMIT: &str = "
redis.call('SETRANGE', KEYS[1], '27', 'seven, and ten of a caller, and thirty of other')
return '8 bytes.8 bytes.8 bytes.'
";

const INTERVAL: Duration = Duration::from_secs(60);

/// Calls of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) name: &'static str,
    script: &'static [&'static str],
    /// The limiters of a call
    pub(crate) limiters: usize,
    /// How many callers it decides for
    pub(crate) callers: usize,
    /// The entries in the log of each
    entries: u64,
    have_expired: bool,
}

pub(crate) const LONE_SPARE: Calls = Calls {
    name: "lone, remaining not read",
    script: &[FIND, TAKE, END],
    limiters: 1,
    callers: 1,
    entries: 2,
    have_expired: false,
};
pub(crate) const LONE_EXPIRED: Calls = Calls {
    name: "lone, log expired",
    script: &[FIND, REPLACE, END],
    entries: 1,
    have_expired: true,
    ..LONE_SPARE
};
pub(crate) const RUN: Calls = Calls {
    name: "63 at once on a key",
    script: &[FIND, TAKE_FOR_ALL, END],
    callers: 63,
    entries: 640,
    ..LONE_SPARE
};
pub(crate) const BATCH_OF_12: Calls = Calls {
    name: "12 keys at once, log expired",
    limiters: 12,
    callers: 12,
    ..LONE_EXPIRED
};
pub(crate) const BATCH_OF_64: Calls = Calls {
    name: "64 keys at once, log expired",
    limiters: 64,
    callers: 64,
    ..LONE_EXPIRED
};
pub(crate) const LIST: Calls = Calls {
    name: "list of three limits, log expired",
    limiters: 3,
    ..LONE_EXPIRED
};
pub(crate) const REFUSED_GCRA: Calls = Calls {
    name: "GCRA, refused",
    script: &[GCRA, REFUSE],
    ..LONE_SPARE
};
pub(crate) const ADMITTED_GCRA: Calls = Calls {
    name: "GCRA, admitted",
    script: &[GCRA, ADMIT],
    ..LONE_SPARE
};
pub(crate) const MANY_EXPIRED: Calls = Calls {
    name: "100,000 permits expired",
    script: &[FIND, REPLACE_OF_MANY, END],
    ..LONE_SPARE
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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = now.as_millis() as u64;
        let at = if self.have_expired {
            now - 2 * INTERVAL.as_millis() as u64
        } else {
            now
        };
        for limiters in (0..calls * self.limiters).collect::<Vec<_>>().chunks(100) {
            let mut pipeline = redis::pipe();
            for limiter in limiters {
                let [hash, value, log] = Self::keys(*limiter);
                let rate: u64 = 1 << 40;
                let entries: Vec<_> = (0..self.entries).map(|id| (at, member(id))).collect();
                let interval = INTERVAL.as_millis() as u64;
                let fields = [
                    ("rate", rate),
                    ("interval", interval),
                    ("keepAliveTime", 3_600_000),
                    ("type", 0),
                ];
                pipeline.del(&[&hash, &value, &log]).ignore();
                pipeline.hset_multiple(&hash, &fields).ignore();
                pipeline.set(&value, rate - self.entries).ignore();
                if self.counts_by_gcra() {
                    let state = Self::state(*limiter);
                    pipeline.set_ex(&state, [0; 76].as_slice(), 3600).ignore();
                }
                pipeline.zadd_multiple(&log, &entries).ignore();
                for key in [hash, value, log] {
                    pipeline.pexpire(key, 3_600_000).ignore();
                }
            }
            pipeline.exec_async(connection).await.unwrap();
        }
    }

    /// The call of this number, with as many keys and arguments as a layer has for it.
    pub(crate) fn call(&self, hash: &str, call: usize) -> Cmd {
        self.taking(hash, call, 1000)
    }

    /// The same, with members from this one on.
    pub(crate) fn taking(&self, hash: &str, call: usize, first: u64) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(hash);
        if self.counts_by_gcra() {
            command.arg(1).arg(Self::state(call));
            command.arg("ten bytes of a caller, and five doubles behind it ");
            return command;
        }
        command.arg(3 * self.limiters);
        for limiter in call * self.limiters..(call + 1) * self.limiters {
            for key in Self::keys(limiter) {
                command.arg(key);
            }
        }
        command.arg("code 1099511627776 60000 0 3600000");
        let members = if self.limiters == 1 { self.callers } else { 1 };
        let members: Vec<_> = (0..members as u64)
            .flat_map(|id| member((1 << 32) + first + id))
            .collect();
        command.arg(members);
        command
    }

    fn counts_by_gcra(&self) -> bool {
        self.script[0] == GCRA
    }

    pub(crate) fn name(limiter: usize) -> String {
        format!("ratelimit:{{user-{limiter:07}}}:floor")
    }

    /// The key of a limiter by GCRA.
    fn state(limiter: usize) -> String {
        format!("{}~", Self::name(limiter))
    }

    fn keys(limiter: usize) -> [String; 3] {
        let name = Self::name(limiter);
        [
            name.clone(),
            format!("{name}:value"),
            format!("{name}:permits"),
        ]
    }
}

/// As Redisson packs one permit.
pub(crate) fn member(id: u64) -> Vec<u8> {
    let mut member = vec![16];
    member.extend(id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    member.extend(id.to_le_bytes());
    member.extend(1_u32.to_le_bytes());
    member
}
