//! Whether a storage is fit for data that several hosts share.

use std::io::{BufReader, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::Severity;
use forebay_advisor::shared::{self, Far, Near, OtherSide, Shown, Sides};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::Table;

/// Exit code of a command that was interrupted.
const INTERRUPTED: u8 = 130;
/// What another host may take for an answer, besides the time that a change may take to be seen there.
const ANSWER_MARGIN: Duration = Duration::from_secs(20);
/// How long the command of the other host has to end.
const END: Duration = Duration::from_secs(5);

/// Options of the examination of shared storage.
#[derive(clap::Args)]
pub struct SharedOptions {
    /// Examine the storage below this directory: new names, sizes, bytes, locks, renames, appends.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["paths", "fix_script", "mute", "unmute"])]
    shared: Option<PathBuf>,
    /// The same directory on another host (HOST:DIRECTORY, over ssh without a password), or through another mount of the storage here.
    /// The other host needs forebay on its PATH.
    #[arg(long, value_name = "[HOST:]DIRECTORY", requires = "shared")]
    with: Option<String>,
    /// Command that runs a program on another host, which has forebay on its PATH.
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "with",
        default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15"
    )]
    rsh: String,
    /// Answer for this directory on standard input and output: the other host does so.
    #[arg(long, value_name = "DIRECTORY", hide = true, conflicts_with_all = ["paths", "shared"])]
    other_side: Option<PathBuf>,
    /// Seconds to wait until one side sees a change by the other; NFS may take 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 70, value_parser = clap::value_parser!(u64).range(1..=600))]
    patience: u64,
}

impl SharedOptions {
    /// Examines the storage if the options say so.
    pub fn run(&self, json: bool) -> Result<Option<ExitCode>> {
        if let Some(directory) = &self.other_side {
            shared::serve(directory, stdin().lock(), stdout().lock())?;
            return Ok(Some(ExitCode::SUCCESS));
        }
        let Some(one) = &self.shared else { return Ok(None) };
        let interrupted = end_at_signal()?;
        let with = self.with.as_deref();
        let far = with.map(host_of).transpose()?.flatten();
        let examined = match (with, far) {
            (None, _) => self.examine(one, &Near::new(one), &interrupted),
            (Some(with), None) => self.examine(one, &Near::new(Path::new(with)), &interrupted),
            (Some(with), Some((host, directory))) => {
                let mut child = self.start(&host, directory)?;
                let (Some(answers), Some(asks)) = (child.stdout.take(), child.stdin.take()) else {
                    bail!("{}: the command has no pipes", self.rsh);
                };
                let limit = Duration::from_secs(self.patience) + ANSWER_MARGIN;
                let far = Far::new(with.to_owned(), BufReader::new(answers), asks, limit);
                let examined = self.examine(one, &far, &interrupted);
                // Its input ends, and so does it.
                drop(far);
                end(&mut child)?;
                examined
            }
        };
        if interrupted.load(Ordering::Relaxed) {
            note!("forebay: interrupted");
            return Ok(Some(ExitCode::from(INTERRUPTED)));
        }
        let shown = examined.with_context(|| format!("cannot examine {}", one.display()))?;
        print(&shown, json)?;
        if self.with.is_none() {
            note!(
                "Only one mount was examined, which cannot hide changes from itself: name the same directory on another host, or another mount of the storage, with --with."
            );
        }
        let bad = shown.iter().any(|shown| shown.severity > Some(Severity::Advice));
        Ok(Some(if bad { ExitCode::from(1) } else { ExitCode::SUCCESS }))
    }
}

impl SharedOptions {
    fn examine(
        &self,
        one: &Path,
        there: &dyn OtherSide,
        interrupted: &AtomicBool,
    ) -> std::io::Result<Vec<Shown>> {
        let patience = Duration::from_secs(self.patience);
        let sides = Sides::open(one, there, patience, &SystemClock, interrupted)?;
        let examined = sides.examine();
        if let Err(stays) = sides.close() {
            note!("forebay: {stays}");
        }
        examined
    }

    /// Has another host answer for a directory.
    fn start(&self, host: &str, directory: &str) -> Result<Child> {
        let words = shlex::split(&self.rsh).filter(|words| !words.is_empty());
        let words = words.with_context(|| format!("--rsh {:?} is not a command", self.rsh))?;
        // The other side's shell takes the words apart once more.
        let quoted = shlex::try_quote(directory).context("--with")?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args([host, "forebay", "doctor", "--other-side", &*quoted]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: signal always succeeds here. A command that ends early is reported, and what was made is removed.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        command.spawn().with_context(|| format!("--rsh: cannot start {}", words[0]))
    }
}

/// What is set when a signal says that the tests are to end; a second one ends the command at once.
fn end_at_signal() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(
            number,
            INTERRUPTED.into(),
            Arc::clone(&interrupted),
        )?;
        signal_hook::flag::register(number, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// Waits until a command has ended, and kills it if that takes long.
fn end(child: &mut Child) -> Result<()> {
    let begun = SystemClock.instant();
    while child.try_wait()?.is_none() {
        if SystemClock.instant() - begun > END {
            child.kill()?;
            child.wait()?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Host and directory, if a place is on another host. An address of IPv6 is in brackets.
fn host_of(place: &str) -> Result<Option<(String, &str)>> {
    let bracketed = place.split_once("]:").filter(|(host, _)| host.contains('['));
    let parts = bracketed
        .map(|(host, directory)| (host.replacen('[', "", 1), directory))
        .or_else(|| place.split_once(':').map(|(host, rest)| (host.to_owned(), rest)));
    let is_host = |host: &str| !host.is_empty() && !host.starts_with('-') && !host.contains('/');
    let Some((host, directory)) = parts.filter(|(host, _)| is_host(host)) else { return Ok(None) };
    if directory.starts_with('/') {
        return Ok(Some((host, directory)));
    }
    if Path::new(place).exists() {
        return Ok(None);
    }
    bail!("--with {place}: HOST: must be followed by an absolute path")
}

fn print(shown: &[Shown], json: bool) -> Result<()> {
    let verdict = shared::verdict(shown);
    if json {
        return crate::output::put_json(&serde_json::json!({ "tests": shown, "verdict": verdict }));
    }
    let mut table = Table::new(&["test", "", "seen"]);
    for shown in shown {
        let word = shown.severity.map_or("fine", Severity::word);
        table.row(vec![shown.test.to_owned(), word.to_owned(), shown.text.clone()]);
    }
    outln!("{}\nThis storage is {verdict}.", table.render());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_on_another_host_has_its_name_before_a_colon() {
        let there = |host: &str, directory| Some((host.to_owned(), directory));
        for (place, wanted) in [
            ("node2:/nfs/data", there("node2", "/nfs/data")),
            ("root@node2:/nfs", there("root@node2", "/nfs")),
            ("[::1]:/nfs", there("::1", "/nfs")),
            ("root@[fe80::1]:/nfs", there("root@fe80::1", "/nfs")),
        ] {
            assert_eq!(host_of(place).unwrap(), wanted, "{place}");
        }
        for here in ["/nfs", "/nfs:/x", "nfs", "-oProxyCommand=x:/nfs"] {
            assert_eq!(host_of(here).unwrap(), None, "{here}");
        }
        for bad in ["node2:nfs", "node2:", "a:b"] {
            let error = host_of(bad).unwrap_err().to_string();
            assert!(error.ends_with("HOST: must be followed by an absolute path"), "{error}");
        }
    }
}
