//! `forebay snapshot clone`, and `forebay snapshot restore --all`, which has a clone take the place of its fileset.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use forebay_fs::snapshot::{CloneBytes, CloneStatus};

use crate::commands::disk::changed;
use crate::control::{Answer, Ask};
use crate::output::bytes;

/// What is to be cloned.
pub struct Order {
    pub root: PathBuf,
    pub fileset: String,
    pub snapshot: String,
    /// Name of the new fileset; with `restore --all` of the fileset as it was.
    pub new: String,
    /// Bytes are copied whose blocks cannot be shared.
    pub copy: bool,
    pub json: bool,
}

impl Order {
    fn bytes(&self) -> CloneBytes {
        if self.copy { CloneBytes::Copy } else { CloneBytes::Share }
    }
}

/// Makes a fileset that begins as a snapshot.
pub fn run(order: &Order) -> Result<()> {
    let Order { root, fileset, snapshot, new, json, .. } = order;
    let ask = Ask::CloneSnapshot {
        fileset: fileset.clone(),
        name: snapshot.clone(),
        clone: new.clone(),
        bytes: order.bytes(),
    };
    let made = cloned(changed(root, &ask, |fs| {
        Ok(fs.clone_snapshot((fileset, snapshot), new, order.bytes())?)
    }))?;
    if *json {
        return crate::output::put_json(&made);
    }
    outln!(
        "fileset {} is a clone of snapshot {snapshot} of {fileset}: {}",
        made.fileset,
        held(&made)
    );
    Ok(())
}

/// Takes a whole fileset back to a snapshot.
pub fn restore(order: &Order) -> Result<()> {
    let Order { fileset, snapshot, new, json, .. } = order;
    let root = &home_of(&order.root);
    let ask = Ask::RestoreFileset {
        fileset: fileset.clone(),
        name: snapshot.clone(),
        aside: new.clone(),
        bytes: order.bytes(),
    };
    let made = cloned(changed(root, &ask, |fs| {
        Ok(fs.restore_fileset((fileset, snapshot), new, order.bytes())?)
    }))?;
    if *json {
        let value = serde_json::json!({ "restored": made, "aside": new });
        return crate::output::put_json(&value);
    }
    outln!("fileset {fileset} is as it was in snapshot {snapshot}: {}", held(&made));
    outln!("what it held before is in fileset {new}, with its snapshots");
    Ok(())
}

/// The home folder of a file system that may be named by where it is mounted.
fn home_of(root: &Path) -> PathBuf {
    crate::mounts::at(root).map_or_else(|_| root.to_owned(), |mount| mount.home)
}

fn cloned(said: Result<std::result::Result<Answer, CloneStatus>>) -> Result<CloneStatus> {
    match said? {
        Ok(Answer::SnapshotCloned(made)) | Err(made) => Ok(made),
        Ok(_) => bail!("the daemon's answer cannot be understood; does it run another version?"),
    }
}

fn held(made: &CloneStatus) -> String {
    let copied = match made.copied {
        0 => String::new(),
        files => format!("; the bytes of {files} files were copied"),
    };
    format!("{} files and directories, {}{copied}", made.inodes, bytes(made.bytes))
}
