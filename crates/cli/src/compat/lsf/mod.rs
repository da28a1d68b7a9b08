//! The commands of LSF on a Forebay grid.
//!
//! `bsub.rs` makes a job of the grid, `state.rs` says what tasks, hosts and queues are called in LSF's words and which jobs
//! a command is about; what changes jobs is in `control.rs`, what tools ask of the site in `site.rs`.

mod bacct;
mod bhist;
mod bjobs;
pub mod bsub;
mod bugroup;
mod bwait;
mod control;
mod format;
mod group;
mod lists;
mod load;
mod login;
mod modify;
mod params;
mod requirement;
mod reservation;
pub mod site;
mod state;
mod sums;
mod units;
mod users;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::vocabulary::Moment;

use super::{Call, Name};

/// What `-V` prints.
pub const VERSION: &str = "Forebay, with commands in the style of LSF 10.1";

/// What stands for a value that there is none of.
const NOTHING: &str = "-";

/// The commands.
pub const NAMES: &[Name] = &[
    Name { name: "bsub", call: bsub::run as Call, fault: 255 },
    Name { name: "bjobs", call: bjobs::run, fault: 255 },
    Name { name: "bhist", call: bhist::run, fault: 255 },
    Name { name: "bkill", call: control::bkill, fault: 255 },
    Name { name: "bstop", call: control::bstop, fault: 255 },
    Name { name: "bresume", call: control::bresume, fault: 255 },
    Name { name: "brequeue", call: control::brequeue, fault: 255 },
    Name { name: "bmod", call: modify::bmod, fault: 255 },
    Name { name: "bswitch", call: modify::bswitch, fault: 255 },
    Name { name: "btop", call: modify::btop, fault: 255 },
    Name { name: "bbot", call: modify::bbot, fault: 255 },
    Name { name: "bwait", call: bwait::run, fault: 255 },
    Name { name: "bacct", call: bacct::run, fault: 255 },
    Name { name: "brsvadd", call: reservation::brsvadd, fault: 255 },
    Name { name: "brsvdel", call: reservation::brsvdel, fault: 255 },
    Name { name: "brsvs", call: reservation::brsvs, fault: 255 },
    Name { name: "bgadd", call: group::bgadd, fault: 255 },
    Name { name: "bgmod", call: group::bgmod, fault: 255 },
    Name { name: "bgdel", call: group::bgdel, fault: 255 },
    Name { name: "bjgroup", call: group::bjgroup, fault: 255 },
    Name { name: "bparams", call: params::bparams, fault: 255 },
    Name { name: "busers", call: users::busers, fault: 255 },
    Name { name: "bugroup", call: bugroup::bugroup, fault: 255 },
    Name { name: "blimits", call: users::blimits, fault: 255 },
    Name { name: "bpeek", call: lists::bpeek, fault: 255 },
    Name { name: "bqueues", call: lists::bqueues, fault: 255 },
    Name { name: "bhosts", call: lists::bhosts, fault: 255 },
    Name { name: "lsload", call: load::lsload, fault: 255 },
    Name { name: "lshosts", call: load::lshosts, fault: 255 },
    Name { name: "badmin", call: site::badmin, fault: 255 },
    Name { name: "lsclusters", call: site::lsclusters, fault: 255 },
    Name { name: "lsid", call: site::lsid, fault: 255 },
];

/// The time.
fn now() -> Moment {
    Moment::from(SystemClock.now())
}

/// A moment as bjobs shows it: `Nov 23 17:31`.
fn day(at: Moment) -> String {
    let time = i64::try_from(at.0 / 1000).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    let Some(time) = time else { return NOTHING.to_owned() };
    time.to_zoned(jiff::tz::TimeZone::system()).strftime("%b %e %H:%M").to_string()
}

/// The name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The queue of jobs that name none.
fn default_queue(client: &mut Client) -> Result<String> {
    let Answer::Queues { queues, .. } = client.ask(&Ask::Queues)? else {
        bail!("the controller is a different version");
    };
    let found = queues.into_iter().find(|queue| queue.is_default);
    Ok(found.context("the grid has no default queue")?.name.to_string())
}
