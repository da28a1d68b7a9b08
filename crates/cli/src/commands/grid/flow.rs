//! `forebay flow`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::protocol::flow::{FlowAnswer, FlowAsk, FlowView, ScheduleView, StepView};
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::flow::event::FlowState;
use forebay_grid::flow::file::{FILE_BYTES_MAX, Surroundings};
use forebay_grid::flow::schedule::When;
use forebay_grid::flow::{FlowId, FlowSpec, ScheduleId};
use forebay_grid::parse::zone::Zone;
use forebay_grid::vocabulary::Moment;

use super::detail::time;
use super::placement::{environment, umask};
use super::{Listing, Which, no_sense, or_dash, print_json};
use crate::output::{Table, on_one_line, put};

/// Run flows: jobs that depend on each other, now or on a schedule.
///
/// A flow is a TOML file of jobs with the conditions under which they start. A run is accepted as a whole: all its
/// jobs, or none. Jobs run as the current user, in the current directory unless the file says otherwise.
///
/// Exit code: 0 on success, 2 if the command was refused; with --wait, 1 if the run failed or was killed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay flow check nightly.toml          report errors, or show the order of its jobs
  forebay flow run nightly.toml --wait     run it now, and wait for its end
  forebay flow show 3                      show each job of run 3
  forebay flow rerun 3                     run the failed part again
  forebay flow schedule add nightly.toml   run it as its [schedule] says")]
pub struct Flow {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Check(Check),
    Run(Run),
    List(List),
    Show(Show),
    Rerun(Rerun),
    Kill(Kill),
    Schedule(Schedule),
}

/// Check a flow file without a grid: show the order of its jobs and the next times of its schedule.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay flow check nightly.toml\n  forebay flow check - <x.toml"
)]
struct Check {
    /// Flow file; - for standard input.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Run a flow now, regardless of its schedule, and print the number of the run.
///
/// Jobs do not inherit your environment: they get PATH, LANG, LC_ALL, TZ and TERM, then the variables of --env, then those
/// that the flow file sets under environment, then those that the grid sets (see `forebay submit --help`). Each
/// overrides the ones before.
///
/// Exit code: 0 if the run was accepted, 2 if not; with --wait, 0 if it succeeded, 1 if it failed or was killed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay flow run nightly.toml
  forebay flow run nightly.toml --wait --env DAY=2027-01-01")]
struct Run {
    #[command(flatten)]
    which: Which,
    /// Flow file; - for standard input.
    file: PathBuf,
    /// Environment variable for every job: K=V, or K for its current value; may be repeated.
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
    /// Wait for the run to end.
    #[arg(long)]
    wait: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// List runs of flows: your own, or everybody's for an admin.
///
/// Lists unfinished runs; add --all for finished ones.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay flow list\n  forebay flow list --all --json")]
struct List {
    #[command(flatten)]
    listing: Listing,
    /// Also list finished runs.
    #[arg(long)]
    all: bool,
}

/// The run that a command is about.
#[derive(clap::Args)]
struct OneRun {
    #[command(flatten)]
    which: Which,
    /// Number of the run.
    #[arg(value_parser = |text: &str| text.parse::<FlowId>())]
    flow: FlowId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Show a run with each of its jobs.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay flow show 3\n  forebay flow show 3 --json")]
struct Show {
    #[command(flatten)]
    run: OneRun,
}

/// Run the failed part of a run again.
///
/// Jobs that failed, were killed or were skipped run again (of an array, only the failed elements), and so do all
/// jobs that depend on them. Other jobs that succeeded do not run again.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay flow rerun 3\n  forebay flow rerun 3 --wait")]
struct Rerun {
    #[command(flatten)]
    run: OneRun,
    /// Wait for the run to end.
    #[arg(long)]
    wait: bool,
}

/// Terminate a run and all its jobs: SIGTERM first, SIGKILL after 10 seconds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay flow kill 3")]
struct Kill {
    #[command(flatten)]
    run: OneRun,
}

/// Run flows automatically: at set times, or when files arrive.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay flow schedule add nightly.toml
  forebay flow schedule list
  forebay flow schedule hold 2        start no runs until it is released
  forebay flow schedule release 2
  forebay flow schedule remove 2")]
struct Schedule {
    #[command(subcommand)]
    verb: ScheduleVerb,
}

#[derive(Subcommand)]
enum ScheduleVerb {
    /// Run a flow at the times or arrivals of its [schedule], and print the number of the schedule.
    #[command(after_help = "Examples:\n  forebay flow schedule add nightly.toml")]
    Add {
        #[command(flatten)]
        which: Which,
        /// Flow file; - for standard input. The grid keeps a copy, so later edits have no effect.
        file: PathBuf,
        /// Environment variable for every job: K=V, or K for its current value; may be repeated.
        #[arg(long, value_name = "K=V")]
        env: Vec<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List schedules: your own, or everybody's for an admin.
    #[command(after_help = "Examples:\n  forebay flow schedule list --json")]
    List {
        #[command(flatten)]
        listing: Listing,
    },
    /// Hold a schedule: it starts no runs until it is released. Runs in progress continue.
    #[command(after_help = "Examples:\n  forebay flow schedule hold 2")]
    Hold(OneSchedule),
    /// Release a schedule from a hold.
    ///
    /// Times that passed during the hold were missed. If its [schedule] has catch_up = true, one run starts for all
    /// of them; a single time (at) starts its run unless it has catch_up = false. Files that arrived during the
    /// hold start runs.
    #[command(after_help = "Examples:\n  forebay flow schedule release 2")]
    Release(OneSchedule),
    /// Remove a schedule. Runs in progress continue.
    #[command(after_help = "Examples:\n  forebay flow schedule remove 2")]
    Remove(OneSchedule),
}

/// The schedule that a command is about.
#[derive(clap::Args)]
struct OneSchedule {
    #[command(flatten)]
    which: Which,
    /// Number of the schedule.
    #[arg(value_parser = |text: &str| text.parse::<ScheduleId>())]
    schedule: ScheduleId,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl OneSchedule {
    fn obey(self, verb: impl FnOnce(ScheduleId) -> FlowAsk) -> Result<ExitCode> {
        obeyed(&ask(&self.which, verb(self.schedule))?)?;
        if self.json {
            crate::output::put_json_line(&serde_json::json!({ "schedule": self.schedule }))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads the file of a flow.
fn read(path: &Path, env: &[String]) -> Result<FlowSpec> {
    let name = match path.to_str() {
        Some("-") => "standard input".to_owned(),
        Some(_) | None => path.display().to_string(),
    };
    let mut bytes = Vec::new();
    let most = FILE_BYTES_MAX as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    }
    .with_context(|| name.clone())?;
    let text = String::from_utf8(bytes).ok().with_context(|| format!("{name} is not UTF-8"))?;
    let directory = std::env::current_dir()?;
    let directory =
        directory.to_str().context("the current directory's path is not UTF-8")?.to_owned();
    let around = Surroundings { directory, umask: umask(), environment: environment(env)? };
    FlowSpec::read(&text, &around).with_context(|| name)
}

fn ask(which: &Which, flow: FlowAsk) -> Result<Answer> {
    which.ask(&Ask::Flow { flow })
}

impl Flow {
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::Check(command) => command.run(),
            Verb::Run(command) => command.run(),
            Verb::List(command) => command.run(),
            Verb::Show(command) => command.run(),
            Verb::Rerun(command) => command.run(),
            Verb::Kill(command) => command.run(),
            Verb::Schedule(command) => command.verb.run(),
        }
    }
}

impl Check {
    fn run(self) -> Result<ExitCode> {
        const TIMES: usize = 3;
        let spec = read(&self.file, &[])?;
        let plan = spec.plan()?;
        let mut times = Vec::new();
        let mut now: Moment = SystemClock.now().into();
        let zone = Zone::default();
        while let Some(next) =
            spec.trigger.as_ref().and_then(|trigger| trigger.next_after(now, zone.clocks()))
            && times.len() < TIMES
        {
            times.push(next);
            now = next;
        }
        let when = spec.trigger.as_ref().map(ToString::to_string);
        let steps = plan.order.iter().map(|place| &spec.steps[*place]);
        if self.json {
            let steps: Vec<_> = steps
                .map(|step| {
                    let after = step.depends.as_ref().map(ToString::to_string);
                    serde_json::json!({ "name": step.name, "after": after, "tasks": step.tasks() })
                })
                .collect();
            let name = &spec.name;
            let flow = serde_json::json!({
                "name": name, "jobs": steps, "schedule": when, "next": times
            });
            return print_json(&flow);
        }
        let mut table = Table::new(&["job", "tasks", "after"]);
        for step in steps {
            let after = or_dash(step.depends.as_ref());
            table.row(vec![step.name.clone(), step.tasks().to_string(), after]);
        }
        out!("{}", table.render());
        if let Some(when) = when {
            outln!("schedule: {when}");
        }
        let by_time =
            spec.trigger.as_ref().is_some_and(|trigger| !matches!(trigger.when, When::File(_)));
        if by_time && times.is_empty() {
            outln!("next: never (the time has passed, or the calendar has no such day)");
        }
        for at in times {
            outln!("next: {}", time(at));
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(self) -> Result<ExitCode> {
        let spec = Box::new(read(&self.file, &self.env)?);
        let flow = self.which.client()?.run_flow(spec)?;
        let text = if self.json {
            serde_json::json!({ "flow": flow }).to_string()
        } else {
            flow.to_string()
        };
        put(format!("{text}\n").as_bytes()).with_context(|| format!("flow {flow} was accepted"))?;
        let value = if self.wait { wait(&self.which, flow)? } else { 0 };
        Ok(ExitCode::from(value))
    }
}

/// Waits for the end of a run; says why if it was not done. Returns the exit value of a command that waits for it.
pub(super) fn wait(which: &Which, flow: FlowId) -> Result<u8> {
    let state = match which.wait(&Ask::Flow { flow: FlowAsk::Wait(flow) })? {
        Answer::Flow { flow: FlowAnswer::Ended(state) } => state,
        answer => return Err(no_sense(&answer)),
    };
    if state != FlowState::Done {
        // It may be forgotten already.
        let failed = view(which, flow).map(|view| format!(": {}", view.failed.join(", ")));
        note!("forebay: flow {flow} {}{}", state.word(), failed.unwrap_or_default());
    }
    Ok(u8::from(state != FlowState::Done))
}

fn view(which: &Which, flow: FlowId) -> Result<FlowView> {
    match ask(which, FlowAsk::Show(flow))? {
        Answer::Flow { flow: FlowAnswer::Shown(view) } => Ok(*view),
        answer => Err(no_sense(&answer)),
    }
}

impl List {
    fn run(self) -> Result<ExitCode> {
        let flows = self.listing.which.client()?.flows(self.all)?;
        self.listing.show(flows, table_of_runs)
    }
}

fn table_of_runs(flows: Vec<FlowView>) -> Table {
    let heading =
        ["flow", "name", "user", "state", "done", "jobs", "begun", "ended", "reruns", "failed"];
    let mut table = Table::new(&heading);
    for flow in flows {
        table.row(vec![
            flow.id.to_string(),
            flow.name,
            flow.user.to_string(),
            flow.state.word().to_owned(),
            flow.done.to_string(),
            flow.count.to_string(),
            time(flow.begun),
            or_dash(flow.ended.map(time)),
            flow.reruns.to_string(),
            if flow.failed.is_empty() { "-".to_owned() } else { flow.failed.join(",") },
        ]);
    }
    table
}

impl Show {
    fn run(self) -> Result<ExitCode> {
        let flow = view(&self.run.which, self.run.flow)?;
        if self.run.json {
            return print_json(&flow);
        }
        let name = on_one_line(&flow.name);
        out!("flow {} {name} of {}: {}", flow.id, flow.user, flow.state.word());
        if !flow.failed.is_empty() {
            out!(" ({})", flow.failed.join(", "));
        }
        out!(", begun {}", time(flow.begun));
        if let Some(ended) = flow.ended {
            out!(", ended {}", time(ended));
        }
        if flow.reruns > 0 {
            out!(", reruns: {}", flow.reruns);
        }
        outln!("");
        if let Some(schedule) = flow.schedule {
            let file = on_one_line(flow.file.as_deref().unwrap_or_default());
            outln!("started by schedule {schedule} {file}");
        }
        let heading = [
            "step", "job", "state", "tasks", "running", "done", "failed", "host", "starts", "exit",
            "started", "ended", "after",
        ];
        let mut table = Table::new(&heading);
        for step in flow.steps {
            table.row(step_row(step));
        }
        out!("{}", table.render());
        Ok(ExitCode::SUCCESS)
    }
}

fn step_row(step: StepView) -> Vec<String> {
    vec![
        step.name,
        step.job.to_string(),
        step.state.word().to_owned(),
        step.tasks.to_string(),
        step.running.to_string(),
        step.done.to_string(),
        step.failed.to_string(),
        or_dash(step.host),
        step.attempts.to_string(),
        or_dash(step.exit),
        or_dash(step.started.map(time)),
        or_dash(step.ended.map(time)),
        or_dash(step.after),
    ]
}

/// The answer to a command about a run, and how many tasks it concerned.
fn obeyed(answer: &Answer) -> Result<u32> {
    match answer {
        Answer::Obeyed { tasks } => Ok(*tasks),
        answer => Err(no_sense(answer)),
    }
}

impl OneRun {
    fn obey(&self, verb: impl FnOnce(FlowId) -> FlowAsk) -> Result<()> {
        let tasks = obeyed(&ask(&self.which, verb(self.flow))?)?;
        if self.json {
            crate::output::put_json_line(
                &serde_json::json!({ "flow": self.flow, "tasks": tasks }),
            )?;
        }
        Ok(())
    }
}

impl Rerun {
    fn run(self) -> Result<ExitCode> {
        self.run.obey(FlowAsk::Rerun)?;
        let value = if self.wait { wait(&self.run.which, self.run.flow)? } else { 0 };
        Ok(ExitCode::from(value))
    }
}

impl Kill {
    fn run(self) -> Result<ExitCode> {
        self.run.obey(FlowAsk::Kill)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl ScheduleVerb {
    fn run(self) -> Result<ExitCode> {
        match self {
            ScheduleVerb::Add { which, file, env, json } => {
                let spec = read(&file, &env)?;
                if spec.trigger.is_none() {
                    bail!(
                        "{} has no [schedule]: add one, or start it with forebay flow run",
                        file.display()
                    );
                }
                let schedule = match ask(&which, FlowAsk::Schedule(Box::new(spec)))? {
                    Answer::Flow { flow: FlowAnswer::Scheduled(schedule) } => schedule,
                    answer => return Err(no_sense(&answer)),
                };
                let text = if json {
                    serde_json::json!({ "schedule": schedule }).to_string()
                } else {
                    schedule.to_string()
                };
                put(format!("{text}\n").as_bytes())
                    .with_context(|| format!("schedule {schedule} was accepted"))?;
                Ok(ExitCode::SUCCESS)
            }
            ScheduleVerb::List { listing } => {
                let wanted = |answer| match answer {
                    Answer::Flow { flow: FlowAnswer::Schedules(list) } => Ok(list),
                    answer => Err(no_sense(&answer)),
                };
                let ask = Ask::Flow { flow: FlowAsk::Schedules };
                listing.print(&ask, wanted, table_of_schedules)
            }
            ScheduleVerb::Hold(schedule) => schedule.obey(FlowAsk::Hold),
            ScheduleVerb::Release(schedule) => schedule.obey(FlowAsk::Release),
            ScheduleVerb::Remove(schedule) => schedule.obey(FlowAsk::Unschedule),
        }
    }
}

fn table_of_schedules(list: Vec<ScheduleView>) -> Table {
    let heading = [
        "schedule", "name", "user", "state", "when", "next", "last", "started", "passed", "trouble",
    ];
    let mut table = Table::new(&heading);
    for schedule in list {
        table.row(vec![
            schedule.id.to_string(),
            schedule.name,
            schedule.user.to_string(),
            if schedule.held.is_some() { "held" } else { "active" }.to_owned(),
            schedule.when,
            or_dash(schedule.due.map(time)),
            or_dash(schedule.last),
            schedule.fired.to_string(),
            schedule.passed.to_string(),
            or_dash(schedule.trouble),
        ]);
    }
    table
}
