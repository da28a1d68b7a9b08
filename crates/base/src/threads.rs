//! Work for several things at the same time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
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

/// The answers of `work` for each of `items`, in their order. At most `most` of them are at work at the same time, in threads called
/// `name`; in this thread where the system gives none.
pub fn side_by_side<T: Sync, A: Send>(
    name: &str,
    most: usize,
    items: &[T],
    work: impl Fn(&T) -> A + Sync,
) -> Vec<A> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else { return done };
            done.push((place, work(item)));
        }
    };
    let take = &take;
    let mut answers: Vec<(usize, A)> = thread::scope(|scope| {
        let start = |_| thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, take).ok();
        let started: Vec<_> = (1..most.min(items.len())).filter_map(start).collect();
        let mut answers = take();
        for thread in started {
            answers.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        answers
    });
    answers.sort_by_key(|(place, _)| *place);
    answers.into_iter().map(|(_, answer)| answer).collect()
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

    #[test]
    fn answers_are_in_order_and_as_many_as_allowed_are_at_work_at_the_same_time() {
        assert_eq!(side_by_side("test", 3, &[], |number: &u32| *number), Vec::<u32>::new());
        // Each waits for two others: fewer at once would wait for ever.
        let three = Barrier::new(3);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |number: &usize| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            three.wait();
            now.fetch_sub(1, Ordering::SeqCst);
            number * 2
        };
        let items: Vec<usize> = (0..12).collect();
        let doubled: Vec<usize> = items.iter().map(|number| number * 2).collect();
        assert_eq!(side_by_side("test", 3, &items, work), doubled);
        assert_eq!(most.into_inner(), 3);
        assert_eq!(side_by_side("test", 0, &[1, 2], |number| number + 1), [2, 3]);
    }
}
