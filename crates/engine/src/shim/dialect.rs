//! The variables that programs expect inside a job of Slurm or LSF.
//!
//! What was known when the job was submitted came with its environment. Here is what only its host knows: its number, its
//! element, its host, how often it was started.

use forebay_base::ByteSize;
use forebay_grid::dialect::{Dialect, System, element_number};
use forebay_grid::spec::JobSpec;

use crate::run::Task;

/// Variables of the system in whose words the job was submitted; none if it was submitted in our own.
pub fn variables(task: &Task) -> Vec<(String, String)> {
    match &task.launch.spec.dialect {
        None => Vec::new(),
        Some(dialect @ Dialect { system: System::Slurm, .. }) => slurm(task, dialect),
        Some(Dialect { system: System::Lsf, .. }) => lsf(task),
    }
}

/// Named values, as a job brings them.
fn named<const N: usize>(values: [(&str, String); N]) -> Vec<(String, String)> {
    values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn queue(spec: &JobSpec) -> String {
    spec.queue.as_ref().map(ToString::to_string).unwrap_or_default()
}

fn slurm(task: &Task, dialect: &Dialect) -> Vec<(String, String)> {
    let launch = &task.launch;
    let (id, host, slots) = (launch.task, task.host.to_string(), launch.slots.to_string());
    let number = element_number(id).to_string();
    let mut variables = named([
        ("ENVIRONMENT", "BATCH".to_owned()),
        ("SLURM_JOB_ID", number.clone()),
        ("SLURM_JOBID", number),
        ("SLURM_JOB_USER", launch.user.to_string()),
        ("SLURM_JOB_PARTITION", queue(&launch.spec)),
        ("SLURM_JOB_NODELIST", host.clone()),
        ("SLURM_NODELIST", host.clone()),
        ("SLURMD_NODENAME", host),
        ("SLURM_JOB_NUM_NODES", "1".to_owned()),
        ("SLURM_NNODES", "1".to_owned()),
        ("SLURM_JOB_CPUS_PER_NODE", slots.clone()),
        ("SLURM_CPUS_ON_NODE", slots),
        ("SLURM_CLUSTER_NAME", "forebay".to_owned()),
        ("SLURM_NODEID", "0".to_owned()),
        ("SLURM_PROCID", "0".to_owned()),
        ("SLURM_LOCALID", "0".to_owned()),
        ("SLURM_GTIDS", "0".to_owned()),
    ]);
    if let Some(ByteSize(bytes)) = launch.spec.memory {
        variables.extend(named([("SLURM_MEM_PER_NODE", (bytes >> 20).to_string())]));
    }
    if launch.attempt.0 > 1 {
        variables.extend(named([("SLURM_RESTART_COUNT", (launch.attempt.0 - 1).to_string())]));
    }
    if let Some(gpus) =
        launch.gpus.as_ref().filter(|gpus| !gpus.is_empty() && task.allocation.is_none())
    {
        let numbers: Vec<String> = gpus.iter().map(ToString::to_string).collect();
        variables.extend(named([
            ("SLURM_JOB_GPUS", numbers.join(",")),
            ("SLURM_GPUS_ON_NODE", gpus.len().to_string()),
        ]));
    }
    if launch.spec.array.is_some() {
        variables.extend(named([
            ("SLURM_ARRAY_JOB_ID", id.job.to_string()),
            ("SLURM_ARRAY_TASK_ID", dialect.user_index(id.index).to_string()),
        ]));
    }
    variables
}

fn lsf(task: &Task) -> Vec<(String, String)> {
    let launch = &task.launch;
    let (id, host) = (launch.task, task.host.to_string());
    let pid = std::process::id().to_string();
    let mut variables = named([
        ("LSB_BATCH_JID", id.to_string()),
        ("LSB_JOBID", id.job.to_string()),
        ("LSB_JOBINDEX", id.index.to_string()),
        ("LSB_JOBPID", pid),
        ("LSB_QUEUE", queue(&launch.spec)),
        ("LSB_HOSTS", vec![host.as_str(); launch.slots as usize].join(" ")),
        ("LSB_MCPU_HOSTS", format!("{host} {}", launch.slots)),
        ("LSB_DJOB_NUMPROC", launch.slots.to_string()),
        ("LSB_MAX_NUM_PROCESSORS", launch.slots.to_string()),
        ("LSB_JOBNAME", lsf_name(&launch.spec, id.index)),
    ]);
    if launch.attempt.0 > 1 {
        variables.extend(named([("LSB_RESTART", "Y".to_owned())]));
    }
    if let Some(array) = &launch.spec.array
        && let Some(last) = array.count().checked_sub(1).and_then(|place| array.index_at(place))
    {
        variables.extend(named([("LSB_JOBINDEX_END", last.to_string())]));
    }
    variables
}

/// The name of an element, as LSF has it.
fn lsf_name(spec: &JobSpec, index: u32) -> String {
    if spec.array.is_some() { format!("{}[{index}]", spec.name) } else { spec.name.clone() }
}
