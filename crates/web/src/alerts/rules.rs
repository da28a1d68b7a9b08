//! When alerts are raised: thresholds of the settings, and what a look at the system means by them.

use anyhow::{Result, ensure};
use forebay_engine::protocol::HostState;
use forebay_grid::journal::HostSwitch;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::Moment;
use serde::Deserialize;

use super::book::is_of;
use crate::history::collect::Look;
use crate::watched::{Disk, Files, Fileset, Waiting};

/// The thresholds, and whom alerts reach.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// How long something has to be wrong before it is an alert.
    pub persist: Period,
    /// Share of a disk that is used, 0 to 1: of its bytes, or of the files that it can hold.
    pub fill: f64,
    /// For how long an error of a disk is an alert.
    pub disk_errors_within: Period,
    /// Files of a fileset that wait for copies.
    pub copies_waiting: u64,
    /// Age of a request that waits for something else than a lock or a recall from an archive.
    pub wait: Period,
    /// 99 of 100 operations of the file system take no longer.
    pub latency: Period,
    /// Age of the oldest change that is not committed.
    pub commit_age: Period,
    /// Share of a host's processors that is used at least while all its slots are.
    pub processors_used_min: f64,
    /// Jobs that fail within `failed_jobs_within`.
    pub failed_jobs: u64,
    /// The time in which they are counted.
    pub failed_jobs_within: Period,
    /// How long before its end a certificate is to be renewed.
    pub certificate: Period,
    /// Where alerts are sent by POST.
    pub webhook: Option<String>,
    /// Addresses to which alerts are mailed.
    pub mail: Vec<String>,
    /// The program that sends mail; it reads a message with its header.
    pub sendmail: String,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            persist: Period(30_000),
            fill: 0.9,
            disk_errors_within: Period(3_600_000),
            copies_waiting: 100_000,
            wait: Period(60_000),
            latency: Period(1_000),
            commit_age: Period(60_000),
            processors_used_min: 0.2,
            failed_jobs: 20,
            failed_jobs_within: Period(600_000),
            certificate: Period(14 * 86_400_000),
            webhook: None,
            mail: Vec::new(),
            sendmail: "/usr/sbin/sendmail".to_owned(),
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What, and of what: `fill/data`.
    pub code: String,
    /// In words.
    pub text: String,
}

fn condition(code: impl Into<String>, text: impl Into<String>) -> Condition {
    Condition { code: code.into(), text: text.into() }
}

/// Codes, or what they begin with, of what is known from the file system alone.
const OF_FILES: [&str; 13] = [
    "commit",
    "commit_age",
    "copies",
    "damaged",
    "disk",
    "disk_errors",
    "fileset",
    "fill",
    "inodes",
    "latency",
    "native",
    "snapshots",
    "wait",
];
/// The file system itself.
const FILE_SYSTEM: &str = "file_system";
/// Likewise, from the controller.
const OF_CONTROLLER: [&str; 5] =
    ["failed_jobs", "host_unreachable", "journal", "service", "starved"];
/// Likewise, from the cluster.
const OF_CLUSTER: [&str; 6] = [
    "certificate/authority",
    "certificate/etcd",
    "certificate/monitor",
    "certificate/node",
    "node",
    "node_away",
];

/// Codes, or what they begin with, of which a look says nothing, as whoever knows did not answer.
#[must_use]
pub fn unknown(look: &Look) -> Vec<&'static str> {
    let mut unknown = Vec::new();
    if look.files_fault.is_some() {
        unknown.extend(OF_FILES);
    }
    if look.unreachable.is_some() {
        unknown.extend(OF_CONTROLLER);
    }
    if look.cluster.as_ref().is_some_and(|cluster| cluster.fault.is_some()) {
        unknown.extend(OF_CLUSTER);
    }
    unknown
}

/// Why an alert is over although nothing was mended: what it is about is no longer there.
#[must_use]
pub fn end_of<'a>(look: &'a Look, code: &str) -> Option<&'a str> {
    let is_of_files = code == FILE_SYSTEM || OF_FILES.iter().any(|name| is_of(code, name));
    look.no_files.as_deref().filter(|_| is_of_files)
}

/// How long before its end the authority's certificate is an alert: it cannot be renewed, only replaced by a new cluster.
const AUTHORITY_MARGIN: Period = Period(60 * 86_400_000);

/// What is wrong with a certificate that is valid until `expires`.
fn expiry(
    (at, expires): (Moment, Moment),
    margin: Period,
    code: String,
    what: &str,
) -> Option<Condition> {
    let left = expires.since(at);
    if left == 0 {
        return Some(condition(code, format!("{what} has expired")));
    }
    let days = left / 86_400_000;
    (left < margin.as_ms()).then(|| condition(code, format!("{what} expires in {days} days")))
}

/// The I/O pressure from which on I/O explains that processors are idle.
const IO_PRESSURE: f64 = 0.05;

/// What the jobs of a host wait for whose processors are idle, as its I/O pressure says; 0 also means that it is not known.
fn waited_for(pressure: f64) -> String {
    if pressure >= IO_PRESSURE {
        format!(
            "its jobs wait, and during {:.0} % of the last minute some process there waited for I/O",
            pressure * 100.0
        )
    } else if pressure > 0.0 {
        "its jobs wait, but hardly for I/O: they sleep, or wait for locks, a network or people"
            .to_owned()
    } else {
        "its jobs wait for something else, such as I/O".to_owned()
    }
}

impl Rules {
    /// Checks the values.
    ///
    /// # Errors
    /// The first one that cannot be.
    pub fn check(&self) -> Result<()> {
        for (name, share) in
            [("fill", self.fill), ("processors_used_min", self.processors_used_min)]
        {
            ensure!((0.0..=1.0).contains(&share), "alerts.{name} = {share}: choose from 0 to 1");
        }
        if let Some(url) = &self.webhook {
            ensure!(
                url.starts_with("https://") || url.starts_with("http://"),
                "alerts.webhook = \"{url}\": give a URL that begins with https:// or http://"
            );
        }
        for address in &self.mail {
            ensure!(
                address.contains('@') && !address.contains(|c: char| c.is_control() || c == ','),
                "alerts.mail: \"{address}\" is not an address"
            );
        }
        Ok(())
    }

    /// All that is wrong.
    #[must_use]
    pub fn judge(&self, look: &Look) -> Vec<Condition> {
        let mut found = Vec::new();
        if let Some(reason) = &look.unreachable {
            found.push(condition("controller", format!("the controller is unreachable: {reason}")));
        }
        if let Some(trouble) = &look.trouble {
            found.push(condition("journal", trouble));
        }
        self.hosts(look, &mut found);
        self.files(look, &mut found);
        for service in &look.lost_services {
            let name = &service.name;
            // The name after that of its user.
            let own = name.rsplit('/').next().unwrap_or(name);
            let text = format!(
                "service {name} failed too often and was stopped: `forebay service logs {own}` shows why; start it again with its original `forebay service start` command, or this alert lasts until `finished_age` is over"
            );
            found.push(condition(format!("service/{name}"), text));
        }
        if look.failed_lately >= self.failed_jobs && self.failed_jobs > 0 {
            found.push(condition(
                "failed_jobs",
                format!("{} jobs failed within {}", look.failed_lately, self.failed_jobs_within),
            ));
        }
        for certificate in &look.certificates {
            let what = format!("the certificate {}", certificate.file);
            let code = "certificate/web".to_owned();
            found.extend(expiry((look.at, certificate.expires), self.certificate, code, &what));
        }
        self.cluster(look, &mut found);
        found
    }

    fn cluster(&self, look: &Look, found: &mut Vec<Condition>) {
        let Some(cluster) = &look.cluster else { return };
        if let Some(fault) = &cluster.fault {
            found.push(condition("cluster", format!("the cluster cannot be asked: {fault}")));
        }
        for node in &cluster.nodes {
            let name = &node.name;
            if let Some(away) = &node.away {
                found.push(condition(format!("node_away/{name}"), format!("node {name} {away}")));
            }
            if !node.problems.is_empty() {
                let text = format!("node {name}: {}", node.problems.join("; "));
                found.push(condition(format!("node/{name}"), text));
            }
            let what = format!("the certificate of node {name}");
            let code = format!("certificate/node/{name}");
            found.extend(expiry(
                (look.at, node.certificate_expires),
                self.certificate,
                code,
                &what,
            ));
        }
        for (name, expires) in &cluster.monitors {
            let code = format!("certificate/monitor/{name}");
            let what = format!("the certificate of monitor {name}");
            found.extend(expiry((look.at, *expires), self.certificate, code, &what));
        }
        for (whose, expires) in &cluster.of_etcd {
            let code = format!("certificate/etcd/{whose}");
            let what = format!("the certificate of etcd's {whose}");
            found.extend(expiry((look.at, *expires), self.certificate, code, &what));
        }
        if let Some(expires) = cluster.authority_expires {
            let code = "certificate/authority".to_owned();
            let what = "the certificate of the cluster's authority";
            found.extend(expiry((look.at, expires), AUTHORITY_MARGIN, code, what));
        }
    }

    fn hosts(&self, look: &Look, found: &mut Vec<Condition>) {
        for host in &look.hosts {
            let name = &host.name;
            let is_wanted = host.switch == HostSwitch::Open;
            let text = match host.state {
                HostState::Up => None,
                HostState::Unreachable => Some(format!("host {name} is unreachable")),
                HostState::Gone if is_wanted => Some(format!(
                    "host {name} is gone: its jobs were given up (forebay host close or remove if it shall not come back)"
                )),
                HostState::Gone => None,
            };
            found.extend(text.map(|text| condition(format!("host_unreachable/{name}"), text)));
            let Some(load) = host.load.filter(|_| host.state == HostState::Up) else { continue };
            let is_full = host.slots > 0 && host.used_slots >= host.slots;
            if is_full && load.ut < self.processors_used_min {
                let text = format!(
                    "all {} slots of host {name} are in use, and its processors are {:.0} % busy: {}",
                    host.slots,
                    load.ut * 100.0,
                    waited_for(load.iop)
                );
                found.push(condition(format!("starved/{name}"), text));
            }
        }
    }

    fn files(&self, look: &Look, found: &mut Vec<Condition>) {
        if let Some(fault) = &look.files_fault {
            found.push(condition(FILE_SYSTEM, format!("the file system: {fault}")));
        }
        for one in &look.disk_errors {
            let last =
                one.last.as_ref().map_or(String::new(), |last| format!(", the latest: {last}"));
            let text = format!(
                "disk {} had {} errors since the mount{last}; look at it with smartctl and dmesg, and replace it if they go on",
                one.disk, one.errors
            );
            found.push(condition(format!("disk_errors/{}", one.disk), text));
        }
        let Some(files) = &look.files else { return };
        files.disks.iter().for_each(|disk| self.disk(disk, found));
        files.filesets.iter().for_each(|fileset| self.fileset(fileset, found));
        found.extend(files.faults.iter().map(|(code, text)| condition(code, text)));
        self.requests(look, files, found);
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn disk(&self, disk: &Disk, found: &mut Vec<Condition>) {
        let name = &disk.name;
        if let Some(fault) = &disk.fault {
            found.push(condition(format!("disk/{name}"), format!("disk {name}: {fault}")));
        }
        let used = |free: u64, total: u64| {
            let used = 1.0 - free as f64 / total.max(1) as f64;
            (total > 0 && used >= self.fill).then_some(used * 100.0)
        };
        if let Some(used) = used(disk.free_bytes, disk.total_bytes) {
            found.push(condition(
                format!("fill/{name}"),
                format!("disk {name} is {used:.0} % full"),
            ));
        }
        if let Some(used) = used(disk.free_inodes, disk.total_inodes) {
            let text =
                format!("disk {name} has {used:.0} % of the files that its file system can hold");
            found.push(condition(format!("inodes/{name}"), text));
        }
    }

    fn fileset(&self, fileset: &Fileset, found: &mut Vec<Condition>) {
        let name = &fileset.name;
        if let Some(fault) = &fileset.fault {
            found.push(condition(format!("fileset/{name}"), format!("fileset {name}: {fault}")));
        }
        if let Some(first) = fileset.damaged.first() {
            let text = format!(
                "fileset {name}: {} files have lost something, such as {first}: forebay status lists them; restore them from a snapshot or backup",
                fileset.damaged.len()
            );
            found.push(condition(format!("damaged/{name}"), text));
        }
        let waiting = fileset.waiting_for_copies;
        let text = match &fileset.copies_fault {
            Some(fault) => format!("fileset {name}: files lack copies: {fault}"),
            None if waiting >= self.copies_waiting && waiting > 0 => {
                format!(
                    "fileset {name}: {waiting} files wait for copies: they are made more slowly than files are written"
                )
            }
            None => return,
        };
        found.push(condition(format!("copies/{name}"), text));
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn requests(&self, look: &Look, files: &Files, found: &mut Vec<Condition>) {
        if let Some(error) = &files.commit_error {
            found.push(condition("commit", format!("the last commit failed: {error}")));
        }
        if files.uncommitted > 0
            && files.commit_age_seconds * 1000.0 > self.commit_age.as_ms() as f64
        {
            let text = format!(
                "{} changes are not committed, for {:.0} s",
                files.uncommitted, files.commit_age_seconds
            );
            found.push(condition("commit_age", text));
        }
        let stuck = |wait: &&Waiting| !wait.may_last() && wait.age_ms >= self.wait.as_ms();
        if let Some(wait) = files.waits.iter().find(stuck) {
            let Waiting { operation, file, made_by, reason, .. } = wait;
            let age = Period(wait.age_ms / 1000 * 1000);
            let what = match wait.is_work {
                true => format!("has been carried out for {age}"),
                false => format!("has waited {age} for {reason}"),
            };
            let text =
                format!("{operation} of {file} by {made_by} {what}: forebay waiters lists all");
            found.push(condition("wait", text));
        }
        if look.rates.latency_p99 * 1000.0 > self.latency.as_ms() as f64 {
            let text = format!(
                "one of 100 operations of the file system takes {:.1} s or longer",
                look.rates.latency_p99
            );
            found.push(condition("latency", text));
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::protocol::{HostView, Runs};
    use forebay_grid::config::Load;

    use super::*;
    use crate::history::collect::{LostService, Rates};
    use crate::history::errors::DiskErrors;
    use crate::http::Certificate;
    use crate::watched::{ClusterHealth, Node};

    fn wait(operation: &str, age_ms: u64, is_lock: bool) -> Waiting {
        Waiting { operation: operation.to_owned(), age_ms, is_lock, ..Waiting::default() }
    }

    fn codes(look: &Look) -> Vec<String> {
        Rules::default().judge(look).into_iter().map(|found| found.code).collect()
    }

    #[test]
    fn disks_that_fail_files_without_copies_and_services_that_gave_up_are_alerts() {
        let fileset = |name: &str, waiting_for_copies, fault: Option<&str>, damaged: &[&str]| {
            let copies_fault = fault.map(str::to_owned);
            let damaged = damaged.iter().map(|&file| file.to_owned()).collect();
            let name = name.to_owned();
            Fileset { name, waiting_for_copies, copies_fault, damaged, ..Fileset::default() }
        };
        let fault = Some("it fails".to_owned());
        let files = Files {
            disks: vec![Disk { name: "d".to_owned(), fault, ..Disk::default() }],
            filesets: vec![
                fileset("few", 99_999, None, &[]),
                fileset("many", 100_000, None, &[]),
                fileset("short", 1, Some("no space"), &["/a: content"]),
            ],
            waits: vec![wait("open", 59_999, false)],
            ..Files::default()
        };
        let look = Look {
            files: Some(files),
            disk_errors: vec![DiskErrors { disk: "d".to_owned(), errors: 3, last: None }],
            lost_services: vec![LostService { name: "ann/db".to_owned(), job: "7".to_owned() }],
            ..Look::default()
        };
        let wanted = [
            "disk_errors/d",
            "disk/d",
            "copies/many",
            "damaged/short",
            "copies/short",
            "service/ann/db",
        ];
        assert_eq!(codes(&look), wanted);
        assert_eq!(unknown(&look), [""; 0]);
        let gone = Look { files_fault: Some("its daemon died".to_owned()), ..Look::default() };
        assert_eq!(codes(&gone), ["file_system"]);
        let of = |code: &str, look: &Look| unknown(look).contains(&code);
        assert!(of("copies", &gone) && !of("service", &gone) && !of("file_system", &gone));
        let alone = Look { unreachable: Some("it starts".to_owned()), ..Look::default() };
        assert!(of("service", &alone) && !of("copies", &alone) && !of("controller", &alone));
    }

    #[test]
    fn alerts_of_files_end_with_an_unmount_in_order_and_say_so() {
        let look = Look { no_files: Some("/srv/fs was unmounted".to_owned()), ..Look::default() };
        assert_eq!((codes(&look), unknown(&look)), (Vec::new(), Vec::new()), "they are over");
        for code in ["file_system", "fill//srv/fs/disk", "snapshots", "native/work", "wait"] {
            assert_eq!(end_of(&look, code), Some("/srv/fs was unmounted"), "{code}");
        }
        assert_eq!(end_of(&look, "service/ann/db"), None);
        assert_eq!(end_of(&Look::default(), "fill/d"), None);
    }

    #[test]
    fn a_stuck_request_is_an_alert_that_says_what_it_waits_for_and_a_recall_is_not() {
        let text = |wait: Waiting| {
            let files = Files { waits: vec![wait], ..Files::default() };
            let found = Rules::default().judge(&Look { files: Some(files), ..Look::default() });
            found.into_iter().next().map(|found| found.text)
        };
        let open = Waiting {
            file: "/a".to_owned(),
            made_by: "sh (7)".to_owned(),
            reason: "space on a disk".to_owned(),
            ..wait("open", 120_000, false)
        };
        let waits =
            "open of /a by sh (7) has waited 2m for space on a disk: forebay waiters lists all";
        let works = "open of /a by sh (7) has been carried out for 2m: forebay waiters lists all";
        let period = |wanted: &str| wanted.replace("2m", &Period(120_000).to_string());
        assert_eq!(text(open.clone()), Some(period(waits)));
        assert_eq!(text(Waiting { is_work: true, ..open.clone() }), Some(period(works)));
        assert_eq!(text(Waiting { is_archive: true, ..open }), None);
    }

    #[test]
    fn each_threshold_raises_its_alert() {
        let rules = Rules::default();
        let files = Files {
            uncommitted: 5,
            commit_age_seconds: 61.0,
            commit_error: Some("no space".to_owned()),
            disks: vec![Disk {
                name: "nvme0".to_owned(),
                total_bytes: 100,
                free_bytes: 9,
                total_inodes: 100,
                free_inodes: 10,
                ..Disk::default()
            }],
            filesets: vec![Fileset {
                name: "x".to_owned(),
                fault: Some("lost".to_owned()),
                ..Fileset::default()
            }],
            faults: vec![("native/work".to_owned(), "its disk is not mounted".to_owned())],
            waits: vec![wait("setlkw", 900_000, true), wait("open", 60_000, false)],
            ..Files::default()
        };
        let look = Look {
            at: Moment(1_000_000),
            files: Some(files),
            trouble: Some("the journal has no space".to_owned()),
            unreachable: Some("gone".to_owned()),
            failed_lately: 20,
            rates: Rates { latency_p99: 1.5, ..Rates::default() },
            certificates: vec![Certificate { file: "c".to_owned(), expires: Moment(86_400_000) }],
            ..Look::default()
        };
        let codes: Vec<String> = rules.judge(&look).into_iter().map(|found| found.code).collect();
        let wanted = [
            "controller",
            "journal",
            "fill/nvme0",
            "inodes/nvme0",
            "fileset/x",
            "native/work",
            "commit",
            "commit_age",
            "wait",
            "latency",
            "failed_jobs",
            "certificate/web",
        ];
        assert_eq!(codes, wanted);
        assert_eq!(rules.judge(&Look::default()), []);
    }

    #[test]
    fn nodes_that_are_away_and_certificates_of_all_nodes_raise_alerts_of_their_own() {
        const DAY: u64 = 86_400_000;
        let node = |name: &str, away: Option<&str>, days: u64| Node {
            name: name.to_owned(),
            away: away.map(str::to_owned),
            problems: Vec::new(),
            certificate_expires: Moment(days * DAY),
        };
        let cluster = ClusterHealth {
            fault: None,
            nodes: vec![
                node("n0", None, 190),
                node("n1", Some("does not run"), 99),
                node("n2", None, 110),
            ],
            authority_expires: Some(Moment(159 * DAY)),
            monitors: [("old", 100), ("soon", 113), ("fine", 115)]
                .map(|(name, days)| (name.to_owned(), Moment(days * DAY)))
                .to_vec(),
            of_etcd: vec![("clients", Moment(105 * DAY)), ("authority", Moment(200 * DAY))],
        };
        let look =
            Look { at: Moment(100 * DAY), cluster: Some(cluster.clone()), ..Look::default() };
        let found = Rules::default().judge(&look);
        let texts: Vec<(&str, &str)> =
            found.iter().map(|one| (one.code.as_str(), one.text.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("node_away/n1", "node n1 does not run"),
                ("certificate/node/n1", "the certificate of node n1 has expired"),
                ("certificate/node/n2", "the certificate of node n2 expires in 10 days"),
                ("certificate/monitor/old", "the certificate of monitor old has expired"),
                ("certificate/monitor/soon", "the certificate of monitor soon expires in 13 days"),
                ("certificate/etcd/clients", "the certificate of etcd's clients expires in 5 days"),
                (
                    "certificate/authority",
                    "the certificate of the cluster's authority expires in 59 days"
                ),
            ]
        );
        let silent =
            ClusterHealth { fault: Some("no etcd".to_owned()), ..ClusterHealth::default() };
        let found = Rules::default().judge(&Look { cluster: Some(silent), ..look });
        assert_eq!(found.iter().map(|one| &*one.code).collect::<Vec<_>>(), ["cluster"]);
    }

    fn host(name: &str, state: HostState, switch: HostSwitch) -> HostView {
        HostView {
            name: name.parse().unwrap(),
            state,
            switch,
            slots: 1,
            used_slots: 0,
            memory_bytes: None,
            used_memory_bytes: 0,
            load: None,
            tasks: Vec::new(),
            containment: None,
            missing_limits: Default::default(),
            features: Vec::new(),
            runs: Runs::default(),
        }
    }

    #[test]
    fn a_full_host_with_idle_processors_starves_and_the_alert_says_whether_for_io() {
        let text = |used_slots, ut, iop| {
            let load = Load { ut, iop, ..Load::default() };
            let host = host("h", HostState::Up, HostSwitch::Open);
            let host = HostView { used_slots, load: Some(load), ..host };
            let found = Rules::default().judge(&Look { hosts: vec![host], ..Look::default() });
            found.into_iter().map(|found| (found.code, found.text)).next()
        };
        assert_eq!((text(0, 0.1, 0.9), text(1, 0.2, 0.9)), (None, None));
        for (iop, wanted) in [(0.9, "90 % of the last minute"), (0.01, "they sleep"), (0.0, "else")]
        {
            let (code, text) = text(1, 0.1, iop).unwrap();
            assert!(code == "starved/h" && text.contains("10 % busy"), "{text}");
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn a_host_that_was_given_up_stays_an_alert_unless_it_is_closed() {
        let look = Look {
            hosts: vec![
                host("up", HostState::Up, HostSwitch::Open),
                host("gone", HostState::Gone, HostSwitch::Open),
                host("closed", HostState::Gone, HostSwitch::Closed),
                host("cut", HostState::Unreachable, HostSwitch::Closed),
            ],
            ..Look::default()
        };
        let codes: Vec<String> =
            Rules::default().judge(&look).into_iter().map(|found| found.code).collect();
        assert_eq!(codes, ["host_unreachable/gone", "host_unreachable/cut"]);
    }
}
