//! Runs of many seeds, and the proof that the simulation finds faults.

use forebay_base::seed;

use super::plan::Plan;
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

fn failure(seed: u64) -> Option<String> {
    let plan = Plan::of(seed);
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
    let (mut steps, mut takeovers, mut synced, mut kept) = (0, 0, 0, 0);
    for seed in first..first + runs {
        let plan = Plan::of(seed);
        let (result, world) = run(&plan);
        if result.is_err() {
            panic!("{}", failure(seed).unwrap_or_default());
        }
        steps += world.steps;
        takeovers += world.witness.takeovers;
        synced += world.witness.synced;
        kept += world.witness.kept_reads;
    }
    println!("{steps} steps, {takeovers} opens, {synced} syncs, {kept} reads from caches");
    if runs >= 100 {
        // A world in which nothing happens proves nothing.
        assert!(takeovers > runs && synced > runs && kept > runs);
    }
}

#[test]
fn a_run_repeats_exactly() {
    let plan = Plan::of(7);
    let (first, second) = (run(&plan).1, run(&plan).1);
    assert_eq!((first.steps, first.now), (second.steps, second.now));
}

/// Runs seeds with a fault put in until it is found.
fn seeds_until_found(fault: Fault, most: u64) -> Option<u64> {
    fault::put(Some(fault));
    let first = seed::pick();
    let found = (0..most).find(|offset| run(&Plan::of(first + offset)).0.is_err());
    fault::put(None);
    found
}

#[test]
fn every_fault_that_is_put_in_is_found() {
    let faults = [
        Fault::LeaseFromAnswer,
        Fault::AnswersUnchecked,
        Fault::TakeoverWithoutCompare,
        Fault::TakeoverOfTheLiving,
        Fault::SupersededGoesOn,
        Fault::HandoverWithoutRecall,
        Fault::NoWaitAfterRestart,
        Fault::NoKeptResults,
        Fault::ResultsDroppedEarly,
        Fault::ExpiryIgnored,
        Fault::AcknowledgedEarly,
        Fault::CrossedRecallIgnored,
        Fault::ChangeWithoutRecall,
        Fault::GrantDuringChange,
        Fault::OwnGrantKept,
        Fault::ReturnWithoutNumber,
        Fault::EvictedTooEarly,
        Fault::LapseIgnored,
        Fault::VouchBeyondLease,
        Fault::VouchAfterLoss,
        Fault::GateWithoutClock,
        Fault::KernelAlone,
        Fault::ReadsWaitForChanges,
        Fault::GateNotLookedAtAgain,
    ];
    for fault in faults {
        let found = seeds_until_found(fault, 2000);
        println!("{fault:?}: {found:?}");
    }
}
