//! What a receipt does to the keys, in the Rust half of the model.

use super::{
    deviations::Deviation,
    model::{self, Caller, Reply, State},
    ours::Marks,
};
use kit::permits_of;

impl State {
    /// By the member that the acquire was sent with.
    pub fn our_settle(
        &mut self,
        caller: &Caller,
        permits: i64,
        keep: i64,
        marks: &mut Marks,
    ) -> Reply {
        let Some(member) = &caller.member else {
            return Reply::Done;
        };
        if keep < permits {
            self.our_give_back(caller, member, keep, marks);
        } else {
            self.our_more(caller, &member_of_more(member, keep - permits), marks);
        }
        Reply::Done
    }

    fn our_give_back(&mut self, caller: &Caller, member: &[u8], keep: i64, marks: &mut Marks) {
        let limit = self.limit.clone();
        let pair = self.pair(&caller.client);
        let taken = |entry: &model::Entry| entry.member.as_deref() == Some(member);
        let Some(place) = pair.log.iter().position(taken) else {
            return;
        };
        marks.insert(Deviation::GiveBack);
        let model::Entry { score, permits, .. } = pair.log.remove(place);
        let mut credited = permits;
        let rest = with_permits(member, keep);
        if keep > 0 && !pair.holds(Some(&rest)) {
            // The log was not gone meanwhile, nor was its TTL.
            pair.log.push(model::Entry {
                score,
                permits: keep,
                member: Some(rest),
            });
            pair.sort();
            credited -= keep;
        }
        let Some(limit) = limit else {
            // The rate is unknown: the call that sets it finds value and log in agreement, or
            // counts the log.
            pair.value = pair.value.map(|value| value + credited);
            self.tidy();
            return;
        };
        let value = if pair.log.is_empty() {
            limit.rate
        } else {
            pair.value = pair.value.map(|value| value + credited);
            pair.agree(&limit, caller.now, marks)
        };
        pair.keep(value, marks);
        self.our_keep_alive(&caller.client, false, marks);
    }

    fn our_more(&mut self, caller: &Caller, member: &[u8], marks: &mut Marks) {
        // A limiter that was deleted owes nothing.
        let Some(limit) = self.limit.clone() else {
            return;
        };
        marks.insert(Deviation::ChargeMore);
        let pair = self.pair(&caller.client);
        let mut value = pair.agree(&limit, caller.now, marks);
        if !pair.log.is_empty() {
            value = pair.credit(&limit, caller.now, value, i64::MAX, marks);
        }
        if !pair.holds(Some(&member.to_vec())) {
            let more = permits_of(member).into();
            pair.add(caller.now, more, Some(member.to_vec()));
            value -= more;
        }
        pair.keep(value, marks);
        self.our_keep_alive(&caller.client, false, marks);
    }
}

/// The member of what is charged beyond a grant: of an id that follows from the grant's.
pub fn member_of_more(member: &[u8], more: i64) -> Vec<u8> {
    let mut member = with_permits(member, more);
    member[9] ^= 0x80;
    member
}

fn with_permits(member: &[u8], permits: i64) -> Vec<u8> {
    let (front, _) = member.split_at(member.len() - 4);
    [front, &(permits as u32).to_le_bytes()].concat()
}
