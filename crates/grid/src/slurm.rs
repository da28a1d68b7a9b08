//! Which options of `sbatch` a queue may give to its jobs that run through Slurm, and how its constraint and that of a job are one.

use crate::parse::features::{ALTERNATIVES_MAX, Features};

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
    let is_one = constraint_of(option).is_none_or(is_constraint);
    (!is_one).then(|| {
        "a constraint as Slurm reads it, of names with one & or | between (Slurm knows neither && nor ||), such as --constraint=ssd&big"
            .to_owned()
    })
}

/// Whether Slurm may read this as a constraint. Of what only Slurm understands (`[a|b]`, `a*2`) Slurm says whether it is one; nodes of
/// Slurm may have features with signs that those of hosts do not have.
fn is_constraint(value: &str) -> bool {
    let read = Features::of_slurm(&value.replace(['=', ':', '+', '/', '%'], "_"));
    let is_slurms_own = value.contains(['[', ']', '*']);
    let has_double = ["&&", "||"].iter().any(|sign| value.contains(sign));
    (is_slurms_own && !has_double) || read.is_ok_and(|read| !read.forbids())
}

/// The value of an option that is a constraint, by any beginning of its name that sbatch takes.
fn constraint_of(option: &str) -> Option<&str> {
    let (name, value) = option.strip_prefix("--")?.split_once('=')?;
    (name.starts_with("cons") && "constraint".starts_with(name)).then_some(value)
}

/// The options of a queue and the features that a job needs as options of `sbatch`: of several constraints sbatch would take the last. A
/// constraint that only Slurm understands (`[a|b]`, `a*2`) goes with jobs that need no features.
///
/// # Errors
/// If Slurm cannot be told both: why.
pub fn with_features(
    options: &[String],
    features: Option<&Features>,
) -> Result<Vec<String>, String> {
    let Some(features) = features else { return Ok(options.to_vec()) };
    let of_queue = options.iter().rev().find_map(|option| constraint_of(option));
    let read = of_queue.map(Features::of_slurm).transpose();
    let both = match read.ok().filter(|read| !read.as_ref().is_some_and(Features::forbids)) {
        Some(Some(of_queue)) => of_queue.and(Some(features.clone())),
        Some(None) => features.clone(),
        None => {
            return Err(format!(
                "--constraint={} of its queue cannot be combined with the features of a job, because it uses more than feature names, & and |: \
                 omit the features, or submit it to another queue",
                of_queue.unwrap_or_default()
            ));
        }
    };
    let constraint = both.in_slurm().ok_or_else(|| {
        if features.forbids() {
            return format!("Slurm cannot be told which features a node must not have: {features}");
        }
        let with = if of_queue.is_some() { ", with the --constraint of its queue," } else { "" };
        format!(
            "the features that it needs{with} have more than {ALTERNATIVES_MAX} alternatives, too many for Slurm: {both}"
        )
    })?;
    let mut all = vec![format!("--constraint={constraint}")];
    all.extend(options.iter().filter(|option| constraint_of(option).is_none()).cloned());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_gives_options_of_sbatch_that_the_grid_does_not_give_itself() {
        for option in [
            "--partition=long",
            "--account=lab",
            "--exclusive",
            "--constraint=ssd&big",
            "--constraint=rack*4",
            "--constraint=(a|b)&c",
            "--constraint=os=rocky&net:ib",
            "--cons=[a|b]",
        ] {
            assert_eq!(option_fault(option), None, "{option}");
        }
        for option in ["", "-p", "--", "--=", "long", "--partition\0"] {
            assert!(option_fault(option).unwrap().contains("--partition=long"), "{option:?}");
        }
        for constraint in [
            "", "ssd&&big", "a||b", "ssd big", "!a", "ssd&", "&ssd", "(a|b", "a|!b", "[a|b]||c",
            "a*2&&b",
        ] {
            let fault = option_fault(&format!("--constr={constraint}"));
            assert!(fault.unwrap().contains("--constraint=ssd&big"), "{constraint}");
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
        assert!(with("!ssd").unwrap_err().ends_with("must not have: !ssd"));
        let many = (0..7).map(|n| format!("(a{n} || (b{n} && (c || d)))")).collect::<Vec<_>>();
        let why = with(&many.join(" && ")).unwrap_err();
        assert!(why.contains("with the --constraint of its queue") && why.contains("64"), "{why}");
        assert_eq!(with_features(&options, None).unwrap(), options);
        // What only Slurm understands goes with jobs that need nothing else.
        for constraint in ["[a|b]", "a*2"] {
            let options = [format!("--constraint={constraint}")];
            assert_eq!(with_features(&options, None).unwrap(), options);
            let why = with_features(&options, Some(&"ssd".parse().unwrap())).unwrap_err();
            assert!(why.contains(&options[0]) && why.contains("omit the features"), "{why}");
        }
        let plain = with_features(&options[..1], Some(&"ssd".parse().unwrap()));
        assert_eq!(plain.unwrap(), ["--constraint=ssd", "--partition=long"]);
    }
}
