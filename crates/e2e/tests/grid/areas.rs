//! Work areas: who sees them, and that orphans go and nothing else.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use forebay_e2e::command::{Ended, run};
use forebay_e2e::need::{self, forebay};
use forebay_e2e::wait_until;
use serde_json::Value;

use crate::{Fixture, LIMIT};

impl Fixture {
    fn areas(&self) -> PathBuf {
        self.root.join("grid/work")
    }

    /// Puts an area there as if its job was forgotten.
    fn leave(&self, name: &str) -> PathBuf {
        let path = self.areas().join(name);
        fs::create_dir_all(path.join("deep/er")).expect("makes folders");
        fs::write(path.join("deep/er/file"), vec![1; 100_000]).expect("writes");
        path
    }

    fn listed_areas(&self, more: &[&str]) -> Value {
        let text = self.forebay(&["areas", "--json"], more).output();
        serde_json::from_str(&text).expect("is JSON")
    }

    /// What `forebay areas` says of a job's area for work: its state.
    fn area(&self, job: &str) -> Option<String> {
        let told = self.listed_areas(&[]);
        let areas = told["areas"].as_array().expect("is a list");
        let found = areas.iter().find(|area| area["job"] == job && area["kind"] == "work")?;
        Some(found["state"].as_str().expect("is a text").to_owned())
    }

    /// As another user.
    pub(crate) fn as_user(&self, uid: u32, arguments: &[&str]) -> Ended {
        let mut command = Command::new(forebay());
        command.args(arguments).env("FOREBAY_GRID", &self.root).current_dir("/tmp");
        run(command.uid(uid).gid(uid), LIMIT)
    }

    /// Waits until the host has looked for orphans, which it does two seconds after it joined: what a test leaves has to
    /// outlast it.
    fn outlast_first_sweep(&self) {
        let bait = self.areas().join("job-60");
        fs::create_dir(&bait).expect("makes a folder");
        // It may have looked before the bait was there, so that nobody takes it.
        for _ in 0..200 {
            if !bait.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_dir(&bait);
    }

    /// Waits until the orphan is gone that a host looks for when it joins.
    fn wait_for_sweep(&self, orphan: &std::path::Path) {
        wait_until("the orphan is gone", LIMIT, || !orphan.exists());
        wait_until("nothing of it is left", LIMIT, || {
            let names = fs::read_dir(self.areas()).expect("lists");
            names.flatten().all(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".gone"))
        });
    }
}

#[test]
fn orphans_go_when_a_host_joins_or_when_asked_and_nothing_else_does() {
    let mut grid = Fixture::start();
    let kept = grid.submit(
        &["--checkpoint", "--requeue-exit", "99"],
        "test -e \"$WORK/once\" && sleep 600; touch \"$WORK/once\"; exit 99",
    );
    let running = grid.submit(&[], "echo some >\"$WORK/some\"; sleep 600");
    grid.wait_for(&running, "running");
    wait_until("the job starts again", LIMIT, || grid.attempts(&kept) == 1);
    grid.wait_for(&kept, "running");
    grid.outlast_first_sweep();
    let orphan = grid.leave("job-77");
    let element = grid.leave("job-78-3-util");
    let stranger = grid.leave("results");
    // Of one agent that died, a second one finds what is left.
    grid.kill_daemon(1);
    grid.start_agent();
    grid.wait_for_sweep(&orphan);
    assert!(!element.exists());
    let orphan = grid.leave("job-79");
    let outside = grid.jobs.join("precious");
    fs::create_dir(&outside).expect("makes a folder");
    fs::write(outside.join("file"), "kept").expect("writes");
    symlink(&outside, orphan.join("link")).expect("links");
    symlink(&outside, grid.areas().join("job-80")).expect("links");
    wait_until("the agent says that the job runs", LIMIT, || {
        grid.area(&running).as_deref() == Some("running")
    });
    assert_eq!(grid.area("79").as_deref(), Some("orphaned"));
    assert_eq!(grid.area("80"), None, "a link is no area");
    let told = grid.listed_areas(&[]);
    let one = told["areas"].as_array().expect("is a list").iter().find(|area| area["job"] == "79");
    let one = one.expect("is listed");
    assert!((100_000..200_000).contains(&one["bytes"].as_u64().expect("was counted")), "{one}");
    let said = grid.forebay(&["areas", "--reap"], &[]).output();
    assert!(said.contains("removed: ") && said.contains("job-79"), "{said}");
    assert!(!orphan.exists());
    assert_eq!(fs::read_to_string(outside.join("file")).expect("reads"), "kept");
    assert!(stranger.join("deep/er/file").exists(), "what is no area stays");
    assert!(grid.areas().join(format!("job-{kept}/once")).exists(), "what is kept stays");
    assert!(grid.areas().join(format!("job-{running}/some")).exists(), "what is used stays");
    let said = grid.forebay(&["areas", "--reap"], &[]).output();
    assert!(said.contains("nothing to remove"), "{said}");
    for job in [&kept, &running] {
        grid.forebay(&["kill", job], &[]).succeeds();
        grid.wait_for(job, "killed");
    }
    fs::remove_dir_all(&stranger).expect("removes");
    fs::remove_file(grid.areas().join("job-80")).expect("removes");
    wait_until("the work areas are gone", LIMIT, || grid.is_without_work());
}

#[test]
fn an_area_that_waits_for_the_next_start_of_its_job_is_kept() {
    let mut grid = Fixture::start();
    let job = grid.submit(&["--checkpoint"], "touch \"$WORK/step\"; sleep 600");
    wait_until("the step is done", LIMIT, || grid.areas().join(format!("job-{job}/step")).exists());
    grid.forebay(&["host", "close", "h1"], &[]).succeeds();
    grid.forebay(&["requeue", &job], &[]).succeeds();
    grid.wait_for(&job, "pending");
    wait_until("its area is kept", LIMIT, || grid.area(&job).as_deref() == Some("kept"));
    // The next agent looks for orphans; this is none.
    let orphan = grid.leave("job-90");
    grid.kill_daemon(1);
    grid.start_agent();
    grid.wait_for_sweep(&orphan);
    grid.forebay(&["areas", "--reap"], &[]).succeeds();
    assert!(grid.areas().join(format!("job-{job}/step")).exists());
    grid.forebay(&["kill", &job], &[]).succeeds();
    wait_until("the work areas are gone", LIMIT, || grid.is_without_work());
}

#[test]
fn nothing_is_reaped_while_a_host_is_away() {
    let mut grid = Fixture::start();
    let root = grid.root.display().to_string();
    grid.spawn(&["agent", &root, "--name", "h2", "--slots", "1"]);
    let first = grid.leave("job-90");
    wait_until("both hosts are up", LIMIT, || {
        grid.forebay(&["hosts"], &[]).output().matches(" up ").count() == 2
    });
    grid.wait_for_sweep(&first);
    let orphan = grid.leave("job-91");
    let job = grid.submit(&["-m", "h2"], "sleep 600");
    grid.wait_for(&job, "running");
    grid.kill_daemon(2);
    wait_until("a host is away", LIMIT, || {
        grid.forebay(&["hosts"], &[]).output().contains(" unreachable ")
    });
    let said = grid.forebay(&["areas", "--reap"], &[]).refused();
    assert!(said.contains("h2 is unreachable"), "{said}");
    assert!(orphan.exists());
    // What is known is listed, and what is not is said.
    let listed = grid.forebay(&["areas"], &[]).expect_code(0);
    assert!(
        listed.stderr.contains("h2 is unreachable") && listed.stdout.contains("orphaned"),
        "{listed:?}"
    );
    assert_eq!(grid.listed_areas(&[])["unknown"], serde_json::json!(["h2"]));
    assert_eq!(grid.area(&job).as_deref(), Some("unknown"));
    grid.spawn(&["agent", &root, "--name", "h2", "--slots", "1"]);
    // Both hosts see the same place: one of them removes it, now or when it looks for orphans.
    wait_until("the orphan is gone", LIMIT, || {
        let _ = grid.forebay(&["areas", "--reap"], &[]);
        !orphan.exists()
    });
    assert_eq!(grid.listed_areas(&[])["unknown"], serde_json::json!([]));
    grid.forebay(&["kill", &job], &[]).succeeds();
    wait_until("the work areas are gone", LIMIT, || grid.is_without_work());
}

#[test]
fn a_place_belongs_to_one_grid_and_its_agents_share_it() {
    let mut grid = Fixture::start();
    let other = grid.root.parent().expect("has a parent").join("other");
    fs::create_dir(&other).expect("makes a folder");
    let place = grid.areas();
    let agent = |root: &std::path::Path| {
        let mut command = Command::new(forebay());
        command.arg("agent").arg(root).args(["--name", "x", "--slots", "1"]);
        command.arg("--work").arg(&place);
        run(&mut command, LIMIT)
    };
    let said = agent(&other).refused();
    let owner = format!("belongs to the grid of {}", grid.root.display());
    assert!(said.contains(&owner) && said.contains("--work"), "{said}");
    // It stays that grid's when its agent has ended.
    let kept = grid.leave("job-93");
    grid.stop_agent(libc::SIGTERM);
    assert!(agent(&other).refused().contains(&owner));
    assert!(kept.exists(), "it was not taken for an orphan");
    grid.start_agent();
    let root = grid.root.display().to_string();
    grid.spawn(&["agent", &root, "--name", "h2", "--slots", "1"]);
    wait_until("both hosts are up", LIMIT, || {
        grid.forebay(&["hosts"], &[]).output().matches(" up ").count() == 2
    });
}

#[test]
fn up_says_at_once_why_a_host_could_not_begin() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let root = folder.path().join("grid");
    let call = |arguments: &[&str]| {
        let mut command = Command::new(forebay());
        run(command.args(arguments).arg(&root), LIMIT)
    };
    fs::create_dir_all(root.join("grid/work/.forebay-grid")).expect("makes what is in the way");
    let said = call(&["up"]).refused();
    assert!(said.contains(".forebay-grid"), "{said}");
    fs::remove_dir(root.join("grid/work/.forebay-grid")).expect("removes it");
    // The controller is up by now, and stays.
    call(&["up", "--hosts", "2"]).succeeds();
    call(&["down"]).succeeds();
}

#[test]
fn with_every_host_away_the_list_is_empty_and_says_so() {
    let mut grid = Fixture::start();
    grid.kill_daemon(1);
    wait_until("the host is away", LIMIT, || {
        grid.forebay(&["hosts"], &[]).output().contains(" unreachable ")
    });
    let told = grid.listed_areas(&[]);
    assert_eq!((&told["areas"], &told["unknown"][0]), (&serde_json::json!([]), &"h1".into()));
    let said = grid.forebay(&["areas", "--reap"], &[]).refused();
    assert!(said.contains("no host is connected"), "{said}");
}

#[test]
fn users_see_and_reap_their_own_areas_only() {
    need::root();
    let grid = Fixture::start();
    // Both users have to reach the socket.
    let folder = grid.root.parent().expect("has a parent").to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("opens the folder");
    grid.outlast_first_sweep();
    let first = grid.leave("job-90");
    grid.forebay(&["areas", "--reap"], &[]).succeeds();
    assert!(!first.exists());
    let (ann, ben) = (4101, 4102);
    let (of_ann, of_ben) = (grid.leave("job-91"), grid.leave("job-92"));
    std::os::unix::fs::chown(&of_ann, Some(ann), Some(ann)).expect("gives away");
    std::os::unix::fs::chown(&of_ben, Some(ben), Some(ben)).expect("gives away");
    let jobs = |ended: Ended| -> Vec<String> {
        let told: Value = serde_json::from_str(&ended.output()).expect("is JSON");
        let areas = told["areas"].as_array().expect("is a list");
        areas.iter().map(|area| area["job"].as_str().expect("is a text").to_owned()).collect()
    };
    let seen = jobs(grid.as_user(ann, &["areas", "--json"]));
    assert!(seen.iter().all(|job| job == "91"), "{seen:?}");
    let script = "sleep 600";
    let submitted = ["submit", "-o", "/dev/null", "--", "sh", "-c", script];
    let job = grid.as_user(ann, &submitted).output().trim().to_owned();
    grid.wait_for(&job, "running");
    assert!(jobs(grid.as_user(ann, &["areas", "--json"])).contains(&job));
    assert!(!jobs(grid.as_user(ben, &["areas", "--json"])).contains(&job));
    assert!(jobs(grid.forebay(&["areas", "--json"], &[])).contains(&job));
    let said = grid.as_user(ben, &["areas", "--reap"]).output();
    assert!(!said.contains("job-91") && !said.contains(&format!("job-{job}")), "{said}");
    let said = grid.as_user(ben, &["kill", &job]).refused();
    assert!(!said.is_empty());
    grid.as_user(ann, &["kill", &job]).succeeds();
    grid.wait_for(&job, "killed");
    // Each sees its own sums only.
    let usage = |ended: Ended| -> Value { serde_json::from_str(&ended.output()).expect("is JSON") };
    let own = usage(grid.as_user(ann, &["usage", "--json"]));
    assert_eq!((own.as_array().map(Vec::len), &own[0]["user"]), (Some(1), &Value::from("4101")));
    assert_eq!(usage(grid.as_user(ben, &["usage", "--json"])), Value::Array(Vec::new()));
    assert_eq!(usage(grid.forebay(&["usage", "--json"], &[]))[0]["user"], "4101");
    wait_until("the work areas are gone", LIMIT, || {
        let _ = grid.forebay(&["areas", "--reap"], &[]);
        grid.is_without_work()
    });
}

#[test]
fn a_link_in_the_place_of_an_area_does_not_lead_the_job_astray() {
    let grid = Fixture::start();
    let outside = grid.jobs.join("outside");
    fs::create_dir(&outside).expect("makes a folder");
    fs::write(outside.join("file"), "kept").expect("writes");
    symlink(&outside, grid.areas().join("job-1")).expect("links");
    let ended = grid.forebay(
        &["submit", "--wait", "--checkpoint"],
        &["--", "sh", "-c", "touch \"$WORK/mine\"; test ! -e \"$WORK/file\""],
    );
    assert_eq!(ended.expect_code(0).stdout, "1\n");
    assert_eq!(fs::read_dir(&outside).expect("lists").count(), 1);
    wait_until("the work area is gone", LIMIT, || grid.is_without_work());
}

/// A grid whose jobs may have 1 MiB in their areas.
fn limited(exceeded: &str) -> Fixture {
    let grid = Fixture::start();
    let settings = format!(
        "[[queue]]\nname = \"normal\"\narea_limit = \"1 MiB\"\narea_exceeded = \"{exceeded}\"\n"
    );
    fs::write(grid.root.join("grid/grid.toml"), settings).expect("writes settings");
    grid.forebay(&["reload"], &[]).succeeds();
    grid
}

const FILLS: &str = "head -c 3000000 /dev/zero > $UTIL/much; until test -e go; do sleep 0.1; done";

#[test]
fn a_job_whose_areas_hold_too_much_is_held_until_they_hold_less() {
    let grid = limited("hold");
    let job = grid.submit(&[], FILLS);
    grid.wait_for(&job, "suspended");
    let said = grid.forebay(&["explain", &job], &[]).output();
    assert!(said.contains("area_limit") && said.contains("suspended"), "{said}");
    fs::write(grid.jobs.join("go"), "").expect("writes");
    fs::remove_file(grid.areas().join(format!("job-{job}-util/much"))).expect("removes");
    grid.wait_for(&job, "done");
}

#[test]
fn a_job_whose_areas_hold_too_much_is_ended_if_its_queue_says_so() {
    let grid = limited("end");
    let waited = grid.forebay(&["submit", "--wait"], &["--", "sh", "-c", FILLS]);
    assert!(waited.code() != 0 && waited.stderr.contains("area_limit"), "{waited:?}");
    assert_eq!(grid.state("1"), "area_limit");
}
