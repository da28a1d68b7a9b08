//! Why a job does not run, and what that says about the job and about its host.

use forebay_grid::event::Loss;

use crate::causes::{is_out_of_reach, number_of};
use crate::run::End;

/// Why a job does not run.
pub enum Fault {
    /// This host could not start it; another one may.
    Host(anyhow::Error),
    /// It cannot be started, wherever it is tried.
    Job(anyhow::Error),
    /// It began, and had to be killed at once.
    Begun,
}

impl From<anyhow::Error> for Fault {
    /// What the machine ran out of, and disks that fail, say nothing about the job.
    fn from(error: anyhow::Error) -> Fault {
        match number_of(&error) {
            Some(libc::ENOSPC | libc::EIO | libc::EROFS) => Fault::Host(error),
            Some(number) if is_of_host(number) => Fault::Host(error),
            Some(_) | None => Fault::Job(error),
        }
    }
}

impl From<forebay_process::Error> for Fault {
    /// The disk on which its output lies is the job's own choice, and that its file system is mounted here is not.
    fn from(error: forebay_process::Error) -> Fault {
        use forebay_process::Error;
        match &error {
            Error::NotHeld { .. } => Fault::Begun,
            Error::Io { source, .. } if source.raw_os_error().is_some_and(is_of_host) => {
                Fault::Host(error.into())
            }
            Error::Io { .. } => Fault::Job(error.into()),
        }
    }
}

impl Fault {
    /// How the run ended that did not begin.
    pub fn into_end(self) -> End {
        match self {
            Fault::Host(error) => End::unable(&error),
            Fault::Job(error) => End::not_started(&error),
            Fault::Begun => End::Lost(Loss::Holder),
        }
    }
}

/// Whether the machine has run out of something that no job is given a part of, or does not reach a file system.
fn is_of_host(number: i32) -> bool {
    is_out_of_reach(number)
        || matches!(number, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_mount_whose_daemon_has_died_is_the_hosts_fault_and_a_missing_folder_the_jobs() {
        let fault = |number| {
            let source = io::Error::from_raw_os_error(number);
            let error = forebay_process::Error::io("enter", Path::new("/mnt/run"))(source);
            Fault::from(error)
        };
        for number in [libc::ENOTCONN, libc::ECONNABORTED, libc::ESTALE] {
            assert!(matches!(fault(number), Fault::Host(_)), "{number}");
            let error = anyhow::Error::from(io::Error::from_raw_os_error(number)).context("work");
            assert!(matches!(Fault::from(error), Fault::Host(_)), "{number}");
        }
        for number in [libc::ENOENT, libc::EACCES, libc::ENOSPC] {
            assert!(matches!(fault(number), Fault::Job(_)), "{number}");
        }
    }
}
