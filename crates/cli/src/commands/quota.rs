//! `forebay quota`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::{ByteSize, Clock as _};
use forebay_fs::quota::{
    LimitChange, Limits, Quota as QuotaLimits, QuotaChange, QuotaStatus, Subject,
};
use forebay_process::user;

use super::disk::change;
use crate::control::{self, Answer, Ask};
use crate::home::Home;
use crate::output::{Table, bytes};

/// Limit what a fileset may hold, and each user and group within it.
///
/// A quota limits space (the sum of the sizes of files) and the number of files (inodes of any kind). A hard limit is never
/// exceeded; a soft limit may be exceeded for the grace period. What would exceed a limit fails with EDQUOT ("Disk quota
/// exceeded"). The owner and the group of a file are charged, no matter who writes it, root included. Files that programs write
/// on the direct path are checked when they are opened and closed, and every commit_interval: they can exceed a limit
/// until they are closed (setting quota_margin). A default quota (--each-user, --each-group) limits everybody who has none of
/// his own, except root. The file system may be mounted or not. Native filesets have no quotas.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay quota set /srv/forebay data --hard-space 2TiB --soft-space 1800GiB --grace-days 3
  forebay quota set /srv/forebay data --user alice --hard-space 100GiB --hard-files 1000000
  forebay quota set /srv/forebay data --user alice --hard-files none
  forebay quota set /srv/forebay data --each-user --soft-space 50GiB --hard-space 60GiB
  forebay quota set /srv/forebay data --user bob --unlimited
  forebay quota list /srv/forebay
  forebay quota show /srv/forebay data --user alice --json
  forebay quota remove /srv/forebay data --user alice")]
pub struct Quota {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set or change a quota. Limits that are not named stay as they are.
    ///
    /// A limit below the present usage is accepted: nothing is removed, and nothing more may be added. The first quota of a
    /// user or group in a fileset counts the files of the fileset, while programs go on.
    #[command(after_help = "Examples:
  forebay quota set /srv/forebay data --hard-space 2TiB
  forebay quota set /srv/forebay data --group physics --soft-space 500GiB --hard-space 600GiB
  forebay quota set /srv/forebay / --user 1000 --hard-files 50000")]
    Set {
        #[command(flatten)]
        whose: Whose,
        /// Space that may be exceeded for the grace period, such as 800GiB; none for no limit.
        #[arg(long, value_name = "SIZE", value_parser = space)]
        soft_space: Option<LimitChange>,
        /// Space that is never exceeded, such as 1TiB; none for no limit.
        #[arg(long, value_name = "SIZE", value_parser = space)]
        hard_space: Option<LimitChange>,
        /// Number of files that may be exceeded for the grace period; none for no limit.
        #[arg(long, value_name = "FILES", value_parser = number)]
        soft_files: Option<LimitChange>,
        /// Number of files that is never exceeded; none for no limit.
        #[arg(long, value_name = "FILES", value_parser = number)]
        hard_files: Option<LimitChange>,
        /// Exempt the user or group from the default quota.
        #[arg(long, conflicts_with_all = ["soft_space", "hard_space", "soft_files", "hard_files", "grace_days"])]
        unlimited: bool,
        /// How many days a soft limit may be exceeded [default: 7].
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(0..=36_500))]
        grace_days: Option<u32>,
    },
    /// Show one quota and its usage.
    #[command(after_help = "Examples:
  forebay quota show /srv/forebay data
  forebay quota show /srv/forebay data --user alice --json")]
    Show {
        #[command(flatten)]
        whose: Whose,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List quotas with their usage.
    ///
    /// In a cluster: those of the filesets that this node owns.
    #[command(after_help = "Examples:
  forebay quota list /srv/forebay
  forebay quota list /srv/forebay data --json")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Name of the fileset, / for the root fileset [default: all].
        fileset: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Remove a quota. Files stay as they are.
    #[command(after_help = "Examples:\n  forebay quota remove /srv/forebay data --user alice")]
    Remove {
        #[command(flatten)]
        whose: Whose,
    },
}

/// Whose quota.
#[derive(clap::Args)]
struct Whose {
    /// Home folder of the file system.
    root: PathBuf,
    /// Name of the fileset; / for the root fileset.
    fileset: String,
    /// Limit the files of this user (name or number) in the fileset, instead of the whole fileset.
    #[arg(long, conflicts_with = "group")]
    user: Option<String>,
    /// Limit the files of this group (name or number) in the fileset.
    #[arg(long)]
    group: Option<String>,
    /// The default quota: limit each user who has no quota of his own; root is not limited.
    #[arg(long, conflicts_with_all = ["user", "group"])]
    each_user: bool,
    /// The default quota of groups: limit each group that has no quota of its own; group 0 is not limited.
    #[arg(long, conflicts_with_all = ["user", "group", "each_user"])]
    each_group: bool,
}

impl Whose {
    fn subject(&self) -> Result<Subject> {
        let found = |kind: &str, name: &str, look: fn(&str) -> std::io::Result<Option<u32>>| {
            if let Ok(number) = name.parse() {
                return Ok(number);
            }
            look(name)?.with_context(|| format!("there is no {kind} \"{name}\" on this machine"))
        };
        Ok(match (&self.user, &self.group) {
            (Some(name), _) => Subject::User(found("user", name, user::number_of)?),
            (None, Some(name)) => Subject::Group(found("group", name, user::group_number_of)?),
            (None, None) if self.each_user => Subject::EachUser,
            (None, None) if self.each_group => Subject::EachGroup,
            (None, None) => Subject::Fileset,
        })
    }
}

fn space(text: &str) -> Result<LimitChange, String> {
    if text == "none" {
        return Ok(LimitChange::Clear);
    }
    text.parse().map(|size: ByteSize| LimitChange::To(size.0))
}

fn number(text: &str) -> Result<LimitChange, String> {
    if text == "none" {
        return Ok(LimitChange::Clear);
    }
    let number = text.parse().map(LimitChange::To);
    number.map_err(|_| format!("\"{text}\" is not a number of files (example: 100000), or none"))
}

impl Quota {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Set { whose, unlimited: true, .. } => {
                if !matches!(whose.subject()?, Subject::User(_) | Subject::Group(_)) {
                    bail!(
                        "--unlimited exempts a user or group from the default: name one with --user or --group"
                    );
                }
                set(&whose, &unlimited())?;
            }
            Action::Set {
                whose,
                soft_space,
                hard_space,
                soft_files,
                hard_files,
                grace_days,
                ..
            } => {
                let limits = [soft_space, hard_space, soft_files, hard_files];
                if limits.iter().all(Option::is_none) && grace_days.is_none() {
                    bail!(
                        "no limit is given: use --soft-space, --hard-space, --soft-files, --hard-files or --grace-days"
                    );
                }
                let [soft_bytes, hard_bytes, soft_inodes, hard_inodes] =
                    limits.map(Option::unwrap_or_default);
                let grace_seconds = grace_days.map(|days| u64::from(days) * 86_400);
                let wanted =
                    QuotaChange { soft_bytes, hard_bytes, soft_inodes, hard_inodes, grace_seconds };
                set(&whose, &wanted)?;
            }
            Action::Show { whose, json } => show(&whose, json)?,
            Action::List { root, fileset, json } => {
                let quotas = quotas(&root, fileset.as_deref())?;
                if json {
                    crate::output::put_json(&quotas)?;
                } else {
                    print(&quotas)?;
                }
            }
            Action::Remove { whose } => {
                let (subject, fileset) = (whose.subject()?, whose.fileset.clone());
                let ask = Ask::RemoveQuota { fileset, subject };
                change(&whose.root, &ask, |fs| Ok(fs.remove_quota(&whose.fileset, subject)?))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn set(whose: &Whose, wanted: &QuotaChange) -> Result<()> {
    let (subject, fileset) = (whose.subject()?, whose.fileset.clone());
    let ask = Ask::SetQuota { fileset, subject, change: *wanted };
    change(&whose.root, &ask, |fs| Ok(fs.set_quota(&whose.fileset, subject, wanted)?))
}

/// What exempts from a default.
fn unlimited() -> QuotaChange {
    let QuotaLimits { bytes, inodes, grace_seconds } = QuotaLimits::UNLIMITED;
    let to = |limit: Option<u64>| limit.map_or(LimitChange::Clear, LimitChange::To);
    QuotaChange {
        soft_bytes: to(bytes.soft),
        hard_bytes: to(bytes.hard),
        soft_inodes: to(inodes.soft),
        hard_inodes: to(inodes.hard),
        grace_seconds: Some(grace_seconds),
    }
}

fn show(whose: &Whose, json: bool) -> Result<()> {
    let subject = whose.subject()?;
    let quotas = quotas(&whose.root, Some(&whose.fileset))?;
    let of = |wanted: Subject| quotas.iter().find(|quota| quota.subject == wanted).cloned();
    // Who holds nothing is not listed among those whom a default limits.
    let found = of(subject).or_else(|| {
        let default = of(subject.default_quota()?)?;
        Some(QuotaStatus { subject, by_default: true, ..default })
    });
    let found = found.with_context(|| {
        format!("{} has no quota in fileset \"{}\"", shown(subject), whose.fileset)
    })?;
    if json { crate::output::put_json(&found) } else { print(&[found]) }
}

fn quotas(root: &Path, fileset: Option<&str>) -> Result<Vec<QuotaStatus>> {
    let home = Home::at(root)?;
    if home.try_lock()?.is_some() {
        let open = home.open()?;
        let now = forebay_base::time::SystemClock.now();
        return Ok(forebay_fs::offline::quotas(&open.stores, fileset, now)?);
    }
    match control::ask(home.root(), &Ask::Quotas { fileset: fileset.map(ToOwned::to_owned) })? {
        Answer::Quotas { quotas } => Ok(quotas),
        _ => bail!("the daemon answered without quotas; does it run another version?"),
    }
}

/// Whom a quota limits, by name where there is one.
fn shown(subject: Subject) -> String {
    let named = |name: std::io::Result<Option<String>>, number: u32| {
        name.ok().flatten().unwrap_or_else(|| number.to_string())
    };
    match subject {
        Subject::Fileset => "the fileset".to_owned(),
        Subject::User(uid) => format!("user {}", named(user::name_of(uid), uid)),
        Subject::Group(gid) => format!("group {}", named(user::group_name_of(gid), gid)),
        Subject::EachUser => "each user".to_owned(),
        Subject::EachGroup => "each group".to_owned(),
    }
}

fn print(quotas: &[QuotaStatus]) -> Result<()> {
    let mut table = Table::new(&[
        "FILESET", "WHO", "SPACE", "SOFT", "HARD", "GRACE", "FILES", "SOFT", "HARD", "GRACE",
    ]);
    for quota in quotas {
        table.row(cells(quota));
    }
    out!("{}", table.render());
    Ok(())
}

/// Usage, limits and grace of one resource, and how its numbers are shown.
type Part = (u64, Limits, Option<u64>, fn(u64) -> String);

fn cells(status: &QuotaStatus) -> Vec<String> {
    let limit = |limit: Option<u64>, show: fn(u64) -> String| match limit {
        None | Some(u64::MAX) => "-".to_owned(),
        Some(limit) => show(limit),
    };
    let by_default = if status.by_default { " (default)" } else { "" };
    let mut cells = vec![status.fileset.clone(), shown(status.subject) + by_default];
    let count = |number: u64| number.to_string();
    let quota = status.quota;
    let parts: [Part; 2] = [
        (status.usage.bytes, quota.bytes, status.bytes_grace_left, bytes),
        (status.usage.inodes, quota.inodes, status.inodes_grace_left, count),
    ];
    for (used, limits, grace, show) in parts {
        let grace = match grace {
            None => "-".to_owned(),
            Some(0) => "ended".to_owned(),
            Some(seconds @ 1..172_800) => format!("{} h", seconds.div_ceil(3600)),
            Some(seconds) => format!("{} d", seconds / 86_400),
        };
        let is_default = matches!(status.subject, Subject::EachUser | Subject::EachGroup);
        let used = if is_default { "-".to_owned() } else { show(used) };
        cells.extend([used, limit(limits.soft, show), limit(limits.hard, show), grace]);
    }
    cells
}
