//! Random calls on four nodes, with a check of what every program saw. `make soak` has parts of the cluster fail meanwhile.

use forebay_e2e::thrash::{Thrash, draw};
use forebay_e2e::{seed, setting};

#[test]
fn what_programs_of_four_nodes_see_could_have_happened_one_call_at_a_time() {
    let first = seed("cluster");
    let runs = setting("FOREBAY_E2E_CLUSTER_RUNS", 1);
    let count = setting("FOREBAY_E2E_CLUSTER_FAULTS", 0);
    for seed in (0..runs).map(|run| first.wrapping_add(run)) {
        println!("to repeat: FOREBAY_SEED={seed} FOREBAY_E2E_CLUSTER_FAULTS={count} and this test");
        let faults = draw(seed, usize::try_from(count).expect("a small number"));
        let summary = Thrash::make(seed).run(&faults);
        assert!(summary.calls > 100, "hardly anything was done: {summary:#?}");
    }
}
