//! The latest grant that this node has heard of, as each request tells the owner.
//!
//! A change begins with giving up what it touches, and its request says which grants the node knew of by then: the owner recalls later
//! ones from it as well. Answers may come between the two, and what they grant of a thing that is being changed is not used.
//! But when all that was granted is lost ([`Heard::lose`]), nobody remembers which changes were under way: what is granted
//! afterwards may be used. So while a change from before is under way, no request says that it knew of such a grant.

use forebay_cluster::grants::GrantNumber;

/// A change of this node's own, while it is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay(u64);

#[derive(Debug, Default)]
pub(super) struct Heard {
    latest: GrantNumber,
    /// How often all was lost.
    losses: u64,
    /// Changes under way that began since.
    changes: usize,
    /// Those that began before, and the latest grant when the first of them lost what it had.
    former_changes: usize,
    before: GrantNumber,
}

impl Heard {
    /// These were granted.
    pub fn hear(&mut self, numbers: impl IntoIterator<Item = GrantNumber>) {
        self.latest = numbers.into_iter().fold(self.latest, GrantNumber::max);
    }

    /// What a request says that is sent now.
    pub fn at_sending(&self) -> GrantNumber {
        if self.former_changes > 0 { self.before } else { self.latest }
    }

    /// A change begins: what it touches is given up.
    pub fn begin(&mut self) -> UnderWay {
        self.changes += 1;
        UnderWay(self.losses)
    }

    /// It has an answer, or will have none.
    pub fn end(&mut self, change: UnderWay) {
        let changes =
            if change.0 == self.losses { &mut self.changes } else { &mut self.former_changes };
        *changes = changes.saturating_sub(1);
    }

    /// All that was granted is lost.
    pub fn lose(&mut self) {
        if self.former_changes == 0 {
            self.before = self.latest;
        }
        self.former_changes += std::mem::take(&mut self.changes);
        self.losses += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_from_before_a_loss_knows_of_no_later_grant() {
        let mut heard = Heard::default();
        heard.hear([GrantNumber(5), GrantNumber(3)]);
        assert_eq!(heard.at_sending(), GrantNumber(5));
        let change = heard.begin();
        heard.hear([GrantNumber(6)]);
        assert_eq!(
            heard.at_sending(),
            GrantNumber(6),
            "it is not used while the change is under way"
        );
        heard.lose();
        heard.hear([GrantNumber(7)]);
        assert_eq!(heard.at_sending(), GrantNumber(6));
        let later = heard.begin();
        heard.lose();
        heard.hear([GrantNumber(8)]);
        heard.end(change);
        assert_eq!(heard.at_sending(), GrantNumber(6), "the other one is under way");
        heard.end(later);
        assert_eq!(heard.at_sending(), GrantNumber(8));
    }
}
