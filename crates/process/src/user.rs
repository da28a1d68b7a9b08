//! The user database, and what it takes to act as one of its users.

use std::ffi::CString;
use std::io;

use nix::errno::Errno;
use nix::unistd::{Group, User, getgrouplist};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

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
#[derive(Clone, Debug)]
pub struct Rights {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Rights {
    /// Has the calling thread act as the user, for good. Makes system calls only.
    ///
    /// # Errors
    /// The kernel's: this process may not.
    pub fn take(&self) -> io::Result<()> {
        set_thread_groups(&self.groups)?;
        set_thread_res_gid(self.gid, self.gid, self.gid)?;
        set_thread_res_uid(self.uid, self.uid, self.uid)?;
        Ok(())
    }
}

impl Account {
    /// The account with this name, with all its groups; none if there is none.
    ///
    /// # Errors
    /// If the database does not answer: then nobody knows whether there is one.
    pub fn named(name: &str) -> io::Result<Option<Account>> {
        let Ok(text) = CString::new(name) else { return Ok(None) };
        let Some(user) = found(|| User::from_name(name))? else { return Ok(None) };
        let groups = getgrouplist(&text, user.gid)?;
        Ok(Some(Account {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
            home: user.dir.to_string_lossy().into_owned(),
        }))
    }

    /// What a thread takes to act as this user.
    #[must_use]
    pub fn rights(&self) -> Rights {
        let groups = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        Rights { uid: Uid::from_raw(self.uid), gid: Gid::from_raw(self.gid), groups }
    }

    /// Calls `act` with the rights of this user, if this process can change them, and as it is otherwise.
    ///
    /// # Errors
    /// If the rights cannot be taken.
    pub fn act<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        let with_rights = || -> io::Result<T> {
            if is_root() {
                self.rights().take()?;
            }
            Ok(act())
        };
        // On Linux rights belong to the thread, and this one ends with them.
        let done = std::thread::scope(|scope| scope.spawn(with_rights).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Whether this process may act as other users.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The name of a user, if it has one.
///
/// # Errors
/// If the database does not answer.
pub fn name_of(uid: u32) -> io::Result<Option<String>> {
    let user = found(|| User::from_uid(nix::unistd::Uid::from_raw(uid)))?;
    Ok(user.map(|user| user.name))
}

/// The number of the user with this name, if there is one.
///
/// # Errors
/// If the database does not answer.
pub fn number_of(name: &str) -> io::Result<Option<u32>> {
    if name.contains('\0') {
        return Ok(None);
    }
    Ok(found(|| User::from_name(name))?.map(|user| user.uid.as_raw()))
}

/// The name of a group, if it has one.
///
/// # Errors
/// If the database does not answer.
pub fn group_name_of(gid: u32) -> io::Result<Option<String>> {
    let group = found(|| Group::from_gid(nix::unistd::Gid::from_raw(gid)))?;
    Ok(group.map(|group| group.name))
}

/// The number of the group with this name, if there is one.
///
/// # Errors
/// If the database does not answer.
pub fn group_number_of(name: &str) -> io::Result<Option<u32>> {
    if name.contains('\0') {
        return Ok(None);
    }
    Ok(found(|| Group::from_name(name))?.map(|group| group.gid.as_raw()))
}

/// The full name of a user: the first part of the comment that its account has; none if it has none.
///
/// # Errors
/// If the database does not answer.
pub fn full_name_of(name: &str) -> io::Result<Option<String>> {
    if name.contains('\0') {
        return Ok(None);
    }
    let user = found(|| User::from_name(name))?;
    let comment = user.map(|user| user.gecos.to_string_lossy().into_owned());
    let first = comment.and_then(|comment| comment.split(',').next().map(str::to_owned));
    Ok(first.filter(|first| !first.is_empty()))
}

/// A group of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserGroup {
    /// Its name.
    pub name: String,
    /// Its number.
    pub gid: u32,
    /// Users that the database lists for it. Those whose first group it is need not be among them.
    pub members: Vec<String>,
}

impl From<Group> for UserGroup {
    fn from(group: Group) -> UserGroup {
        UserGroup { name: group.name, gid: group.gid.as_raw(), members: group.mem }
    }
}

/// The group with this name, if there is one.
///
/// # Errors
/// If the database does not answer.
pub fn group_named(name: &str) -> io::Result<Option<UserGroup>> {
    if name.contains('\0') {
        return Ok(None);
    }
    Ok(found(|| Group::from_name(name))?.map(UserGroup::from))
}

/// The group with this number, if it has a name.
///
/// # Errors
/// If the database does not answer.
pub fn group_numbered(gid: u32) -> io::Result<Option<UserGroup>> {
    Ok(found(|| Group::from_gid(nix::unistd::Gid::from_raw(gid)))?.map(UserGroup::from))
}

/// An entry of the database. An answer that getpwnam_r(3) names as that of systems that find nobody is none.
fn found<E>(look: impl Fn() -> nix::Result<Option<E>>) -> io::Result<Option<E>> {
    loop {
        match look() {
            Err(Errno::EINTR) => {}
            Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => return Ok(None),
            answer => return Ok(answer?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_by_name_and_by_number_and_nobody_else_is_made_up() {
        assert_eq!(name_of(0).unwrap().as_deref(), Some("root"));
        assert_eq!(number_of("root").unwrap(), Some(0));
        assert_eq!(group_name_of(0).unwrap().as_deref(), Some("root"));
        assert_eq!(group_number_of("root").unwrap(), Some(0));
        let root = Account::named("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0) && root.home.starts_with('/'));
        for name in ["no such user", "root\0", ""] {
            assert_eq!((number_of(name).unwrap(), Account::named(name).unwrap()), (None, None));
            assert_eq!(group_number_of(name).unwrap(), None);
        }
        assert_eq!(name_of(4_000_000_001).unwrap(), None);
        let group = group_named("root").unwrap().unwrap();
        assert_eq!((group.gid, group_numbered(0).unwrap()), (0, Some(group.clone())));
        assert_eq!(group_named("no such group").unwrap(), None);
        assert_eq!(full_name_of("no such user").unwrap(), None);
    }

    #[test]
    fn an_answer_that_finds_nobody_is_not_a_database_that_does_not_answer() {
        assert_eq!(found(|| nix::Result::<Option<u8>>::Err(Errno::ENOENT)).unwrap(), None);
        let refused = found(|| nix::Result::<Option<u8>>::Err(Errno::EIO)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    }
}
