//! The mount table, `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Read here and not by `procfs-core` 0.18: that leaves the octal escapes of paths as they are, and gives up the whole table
//! for one name that is not UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Pid;

/// A mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// Its number in the table.
    pub id: u64,
    /// Number of the mount that it lies on.
    pub parent: u64,
    /// Number of the device that files tell (`st_dev`), as `major:minor`.
    pub device: String,
    /// Which directory of the file system is mounted: not `/` if it is a bind mount of a part.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type of the file system.
    pub file_system: String,
    /// What is mounted.
    pub source: PathBuf,
    /// Options of the mount, then those of the file system that it does not repeat.
    pub options: String,
}

impl Mount {
    /// Takes a line apart: bytes, since a path may be any.
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut words = line.split(|&byte| byte == b' ');
        let id = text(words.next()?).parse().ok()?;
        let parent = text(words.next()?).parse().ok()?;
        let device = text(words.next()?);
        let (root, mountpoint, options) = (words.next()?, words.next()?, words.next()?);
        // Behind the options stand tags in any number, up to a dash.
        words.by_ref().find(|word| *word == b"-")?;
        let (file_system, source) = (text(words.next()?), words.next()?);
        Some(Mount {
            id,
            parent,
            device,
            root: unescape(root),
            mountpoint: unescape(mountpoint),
            file_system,
            source: unescape(source),
            options: joined(&text(options), &text(words.next().unwrap_or_default())),
        })
    }

    /// The options of the mount and of the file system, one by one.
    pub fn all_options(&self) -> impl Iterator<Item = &str> {
        self.options.split(',')
    }

    /// What is mounted, with the part of it in brackets, as findmnt(8) writes it.
    #[must_use]
    pub fn describe_source(&self) -> String {
        let source = self.source.display();
        if self.root == Path::new("/") || self.root.as_os_str().is_empty() {
            return source.to_string();
        }
        format!("{source}[{}]", self.root.display())
    }
}

/// All mounts that this process sees, in the order in which they were made; none if /proc is not mounted.
#[must_use]
pub fn all() -> Vec<Mount> {
    in_folder("self")
}

/// All mounts that a process sees, which may have a table of its own.
#[must_use]
pub fn seen_by(pid: Pid) -> Vec<Mount> {
    in_folder(&pid.as_raw_nonzero().to_string())
}

fn in_folder(name: &str) -> Vec<Mount> {
    parse_all(&std::fs::read(format!("/proc/{name}/mountinfo")).unwrap_or_default())
}

/// The mounts of a table. Lines that are not understood are passed over.
#[must_use]
pub fn parse_all(table: &[u8]) -> Vec<Mount> {
    table.split(|&byte| byte == b'\n').filter_map(Mount::parse).collect()
}

/// The mount in which `path`, absolute and without links, lies: that with the number `id` if it is
/// known, or the latest on the longest part of the path.
#[must_use]
pub fn of<'a>(mounts: &'a [Mount], path: &Path, id: Option<u64>) -> Option<&'a Mount> {
    if let Some(mount) = mounts.iter().find(|mount| Some(mount.id) == id) {
        return Some(mount);
    }
    // max_by_key takes the last of equals.
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.mountpoint))
        .max_by_key(|mount| mount.mountpoint.components().count())
}

/// Both lists of options, without repeating any.
fn joined(mount: &str, file_system: &str) -> String {
    let mut options: Vec<&str> = mount.split(',').collect();
    for option in file_system.split(',') {
        // A file system that may be written says `rw`, also where it is mounted read-only.
        if !option.is_empty() && !options.contains(&option) && option != "rw" && option != "ro" {
            options.push(option);
        }
    }
    options.join(",")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Undoes the octal escapes of blanks and backslashes in a path of a mount table.
fn unescape(bytes: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = (bytes[at] == b'\\')
            .then(|| std::str::from_utf8(bytes.get(at + 1..at + 4)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(octal.unwrap_or(bytes[at]));
        at += if octal.is_some() { 4 } else { 1 };
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard,errors=remount-ro
30 27 0:52 / /mnt/a\\040b rw,noatime - fuse.forebay /srv/h\\134x rw,user_id=0
31 27 8:1 /sub/dir /mnt ro,nosuid - xfs /dev/sda1 rw,noquota
32 27 8:2 / /mnt rw - ext4 /dev/sda2 rw
nonsense
33 27 0:60 / /nfs rw - nfs4 server:/export rw,vers=4.2
";

    fn at(path: &str) -> Mount {
        of(&parse_all(TABLE.as_bytes()), Path::new(path), None).unwrap().clone()
    }

    #[test]
    fn a_path_lies_in_the_latest_mount_on_its_longest_part() {
        assert_eq!(at("/mnt/a b/file").file_system, "fuse.forebay");
        assert_eq!(at("/mnt/a").source, Path::new("/dev/sda2"));
        assert_eq!(at("/mntx").source, Path::new("/dev/vda"));
        assert_eq!(at("/nfs").source, Path::new("server:/export"));
        let mounts = parse_all(TABLE.as_bytes());
        assert_eq!(of(&mounts, Path::new("/mnt/x"), Some(31)).unwrap().device, "8:1");
        assert_eq!(of(&mounts, Path::new("/mnt/x"), Some(99)).unwrap().device, "8:2");
        assert_eq!(of(&[], Path::new("/"), None), None);
    }

    #[test]
    fn tags_escapes_and_parts_are_understood() {
        assert_eq!(at("/").options, "rw,relatime,discard,errors=remount-ro");
        let forebay = at("/mnt/a b");
        assert_eq!(forebay.mountpoint, Path::new("/mnt/a b"));
        assert_eq!(forebay.source, Path::new("/srv/h\\x"));
        assert_eq!(forebay.describe_source(), "/srv/h\\x");
        let part = &parse_all(TABLE.as_bytes())[3];
        assert_eq!(part.describe_source(), "/dev/sda1[/sub/dir]");
        assert_eq!(part.options, "ro,nosuid,noquota");
    }
    #[test]
    fn a_path_that_is_not_utf_8_is_kept_and_costs_no_other_line() {
        let table = b"1 0 0:1 / /mnt/\xff\xfe\\040x rw - tmpfs t\xc3\xa9 rw\n2 0 0:2 / /b rw - ext4 /dev/a rw\n";
        let mounts = parse_all(table);
        let path = PathBuf::from(OsString::from_vec(b"/mnt/\xff\xfe x".to_vec()));
        assert_eq!((mounts.len(), &mounts[0].mountpoint), (2, &path));
        assert_eq!(mounts[0].source, Path::new("t\u{e9}"));
    }
}
