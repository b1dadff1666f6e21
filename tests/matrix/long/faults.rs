//! What goes wrong in the long run, one thing or two at once.

use std::time::Duration;

use super::record::Record;
use crate::{lanes::Limiter, random::Random};
use kit::{
    RedisServer,
    cluster::wait_until,
    monitor::{Control, Watch},
    proxy::{Proxy, Spoil},
};

/// What can go wrong: how it begins, lasts for a while, and ends.
#[derive(Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    pub begin: fn(&mut Afflicted<'_>, &mut Random),
    pub end: fn(&mut Afflicted<'_>),
}

const fn fault(
    name: &'static str,
    begin: fn(&mut Afflicted<'_>, &mut Random),
    end: fn(&mut Afflicted<'_>),
) -> Fault {
    Fault { name, begin, end }
}

/// For what is over by itself.
fn nothing(_: &mut Afflicted<'_>) {}

const ON_THE_WAY: [Fault; 11] = [
    fault("silence", |world, _| world.proxy.freeze(), nothing),
    fault("requests lost", |it, _| it.proxy.lose(true, false), nothing),
    fault("replies lost", |it, _| it.proxy.lose(false, true), nothing),
    fault(
        "refused",
        |world, _| {
            world.proxy.refuse(true);
            world.proxy.reset();
        },
        |world| {
            world.proxy.refuse(false);
        },
    ),
    fault("reset", |world, _| world.proxy.reset(), nothing),
    fault(
        "torn",
        |world, random| {
            let after = random.below(20) as usize;
            world.proxy.spoil(some(random), Spoil::Reset(after));
            world.proxy.spoil(some(random), Spoil::End(after));
        },
        |world| world.proxy.spoil_no_more(),
    ),
    fault(
        "garbage",
        |world, random| world.proxy.spoil(some(random), Spoil::Garbage),
        |world| world.proxy.spoil_no_more(),
    ),
    fault(
        "replies cut",
        |world, random| world.proxy.cut_replies(some(random)),
        |world| world.proxy.cut_replies(0),
    ),
    fault(
        "slow",
        |world, random| {
            let [even, odd] = [(); 2].map(|()| Duration::from_millis(random.below(400)));
            world.proxy.delay(even, odd);
        },
        |world| world.proxy.delay_every_reply(Duration::ZERO),
    ),
    fault(
        "drip",
        |world, _| world.proxy.drip(true),
        |world| world.proxy.drip(false),
    ),
    fault(
        "twice",
        |world, _| world.doubles(true),
        |world| world.doubles(false),
    ),
];

const OF_THE_SERVER: [Fault; 10] = [
    fault(
        "stopped",
        |world, _| world.server.stop_process(),
        |world| world.server.resume(),
    ),
    fault("killed", |it, _| it.server.kill(), |it| it.comes_back()),
    fault(
        "scripts lost",
        |world, _| world.is_ok(&["SCRIPT", "FLUSH"]),
        nothing,
    ),
    fault("data lost", |it, _| it.is_ok(&["FLUSHALL"]), nothing),
    fault("keys lost", |it, random| it.loses_keys(random), nothing),
    fault(
        "clients killed",
        |world, _| {
            world.server.kill_clients();
        },
        nothing,
    ),
    fault(
        "writers paused",
        |world, random| {
            let pause = (100 + random.below(900)).to_string();
            world.is_ok(&["CLIENT", "PAUSE", &pause, "WRITE"]);
        },
        nothing,
    ),
    fault(
        "no memory",
        |world, _| world.server.configure("maxmemory", "1"),
        |world| world.server.configure("maxmemory", "0"),
    ),
    // Of nothing: the port is not one to connect to.
    fault(
        "replica",
        |world, _| world.is_ok(&["REPLICAOF", "127.0.0.1", "1"]),
        |world| world.is_ok(&["REPLICAOF", "NO", "ONE"]),
    ),
    fault("busy", |it, _| it.is_busy(), |it| it.is_idle()),
];

/// A few replies.
fn some(random: &mut Random) -> usize {
    1 + random.below(4) as usize
}

impl Fault {
    /// One of the server, one on the way, or both.
    pub fn draw(random: &mut Random) -> Vec<Self> {
        let (server, way) = (random.of(&OF_THE_SERVER), random.of(&ON_THE_WAY));
        match random.below(3) {
            0 => vec![server],
            1 => vec![way],
            _ => vec![server, way],
        }
    }
}

/// What faults befall.
pub struct Afflicted<'a> {
    pub server: RedisServer,
    pub proxy: Proxy,
    pub watch: Watch,
    limiters: Vec<Limiter>,
    record: &'a Record,
    busy: Option<Control>,
}

impl<'a> Afflicted<'a> {
    pub fn new(
        server: RedisServer,
        proxy: Proxy,
        limiters: Vec<Limiter>,
        record: &'a Record,
        watch: Watch,
    ) -> Self {
        server.configure("lua-time-limit", "50");
        Self {
            server,
            proxy,
            watch,
            limiters,
            record,
            busy: None,
        }
    }

    fn is_ok(&self, command: &[&str]) {
        assert_eq!(self.server.cli(command), "OK");
    }

    fn doubles(&self, doubles: bool) {
        self.proxy.double_from_now(doubles);
        self.proxy.reset();
    }

    fn comes_back(&mut self) {
        let refusing = self.proxy.refuse(true);
        self.server.restart();
        self.watch.catch_up();
        self.server.configure("lua-time-limit", "50");
        self.record.find_again(&self.server, &self.limiters);
        self.watch = self.record.watch(&self.server);
        self.proxy.refuse(refusing);
    }

    /// One key of each: what is left of several tells what is in use. With two of three, or all, it
    /// starts with all permits.
    fn loses_keys(&mut self, random: &mut Random) {
        let first = random.place(self.limiters.len());
        for limiter in self.limiters.iter().cycle().skip(first).step_by(2).take(5) {
            let key = if limiter.in_own_format() {
                limiter.log()
            } else {
                random.of(&[limiter.name.clone(), limiter.value(), limiter.log()])
            };
            self.server.cli(&["DEL", &key]);
        }
    }

    fn is_busy(&mut self) {
        let mut control = Control::open(&self.server);
        control.send(&["EVAL", "while true do end", "0"]);
        self.busy = Some(control);
    }

    fn is_idle(&mut self) {
        // Until the server notices that it is busy, it takes no other command.
        wait_until("its script is killed", || {
            self.server.cli(&["SCRIPT", "KILL"]).contains("OK")
        });
        self.busy = None;
    }
}
