use super::*;

fn job(node: u32, due_seconds: f64, processor: f64, bytes: f64, other: f64) -> Job {
    let demand = Demand {
        processor_seconds: processor,
        threads: 1.0,
        storage_bytes: bytes,
        background_bytes: 0.0,
        other_seconds: other,
    };
    Job { node: Some(node), slots: 1, due_seconds, demand, queue: 0 }
}

fn setup(nodes: u32, cores: f64, concurrent: u32) -> Setup {
    Setup { nodes, nodes_per_machine: 1, machine_cores: cores, concurrent, storage: None }
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-4 * expected.max(1.0), "{found} instead of {expected}");
}

#[test]
fn jobs_share_the_cores_of_their_machine() {
    // Four jobs of 10 s on two cores: 20 s, as in processor sharing.
    let jobs = vec![job(0, 0.0, 10.0, 0.0, 0.0); 4];
    let found = simulate(&jobs, &setup(1, 2.0, 8)).unwrap();
    close(found.seconds, 20.0);
    close(found.real_seconds, 80.0);
    close(found.cpu_per_real(), 0.5);
    close(found.cores_full, 1.0);
    // On two machines: 10 s.
    let jobs: Vec<Job> = (0..4).map(|at| job(at % 2, 0.0, 10.0, 0.0, 0.0)).collect();
    close(simulate(&jobs, &setup(2, 2.0, 8)).unwrap().seconds, 10.0);
}

#[test]
fn jobs_wait_for_slots_in_the_order_in_which_they_are_due() {
    let jobs = vec![job(0, 0.0, 3.0, 0.0, 0.0), job(0, 1.0, 2.0, 0.0, 0.0)];
    let found = simulate(&jobs, &setup(1, 4.0, 1)).unwrap();
    close(found.seconds, 5.0);
    close(found.slot_wait_seconds, 2.0);
    close(found.real_seconds, 5.0);
}

#[test]
fn a_job_without_a_node_goes_where_most_slots_are_free_and_takes_its_slots() {
    let any = |slots: u32, due: f64, processor: f64| Job {
        node: None,
        slots,
        ..job(0, due, processor, 0.0, 0.0)
    };
    // Two of two slots fill both nodes; the third waits for the one that ends first.
    let jobs = vec![any(2, 0.0, 3.0), any(2, 0.0, 5.0), any(1, 1.0, 1.0)];
    let found = simulate(&jobs, &setup(2, 4.0, 2)).unwrap();
    close(found.slot_wait_seconds, 2.0);
    close(found.seconds, 5.0);
    // A third node has room at once.
    close(simulate(&jobs, &setup(3, 4.0, 2)).unwrap().slot_wait_seconds, 0.0);
    assert!(simulate(&jobs, &setup(2, 4.0, 1)).is_err(), "a job that fits on no node");
}

#[test]
fn a_storage_gives_what_it_has_and_no_more() {
    // 2 x 100 bytes at 10 bytes a second take 20 s, however many cores there are.
    let storage = |of| Some(Storage { bytes_per_second: 10.0, of });
    let jobs = vec![job(0, 0.0, 0.0, 100.0, 0.0), job(1, 0.0, 0.0, 100.0, 0.0)];
    let shared = Setup { storage: storage(StorageOf::All), ..setup(2, 1.0, 1) };
    let own = Setup { storage: storage(StorageOf::Machine), ..shared };
    let found = simulate(&jobs, &shared).unwrap();
    close(found.seconds, 20.0);
    close(found.storage_bytes_per_second(), 10.0);
    close(found.storage_full, 1.0);
    close(simulate(&jobs, &own).unwrap().seconds, 10.0);
}

#[test]
fn bytes_in_the_background_delay_others_and_not_their_own_job() {
    let storage = Some(Storage { bytes_per_second: 10.0, of: StorageOf::Machine });
    let setup = Setup { storage, ..setup(1, 2.0, 2) };
    let mut quiet = job(0, 0.0, 10.0, 0.0, 0.0);
    quiet.demand.background_bytes = 50.0;
    close(simulate(std::slice::from_ref(&quiet), &setup).unwrap().seconds, 10.0);
    // Half of the rate is left for the other: 50 bytes take 10 s instead of 5.
    let found = simulate(&[quiet, job(0, 0.0, 0.0, 50.0, 0.0)], &setup).unwrap();
    close(found.seconds, 10.0);
    close(found.real_seconds, 20.0);
    close(found.storage_bytes, 100.0);
}

#[test]
fn time_that_is_neither_processor_nor_storage_overlaps_with_other_jobs() {
    // Each needs 1 s of the one core and 9 s of its own: nine others do not slow it down at all.
    let jobs = vec![job(0, 0.0, 1.0, 0.0, 9.0); 10];
    close(simulate(&jobs, &setup(1, 1.0, 10)).unwrap().seconds, 10.0);
    // Of a hundred the core is full: 100 s of work.
    let jobs = vec![job(0, 0.0, 1.0, 0.0, 9.0); 100];
    close(simulate(&jobs, &setup(1, 1.0, 100)).unwrap().seconds, 100.0);
}

#[test]
fn logical_nodes_of_one_machine_share_it() {
    let jobs: Vec<Job> = (0..4).map(|node| job(node, 0.0, 10.0, 0.0, 0.0)).collect();
    let one = Setup { nodes_per_machine: 4, ..setup(4, 2.0, 1) };
    close(simulate(&jobs, &one).unwrap().seconds, 20.0);
}

#[test]
fn more_nodes_storage_or_cores_never_make_the_run_longer() {
    let jobs = |nodes: u32| -> Vec<Job> {
        (0..120)
            .map(|at| {
                let at_f = f64::from(at);
                job(at % nodes, at_f * 0.1, 1.0 + at_f % 7.0, (at_f % 5.0) * 1e6, at_f % 3.0)
            })
            .collect()
    };
    let seconds = |nodes: u32, cores: f64, rate: f64| {
        let storage = Some(Storage { bytes_per_second: rate, of: StorageOf::All });
        simulate(&jobs(nodes), &Setup { storage, ..setup(nodes, cores, 4) }).unwrap().seconds
    };
    assert!(seconds(4, 2.0, 1e7) <= seconds(2, 2.0, 1e7));
    assert!(seconds(2, 4.0, 1e7) <= seconds(2, 2.0, 1e7));
    assert!(seconds(2, 2.0, 1e8) <= seconds(2, 2.0, 1e6));
}

#[test]
fn a_thousand_nodes_with_the_same_jobs_take_as_long_as_one() {
    let mine: Vec<Job> = (0..20).map(|at| job(0, f64::from(at), 5.0, 1e6, 1.0)).collect();
    let all: Vec<Job> = (0..1000)
        .flat_map(|node| mine.iter().map(move |one| Job { node: Some(node), ..one.clone() }))
        .collect();
    let one = simulate(&mine, &setup(1, 4.0, 8)).unwrap();
    let thousand = simulate(&all, &setup(1000, 4.0, 8)).unwrap();
    close(thousand.seconds, one.seconds);
    close(thousand.real_seconds, 1000.0 * one.real_seconds);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fine = setup(1, 1.0, 1);
    assert!(simulate(&[job(1, 0.0, 1.0, 0.0, 0.0)], &fine).is_err());
    assert!(simulate(&[job(0, 0.0, f64::NAN, 0.0, 0.0)], &fine).is_err());
    assert!(simulate(&[job(0, 0.0, -1.0, 0.0, 0.0)], &fine).is_err());
    assert!(simulate(&[], &Setup { machine_cores: 0.0, ..fine }).is_err());
    let none = Some(Storage { bytes_per_second: 0.0, of: StorageOf::All });
    assert!(simulate(&[], &Setup { storage: none, ..fine }).is_err());
    assert_eq!(simulate(&[], &fine).unwrap(), Prediction::default());
    // A job that needs nothing ends at once.
    assert_eq!(simulate(&[job(0, 2.0, 0.0, 0.0, 0.0)], &fine).unwrap().seconds, 2.0);
}

#[test]
fn a_queue_of_higher_priority_starts_first_and_a_limit_holds_only_its_own_jobs_back() {
    let of = |queue: usize, due: f64| Job { node: None, queue, ..job(0, due, 2.0, 0.0, 0.0) };
    let queues = |slots_max| {
        [Queue::default(), Queue { priority: 5, slots_max: None }, Queue { priority: 9, slots_max }]
    };
    // One slot: the first runs, then the queues by their priority, whoever was due first.
    let jobs = vec![of(0, 0.0), of(0, 0.5), of(1, 1.0), of(2, 1.5)];
    let found = simulate_queues(&jobs, &setup(1, 4.0, 1), &queues(None)).unwrap();
    let waits: Vec<f64> = found.waits.concat();
    for (found, expected) in waits.iter().zip([0.0, 5.5, 3.0, 0.5]) {
        close(*found, expected);
    }
    close(found.prediction.slot_wait_seconds, 9.0);
    // Two slots, of which the highest queue may have one: its second job waits, the others pass it.
    let jobs = vec![of(2, 0.0), of(2, 0.0), of(0, 0.0), of(1, 1.0)];
    let found = simulate_queues(&jobs, &setup(1, 4.0, 2), &queues(Some(1))).unwrap();
    close(found.waits[2][1], 2.0);
    close(found.waits[0][0], 0.0);
    close(found.waits[1][0], 1.0);
    let wide = vec![Job { slots: 2, ..of(2, 0.0) }];
    assert!(simulate_queues(&wide, &setup(1, 4.0, 2), &queues(Some(1))).is_err());
    assert!(simulate(&[of(1, 0.0)], &setup(1, 4.0, 1)).is_err(), "a queue that is not there");
}
