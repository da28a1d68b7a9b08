//! CephFS: one monitor, one manager, one object store (BlueStore on a file of the disk), one metadata
//! server, one copy of each object, no authentication (which favours it), mounted by ceph-fuse.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::super::cell::ADDRESS;
use super::{Ready, Site, text};

/// Size of the object store's file, sparse.
const STORE_BYTES: u64 = 10 << 30;

/// Sets a cluster up, starts its daemons and mounts it.
pub(super) fn bring_up(site: &Site<'_>) -> Result<Ready> {
    let unique = || -> Result<String> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("a UUID")?;
        Ok(text.trim().to_owned())
    };
    let (cluster, store, mount) = (unique()?, unique()?, site.directory("mount")?);
    let settings = settings(site, &cluster)?;
    let settings = site.write("ceph.conf", &settings)?;
    let (keyring, map) = (site.folder.join("keyring"), site.folder.join("monmap"));
    let (keyring, map) = (text(&keyring)?, text(&map)?);
    // Every program is told the settings in the same way.
    let with = ["--conf", text(&settings)?];
    let run = |program: &str, rest: &[&str]| site.run(program, &[&with, rest].concat());
    let start = |program: &str, rest: &[&str]| site.start(program, &[&with, rest].concat());
    let new_key =
        ["--create-keyring", keyring, "--gen-key", "--name", "mon.", "--cap", "mon", "allow *"];
    site.run("ceph-authtool", &new_key)?;
    let admin = [keyring, "--gen-key", "--name", "client.admin"];
    let may = ["mon", "osd", "mds", "mgr"].map(|what| ["--cap", what, "allow *"]).concat();
    site.run("ceph-authtool", &[&admin[..], &may].concat())?;
    let place = format!("{}:6789", address(site));
    let monitor = ["--create", "--add", "a", &place, "--fsid", &cluster, map];
    site.run("monmaptool", &monitor)?;
    run("ceph-mon", &["--mkfs", "-i", "a", "--monmap", map, "--keyring", keyring])?;
    start("ceph-mon", &["-f", "-i", "a"])?;
    let connect = ["--connect-timeout", "5"];
    let ceph = |rest: &[&str]| run("ceph", &[&connect, rest].concat());
    site.until_ready("ceph-mon", || ceph(&["osd", "new", &store]))?;
    start("ceph-mgr", &["-f", "-i", "a"])?;
    run("ceph-osd", &["--mkfs", "-i", "0", "--osd-uuid", &store])?;
    start("ceph-osd", &["-f", "-i", "0"])?;
    start("ceph-mds", &["-f", "-i", "a"])?;
    for pool in ["metadata", "data"] {
        ceph(&["osd", "pool", "create", pool, "16"])?;
    }
    ceph(&["fs", "new", "peer", "metadata", "data"])?;
    let client = ["--client_mountpoint=/", "--id", "admin", text(&mount)?];
    let mounted = [&with[..], &client].concat();
    site.until_ready("ceph-mds", || site.run_on_client("ceph-fuse", &mounted))?;
    Ok(Ready::at(&mount, site.version("ceph-fuse", "--version")?))
}

/// Where its daemons listen.
fn address(site: &Site<'_>) -> &'static str {
    if site.has_client() { ADDRESS } else { "127.0.0.1" }
}

/// The settings of all daemons and clients.
fn settings(site: &Site<'_>, cluster: &str) -> Result<String> {
    let sockets = site.directory("run")?;
    let logs = site.directory("log")?;
    let mut places = String::new();
    for daemon in ["mon", "mgr", "osd", "mds"] {
        places += &format!("{daemon}_data = {}\n", site.data(daemon)?.display());
    }
    let show = |path: &Path| path.display().to_string();
    Ok(format!(
        "[global]\n\
         fsid = {cluster}\n\
         mon_host = {address}:6789\n\
         {public}\
         mon_initial_members = a\n\
         auth_cluster_required = none\n\
         auth_service_required = none\n\
         auth_client_required = none\n\
         mon_allow_pool_size_one = true\n\
         mon_warn_on_pool_no_redundancy = false\n\
         osd_pool_default_size = 1\n\
         osd_pool_default_min_size = 1\n\
         osd_pool_default_pg_autoscale_mode = off\n\
         osd_pool_default_pg_num = 16\n\
         osd_crush_chooseleaf_type = 0\n\
         osd_objectstore = bluestore\n\
         bluestore_block_create = true\n\
         bluestore_block_size = {STORE_BYTES}\n\
         keyring = {keyring}\n\
         run_dir = {sockets}\n\
         crash_dir = {sockets}\n\
         admin_socket = {sockets}/$name.$pid.asok\n\
         log_file = {logs}/$name.log\n\
         pid_file =\n\
         {places}",
        address = address(site),
        // Without it daemons choose an address of their own.
        public =
            if site.has_client() { format!("public_addr = {ADDRESS}\n") } else { String::new() },
        keyring = show(&site.folder.join("keyring")),
        sockets = show(&sockets),
        logs = show(&logs),
    ))
}
