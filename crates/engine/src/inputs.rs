//! Files that a job names as its inputs, and what can be told of where they lie without asking anybody.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use forebay_base::Ino;
use forebay_grid::spec::Input;
use forebay_process::mounts::{self, Mount};

/// What the kernel calls a mounted Forebay file system.
const FS_TYPE: &str = "fuse.forebay";

/// The inputs at these paths, which are made absolute. They need not exist yet.
///
/// # Errors
/// If one is not UTF-8.
pub fn inputs(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let mut mounted = if paths.is_empty() { Vec::new() } else { mounts::all() };
    mounted.retain(|mount| mount.file_system == FS_TYPE);
    paths.iter().map(|path| input(path, &mounted)).collect()
}

fn input(path: &Path, mounted: &[Mount]) -> Result<Input> {
    let absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let absolute = absolute.canonicalize().unwrap_or(absolute);
    let text = absolute.to_str().with_context(|| format!("input {}: not UTF-8", path.display()))?;
    let below = mounted.iter().filter(|mount| absolute.starts_with(&mount.mountpoint));
    let mount = below.max_by_key(|mount| mount.mountpoint.as_os_str().len());
    let folder = mount.and_then(|mount| {
        let inside = absolute.strip_prefix(&mount.mountpoint).ok()?;
        Some(inside.components().nth(1)?.as_os_str().to_str()?.to_owned())
    });
    let fileset = mount.and_then(|mount| fileset_of(&absolute, &mount.device));
    Ok(Input { path: text.to_owned(), fileset, folder, home: None })
}

/// The fileset of a file on a device, or of the folder in which it will be made.
fn fileset_of(path: &Path, device: &str) -> Option<u16> {
    let found = path.ancestors().find_map(|path| path.metadata().ok())?;
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    (format!("{major}:{minor}") == device).then(|| Ino(found.ino()).fileset().0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_mount_names_the_folder_of_its_fileset() {
        let mount = |mountpoint: &str| Mount {
            mountpoint: mountpoint.into(),
            device: "0:1".to_owned(),
            ..Mount::default()
        };
        let mounted = [mount("/none"), mount("/none/inner")];
        let folder = |path: &str| input(Path::new(path), &mounted).unwrap().folder;
        assert_eq!(folder("/none/work/n1/x").as_deref(), Some("n1"));
        assert_eq!(folder("/none/inner/work/n1/x").as_deref(), Some("n1"));
        assert_eq!(folder("/none/work"), None);
        assert_eq!(folder("/elsewhere/work/n1"), None);
    }
}
