//! The plan as a page: one HTML file that needs nothing else, in the style of the reports of studies.

use forebay_advisor::plan::{CHECKLIST, Layout, Plan, shown};
use forebay_analytics::Table;
use forebay_study::chart::bars::{Extent, Group, Value, bars};
use forebay_study::chart::figure::{Caption, Ink};
use forebay_study::chart::unit::Unit;
use forebay_study::report::{Head, Section, Standing, page, sheet};
use forebay_study::summary::Sheet;
use maud::{Markup, html};

use super::{Evidence, Measured, OfGrid, Verified, recorded};

/// The whole page.
pub(super) fn plan_page(plan: &Plan, evidence: &Evidence<'_>) -> Markup {
    let head = Head {
        kicker: "Forebay plan".to_owned(),
        title: plan.site.name.clone(),
        under: evidence.lines(),
        standing: Standing::Complete,
    };
    let section = |name, title, body| Section { name, title, body };
    let mut sections = vec![
        section("needed", "What is needed", sheet(&numbers(plan))),
        section("storage", "Storage", html! { (layout_charts(plan)) (sheet(&layouts(plan))) }),
        section("what-if", "What if", html! { (what_if_chart(plan)) (sheet(&what_if(plan))) }),
    ];
    if let Some(busiest) = evidence.busiest {
        let title =
            "Queues: jobs at once and MB/s in the busiest hour; the rest over all finished jobs";
        sections.insert(0, section("queues", title, sheet(&queues(busiest))));
    }
    if let Some(found) = evidence.verified {
        let body = html! { (error_chart(found)) (sheet(&accuracy(found))) };
        sections.push(section("accuracy", "How far predictions are off", body));
    }
    sections.push(section("checklist", "Before buying", checklist()));
    page(&head, &sections)
}

/// Predictions beside what was measured.
fn accuracy(found: &Verified) -> Sheet {
    let mut rows = Table::new(&recorded::COLUMNS);
    for line in &found.accuracy.lines {
        let one = &line.checked;
        rows.push(vec![
            one.stage.as_str().into(),
            u64::from(one.nodes).into(),
            u64::from(one.concurrent).into(),
            (one.jobs as u64).into(),
            one.measured_seconds.into(),
            one.predicted_seconds.into(),
            (line.error * 100.0).into(),
            one.measured_real_seconds.into(),
            one.predicted_real_seconds.into(),
            (line.real_error * 100.0).into(),
        ]);
    }
    let mut notes = vec![
        "All stages are predicted from the stage of one node with the model of plan simulate. The first line repeats that stage: what two \
         runs of the same differ."
            .to_owned(),
    ];
    notes.extend(found.accuracy.machine.disturbance());
    table("accuracy", "Predictions beside measurements", notes, rows)
}

fn error_chart(found: &Verified) -> Markup {
    let group = |line: &super::accuracy::Line| {
        let value = |middle, place: usize, series: &str| Value {
            middle,
            spread: None,
            ink: Ink::number(place),
            series: series.to_owned(),
        };
        let one = &line.checked;
        let values = vec![
            value(one.measured_seconds, 0, "measured"),
            value(one.predicted_seconds, 1, "predicted"),
        ];
        Group { label: one.stage.clone(), unit: Unit::Seconds, values }
    };
    let groups: Vec<Group> = found.accuracy.lines.iter().map(group).collect();
    let caption = Caption::new("Seconds of each stage, measured and predicted", "");
    html! { @if let Some(chart) = bars(&caption, &groups, Extent::Common) { (chart) } }
}

/// What a study on the own hardware sustained.
pub(super) fn measured_line(found: &Measured) -> String {
    let ratio = found.cpu_per_real.map_or(String::new(), |ratio| format!(", CPU/real {ratio:.2}"));
    format!(
        "Measured: {} MB/s sustained for each of {} cores{ratio} ({})",
        shown(found.mb_s_per_core),
        found.cores,
        found.record.display()
    )
}

fn table(name: &'static str, title: &str, notes: Vec<String>, table: Table) -> Sheet {
    Sheet { name, title: title.to_owned(), notes, table }
}

fn numbers(plan: &Plan) -> Sheet {
    let mut rows = Table::new(&["needed", "value", "unit", "formula", "source"]);
    for line in &plan.lines {
        rows.push(vec![
            line.what.into(),
            line.value.into(),
            line.unit.into(),
            line.formula.as_str().into(),
            line.source.into(),
        ]);
    }
    let note = "Each number uses those above it.".to_owned();
    table("numbers", "The numbers with their formulas", vec![note], rows)
}

/// What each queue did.
fn queues(busiest: &OfGrid) -> Sheet {
    let mut rows = Table::new(&OfGrid::COLUMNS);
    for (queue, numbers) in busiest.rows() {
        rows.push(std::iter::once(queue.into()).chain(numbers.map(Into::into)).collect());
    }
    let note = "Jobs at once and MB/s are those of the busiest hour; the other numbers are of all finished jobs.".to_owned();
    table("queues", "Demand and waits by queue", vec![note], rows)
}

fn layouts(plan: &Plan) -> Sheet {
    let has_prices = plan.site.prices.is_some();
    let mut columns = vec!["layout", "devices", "number", "bound by", "TB", "MB/s"];
    if has_prices {
        columns.push("cost with nodes and network");
    }
    let mut rows = Table::new(&columns);
    for layout in &plan.layouts {
        for (at, part) in layout.parts.iter().enumerate() {
            let mut row = vec![
                layout.name.into(),
                format!("{} for {}", part.device, part.purpose).as_str().into(),
                part.number.into(),
                part.bound.into(),
                part.tb.into(),
                part.mb_s.into(),
            ];
            if has_prices {
                row.push(layout.cost.filter(|_| at == 0).unwrap_or(f64::NAN).into());
            }
            rows.push(row);
        }
    }
    let notes = plan.layouts.iter().map(|one| format!("{}: {}", one.name, one.note)).collect();
    table("layouts", "Ways to build it", notes, rows)
}

fn what_if(plan: &Plan) -> Sheet {
    let mut rows = Table::new(&["change", "nodes", "MB/s", "scratch TB"]);
    for one in &plan.what_if {
        let numbers = [one.nodes, one.mb_s, one.scratch_tb].map(Into::into);
        rows.push(std::iter::once(one.change.as_str().into()).chain(numbers).collect());
    }
    table("changes", "The plan with one number changed", Vec::new(), rows)
}

fn single(label: &str, unit: Unit, middle: f64) -> Group {
    let value = Value { middle, spread: None, ink: Ink::number(0), series: String::new() };
    Group { label: label.to_owned(), unit, values: vec![value] }
}

fn layout_charts(plan: &Plan) -> Markup {
    let devices = |layout: &Layout| layout.parts.iter().map(|part| part.number).sum::<f64>();
    let all = |unit, of: &dyn Fn(&Layout) -> f64| -> Vec<Group> {
        plan.layouts.iter().map(|layout| single(layout.name, unit, of(layout))).collect()
    };
    let devices = all(Unit::Count, &devices);
    let costs = all(Unit::Plain, &|layout| layout.cost.unwrap_or(f64::NAN));
    let note = "Flash and disks together; the table names them.";
    let cost_note = "With nodes and network, in the currency of the prices of the description.";
    html! {
        @if let Some(chart) = bars(&Caption::new("Devices of each layout", note), &devices, Extent::Common) { (chart) }
        @if let Some(chart) = bars(&Caption::new("Cost of each layout", cost_note), &costs, Extent::Common) { (chart) }
    }
}

fn what_if_chart(plan: &Plan) -> Markup {
    let groups: Vec<Group> = plan
        .what_if
        .iter()
        .map(|one| single(&one.change, Unit::BytesPerSecond, one.mb_s * 1e6))
        .collect();
    let caption =
        Caption::new("What the storage must sustain", "The plan with one number changed.");
    html! { @if let Some(chart) = bars(&caption, &groups, Extent::Common) { (chart) } }
}

fn checklist() -> Markup {
    html! { ul class="checklist" { @for item in CHECKLIST { li { (item) } } } }
}

#[cfg(test)]
mod tests {
    use forebay_advisor::plan::{Site, TEMPLATE, plan};

    use super::*;

    #[test]
    fn the_page_has_every_number_layout_change_and_item() {
        let plan = plan(&Site::read("s", TEMPLATE).unwrap());
        let page = plan_page(&plan, &Evidence::default()).into_string();
        for line in &plan.lines {
            assert!(page.contains(line.what), "{}", line.what);
        }
        for layout in &plan.layouts {
            assert!(page.contains(layout.name), "{}", layout.name);
        }
        assert!(page.contains("barred") && page.contains("Before buying"));
        assert_eq!(page.matches("<li>").count(), CHECKLIST.len());
        for other in ["http://", "https://"] {
            let outside = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!outside.contains(other), "nothing is loaded from elsewhere");
        }
    }
}
