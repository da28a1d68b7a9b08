//! The submission filter of a site.

use std::os::unix::fs::PermissionsExt as _;

use crate::Fixture;

#[test]
fn a_submission_filter_changes_and_refuses_jobs() {
    let grid = Fixture::start();
    let program = grid.jobs.join("filter");
    let script = "#!/bin/sh\njob=$(cat)\ncase $job in\n*'\"project\":\"\"'*) echo 'give a project with -P' >&2; exit 1;;\n\
                  *'\"project\":\"small\"'*) echo \"$job\" | sed 's/^.*\"job\"://; s/,\"node\":[^{]*$//; s/\"slots\":[0-9]*/\"slots\":1/';;\nesac\n";
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = format!("[general]\nsubmit_filter = \"{}\"\n", program.display());
    std::fs::write(grid.root.join("grid/grid.toml"), settings).unwrap();
    grid.forebay(&["reload"], &[]).succeeds();
    let refused = grid.forebay(&["submit", "--", "true"], &[]).refused();
    assert!(
        refused.contains("filter of this grid refused it: give a project with -P"),
        "{refused}"
    );
    let kept = grid.submit(&["-P", "large", "-n", "2"], "echo $FOREBAY_SLOTS >>kept");
    let changed = grid.submit(&["-P", "small", "-n", "2"], "echo $FOREBAY_SLOTS >>changed");
    grid.wait_for(&kept, "done");
    grid.wait_for(&changed, "done");
    assert_eq!((grid.lines("kept"), grid.lines("changed")), (vec!["2".into()], vec!["1".into()]));
    // What bsub's -a names is told to it.
    std::fs::write(&program, "#!/bin/sh\ncat >$0.seen\n").unwrap();
    grid.forebay(&["compat", "call", "bsub", "-a", "openmpi", "-n", "2", "true"], &[]).succeeds();
    let seen = std::fs::read_to_string(program.with_extension("seen")).unwrap();
    assert!(seen.contains("[\"LSB_SUB_ADDITIONAL\",\"openmpi\"]"), "{seen}");
    std::fs::write(&program, script).unwrap();
    // Nor does a flow get past it.
    let flow = "[flow]\nname = \"f\"\n[[job]]\nname = \"a\"\ncommand = [\"true\"]\n";
    std::fs::write(grid.jobs.join("f.toml"), flow).unwrap();
    let refused = grid.forebay(&["flow", "run", "f.toml"], &[]).refused();
    assert!(refused.contains("give a project"), "{refused}");
    // A filter that is gone refuses everything.
    std::fs::remove_file(&program).unwrap();
    let refused = grid.forebay(&["submit", "-P", "x", "--", "true"], &[]).refused();
    assert!(refused.contains("the submission filter of this grid failed"), "{refused}");
}
