//! A host that stands for the nodes of a Slurm cluster.

use crate::support::{Rig, launched, refusal, spec};
use forebay_grid::config::{Config, HostEngine, Load};
use forebay_grid::event::{Loss, Memory, RunReport, RunStatus, Verb};
use forebay_grid::grid::State;
use forebay_grid::service::{Service, ServicePort};
use forebay_grid::spec::{Interactive, JobSpec, Rerun, Sharing, Streams};
use forebay_grid::vocabulary::{Attempt, HostName, JobId, TaskId};
use forebay_grid::{Effect, Event};

const SLURM: &str = "[general]\nadmins = [\"root\"]\nlease = \"20 s\"\nhost_timeout = \"30 s\"\n\
                     [[host]]\nname = \"s\"\nengine = \"slurm\"\n[[queue]]\nname = \"normal\"\n\
                     slurm = [\"--partition=long\"]\n";

fn host() -> HostName {
    "s".parse().unwrap()
}

fn report(job: JobId, status: RunStatus) -> RunReport {
    RunReport { task: TaskId::only(job), attempt: Attempt(1), status }
}

fn interactive() -> JobSpec {
    let interactive = Interactive { socket: "/s".to_owned(), streams: Streams::Pipes, node: None };
    JobSpec { interactive: Some(interactive), ..spec() }
}

#[test]
fn the_jobs_of_a_slurm_host_are_not_given_up_however_long_its_agent_is_away() {
    let mut rig = Rig::new(SLURM, &[("s", 4)]);
    let job = rig.submit(JobSpec { rerun: Rerun::Rerunnable, ..spec() });
    rig.start(TaskId::only(job));
    rig.send(Event::HostLost { host: host() });
    assert_eq!(rig.pass(10 * 86_400_000), []);
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Unknown { .. })));
    // Nor after a restart of the controller before the agent is back.
    rig.restart();
    assert_eq!(rig.pass(10 * 86_400_000), []);
    let effects = rig.join("s", 4, Memory::Kept, vec![report(job, RunStatus::Running)]);
    assert_eq!(launched(&effects), []);
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Running { .. })));
    rig.exit(TaskId::only(job), 0);
    // Without jobs it can be given up, and removed.
    rig.send(Event::HostLost { host: host() });
    rig.pass(60_000);
    let state = forebay_grid::journal::HostSwitch::Removed;
    let effects = rig.send(Event::Host { by: "root".parse().unwrap(), host: host(), state });
    assert!(matches!(effects[..], [Effect::Obeyed { .. }]), "{effects:?}");
}

#[test]
fn what_waits_in_slurm_has_not_begun_and_is_held_there() {
    let mut rig = Rig::new(SLURM, &[("s", 4)]);
    let job = rig.submit(spec());
    let task = TaskId::only(job);
    let effects = rig.join("s", 4, Memory::Kept, vec![report(job, RunStatus::Waiting)]);
    assert!(matches!(rig.grid.state(task), Some(State::Starting { .. })), "{effects:?}");
    let attempt = Attempt(1);
    let suspend = Effect::Suspend { task, attempt, host: host() };
    assert!(rig.command("u", job, Verb::Hold).contains(&suspend));
    // An agent that comes back is told again.
    let effects = rig.join("s", 4, Memory::Kept, vec![report(job, RunStatus::Waiting)]);
    assert!(effects.contains(&suspend), "{effects:?}");
    let resume = Effect::Resume { task, attempt, host: host() };
    assert!(rig.command("u", job, Verb::Release).contains(&resume));
    rig.start(task);
    assert!(matches!(rig.grid.state(task), Some(State::Running { .. })));
}

#[test]
fn a_slurm_host_takes_exclusive_jobs_beside_others_and_no_interactive_ones() {
    let mut rig = Rig::new(SLURM, &[("s", 4)]);
    let (first, alone) =
        (rig.submit(spec()), rig.submit(JobSpec { sharing: Sharing::Exclusive, ..spec() }));
    assert!(rig.host_of(first).is_some() && rig.host_of(alone).is_some());
    let why = refusal(&rig.submit_as("u", interactive()));
    assert!(why.contains("Slurm") && why.contains("srun --pty"), "{why}");
    let port = ServicePort::None;
    let service = Service { name: "db".parse().unwrap(), port, check: None, address_file: None };
    let watched = JobSpec { service: Some(Box::new(service)), ..spec() };
    let why = refusal(&rig.submit_as("u", watched));
    assert!(why.contains("Slurm") && why.contains("a service needs"), "{why}");
    // Another host takes those, and only those go there if the lists say so.
    rig.join("a", 1, Memory::Kept, Vec::new());
    let job = rig.submit(interactive());
    assert_eq!(rig.host_of(job).as_deref(), Some("a"));
    rig.load("s", Load::default());
}

#[test]
fn options_of_a_queue_go_with_the_start_and_losses_are_slurms_own() {
    let mut rig = Rig::new(SLURM, &[("s", 4)]);
    let effects = rig.submit_as("u", spec());
    let wrap = effects.iter().find_map(|effect| match effect {
        Effect::Launch { wrap, .. } => wrap.clone(),
        _ => None,
    });
    assert_eq!(wrap.unwrap().slurm, ["--partition=long"]);
    let task = launched(&effects)[0].0;
    rig.start(task);
    let loss = Loss::Slurm("NODE_FAIL".to_owned());
    assert_eq!(loss.to_string(), "lost: Slurm reports NODE_FAIL");
    rig.send(Event::Lost { host: host(), task, attempt: Attempt(1), loss });
    assert!(matches!(rig.grid.state(task), Some(State::Finished { .. })));
    let of_queue = |option: &str| {
        Config::read(&format!("[[queue]]\nname = \"q\"\nslurm = [\"{option}\"]")).unwrap_err()
    };
    let refused = of_queue("--constraint=ssd&&big").to_string();
    assert!(refused.contains("line 3") && refused.contains("--constraint=ssd&big"), "{refused}");
    let refused = of_queue("--wrap=x");
    assert!(refused.to_string().contains("line 3") && refused.to_string().contains("--wrap"));
}

#[test]
fn a_controller_knows_what_slurm_has_though_its_settings_do_not_say_so() {
    let mut rig = Rig::new("[general]\nlease = \"20 s\"\nhost_timeout = \"30 s\"\n", &[]);
    rig.join_as(HostEngine::Slurm, ("s", 4), Memory::Kept, Vec::new());
    let job = rig.submit(JobSpec { rerun: Rerun::Rerunnable, ..spec() });
    rig.start(TaskId::only(job));
    let why = refusal(&rig.submit_as("u", interactive()));
    assert!(why.contains("Slurm"), "{why}");
    // The next controller reads it in the journal.
    rig.restart();
    assert_eq!(rig.pass(10 * 86_400_000), []);
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Unknown { .. })));
    // An agent that knows nothing of Slurm may not join meanwhile, and takes nothing from the host.
    let refused = |effects: &[Effect], said: &str| match effects {
        [Effect::Refuse { reason, .. }] => assert!(reason.contains(said), "{reason}"),
        other => panic!("{other:?}"),
    };
    refused(&rig.join("s", 4, Memory::Kept, Vec::new()), "1 jobs that run through Slurm");
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Unknown { .. })));
    let runs = vec![report(job, RunStatus::Running)];
    rig.join_as(HostEngine::Slurm, ("s", 4), Memory::Kept, runs);
    assert!(matches!(rig.grid.state(TaskId::only(job)), Some(State::Running { .. })));
    rig.exit(TaskId::only(job), 0);
    // Without jobs it may become a host like others, unless the settings still call it Slurm's.
    rig.join("s", 4, Memory::Kept, Vec::new());
    let job = rig.submit(interactive());
    assert!(rig.host_of(job).is_some());
    rig.configure(SLURM);
    let plain = rig.join_as(HostEngine::Agent, ("s", 4), Memory::Kept, Vec::new());
    refused(&plain, "--engine slurm");
}

#[test]
fn an_agent_without_the_records_of_jobs_in_slurm_is_refused_until_they_are_killed() {
    let mut rig = Rig::new(SLURM, &[("s", 4)]);
    let job = rig.submit(JobSpec { rerun: Rerun::Rerunnable, ..spec() });
    let task = TaskId::only(job);
    rig.start(task);
    rig.send(Event::HostLost { host: host() });
    // A second agent, which would stand in for the first one.
    let effects = rig.join("s", 4, Memory::Kept, Vec::new());
    let [Effect::Refuse { reason, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert!(reason.contains("1 jobs in Slurm") && reason.contains("forebay kill"), "{reason}");
    assert!(matches!(rig.grid.state(task), Some(State::Unknown { .. })));
    rig.command("u", job, Verb::Kill);
    let effects = rig.join("s", 4, Memory::Kept, Vec::new());
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Refuse { .. })), "{effects:?}");
    assert!(matches!(rig.grid.state(task), Some(State::Finished { .. })));
}
