//! Hosts that are rebooted, that are away for too long, and settings that are read again.

use forebay_e2e::{Mounted, Placement, run, wait_until};
use rustix::process::Signal;

use crate::fixture::{Fixture, LIMIT, SHORT, STEADY};

/// Ends all processes of jobs, as the machine does that goes down.
fn end_all_jobs(grid: &Fixture) {
    wait_until("no process of a job is left", LIMIT, || {
        for pid in grid.shims() {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        !grid.left_behind().iter().any(|left| left.starts_with("process"))
    });
}

#[test]
fn a_lease_of_an_earlier_boot_counts_for_nothing_and_its_jobs_are_lost() {
    let mut grid = Fixture::start(1, "");
    let once = grid.submit(&[], "echo ran >>once; exec sleep 600");
    let again = grid
        .submit(&["--rerunnable"], "echo ran >>again; test $FOREBAY_ATTEMPT = 2 || exec sleep 600");
    grid.wait_for(&once, "running");
    grid.wait_for(&again, "running");
    let said =
        |name: &&str| std::fs::metadata(grid.jobs.join(name)).is_ok_and(|file| file.len() > 0);
    wait_until("both have begun", LIMIT, || ["once", "again"].iter().all(said));
    grid.kill_controller();
    grid.kill_agent("h1");
    end_all_jobs(&grid);
    let folder = grid.agent_folder("h1");
    // The clock of the machine starts anew, so the old lease seems to last for ages.
    std::fs::write(folder.join("boot"), "another-boot\n").expect("writes");
    std::fs::write(folder.join("lease"), u64::MAX.to_string()).expect("writes");
    grid.start_agent("h1");
    wait_until("the lease is taken back", LIMIT, || {
        std::fs::read_to_string(folder.join("lease")).expect("reads").parse() == Ok(0)
    });
    grid.start_controller();
    grid.wait_for_hosts(1);
    grid.wait_for(&again, "done");
    grid.wait_for(&once, "host_lost");
    let ran = |name: &str| std::fs::read_to_string(grid.jobs.join(name)).expect("reads");
    assert_eq!((ran("once").as_str(), ran("again").as_str()), ("ran\n", "ran\nran\n"));
    assert_eq!(grid.history(&again)[0]["fate"], "again");
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn jobs_of_a_host_that_is_away_have_ended_before_they_start_elsewhere() {
    let mut grid = Fixture::start(2, STEADY);
    // Without a lock of the kernel's the second start would find the first one alive.
    let script = "exec 9>>lock; flock -n 9 || { echo both >overlap; exit 1; }; \
                  test $FOREBAY_ATTEMPT = 1 || { test -e \"$WORK/kept\"; exit; }; \
                  touch \"$WORK/kept\"; sleep 600";
    let job = grid.submit(&["--rerunnable", "--checkpoint", "-m", "h1+1 h2"], script);
    grid.wait_for(&job, "running");
    let once = grid.submit(&["-m", "h1"], "sleep 600");
    grid.wait_for(&once, "running");
    grid.kill_agent("h1");
    grid.wait_for(&job, "done");
    grid.wait_for(&once, "host_lost");
    assert!(!grid.jobs.join("overlap").exists());
    let attempts = grid.history(&job);
    assert_eq!((&attempts[0]["host"], &attempts[1]["host"]), (&"h1".into(), &"h2".into()));
    // What it did when it was away is cleared once it is back.
    grid.start_agent("h1");
    grid.wait_for_hosts(2);
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

const TWICE: &str = "echo ran >>again; test $FOREBAY_ATTEMPT != 1 || exec sleep 600";

#[test]
fn a_controller_that_is_away_for_longer_than_the_lease_starts_again_what_it_may() {
    let mut grid = Fixture::start(1, STEADY);
    let once = grid.submit(&[], "sleep 600");
    let again = grid.submit(&["--rerunnable"], TWICE);
    grid.wait_for(&once, "running");
    grid.wait_for(&again, "running");
    grid.kill_controller();
    wait_until("the jobs have ended", LIMIT, || grid.shims().is_empty());
    grid.start_controller();
    grid.wait_for(&again, "done");
    grid.wait_for(&once, "host_lost");
    for job in [once, again] {
        let first = &grid.history(&job)[0];
        assert_eq!((&first["exit"], &first["loss"]), (&serde_json::Value::Null, &"lease".into()));
    }
    let ran = std::fs::read_to_string(grid.jobs.join("again")).expect("reads");
    assert_eq!(ran, "ran\nran\n");
}

#[test]
fn a_job_whose_shim_was_killed_starts_again_if_it_may() {
    let grid = Fixture::start(1, "");
    let (once, again) = (grid.submit(&[], "sleep 600"), grid.submit(&["--rerunnable"], TWICE));
    grid.wait_for(&once, "running");
    grid.wait_for(&again, "running");
    for pid in grid.shims() {
        rustix::process::kill_process(pid, Signal::KILL).expect("kills");
    }
    grid.wait_for(&again, "done");
    grid.wait_for(&once, "host_lost");
    assert_eq!(grid.history(&again)[0]["loss"], "holder");
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn a_host_that_cannot_make_work_areas_ends_no_job() {
    let grid = Fixture::start(1, "");
    let (work, aside) = (grid.root.join("grid/work"), grid.root.join("aside"));
    std::fs::rename(&work, &aside).expect("takes the place of work areas away");
    let job = grid.submit(&[], "echo ran >>ran");
    wait_until("it was tried twice", LIMIT, || grid.history(&job).len() >= 2);
    assert!(grid.history(&job)[0]["loss"]["unable"].as_str().expect("a reason").contains("work"));
    wait_until("it is explained", LIMIT, || {
        grid.forebay(&["explain", &job]).output().contains("is not used for a while")
    });
    std::fs::rename(&aside, &work).expect("gives it back");
    grid.wait_for(&job, "done");
    assert_eq!(std::fs::read_to_string(grid.jobs.join("ran")).expect("reads"), "ran\n");
}

#[test]
fn a_host_on_which_a_file_system_does_not_answer_ends_no_job() {
    let mounted = Mounted::start(Placement::Served);
    let grid = Fixture::start(1, "");
    let mut command = grid.command(&["submit", "--hold", "--", "touch", "ran"]);
    let job = run(command.current_dir(mounted.data()), LIMIT).output().trim().to_owned();
    // Its daemon is dead and its mount is there: the output of the job cannot be opened.
    mounted.daemon().expect("the daemon runs").kill();
    grid.forebay(&["release", &job]).succeeds();
    wait_until("it was tried twice", LIMIT, || grid.history(&job).len() >= 2);
    let first = &grid.history(&job)[0];
    let why = first["loss"]["unable"].as_str().unwrap_or_default();
    assert!(why.contains("cannot open the output"), "{first}");
    // While nothing is mounted there is no directory for it, which would be its own fault.
    grid.forebay(&["hold", &job]).succeeds();
    grid.wait_for(&job, "held");
    mounted.detach();
    mounted.mount();
    grid.forebay(&["release", &job]).succeeds();
    grid.wait_for(&job, "done");
    assert!(mounted.data().join("ran").exists());
}

#[test]
fn a_host_whose_agent_was_stopped_for_long_is_used_again() {
    let grid = Fixture::start(1, SHORT);
    let again = grid.submit(&["--rerunnable"], TWICE);
    grid.wait_for(&again, "running");
    grid.signal_agent("h1", Signal::STOP);
    wait_until("the host is given up", LIMIT, || grid.json(&["hosts"])[0]["state"] == "gone");
    grid.signal_agent("h1", Signal::CONT);
    grid.wait_for(&again, "done");
}

#[test]
fn no_host_is_given_up_because_the_controller_was_stopped() {
    let grid = Fixture::start(1, SHORT);
    let before = grid.submit(&["--rerunnable"], TWICE);
    grid.wait_for(&before, "running");
    grid.signal_controller(Signal::STOP);
    wait_until("the lease is over", LIMIT, || grid.shims().is_empty());
    // Longer than a host may be silent.
    std::thread::sleep(std::time::Duration::from_secs(5));
    grid.signal_controller(Signal::CONT);
    let after = grid.submit(&[], "true");
    grid.wait_for(&after, "done");
    grid.wait_for(&before, "done");
    assert_eq!(grid.history(&before)[0]["loss"], "lease", "the host was given up");
}

#[test]
fn bad_settings_keep_the_old_ones_and_say_so() {
    let grid = Fixture::start(1, "");
    let settings = grid.root.join("grid/grid.toml");
    std::fs::write(&settings, "[general]\nlease = \"1 s\"\nhost_timeouts = \"2 s\"\n")
        .expect("writes");
    grid.reload();
    wait_until("the log says what is wrong", LIMIT, || {
        let log = grid.log("controller");
        log.contains("ERROR") && log.contains("grid.toml: line 3") && log.contains("host_timeouts")
    });
    assert!(grid.forebay(&["queues"]).output().contains("normal"));
    for more in [&[][..], &["--check"]] {
        let said = grid.forebay(&[&["reload"], more].concat()).refused();
        assert!(said.contains("grid.toml: line 3") && said.contains("host_timeouts"), "{said}");
    }
    std::fs::write(&settings, "[[queue]]\nname = \"night\"\npriority = 3\n").expect("writes");
    let said = grid.forebay(&["reload", "--check", "--json"]).output();
    assert_eq!(said, "{\n  \"hosts\": 0,\n  \"queues\": 1\n}\n");
    assert!(!grid.forebay(&["queues"]).output().contains("night"), "it was checked only");
    grid.forebay(&["reload"]).succeeds();
    assert!(grid.forebay(&["queues"]).output().contains("night"));
    std::fs::write(&settings, "[[queue]]\nname = \"night\"\n[[queue]]\nname = \"day\"\n")
        .expect("writes");
    grid.reload();
    wait_until("the settings hold", LIMIT, || grid.forebay(&["queues"]).output().contains("day"));
    let job = grid.submit(&["-q", "night"], "true");
    grid.wait_for(&job, "done");
}

#[test]
fn a_job_that_is_requeued_to_another_host_keeps_its_new_work_area() {
    let grid = Fixture::start(2, "");
    let deep = "mkdir -p $(seq -s / 60) && touch $(seq 300)";
    let script =
        format!("cd \"$WORK\"; {deep}; sleep 0.1; test -e \"$WORK/300\" && test -d \"$UTIL\"");
    let job = grid.submit(&["-m", "h1"], &script);
    // Ended and requeued at once: the first area is on its way out while the second one is made.
    for _ in 0..10 {
        grid.wait_for(&job, "done");
        grid.forebay(&["requeue", &job]).succeeds();
    }
    grid.wait_for(&job, "done");
    assert_eq!(grid.history(&job).len(), 11);
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn a_time_limit_ends_a_job_and_all_its_processes() {
    let grid = Fixture::start(1, "");
    let job = grid.submit(&["--time-limit", "1 s"], "trap '' TERM; sleep 600 & sleep 600 & wait");
    grid.wait_for(&job, "time_limit");
    wait_until("nothing is left", LIMIT, || grid.left_behind().is_empty());
}

#[test]
fn an_agent_without_descriptors_tells_of_an_end_later_and_loses_no_job() {
    use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
    let grid = Fixture::start(1, "");
    let job = grid.submit(&[], "until [ -e go ]; do sleep 0.1; done; touch over; exit 7");
    grid.wait_for(&job, "running");
    let agent = Some(grid.agent("h1"));
    let none = Rlimit { current: Some(0), ..getrlimit(Resource::Nofile) };
    let before = prlimit(agent, Resource::Nofile, none).expect("takes descriptors away");
    std::fs::write(grid.jobs.join("go"), "").expect("writes");
    wait_until("it has ended", LIMIT, || {
        grid.jobs.join("over").exists() && grid.shims().is_empty()
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(grid.state(&job), "running", "its end is not known yet");
    prlimit(agent, Resource::Nofile, before).expect("gives them back");
    grid.wait_for(&job, "exited");
    let history = grid.history(&job);
    assert!(history.len() == 1 && history[0]["exit"].to_string().contains('7'), "{history:?}");
}
