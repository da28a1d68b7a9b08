//! Extended attributes and access control lists.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_e2e::actor::User;
use forebay_e2e::content::pattern;
use forebay_e2e::{Mounted, as_user, need, on_every_way, on_native, run};
use rustix::fs::{XattrFlags, getxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::Errno;

on_every_way!(
    an_extended_attribute_keeps_its_value,
    create_and_replace_of_an_attribute_are_told_apart,
    attribute_names_are_listed,
    attributes_keep_to_their_limits,
    attribute_classes_have_their_own_rules,
    new_entries_inherit_the_default_acl,
    an_acl_grants_and_denies,
);

// The largest values are those of the disk's file system.
on_native!(
    create_and_replace_of_an_attribute_are_told_apart,
    attribute_names_are_listed,
    attributes_keep_to_their_limits,
    attribute_classes_have_their_own_rules,
    new_entries_inherit_the_default_acl,
    an_acl_grants_and_denies,
);

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 65536];
    let length = getxattr(path, name, &mut buffer[..])?;
    buffer.truncate(length);
    Ok(buffer)
}

fn list(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 65536];
    let length = listxattr(path, &mut buffer[..]).expect("lists the attributes");
    let mut names: Vec<String> = buffer[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    names.sort();
    names
}

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn file(grid: &Mounted) -> std::path::PathBuf {
    let path = grid.data().join("file");
    fs::write(&path, "content").expect("writes");
    path
}

fn an_extended_attribute_keeps_its_value(grid: &Mounted) {
    let path = file(grid);
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    for (index, length) in [0, 1, 255, 4000, 10_000].into_iter().enumerate() {
        let name = format!("user.name-{index}");
        for target in [&path, &folder] {
            set(target, &name, b"first").expect("sets");
            set(target, &name, &pattern(index as u64, length)).expect("sets again");
        }
    }
    for remounted in [false, true] {
        if remounted {
            grid.remount();
        }
        for (index, length) in [0, 1, 255, 4000, 10_000].into_iter().enumerate() {
            let name = format!("user.name-{index}");
            for target in [&path, &folder] {
                assert_eq!(get(target, &name), Ok(pattern(index as u64, length)), "{name}");
            }
        }
    }
}

fn create_and_replace_of_an_attribute_are_told_apart(grid: &Mounted) {
    let path = file(grid);
    let create = |value: &[u8]| setxattr(&path, "user.x", value, XattrFlags::CREATE);
    let replace = |value: &[u8]| setxattr(&path, "user.x", value, XattrFlags::REPLACE);
    assert_eq!(replace(b"0"), Err(Errno::NODATA));
    assert_eq!(create(b"1"), Ok(()));
    assert_eq!(create(b"2"), Err(Errno::EXIST));
    assert_eq!(replace(b"3"), Ok(()));
    assert_eq!(get(&path, "user.x"), Ok(b"3".to_vec()));
    assert_eq!(removexattr(&path, "user.x"), Ok(()));
    assert_eq!(removexattr(&path, "user.x"), Err(Errno::NODATA));
    assert_eq!(get(&path, "user.x"), Err(Errno::NODATA));
}

fn attribute_names_are_listed(grid: &Mounted) {
    let path = file(grid);
    assert!(list(&path).is_empty());
    let names: Vec<String> = (100..200).map(|number| format!("user.name-{number}")).collect();
    for name in &names {
        set(&path, name, b"value").expect("sets");
    }
    assert_eq!(list(&path), names);
    for name in &names[..99] {
        removexattr(&path, name.as_str()).expect("removes");
    }
    assert_eq!(list(&path), [names[99].as_str()]);
    assert_eq!(listxattr(&path, &mut [0_u8; 5][..]), Err(Errno::RANGE), "a buffer too small");
    assert_eq!(getxattr(&path, names[99].as_str(), &mut [0_u8; 2][..]), Err(Errno::RANGE));
}

fn attributes_keep_to_their_limits(grid: &Mounted) {
    let path = file(grid);
    let longest = format!("user.{}", "n".repeat(250));
    set(&path, &longest, b"value").expect("a name of 255 bytes");
    assert_eq!(get(&path, &longest), Ok(b"value".to_vec()));
    assert_eq!(set(&path, &format!("{longest}n"), b"value"), Err(Errno::RANGE));
    assert_eq!(set(&path, "user.large", &[1; 65537]), Err(Errno::TOOBIG));
    assert_eq!(list(&path), [longest]);
}

fn attribute_classes_have_their_own_rules(grid: &Mounted) {
    let path = file(grid);
    let link = grid.data().join("link");
    std::os::unix::fs::symlink("file", &link).expect("links");
    let on_a_link = lsetxattr(&link, "user.x", b"value", XattrFlags::empty());
    assert_eq!(on_a_link, Err(Errno::PERM), "symbolic links have no user attributes");
    set(&path, "trusted.x", b"value").expect("root sets trusted attributes");
    set(&path, "security.x", b"value").expect("root sets security attributes");
    let stranger = User::new(1301, &[1301]);
    as_user(&stranger, || {
        assert!(get(&path, "trusted.x").is_err(), "others do not read trusted attributes");
        assert_eq!(list(&path), ["security.x"]);
        assert!(set(&path, "user.x", b"value").is_err(), "others do not write");
    });
    assert_eq!(set(&path, "nonsense.x", b"value"), Err(Errno::OPNOTSUPP));
}

fn setfacl(arguments: &[&str], path: &Path) {
    run(need::program("setfacl").args(arguments).arg(path), Duration::from_secs(10)).succeeds();
}

/// The entries of an access control list, without owner and path.
fn getfacl(path: &Path) -> Vec<String> {
    let text = run(
        need::program("getfacl").args(["--omit-header", "--numeric", "--absolute-names"]).arg(path),
        Duration::from_secs(10),
    )
    .output();
    let entry = |line: &str| line.split_whitespace().next().unwrap_or("").to_owned();
    text.lines().map(entry).filter(|line| !line.is_empty()).collect()
}

fn new_entries_inherit_the_default_acl(grid: &Mounted) {
    let folder = grid.data().join("folder");
    fs::create_dir(&folder).expect("makes a directory");
    let default = "u:1401:rwx,g:1402:r-x,u::rwx,g::r-x,o::---";
    setfacl(&["--default", "--modify", default], &folder);
    fs::write(folder.join("file"), "content").expect("writes");
    fs::create_dir(folder.join("inner")).expect("makes a directory");
    for remounted in [false, true] {
        if remounted {
            grid.remount();
        }
        // A file asks for 0666: the mask takes execution away, the others get nothing.
        let file = [
            "user::rw-",
            "user:1401:rwx",
            "group::r-x",
            "group:1402:r-x",
            "mask::rw-",
            "other::---",
        ];
        assert_eq!(getfacl(&folder.join("file")), file);
        let inner = getfacl(&folder.join("inner"));
        for entry in [
            "user:1401:rwx",
            "mask::rwx",
            "other::---",
            "default:user:1401:rwx",
            "default:group:1402:r-x",
            "default:mask::rwx",
            "default:other::---",
        ] {
            assert!(inner.iter().any(|found| found == entry), "{entry} is missing: {inner:?}");
        }
    }
}

fn an_acl_grants_and_denies(grid: &Mounted) {
    let path = file(grid);
    let (friend, foe) = (User::new(1501, &[1501]), User::new(1502, &[1502]));
    setfacl(&["--modify", "u:1501:rw-,u:1502:---,o::r--"], &path);
    as_user(&friend, || fs::write(&path, "by a friend").expect("the list lets a friend write"));
    as_user(&foe, || assert!(fs::read(&path).is_err(), "the list keeps a foe out"));
    assert_eq!(fs::read(&path).expect("reads"), b"by a friend");

    // The group bits of the mode are the mask of the list.
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o614))
        .expect("changes the mode");
    as_user(&friend, || assert!(fs::read(&path).is_err(), "the mask covers the friend"));
    assert!(getfacl(&path).contains(&"mask::--x".to_owned()));
    setfacl(&["--remove-all"], &path);
    assert!(!getfacl(&path).iter().any(|entry| entry.contains("1501")));
    as_user(&friend, || fs::read(&path).expect("as everybody now"));
}
