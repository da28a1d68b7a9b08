//! Meetings: processes on any hosts that begin the next thing together.
//!
//! All of them see one directory of a shared file system and nothing else of each other. Each makes a
//! file there; the one who sees all files makes the sign `go`, and whoever sees it begins. Each takes
//! its file away at its end, and the last one the directory. A process that is killed leaves its file,
//! which counts at the next meeting in the directory: remove the directory then.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::Clock;
use serde::{Deserialize, Serialize};

use forebay_analytics::error::{Error, Result};
use forebay_analytics::step::{Context, Job};

/// How long a process sleeps before it looks again.
const PAUSE: Duration = Duration::from_millis(2);
/// Name of the sign.
const GO: &str = "go";

/// How many begin together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Together {
    /// So many.
    Number(u64),
    /// All jobs of a group.
    Group(Group),
}

/// A group of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// All jobs of this job's class.
    Class,
}

impl Together {
    /// The number for `job`.
    #[must_use]
    pub fn number(self, job: &Job) -> u64 {
        match self {
            Together::Number(number) => number,
            Together::Group(Group::Class) => job.count,
        }
    }
}

/// The directory in which the jobs of a class meet that have the same `settings`, paths not yet
/// resolved.
pub(super) fn place(context: &Context<'_>, settings: &impl std::fmt::Debug) -> Result<PathBuf> {
    let of = siphasher::sip::SipHasher13::new();
    let sum = of.hash(format!("{settings:?}").as_bytes());
    let mut path = PathBuf::from(format!("data/.start-{{class}}-{sum:016x}"));
    context.resolve(&mut path)?;
    Ok(path)
}

/// A meeting that was attended; dropped, it is left.
#[derive(Debug)]
pub(super) struct Meeting {
    directory: PathBuf,
    own: PathBuf,
}

impl Meeting {
    /// Meets as the settings of a step say, if they do.
    ///
    /// # Errors
    /// As [`Meeting::attend`].
    pub fn attend_if(
        together: Option<Together>,
        directory: Option<&Path>,
        limit: Duration,
        context: &Context<'_>,
    ) -> Result<Option<Meeting>> {
        let (Some(together), Some(directory)) = (together, directory) else { return Ok(None) };
        let number = together.number(&context.job);
        Meeting::attend(directory, &context.job.name, number, limit, context.clock).map(Some)
    }

    /// Comes to `directory` as `name`, which nobody else has, and returns once `number` are there.
    ///
    /// # Errors
    /// [`Error::Io`] if the others do not come within `limit`, or a meeting before this one does not end.
    pub fn attend(
        directory: &Path,
        name: &str,
        number: u64,
        limit: Duration,
        clock: &dyn Clock,
    ) -> Result<Meeting> {
        let start = clock.instant();
        let (own, go) = (directory.join(format!("at-{name}")), directory.join(GO));
        loop {
            match fs::create_dir_all(directory) {
                Ok(()) => {}
                // It was there and was taken away before it could be looked at.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io("create directory", directory)(error)),
            }
            if !go.exists() {
                match File::create(&own) {
                    Ok(_) => break,
                    // The last one of the meeting before took the directory away.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(Error::io("create", &own)(error)),
                }
            }
            let late = || "the jobs that met here before are still running".to_owned();
            pause(directory, start, limit, clock, late)?;
        }
        // From here on the file goes away also after an error.
        let meeting = Meeting { directory: directory.to_owned(), own };
        while !go.exists() {
            let there = meeting.attendance()?;
            if there >= number {
                File::create(&go).map_err(Error::io("create", &go))?;
                break;
            }
            pause(directory, start, limit, clock, || format!("{there} of {number} arrived"))?;
        }
        Ok(meeting)
    }

    /// How many are there.
    fn attendance(&self) -> Result<u64> {
        let failed = || Error::io("list", &self.directory);
        let mut there = 0;
        for entry in fs::read_dir(&self.directory).map_err(failed())? {
            there += u64::from(entry.map_err(failed())?.file_name() != GO);
        }
        Ok(there)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        // What fails here shows at the next meeting, with the directory's name.
        let _ = fs::remove_file(&self.own);
        if let Ok(0) = self.attendance() {
            let _ = fs::remove_file(self.directory.join(GO));
            let _ = fs::remove_dir(&self.directory);
        }
    }
}

fn pause(
    directory: &Path,
    start: Instant,
    limit: Duration,
    clock: &dyn Clock,
    late: impl Fn() -> String,
) -> Result<()> {
    if clock.instant().saturating_duration_since(start) < limit {
        thread::sleep(PAUSE);
        return Ok(());
    }
    let text = format!("{} within {} s", late(), limit.as_secs());
    let source = io::Error::new(io::ErrorKind::TimedOut, text);
    Err(Error::io("start together in", directory)(source))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use forebay_base::time::SystemClock;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn nobody_begins_before_all_are_there_and_nothing_is_left() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("start");
        let came = AtomicU64::new(0);
        thread::scope(|scope| {
            for name in 0..4 {
                let (directory, came) = (&directory, &came);
                scope.spawn(move || {
                    // Twice in one place: the second meeting waits for the end of the first.
                    for round in 1..=2 {
                        came.fetch_add(1, Ordering::SeqCst);
                        let name = name.to_string();
                        let meeting =
                            Meeting::attend(directory, &name, 4, LONG, &SystemClock).unwrap();
                        assert!(came.load(Ordering::SeqCst) >= 4 * round);
                        drop(meeting);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn who_waits_in_vain_says_how_many_came_and_leaves() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("start");
        let limit = Duration::from_millis(20);
        let error = Meeting::attend(&directory, "a", 3, limit, &SystemClock).unwrap_err();
        assert!(error.to_string().contains("1 of 3 came within 0 s"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
