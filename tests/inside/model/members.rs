//! Members as Redisson's generations pack them, and the ids that stand for them in the model.
//!
//! The model knows ids of 16 bytes only. So that it sorts members of other sizes as Redis does, ids
//! of our own begin with 0x20 or more, and those made up here with less, in the order in which the
//! generations' first bytes stand.

use crate::store::redis::redisson;
use crate::values::charge::PermitId;

/// Who wrote a member, by its size.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Generation {
    Bytes8,
    Bytes13,
    Bytes20,
    Bytes21,
}

/// The member that holds `permits`, and its id in the model. `id` is used by the generation that
/// has such, `number` by the others.
pub(crate) fn packed(
    generation: Generation,
    id: PermitId,
    number: u64,
    permits: u32,
) -> (PermitId, Vec<u8>) {
    let number = number.to_be_bytes();
    let permits_packed = permits.to_le_bytes();
    let (rank, member) = match generation {
        // A float's four bytes.
        Generation::Bytes8 => {
            let front = [4, number[5], number[6], number[7]];
            (1, [&front[..], &permits_packed].concat())
        }
        // A length of 64 bits.
        Generation::Bytes20 => (
            2,
            [&8u64.to_le_bytes()[..], &number, &permits_packed].concat(),
        ),
        Generation::Bytes13 => {
            let front = [&[8, 1][..], &number[1..]].concat();
            (3, [&front[..], &permits_packed].concat())
        }
        Generation::Bytes21 => return (id, redisson::format::member(id, permits).to_vec()),
    };
    let mut made_up = [0; 16];
    made_up[0] = rank;
    made_up[8..].copy_from_slice(&number);
    (PermitId(made_up), member)
}

/// The model's id for a member, and its permits.
pub(crate) fn unpacked(member: &[u8]) -> ([u8; 16], u32) {
    let (front, permits) = member.split_last_chunk::<4>().unwrap();
    let mut id = [0; 16];
    match front.len() {
        4 => {
            id[0] = 1;
            id[13..].copy_from_slice(&front[1..]);
        }
        16 => {
            id[0] = 2;
            id[8..].copy_from_slice(&front[8..]);
        }
        9 => {
            id[0] = 3;
            id[9..].copy_from_slice(&front[2..]);
        }
        17 => id.copy_from_slice(&front[1..]),
        _ => panic!("a member of {} bytes", member.len()),
    }
    (id, u32::from_le_bytes(*permits))
}
