use super::*;
use crate::hosts::message::{Line, Second, lines_path};
use crate::record::Machine;
use forebay_base::time::SystemClock;
use std::collections::BTreeMap;
use std::io::Write as _;

fn job(last: Option<Row>) -> HostJob {
    HostJob {
        record: "a.steps".to_owned(),
        host: "n1".to_owned(),
        start_seconds: 1.0,
        end_seconds: 4.0,
        last,
    }
}

#[test]
fn the_parts_of_a_job_add_up_to_what_it_had_done_at_its_end() {
    let looks = [(102.0, [10, 0, 0, 0]), (103.0, [8, 5, 0, 0]), (103.5, [90, 5, 0, 0])];
    let all = parts(&job(Some([40, 7, 0, 0])), &looks, 100.0);
    let sum = |place: usize| all.iter().map(|seen| seen.row[place]).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (40, 7));
    assert_eq!((all[0].from, all[0].to), (1.0, 2.0));
    assert_eq!(all.last().map(|seen| seen.to), Some(4.0));
    // Where the end is not known, the looks stand; what comes after the end belongs to its last moment.
    let late = parts(&job(None), &[(109.0, [10, 0, 0, 0])], 100.0);
    assert_eq!(late, [Seen { from: 1.0, to: 4.0, row: [10, 0, 0, 0] }]);
    assert!(parts(&job(None), &[], 100.0).is_empty());
}

/// The file of a watcher, as it would write it.
struct Watcher(fs::File);

impl Watcher {
    fn make(folder: &Path, name: &str, boot: &str, missing: Vec<PathBuf>) -> Watcher {
        let mut watcher = Watcher(fs::File::create(lines_path(folder, name)).unwrap());
        let machine = Machine { cpus: 2, cores: 2, ..Machine::default() };
        let host =
            Host { name: name.to_owned(), machine, boot: boot.to_owned(), ..Host::default() };
        let device_scope = DeviceScope::Devices(vec!["sda".to_owned()]);
        let introduction = Introduction { host, network: 1, device_scope, missing };
        watcher.write(&Line::Host(Box::new(introduction)));
        watcher
    }

    fn write(&mut self, line: &Line) {
        writeln!(self.0, "{}", serde_json::to_string(line).unwrap()).unwrap();
    }

    fn second(&mut self, at: f64, user: f64, jobs: &[(&str, u64)]) {
        let sample = Sample {
            at_seconds: at,
            seconds: 1.0,
            cpu_user: user,
            network_received_bytes: Some(100),
            ..Sample::default()
        };
        let rows = jobs.iter().map(|(job, read)| ((*job).to_owned(), [*read, 0, 0, 0]));
        let jobs: BTreeMap<String, Row> = rows.collect();
        self.write(&Line::Second(Box::new(Second { sample, jobs })));
    }
}

fn hosts(folder: &Path) -> Hosts {
    let names = ["n1".to_owned(), "n2".to_owned()];
    Hosts::make(folder, &names, Arc::new(SystemClock)).unwrap()
}

#[test]
fn a_run_on_two_hosts_is_the_sum_of_both_and_each_keeps_its_own() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("hosts");
    let mut hosts = hosts(&folder);
    assert_eq!(hosts.silent().unwrap(), ["n1", "n2"]);
    let mut one = Watcher::make(&folder, "n1", "boot-1", Vec::new());
    let mut two = Watcher::make(&folder, "n2", "boot-2", Vec::new());
    for watcher in [&mut one, &mut two] {
        watcher.write(&Line::Settled { settle: 1, fault: None });
    }
    hosts.settle(false, &|| false).unwrap();
    assert!(hosts.silent().unwrap().is_empty());
    assert_eq!(hosts.known().unwrap().len(), 2);
    one.second(1001.0, 1.0, &[("a.steps", 600)]);
    one.second(1002.0, 1.0, &[]);
    two.second(1001.0, 0.0, &[("a.steps", 600), ("b.steps", 5)]);
    two.second(1002.0, 0.0, &[]);
    hosts.read().unwrap();
    let live = hosts.latest().unwrap();
    assert!((live.cpu_user - 0.5).abs() < 1e-9, "{live:?}");
    let jobs = [
        HostJob { start_seconds: 0.0, end_seconds: 2.0, ..job(Some([1000, 0, 0, 0])) },
        HostJob {
            record: "b.steps".to_owned(),
            host: "n2".to_owned(),
            start_seconds: 0.0,
            end_seconds: 0.9,
            last: Some([5, 0, 0, 0]),
        },
    ];
    let watched = hosts.watched(1000.0, 2.0, &[], 1.0, &jobs).unwrap();
    let read = |samples: &[Sample]| -> Vec<u64> {
        samples.iter().map(|sample| sample.file_read_bytes).collect()
    };
    // A process that two hosts of one machine see is the job of the host that the grid gave it to.
    assert_eq!(read(&watched.hosts[0].samples), [600, 400]);
    assert_eq!(read(&watched.hosts[1].samples), [5, 0]);
    assert_eq!(read(&watched.samples), [605, 400]);
    assert_eq!(watched.samples[0].network_received_bytes, Some(200));
    assert!((watched.samples[0].cpu_user - 0.5).abs() < 1e-9);
    assert_eq!(watched.hosts[1].samples[0].jobs_running, 1);
    assert_eq!(watched.hosts[1].samples[1].jobs_running, 0);
    assert!((watched.hosts[0].watched_seconds - 2.0).abs() < 1e-9);
    let devices = vec!["n1:sda".to_owned(), "n2:sda".to_owned()];
    assert_eq!(watched.device_scope, DeviceScope::Devices(devices));
    one.write(&Line::End);
    two.write(&Line::End);
    hosts.end();
    assert!(!folder.exists());
}

#[test]
fn a_watcher_that_does_not_run_any_more_ends_the_study_with_the_reason() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("hosts");
    let mut hosts = hosts(&folder);
    let fate = |name: &str| (name == "n2").then(|| "its watcher was lost".to_owned());
    hosts.ask_for_fates(Box::new(fate));
    let said = hosts.silent().unwrap_err().to_string();
    assert!(said.contains("host n2: its watcher was lost"), "{said}");
    // One that has answered is not asked for.
    let mut one = Watcher::make(&folder, "n1", "boot-1", Vec::new());
    let mut two = Watcher::make(&folder, "n2", "boot-2", Vec::new());
    two.write(&Line::Settled { settle: 1, fault: None });
    one.write(&Line::Settled { settle: 1, fault: None });
    hosts.settle(false, &|| false).unwrap();
    one.write(&Line::Settled { settle: 2, fault: None });
    let said = hosts.settle(false, &|| false).unwrap_err().to_string();
    assert!(said.contains("host n2: its watcher was lost"), "{said}");
}

#[test]
fn a_host_that_does_not_see_the_storage_or_cannot_settle_ends_the_study_with_its_name() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("hosts");
    let mut hosts = hosts(&folder);
    let mut one = Watcher::make(&folder, "n1", "boot-1", Vec::new());
    let missing = vec![PathBuf::from("/mnt/data/.seen")];
    let mut two = Watcher::make(&folder, "n2", "boot-2", missing);
    hosts.read().unwrap();
    let said = hosts.known().unwrap_err().to_string();
    assert!(said.contains("host n2") && said.contains("/mnt/data"), "{said}");
    one.write(&Line::Settled { settle: 1, fault: Some("takes root".to_owned()) });
    two.write(&Line::Settled { settle: 1, fault: None });
    let said = hosts.settle(true, &|| false).unwrap_err().to_string();
    assert!(said.contains("host n1") && said.contains("takes root"), "{said}");
    assert!(Orders::read(&folder).unwrap().drop_caches);
    drop(hosts);
    assert!(Orders::read(&folder).unwrap().end, "a study that fails lets its watchers go");
}
