//! What goes wrong in the long run, one thing or two at once.

use std::time::Duration;

use super::record::Record;
use crate::{
    lanes::Limiter,
    proxy::{Proxy, Spoil},
    random::Random,
    support::{RedisServer, cluster::wait_until},
    watch::{Control, Watch},
};

/// What can go wrong on the way, and what with the server. Each is begun, lasts for a while, and is
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    // On the way
    Silence,
    RequestsLost,
    RepliesLost,
    Refused,
    Reset,
    Torn,
    Garbage,
    RepliesCut,
    Slow,
    Drip,
    Twice,
    // The server
    Stopped,
    Killed,
    ScriptsLost,
    DataLost,
    KeysLost,
    ClientsKilled,
    WritersPaused,
    NoMemory,
    Replica,
    Busy,
}

const ON_THE_WAY: [Fault; 11] = [
    Fault::Silence,
    Fault::RequestsLost,
    Fault::RepliesLost,
    Fault::Refused,
    Fault::Reset,
    Fault::Torn,
    Fault::Garbage,
    Fault::RepliesCut,
    Fault::Slow,
    Fault::Drip,
    Fault::Twice,
];

const OF_THE_SERVER: [Fault; 10] = [
    Fault::Stopped,
    Fault::Killed,
    Fault::ScriptsLost,
    Fault::DataLost,
    Fault::KeysLost,
    Fault::ClientsKilled,
    Fault::WritersPaused,
    Fault::NoMemory,
    Fault::Replica,
    Fault::Busy,
];

impl Fault {
    /// One of the server, one on the way, or both.
    pub fn draw(random: &mut Random) -> Vec<Self> {
        let server = OF_THE_SERVER[random.below(OF_THE_SERVER.len() as u64) as usize];
        let way = ON_THE_WAY[random.below(ON_THE_WAY.len() as u64) as usize];
        match random.below(3) {
            0 => vec![server],
            1 => vec![way],
            _ => vec![server, way],
        }
    }
}

/// What faults befall.
pub struct World<'a> {
    pub server: RedisServer,
    pub proxy: Proxy,
    pub watch: Watch,
    limiters: Vec<Limiter>,
    record: &'a Record,
    busy: Option<Control>,
}

impl<'a> World<'a> {
    pub fn new(
        server: RedisServer,
        proxy: Proxy,
        limiters: Vec<Limiter>,
        record: &'a Record,
        watch: Watch,
    ) -> Self {
        server.cli(&["CONFIG", "SET", "lua-time-limit", "50"]);
        Self {
            server,
            proxy,
            watch,
            limiters,
            record,
            busy: None,
        }
    }

    pub fn begin(&mut self, fault: Fault, random: &mut Random) {
        let millis = |random: &mut Random, most| Duration::from_millis(random.below(most));
        let some = |random: &mut Random| 1 + random.below(4) as usize;
        let (server, proxy) = (&mut self.server, &self.proxy);
        match fault {
            Fault::Silence => proxy.freeze(),
            Fault::RequestsLost => proxy.lose(true, false),
            Fault::RepliesLost => proxy.lose(false, true),
            Fault::Refused => {
                proxy.refuse(true);
                proxy.reset();
            }
            Fault::Reset => proxy.reset(),
            Fault::Torn => {
                let after = random.below(20) as usize;
                proxy.spoil(some(random), Spoil::Reset(after));
                proxy.spoil(some(random), Spoil::End(after));
            }
            Fault::Garbage => proxy.spoil(some(random), Spoil::Garbage),
            Fault::RepliesCut => proxy.cut_replies(some(random)),
            Fault::Slow => proxy.delay(millis(random, 400), millis(random, 400)),
            Fault::Drip => proxy.drip(true),
            Fault::Twice => {
                proxy.double_from_now(true);
                proxy.reset();
            }
            Fault::Stopped => server.stop_process(),
            Fault::Killed => server.kill(),
            Fault::ScriptsLost => assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK"),
            Fault::DataLost => assert_eq!(server.cli(&["FLUSHALL"]), "OK"),
            Fault::KeysLost => {
                // One key of each: what is left tells what is in use. With two of three, or all, it
                // would start with all permits.
                let first = random.below(self.limiters.len() as u64) as usize;
                for limiter in self.limiters.iter().cycle().skip(first).step_by(2).take(5) {
                    let keys = [limiter.name.clone(), limiter.value(), limiter.log()];
                    server.cli(&["DEL", &keys[random.below(3) as usize]]);
                }
            }
            Fault::ClientsKilled => {
                let clients = server.cli(&["CLIENT", "LIST"]);
                let normal = clients.lines().filter(|line| line.contains(" flags=N "));
                for id in normal.filter_map(|line| line.strip_prefix("id=")?.split(' ').next()) {
                    server.cli(&["CLIENT", "KILL", "ID", id]);
                }
            }
            Fault::WritersPaused => {
                let pause = (100 + random.below(900)).to_string();
                assert_eq!(server.cli(&["CLIENT", "PAUSE", &pause, "WRITE"]), "OK");
            }
            Fault::NoMemory => {
                server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            }
            // Of nothing: the port is not one to connect to.
            Fault::Replica => {
                assert_eq!(server.cli(&["REPLICAOF", "127.0.0.1", "1"]), "OK");
            }
            Fault::Busy => {
                let mut control = Control::open(server);
                control.send(&["EVAL", "while true do end", "0"]);
                self.busy = Some(control);
            }
        }
    }

    pub fn end(&mut self, fault: Fault) {
        let (server, proxy) = (&mut self.server, &self.proxy);
        match fault {
            Fault::Refused => {
                proxy.refuse(false);
            }
            Fault::Slow => proxy.delay_every_reply(Duration::ZERO),
            Fault::Drip => proxy.drip(false),
            Fault::Twice => {
                proxy.double_from_now(false);
                proxy.reset();
            }
            Fault::RepliesCut => proxy.cut_replies(0),
            Fault::Torn | Fault::Garbage => proxy.spoil_no_more(),
            Fault::Stopped => server.resume(),
            Fault::Killed => {
                let refusing = proxy.refuse(true);
                self.server.restart();
                self.watch.catch_up();
                self.server.cli(&["CONFIG", "SET", "lua-time-limit", "50"]);
                self.record.find_again(&self.server, &self.limiters);
                self.watch = self.record.watch(&self.server);
                self.proxy.refuse(refusing);
            }
            Fault::NoMemory => {
                server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            }
            Fault::Replica => assert_eq!(server.cli(&["REPLICAOF", "NO", "ONE"]), "OK"),
            Fault::Busy => {
                // Until the server notices that it is busy, it takes no other command.
                wait_until("its script is killed", || {
                    server.cli(&["SCRIPT", "KILL"]).contains("OK")
                });
                self.busy = None;
            }
            Fault::Silence
            | Fault::RequestsLost
            | Fault::RepliesLost
            | Fault::Reset
            | Fault::ScriptsLost
            | Fault::DataLost
            | Fault::KeysLost
            | Fault::ClientsKilled
            | Fault::WritersPaused => {}
        }
    }
}
