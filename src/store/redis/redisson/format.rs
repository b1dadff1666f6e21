//! Redisson's format: names of keys, members of logs, limits; and the arguments of our scripts.

use std::io::Write;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use super::scripts::CallSettings;
use crate::{
    store::redis::{keys::brackets, script::Script},
    values::{
        charge::{Charge, PermitId},
        demand::Demand,
        limit::{LimitSource, RateType, StoredLimit},
        name::Name,
    },
};

/// Returns the five keys of a limiter, in the order in which scripts take them.
pub(crate) fn keys(name: &Name, client_id: &str) -> [String; 5] {
    key_pieces(name, client_id).map(|pieces| pieces.concat())
}

/// Returns the same keys in pieces.
fn key_pieces<'a>(name: &'a Name, client_id: &'a str) -> [[&'a str; 6]; 5] {
    let ([open, close], name) = (brackets(name), name.as_str());
    [
        ["", name, "", "", "", ""],
        [open, name, close, ":value", "", ""],
        [open, name, close, ":value", ":", client_id],
        [open, name, close, ":permits", "", ""],
        [open, name, close, ":permits", ":", client_id],
    ]
}

/// Packs a grant's member of the log: `struct.pack('Bc0I', 16, id, permits)`, 21 bytes.
pub(crate) fn member(id: PermitId, permits: u32) -> [u8; 21] {
    let mut member = [0; 21];
    member[0] = 16;
    member[1..17].copy_from_slice(&id.0);
    member[17..].copy_from_slice(&permits.to_le_bytes());
    member
}

/// Returns whether a Redisson has written members of this size: 8 bytes (3.13.3 to 3.16.3), 20
/// (3.16.4 to 3.16.8), 13 (3.17.0 to 3.20.x) and 21 (since 3.21.0).
pub(crate) fn is_member_size(size: usize) -> bool {
    matches!(size, 8 | 13 | 20 | 21)
}

/// Returns the permits that a member holds; `None` for one that no Redisson wrote.
pub(crate) fn permits(member: &[u8]) -> Option<u32> {
    let (_, permits) = member.split_last_chunk()?;
    is_member_size(member.len()).then(|| u32::from_le_bytes(*permits))
}

/// Writes an argument that may be missing, and is empty then, such as the time of callers that
/// count by the server's clock.
pub(crate) fn optional(command: &mut Cmd, argument: Option<impl ToRedisArgs>) {
    match argument {
        Some(argument) => command.arg(argument),
        None => command.arg(""),
    };
}

/// Returns the command of callers of one limiter or of several: see
/// `lua/sliding_log/acquire_list.lua`.
///
/// `limiters` are the charges of the first caller, each with a flag that has a differing limit
/// rewritten. The others have charges on the same limiters.
pub(crate) fn acquire_command(
    script: &Script,
    limiters: &[(&Charge, bool)],
    run: &[Demand],
    settings: CallSettings<'_>,
) -> Cmd {
    let width = limiters.len();
    let count = 2 + 6 * width + run.len() * (1 + 3 * width);
    let mut command = script.start(5 * width, count);
    for (charge, _) in limiters {
        add_keys(&mut command, charge, false, settings.client_id);
    }
    optional(&mut command, settings.now);
    command.arg(settings.exact);
    for (charge, rewrite) in limiters {
        source(&mut command, charge.limit(), *rewrite);
    }
    for caller in run {
        command.arg(caller.max_wait.is_some());
        for charge in caller.charges() {
            command.arg(charge.permits);
            command.arg(&member(charge.id, charge.permits));
            // How the permits are taken: ahead of time by so many ms, or as a shadow.
            match charge.lead {
                0 => command.arg(charge.shadow),
                lead => command.arg(format!("+{lead}")),
            };
        }
    }
    let slots = limiters
        .iter()
        .map(|(charge, _)| charge.compiled().counting.slots());
    if slots.clone().any(|slots| slots.is_some()) {
        slots.for_each(|slots| optional(&mut command, slots.map(|slots| slots.count())));
    }
    command
}

/// Writes a limiter's keys; if `typed`, without those of the type that the charge does not bring.
pub(super) fn add_keys(command: &mut Cmd, charge: &Charge, typed: bool, client_id: &str) {
    let source = charge.limit();
    let rate_type = source.given().map(|limit| limit.stored().rate_type);
    let per_client = rate_type == Some(RateType::PerClient);
    let keys = key_pieces(charge.name(), client_id);
    for (index, pieces) in keys.into_iter().enumerate() {
        let is_for_clients = index % 2 == 0;
        if typed && index > 0 && is_for_clients != per_client {
            continue;
        }
        let mut key = command.writer_for_next_arg();
        for piece in pieces {
            // Writing to memory cannot fail.
            let _ = key.write_all(piece.as_bytes());
        }
    }
}

/// Writes whose limit counts, and the limit, as the scripts take them.
pub(super) fn source(command: &mut Cmd, source: &LimitSource, rewrite: bool) {
    command.arg(source_argument(source, rewrite));
    given(command, source);
}

/// Returns the argument for whose limit counts.
pub(super) fn source_argument(source: &LimitSource, rewrite: bool) -> &'static str {
    match source {
        LimitSource::Store => "redis",
        LimitSource::StoreOrInit(_) => "init",
        LimitSource::Code(_) if rewrite => "code",
        LimitSource::Code(_) => "keep",
    }
}

/// Writes the limit that the caller brings; four empty arguments if it brings none.
pub(super) fn given(command: &mut Cmd, source: &LimitSource) {
    match source.given() {
        Some(limit) => command.arg(fields(&limit.stored())),
        None => command.arg(&[""; 4]),
    };
}

/// Returns a limit as it is written: rate, interval, type, keepAliveTime.
pub(crate) fn fields(limit: &StoredLimit) -> (i64, i64, bool, u64) {
    let per_client = limit.rate_type == RateType::PerClient;
    (limit.rate, limit.interval, per_client, limit.keep_alive)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::{keys::ban, packed};

    fn spelled(name: &str) -> [String; 5] {
        keys(&Name::exact(name).unwrap(), "7d9")
    }

    // redisson-live: names on the wire of 4.7.0.
    #[test]
    fn keys_are_spelled_as_redisson_spells_them() {
        assert_eq!(
            spelled("orders"),
            [
                "orders",
                "{orders}:value",
                "{orders}:value:7d9",
                "{orders}:permits",
                "{orders}:permits:7d9",
            ]
        );
        assert_eq!(spelled("svc{tenant1}:api")[3], "svc{tenant1}:api:permits");
    }

    #[test]
    fn no_key_of_a_limiter_names_another() {
        let name = Name::exact("{orders}").unwrap();
        let own = keys(&name, "7d9").into_iter();
        let bans = [true, false].map(|in_own_format| ban(&name, in_own_format));
        let states = [packed::key(&name), packed::calendar::key(&name)];
        for key in own.chain(bans).chain(states) {
            let taken = Name::exact(&key).is_ok();
            assert_eq!(taken, key == name.as_str(), "{key}");
        }
    }

    // redisson-live: permits 3 in a member of 4.7.0.
    #[test]
    fn a_member_is_packed_as_redisson_packs_it() {
        let id = [
            0x0e, 0xea, 0xf6, 0x6c, 0xb8, 0x68, 0xee, 0xbd, 0x06, 0x9e, 0x18, 0x7f, 0x98, 0x27,
            0xba, 0x2d,
        ];
        let member = member(PermitId(id), 3);
        assert_eq!(member[0], 0x10);
        assert_eq!(member[1..17], id);
        assert_eq!(member[17..], [3, 0, 0, 0]);
    }
}
