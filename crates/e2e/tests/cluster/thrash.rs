//! Random calls on four nodes while parts of the cluster fail, with a check of what every program saw.

use forebay_e2e::thrash::{Thrash, draw};
use forebay_e2e::{seed, setting};

#[test]
fn what_programs_of_four_nodes_see_holds_while_parts_fail() {
    let first = seed("cluster");
    let runs = setting("FOREBAY_E2E_CLUSTER_RUNS", 1);
    let count = setting("FOREBAY_E2E_CLUSTER_FAULTS", 4);
    for seed in (0..runs).map(|run| first.wrapping_add(run)) {
        println!("to repeat: FOREBAY_SEED={seed} FOREBAY_E2E_CLUSTER_FAULTS={count} and this test");
        let faults = draw(seed, usize::try_from(count).expect("a small number"));
        let summary = Thrash::make(seed).run(&faults);
        assert!(summary.calls > 100, "hardly anything was done: {summary:#?}");
    }
}
