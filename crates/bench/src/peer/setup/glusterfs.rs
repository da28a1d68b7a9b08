//! GlusterFS: one volume of one brick on the address of the cell (it refuses loopback addresses), with
//! default settings, mounted through its FUSE client.

use std::path::Path;

use anyhow::Result;

use super::super::cell::ADDRESS;
use super::{Ready, Site, text};

/// Starts the daemons and mounts it.
pub(super) fn bring_up(site: &Site<'_>) -> Result<Ready> {
    let (brick, mount) = (site.data("brick")?, site.directory("mount")?);
    // Places that cannot be set, or not for all of its programs.
    for (name, place) in
        [("state", "/var/lib/glusterd"), ("log", "/var/log/glusterfs"), ("run", "/run")]
    {
        site.cell.mount(&["--bind"], &site.directory(name)?, Path::new(place))?;
        if site.has_client() {
            let own = site.directory(&format!("{name}-client"))?;
            site.client.mount(&["--bind"], &own, Path::new(place))?;
        }
    }
    site.start("glusterd", &["--no-daemon"])?;
    site.until_ready("glusterd", || site.gluster(&["volume", "info"]))?;
    let place = format!("{ADDRESS}:{}", text(&brick)?);
    site.gluster(&["volume", "create", "peer", &place, "force"])?;
    site.gluster(&["volume", "start", "peer"])?;
    let mounted = ["-t", "glusterfs", &format!("{ADDRESS}:/peer"), text(&mount)?];
    site.until_ready("the volume", || site.run_on_client("mount", &mounted))?;
    Ok(Ready::at(&mount, site.version("glusterd", "--version")?))
}

impl Site<'_> {
    fn gluster(&self, arguments: &[&str]) -> Result<String> {
        self.run("gluster", &[&["--mode=script"], arguments].concat())
    }
}
