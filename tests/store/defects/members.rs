//! Members of every generation.

use super::world::{Answer, Specimen, books, member, member_with};

/// One grant in the bytes of each generation.
fn generations(permits: u32) -> [Vec<u8>; 4] {
    [
        // 3.13.3 to 3.16.3: a random number as a float, `fI`.
        member_with(&[], &[], permits),
        // 3.16.4 to 3.16.8: the length of the id in eight bytes, `Lc0I`.
        member_with(&[8, 0, 0, 0, 0, 0, 0, 0], &[0x1d; 4], permits),
        // 3.17.0 to 3.20.x: the length in one byte, `Bc0I` with eight bytes.
        member_with(&[8], &[0x2e; 4], permits),
        // Since 3.21.0: `Bc0I` with sixteen bytes.
        member(permits),
    ]
}

// Section 8.9, #5900: Redisson reads members of other generations as garbage, or fails with "data
// string too short". Here they are all there is to count by: the value was lost.
#[tokio::test]
async fn members_of_every_generation_are_recounted() {
    for permits in [1, 5, 300] {
        for member in generations(permits) {
            let world = Specimen::written_by_java("1000", 1000);
            world.keys.plant_member(0, &member);
            world.at(1);
            let asked = 1001 - permits;
            assert_eq!(world.take(asked).await, Answer::Wait(999), "{member:02x?}");
            let left = 1000 - i64::from(permits);
            assert_eq!(world.books(), books(left, &[(0, permits)]));
            assert_eq!(world.take(asked - 1).await, Answer::Granted);
        }
    }
}
