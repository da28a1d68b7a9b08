//! Named points at which a test can cut the power.
//!
//! Code that changes what survives a crash calls [`FailPoints::reach`] between its steps. In
//! production no point is armed and the call is one branch. A test arms one; when it is reached, the
//! power is cut: that call and every later one return [`PowerCut`], and stores and disks that share
//! the switch refuse all changes, as a machine without power would.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The power is off: nothing after this point happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("power cut at an armed fail point")]
pub struct PowerCut;

#[derive(Debug)]
struct Switch {
    point: String,
    passes_left: AtomicU64,
    cut: AtomicBool,
    abort: bool,
}

/// A set of fail points that share one power switch. Clones share the switch.
#[derive(Clone, Debug, Default)]
pub struct FailPoints(Option<Arc<Switch>>);

impl FailPoints {
    /// No point is armed.
    #[must_use]
    pub fn none() -> FailPoints {
        FailPoints(None)
    }

    /// Cuts the power when `point` has been passed `passes` times and is reached again.
    #[must_use]
    pub fn cut_at(point: &str, passes: u64) -> FailPoints {
        FailPoints::armed(point, passes, false)
    }

    /// Aborts the process, as `kill -9` would, when `point` is reached after `passes` passes.
    #[must_use]
    pub fn abort_at(point: &str, passes: u64) -> FailPoints {
        FailPoints::armed(point, passes, true)
    }

    fn armed(point: &str, passes: u64, abort: bool) -> FailPoints {
        FailPoints(Some(Arc::new(Switch {
            point: point.to_owned(),
            passes_left: AtomicU64::new(passes),
            cut: AtomicBool::new(false),
            abort,
        })))
    }

    /// Passes the point named `point`.
    ///
    /// # Errors
    /// [`PowerCut`] if the power is off, or goes off here.
    #[inline]
    pub fn reach(&self, point: &str) -> Result<(), PowerCut> {
        match &self.0 {
            None => Ok(()),
            Some(switch) => switch.reach(point),
        }
    }

    /// Whether the power has been cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.0.as_ref().is_some_and(|switch| switch.cut.load(Ordering::SeqCst))
    }

    /// Cuts the power now, if any point is armed.
    pub fn cut_now(&self) {
        if let Some(switch) = &self.0 {
            switch.cut.store(true, Ordering::SeqCst);
        }
    }
}

impl Switch {
    fn reach(&self, point: &str) -> Result<(), PowerCut> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(PowerCut);
        }
        if point != self.point {
            return Ok(());
        }
        let passed = self
            .passes_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        if passed {
            return Ok(());
        }
        if self.abort {
            std::process::abort();
        }
        self.cut.store(true, Ordering::SeqCst);
        Err(PowerCut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_power_stays_off_after_the_armed_point() {
        let points = FailPoints::cut_at("b", 1);
        assert_eq!(points.reach("a"), Ok(()));
        assert_eq!(points.reach("b"), Ok(()));
        assert_eq!(points.reach("b"), Err(PowerCut));
        assert_eq!(points.reach("a"), Err(PowerCut));
        assert!(points.is_cut());
    }

    #[test]
    fn nothing_is_armed_by_default() {
        assert_eq!(FailPoints::none().reach("anything"), Ok(()));
        assert!(!FailPoints::none().is_cut());
    }
}
