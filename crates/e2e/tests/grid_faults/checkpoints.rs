//! Jobs that start on another host with the work area of their last step: hosts with work areas of their own and one place for
//! checkpoints.

use std::path::Path;

use forebay_e2e::mounted::scratch_folder;
use forebay_e2e::need::forebay;
use forebay_e2e::wait_until;
use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Fixture, LIMIT, STEADY};

/// Two steps. After the first one the first start goes on with what is not part of any step.
const SCRIPT: &str = r#"
set -e
c="$FOREBAY checkpoint"
if ! $c has make; then
    mkdir "$WORK/d"
    head -c 3000000 /dev/urandom >"$WORK/d/big"
    sha256sum <"$WORK/d/big" >sum
    $c done make --wait --json >cost
fi
if test "$FOREBAY_ATTEMPT" = 1; then
    echo half >"$WORK/half"
    : >there
    sleep 600
fi
echo "$FOREBAY_HOST" >second-host
sha256sum <"$WORK/d/big" | cmp - sum
test ! -e "$WORK/half"
echo more >"$WORK/more"
$c done more --wait --verbose >second-cost
$c list --json >list
"#;

fn read(grid: &Fixture, name: &str) -> String {
    std::fs::read_to_string(grid.jobs.join(name)).expect("the job has written it")
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The folder of the grid's checkpoints.
fn place(above: &Path) -> std::path::PathBuf {
    let name = entries(above).pop().expect("the agents have made one");
    above.join(name)
}

#[test]
fn a_job_whose_host_died_starts_on_another_one_at_its_last_finished_step() {
    let folder = scratch_folder();
    let (work, above) = (folder.path().join("w-{host}"), folder.path().join("checkpoints"));
    let words = ["--work", work.to_str().unwrap(), "--checkpoints", above.to_str().unwrap()];
    let settings = format!("{STEADY}reap_interval = \"1 s\"\n");
    let grid = Fixture::start_with(2, &settings, &words);
    let variable = format!("FOREBAY={}", forebay().display());
    let options = ["--checkpoint", "--rerunnable", "-m", "h1+1 h2", "--env", &variable];
    let job = grid.submit(&options, SCRIPT);
    wait_until("the first step has finished", LIMIT, || grid.jobs.join("there").exists());
    let cost: Value = serde_json::from_str(&read(&grid, "cost")).unwrap();
    // The file, and the record of the step.
    assert_eq!((&cost["step"], &cost["changed_files"]), (&"make".into(), &2.into()), "{cost}");
    assert!(cost["changed_bytes"].as_u64().is_some_and(|bytes| bytes > 3_000_000), "{cost}");
    assert!(cost["pause_ms"].is_u64(), "{cost}");
    for command in [&["explain", &job][..], &["jobs", "-l", &job]] {
        wait_until("the checkpoint is shown", LIMIT, || {
            let said = grid.forebay(command).output();
            said.contains("checkpoint 1.1 after step make: 2.9 MiB")
                && said.contains("taken on h1")
                && said.contains(" ago")
        });
    }
    let areas = grid.json(&["areas"]).to_string();
    assert!(areas.contains(&format!("job-{job}-checkpoint")), "{areas}");
    // The machine of the first host dies, as far as others can see.
    grid.signal_agent("h1", Signal::STOP);
    wait_until("the job has ended", LIMIT, || grid.state(&job) == "done");
    assert_eq!(read(&grid, "second-host"), "h2\n");
    let second = read(&grid, "second-cost");
    assert!(
        second.contains("checkpoint 2.1: ") && second.contains(" in 2 changed files"),
        "{second}"
    );
    let list: Value = serde_json::from_str(&read(&grid, "list")).unwrap();
    assert_eq!(list["restored"]["number"], "1.1", "{list}");
    assert_eq!(list["shipped"][0]["number"], "2.1", "{list}");
    assert_eq!(list["steps"].as_array().map(Vec::len), Some(2), "{list}");
    grid.signal_agent("h1", Signal::CONT);
    wait_until("nothing of it is left, on the first host neither", LIMIT, || {
        let left = |place: &Path| entries(place).iter().any(|name| name.contains("job-"));
        !left(&place(&above))
            && !["w-h1", "w-h2"].iter().any(|host| left(&folder.path().join(host)))
    });
}

#[test]
fn a_place_for_checkpoints_that_was_removed_is_made_again_for_jobs_and_for_the_removal_of_orphans()
{
    let folder = scratch_folder();
    let above = folder.path().join("checkpoints");
    let settings = format!("{STEADY}reap_interval = \"1 s\"\n");
    let grid = Fixture::start_with(1, &settings, &["--checkpoints", above.to_str().unwrap()]);
    let variable = format!("FOREBAY={}", forebay().display());
    let place = place(&above);
    std::fs::remove_dir_all(&place).unwrap();
    wait_until("hosts that look for orphans make it again", LIMIT, || place.is_dir());
    std::fs::remove_dir_all(&place).unwrap();
    let script = "echo x >\"$WORK/x\"; $FOREBAY checkpoint done one --wait";
    let job = grid.submit(&["--checkpoint", "--env", &variable], script);
    wait_until("the job has ended", LIMIT, || grid.state(&job) == "done");
}

#[test]
fn orphans_go_from_hosts_that_can_look_while_another_one_cannot() {
    let folder = scratch_folder();
    let work = folder.path().join("w-{host}");
    let settings = format!("{STEADY}reap_interval = \"1 s\"\n");
    let _grid = Fixture::start_with(2, &settings, &["--work", work.to_str().unwrap()]);
    std::fs::rename(folder.path().join("w-h1"), folder.path().join("unmounted")).unwrap();
    let orphan = folder.path().join("w-h2/job-4711");
    std::fs::create_dir(&orphan).unwrap();
    wait_until("the orphan is gone", LIMIT, || !orphan.exists());
}

#[test]
fn checkpoints_beyond_the_setting_are_refused_with_its_name_and_the_job_goes_on() {
    let folder = scratch_folder();
    let above = folder.path().join("checkpoints");
    let settings = format!("{STEADY}checkpoint_bytes_max = \"1 MiB\"\n");
    let grid = Fixture::start_with(1, &settings, &["--checkpoints", above.to_str().unwrap()]);
    let variable = format!("FOREBAY={}", forebay().display());
    let script = "head -c 2000000 /dev/zero >\"$WORK/big\"; $FOREBAY checkpoint done big --wait; \
                  echo $? >code; $FOREBAY checkpoint has big || echo missing >code; rm \"$WORK/big\"; echo x >\"$WORK/small\"; $FOREBAY checkpoint done small --wait; \
                  $FOREBAY checkpoint list";
    let job = grid.submit(&["--checkpoint", "--env", &variable], script);
    wait_until("the job has ended", LIMIT, || grid.state(&job) == "done");
    let said = grid.forebay(&["output", &job]).output();
    assert!(said.contains("1 MiB of checkpoint_bytes_max"), "{said}");
    assert_eq!(read(&grid, "code"), "2\n", "who waits is told that it is not safe");
    assert!(said.contains("shipped: checkpoint 1.1 after step small: "), "{said}");
}

#[test]
fn an_agent_whose_place_for_checkpoints_is_not_mounted_makes_nothing_there() {
    let folder = scratch_folder();
    let grid = Fixture::start(1, STEADY);
    let place = folder.path().join("mount/data/.checkpoints");
    let (root, place_word) = (grid.root.display().to_string(), place.display().to_string());
    let words = ["agent", &root, "--name", "h9", "--slots", "1", "--checkpoints", &place_word];
    let refused = grid.forebay(&words).refused();
    assert!(refused.contains("--checkpoints") && refused.contains(&place_word), "{refused}");
    assert!(entries(folder.path()).is_empty());
}
