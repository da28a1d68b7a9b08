//! Storage in several ways: which devices, how many, what bounds their number, what they cost.

use serde::Serialize;

use super::{Device, HEADROOM, Plan, shown};

/// One way to build the storage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layout {
    /// Its name.
    pub name: &'static str,
    /// Its devices.
    pub parts: Vec<Part>,
    /// What devices, nodes and network cost together; none without prices.
    pub cost: Option<f64>,
    /// What to know of it.
    pub note: String,
}

/// Devices of one kind for one purpose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// For what.
    pub purpose: &'static str,
    /// `flash` or `disk`.
    pub device: &'static str,
    /// How many.
    pub number: f64,
    /// What decides how many: `capacity` or `rate`.
    pub bound: &'static str,
    /// TB that must be stored.
    pub tb: f64,
    /// MB/s that must be possible.
    pub mb_s: f64,
}

/// The ways that the published studies compare.
pub fn all(plan: &Plan) -> Vec<Layout> {
    vec![all_flash(plan), scratch_on_flash(plan), names_on_flash(plan)]
}

fn part(purpose: &'static str, name: &'static str, device: &Device, tb: f64, mb_s: f64) -> Part {
    let (by_space, by_rate) = ((tb / device.tb).ceil(), (mb_s / device.mb_s).ceil());
    let (number, bound) =
        if by_rate > by_space { (by_rate, "rate") } else { (by_space, "capacity") };
    Part { purpose, device: name, number, bound, tb, mb_s }
}

fn all_flash(plan: &Plan) -> Layout {
    let (tb, mb_s) = (plan.value("data_tb") + plan.value("scratch_tb"), plan.value("storage_mb_s"));
    let part = part("data and scratch", "flash", &plan.site.flash, tb, mb_s);
    let note = "everything crosses the network; the simplest to run".to_owned();
    layout(plan, "all flash, shared", vec![part], plan.value("network_shared_gbit"), note)
}

fn scratch_on_flash(plan: &Plan) -> Layout {
    let site = &plan.site;
    let (need, share) = (plan.value("mb_s") * HEADROOM, site.scratch_share);
    let nodes = plan.value("nodes");
    let one = part(
        "scratch",
        "flash",
        &site.flash,
        plan.value("scratch_tb") / nodes,
        need * share / nodes,
    );
    // Each node has its own, at least one.
    let each = one.number.max(1.0);
    let scratch =
        Part { number: each * nodes, tb: plan.value("scratch_tb"), mb_s: need * share, ..one };
    let data = part("data", "disk", &site.disk, plan.value("data_tb"), need * (1.0 - share));
    let note = if each > site.node.flash_slots {
        format!(
            "does not fit: needs {} flash devices in each node, which has room for {}",
            shown(each),
            shown(site.node.flash_slots)
        )
    } else {
        format!(
            "native scratch at the disk's own speed; flash devices in each node: {}",
            shown(each)
        )
    };
    layout(
        plan,
        "data on disk, scratch on local flash",
        vec![scratch, data],
        plan.value("network_gbit"),
        note,
    )
}

fn names_on_flash(plan: &Plan) -> Layout {
    let site = &plan.site;
    let tb = plan.value("data_tb") + plan.value("scratch_tb");
    let disks = part("data and scratch", "disk", &site.disk, tb, plan.value("storage_mb_s"));
    // A device for each of the three members of etcd.
    let names = Part {
        number: 3.0,
        ..part("names (etcd)", "flash", &site.flash, plan.value("etcd_mb") / 1e6, 0.0)
    };
    let note = "cheap space; short-lived temporary files never reach the disks".to_owned();
    layout(
        plan,
        "names on flash, the rest on disk",
        vec![names, disks],
        plan.value("network_shared_gbit"),
        note,
    )
}

fn layout(plan: &Plan, name: &'static str, parts: Vec<Part>, gbit: f64, note: String) -> Layout {
    let cost = plan.site.prices.as_ref().map(|prices| {
        let nodes = plan.value("nodes") * (prices.node + gbit.ceil() * prices.network_gbit);
        let price = |part: &Part| if part.device == "flash" { prices.flash } else { prices.disk };
        nodes + parts.iter().map(|part| part.number * price(part)).sum::<f64>()
    });
    Layout { name, parts, cost, note }
}
