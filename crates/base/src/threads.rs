//! Work for several things at the same time.

use std::panic::resume_unwind;
use std::thread;

/// Does `work` for each of `items`, all at the same time: for the first in this thread, for each other one in a thread called `name`, or
/// in this one where the system gives no thread.
///
/// # Errors
/// The first of `work`, in the order of the items.
pub fn at_once<T: Sync, E: Send>(
    name: &str,
    items: &[T],
    work: impl Fn(&T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let Some((first, others)) = items.split_first() else { return Ok(()) };
    let work = &work;
    thread::scope(|scope| {
        let start = |item| {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn_scoped(scope, move || work(item)).map_err(|_| item)
        };
        let started: Vec<_> = others.iter().map(start).collect();
        let mut outcome = work(first);
        for other in started {
            let done = match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(item) => work(item),
            };
            outcome = outcome.and(done);
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_are_at_work_at_the_same_time_and_the_first_error_counts() {
        assert_eq!(at_once("test", &[0; 0], |_| Err(())), Ok(()));
        let all = Barrier::new(3);
        let work = |number: &u32| {
            all.wait();
            if *number == 1 { Ok(()) } else { Err(*number) }
        };
        assert_eq!(at_once("test", &[1, 2, 3], work), Err(2));
    }
}
