//! Users of the system: their names, numbers and groups.

use std::ffi::{CStr, CString};

use anyhow::{Context as _, Result, bail};
use forebay_grid::vocabulary::UserName;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::home::is_root;

/// Somebody as whom a process can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Number.
    pub uid: u32,
    /// First group.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: String,
}

/// What a thread takes to act as a user.
pub(crate) struct Rights {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Rights {
    /// Has the calling thread act as the user, for good. Makes system calls only.
    pub fn take(&self) -> std::io::Result<()> {
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        set_thread_res_uid(self.uid, self.uid, self.uid)?;
        Ok(())
    }
}

impl Account {
    pub(crate) fn rights(&self) -> Rights {
        let groups = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        Rights { uid: Uid::from_raw(self.uid), gid: Gid::from_raw(self.gid), groups }
    }

    /// Calls `act` with the rights of this user, if this process can change them, and as it is otherwise.
    ///
    /// # Errors
    /// If the rights cannot be taken.
    pub(crate) fn act<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T> {
        let with_rights = || -> std::io::Result<T> {
            if is_root() {
                self.rights().take()?;
            }
            Ok(act())
        };
        // On Linux rights belong to the thread, and this one ends with them.
        let done = std::thread::scope(|scope| scope.spawn(with_rights).join());
        Ok(done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
    }
}

/// An entry of the user database, of which zeros are one: numbers and null pointers.
trait Entry {}

impl Entry for libc::passwd {}
impl Entry for libc::group {}

/// Calls `act` with the entry of the user database that `find` looks up; none if there is none.
///
/// # Errors
/// If the database cannot be asked: then nobody knows whether there is one.
fn entry<E: Entry, T>(
    find: impl Fn(&mut E, &mut [libc::c_char], &mut *mut E) -> i32,
    act: impl FnOnce(&E) -> T,
) -> Result<Option<T>> {
    const ENTRY_MAX: usize = 1 << 20;
    let mut buffer: Vec<libc::c_char> = vec![0; 4096];
    loop {
        // SAFETY: zeros are an entry.
        let mut entry: E = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        match find(&mut entry, &mut buffer, &mut found) {
            libc::ERANGE if buffer.len() < ENTRY_MAX => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => {}
            0 if !found.is_null() => return Ok(Some(act(&entry))),
            // What getpwnam_r(3) names as the answers of systems that find nobody.
            0 | libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            error => {
                let error = std::io::Error::from_raw_os_error(error);
                return Err(error).context("the user database does not answer");
            }
        }
    }
}

fn text(pointer: *const libc::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the user database gives strings that end in zero, within a buffer that lives.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The name of a user; the number, if the system knows no name.
///
/// # Errors
/// If the name cannot be a user's on the grid or the number is another user's name, or the user database does not answer.
pub fn name_of(uid: u32) -> Result<UserName> {
    let name = entry(
        // SAFETY: all pointers are to live memory of the lengths given.
        |entry, buffer, found| unsafe {
            libc::getpwuid_r(uid, entry, buffer.as_mut_ptr(), buffer.len(), found)
        },
        |entry: &libc::passwd| text(entry.pw_name),
    )?;
    let name = match name {
        Some(name) => name,
        None => {
            let number = uid.to_string();
            let holder = by_name(&CString::new(number.as_str())?)?;
            unnamed(uid, holder.map(|(holder, ..)| holder))?;
            number
        }
    };
    name.parse().map_err(anyhow::Error::msg)
}

/// Refuses a user without a name whose number is the name of another one: they would be one user.
fn unnamed(uid: u32, holder: Option<u32>) -> Result<()> {
    match holder.filter(|holder| *holder != uid) {
        Some(holder) => bail!("it has no name, and its number is the name of user {holder}"),
        None => Ok(()),
    }
}

/// Number, group and home of the account with a name.
fn by_name(name: &CStr) -> Result<Option<(u32, u32, String)>> {
    entry(
        // SAFETY: all pointers are to live memory of the lengths given.
        |entry, buffer, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, buffer.as_mut_ptr(), buffer.len(), found)
        },
        |entry: &libc::passwd| (entry.pw_uid, entry.pw_gid, text(entry.pw_dir)),
    )
}

/// Who this process is.
///
/// # Errors
/// As [`name_of`].
pub fn own_name() -> Result<UserName> {
    name_of(rustix::process::geteuid().as_raw())
}

/// The name of a group, if it has one.
fn group_name_of(gid: u32) -> Result<Option<String>> {
    entry(
        // SAFETY: all pointers are to live memory of the lengths given.
        |entry, buffer, found| unsafe {
            libc::getgrgid_r(gid, entry, buffer.as_mut_ptr(), buffer.len(), found)
        },
        |entry: &libc::group| text(entry.gr_name),
    )
}

/// Whether a user exists, as far as that can be known. One without a name goes by the number.
#[must_use]
pub fn may_exist(user: &UserName) -> bool {
    let Ok(name) = CString::new(user.as_str()) else { return false };
    let is_number = user.as_str().parse::<u32>().is_ok();
    // A user database that cannot be asked says nothing against anybody.
    is_number || !matches!(by_name(&name), Ok(None))
}

/// The account of a user by name, or by number where there is no name.
///
/// # Errors
/// If there is no such user, if the user database does not answer, or if there is no account and the group of the
/// same number is somebody's: what it may do is not the user's to have.
pub fn account_of(user: &UserName) -> Result<Account> {
    let name = CString::new(user.as_str())?;
    let found = by_name(&name)?;
    let Some((uid, gid, home)) = found else {
        let uid: u32 = user
            .as_str()
            .parse()
            .with_context(|| format!("there is no user {user} on this host"))?;
        if let Some(group) = group_name_of(uid)? {
            bail!("user {uid} has no account on this host, and group {uid} is {group} there");
        }
        return Ok(Account { uid, gid: uid, groups: vec![uid], home: "/".to_owned() });
    };
    let mut groups = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len())?;
        // SAFETY: the list has room for `count` groups.
        let fits =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count)?;
        let full = groups.len();
        groups.resize(count.max(1), 0);
        if fits >= 0 {
            return Ok(Account { uid, gid, groups, home });
        }
        anyhow::ensure!(count > full, "the groups of {user} cannot be read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_a_name_is_not_the_one_whose_name_is_its_number() {
        assert!(unnamed(4711, None).is_ok() && unnamed(4711, Some(4711)).is_ok());
        let refused = unnamed(4711, Some(12)).unwrap_err().to_string();
        assert_eq!(refused, "it has no name, and its number is the name of user 12");
        assert_eq!(name_of(4_000_000_001).unwrap().as_str(), "4000000001");
    }
}
