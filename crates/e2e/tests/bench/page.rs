//! The pages of real results, as a browser shows them.

use std::fs;

use crate::browser::{self, Shown};
use crate::fixture::{Bench, HEAD, quick, streams};

const NASTY: &str = "<script>document.title='taken'</script>";

#[track_caller]
fn shown(name: &str, bench: &Bench, file: &str) -> Shown {
    let page = fs::read_to_string(bench.place().join(file)).expect("reads the page");
    let shown = browser::show(name, &page);
    assert!(shown.complaints.is_empty(), "{name}: {:#?}", shown.complaints);
    assert!(!shown.dom.contains("<title>taken</title>"), "{name}: a name ran as a script");
    let drawings = shown.dom.matches("role=\"img\"").count();
    let labelled = shown.dom.matches("aria-label=\"").count();
    assert!(labelled > drawings, "{name}: the script ran to its end over {drawings} drawings");
    assert_eq!(shown.too_wide, None, "{name}: nothing is wider than a phone");
    shown
}

#[test]
fn a_browser_shows_the_report_of_a_run_without_complaints() {
    let bench = Bench::new();
    let long = "file_bytes = \"8 MiB\"\npattern = \"mixed\"\nduration_seconds = 3";
    bench.run(&format!("{HEAD}{}", streams("long", 2, long)), &[]).succeeds();
    let shown = shown("run", &bench, "result/report.html");
    assert!(shown.dom.contains("role=\"img\""), "there are drawings");
    let told = shown.read_out.expect("the pointer reads what was sampled");
    assert!(told.contains("read ") && told.contains("B/s"), "{told}");
}

#[test]
fn names_from_a_mix_are_text_on_the_page() {
    let bench = Bench::new();
    let nasty = quick()
        .replace("Jobs that are known", NASTY)
        .replace("study = \"none\"", "study = \"\\\"><img src=x onerror=alert(1)>\"")
        .replace("title = \"streams\"", "title = \"</svg></style>'; --\"");
    bench.run(&nasty, &[]).succeeds();
    let shown = shown("nasty", &bench, "result/report.html");
    assert!(!shown.dom.contains("<img"), "a name became an element");
}

#[test]
fn a_browser_shows_failures_and_comparisons_without_complaints() {
    let bench = Bench::new();
    let fails =
        streams("reader", 1, "file_bytes = \"1 MiB\"\npattern = \"read\"\nfill = \"never\"");
    let _ = bench.run(&format!("{}{fails}", quick()), &[]).expect_code(1);
    let page = shown("failure", &bench, "result/report.html");
    assert!(page.dom.contains("<title>PARTIAL: ") && page.dom.contains("reader-0"));
    fs::rename(bench.out(), bench.place().join("other")).expect("renames");
    bench.run(&quick(), &[]).succeeds();
    bench.call(&["bench", "compare", "other", "result"]).succeeds();
    let _ = shown("comparison", &bench, "comparison.html");
}

#[test]
fn a_browser_shows_a_plan_without_complaints() {
    let bench = Bench::new();
    let site = bench.file("site.toml", &bench.call(&["plan", "--template"]).output());
    let site = site.display().to_string();
    bench.call(&["plan", &site, "--out", "plan.html"]).succeeds();
    let page = shown("plan", &bench, "plan.html");
    for part in ["barred", "What the storage must sustain", "Before buying"] {
        assert!(page.dom.contains(part), "{part}");
    }
}
