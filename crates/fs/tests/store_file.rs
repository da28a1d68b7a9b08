//! A file system on a store in a file that was damaged: it is found or harmless, a mount refuses before it
//! writes, a repair saves what can be saved and converges, and nothing panics.

mod support;

#[allow(dead_code, reason = "the tests of fsck use the rest")]
#[path = "fsck/tree.rs"]
mod tree;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_base::{FailPoints, FilesetId, seed};
use forebay_fs::fsck::file::{Checked, check_file};
use forebay_fs::fsck::{Damage, Options, Outcome, Repair};
use forebay_fs::{Parts, key};
use forebay_store::faulty::FaultyStore;
use forebay_store::redb::{RedbOptions, RedbStore};
use forebay_store::{Batch, Store, StoreError, Stores};
use support::{Shorthand as _, User, WholeStores};
use tree::{DATA, Tree};

const OPTIONS: RedbOptions = RedbOptions { cache_bytes: 1 << 20 };
const HEADER_BITS: usize = 320 * 8;
/// Bits that are flipped, unless `FOREBAY_FLIPS` says otherwise.
const FLIPS: usize = 250;

type Listing = BTreeMap<String, Vec<u8>>;

/// A closed file system of which one store lies in a file: that of the fileset `data`.
struct Scene {
    tree: Tree,
    folder: tempfile::TempDir,
    good: Vec<u8>,
    listing: Listing,
}

impl Scene {
    fn make() -> Scene {
        let tree = Tree::make();
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = folder.path().join("store.redb");
        let store = RedbStore::create_with(&path, &OPTIONS).unwrap();
        // In several commits, so that pages are used again and freed.
        let rows = tree.rig.store_of(DATA).scan(b"", &[0xff; 64], usize::MAX).unwrap();
        for rows in rows.chunks(10) {
            let changes = rows.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
            store.commit(&Batch { requires: vec![], changes: changes.collect() }).unwrap();
        }
        store.close().unwrap();
        let listing = tree.listing();
        let good = std::fs::read(&path).unwrap();
        Scene { tree, folder, good, listing }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store.redb")
    }

    /// Puts a store in place, alone.
    fn place(&self, bytes: &[u8]) {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::fs::write(self.path(), bytes).unwrap();
    }

    fn check(&self, repair: Repair) -> Checked {
        let disks = |_: &_| Ok(self.tree.rig.parts().disks);
        let mut how = Options {
            repair,
            records_lost: false,
            archives: forebay_fs::fsck::Archives::Trusted,
            stores: None,
            fileset: None,
            disks: None,
            filesets: None,
            progress: &mut |_| {},
        };
        check_file(&self.path(), &OPTIONS, &disks, &mut how).unwrap()
    }

    fn outcome(&self) -> Outcome {
        self.check(Repair::Never).report.outcome()
    }

    fn mount(&self) -> Result<User, StoreError> {
        let store = Arc::new(RedbStore::open_with(self.path(), &OPTIONS)?);
        let rig = &self.tree.rig;
        let stores = Arc::new(OneInFile { data: store, others: rig.stores() });
        Ok(rig.open_parts(Parts { stores, ..rig.parts() }))
    }

    /// Mounts, looks at everything, changes something, unmounts.
    fn cycle(&self, what: &str) -> Listing {
        let user = self.mount().unwrap_or_else(|error| panic!("{what}: {error}"));
        let listing = tree::listing_of(&user);
        let data = user.fileset("data");
        user.make_directory(data, "made by the test");
        user.fs.commit().unwrap();
        user.remove_directory(data, b"made by the test").unwrap();
        user.fs.close().unwrap_or_else(|error| panic!("{what}: {error}"));
        listing
    }

    fn refuses(&self, bytes: &[u8], what: &str) {
        assert!(matches!(self.mount().map(drop), Err(StoreError::Damaged(_))), "{what}");
        assert!(std::fs::read(self.path()).unwrap() == bytes, "{what}: refused before a write");
    }
}

/// The stores of a file system, that of `data` in a file.
struct OneInFile {
    data: Arc<RedbStore>,
    others: WholeStores,
}

impl Stores for OneInFile {
    fn create(&self, fileset: FilesetId) -> Result<Arc<dyn Store>, StoreError> {
        self.others.create(fileset)
    }

    fn open(&self, fileset: FilesetId) -> Result<Arc<dyn Store>, StoreError> {
        if fileset == DATA { Ok(Arc::clone(&self.data) as _) } else { self.others.open(fileset) }
    }

    fn look(&self, fileset: FilesetId) -> Result<Arc<dyn Store>, StoreError> {
        self.open(fileset)
    }

    fn size_of(&self, fileset: FilesetId) -> Result<u64, StoreError> {
        self.others.size_of(fileset)
    }

    fn remove(&self, fileset: FilesetId) -> Result<(), StoreError> {
        self.others.remove(fileset)
    }

    fn list(&self) -> Result<Vec<FilesetId>, StoreError> {
        self.others.list()
    }
}

fn flips() -> usize {
    std::env::var("FOREBAY_FLIPS").map_or(FLIPS, |text| text.parse().expect("a number of bits"))
}

#[test]
fn one_flipped_bit_is_found_or_harmless_and_repair_loses_nothing_and_converges() {
    let scene = Scene::make();
    let seed = seed::announce("cargo test -p forebay-fs --test store_file one_flipped_bit");
    let seed = usize::try_from(seed).unwrap();
    let bits = scene.good.len() * 8;
    let (short, long) = ((HEADER_BITS * 4 / flips()).max(1), (bits / flips()).max(1));
    let header = (seed % short..HEADER_BITS).step_by(short);
    let mut found = 0;
    for bit in header.chain((HEADER_BITS + seed % long..bits).step_by(long)) {
        let what = format!("bit {} of byte {}", bit % 8, bit / 8);
        let mut bytes = scene.good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        scene.place(&bytes);
        if scene.outcome() == Outcome::Left {
            found += 1;
            scene.refuses(&bytes, &what);
            let repaired = scene.check(Repair::Found);
            assert_eq!(repaired.report.outcome(), Outcome::Repaired, "{what}: {repaired:#?}");
            let findings = &repaired.report.findings;
            assert!(findings.iter().all(|it| it.damage == Damage::Store), "{what}: {findings:#?}");
            let kept = repaired.kept.expect("the old store is kept");
            assert!(std::fs::read(kept).unwrap() == bytes, "{what}: as it was");
            let again = scene.check(Repair::Found);
            assert_eq!(again.report.outcome(), Outcome::Clean, "{what}: {again:#?}");
            assert_eq!(again.kept, None, "{what}: a second repair does nothing");
        }
        assert!(scene.cycle(&what) == scene.listing, "{what}: all is there");
        assert_eq!(scene.outcome(), Outcome::Clean, "{what}: after a mount that changed something");
        assert!(scene.cycle(&what) == scene.listing, "{what}: all is there afterwards");
    }
    assert!(found > 0);
}

#[test]
fn zeroed_pages_are_found_and_repair_converges() {
    let pages = Scene::make().good.len() / 4096;
    for page in 0..pages {
        // Repair may take objects off the disk: each page has its own.
        let scene = Scene::make();
        let mut bytes = scene.good.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0);
        scene.place(&bytes);
        let what = format!("page {page}");
        if scene.outcome() == Outcome::Clean {
            assert!(scene.cycle(&what) == scene.listing, "{what}: an unused page");
            continue;
        }
        scene.refuses(&bytes, &what);
        let repaired = scene.check(Repair::Found);
        if repaired.report.outcome() == Outcome::Left {
            assert!(std::fs::read(scene.path()).unwrap() == bytes, "{what}: left as it was");
            let text = format!("{:?}", repaired.report.findings);
            assert!(text.contains("backup") || text.contains("a copy"), "{what}: {text}");
            continue;
        }
        assert_eq!(scene.check(Repair::Found).report.outcome(), Outcome::Clean, "{what}");
        scene.cycle(&what);
        assert_eq!(scene.outcome(), Outcome::Clean, "{what}: after a mount");
    }
}

#[test]
fn cut_empty_and_headless_stores_are_refused_with_what_can_be_done() {
    let scene = Scene::make();
    let mut headless = scene.good.clone();
    headless[..4096].fill(0);
    let half = &scene.good[..scene.good.len() / 2 / 4096 * 4096];
    for bytes in [&[][..], &[0; 100], &scene.good[..320], &headless, half] {
        scene.place(bytes);
        scene.refuses(bytes, &format!("{} bytes", bytes.len()));
        assert_eq!(scene.outcome(), Outcome::Left);
        let repaired = scene.check(Repair::Found).report;
        match repaired.outcome() {
            Outcome::Left => {
                let text = format!("{:?}", repaired.findings);
                assert!(text.contains("backup") || text.contains("a copy"), "{text}");
            }
            _ => assert_eq!(scene.check(Repair::Found).report.outcome(), Outcome::Clean),
        }
    }
}

#[test]
fn damaged_records_are_repaired_in_a_fresh_store_and_the_old_one_is_kept() {
    let scene = Scene::make();
    scene.place(&scene.good);
    let store = RedbStore::open_with(scene.path(), &OPTIONS).unwrap();
    let changes = [(key::inode(scene.tree.file), Some(vec![2, 0xff, 0xff]))].into();
    store.commit(&Batch { requires: vec![], changes }).unwrap();
    store.close().unwrap();
    let bytes = std::fs::read(scene.path()).unwrap();
    let repaired = scene.check(Repair::Found);
    assert_eq!(repaired.report.outcome(), Outcome::Repaired, "{repaired:#?}");
    let named = |it: &forebay_fs::fsck::Finding| it.path.as_deref() == Some("/data/a/b/file");
    assert!(repaired.report.findings.iter().any(named), "the path is told: {repaired:#?}");
    assert!(std::fs::read(repaired.kept.unwrap()).unwrap() == bytes);
    assert_eq!(scene.check(Repair::Found).report.outcome(), Outcome::Clean);
}

#[test]
fn an_older_store_put_back_loses_no_object_to_fsck() {
    // Copied while mounted, and restored by a command that knows it; copied before, and put back by hand.
    for (was_mounted, records_lost) in [(true, true), (false, false)] {
        restore_and_look(was_mounted, records_lost);
    }
}

fn restore_and_look(was_mounted: bool, records_lost: bool) {
    let scene = Scene::make();
    scene.place(&scene.good);
    let user = scene.mount().unwrap();
    let mounted = std::fs::read(scene.path()).unwrap();
    let data = user.fileset("data");
    for number in 0..3 {
        tree::add_file(&user, data, &format!("later-{number}"));
    }
    user.fs.close().unwrap();
    drop(user);
    scene.place(if was_mounted { &mounted } else { &scene.good });
    let disks = |_: &_| Ok(scene.tree.rig.parts().disks);
    let mut how = Options {
        repair: Repair::Found,
        records_lost,
        archives: forebay_fs::fsck::Archives::Trusted,
        stores: None,
        fileset: None,
        disks: None,
        filesets: None,
        progress: &mut |_| {},
    };
    let repaired = check_file(&scene.path(), &OPTIONS, &disks, &mut how).unwrap();
    assert_eq!(repaired.report.outcome(), Outcome::Repaired, "{repaired:#?}");
    let listing = scene.cycle("restored");
    for number in 0..3 {
        let contents = tree::contents(&format!("later-{number}"));
        let is_kept = |(path, found): (&String, &Vec<u8>)| {
            path.starts_with("/data/lost+found/#object-") && *found == contents
        };
        assert!(listing.iter().any(is_kept), "later-{number} is in lost+found");
    }
    assert!(scene.listing.iter().all(|(path, contents)| listing.get(path) == Some(contents)));
    assert_eq!(scene.outcome(), Outcome::Clean);
}

#[test]
fn an_end_of_the_store_that_fails_is_told() {
    let tree = Tree::make();
    let store = Arc::new(FaultyStore::new(tree.rig.store.clone()));
    let parts =
        tree.rig.parts_with(Arc::clone(&store) as _, tree.rig.disk.as_disk(), FailPoints::none());
    let user = tree.rig.open_parts(parts);
    store.fail_closes(1);
    user.fs.close().unwrap_err();
}
