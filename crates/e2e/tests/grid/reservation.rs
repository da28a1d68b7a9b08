//! Advance reservations, with our own commands and with those of LSF and Slurm.

use crate::asked::Site;

const SETTINGS: &str = "[general]\nadmins = [\"root\"]\n";

#[test]
fn a_reservation_keeps_others_away_and_its_jobs_end_with_it() {
    let site = Site::start(SETTINGS);
    let grid = &site.grid;
    let create = ["reservation", "create", "course", "--users", "root", "--hosts", "h1"];
    let long = [&create[..], &["--slots", "3", "--duration", "1 h"]].concat();
    grid.forebay(&long, &[]).succeeds();
    let said = grid.forebay(&long, &[]).refused();
    assert!(said.contains("there is a reservation course already"), "{said}");
    let told: serde_json::Value =
        serde_json::from_str(&grid.forebay(&["reservation", "list", "--json"], &[]).output())
            .unwrap();
    assert_eq!(told[0]["name"], "course");
    assert_eq!(told[0]["slots"], 3);
    let other = grid.submit(&[], "sleep 605 & wait");
    grid.wait_for(&other, "running");
    let more = grid.submit(&[], "true");
    site.explains(&more, "reservation course: is reserved from");
    let inside = grid.submit(&["--reservation", "course", "-n", "3"], "true");
    grid.wait_for(&inside, "done");
    let told = site.asked(&inside);
    assert_eq!(told["reservation"], "course");
    let said = grid.forebay(&["submit", "--reservation", "none", "--", "true"], &[]).refused();
    assert!(said.contains("there is no reservation none"), "{said}");
    grid.forebay(&["reservation", "delete", "course"], &[]).succeeds();
    grid.wait_for(&more, "done");
    // A short one: what runs in it ends with it.
    let short = [&create[..], &["--duration", "15 s"]].concat();
    grid.forebay(&short, &[]).succeeds();
    let inside = grid.submit(&["--reservation", "course"], "sleep 605 & wait");
    grid.wait_for(&inside, "time_limit");
    assert_eq!(grid.forebay(&["reservation", "list", "--json"], &[]).output().trim(), "[]");
    let late = [&create[..], &["--start", "+2 h", "--end", "+1 h"]].concat();
    assert!(grid.forebay(&late, &[]).refused().contains("must end after it starts"));
}

#[test]
fn the_commands_of_lsf_and_slurm_make_show_use_and_delete_reservations() {
    let site = Site::start(SETTINGS);
    let grid = &site.grid;
    let made = site.says("brsvadd -n 2 -m h1 -u root -b $(date -d +2hours +%Y:%m:%d:%H:%M) -e $(date -d +3hours +%Y:%m:%d:%H:%M)");
    assert_eq!(made, "Reservation root-0 is created");
    let shown = site.says("brsvs");
    assert!(shown.contains("root-0") && shown.contains("h1:2"), "{shown}");
    let job = site.says("bsub -U root-0 true | sed 's/[^0-9]*\\([0-9]*\\).*/\\1/'");
    site.explains(&job, "reservation root-0 begins at");
    site.says(&format!("bmod -Un {job}"));
    grid.wait_for(&job, "done");
    assert!(site.says("brsvdel root-0").contains("is being deleted"));
    site.refuses("brsvdel root-0", "there is no reservation root-0");
    let made = site.says(
        "scontrol create reservation ReservationName=r StartTime=now Duration=60 Users=root Nodes=h1 Flags=IGNORE_JOBS",
    );
    assert_eq!(made, "Reservation created: r");
    let shown = site.says("scontrol show reservation r");
    assert!(shown.contains("ReservationName=r") && shown.contains("State=ACTIVE"), "{shown}");
    assert!(shown.contains("Nodes=h1 NodeCnt=1 CoreCnt=4"), "{shown}");
    let job = site.says("sbatch --parsable --reservation=r --wrap true");
    grid.wait_for(&job, "done");
    assert!(site.says(&format!("scontrol show job {job}")).contains("Reservation=r"));
    site.says("scontrol delete ReservationName=r");
    assert_eq!(site.says("scontrol show reservation"), "No reservations in the system");
}
