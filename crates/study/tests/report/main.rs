//! The report as a page: well-formed, escaped, bounded and whole without network. That a browser shows it
//! without a complaint is tested end to end.

mod study;

use forebay_study::chart::unit::Unit;
use forebay_study::record::{DeviceScope, Exit, Record, State};
use forebay_study::report;
use forebay_study::summary::Summary;

fn page(record: &Record) -> String {
    report::report(record).into_string()
}

/// Parses the body strictly, as XML.
fn body(page: &str) -> roxmltree::Document<'_> {
    let start = page.find("<body").expect("a body");
    let end = page.rfind("</html>").expect("an end");
    roxmltree::Document::parse(&page[start..end]).expect("the body is well-formed")
}

fn text_of(document: &roxmltree::Document<'_>) -> String {
    let texts = document.descendants().filter(roxmltree::Node::is_text);
    texts.filter_map(|node| node.text()).collect::<Vec<_>>().join(" ")
}

/// Every page that the tests know, by name.
fn pages() -> Vec<(&'static str, String)> {
    let records = [
        ("mixed", study::mixed()),
        ("scaling", study::scaling()),
        ("probe", study::probe()),
        ("versus", study::versus()),
        ("partial", study::partial()),
        ("empty", study::empty()),
        ("hostile", hostile()),
    ];
    let mut pages: Vec<(&str, String)> =
        records.iter().map(|(name, record)| (*name, page(record))).collect();
    let compared = [
        ("before".to_owned(), study::mixed()),
        ("after, \"tuned\"".to_owned(), study::partial()),
        ("both".to_owned(), study::versus()),
    ];
    pages.push(("compare", report::comparison(&compared).unwrap().into_string()));
    pages
}

const NASTY: &str = "<script>document.title='taken'</script>";

/// A study in which everything that has a name has a bad one.
fn hostile() -> Record {
    let mut record = study::mixed();
    let long = "ä\"'<&>".repeat(50);
    let names = [NASTY, "\"><img src=x onerror=alert(1)>", "'; --", "]]>", "</style></svg>", &long];
    record.workload.name = NASTY.to_owned();
    record.workload.title = long.clone();
    record.workload.notes = names.map(str::to_owned).to_vec();
    record.workload.parameters =
        names.iter().map(|n| ((*n).to_owned(), NASTY.to_owned())).collect();
    record.command = names.map(str::to_owned).to_vec();
    record.state = State::Partial { reason: names.join(" ") };
    record.machine.host = NASTY.to_owned();
    record.machine.settings = record.workload.parameters.clone();
    record.subjects[0].label = names[1].to_owned();
    record.subjects[0].data = study::storage(NASTY);
    record.subjects[0].data.options = long.clone();
    let run = &mut record.runs[0];
    run.device_scope = DeviceScope::Devices(names.map(str::to_owned).to_vec());
    run.stages[0].name = names[4].to_owned();
    run.stages.push(run.stages[0].clone());
    run.stages[1].name = long.clone();
    for (i, job) in run.stages.iter_mut().flat_map(|stage| &mut stage.jobs).enumerate() {
        job.name = format!("{} {i}", names[i % names.len()]);
        job.class = names[i % names.len()].to_owned();
        job.exit = Exit::Failure { code: 1, message: names[(i + 1) % names.len()].to_owned() };
    }
    record
}

#[test]
fn every_page_is_well_formed() {
    for (name, page) in pages() {
        let document = body(&page);
        let drawings = document.descendants().filter(|node| node.attribute("role") == Some("img"));
        for drawing in drawings {
            let has = |child: &str| {
                drawing
                    .children()
                    .any(|node| node.has_tag_name(("http://www.w3.org/2000/svg", child)))
            };
            assert!(
                has("title") && has("desc"),
                "{name}: every drawing has a title and a description"
            );
        }
        let mut anchors: Vec<&str> =
            document.descendants().filter_map(|node| node.attribute("id")).collect();
        let count = anchors.len();
        anchors.sort_unstable();
        anchors.dedup();
        assert_eq!(anchors.len(), count, "{name}: no id stands twice");
        for link in document.descendants().filter_map(|node| node.attribute("href")) {
            assert!(
                anchors.contains(&link.trim_start_matches('#')),
                "{name}: {link} leads nowhere"
            );
        }
    }
}

#[test]
fn no_page_needs_anything_from_elsewhere() {
    for (name, page) in pages() {
        let namespaces_gone = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        let document = body(&page);
        for element in document.descendants().filter(roxmltree::Node::is_element) {
            let tag = element.tag_name().name();
            assert!(
                !["script", "img", "link", "iframe", "object", "style", "use"].contains(&tag),
                "{name}: {tag}"
            );
            for attribute in element.attributes() {
                assert!(
                    attribute.name() != "src" && !attribute.name().starts_with("on"),
                    "{name}: {attribute:?}"
                );
            }
        }
        let head = &namespaces_gone[..namespaces_gone.find("<body").expect("a body")];
        for outside in ["http:", "https:", "url(", "@import", "//cdn", "fetch(", "XMLHttpRequest"] {
            assert!(!head.contains(outside), "{name}: {outside}");
        }
        assert!(!namespaces_gone.contains("://"), "{name}: an address");
    }
}

#[test]
fn hostile_names_are_text_and_nothing_else() {
    let page = page(&hostile());
    let document = body(&page);
    assert_eq!(page.matches("<script").count(), 1, "the page's own script only");
    assert!(text_of(&document).contains(NASTY), "the name is shown as it is");
    assert!(!document.descendants().any(|node| node.has_tag_name("img")));
}

#[test]
fn what_cannot_be_drawn_is_left_out_with_a_reason() {
    let page = page(&study::empty());
    assert!(text_of(&body(&page)).contains("no run was made."));
    let mut record = study::mixed();
    record.runs[0].samples.clear();
    record.runs[0].device_scope = DeviceScope::None;
    let page = self::page(&record);
    let text = text_of(&body(&page));
    assert!(text.contains("the run has no samples."), "{text}");
    assert!(text.contains("Every job over time"), "jobs are drawn without samples");
    assert!(text.contains("no step of this workload measures single calls."));
    for job in &mut record.runs[0].stages[0].jobs {
        (job.start_seconds, job.end_seconds, job.exit) = (None, None, Exit::NotStarted);
    }
    let page = self::page(&record);
    assert!(text_of(&body(&page)).contains("no job was started."));
}

#[test]
fn numbers_that_are_none_do_not_reach_the_drawing() {
    let mut record = study::mixed();
    for (i, sample) in record.runs[0].samples.iter_mut().enumerate() {
        match i % 5 {
            0 => sample.seconds = 0.0,
            1 => sample.cpu_user = f64::NAN,
            2 => sample.device_read_seconds = f64::INFINITY,
            3 => sample.at_seconds = -1.0,
            _ => {}
        }
    }
    let page = page(&record);
    let document = body(&page);
    for node in document.descendants() {
        for attribute in node.attributes() {
            let bad = attribute.value().contains("NaN") || attribute.value().contains("inf");
            assert!(!bad || attribute.name() == "class", "{attribute:?}");
        }
    }
}

#[test]
fn partial_runs_are_marked_on_every_page() {
    let page = page(&study::partial());
    assert!(page.contains("<title>PARTIAL: "));
    assert!(page.contains("<body class=\"partial\">"));
    let text = text_of(&body(&page));
    assert!(text.contains("ended by SIGINT after 12 minutes"));
    assert!(!self::page(&study::mixed()).contains("<title>PARTIAL"));
    let compared = [("a".to_owned(), study::mixed()), ("b".to_owned(), study::partial())];
    let page = report::comparison(&compared).unwrap().into_string();
    assert!(page.contains("<title>PARTIAL: ") && page.contains("b: ended by SIGINT"));
}

#[test]
fn a_day_of_samples_and_thousands_of_jobs_stay_below_a_megabyte_and_a_half() {
    let mut numbers = study::Sequence(5);
    let mut record = study::empty();
    let stages = vec![study::stage("all", 1, 5000, 0.0, 86_400.0, &mut numbers)];
    let samples_every = 60.0;
    record.runs = vec![study::run(0, 0, stages, samples_every, 2e9, &mut numbers)];
    let sample = record.runs[0].samples.clone();
    record.runs[0].samples =
        sample.iter().flat_map(|sample| std::iter::repeat_n(sample.clone(), 60)).collect();
    for (i, sample) in record.runs[0].samples.iter_mut().enumerate() {
        sample.at_seconds = (i + 1) as f64;
        sample.seconds = 1.0;
    }
    record.runs[0].interval_seconds = 1.0;
    assert!(record.runs[0].samples.len() > 80_000);
    let page = page(&record);
    body(&page);
    assert!(page.len() < 1_500_000, "{} bytes", page.len());
}

#[test]
fn reports_are_written_whole_under_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = report::write(&study::mixed(), folder.path()).unwrap();
    assert_eq!(path, folder.path().join("report.html"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), page(&study::mixed()));
    let other = folder.path().join("compare.html");
    let sides = ["a", "b"].map(|label| (label.to_owned(), study::mixed()));
    report::write_comparison(&sides, &other).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["compare.html", "report.html"]);
    let missing = folder.path().join("missing");
    let told = report::write(&study::mixed(), &missing).unwrap_err().to_string();
    assert!(told.contains("cannot write") && told.contains("missing"), "{told}");
}

#[test]
fn what_cannot_be_compared_makes_no_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("compare.html");
    let sides = [("a".to_owned(), study::mixed()), ("b".to_owned(), study::scaling())];
    let told = report::write_comparison(&sides, &path).unwrap_err().to_string();
    assert!(told.contains("scaling"), "{told}");
    assert!(!path.exists());
}

#[test]
fn storages_of_one_study_stand_side_by_side_with_ratios_and_whiskers() {
    let page = page(&study::versus());
    let text = text_of(&body(&page));
    assert!(text.contains("Storages compared") && text.contains("nfs/forebay"), "{text}");
    assert!(page.contains("class=\"whisker\""));
    let alone = self::page(&study::mixed());
    assert!(!text_of(&body(&alone)).contains("Storages compared"));
}

/// Text of the chart with a title, with plain spaces; none if it is not on the page.
fn chart(page: &str, title: &str) -> Option<String> {
    let document = body(page);
    let heading = document
        .descendants()
        .find(|node| node.has_tag_name("h3") && node.text().is_some_and(|text| text == title))?;
    let figure = heading.ancestors().find(|node| node.has_tag_name("figure"))?;
    let texts: Vec<&str> = figure.descendants().filter_map(|node| node.text()).collect();
    Some(texts.join(" ").replace('\u{202f}', " "))
}

#[test]
fn rates_of_streams_are_charted_by_block_size_and_by_number_of_streams() {
    let page = page(&study::sweep(&[
        ("read 64 KiB", 4, 64.0, 100.0, 0.0),
        ("read", 4, 1024.0, 200.0, 0.0),
        ("write", 4, 1024.0, 0.0, 50.0),
        ("read 1 stream", 1, 1024.0, 300.0, 0.0),
    ]));
    let by_block = chart(&page, "Rate by block size").expect("a chart");
    for part in ["64 KiB", "400 MB/s", "1 MiB", "800 MB/s", "200 MB/s", "read", "written"] {
        assert!(by_block.contains(part), "{part}: {by_block}");
    }
    assert!(!by_block.contains("300 MB/s"), "other numbers of streams are another chart");
    let by_streams = chart(&page, "Rate by number of streams").expect("a chart");
    for part in ["1 stream of 1 MiB", "300 MB/s", "4 streams of 1 MiB", "800 MB/s"] {
        assert!(by_streams.contains(part), "{part}: {by_streams}");
    }
    assert!(!by_streams.contains("64 KiB"), "other sizes are another chart: {by_streams}");
    assert_eq!(chart(&self::page(&study::mixed()), "Rate by block size"), None);
}

#[test]
fn a_legend_names_the_median_of_the_tables() {
    let mut record = study::mixed();
    let run = &mut record.runs[0];
    // Short and quick seconds are many and weigh little; nothing was written.
    for (place, sample) in run.samples.iter_mut().enumerate() {
        sample.file_written_bytes = 0;
        sample.seconds = if place % 3 == 0 { 1.0 } else { 0.1 };
    }
    let rates = run.samples.iter().map(|one| one.file_read_bytes as f64 / one.seconds);
    let plain = forebay_study::statistics::median(rates).expect("samples");
    let summary = Summary::of(&record);
    let sustained = summary.runs[0].file.sustained_mb_per_second.expect("samples") * 1e6;
    assert!(plain > 2.0 * sustained, "the two medians cannot be told apart");
    let legend = chart(&page(&record), "Throughput at the file level").expect("a chart");
    let shown = Unit::BytesPerSecond.show(sustained).replace('\u{202f}', " ");
    assert!(legend.contains(&format!("median {shown}, peak")), "{shown}: {legend}");
}

#[test]
fn a_stored_record_makes_a_report() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mixed");
    let record = Record::read(&folder).unwrap();
    let page = page(&record);
    body(&page);
    for part in
        ["Throughput at the file level", "Every job over time", "Sizes of calls", "Jobs by class"]
    {
        assert!(page.contains(&format!("<h3>{part}</h3>")), "{part}");
    }
}
