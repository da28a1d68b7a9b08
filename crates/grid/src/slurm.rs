//! Which options of `sbatch` a queue may give to its jobs that run through Slurm.

/// Options that say how the grid hands a job over and watches it: it gives them itself.
const OWN: [&str; 20] = [
    "array",
    "batch",
    "chdir",
    "comment",
    "cpus-per-task",
    "dependency",
    "error",
    "export",
    "gid",
    "help",
    "hold",
    "job-name",
    "no-requeue",
    "output",
    "parsable",
    "requeue",
    "test-only",
    "uid",
    "wait",
    "wrap",
];

/// What an option has to be, if it is not that.
#[must_use]
pub fn option_fault(option: &str) -> Option<String> {
    let name = option.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or_default());
    let name = name.filter(|name| !name.is_empty());
    let Some(name) = name.filter(|_| !option.contains(['\0', '\n'])) else {
        return Some(
            "a long option of sbatch, with its value behind =, such as --partition=long".to_owned(),
        );
    };
    // sbatch takes every beginning of a name that is not that of another option as well.
    let own = OWN.into_iter().find(|own| own.starts_with(name));
    own.map(|own| format!("another option: the grid gives --{own} itself"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_gives_options_of_sbatch_that_the_grid_does_not_give_itself() {
        for option in ["--partition=long", "--account=lab", "--exclusive", "--constraint=ssd&big"] {
            assert_eq!(option_fault(option), None, "{option}");
        }
        for option in ["", "-p", "--", "--=", "long", "--partition\0"] {
            assert!(option_fault(option).unwrap().contains("--partition=long"), "{option:?}");
        }
        for option in ["--wrap=true", "--output=/dev/null", "--arr=1-3", "--hold"] {
            assert!(option_fault(option).unwrap().contains("itself"), "{option}");
        }
    }
}
