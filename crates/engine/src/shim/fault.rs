//! Why a job does not run, and what that says about the job and about its host.

use forebay_grid::event::Loss;

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
        let number = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<std::io::Error>()?.raw_os_error()
        };
        match error.chain().find_map(number) {
            Some(libc::ENOSPC | libc::EIO | libc::EROFS) => Fault::Host(error),
            Some(number) if is_shortage(number) => Fault::Host(error),
            Some(_) | None => Fault::Job(error),
        }
    }
}

impl From<forebay_process::Error> for Fault {
    /// The disk on which its output lies is the job's own choice.
    fn from(error: forebay_process::Error) -> Fault {
        use forebay_process::Error;
        match &error {
            Error::NotHeld { .. } => Fault::Begun,
            Error::Io { source, .. } if source.raw_os_error().is_some_and(is_shortage) => {
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

/// Whether the machine has run out of something that no job is given a part of.
fn is_shortage(number: i32) -> bool {
    matches!(number, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
}
