//! Names that cannot be read at a home that answers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use forebay_base::Ino;
use forebay_fs::FsError;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::site::{CACHE, Site};
use crate::support::{Shorthand as _, User};

/// Has this thread be bound by the permissions of directories, as ordinary users are.
fn as_ordinary_user() {
    let mut own = capabilities(None).unwrap();
    own.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, own).unwrap();
}

fn set_mode(site: &Site, directory: &str, mode: u32) {
    std::fs::set_permissions(site.at(directory), Permissions::from_mode(mode)).unwrap();
}

fn lookup(site: &Site, fs: &User, directory: Ino, name: &str) -> Result<Ino, FsError> {
    site.lookup(fs, directory, name).map(|found| found.ino)
}

#[test]
fn a_name_that_cannot_be_read_at_home_stays_as_it_was_and_a_new_one_is_not_shown() {
    as_ordinary_user();
    let site = Site::with_refresh(3600);
    site.write("d/gone", b"");
    site.write("d/known", b"content");
    site.write("e/other", b"");
    let fs = site.open();
    let top = fs.fileset(CACHE);
    let [d, e] = ["d", "e"].map(|name| lookup(&site, &fs, top, name).unwrap());
    assert_eq!(site.names(&fs, d).unwrap(), ["gone", "known"]);
    assert_eq!(site.names(&fs, e).unwrap(), ["other"]);
    let known = lookup(&site, &fs, d, "known").unwrap();
    assert_eq!(fs.contents(known), b"content");
    site.write("d/new", b"");
    std::fs::remove_file(site.at("d/gone")).unwrap();
    // Its names can be listed, and nothing below it can be reached.
    set_mode(&site, "d", 0o444);
    site.clock.advance(3601);
    for _ in 0..2 {
        assert_eq!(site.names(&fs, d).unwrap(), ["known"]);
        assert_eq!(lookup(&site, &fs, d, "known").unwrap(), known);
        assert_eq!(fs.contents(known), b"content");
        let refused = lookup(&site, &fs, d, "new");
        assert!(matches!(refused, Err(FsError::System(libc::EACCES))), "{refused:?}");
        assert_eq!(site.status(&fs).unreadable_names, 2);
        assert_eq!(site.status(&fs).unreachable, None);
    }
    assert_eq!(site.names(&fs, e).unwrap(), ["other"]);
    set_mode(&site, "d", 0o755);
    site.clock.advance(3601);
    assert_eq!(site.names(&fs, d).unwrap(), ["known", "new"]);
    assert_eq!(lookup(&site, &fs, d, "known").unwrap(), known);
    assert_eq!(site.status(&fs).unreadable_names, 0);
    site.close(fs);
}
