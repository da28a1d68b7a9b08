//! Copying a checkpoint on another host, where new bytes lie on the node that writes them: each object that lies on the job's
//! node is written anew and takes the place of the first copy.

use std::path::Path;

use anyhow::{Context as _, Result};
use forebay_grid::vocabulary::HostName;

use super::ship::write_object;
use super::{Kept, Number, Shelf, copy, sync_folder, write_json};

/// Copies what lies on `job_host`, or on nobody knows which host, to this one.
///
/// # Errors
/// If something cannot be read or written: the checkpoint is as whole as it was, and does not count yet.
pub fn keep(folder: &Path, number: Number, job_host: &HostName, host: &HostName) -> Result<()> {
    let shelf = Shelf::at(folder);
    let manifest = shelf.read(number)?;
    let mut before = Kept::default();
    for earlier in shelf.numbers()?.into_iter().filter(|earlier| *earlier <= number) {
        match shelf.kept(earlier) {
            Ok(None) => {}
            Ok(Some(kept)) => {
                before = kept;
                break;
            }
            // It may have said otherwise than those before it: all is copied.
            Err(_) => break,
        }
    }
    let mut kept = Kept { host: host.to_string(), ..Kept::default() };
    for (object, bytes) in manifest.objects() {
        let home = before.objects.get(object).filter(|home| *home != job_host.as_str());
        if let Some(home) = home {
            kept.objects.insert(object.to_owned(), home.clone());
            continue;
        }
        let path = shelf.objects().join(object);
        let from = copy::open(&path).with_context(|| path.display().to_string())?;
        write_object(&path, &from, bytes)?;
        kept.objects.insert(object.to_owned(), host.to_string());
    }
    if shelf.objects().exists() {
        sync_folder(&shelf.objects())?;
    }
    write_json(&shelf.manifest(number), &manifest)?;
    write_json(&shelf.kept_file(number), &kept)
}
