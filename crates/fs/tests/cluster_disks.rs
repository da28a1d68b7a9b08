//! Disks of a cluster: they come, change and go while all nodes are at work, and every owner moves its own files.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::{FailPoints, FilesetId, Ino, NodeId};
use forebay_disk::Disk;
use forebay_disk::memory::MemoryDisk;
use forebay_fs::policy::Policy;
use forebay_fs::record::{DEFAULT_POOL, DiskUse, Durability, Placement};
use forebay_fs::reserve::Reserve;
use forebay_fs::tasks::TaskState;
use forebay_fs::{Access, Background, Namespace, NewDisk, NewFileset, Parts, Settings};
use forebay_store::memory::MemoryStores;
use support::files::refused;
use support::{Nobody, Nodes, READ, ROOT, Shorthand as _, SteppedTimes, WRITE, new_stores};

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);
const THREE: NodeId = NodeId(3);
const DATA: FilesetId = FilesetId(1);
/// Longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(120);

/// Three nodes with a disk each, which others reach by way of them. The first owns the root, the second the fileset data.
struct Site {
    stores: Arc<MemoryStores>,
    clock: Arc<SteppedTimes>,
    nodes: Arc<Nodes>,
    disks: BTreeMap<String, MemoryDisk>,
}

/// A node at work.
struct Node {
    fs: Arc<Namespace>,
    background: Option<Background>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(background) = self.background.take() {
            background.stop();
        }
    }
}

impl std::ops::Deref for Node {
    type Target = Arc<Namespace>;

    fn deref(&self) -> &Arc<Namespace> {
        &self.fs
    }
}

impl Site {
    fn new() -> Site {
        let clock = Arc::new(SteppedTimes::new(1_000_000));
        let stores = new_stores("whole", "there", &*clock);
        let nodes = Nodes::with_owner(ONE);
        nodes.keep_disks_apart();
        nodes.give(DATA, TWO, 5);
        let mut site = Site { stores, clock, nodes, disks: BTreeMap::new() };
        (1..=3).for_each(|node| drop(site.new_disk(&format!("disk-{node}"))));
        site
    }

    fn new_disk(&mut self, uuid: &str) -> Arc<dyn Disk> {
        self.new_disk_of(uuid, 1 << 40)
    }

    fn new_disk_of(&mut self, uuid: &str, capacity_bytes: u64) -> Arc<dyn Disk> {
        let disk = MemoryDisk::new(capacity_bytes, Arc::clone(&self.clock) as _);
        self.disks.insert(uuid.to_owned(), disk.clone());
        Arc::new(disk)
    }

    fn join(&self, node: NodeId) -> Node {
        let uuid = format!("disk-{node}");
        let settings = Settings {
            owner_wait: Duration::from_secs(20),
            away_timeout: Duration::ZERO,
            ..Settings::default()
        };
        let parts = Parts {
            stores: Arc::clone(&self.stores) as _,
            disks: vec![(uuid.clone(), Arc::new(self.disks[&uuid].clone()) as _)],
            settings,
            clock: Arc::clone(&self.clock) as _,
            fail_points: FailPoints::none(),
            reserve: Reserve::none(),
        };
        let fs = self.nodes.join(node, parts);
        let background = Some(fs.start_background().unwrap());
        Node { fs, background }
    }

    fn three(&self) -> [Node; 3] {
        [self.join(ONE), self.join(TWO), self.join(THREE)]
    }

    fn add(&mut self, node: &Node, uuid: &str, pool: &str) {
        self.add_of(node, uuid, pool, 1 << 40);
    }

    fn add_of(&mut self, node: &Node, uuid: &str, pool: &str, capacity_bytes: u64) {
        let disk = self.new_disk_of(uuid, capacity_bytes);
        let new = NewDisk {
            uuid: uuid.to_owned(),
            location: format!("/{uuid}"),
            pool: pool.to_owned(),
            group: String::new(),
        };
        node.add_disk(&new, disk).unwrap();
    }

    fn objects_on(&self, uuid: &str) -> usize {
        let mut count = 0;
        self.disks[uuid]
            .list(&mut |_| {
                count += 1;
                true
            })
            .unwrap();
        count
    }

    /// Names the owner of a fileset, and everybody hears of it.
    fn give(&self, all: &[&Node], fileset: FilesetId, to: NodeId, epoch: u64) {
        self.nodes.give(fileset, to, epoch);
        all.iter().for_each(|node| node.owner_changed(fileset).unwrap());
    }
}

fn bytes_of(number: usize) -> Vec<u8> {
    (0..1000 + number * 10).map(|at| (at * 7 + number) as u8).collect()
}

fn write(fs: &Namespace, ino: Ino, data: &[u8]) {
    fs.open_file(ino, WRITE, ROOT).unwrap();
    assert_eq!(fs.write(ino, 0, data).unwrap(), data.len());
    close(fs, ino, WRITE);
}

/// Closes a file as the front end does.
fn close(fs: &Namespace, ino: Ino, access: Access) {
    let left = fs.let_go_of(ino);
    fs.close_left(ino, access, left).unwrap();
}

/// Makes files in a fileset; their numbers with what they hold.
fn fill(fs: &Namespace, fileset: &str, prefix: &str, count: usize) -> BTreeMap<Ino, Vec<u8>> {
    // The way there may lead over a root whose owner does not answer.
    let top = if fileset == "data" { Ino::top_of(DATA) } else { fs.fileset(fileset) };
    let made = (0..count).map(|number| {
        let ino = fs.make_file(top, &format!("{prefix}-{number}"));
        write(fs, ino, &bytes_of(number));
        (ino, bytes_of(number))
    });
    made.collect()
}

fn assert_filled(fs: &Namespace, files: &BTreeMap<Ino, Vec<u8>>) {
    for (ino, expected) in files {
        fs.open_file(*ino, READ, ROOT).unwrap();
        let mut found = vec![0; 1 << 16];
        let read = fs.read(*ino, 0, &mut found).unwrap();
        close(fs, *ino, READ);
        assert!(found[..read] == **expected, "inode {ino} has changed");
    }
}

#[allow(clippy::disallowed_methods, reason = "time limits of tests need the machine's clock")]
#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn use_of(fs: &Namespace, uuid: &str) -> Option<DiskUse> {
    fs.disk_named(uuid).ok().map(|disk| disk.used)
}

fn wait_for_end(fs: &Namespace, number: u64) {
    let is_done = || {
        let tasks = fs.all_tasks().unwrap_or_default();
        tasks.iter().any(|task| task.id == number && task.state == TaskState::Done)
    };
    wait_for("the task is done", || {
        let done = is_done();
        if !done {
            std::thread::sleep(Duration::from_millis(200));
            println!("{:?}", fs.all_tasks());
        }
        done
    });
}

#[test]
fn a_disk_that_a_node_adds_is_known_to_all_and_takes_the_files_of_its_pool() {
    let mut site = Site::new();
    let [one, two, three] = site.three();
    site.add(&three, "new", "flash");
    for node in [&one, &two, &three] {
        let found = node.disk_named("n3:/new").unwrap();
        assert_eq!((found.pool.as_str(), found.used), ("flash", DiskUse::Normal));
    }
    // New files of that pool lie there, whoever writes them.
    two.set_fileset_pool("data", "flash").unwrap();
    let mut files = fill(&one, "data", "one", 3);
    files.extend(fill(&three, "data", "three", 3));
    files.extend(fill(&two, "data", "two", 3));
    two.commit().unwrap();
    wait_for("all nine lie there", || site.objects_on("new") >= 9);
    assert_filled(&one, &files);
    // One that writes and has a disk of the pool writes there.
    site.add(&one, "nearer", "flash");
    let more = fill(&one, "data", "near", 300);
    wait_for("new files lie near their writer", || site.objects_on("nearer") > 0);
    assert_filled(&three, &more);
    assert!(refused(three.label_disk("new", Some("bad/name"), None)).contains("bad/name"));
    three.label_disk("n1:/nearer", None, Some("rack")).unwrap();
    assert!([one, two].iter().all(|node| node.disk_named("nearer").unwrap().group == "rack"));
}

#[test]
fn a_drain_moves_the_files_of_all_owners_and_then_the_disk_can_be_removed() {
    let site = Site::new();
    let [one, two, three] = site.three();
    let mut files = fill(&three, "data", "three", 40);
    let top = fill(&three, "util", "util", 20);
    files.extend(top);
    assert!(site.objects_on("disk-3") >= 60);
    assert!(refused(two.remove_disk("disk-3")).contains("in use"));
    // A program keeps a file open.
    let held = *files.keys().next().unwrap();
    three.open_file(held, WRITE, ROOT).unwrap();
    let number = two.drain_disk("disk-3", None).unwrap();
    assert!(refused(three.drain_disk("disk-3", None)).contains("already"));
    wait_for("all but the open file have left", || site.objects_on("disk-3") == 1);
    assert!(refused(one.remove_disk("disk-3")).contains("not empty"));
    assert_eq!(three.write(held, 0, &files[&held]).unwrap(), files[&held].len());
    close(&three, held, WRITE);
    wait_for_end(&three, number);
    assert_eq!(site.objects_on("disk-3"), 0);
    // Nothing new comes.
    files.extend(fill(&three, "data", "later", 5));
    assert_eq!(site.objects_on("disk-3"), 0);
    three.remove_disk("disk-3").unwrap();
    for node in [&one, &two, &three] {
        assert_eq!(use_of(node, "disk-3"), None);
        assert_filled(node, &files);
    }
}

#[test]
fn bytes_that_are_moved_between_disks_of_two_nodes_do_not_pass_through_the_owner() {
    let mut site = Site::new();
    let [one, two, three] = site.three();
    site.add(&one, "from", "there");
    two.set_fileset_pool("data", "there").unwrap();
    let files = fill(&one, "data", "one", 20);
    two.commit().unwrap();
    assert_eq!(site.objects_on("from"), 20);
    site.add(&three, "to", "there");
    site.nodes.payload_of.lock().clear();
    let number = two.drain_disk("from", None).unwrap();
    wait_for_end(&two, number);
    assert_eq!(site.objects_on("to"), 20);
    let payload = site.nodes.payload_of.lock().clone();
    let total: usize = files.values().map(Vec::len).sum();
    assert_eq!(payload.get(&TWO).copied().unwrap_or(0), 0, "{payload:?}");
    assert_eq!(payload.get(&THREE).copied(), Some(total as u64), "{payload:?}");
    assert_filled(&two, &files);
}

#[test]
fn a_drain_goes_on_when_the_owners_of_root_and_files_are_replaced() {
    let site = Site::new();
    let [one, two, three] = site.three();
    let files = fill(&three, "data", "three", 60);
    two.commit().unwrap();
    let number = one.drain_disk("disk-3", None).unwrap();
    one.pause_task(number).unwrap();
    // By force: the former owners have no say.
    site.give(&[&one, &two, &three], FilesetId::ROOT, TWO, 9);
    site.give(&[&one, &two, &three], DATA, ONE, 9);
    three.resume_task(number).unwrap();
    wait_for_end(&one, number);
    assert_eq!(site.objects_on("disk-3"), 0);
    one.remove_disk("disk-3").unwrap();
    assert_filled(&three, &files);
}

#[test]
fn an_owner_that_cannot_ask_the_roots_owner_puts_nothing_on_a_disk_that_is_drained() {
    let site = Site::new();
    let [one, two, three] = site.three();
    let files = fill(&three, "data", "three", 3);
    let number = one.drain_disk("disk-3", None).unwrap();
    wait_for_end(&one, number);
    // Node 3 forgets what it heard, as if it had not: then it takes over what the store of the fileset says.
    drop(three);
    site.nodes.leave(THREE);
    let three = site.join(THREE);
    site.nodes.kill(ONE);
    site.give(&[&two, &three], DATA, THREE, 9);
    let more = fill(&three, "data", "more", 3);
    three.commit().unwrap();
    assert_eq!(site.objects_on("disk-3"), 0);
    site.nodes.thaw(ONE);
    assert_filled(&two, &files);
    assert_filled(&two, &more);
}

#[test]
fn a_disk_of_a_node_that_is_gone_is_given_up_with_a_list_of_its_files() {
    let site = Site::new();
    let [one, two, three] = site.three();
    let lost = fill(&three, "data", "three", 5);
    let kept = fill(&two, "data", "two", 5);
    two.commit().unwrap();
    assert!(refused(one.give_up_disk("disk-3", 100)).contains("is there"));
    drop(three);
    site.nodes.leave(THREE);
    site.nodes.kill(THREE);
    let found = two.give_up_disk("disk-3", 3).unwrap();
    assert_eq!((found.total, found.files.len()), (5, 3), "{found:?}");
    assert!(found.files.iter().all(|file| file.path.as_ref().unwrap().starts_with("/data/three-")));
    let ino = *lost.keys().next().unwrap();
    assert!(two.open_file(ino, READ, ROOT).is_err());
    assert_filled(&one, &kept);
    assert!(refused(one.remove_disk("disk-3")).contains("took along"));
    let top = two.fileset("data");
    (0..5).for_each(|number| two.unlink(top, format!("three-{number}").as_bytes()).unwrap());
    two.commit().unwrap();
    one.remove_disk("disk-3").unwrap();
    assert_eq!(use_of(&two, "disk-3"), None);
}

#[test]
fn a_policy_moves_the_files_of_all_owners_to_another_pool() {
    let mut site = Site::new();
    let [one, two, three] = site.three();
    site.add(&one, "archive", "archive");
    let mut files = fill(&three, "data", "three", 10);
    files.extend(fill(&one, "util", "one", 10));
    let rules = |more: &str| {
        let text =
            format!("[[migrate]]\nname = 'all'\nfrom = '{DEFAULT_POOL}'\nto = 'archive'\n{more}");
        Policy::parse(&text, &Nobody).unwrap()
    };
    let report = two.look_at_policy(&rules("")).unwrap();
    assert_eq!(report.rules[0].files, 20, "{report:?}");
    let number = two.run_policy(&rules("")).unwrap();
    wait_for_end(&two, number);
    assert_eq!(site.objects_on("archive"), 20);
    assert_filled(&three, &files);
}

/// Files of a MiB each, half of them in a fileset of the first node, half in one of the second.
fn fill_evenly(one: &Node, count: u8) -> BTreeMap<Ino, Vec<u8>> {
    let tops = [one.fileset("util"), Ino::top_of(DATA)];
    let made = (0..count).map(|number| {
        let ino = one.make_file(tops[usize::from(number % 2)], &format!("full-{number}"));
        let bytes = vec![number; 1 << 20];
        write(one, ino, &bytes);
        (ino, bytes)
    });
    made.collect()
}

fn assert_full(fs: &Namespace, files: &BTreeMap<Ino, Vec<u8>>) {
    for (ino, expected) in files {
        fs.open_file(*ino, READ, ROOT).unwrap();
        let mut found = vec![0; (1 << 20) + 1];
        let mut read = 0;
        while let more @ 1.. = fs.read(*ino, read as u64, &mut found[read..]).unwrap() {
            read += more;
        }
        close(fs, *ino, READ);
        assert!(found[..read] == **expected, "inode {ino} has changed");
    }
}

#[test]
fn a_pool_is_evened_out_with_the_files_of_all_owners_and_no_more_than_that() {
    let mut site = Site::new();
    let [one, two, three] = site.three();
    site.add_of(&one, "full", "hot", 64 << 20);
    for fileset in ["data", "util"] {
        one.set_fileset_pool(fileset, "hot").unwrap();
    }
    let files = fill_evenly(&one, 40);
    [&one, &two].iter().for_each(|node| node.sync_all().unwrap());
    assert!(refused(two.rebalance("hot")).contains("fewer than two disks"));
    site.add_of(&three, "empty", "hot", 64 << 20);
    let number = two.rebalance("hot").unwrap();
    wait_for_end(&three, number);
    let (full, empty) = (site.objects_on("full"), site.objects_on("empty"));
    assert!((18..=22).contains(&full) && full + empty == 40, "{full} and {empty}");
    assert_full(&three, &files);
    // Nothing is left to do, for anybody.
    let again = three.rebalance("hot").unwrap();
    wait_for_end(&one, again);
    assert_eq!(site.objects_on("full"), full);
}

#[test]
fn a_rule_about_the_fill_of_a_pool_moves_what_is_needed_whoever_owns_the_files() {
    let mut site = Site::new();
    let [one, two, three] = site.three();
    site.add_of(&one, "hot", "hot", 64 << 20);
    site.add(&two, "cold", "cold");
    for fileset in ["data", "util"] {
        one.set_fileset_pool(fileset, "hot").unwrap();
    }
    let files = fill_evenly(&one, 40);
    [&one, &two].iter().for_each(|node| node.sync_all().unwrap());
    let rules = |above: u8, until: u8| {
        let text = format!(
            "[[migrate]]\nname = 'full'\nfrom = 'hot'\nto = 'cold'\nabove = {above}\nuntil = {until}"
        );
        Policy::parse(&text, &Nobody).unwrap()
    };
    let nothing = three.run_policy(&rules(80, 40)).unwrap();
    wait_for_end(&one, nothing);
    assert_eq!(site.objects_on("cold"), 0, "it is less full");
    // More than one owner has.
    let number = three.run_policy(&rules(50, 25)).unwrap();
    wait_for_end(&two, number);
    let (hot, cold) = (site.objects_on("hot"), site.objects_on("cold"));
    // With the space that is kept aside there.
    let capacity = site.disks["hot"].capacity().unwrap();
    let percent = 100 - capacity.available_bytes * 100 / capacity.total_bytes;
    assert!((22..=26).contains(&percent) && hot + cold == 40, "{hot} and {cold}, {percent} %");
    assert_full(&three, &files);
}

#[test]
fn a_fileset_is_made_in_a_pool_and_a_pool_without_disks_is_refused() {
    let mut site = Site::new();
    let [one, _two, three] = site.three();
    let new = |name: &str, pool: &str| NewFileset {
        name: name.to_owned(),
        durability: Durability::Strict,
        placement: Placement::Direct,
        disk: None,
        pool: Some(pool.to_owned()),
        mode: 0o755,
    };
    assert!(refused(three.add_fileset(&new("cold", "archive"))).contains("archive"));
    site.add(&one, "slow", "archive");
    three.add_fileset(&new("cold", "archive")).unwrap();
    let files = fill(&three, "cold", "file", 4);
    three.commit().unwrap();
    one.commit().unwrap();
    assert_eq!(site.objects_on("slow"), 4);
    assert_filled(&one, &files);
    // It is the last disk of the pool.
    assert!(refused(three.drain_disk("slow", None)).contains("cold"));
}
