//! `forebay plan`.

mod accuracy;
mod history;
mod page;
mod recorded;
mod simulate;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::plan::{
    CHECKLIST, Layout, Line, Part, Plan, Site, TEMPLATE, TEMPLATE_HEAD, Users, plan, published,
    shown,
};
use forebay_grid::parse::period::Period;
use forebay_study::chart::unit::span;
use forebay_study::record::Record;
use forebay_study::report;
use forebay_study::summary::Summary;

use self::accuracy::Accuracy;
use self::history::{Busiest, History};
use crate::commands::grid::home_of;
use crate::output::{Table, put_json, put_text};

/// Size a grid: cores, nodes, MB/s, devices, network and memory for a site.
///
/// FILE describes the users of the site and what they read. The plan shows each number with its formula and the formula's
/// source, then several ways to build the storage, how the plan depends on its inputs, and what to settle before buying. With
/// --record it uses the MB/s per core that a workload sustained on your own hardware, instead of the usual demand. With --history it
/// uses the busiest hour of a grid: its jobs at once in place of the description's, shared among the users as described, and what
/// they read and wrote.
#[derive(clap::Args)]
#[command(
    name = "plan",
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  forebay plan --template >site.toml             a description to start from
  forebay plan site.toml
  forebay plan site.toml --rate 150              MB/s for each core
  forebay plan site.toml --record results/       as fast as this study was (forebay bench run)
  forebay plan site.toml --history /srv/forebay  as busy as this grid was
  forebay plan site.toml --out plan.html         a page with charts
  forebay plan site.toml --out plan.html --verified plan-verify-20260307-101500/
  forebay plan --studies                         the plan beside the published studies
  forebay plan simulate results/ --machines 1,2,4      the jobs of a study on more machines
  forebay plan simulate --history /srv/forebay         the jobs that a grid has finished
  forebay plan verify /mnt/forebay/data                how far such predictions are off here"
)]
pub struct PlanCommand {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Description of the site, in TOML.
    #[arg(required_unless_present_any = ["template", "studies"])]
    file: Option<PathBuf>,
    /// MB/s that the storage must deliver per core; overrides the description.
    #[arg(long, value_name = "MB/s", conflicts_with = "record")]
    rate: Option<f64>,
    /// Result of a study: use the MB/s that its jobs sustained per physical core.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// Plan for the busiest hour of the grid in ROOT, or in FOREBAY_GRID if ROOT is omitted, from its finished jobs.
    #[arg(long, value_name = "ROOT", num_args = 0..=1, conflicts_with_all = ["record", "rate", "template", "studies"])]
    history: Option<Option<PathBuf>>,
    /// With --history: only jobs that ended within this time, such as '30 d'.
    #[arg(long, value_name = "TIME", requires = "history", value_parser = |text: &str| text.parse::<Period>())]
    since: Option<Period>,
    /// Result of `forebay plan verify`: show beside the plan how far predictions were off on that hardware.
    #[arg(long, value_name = "DIR")]
    verified: Option<PathBuf>,
    /// Print a sample description to start from.
    #[arg(long, conflicts_with_all = ["file", "studies", "json"])]
    template: bool,
    /// Also show the hardware and figures of the published studies.
    #[arg(long, conflicts_with = "file")]
    studies: bool,
    /// Also write the plan as a page with charts into this HTML file, which needs nothing else.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["template", "studies"])]
    out: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Verb {
    Simulate(simulate::SimulateCommand),
    Verify(verify::VerifyCommand),
}

/// What a study sustained.
#[derive(serde::Serialize)]
struct Measured {
    /// Its folder.
    record: PathBuf,
    mb_s_per_core: f64,
    cpu_per_real: Option<f64>,
    cores: u32,
}

/// What a grid did in its busiest hour.
#[derive(serde::Serialize)]
struct OfGrid {
    /// Its folder.
    grid: PathBuf,
    /// Its finished jobs that are known.
    jobs: usize,
    #[serde(flatten)]
    busiest: Busiest,
}

/// What a plan rests on besides its description.
#[derive(Clone, Copy, Default)]
struct Evidence<'a> {
    measured: Option<&'a Measured>,
    busiest: Option<&'a OfGrid>,
    verified: Option<&'a Verified>,
}

/// How far predictions were off, by an earlier `forebay plan verify`.
#[derive(serde::Serialize)]
struct Verified {
    /// The folder of its result.
    result: PathBuf,
    #[serde(flatten)]
    accuracy: Accuracy,
}

impl Verified {
    fn read(folder: &Path) -> Result<Verified> {
        let accuracy = Accuracy::of(&Record::read(folder)?).with_context(|| {
            format!("--verified {}: not a result of forebay plan verify", folder.display())
        })?;
        Ok(Verified { result: folder.to_owned(), accuracy })
    }

    /// A line for people.
    fn line(&self) -> String {
        let worst = self.accuracy.worst_error * 100.0;
        let spoilt = self.accuracy.machine.disturbance();
        format!(
            "Predictions on this hardware were off by at most {worst:.1} % ({}){}",
            self.result.display(),
            spoilt.map_or(String::new(), |why| format!(". {why}"))
        )
    }
}

impl PlanCommand {
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Some(Verb::Simulate(command)) => return command.run(),
            Some(Verb::Verify(command)) => return command.run(),
            None => {}
        }
        if self.template {
            put_text(&format!("{TEMPLATE_HEAD}\n{TEMPLATE}"))?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.studies {
            return show_studies(self.json);
        }
        let file = self.file.as_deref().context("no description is given")?;
        let mut site = read(file)?;
        let measured = self.record.as_deref().map(measure).transpose()?;
        if let Some(rate) = self.rate.or(measured.as_ref().map(|found| found.mb_s_per_core)) {
            if !(1.0..=100_000.0).contains(&rate) {
                bail!("--rate {rate}: must be a number from 1 to 100000 (MB/s)");
            }
            site.mb_s_per_core = rate;
        }
        let busiest = self.busiest()?;
        if let Some(busiest) = &busiest {
            busiest.apply(&mut site);
        }
        let plan = plan(&site);
        let verified = self.verified.as_deref().map(Verified::read).transpose()?;
        let evidence = Evidence {
            measured: measured.as_ref(),
            busiest: busiest.as_ref(),
            verified: verified.as_ref(),
        };
        if let Some(out) = &self.out {
            report::save(out, &page::plan_page(&plan, &evidence))?;
        }
        if self.json {
            let mut value = serde_json::to_value(&plan)?;
            value["measured"] = serde_json::to_value(&measured)?;
            value["history"] = serde_json::to_value(&busiest)?;
            value["verified"] = serde_json::to_value(&verified)?;
            value["checklist"] = serde_json::to_value(CHECKLIST)?;
            put_json(&value)?;
        } else {
            put_text(&text(&plan, &evidence))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl PlanCommand {
    /// The busiest hour of a grid, if one was named.
    fn busiest(&self) -> Result<Option<OfGrid>> {
        let Some(root) = &self.history else { return Ok(None) };
        let home = home_of(root.clone())?;
        let history = History::read(&home, self.since)?;
        let grid = home.folder().parent().unwrap_or(home.folder()).to_owned();
        Ok(Some(OfGrid { grid, jobs: history.len(), busiest: history.busiest() }))
    }
}

impl OfGrid {
    /// Has a description say as many jobs at once, and as many bytes.
    fn apply(&self, site: &mut Site) {
        let described: f64 = site.users.iter().map(Users::jobs_at_once).sum();
        let &Busiest { jobs_at_once, mb_s, .. } = &self.busiest;
        if described > 0.0 && jobs_at_once > 0.0 {
            for users in &mut site.users {
                users.number *= jobs_at_once / described;
            }
            site.mb_s_per_core = mb_s * site.jobs_per_core / jobs_at_once;
        }
    }

    /// The columns of its queues.
    const COLUMNS: [&str; 8] =
        ["queue", "jobs at once", "MB/s", "jobs in all", "slot h", "CPU h", "wait s", "wait s p95"];

    /// Its queues for people.
    fn table(&self) -> String {
        let mut table = Table::new(&OfGrid::COLUMNS);
        for (queue, numbers) in self.rows() {
            table.row(std::iter::once(queue.to_owned()).chain(numbers.map(shown)).collect());
        }
        table.render()
    }

    fn rows(&self) -> impl Iterator<Item = (&str, [f64; 7])> {
        self.busiest.queues.iter().map(|one| {
            let demand = &one.demand;
            let (jobs, waits) = (demand.jobs as f64, &demand.waits);
            let numbers = [
                one.jobs_at_once,
                one.mb_s,
                jobs,
                demand.slot_hours,
                demand.processor_hours,
                waits.slot_wait_seconds_mean,
                waits.slot_wait_seconds_p95,
            ];
            (one.queue.as_str(), numbers)
        })
    }

    /// A line for people.
    fn line(&self) -> String {
        let &Busiest { seconds, jobs_at_once, mb_s, .. } = &self.busiest;
        format!(
            "Busiest {} of {} finished jobs: {} at once, {} MB/s ({})",
            span(seconds),
            self.jobs,
            shown(jobs_at_once),
            shown(mb_s),
            self.grid.display()
        )
    }
}

impl Evidence<'_> {
    /// A line for each thing that is known.
    fn lines(&self) -> Vec<String> {
        let measured = self.measured.iter().map(|found| page::measured_line(found));
        let busiest = self.busiest.iter().map(|found| found.line());
        measured.chain(busiest).chain(self.verified.iter().map(|found| found.line())).collect()
    }
}

fn read(file: &Path) -> Result<Site> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Site::read(&file.display().to_string(), &text)?)
}

/// What a study sustained for each core.
fn measure(folder: &Path) -> Result<Measured> {
    let record = Record::read(folder)?;
    let summary = Summary::of(&record);
    let subject = summary.subjects.first();
    let median = |key| Some(subject?.spread(key)?.median);
    let Some(mb_s_per_core) = median("mb_per_second_per_core") else {
        bail!(
            "{}: the study has no sustained rate: use one whose jobs do the same kind of work (mixed, sessions, calibration) \
             and that runs longer than a few seconds (forebay bench run --scale)",
            folder.display()
        );
    };
    Ok(Measured {
        record: folder.to_owned(),
        mb_s_per_core,
        cpu_per_real: median("cpu_per_real_of_sums"),
        cores: record.cores(),
    })
}

fn text(plan: &Plan, evidence: &Evidence<'_>) -> String {
    let mut text = format!("Plan for {}\n", plan.site.name);
    for line in evidence.lines() {
        text += &format!("{line}\n");
    }
    if let Some(busiest) = evidence.busiest {
        text += &format!(
            "\nQueues: jobs at once and MB/s in the busiest hour; the rest over all finished jobs\n{}",
            busiest.table()
        );
    }
    text += &format!("\n{}", numbers(&plan.lines));
    text += &format!("\nStorage\n{}", layouts(plan));
    for layout in &plan.layouts {
        text += &format!("{}: {}\n", layout.name, layout.note);
    }
    text += &format!("\nWhat if\n{}", what_if(plan));
    text += "\nBefore buying\n";
    for item in CHECKLIST {
        text += &format!("- {item}\n");
    }
    text
}

fn numbers(lines: &[Line]) -> String {
    let mut table = Table::new(&["needed", "value", "unit", "formula", "source"]);
    for line in lines {
        let formula = line.formula.clone();
        table.row(vec![
            line.what.to_owned(),
            shown(line.value),
            line.unit.to_owned(),
            formula,
            line.source.to_owned(),
        ]);
    }
    table.render()
}

fn layouts(plan: &Plan) -> String {
    let mut heading = vec!["layout", "devices", "number", "bound by", "TB", "MB/s"];
    if plan.site.prices.is_some() {
        heading.push("cost with nodes and network");
    }
    let mut table = Table::new(&heading);
    let row = |layout: &Layout, at: usize, part: &Part| {
        let first = |text: String| if at == 0 { text } else { String::new() };
        let mut row = vec![
            first(layout.name.to_owned()),
            format!("{} for {}", part.device, part.purpose),
            shown(part.number),
            part.bound.to_owned(),
            shown(part.tb),
            shown(part.mb_s),
        ];
        row.extend(layout.cost.map(|cost| first(shown(cost))));
        row
    };
    for layout in &plan.layouts {
        for (at, part) in layout.parts.iter().enumerate() {
            table.row(row(layout, at, part));
        }
    }
    table.render()
}

fn what_if(plan: &Plan) -> String {
    let mut table = Table::new(&["change", "nodes", "MB/s", "scratch TB"]);
    for one in &plan.what_if {
        let numbers = [one.nodes, one.mb_s, one.scratch_tb].map(shown);
        table.row(std::iter::once(one.change.clone()).chain(numbers).collect());
    }
    table.render()
}

fn show_studies(json: bool) -> Result<ExitCode> {
    // As many jobs for each core as a site has that says nothing else.
    let all = published::beside(1.25);
    if json {
        put_json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let known = |number: Option<f64>| number.map_or("-".to_owned(), shown);
    let mut table =
        Table::new(&["study", "cores", "cores by plan", "MB/s", "MB/s by plan", "remark"]);
    for one in &all {
        table.row(vec![
            one.published.study.to_owned(),
            shown(one.published.cores),
            known(one.planned_cores),
            known(one.published.mb_s),
            shown(one.planned_mb_s),
            one.published.remark.to_owned(),
        ]);
    }
    put_text(&table.render())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_says_what_its_cores_were_fed_with() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../study/tests/data/mixed");
        let found = measure(&folder).unwrap();
        assert!(found.mb_s_per_core > 1.0 && found.cores > 0);
        let site = Site::read("s", TEMPLATE).unwrap();
        let evidence = Evidence { measured: Some(&found), ..Evidence::default() };
        let shown = text(&plan(&site), &evidence);
        assert!(
            shown.contains(&format!(
                "{} MB/s sustained for each",
                super::shown(found.mb_s_per_core)
            ))
        );
    }
}
