//! Native filesets at their places in the mount. Other processes bind them: the daemon never uses its own mount.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use forebay_fs::native::NativeFileset;
use forebay_fuse::mount::By;

use super::Running;
use crate::binds::{self, Bind};
use crate::control::NativeStatus;

/// Has native filesets bound that come while the file system is mounted.
pub(super) fn care_for_mount(running: &Arc<Running>) {
    let weak = Arc::downgrade(running);
    running.fs.set_binder(Box::new(move || {
        let bound = weak.upgrade().map_or(Ok(()), |running| running.bind_native());
        if let Err(error) = bound {
            let error = crate::output::chain(&error);
            tracing::warn!(error, "a new native fileset is served by the daemon");
        }
    }));
}

impl Running {
    /// Has the native filesets bound that are not. An ordinary user's mount serves them, and one that is to serve all.
    pub(super) fn bind_native(&self) -> Result<()> {
        if By::this_process() != By::Root || self.serves_all {
            return Ok(());
        }
        let native = self.fs.native_filesets();
        let pairs: Vec<OsString> = native
            .into_iter()
            .filter_map(|native| Some([OsString::from(native.name), native.tree?.ok()?.into()]))
            .flatten()
            .collect();
        if pairs.is_empty() {
            return Ok(());
        }
        binds::have("bind", &self.mountpoint, &pairs)
    }

    /// Takes a native fileset that was just removed out of the mount. The kernel does so by itself where it forgets
    /// the name.
    pub(super) fn unbind_native(&self, name: &str) {
        if By::this_process() != By::Root {
            return;
        }
        if let Err(error) = binds::have("unbind", &self.mountpoint, &[name.into()]) {
            tracing::warn!(name, error = %crate::output::chain(&error), "a removed fileset stays mounted");
        }
    }

    /// Where the native filesets are seen.
    pub(super) fn native_status(&self) -> Vec<NativeStatus> {
        let mount = crate::mounts::of_home(&self.home);
        let status = |native: NativeFileset| {
            let (tree, fault) = match native.tree {
                Some(Ok(tree)) => (Some(tree), None),
                Some(Err(why)) => (None, Some(why)),
                None => (None, None),
            };
            let bound = |tree: &PathBuf| {
                let bind = Bind { name: native.name.clone(), tree: tree.clone() };
                mount.as_ref().is_some_and(|mount| binds::is_bound(mount, &bind))
            };
            let is_bound = tree.as_ref().is_some_and(bound);
            NativeStatus { fileset: native.name.clone(), tree, is_bound, fault }
        };
        self.fs.native_filesets().into_iter().map(status).collect()
    }
}
