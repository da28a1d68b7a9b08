//! A job whose node died starts on another node with the work area of its last step.

use forebay_e2e::wait_until;

use crate::fixture::{LIMIT, Nodes, SHORT, text};

const SCRIPT: &str = r#"
set -e
c="$FOREBAY checkpoint"
if ! $c has make; then
    head -c 3000000 /dev/urandom >"$WORK/big"
    sha256sum <"$WORK/big" >sum
    $c done make --wait --json >cost
    $c list --json >list
fi
if test "$FOREBAY_ATTEMPT" = 1; then
    : >there
    sleep 600
fi
sha256sum <"$WORK/big" | cmp - sum
echo "$FOREBAY_HOST" >second-host
"#;

#[test]
fn a_job_whose_node_died_starts_on_another_one_from_bytes_that_a_third_has_copied() {
    let grid = Nodes::start(3, 1, SHORT);
    let jobs = grid.root(0).with_file_name("jobs");
    let read = |name: &str| std::fs::read_to_string(jobs.join(name)).expect("it was written");
    let variable = format!("FOREBAY={}", text(&grid.root(0).with_file_name("forebay")));
    let options = ["--checkpoint", "--rerunnable", "-m", "n1+1 n2", "--env", &variable];
    let job = grid.submit(0, 0, &options, SCRIPT);
    wait_until("the first step has finished", LIMIT, || jobs.join("there").exists());
    let list: serde_json::Value = serde_json::from_str(&read("list")).expect("is JSON");
    let kept_on = list["shipped"][0]["kept_on"].as_str().unwrap_or_default();
    assert!(["n0", "n2"].contains(&kept_on), "another node has copied it: {list}");
    assert_eq!(list["shipped"][0]["counts"], true, "{list}");
    wait_until("the copy is explained", LIMIT, || {
        let said = grid.as_user(2, 0, &["explain", &job]).output();
        said.contains(&format!("copied by {kept_on}"))
    });
    // Its daemons and its network are gone at once; its file system comes back no more.
    grid.cluster.hosts().unplug(1);
    grid.kill(1, "hosts/n1/lock");
    grid.cluster.kill(1);
    grid.wait_for(0, &job, "done");
    assert_eq!(read("second-host"), "n2\n");
    let place = grid.cluster.mountpoint(0).join("data/.checkpoints/g");
    wait_until("its checkpoints are removed", LIMIT, || {
        std::fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_none())
    });
}
