//! How many requests of each kind came: what an operation of a program costs is mostly how many it takes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcode;

/// Codes that are counted apart; all that the protocol has so far are below.
const CODES: usize = 64;

/// Requests by their code.
#[derive(Debug)]
pub(crate) struct Requests([AtomicU64; CODES]);

impl Default for Requests {
    fn default() -> Requests {
        Requests([const { AtomicU64::new(0) }; CODES])
    }
}

impl Requests {
    /// Counts a request.
    pub fn count(&self, code: u32) {
        let counter = usize::try_from(code).ok().and_then(|code| self.0.get(code));
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Kinds that came, with how many.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let of = |code: u32| {
            let counter = usize::try_from(code).ok().and_then(|code| self.0.get(code));
            counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
        };
        let all = opcode::ALL.iter().map(|(code, name)| (*name, of(*code)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_request_is_counted_apart_and_unknown_ones_do_no_harm() {
        let requests = Requests::default();
        for (code, _) in opcode::ALL {
            requests.count(*code);
        }
        requests.count(opcode::LOOKUP);
        requests.count(4096);
        let read = requests.read();
        assert_eq!(read.len(), opcode::ALL.len());
        for (name, count) in read {
            assert_eq!(count, if name == "LOOKUP" { 2 } else { 1 }, "{name}");
        }
    }
}
