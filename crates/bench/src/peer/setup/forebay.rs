//! Forebay itself: a home on the disk, with default settings, on the direct path. Loads run in the
//! fileset `work`, which forgives a crash; what is to be durable is in `data`, which does not.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Ready, Site, text};
use crate::external::run;

/// Whether the command can be told which way requests come from the kernel.
///
/// # Errors
/// If the command cannot be run.
pub fn transports(program: &Path) -> Result<bool> {
    Ok(run(program, ["mount", "--help"])?.contains("--transport"))
}

/// Makes a file system and mounts it, with requests coming by `transport`.
pub(super) fn bring_up(site: &Site<'_>, transport: Option<&str>) -> Result<Ready> {
    let (root, mount) = (site.disk.join("home"), site.directory("mount")?);
    let cell = site.cell;
    cell.run(site.forebay, ["mkfs", text(&root)?])?;
    let mut arguments = vec!["mount", text(&root)?, text(&mount)?];
    if let Some(transport) = transport {
        if !transports(site.forebay)? {
            bail!(
                "this forebay has no transport {transport}: `forebay mount` offers no --transport"
            );
        }
        arguments.extend(["--transport", transport]);
    }
    cell.run(site.forebay, arguments)?;
    let status = cell.run(site.forebay, ["status", text(&root)?, "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    if status["mount"]["passthrough"] != true {
        bail!("the direct path is closed: {}", status["mount"]["passthrough_closed"]);
    }
    let mut version = run(site.forebay, ["--version"])?.trim().to_owned();
    // A forebay without transports does not tell one.
    if let Some(used) = status["mount"]["transport"].as_str() {
        if transport.is_some_and(|wanted| wanted != used) {
            bail!("requests come by {used}: {}", status["mount"]["transport_why"]);
        }
        version += &format!(", requests by {used}");
    }
    Ok(Ready { work: mount.join("work"), durable: mount.join("data"), version })
}
