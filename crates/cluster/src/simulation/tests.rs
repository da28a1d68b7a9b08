//! Runs of many seeds, and the proof that the simulation finds faults.

use forebay_base::seed;

use super::asking::Load;
use super::plan::{Pace, Plan};
use super::world::World;
use crate::fault::{self, Fault};

/// What came of a run.
fn run(plan: &Plan) -> (Result<(), String>, World) {
    let mut world = World::new(plan.clone());
    let result = world.run();
    (result, world)
}

/// The plan with as few troubles as still lead to a fault.
fn shrunk(mut plan: Plan) -> Plan {
    let mut index = 0;
    while index < plan.troubles.len() {
        let mut fewer = plan.clone();
        fewer.troubles.remove(index);
        if run(&fewer).0.is_err() {
            plan = fewer;
        } else {
            index += 1;
        }
    }
    plan
}

fn failure(plan: Plan) -> Option<String> {
    let seed = plan.seed;
    let wrong = run(&plan).0.err()?;
    let plan = shrunk(plan);
    let least = run(&plan).0.err().unwrap_or_default();
    Some(format!(
        "seed {seed}: {wrong}\nwith fewer troubles: {least}\n{plan:#?}\nto repeat: {}={seed} FOREBAY_SIMULATIONS=1 cargo test -p forebay-cluster many_machines",
        seed::VARIABLE
    ))
}

#[test]
fn many_machines_keep_their_promises_whatever_goes_wrong() {
    let runs: u64 = std::env::var("FOREBAY_SIMULATIONS")
        .map_or(500, |text| text.parse().expect("FOREBAY_SIMULATIONS is a number"));
    let first = seed::pick();
    println!("seeds {first} to {}", first + runs - 1);
    let (mut steps, mut takeovers, mut synced, mut kept, mut reports) = (0, 0, 0, 0, 0);
    for plan in (first..first + runs).map(Plan::of) {
        let (result, world) = run(&plan);
        if result.is_err() {
            panic!("{}", failure(plan).unwrap_or_default());
        }
        steps += world.steps;
        takeovers += world.witness.takeovers;
        synced += world.witness.synced;
        kept += world.witness.kept_reads;
        reports += world.witness.reports;
    }
    println!(
        "{steps} steps, {takeovers} opens, {synced} syncs, {kept} reads from caches, {reports} changes reported"
    );
    if runs >= 100 {
        // A world in which nothing happens proves nothing.
        assert!(takeovers > runs && synced > runs && kept > runs && reports > 200);
    }
}

/// Seeds that found what was wrong once, and what that was.
#[test]
fn seeds_that_failed_once_pass() {
    for seed in [
        // A change of a lost session was answered late, and ended the protection of another one (Cache::changed).
        3_002_362,
        // The witness believed an owner that was superseded while it was frozen when it dropped clients with their directories.
        313_290_269,
        // A program synced what its node had just lost, and then nobody answered it (Machine::attempt).
        782_470_193,
        // A program asked its own node, as the owner of its former life (Machine::attempt).
        141_897_576,
        // With one slot, a recall waited for another one, and both for kernels that locked a directory (World::waited).
        409_247_333,
    ] {
        assert!(run(&Plan::of(seed)).0.is_ok(), "{}", failure(Plan::of(seed)).unwrap_or_default());
    }
}

/// Programs of all nodes work in the same two directories, each node has one slot for ordinary calls, and nothing is wrong.
fn one_slot(seed: u64) -> Plan {
    let mut plan = Plan::of(seed);
    (plan.settings.calls_max, plan.settings.releases_max) = (1, 1);
    (plan.nodes, plan.programs) = (3, 4);
    plan.load = Load { filesets: 1, objects: 1, directories: 6, think_millis: 60 };
    // A thread that comes late to a call leaves time for a change that must be reported.
    (plan.pace, plan.kernel_locks, plan.prompt) = (Pace::Sluggish, false, u32::MAX);
    plan.troubles.clear();
    plan
}

#[test]
fn reports_get_through_where_nodes_have_one_slot_for_ordinary_calls() {
    let seeds = 1..40;
    for seed in seeds.clone() {
        let result = run(&one_slot(seed)).0;
        assert!(result.is_ok(), "seed {seed}: {result:?}");
    }
    // Two nodes wait for each other's reports, if these have no slot of their own.
    fault::put(Some(Fault::ReleaseWaits));
    let found = seeds.clone().find(|seed| run(&one_slot(*seed)).0.is_err());
    fault::put(None);
    println!("found by {found:?}");
    assert!(found.is_some());
}

#[test]
fn a_run_repeats_exactly() {
    let plan = Plan::of(7);
    let (first, second) = (run(&plan).1, run(&plan).1);
    assert_eq!((first.steps, first.now), (second.steps, second.now));
}

/// Every fault, with a seed that finds it; [`Fault::ReleaseWaits`] has a test of its own.
const FAULTS: [(Fault, u64); 29] = [
    (Fault::LeaseFromAnswer, 452),
    (Fault::AnswersUnchecked, 1),
    (Fault::TakeoverWithoutCompare, 246),
    (Fault::TakeoverOfTheLiving, 246),
    (Fault::SupersededGoesOn, 1_202_235),
    (Fault::HandoverWithoutRecall, 12),
    (Fault::NoWaitAfterRestart, 64),
    (Fault::NoKeptResults, 59_025_975),
    (Fault::ResultsDroppedEarly, 59_025_975),
    (Fault::ExpiryIgnored, 5),
    (Fault::AcknowledgedEarly, 1),
    (Fault::CrossedRecallIgnored, 3),
    (Fault::ChangeWithoutRecall, 1),
    (Fault::GrantDuringChange, 3),
    (Fault::OwnGrantKept, 1),
    (Fault::ReturnWithoutNumber, 110),
    (Fault::EvictedTooEarly, 45),
    (Fault::LapseIgnored, 1),
    (Fault::VouchBeyondLease, 483),
    (Fault::VouchAfterLoss, 1_203_630),
    (Fault::GateWithoutClock, 17),
    (Fault::KernelAlone, 1_202_231),
    (Fault::ReadsWaitForChanges, 1_202_455),
    (Fault::GateNotLookedAtAgain, 1_202_291),
    (Fault::ReportCarriedOutAgain, 20_873_116),
    (Fault::LossUntold, 1_202_723),
    (Fault::ReturnedUnreported, 20_873_055),
    (Fault::DelegatedToldToOthers, 20_873_046),
    (Fault::AskedBeforeReport, 20_873_045),
];

/// Whether the seed notices the fault.
fn finds(fault: Fault, seed: u64) -> bool {
    fault::put(Some(fault));
    let found = run(&Plan::of(seed)).0.is_err();
    fault::put(None);
    found
}

#[test]
fn every_fault_that_is_put_in_is_found() {
    let first = seed::pick();
    for (fault, known) in FAULTS {
        assert!(run(&Plan::of(known)).0.is_ok(), "seed {known} fails without a fault");
        if finds(fault, known) {
            continue;
        }
        // The protocol or the world has changed: other seeds find it now.
        let found = (first..first + 4000)
            .find(|seed| finds(fault, *seed) && run(&Plan::of(*seed)).0.is_ok());
        println!("{fault:?} is found by {found:?} instead of {known}");
        assert!(found.is_some(), "4000 seeds from {first} do not find {fault:?}");
    }
}
