//! Fixtures for the tests on real mounts: they drive the real `forebay` binary and nothing of the
//! other crates (but for seeds, and the hosts of a network, which `forebay demo` uses too), as a user would.
//!
//! [`Hosts`] are several machines in one. [`Mounted`] is one file system with its mount. Everything a fixture makes lies in one folder below
//! `FOREBAY_E2E_DIR` (default `/var/tmp`) and is gone when the fixture is dropped, also when the test
//! panics; then its file system must be clean for `forebay fsck`, and its log must hold no WARN or
//! ERROR line that the test has not listed. What a test needs and does not find (root, a device, a
//! program) makes it fail with a line that says what to install; nothing is skipped silently.
//!
//! The fixtures panic instead of returning errors: a step that fails is a test that fails.
#![allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]

pub mod actor;
pub mod cluster;
pub mod command;
pub mod content;
pub mod etcd;
pub mod history;
pub mod hosts;
pub mod loop_disk;
pub mod mounted;
pub mod need;
pub mod s3;
pub mod slurm;
pub mod suite;
pub mod thrash;

pub use actor::{Peer, as_user};
pub use cluster::Cluster;
pub use command::{Ended, copy_program, run};
pub use hosts::Hosts;
pub use loop_disk::LoopDisk;
pub use mounted::{Mounted, Native, Placement, Transport};

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Makes two tests of one function that takes a `&Mounted` and its [`Placement`]: one on the direct path
/// and one on the served path.
#[macro_export]
macro_rules! on_both_paths {
    ($($rule:ident),+ $(,)?) => {
        mod direct {
            $(#[test]
            fn $rule() {
                super::$rule(&$crate::Mounted::start($crate::Placement::Direct));
            })+
        }
        mod served {
            $(#[test]
            fn $rule() {
                super::$rule(&$crate::Mounted::start($crate::Placement::Served));
            })+
        }
    };
}

/// Makes four tests of one function that takes a `&Mounted`: on both paths, over both transports.
#[macro_export]
macro_rules! on_every_way {
    ($($rule:ident),+ $(,)?) => {
        $crate::on_every_way!(direct_uring: Direct, Uring; $($rule),+);
        $crate::on_every_way!(direct_dev: Direct, Dev; $($rule),+);
        $crate::on_every_way!(served_uring: Served, Uring; $($rule),+);
        $crate::on_every_way!(served_dev: Served, Dev; $($rule),+);
    };
    ($way:ident: $placement:ident, $transport:ident; $($rule:ident),+) => {
        mod $way {
            $(#[test]
            fn $rule() {
                use $crate::{Mounted, Placement, Transport};
                super::$rule(&Mounted::start_over(Placement::$placement, Transport::$transport));
            })+
        }
    };
}

/// Makes three tests of one function that takes a `&Mounted`, on a native fileset: bound in place, and served both ways.
#[macro_export]
macro_rules! on_native {
    ($($rule:ident),+ $(,)?) => {
        $crate::on_native!(native_bound: Bound; $($rule),+);
        $crate::on_native!(native_served: Served; $($rule),+);
        $crate::on_native!(native_passthrough: Passthrough; $($rule),+);
    };
    ($way:ident: $native:ident; $($rule:ident),+ $(,)?) => {
        mod $way {
            $(#[test]
            fn $rule() {
                super::$rule(&$crate::Mounted::start_native($crate::Native::$native));
            })+
        }
    };
}

/// Has threads stop when it goes, also by a panic: the scope that they belong to would wait for them otherwise.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `condition` holds, and panics with `what` when it does not within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The seed of a random test: `FOREBAY_SEED`, or a fresh one. Prints the command that repeats the test, in which `test` is the
/// name of its program.
///
/// # Panics
/// If the variable holds anything but a number.
#[must_use]
pub fn seed(test: &str) -> u64 {
    forebay_base::seed::announce(&format!("cargo test --release -p forebay-e2e --test {test}"))
}

/// A number from the environment, for runs longer than the usual ones.
///
/// # Panics
/// If the variable holds anything but a number.
#[must_use]
pub fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text}: expected a number"))
    })
}
