use super::*;

fn site(more: &str) -> Site {
    let text = format!(
        "name = \"s\"\n{more}\n[[users]]\ntype = \"base\"\nnumber = 60\nworking = 0.5\n\
         [[users]]\ntype = \"etl\"\nnumber = 4\nworking = 1.0\njobs = 2\ninput_gb = 40\n"
    );
    Site::read("site.toml", &text).unwrap()
}

#[test]
fn a_plan_goes_from_users_to_cores_to_rates_and_shows_each_formula() {
    let plan = plan(&site("data_tb = 20"));
    // 60 x 0.5 x 1 + 4 x 1 x 2.
    assert_eq!(plan.value("jobs"), 38.0);
    assert_eq!(plan.value("cores"), 31.0);
    assert_eq!(plan.value("nodes"), 2.0);
    assert_eq!(plan.value("mb_s"), 3100.0);
    assert_eq!(plan.value("storage_mb_s"), 6200.0);
    // (30 x 10 + 8 x 40) GB, three times.
    assert!((plan.value("scratch_tb") - 1.86).abs() < 1e-9);
    assert!((plan.value("data_tb") - 25.0).abs() < 1e-9);
    assert_eq!(plan.value("memory_gib"), 72.0);
    for line in &plan.lines {
        assert!(!line.formula.is_empty() && !line.source.is_empty(), "{}", line.key);
    }
    let jobs = plan.lines.iter().find(|line| line.key == "jobs").unwrap();
    assert_eq!(jobs.formula, "(60 x 0.5 x 1 + 4 x 1 x 2) x 1");
}

#[test]
fn growth_applies_to_users_and_data() {
    let grown = plan(&site("data_tb = 20\ngrowth_per_year = 0.5\nyears = 2"));
    assert_eq!(grown.value("jobs"), (38.0_f64 * 2.25).ceil());
    assert!((grown.value("data_tb") - 56.25).abs() < 1e-9);
    let today = grown.what_if.iter().find(|one| one.change.starts_with("today")).unwrap();
    assert_eq!(today.nodes, 2.0);
    assert!(grown.what_if.iter().any(|one| one.change == "4 years"));
}

#[test]
fn each_layout_has_enough_devices_for_its_space_and_its_rate() {
    let plan = plan(&site("data_tb = 20\nprices = { node = 1000, flash = 100, disk = 10 }"));
    assert_eq!(plan.layouts.len(), 3);
    for layout in &plan.layouts {
        for part in &layout.parts {
            let device = if part.device == "flash" { &plan.site.flash } else { &plan.site.disk };
            assert!(part.number * device.tb >= part.tb, "{layout:?}");
            assert!(part.number * device.mb_s >= part.mb_s, "{layout:?}");
        }
        let devices: f64 = layout
            .parts
            .iter()
            .map(|part| part.number * if part.device == "flash" { 100.0 } else { 10.0 })
            .sum();
        assert_eq!(layout.cost, Some(2000.0 + devices));
    }
    // Disks are bought for their rate, flash for its space.
    let (flash, disks) = (&plan.layouts[0].parts[0], &plan.layouts[2].parts[1]);
    assert_eq!((flash.bound, disks.bound), ("capacity", "rate"));
}

#[test]
fn a_node_without_room_for_its_scratch_is_said_to_be_too_small() {
    let plan = plan(&site("node = { cores = 16, flash_slots = 0 }"));
    assert!(plan.layouts[1].note.contains("does not fit"), "{}", plan.layouts[1].note);
}

#[test]
fn the_plan_stands_beside_the_published_studies() {
    let all = published::beside(1.25);
    // 14 cores at 100 MB/s: within a tenth of what study 1 sustained, with 40 and with 80 sessions.
    for one in &all[..2] {
        let theirs = one.published.mb_s.unwrap();
        assert!((one.planned_mb_s / theirs - 1.0).abs() < 0.1, "{one:?}");
    }
    // The cores of study 4 are what the plan wants for its 20 jobs.
    assert_eq!(all[3].planned_cores, Some(all[3].published.cores));
    assert!(all.iter().all(|one| !one.published.remark.is_empty()));
}

#[test]
fn a_bad_description_is_refused_with_what_is_allowed() {
    let cases = [
        ("", "missing field `users`"),
        ("users = []", "no [[users]]"),
        ("speed = 3\nusers = []", "line 1: unknown field `speed`"),
        ("[[users]]\ntype = \"clerk\"\nnumber = 1\nworking = 1.0", "line 2"),
        (
            "[[users]]\ntype = \"base\"\nnumber = 1\nworking = 1.5",
            "working = 1.5 is not allowed: must be a number from 0 to 1",
        ),
        ("[[users]]\ntype = \"base\"\nnumber = nan\nworking = 0.5", "number = NaN is not allowed"),
        ("[[users]]\ntype = \"other\"\nnumber = 1\nworking = 0.5", "input_gb is missing"),
        ("years = -1\n[[users]]\ntype = \"base\"\nnumber = 1\nworking = 0.5", "years = -1"),
    ];
    for (text, wanted) in cases {
        let message = Site::read("site.toml", text).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message:?} lacks {wanted:?}");
    }
}

#[test]
fn the_template_is_a_description_and_its_comments_are_the_defaults() {
    let text = format!("{TEMPLATE_HEAD}\n{TEMPLATE}");
    let read = Site::read("site.toml", &text).unwrap();
    let uncommented: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut all = Site::read("site.toml", &uncommented).unwrap();
    assert!(all.prices.take().is_some());
    all.users[0].input_gb = None;
    assert_eq!(all, read);
}

#[test]
fn numbers_are_shown_with_as_many_digits_as_count() {
    assert_eq!(shown(1234.56), "1235");
    assert_eq!(shown(3.0), "3");
    assert_eq!(shown(0.25), "0.25");
    assert_eq!(shown(12.5), "12.5");
}
