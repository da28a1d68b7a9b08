//! Which options of `sbatch` a queue may give to its jobs that run through Slurm, and how its constraint and that of a job are one.

use crate::parse::features::Features;

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
    if let Some(own) = OWN.into_iter().find(|own| own.starts_with(name)) {
        return Some(format!("another option: the grid gives --{own} itself"));
    }
    let text = constraint_of(option)?;
    let read = Features::of_slurm(text).ok().and_then(|features| features.in_slurm());
    read.is_none().then(|| {
        "a constraint of features, & and |, such as --constraint=ssd&big: those of the job are added to it".to_owned()
    })
}

/// The value of an option that is a constraint, by any beginning of its name that sbatch takes.
fn constraint_of(option: &str) -> Option<&str> {
    let (name, value) = option.strip_prefix("--")?.split_once('=')?;
    (name.starts_with("cons") && "constraint".starts_with(name)).then_some(value)
}

/// The options of a queue and the features that a job needs as options of `sbatch`: of several constraints sbatch would take the last.
///
/// # Errors
/// If Slurm cannot be told both.
pub fn with_features(
    options: &[String],
    features: Option<&Features>,
) -> Result<Vec<String>, String> {
    let Some(features) = features else { return Ok(options.to_vec()) };
    let of_queue = options.iter().rev().find_map(|option| constraint_of(option));
    let of_queue =
        of_queue.map(Features::of_slurm).transpose().map_err(|error| error.to_string())?;
    let both =
        of_queue.map_or_else(|| features.clone(), |of_queue| of_queue.and(Some(features.clone())));
    let constraint =
        both.in_slurm().ok_or_else(|| format!("Slurm cannot be told that it needs {both}"))?;
    let mut all = vec![format!("--constraint={constraint}")];
    all.extend(options.iter().filter(|option| constraint_of(option).is_none()).cloned());
    Ok(all)
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
        for option in ["--constraint=rack*4", "--cons=[a|b]", "--constr=!ssd"] {
            assert!(option_fault(option).unwrap().contains("--constraint=ssd&big"), "{option}");
        }
        for option in ["--wrap=true", "--output=/dev/null", "--arr=1-3", "--hold"] {
            assert!(option_fault(option).unwrap().contains("itself"), "{option}");
        }
    }

    #[test]
    fn the_constraint_of_a_queue_and_the_features_of_a_job_are_one_constraint() {
        let options = ["--partition=long", "--constr=a|b&c"].map(str::to_owned);
        let with = |features: &str| with_features(&options, Some(&features.parse().unwrap()));
        assert_eq!(with("ssd").unwrap(), ["--constraint=(a|b)&c&ssd", "--partition=long"]);
        assert_eq!(with("x || y").unwrap()[0], "--constraint=(a|b)&c&(x|y)");
        assert!(with("!ssd").unwrap_err().contains("c && !ssd"));
        assert_eq!(with_features(&options, None).unwrap(), options);
        let plain = with_features(&options[..1], Some(&"ssd".parse().unwrap()));
        assert_eq!(plain.unwrap(), ["--constraint=ssd", "--partition=long"]);
    }
}
