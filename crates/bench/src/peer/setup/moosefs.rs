//! MooseFS: a master, a chunk server and a client on the address of the cell (it refuses 127.0.0.1),
//! with one copy of each chunk. The chunk server does not sync what clients sync (its default).

use anyhow::Result;

use super::super::cell::ADDRESS;
use super::{Ready, Site, text};

/// What the Debian package ships as the metadata of an empty file system.
const EMPTY_METADATA: &str = "/var/lib/mfs/metadata.mfs.empty";

/// Starts the daemons and mounts it.
pub(super) fn bring_up(site: &Site<'_>) -> Result<Ready> {
    let (master, chunks) = (site.data("master")?, site.data("chunks")?);
    let (server, mount) = (site.data("server")?, site.directory("mount")?);
    let metadata = master.join("metadata.mfs");
    site.run("cp", &[EMPTY_METADATA, text(&metadata)?])?;
    let exports = site.write("exports.cfg", "* / rw,alldirs,admin,maproot=0:0\n")?;
    let user = "WORKING_USER = root\nWORKING_GROUP = root\n";
    let master_settings = site.write(
        "master.cfg",
        &format!(
            "{user}DATA_PATH = {}\nEXPORTS_FILENAME = {}\n",
            master.display(),
            exports.display()
        ),
    )?;
    let disks = site.write("disks.cfg", &format!("{}\n", chunks.display()))?;
    let server_settings = site.write(
        "server.cfg",
        &format!(
            "{user}DATA_PATH = {}\nHDD_CONF_FILENAME = {}\nMASTER_HOST = {ADDRESS}\n\
             BIND_HOST = {ADDRESS}\nCSSERV_LISTEN_HOST = {ADDRESS}\nCSSERV_LISTEN_PORT = 9422\n",
            server.display(),
            disks.display()
        ),
    )?;
    site.start("mfsmaster", &["-c", text(&master_settings)?, "-f", "start"])?;
    site.until_ready("mfsmaster", || site.run("mfscli", &["-H", ADDRESS, "-SIN"]))?;
    site.start("mfschunkserver", &["-c", text(&server_settings)?, "-f", "start"])?;
    site.until_ready("mfsmount", || {
        site.run_on_client("mfsmount", &["-H", ADDRESS, text(&mount)?])
    })?;
    site.run_on_client("mfssetgoal", &["-r", "1", text(&mount)?])?;
    // A file can be written as soon as the chunk server has told the master what it has.
    let probe = mount.join("probe");
    let write = format!("echo probe >{0} && sync {0} && rm {0}", text(&probe)?);
    site.until_ready("mfschunkserver", || site.run_on_client("sh", &["-c", &write]))?;
    Ok(Ready::at(&mount, site.version("mfsmaster", "-v")?))
}
