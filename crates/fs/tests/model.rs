//! Random operation sequences against a reference tree in memory, with remounts and crashes in between.
//!
//! Each run takes fresh sequences. `FOREBAY_SEED` (a number) repeats one, and `PROPTEST_CASES` makes more; a
//! failure prints both, and the shortest sequence that fails.

mod support;

#[path = "model/apply.rs"]
mod apply;
#[path = "model/fileset.rs"]
mod fileset;
#[path = "model/op.rs"]
mod op;
#[path = "model/tree.rs"]
mod tree;
#[path = "model/world.rs"]
mod world;

use forebay_base::ByteSize;
use forebay_etcd::Runtime;
use forebay_fs::settings::RecallMode;
use forebay_store::slate::{Place, SlateConfig, open_stores};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use support::Rig;

/// Sequences per test, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 60;
/// How long a sequence that fails is shortened, in milliseconds: one in which something waits for its timeout takes that long each time.
const SHRINK_MILLISECONDS: u32 = 120_000;

fn number_from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn run(test: &str, rig: impl Fn() -> Rig) {
    run_cases(CASES, test, rig);
}

fn run_cases(cases: u32, test: &str, rig: impl Fn() -> Rig) {
    let cases = number_from_environment("PROPTEST_CASES", u64::from(cases));
    let command = format!("PROPTEST_CASES={cases} cargo test -p forebay-fs --test model {test}");
    let seed = forebay_base::seed::announce(&command);
    let config = Config {
        cases: u32::try_from(cases).expect("a number of cases"),
        max_shrink_iters: 4000,
        max_shrink_time: SHRINK_MILLISECONDS,
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&op::sequences(), |ops| {
        let rig = rig();
        world::World::new(&rig).run(&ops);
        Ok::<(), TestCaseError>(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}\nTo repeat: FOREBAY_SEED={seed} {command}");
    }
}

/// Settings under which nothing stays in memory for long.
fn tight(rig: &Rig) {
    rig.settings_mut(|settings| {
        settings.inode_cache_max = ByteSize::kib(4);
        settings.directory_load_max = 3;
        settings.open_objects_max = 2;
    });
}

#[test]
fn served_files_in_memory_behave_like_the_reference() {
    run("served_files_in_memory", Rig::in_memory);
}

#[test]
fn served_files_with_little_memory_behave_like_the_reference() {
    run("served_files_with_little_memory", || {
        let rig = Rig::in_memory();
        tight(&rig);
        rig
    });
}

#[test]
fn striped_files_behave_like_the_reference() {
    run("striped_files_behave", Rig::striped);
}

#[test]
fn striped_files_with_little_memory_behave_like_the_reference() {
    run("striped_files_with_little_memory", || {
        let rig = Rig::striped();
        tight(&rig);
        rig
    });
}

#[test]
fn direct_files_behave_like_the_reference() {
    run("direct_files_behave", Rig::in_directory);
}

#[test]
fn direct_files_with_little_memory_behave_like_the_reference() {
    run("direct_files_with_little_memory", || {
        let rig = Rig::in_directory();
        tight(&rig);
        rig
    });
}

#[test]
fn served_files_in_a_directory_behave_like_the_reference() {
    run("served_files_in_a_directory", || {
        let rig = Rig::in_directory();
        rig.settings_mut(|settings| settings.direct = false);
        rig
    });
}

#[test]
fn archived_files_behave_like_the_reference() {
    run("archived_files_behave", || Rig::in_memory().with_archive());
}

/// Opened for reading, files stay in the archive.
fn partial(rig: &Rig) {
    rig.settings_mut(|settings| {
        settings.recall_mode = RecallMode::Partial;
        settings.partial_recall_min = ByteSize(0);
    });
}

#[test]
fn files_that_are_read_in_an_archive_behave_like_the_reference() {
    run("files_that_are_read_in_an_archive", || {
        let rig = Rig::in_memory().with_archive();
        partial(&rig);
        rig
    });
}

#[test]
fn direct_files_that_are_read_in_an_archive_with_little_memory_behave_like_the_reference() {
    run("direct_files_that_are_read_in_an_archive", || {
        let rig = Rig::in_directory().with_archive();
        tight(&rig);
        partial(&rig);
        rig
    });
}

#[test]
fn archived_direct_files_with_little_memory_behave_like_the_reference() {
    run("archived_direct_files_with_little_memory", || {
        let rig = Rig::in_directory().with_archive();
        tight(&rig);
        rig
    });
}

#[test]
fn files_with_copies_behave_like_the_reference() {
    run("files_with_copies_behave", || Rig::in_memory().with_copies());
}

#[test]
fn files_with_copies_and_little_memory_behave_like_the_reference() {
    run("files_with_copies_and_little_memory", || {
        let rig = Rig::in_memory().with_copies();
        tight(&rig);
        rig
    });
}

#[test]
fn files_of_another_node_behave_like_the_reference() {
    run("files_of_another_node", Rig::of_another_node);
}

/// Filesets crash one at a time and are taken over, while the others go on.
#[test]
fn filesets_of_three_nodes_behave_like_the_reference() {
    run("filesets_of_three_nodes", Rig::of_three_nodes);
}

/// The names in the store of clusters, over objects in memory. Each sequence opens it many times.
#[test]
fn names_of_a_cluster_behave_like_the_reference() {
    let runtime = Runtime::start(2).unwrap();
    run_cases(8, "names_of_a_cluster", || {
        let config = SlateConfig::new(Place::Memory, "names");
        Rig::with_stores(open_stores(&config, &runtime, None).unwrap())
    });
}
