//! `forebay policy`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use forebay_base::time::{Clock as _, SystemClock};
use forebay_fs::policy::{Accounts, Automatic, Policy as Rules, PolicyReport};
use forebay_process::user;

use super::disk::{Show, changed, task};
use crate::control::{self, Answer, Ask};
use crate::daemon::Next;
use crate::home::Home;
use crate::output::{Table, bytes};

/// Place new files, move files between pools, remove old ones, and list files, by rules in a file.
///
/// The file is TOML. `[[place]]` rules name the pool that new files lie in (to), by fileset, user, group and name patterns
/// (files); what matches none lies in the pool of its fileset. They are in force from `forebay policy apply` on. Each `[[migrate]]` rule names the pool that files lie in (from) and the pool that they go to (to); the
/// first rule that matches a file decides. `[[premigrate]]` rules give files an object in an archive and leave them here;
/// `[[migrate]]` rules with above and until evict such files first, without a request to the store. Rules can be limited by fileset, user, group, name patterns (files), size
/// (larger, smaller), age of the content (older), and by the fill of the pool: above and until, in percent, move the
/// oldest files until the pool is that full. `[[delete]]` rules remove files of a fileset whose content has not changed for
/// a time. `[[list]]` rules list files. Files are moved and removed by a task (`forebay tasks`), within its speed;
/// files that programs have open stay for the next run. The pool that files go to may be one of archives (`forebay disk add
/// --help`): then `older` asks that a file was not accessed or recalled for that long either. In a cluster each owner moves
/// the files of its filesets, by rules with above and until one owner after the other; archives are not available there.
///
/// `[run]` makes the daemon run the applied policy. With `every`, it runs all rules at multiples of that interval, in UTC. With
/// `when_full = true`, it checks each pool every `look` (1 min by default), and runs the rules with above and until of each pool
/// that is fuller than above. Without `[run]`, call `forebay policy run` from cron. Clusters do not support `[run]`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay policy check rules.toml
  forebay policy apply /srv/forebay rules.toml
  forebay policy show /srv/forebay
  forebay policy run /srv/forebay --dry-run
  forebay policy run /srv/forebay --wait

A rules file:
  [run]
  every = \"1 d\"
  when_full = true

  [[place]]
  name = \"logs are on the slow disks from the beginning\"
  to = \"slow\"
  fileset = \"data\"
  files = [\"*.log\", \"*.tmp\"]

  [[migrate]]
  name = \"results nobody changes any more\"
  from = \"flash\"
  to = \"archive\"
  fileset = \"data\"
  older = \"30 d\"
  files = [\"*.h5\", \"*.csv\"]

  [[premigrate]]
  name = \"in the archive too, before space is needed\"
  from = \"flash\"
  to = \"archive\"
  older = \"7 d\"

  [[migrate]]
  name = \"make room\"
  from = \"flash\"
  to = \"archive\"
  above = 85
  until = 70

  [[delete]]
  name = \"old logs\"
  fileset = \"data\"
  files = \"*.log\"
  older = \"60 d\"

  [[list]]
  name = \"large files of alice\"
  user = \"alice\"
  larger = \"100 GiB\"")]
pub struct Policy {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Check a rules file without a file system.
    #[command(after_help = "Examples:\n  forebay policy check rules.toml")]
    Check {
        /// The rules.
        file: PathBuf,
    },
    /// Keep a copy of a rules file as the policy of a file system, after checking it against pools and filesets.
    ///
    /// Rules that place new files are in force at once. The others run when `[run]` says so, and with `forebay policy run`.
    /// The policy replaces the one before it; a run that has begun goes on (`forebay tasks`).
    #[command(after_help = "Examples:\n  forebay policy apply /srv/forebay rules.toml")]
    Apply {
        /// Home folder of the file system.
        root: PathBuf,
        /// The rules.
        file: PathBuf,
    },
    /// Print the policy of a file system.
    #[command(after_help = "Examples:\n  forebay policy show /srv/forebay")]
    Show {
        /// Home folder of the file system.
        root: PathBuf,
    },
    /// Move and remove files as the policy says, once.
    #[command(after_help = "Examples:
  forebay policy run /srv/forebay --dry-run --json
  forebay policy run /srv/forebay --wait
  forebay policy run /srv/forebay --rules once.toml")]
    Run {
        /// Home folder of the file system.
        root: PathBuf,
        /// Rules to use instead of those that were applied.
        #[arg(long, value_name = "FILE")]
        rules: Option<PathBuf>,
        /// Only report what each rule would move, remove or list, and why.
        #[arg(long, conflicts_with = "wait")]
        dry_run: bool,
        /// Wait until everything is done, and report progress.
        #[arg(long)]
        wait: bool,
        /// Print JSON: the report of a dry run, or the task.
        #[arg(long)]
        json: bool,
    },
}

/// Paths of each rule that are printed.
const SHOWN_MAX: usize = 20;

/// The users and groups of this machine.
struct Machine;

impl Accounts for Machine {
    fn user(&self, name: &str) -> Option<u32> {
        user::number_of(name).ok().flatten()
    }

    fn group(&self, name: &str) -> Option<u32> {
        user::group_number_of(name).ok().flatten()
    }
}

impl Policy {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::Check { file } => {
                let rules = read(&file)?;
                outln!(
                    "{}: {} rules that place new files, {} that premigrate files, {} that move files, {} that remove files, {} that list files",
                    file.display(),
                    rules.place.len(),
                    rules.premigrate.len(),
                    rules.migrate.len(),
                    rules.delete.len(),
                    rules.list.len()
                );
                if let Some(run) = rules.run {
                    outln!("{}", shown_run(run, None));
                }
            }
            Action::Apply { root, file } => apply(&root, &file)?,
            Action::Show { root } => {
                let home = Home::at(&root)?;
                let (place, text) = applied(&home)?;
                outln!("# {}", place.display());
                match parse(&place, &text).map(|rules| rules.run) {
                    Ok(None) => {}
                    Ok(Some(run)) => outln!("# {}", shown_run(run, Next::noted(home.root(), run))),
                    // Who is to mend it needs to see it.
                    Err(error) => outln!("# cannot run: {error}"),
                }
                out!("{text}");
            }
            Action::Run { root, rules, dry_run, wait, json } => {
                let rules = match rules {
                    Some(file) => read(&file)?,
                    None => {
                        let (place, text) = applied(&Home::at(&root)?)?;
                        parse(&place, &text)?
                    }
                };
                if dry_run {
                    print(&look(&root, &rules)?, json)?;
                } else {
                    let ask = Ask::RunPolicy { policy: rules.clone() };
                    task(&root, &ask, |fs| Ok(fs.run_policy(&rules)?), Show { wait, json })?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn parse(place: &Path, text: &str) -> Result<Rules> {
    Rules::parse(text, &Machine).map_err(|why| anyhow::anyhow!("{}: {why}", place.display()))
}

fn read(file: &Path) -> Result<Rules> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the rules {}", file.display()))?;
    parse(file, &text)
}

/// Where the policy of a file system is, and its text, if it has one.
fn text_of(home: &Home) -> Result<Option<(PathBuf, String)>> {
    let place = home.root().join(Home::POLICY);
    match std::fs::read_to_string(&place) {
        Ok(text) => Ok(Some((place, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", place.display())),
    }
}

/// As [`text_of`], of a file system that needs one.
fn applied(home: &Home) -> Result<(PathBuf, String)> {
    text_of(home)?.with_context(|| {
        format!(
            "{} has no policy: `forebay policy apply` gives it one, --rules names one for this run",
            home.root().display()
        )
    })
}

fn apply(root: &Path, file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the rules {}", file.display()))?;
    let rules = parse(file, &text)?;
    let home = Home::at(root)?;
    if home.node().is_some() && rules.run.is_some() {
        bail!(
            "{}: [run] is not supported in a cluster: remove it, and call `forebay policy run` from cron",
            file.display()
        );
    }
    // Pools and filesets that there are not are found now, and not at night.
    look(root, &rules)?;
    let place = home.root().join(Home::POLICY);
    let fresh = place.with_extension("toml.new");
    let io = || format!("cannot write {}", fresh.display());
    std::fs::write(&fresh, &text).with_context(io)?;
    let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&fresh, only_owner).with_context(io)?;
    std::fs::File::open(&fresh).and_then(|file| file.sync_all()).with_context(io)?;
    let is_new = std::fs::read_to_string(&place).ok().as_ref() != Some(&text);
    std::fs::rename(&fresh, &place)
        .with_context(|| format!("cannot put {} in place", place.display()))?;
    match home.try_lock()? {
        None => drop(control::ask(home.root(), &Ask::PlaceFiles)?),
        // What runs next, and when, is noted at the next mount.
        Some(_unmounted) if is_new => Next::forget(home.root())?,
        Some(_unmounted) => {}
    }
    if let Some(run) = rules.run {
        outln!("{}", shown_run(run, Next::noted(home.root(), run)));
    }
    Ok(())
}

/// The policy of a file system, if it has one.
///
/// # Errors
/// If it cannot be read.
pub fn of_home(home: &Home) -> Result<Option<Rules>> {
    text_of(home)?.map(|(place, text)| parse(&place, &text)).transpose()
}

/// When a policy runs by itself, in words.
fn shown_run(run: Automatic, next: Option<Next>) -> String {
    let every = run.every_seconds.map(|every| {
        let now = SystemClock.now().seconds;
        let next = next.and_then(|next| match next.next_seconds {
            due if due <= now => Some(", due as soon as the file system is mounted".to_owned()),
            next => {
                let time = jiff::Timestamp::from_second(next).ok()?;
                Some(format!(", next at {}", time.strftime("%Y-%m-%d %H:%M:%S UTC")))
            }
        });
        format!("all rules every {}{}", shown_time(every), next.unwrap_or_default())
    });
    let full = run.when_full.then(|| {
        let look = shown_time(run.look_seconds);
        format!(
            "rules with above and until when their pool is fuller than above (checked every {look})"
        )
    });
    let parts: Vec<String> = every.into_iter().chain(full).collect();
    format!("scheduled: {}", parts.join("; "))
}

/// A time as the file has it.
fn shown_time(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let unit = units.into_iter().find(|(unit, _)| seconds.is_multiple_of(*unit));
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{} {name}", seconds / unit)
}

fn look(root: &Path, rules: &Rules) -> Result<PolicyReport> {
    let ask = Ask::LookAtPolicy { place: rules.place.clone(), policy: rules.clone() };
    match changed(root, &ask, |fs| Ok(fs.look_at_policy(rules)?))? {
        Ok(Answer::Policy(report)) => Ok(report),
        Ok(_) => bail!("the daemon answered without a report; does it run another version?"),
        Err(report) => Ok(report),
    }
}

fn print(report: &PolicyReport, json: bool) -> Result<()> {
    if json {
        return crate::output::put_json(report);
    }
    let mut table = Table::new(&["RULE", "KIND", "FILES", "BYTES", "WHAT AND WHY"]);
    for rule in &report.rules {
        table.row(vec![
            rule.rule.clone(),
            rule.kind.clone(),
            rule.files.to_string(),
            bytes(rule.bytes),
            rule.reason.clone(),
        ]);
    }
    out!("{}", table.render());
    for rule in report.rules.iter().filter(|rule| !rule.paths.is_empty()) {
        outln!("{}:", rule.rule);
        for path in rule.paths.iter().take(SHOWN_MAX) {
            outln!("  {path}");
        }
        let more = rule.files.saturating_sub(rule.paths.len().min(SHOWN_MAX) as u64);
        if more > 0 {
            outln!("  and {more} more; --json lists up to 10000");
        }
    }
    outln!("{} inodes looked at in {:.2} s", report.inodes, report.seconds);
    Ok(())
}
