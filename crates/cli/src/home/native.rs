//! Native filesets of a new file system.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use forebay_fs::native::{Mark, NativePlace};
use forebay_fs::record::Placement;

/// The placement of the filesets work and util: `wanted`, or native if root makes them and the first disk is local.
///
/// # Errors
/// If native filesets are wanted and cannot lie there.
pub fn placement_on(disk: &Path, wanted: Option<Placement>, user: u32) -> Result<Placement> {
    let kind = forebay_disk::directory::kind_of_file_system(disk)?;
    let suits = forebay_fs::native::suits(kind);
    match wanted {
        Some(Placement::Native) if !suits => bail!(
            "the filesets work and util cannot be native: {} lies on {kind}, which is not a local file system; name \
             a local disk first, or use --work-placement direct",
            disk.display()
        ),
        Some(wanted) => Ok(wanted),
        None if suits && user == 0 => Ok(Placement::Native),
        None => Ok(Placement::Direct),
    }
}

/// Makes the trees of the filesets work and util on the first disk, if they are to be native.
pub(super) fn make(
    file_system: &str,
    disk: &Path,
    wanted: Option<Placement>,
    owner: (u32, u32),
    made: &mut Vec<PathBuf>,
) -> Result<Placement> {
    let placement = placement_on(disk, wanted, owner.0)?;
    if placement != Placement::Native {
        return Ok(placement);
    }
    made.push(disk.join(forebay_fs::native::FOLDER));
    for name in forebay_fs::mkfs::SCRATCH {
        let mark = Mark { file_system: file_system.to_owned(), fileset: name.to_owned() };
        NativePlace::on(disk, mark).create(forebay_fs::mkfs::SCRATCH_MODE, owner)?;
    }
    Ok(placement)
}
