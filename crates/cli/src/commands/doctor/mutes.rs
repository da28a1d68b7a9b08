//! Which findings are not shown, and until when.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::checks;
use forebay_advisor::mute::{self, Mute, Mutes};
use jiff::Zoned;
use jiff::civil::Date;

/// Options for muted findings.
#[derive(clap::Args)]
pub struct MuteOptions {
    /// Mute this finding until the day of --until.
    #[arg(long, value_name = "CODE", requires = "until")]
    mute: Option<String>,
    /// Last day of the mute, such as 2027-03-31.
    #[arg(long, value_name = "DATE", requires = "mute")]
    until: Option<Date>,
    /// Why the finding is muted.
    #[arg(long, value_name = "TEXT", requires = "mute", default_value = "")]
    reason: String,
    /// Show this finding again.
    #[arg(long, value_name = "CODE", conflicts_with = "mute")]
    unmute: Option<String>,
    /// File of the mutes [default: /etc/forebay/doctor.toml for root, otherwise ~/.config/forebay/doctor.toml].
    #[arg(long, value_name = "FILE")]
    mutes: Option<PathBuf>,
}

impl MuteOptions {
    /// Adds or removes a mute if the options say so.
    pub fn change(&self) -> Result<Option<ExitCode>> {
        let Some(code) = self.mute.as_ref().or(self.unmute.as_ref()) else { return Ok(None) };
        let path = self.path()?;
        let mut mutes = self.read()?;
        match (self.until, &self.unmute) {
            (Some(until), None) => {
                if !checks::known().iter().any(|check| check.code == code) {
                    bail!("there is no check \"{code}\"; `forebay doctor --all` shows all of them");
                }
                if until < Zoned::now().date() {
                    bail!("--until {until} is in the past");
                }
                mutes.insert(
                    code.clone(),
                    Mute { until: until.to_string(), reason: self.reason.clone() },
                );
            }
            _ => {
                if mutes.remove(code).is_none() {
                    bail!("{code} is not muted in {}", path.display());
                }
            }
        }
        mute::write(&path, &mutes).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Some(ExitCode::SUCCESS))
    }

    /// The mutes that there are.
    pub fn read(&self) -> Result<Mutes> {
        let path = self.path()?;
        mute::read(&path).with_context(|| format!("cannot use {}", path.display()))
    }

    fn path(&self) -> Result<PathBuf> {
        if let Some(path) = &self.mutes {
            return Ok(path.clone());
        }
        if rustix::process::geteuid().is_root() {
            return Ok("/etc/forebay/doctor.toml".into());
        }
        let below =
            |name: &str, rest: &str| Some(PathBuf::from(std::env::var_os(name)?).join(rest));
        below("XDG_CONFIG_HOME", "forebay/doctor.toml")
            .or_else(|| below("HOME", ".config/forebay/doctor.toml"))
            .context("HOME is not set: name the file with --mutes")
    }
}

/// Today, as `YYYY-MM-DD`.
pub fn today() -> String {
    Zoned::now().date().to_string()
}
