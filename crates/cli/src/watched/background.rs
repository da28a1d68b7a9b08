//! What takes long to find out: it is found out on a thread of its own, at most once in a while, and the latest answer is at hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use parking_lot::Mutex;

/// The latest answer to one question.
pub struct Background<T> {
    /// What is asked for, in a word.
    name: &'static str,
    /// How long an answer is good.
    age_max: Duration,
    kept: Arc<Mutex<Kept<T>>>,
}

struct Kept<T> {
    /// When the look began that ended last, whether it succeeded or not.
    at: Option<Instant>,
    latest: Option<T>,
    is_busy: bool,
}

impl<T: Clone + Send + 'static> Background<T> {
    pub fn new(name: &'static str, age_max: Duration) -> Background<T> {
        let kept = Arc::new(Mutex::new(Kept { at: None, latest: None, is_busy: false }));
        Background { name, age_max, kept }
    }

    /// The latest answer, however old. If it is too old, `find` begins to look for another one.
    pub fn latest(&self, find: impl FnOnce() -> Result<T> + Send + 'static) -> Option<T> {
        let mut kept = self.kept.lock();
        let is_old = |at| SystemClock.instant().duration_since(at) >= self.age_max;
        if kept.at.is_none_or(is_old) && !kept.is_busy {
            let (shared, name) = (Arc::clone(&self.kept), self.name);
            let work = move || {
                let (begun, found) = (SystemClock.instant(), find());
                let mut kept = shared.lock();
                kept.is_busy = false;
                kept.at = Some(begun);
                match found {
                    Ok(found) => kept.latest = Some(found),
                    Err(error) => tracing::warn!("{name} is not known: {error:#}"),
                }
            };
            // Without a thread the next one who asks tries again.
            let begun = std::thread::Builder::new().name(name.to_owned()).spawn(work);
            kept.is_busy = begun.is_ok();
        }
        kept.latest.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn nobody_waits_for_an_answer_and_one_look_at_a_time_is_taken() {
        let background = Background::new("answer", Duration::ZERO);
        let (go, wait) = channel::<()>();
        let (done, ended) = channel();
        let slow = move || {
            wait.recv()?;
            done.send(())?;
            Ok(1)
        };
        assert_eq!(background.latest(slow), None);
        let never = || -> Result<i32> { panic!("a second look while the first one is under way") };
        assert_eq!(background.latest(never), None);
        go.send(()).unwrap();
        ended.recv().unwrap();
        // The answer is kept a moment after that.
        while background.latest(|| anyhow::bail!("out of order")) != Some(1) {
            std::thread::yield_now();
        }
        // An answer outlives failures.
        assert_eq!(background.latest(|| anyhow::bail!("out of order")), Some(1));
    }
}
