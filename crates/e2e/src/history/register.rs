//! Eight bytes of a file as an object.

use super::Call;

/// What the bytes hold, and what they held since they were last durable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Register {
    now: u64,
    /// What they held since the last sync, in order of value, without what they hold now.
    since: Vec<u64>,
}

impl Register {
    /// Bytes that are durable.
    #[must_use]
    pub fn new(now: u64) -> Register {
        Register { now, since: Vec::new() }
    }
}

/// A call on the bytes, with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// They were written.
    Wrote(u64),
    /// They were read.
    Read(u64),
    /// An fsync of the file.
    Synced,
    /// The disk was lost with what it had not been made to keep.
    Crashed,
}

impl Call for Access {
    type State = Register;

    fn next(&self, _slot: usize, state: &Register, states: &mut Vec<Register>) {
        match *self {
            Access::Wrote(value) => {
                let mut since = state.since.clone();
                if let Err(place) = since.binary_search(&state.now) {
                    since.insert(place, state.now);
                }
                states.push(Register { now: value, since });
            }
            Access::Read(value) if state.now == value => states.push(state.clone()),
            Access::Read(_) => {}
            Access::Synced => states.push(Register::new(state.now)),
            Access::Crashed => {
                let back = state.since.iter().chain([&state.now]);
                states.extend(back.map(|value| Register::new(*value)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Entry, Outcome, check};
    use super::*;

    #[test]
    fn a_read_returns_the_latest_write_or_one_that_is_under_way() {
        let entry = |begin, end, call| Entry {
            begin,
            end,
            by: String::new(),
            call,
            outcome: Outcome::Done,
        };
        let writes = [entry(0, 1, Access::Wrote(1)), entry(2, 9, Access::Wrote(2))];
        let reads =
            |first, second| [entry(3, 4, Access::Read(first)), entry(5, 6, Access::Read(second))];
        let holds = |first, second| {
            check(Register::new(0), &[&writes[..], &reads(first, second)].concat()).is_ok()
        };
        assert!(holds(1, 1) && holds(1, 2) && holds(2, 2));
        assert!(!holds(2, 1) && !holds(0, 2) && !holds(1, 3));
    }

    #[test]
    fn only_a_crash_takes_bytes_back_and_not_those_that_were_synced() {
        let entry =
            |at, call, outcome| Entry { begin: at, end: at + 1, by: String::new(), call, outcome };
        let holds = |calls: &[Access]| {
            let entries: Vec<_> = (0_u64..)
                .zip(calls)
                .map(|(at, call)| {
                    let outcome = match call {
                        Access::Crashed => Outcome::Unknown,
                        _ => Outcome::Done,
                    };
                    entry(10 * at, call.clone(), outcome)
                })
                .collect();
            check(Register::new(0), &entries).is_ok()
        };
        let (wrote, old) = (Access::Wrote(1), Access::Read(0));
        assert!(!holds(&[wrote.clone(), old.clone()]));
        assert!(holds(&[wrote.clone(), Access::Crashed, old.clone()]));
        assert!(!holds(&[wrote, Access::Synced, Access::Crashed, old]));
    }
}
