//! Counted resources of a job, as sbatch's and scontrol's options name them.

use anyhow::{Context as _, Result, bail};
use forebay_grid::parse::resources::{GPU, Resources};
use forebay_grid::vocabulary::ResourceName;

use super::super::words::Given;

/// One resource with how much of it: `gpu`, `gpu:2`, `gres/gpu:2`, `sas@server:2`. The server of a licence says nothing here.
fn one(option: &str, text: &str) -> Result<(ResourceName, u32)> {
    let refused = || format!("--{option}={text}: invalid resource");
    let text = text.trim_start_matches("gres/").trim_start_matches("gres:");
    let parts: Vec<&str> = text.split([':', '=']).collect();
    let (name, count) = match parts[..] {
        [name] => (name, "1"),
        [name, count] if count.starts_with(|c: char| c.is_ascii_digit()) => (name, count),
        [name, kind] | [name, kind, _] if name == GPU => bail!(
            "--{option}={text}: hosts of a Forebay grid have devices of one kind; ask for {name}:N (not {kind})"
        ),
        _ => bail!(refused()),
    };
    let name = name.split('@').next().unwrap_or_default();
    let name = name.parse::<ResourceName>().map_err(anyhow::Error::msg).with_context(refused)?;
    Ok((name, count.parse().with_context(refused)?))
}

/// All that an option names, with commas between.
pub fn list(option: &str, text: &str) -> Result<Vec<(ResourceName, u32)>> {
    let parts = text.split([',', ';']).map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| one(option, part)).collect()
}

/// What the options of a job with so many processes ask for.
///
/// # Errors
/// If one names no resource.
pub fn of(given: &Given, tasks: u32) -> Result<Resources> {
    let mut all = Vec::new();
    for option in ["gres", "licenses"] {
        for text in given.value(option).iter().filter(|text| !text.eq_ignore_ascii_case("none")) {
            all.extend(list(option, text)?);
        }
    }
    // Devices are counted once, whichever option names them.
    let gpus = |option: &str, times: u32| -> Result<Option<u32>> {
        let Some(text) = given.value(option) else { return Ok(None) };
        let (name, count) = one(option, &format!("{GPU}:{text}"))?;
        debug_assert_eq!(name.as_str(), GPU);
        Ok(Some(count.saturating_mul(times)))
    };
    let counted = match (gpus("gpus", 1)?, gpus("gpus-per-node", 1)?) {
        (Some(count), _) | (None, Some(count)) => Some(count),
        (None, None) => gpus("gpus-per-task", tasks)?,
    };
    if let Some(count) = counted {
        all.retain(|(name, _)| name.as_str() != GPU);
        all.push((GPU.parse().map_err(anyhow::Error::msg)?, count));
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_and_licences_are_named_as_slurm_names_them() {
        let of = |options: &[(&'static str, &str)]| {
            let mut given = Given::default();
            options.iter().for_each(|(name, value)| given.set(name, (*value).to_owned()));
            super::of(&given, 2).map(|all| all.to_string())
        };
        assert_eq!(of(&[]).unwrap(), "");
        assert_eq!(
            of(&[("gres", "gpu:2"), ("licenses", "sas@lic1:3,r")]).unwrap(),
            "gpu:2,r:1,sas:3"
        );
        assert_eq!(of(&[("gres", "gpu")]).unwrap(), "gpu:1");
        assert_eq!(of(&[("gres", "none")]).unwrap(), "");
        assert_eq!(of(&[("gpus-per-task", "2")]).unwrap(), "gpu:4");
        assert_eq!(of(&[("gpus", "3"), ("gres", "gpu:3")]).unwrap(), "gpu:3");
        for bad in ["gpu:a100:2", "gpu:x:y:z", "a b", "gpu:99999999999"] {
            let refused = format!("{:#}", of(&[("gres", bad)]).unwrap_err());
            assert!(refused.contains(bad), "{refused}");
        }
    }
}
