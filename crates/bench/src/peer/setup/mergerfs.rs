//! mergerfs: a pass-through FUSE file system over one directory of the disk, with default settings
//! but for the permission that every user has anyway.

use anyhow::Result;

use super::{Ready, Site, text};

/// Mounts it over a directory of the disk.
pub(super) fn bring_up(site: &Site<'_>) -> Result<Ready> {
    let (branch, mount) = (site.data("branch")?, site.directory("mount")?);
    site.start("mergerfs", &["-f", "-o", "allow_other", text(&branch)?, text(&mount)?])?;
    site.until_ready("mergerfs", || site.run("mountpoint", &["-q", text(&mount)?]))?;
    Ok(Ready::at(&mount, site.version("mergerfs", "--version")?))
}
