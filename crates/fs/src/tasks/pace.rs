//! How fast a task may go, and whether it may go on at all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::{FsError, Result};

/// What somebody has ordered of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// To go on.
    GoOn,
    /// To stop as soon as possible: it is paused, cancelled, or the file system is being closed.
    Stop,
}

/// The pace of one task.
#[derive(Default)]
pub(crate) struct Pace {
    /// Bytes per second; 0: no bound.
    speed: AtomicU64,
    stopped: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

/// The longest pause at a time: a change of the speed is heeded after it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Pace {
    /// Sets the bound.
    pub fn set_speed(&self, bytes_per_second: u64) {
        self.speed.store(bytes_per_second, Ordering::Relaxed);
        self.wake();
    }

    /// Has the task stop, or go on.
    pub fn order(&self, order: Order) {
        self.stopped.store(order == Order::Stop, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        drop(self.lock.lock());
        self.changed.notify_all();
    }

    /// Whether the task is to go on.
    pub fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Acquire)
    }

    /// After `bytes` were copied: takes the time that they may take at least.
    ///
    /// # Errors
    /// [`FsError::Busy`] if the task is to stop.
    pub fn after(&self, bytes: u64) -> Result<()> {
        let mut owed = bytes;
        loop {
            if !self.goes_on() {
                return Err(FsError::Busy);
            }
            let speed = self.speed.load(Ordering::Relaxed);
            if speed == 0 || owed == 0 {
                return Ok(());
            }
            let wanted = Duration::from_nanos(nanoseconds(owed, speed));
            let pause = wanted.min(PAUSE_MAX);
            let mut guard = self.lock.lock();
            if self.goes_on() {
                self.changed.wait_for(&mut guard, pause);
            }
            if pause == wanted {
                return if self.goes_on() { Ok(()) } else { Err(FsError::Busy) };
            }
            owed = owed.saturating_sub(speed);
        }
    }
}

fn nanoseconds(bytes: u64, speed: u64) -> u64 {
    let taken = u128::from(bytes) * 1_000_000_000 / u128::from(speed.max(1));
    u64::try_from(taken).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use forebay_base::Clock as _;
    use forebay_base::time::SystemClock;

    use super::*;

    #[test]
    fn bytes_take_the_time_that_the_speed_gives_them() {
        let pace = Pace::default();
        pace.after(u64::MAX).unwrap();
        pace.set_speed(10_000);
        let begun = SystemClock.instant();
        pace.after(500).unwrap();
        let took = SystemClock.instant().saturating_duration_since(begun);
        assert!(took >= Duration::from_millis(50));
        assert_eq!(nanoseconds(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn a_task_that_is_to_stop_does_so_in_the_middle_of_a_pause() {
        let pace = Pace::default();
        pace.set_speed(1);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pace.after(1_000_000));
            pace.order(Order::Stop);
            assert!(matches!(waits.join().unwrap(), Err(FsError::Busy)));
        });
        pace.order(Order::GoOn);
        assert!(pace.goes_on());
    }
}
