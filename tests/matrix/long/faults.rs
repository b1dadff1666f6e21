//! What goes wrong in the long run, one thing or two at once.

use crate::{random::Random, stage::Scene};
use kit::{proxy::Spoil, scene::*, server::command, wait_until};

/// What can go wrong: how it begins, lasts for a while, and ends.
#[derive(Clone, Copy)]
pub struct Fault {
    pub name: &'static str,
    pub begin: fn(&mut Scene, &mut Random),
    pub end: fn(&mut Scene),
}

const fn fault(
    name: &'static str,
    begin: fn(&mut Scene, &mut Random),
    end: fn(&mut Scene),
) -> Fault {
    Fault { name, begin, end }
}

/// For what is over by itself.
fn nothing(_: &mut Scene) {}

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
        |world, _| doubles(world, true),
        |world| doubles(world, false),
    ),
];

const OF_THE_SERVER: [Fault; 10] = [
    fault(
        "stopped",
        |world, _| world.server.stop_process(),
        |world| world.server.resume(),
    ),
    fault("killed", |it, _| it.server.kill(), |it| it.restart(true)),
    fault(
        "scripts lost",
        |world, _| world.server.obeys("SCRIPT FLUSH"),
        nothing,
    ),
    fault("data lost", |it, _| it.server.obeys("FLUSHALL"), nothing),
    fault("keys lost", loses_keys, nothing),
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
            let pause = 100 + random.below(900);
            world.server.obeys(&format!("CLIENT PAUSE {pause} WRITE"));
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
        |world, _| world.server.obeys("REPLICAOF 127.0.0.1 1"),
        |world| world.server.obeys("REPLICAOF NO ONE"),
    ),
    fault("busy", |it, _| is_busy(it), |it| is_idle(it)),
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

fn doubles(world: &Scene, doubles: bool) {
    world.proxy.double_from_now(doubles);
    world.proxy.reset();
}

/// One key of each: what is left of several tells what is in use. With two of three, or all, it
/// starts with all permits.
fn loses_keys(world: &mut Scene, random: &mut Random) {
    let limiters = &world.load.limiters;
    let first = random.place(limiters.len());
    for limiter in limiters.iter().cycle().skip(first).step_by(2).take(5) {
        let key = if limiter.in_own_format() {
            limiter.log()
        } else {
            random.of(&[limiter.name.clone(), limiter.value(), limiter.log()])
        };
        world.server.cli(&["DEL", &key]);
    }
}

fn is_busy(world: &Scene) {
    let port = world.server.port();
    let endless = ["EVAL", "while true do end", "0"];
    // Until it is killed.
    thread::spawn(move || command(port, &endless, LONG));
}

/// Until the server notices that it is busy, it takes no other command.
fn is_idle(world: &Scene) {
    wait_until("its script is killed", || {
        world.server.cli(&["SCRIPT", "KILL"]).contains("OK")
    });
}
