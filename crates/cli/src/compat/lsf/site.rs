//! What tools ask of a site: badmin showconf, lsclusters, lsid, and the files that they read.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

/// Name of the cluster.
const CLUSTER: &str = "forebay";

/// The folder of settings in a directory of links.
const FOLDER: &str = ".lsf";

/// Writes the files that tools read in a directory of links: a sound lsb.params, which the Snakemake plugin opens.
///
/// # Errors
/// If they cannot be written.
pub fn write_settings(directory: &Path) -> Result<()> {
    let folder = directory.join(FOLDER).join("lsbatch").join(CLUSTER).join("configdir");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let text = "# Read by tools for LSF. The settings of the grid are in its grid.toml.\nBegin Parameters\nEnd Parameters\n";
    let file = folder.join("lsb.params");
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

/// The directory of links through which this program was called.
fn directory() -> Result<PathBuf> {
    let called = PathBuf::from(std::env::args_os().next().unwrap_or_default());
    if let Some(folder) = called.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        return std::path::absolute(folder).context("the directory of this program");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).find(|folder| folder.join(&called).is_file());
    found.with_context(|| format!("{} is not in PATH", called.display()))
}

/// Runs badmin: `showconf mbd` only.
pub fn badmin(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if !matches!(words[..], ["showconf", ..]) {
        bail!("only badmin showconf is supported; see forebay queue, host and reload");
    }
    let folder = directory()?.join(FOLDER);
    outln!("MBD configuration of a Forebay grid:");
    outln!("\tLSB_SHAREDIR = {}", folder.join("work").display());
    outln!("\tLSF_CONFDIR = {}", folder.display());
    if let Some(unit) = super::units::unit_for_limits() {
        outln!("\tLSF_UNIT_FOR_LIMITS = {unit}B");
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs lsclusters.
pub fn lsclusters(_arguments: &[String]) -> Result<ExitCode> {
    outln!("CLUSTER_NAME   STATUS   MASTER_HOST   ADMIN   HOSTS  SERVERS");
    let host = super::host_name();
    outln!("{CLUSTER:<14} ok       {host:<13} root        1        1");
    Ok(ExitCode::SUCCESS)
}

/// Runs lsid.
pub fn lsid(_arguments: &[String]) -> Result<ExitCode> {
    outln!("{}\n", super::VERSION);
    outln!("My cluster name is {CLUSTER}\nMy master name is {}", super::host_name());
    Ok(ExitCode::SUCCESS)
}
