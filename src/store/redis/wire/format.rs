//! Redisson's format: names of keys, packed members, limits; and the arguments of our scripts.
//! Pure.

use super::arguments::{Arguments, Word};
use crate::{
    clock::Millis,
    demand::Charge,
    error::{Error, ErrorKind},
    limit::{LimitSource, RateType, StoredLimit},
    list::List,
    name::Name,
    receipt::{PermitId, Receipt},
};

/// Returns the five keys of a limiter, in the order in which every script takes them.
///
/// RedissonObject.suffixName: a name that contains a `{` keeps its own hash tag, any other becomes
/// one.
pub(crate) fn keys(name: &Name, client_id: &str) -> [String; 5] {
    key_pieces(name, client_id).map(|pieces| pieces.concat())
}

/// Returns the same keys in pieces.
fn key_pieces<'a>(name: &'a Name, client_id: &'a str) -> [[&'a str; 6]; 5] {
    let name = name.as_str();
    let (open, close) = if name.contains('{') {
        ("", "")
    } else {
        ("{", "}")
    };
    [
        ["", name, "", "", "", ""],
        [open, name, close, ":value", "", ""],
        [open, name, close, ":value", ":", client_id],
        [open, name, close, ":permits", "", ""],
        [open, name, close, ":permits", ":", client_id],
    ]
}

/// Returns the keys that may hold the permits left, each with the type of limit that it serves.
pub(crate) fn values(name: &Name, client_id: &str) -> [(String, RateType); 2] {
    let [_, value, client_value, ..] = keys(name, client_id);
    [
        (value, RateType::Overall),
        (client_value, RateType::PerClient),
    ]
}

/// Returns the part of a limiter's keys that decides their hash slot in a Cluster.
///
/// Redis Cluster specification, "hash tags": the text between the first `{` and the first `}` after
/// it, else the whole name.
pub(crate) fn tag(name: &Name) -> &str {
    let name = name.as_str();
    let tagged = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    tagged.map_or(name, |(tag, _)| tag)
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
#[cfg(any(test, feature = "inspect"))]
pub(crate) fn is_member_size(size: usize) -> bool {
    matches!(size, 8 | 13 | 20 | 21)
}

/// Returns the permits that a member holds; `None` for one that no Redisson wrote.
#[cfg(any(test, feature = "inspect"))]
pub(crate) fn permits(member: &[u8]) -> Option<u32> {
    let (_, permits) = member.split_last_chunk()?;
    is_member_size(member.len()).then(|| u32::from_le_bytes(*permits))
}

/// Writes the time as the scripts take it: empty for the server's.
pub(crate) fn time(now: Option<Millis>) -> Word {
    now.map_or_else(Word::default, Word::number)
}

/// The usual size of the keys of a limiter, and of each other argument.
const KEYS_BYTES: usize = 400;
const WORD_BYTES: usize = 8;

/// The part of a call that does not depend on its limiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) client_id: &'a str,
    /// The caller's time; `None` for the server's.
    pub(crate) now: Option<Millis>,
    /// Set if the permits left are wanted exactly.
    pub(crate) exact: bool,
}

/// Returns the arguments for callers of one limiter or of several: see
/// `lua/sliding_log/acquire_list.lua`.
///
/// `limiters` are the charges of the first caller, each with a flag that has a differing limit
/// rewritten. Each caller is a list of charges on the same limiters, with a flag that is set if it
/// waits in the queue.
pub(crate) fn acquire<'a, L>(
    limiters: impl ExactSizeIterator<Item = (&'a Charge, bool)> + Clone,
    callers: impl ExactSizeIterator<Item = (L, bool)>,
    ask: Ask<'_>,
) -> Arguments
where
    L: Iterator<Item = &'a Charge>,
{
    let (width, height) = (limiters.len(), callers.len());
    let count = 5 * width + 2 + 6 * width + height * (1 + 3 * width);
    let mut arguments = Arguments::with_capacity(count, width * KEYS_BYTES + count * WORD_BYTES);
    for (charge, _) in limiters.clone() {
        for pieces in key_pieces(charge.name(), ask.client_id) {
            arguments.push_key(&pieces.map(str::as_bytes));
        }
    }
    arguments.push(time(ask.now));
    arguments.push(flag_byte(ask.exact));
    let mut slots = List::new();
    for (charge, rewrite) in limiters {
        let (source, limit) = limit_source(charge.limit(), rewrite);
        arguments.push(source);
        limit.iter().for_each(|field| arguments.push(field));
        slots.push(charge.name().slots());
    }
    for (charges, waits) in callers {
        arguments.push(flag_byte(waits));
        for charge in charges {
            arguments.push(Word::number(charge.permits));
            arguments.push(Word::from(member(charge.id, charge.permits)));
            arguments.push(manner(charge));
        }
    }
    if slots.iter().any(Option::is_some) {
        for slots in slots.iter() {
            let count = slots.map(|slots| Word::number(slots.count()));
            arguments.push(count.unwrap_or_default());
        }
    }
    arguments
}

/// Writes how a charge is taken, as the scripts take it.
fn manner(charge: &Charge) -> Word {
    match charge.lead {
        0 => flag_byte(charge.shadow),
        lead => Word::number(format_args!("+{lead}")),
    }
}

/// Writes whose limit counts, and the limit, as the scripts take them.
pub(crate) fn limit_source(source: LimitSource, rewrite: bool) -> (Word, [Word; 4]) {
    let (word, limit) = match source {
        LimitSource::Store => (Word::from(*b"redis"), None),
        LimitSource::StoreOrInit(limit) => (Word::from(*b"init"), Some(limit)),
        LimitSource::Code(limit) if rewrite => (Word::from(*b"code"), Some(limit)),
        LimitSource::Code(limit) => (Word::from(*b"keep"), Some(limit)),
    };
    let fields = limit.map(|limit| limit_fields(&limit.stored()));
    (word, fields.unwrap_or_default())
}

pub(crate) fn flag_byte(flag: bool) -> Word {
    Word::from([if flag { b'1' } else { b'0' }])
}

/// Returns the limit to charge more against, where there is none; empty if the caller has none.
pub(super) fn fields_given(receipt: &Receipt) -> [Word; 4] {
    let source = receipt.limit();
    let limit = source.given().map(|limit| limit_fields(&limit.stored()));
    limit.unwrap_or_default()
}

/// Writes a limit: rate, interval, type, keepAliveTime.
pub(crate) fn limit_fields(limit: &StoredLimit) -> [Word; 4] {
    let rate_type = match limit.rate_type {
        RateType::Overall => b"0",
        RateType::PerClient => b"1",
    };
    [
        Word::number(limit.rate),
        Word::number(limit.interval),
        Word::from(*rate_type),
        Word::number(limit.keep_alive),
    ]
}

/// Returns bytes that no process has used before, also after a fork or a restored snapshot: they
/// come from the operating system each time.
pub(crate) fn random_id() -> Result<PermitId, Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| {
        Error::new(ErrorKind::Unavailable)
            .detail("no entropy")
            .caused_by(error)
    })?;
    Ok(PermitId(id))
}

#[cfg(test)]
mod tests {
    use super::*;

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
