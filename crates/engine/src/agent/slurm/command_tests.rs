use forebay_grid::parse::period::Period;
use forebay_grid::spec::JobSpec;
use forebay_grid::wrap::Wrap;

use super::*;
use crate::agent::slurm::start_of_job_7;

fn task(spec: JobSpec) -> Task {
    let mut task = start_of_job_7(spec);
    task.launch.slots = 4;
    task.launch.time_limit = Some(Period(90_500));
    task.launch.gpus = Some(vec![0, 1]);
    let slurm = vec!["--partition=long".to_owned()];
    task.launch.wrap = Some(Box::new(Wrap { slurm, ..Wrap::default() }));
    task
}

#[test]
fn what_a_job_asks_for_becomes_options_of_sbatch() {
    let spec = JobSpec {
        name: "sort it".to_owned(),
        memory: Some(ByteSize((2 << 30) + 1)),
        resources: "gpu=2".parse().unwrap(),
        sharing: Sharing::Exclusive,
        ..JobSpec::default()
    };
    let arguments = submission(&task(spec), "forebay:id:7.0.1", Path::new("/g/10%/7.0.1")).unwrap();
    for wanted in [
        "--no-requeue",
        "--cpus-per-task=4",
        "--mem=2049M",
        "--time=3",
        "--gres=gpu:2",
        "--exclusive",
        "--job-name=sort it",
        "--output=/g/10%%/7.0.1/log",
        "--comment=forebay:id:7.0.1",
    ] {
        assert!(arguments.iter().any(|argument| argument == wanted), "{wanted}: {arguments:?}");
    }
    assert_eq!(arguments.last().unwrap(), "--partition=long");
    let plain = submission(&task(JobSpec::default()), "m", Path::new("/g")).unwrap();
    assert!(plain.contains(&"--job-name=forebay".to_owned()));
    assert!(
        !plain
            .iter()
            .any(|argument| argument.starts_with("--mem") || argument.starts_with("--gres"))
    );
}

#[test]
fn what_cannot_be_said_to_slurm_is_refused_and_not_left_out() {
    let of = |features: &str| {
        let features = Some(features.parse().unwrap());
        submission(&task(JobSpec { features, ..JobSpec::default() }), "m", Path::new("/g"))
    };
    assert!(of("ssd").unwrap().contains(&"--constraint=ssd".to_owned()));
    assert!(matches!(of("!ssd"), Err(Refused::Never(why)) if why.contains("!ssd")));
}

#[test]
fn the_script_holds_paths_with_any_character() {
    let text = script(Path::new("/o'k/forebay"), "job-shim", Path::new("/a b/7.0.1"));
    assert_eq!(text, "#!/bin/sh\nexec '/o'\\''k/forebay' job-shim --allocation '/a b/7.0.1'\n");
}

#[test]
fn only_what_may_pass_is_tried_again() {
    let dead = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n";
    assert!(
        matches!(refused(dead), Refused::Later(said) if said.starts_with("Batch job submission failed"))
    );
    let wrong = "sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid \
                 partition name specified\n";
    let Refused::Never(said) = refused(wrong) else { panic!("it would be tried for ever") };
    assert!(said.contains("invalid partition specified: nope; Batch"), "{said}");
    assert!(matches!(refused(""), Refused::Never(_)));
    assert_eq!(
        [number("17\n"), number("17;other\n"), number("Submitted")],
        [Some(17), Some(17), None]
    );
}

#[test]
fn rows_of_squeue_are_read_and_said_in_words() {
    let text = "17|PENDING||forebay:g:7.0.1|Nodes required for job are DOWN, DRAINED | or so\n18_3|RUNNING|n1|x|None\n\
                19|RUNNING|n2|(null)|None\n";
    let all = rows(text);
    assert_eq!(all.len(), 2, "an element of somebody's array is not ours");
    assert_eq!(
        all[0].note(),
        "Slurm job 17 waits: Nodes required for job are DOWN, DRAINED | or so"
    );
    assert_eq!(all[1].note(), "Slurm job 19 runs on n2");
    let reached = |state: &str| Row { state: state.to_owned(), ..all[0].clone() }.reached();
    assert_eq!(reached("COMPLETING"), Reached::Runs);
    assert_eq!(reached("NODE_FAIL"), Reached::GivenUp);
    assert_eq!(reached("TIMEOUT"), Reached::Over);
}

#[test]
fn the_end_of_what_said_nothing_is_that_of_its_state() {
    let end = |state, started, log| {
        let memory = Some(ByteSize(5));
        Unsaid { id: 3, state, reason: "None", started, memory, log }.end()
    };
    let signal = |end| matches!(end, End::Exited { exit: Exit::Signal(15), .. });
    assert!(signal(end("CANCELLED", false, "")) && signal(end("TIMEOUT", true, "")));
    assert!(matches!(
        end("OUT_OF_MEMORY", true, ""),
        End::Exited { exit: Exit::MemoryLimit(5), .. }
    ));
    assert!(
        matches!(end("NODE_FAIL", true, ""), End::Lost(Loss::Slurm(state)) if state == "NODE_FAIL")
    );
    assert!(matches!(end("NODE_FAIL", false, ""), End::Lost(Loss::Unable(_))));
    assert!(matches!(end("FAILED", false, ""), End::Exited { exit: Exit::NotStarted(_), .. }));
    let End::Lost(Loss::Unable(why)) = end("FAILED", false, "/opt/forebay: not found") else {
        panic!("another node may have the program")
    };
    assert_eq!(why, "Slurm job 3 ended as FAILED before it began: /opt/forebay: not found");
}
