//! Empty areas that a shim keeps for its next job: making a directory and removing it costs a short job more than renaming one.
//!
//! The areas of a job that has left nothing in them are put aside under a name of their own before its end is recorded, and
//! get the name of the next job's areas if that job belongs to the same user. They are worth nothing: anybody may remove
//! them at any time, and one that was not left as it was made is removed. What a shim that was killed leaves is removed by
//! an agent when it starts and when areas are listed.
//!
//! A user may write to an area that is put aside, as it is the user's own. So it is examined under its new name, by its
//! descriptor, before the job starts. Where each directory has attributes from the beginning, as under SELinux or below a
//! directory with default access rights, none is kept.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use forebay_process::user::is_root;
use rustix::fs::{CWD, Dir, Mode, RenameFlags};

use super::{FOLDER, aside};
use crate::user::Account;

/// What the names of areas begin with that are kept for another job.
const SPARE: &str = ".spare-";

/// An empty area without a job. It is removed with this value.
#[derive(Debug)]
pub struct Spare(PathBuf);

impl Spare {
    /// Puts the area of a job of this user aside whose processes have all ended; none if it is not as it was made.
    pub fn of(area: &Path, account: &Account) -> Option<Spare> {
        let folder = rustix::fs::open(area, FOLDER, Mode::empty()).ok()?;
        if !is_as_made(&folder, account) {
            return None;
        }
        let mut name = OsString::from(SPARE);
        name.push(area.file_name()?);
        let spare = area.with_file_name(name);
        std::fs::rename(area, &spare).ok()?;
        Some(Spare(spare))
    }

    /// Makes it the area of another job; whether that is as if it had just been made for this user. Otherwise there may be
    /// something by this name, which is no area.
    #[must_use]
    pub fn become_area(self, area: &Path, account: &Account) -> bool {
        let renamed = rustix::fs::renameat_with(CWD, &self.0, CWD, area, RenameFlags::NOREPLACE);
        if renamed.is_err() {
            return false;
        }
        // It has another name now.
        std::mem::forget(self);
        rustix::fs::open(area, FOLDER, Mode::empty())
            .is_ok_and(|folder| is_as_made(&folder, account))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // Something may be in it by now: whoever looks for areas removes it then.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Whether a folder is what a fresh area of this user is: empty, private, without lists of access rights and other attributes.
fn is_as_made(folder: &OwnedFd, account: &Account) -> bool {
    let own = |about: &rustix::fs::Stat| {
        !is_root() || (about.st_uid == account.uid && about.st_gid == account.gid)
    };
    let is_plain = rustix::fs::fstat(folder)
        .is_ok_and(|about| about.st_mode & 0o7777 == Mode::RWXU.bits() && own(&about));
    // SAFETY: an open descriptor, and no memory to write to.
    let attributes = unsafe { libc::flistxattr(folder.as_raw_fd(), std::ptr::null_mut(), 0) };
    is_plain && attributes == 0 && is_empty(folder)
}

fn is_empty(folder: &OwnedFd) -> bool {
    let Ok(mut entries) = Dir::read_from(folder.as_fd()) else { return false };
    entries.all(|entry| entry.is_ok_and(|entry| is_itself(entry.file_name())))
}

fn is_itself(name: &CStr) -> bool {
    name == c"." || name == c".."
}

/// Removes what lies under the name of a spare area; its new name, under which it can be removed, if it is not empty.
///
/// # Errors
/// If it can be neither removed nor renamed.
pub fn take_away(path: &Path) -> io::Result<Option<PathBuf>> {
    let name = path.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix(SPARE));
    let Some(name) = name else { return Ok(None) };
    match std::fs::remove_dir(path) {
        Ok(()) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(_) => {}
    }
    let gone = path.with_file_name(aside(name));
    match std::fs::rename(path, &gone) {
        Ok(()) => Ok(Some(gone)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::super::{Left, make};
    use super::*;

    fn account() -> Account {
        Account {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Vec::new(),
            home: "/".to_owned(),
        }
    }

    fn names(place: &Path) -> usize {
        std::fs::read_dir(place).unwrap().count()
    }

    #[test]
    fn an_empty_area_becomes_that_of_the_next_job_and_goes_with_its_shim() {
        let place = tempfile::tempdir().unwrap();
        let [one, two] = ["job-1", "job-2"].map(|name| place.path().join(name));
        make(&one, Left::Removed, &account()).unwrap();
        let inode = std::fs::metadata(&one).unwrap().ino();
        let spare = Spare::of(&one, &account()).unwrap();
        assert!(!one.exists() && names(place.path()) == 1);
        assert!(spare.become_area(&two, &account()));
        assert_eq!(std::fs::metadata(&two).unwrap().ino(), inode);
        drop(Spare::of(&two, &account()).unwrap());
        assert_eq!(names(place.path()), 0);
    }

    #[test]
    fn an_area_that_is_not_as_it_was_made_is_never_the_next_jobs() {
        let changes: [fn(&Path); 3] = [
            |area| std::fs::write(area.join("left"), "x").unwrap(),
            |area| {
                let open = std::fs::Permissions::from_mode(0o777);
                std::fs::set_permissions(area, open).unwrap();
            },
            |area| {
                rustix::fs::setxattr(area, c"user.note", b"x", rustix::fs::XattrFlags::empty())
                    .unwrap();
            },
        ];
        for change in changes {
            let place = tempfile::tempdir().unwrap();
            let [one, two] = ["job-1", "job-2"].map(|name| place.path().join(name));
            make(&one, Left::Removed, &account()).unwrap();
            change(&one);
            assert!(Spare::of(&one, &account()).is_none() && one.exists());
            // Its owner may also change it while it is put aside.
            make(&one, Left::Removed, &account()).unwrap();
            let spare = Spare::of(&one, &account()).unwrap();
            change(&spare.0);
            assert!(!spare.become_area(&two, &account()));
        }
    }

    #[test]
    fn a_spare_area_takes_no_area_that_is_there_and_what_was_put_into_one_is_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let [one, two] = ["job-1", "job-2"].map(|name| place.path().join(name));
        for area in [&one, &two] {
            make(area, Left::Removed, &account()).unwrap();
        }
        std::fs::write(two.join("kept"), "x").unwrap();
        assert!(!Spare::of(&one, &account()).unwrap().become_area(&two, &account()));
        assert!(two.join("kept").exists() && names(place.path()) == 1);
        // Two shims of killed agents have left one each.
        let spares = ["job-3", "job-4"].map(|name| place.path().join(format!("{SPARE}{name}")));
        spares.iter().for_each(|spare| std::fs::create_dir(spare).unwrap());
        std::fs::write(spares[1].join("late"), "x").unwrap();
        assert!(take_away(&spares[0]).unwrap().is_none());
        let gone = take_away(&spares[1]).unwrap().unwrap();
        assert!(super::super::is_aside(gone.file_name().unwrap()) && gone.join("late").exists());
        assert!(take_away(&two).unwrap().is_none() && two.exists());
    }
}
