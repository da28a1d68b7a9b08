//! The options of sbatch and srun that describe a job.

use super::super::words::{Opt, Takes, harmless, ignored, read, refused};

use Takes::{Maybe, Nothing, Value};

const ONE_HOST: &str = "a job of a Forebay grid runs on one host";
const NO_CONTAINERS: &str = "call the container's program in the script";
const NO_RESOURCES: &str =
    "a Forebay grid counts slots, memory and resources for a job as a whole; use --gres";

/// What a job asks for: sbatch and srun have these in common.
pub const JOB: &[Opt] = &[
    read("account", 'A', Value),
    ignored("acctg-freq", ' ', Value),
    refused("bb", ' ', Value, NO_RESOURCES),
    refused("bbf", ' ', Value, NO_RESOURCES),
    read("begin", 'b', Value),
    read("chdir", 'D', Value),
    ignored("cluster-constraint", ' ', Value),
    read("clusters", 'M', Value),
    read("comment", ' ', Value),
    read("constraint", 'C', Value),
    refused("container", ' ', Value, NO_CONTAINERS),
    refused("contiguous", ' ', Nothing, ONE_HOST),
    ignored("core-spec", 'S', Value),
    ignored("cores-per-socket", ' ', Value),
    ignored("cpu-freq", ' ', Value),
    read("cpus-per-task", 'c', Value),
    read("cpus-per-gpu", ' ', Value),
    read("deadline", ' ', Value),
    ignored("delay-boot", ' ', Value),
    read("dependency", 'd', Value),
    harmless("distribution", 'm', Value),
    read("error", 'e', Value),
    read("exclude", 'x', Value),
    read("exclusive", ' ', Maybe),
    read("export", ' ', Value),
    ignored("extra-node-info", 'B', Value),
    ignored("get-user-env", ' ', Maybe),
    read("gid", ' ', Value),
    harmless("gpu-bind", ' ', Value),
    ignored("gpu-freq", ' ', Value),
    read("gpus", 'G', Value),
    read("gpus-per-node", ' ', Value),
    refused("gpus-per-socket", ' ', Value, NO_RESOURCES),
    read("gpus-per-task", ' ', Value),
    read("gres", ' ', Value),
    harmless("gres-flags", ' ', Value),
    ignored("hint", ' ', Value),
    read("hold", 'H', Nothing),
    refused(
        "immediate",
        'I',
        Maybe,
        "a job waits until it can start; sbatch --test-only says when that is",
    ),
    read("input", 'i', Value),
    read("job-name", 'J', Value),
    read("licenses", 'L', Value),
    read("mail-type", ' ', Value),
    read("mail-user", ' ', Value),
    ignored("mcs-label", ' ', Value),
    read("mem", ' ', Value),
    harmless("mem-bind", ' ', Value),
    read("mem-per-cpu", ' ', Value),
    read("mem-per-gpu", ' ', Value),
    read("mincpus", ' ', Value),
    ignored("network", ' ', Value),
    read("nice", ' ', Maybe),
    read("nodefile", 'F', Value),
    read("nodelist", 'w', Value),
    read("nodes", 'N', Value),
    read("ntasks", 'n', Value),
    ignored("ntasks-per-core", ' ', Value),
    refused("ntasks-per-gpu", ' ', Value, NO_RESOURCES),
    read("ntasks-per-node", ' ', Value),
    ignored("ntasks-per-socket", ' ', Value),
    read("open-mode", ' ', Value),
    read("output", 'o', Value),
    ignored("overcommit", 'O', Nothing),
    harmless("oversubscribe", 's', Nothing),
    read("partition", 'p', Value),
    harmless("power", ' ', Value),
    ignored("prefer", ' ', Value),
    ignored("priority", ' ', Value),
    ignored("profile", ' ', Value),
    harmless("propagate", ' ', Maybe),
    read("qos", 'q', Value),
    harmless("quiet", 'Q', Nothing),
    ignored("reboot", ' ', Nothing),
    read("reservation", ' ', Value),
    read("signal", ' ', Value),
    ignored("sockets-per-node", ' ', Value),
    harmless("spread-job", ' ', Nothing),
    harmless("switches", ' ', Value),
    // Slurm takes it for --ntasks-per-node as well.
    read("tasks-per-node", ' ', Value),
    ignored("thread-spec", ' ', Value),
    ignored("threads-per-core", ' ', Value),
    read("time", 't', Value),
    ignored("time-min", ' ', Value),
    refused(
        "tmp",
        ' ',
        Value,
        "space for temporary files of hosts is not counted; a site can count it as a resource for --gres",
    ),
    read("uid", ' ', Value),
    harmless("use-min-nodes", ' ', Nothing),
    harmless("verbose", 'v', Nothing),
    harmless("wait-all-nodes", ' ', Value),
    harmless("wckey", ' ', Value),
];

/// What only sbatch has.
pub const SBATCH: &[Opt] = &[
    read("array", 'a', Value),
    ignored("batch", ' ', Value),
    refused("export-file", ' ', Value, "use --export"),
    harmless("ignore-pbs", ' ', Nothing),
    read("kill-on-invalid-dep", ' ', Value),
    harmless("no-kill", 'k', Maybe),
    read("no-requeue", ' ', Nothing),
    read("parsable", ' ', Nothing),
    read("requeue", ' ', Nothing),
    read("test-only", ' ', Nothing),
    read("version", 'V', Nothing),
    read("wait", 'W', Nothing),
    read("wrap", ' ', Value),
];

/// Variables that stand for an option of sbatch, salloc or srun which is not given, behind `SBATCH_`, `SALLOC_` or `SLURM_`.
pub const JOB_VARIABLES: &[(&str, &str)] = &[
    ("ACCOUNT", "account"),
    ("CLUSTERS", "clusters"),
    ("CONSTRAINT", "constraint"),
    ("CPUS_PER_GPU", "cpus-per-gpu"),
    ("EXCLUSIVE", "exclusive"),
    ("GPUS", "gpus"),
    ("GPUS_PER_NODE", "gpus-per-node"),
    ("GPUS_PER_TASK", "gpus-per-task"),
    ("GRES", "gres"),
    ("JOB_NAME", "job-name"),
    ("MEM_PER_CPU", "mem-per-cpu"),
    ("MEM_PER_GPU", "mem-per-gpu"),
    ("MEM_PER_NODE", "mem"),
    ("PARTITION", "partition"),
    ("QOS", "qos"),
    ("RESERVATION", "reservation"),
    ("SIGNAL", "signal"),
    ("TIMELIMIT", "time"),
];

/// Those of sbatch alone. They are stronger than lines of the script.
pub const SBATCH_VARIABLES: &[(&str, &str)] = &[
    ("ARRAY_INX", "array"),
    ("ERROR", "error"),
    ("EXPORT", "export"),
    ("INPUT", "input"),
    ("NO_REQUEUE", "no-requeue"),
    ("OPEN_MODE", "open-mode"),
    ("OUTPUT", "output"),
    ("REQUEUE", "requeue"),
    ("WAIT", "wait"),
];

/// Those of srun alone, where it starts a job.
pub const SRUN_VARIABLES: &[(&str, &str)] =
    &[("CPUS_PER_TASK", "cpus-per-task"), ("EXPORT_ENV", "export"), ("NTASKS", "ntasks")];

#[cfg(test)]
mod tests {
    use super::super::super::words::{Grammar, Style, Until};
    use super::*;

    #[test]
    fn no_option_takes_the_script_or_leaves_its_value_to_it() {
        let tables: &[&[Opt]] = &[JOB, SBATCH];
        let grammar =
            Grammar { command: "sbatch", style: Style::Gnu, until: Until::FirstWord, tables };
        for option in tables.concat() {
            let letter = (option.letter != ' ').then(|| format!("-{}", option.letter));
            for name in [Some(format!("--{}", option.name)), letter].into_iter().flatten() {
                let value = Some("v").filter(|_| option.takes == Value).map(str::to_owned);
                let words = [Some(name.clone()), value, Some("a.sh".to_owned())];
                match grammar.read(&words.into_iter().flatten().collect::<Vec<_>>()) {
                    Ok(given) => assert_eq!(given.words, ["a.sh"], "{name}"),
                    Err(error) => {
                        assert!(format!("{error}").contains("is not supported"), "{error}");
                    }
                }
            }
        }
    }
}
