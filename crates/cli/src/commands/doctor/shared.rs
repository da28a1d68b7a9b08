//! Whether a storage is fit for data that several hosts share.

use std::io::{BufReader, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_advisor::Severity;
use forebay_advisor::shared::{self, Far, Near, OtherSide, Shown, Sides};
use forebay_base::time::SystemClock;

use crate::output::Table;

/// Options of the examination of shared storage.
#[derive(clap::Args)]
pub struct SharedOptions {
    /// Examine the storage below this directory: new names, sizes, bytes, locks, renames, appends.
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["paths", "fix_script", "mute", "unmute"])]
    shared: Option<PathBuf>,
    /// The same directory on another host (HOST:DIRECTORY, over ssh), or through another mount of the storage here.
    #[arg(long, value_name = "[HOST:]DIRECTORY", requires = "shared")]
    with: Option<String>,
    /// Command that runs a program on another host, which has forebay on its PATH.
    #[arg(long, value_name = "COMMAND", requires = "with", default_value = "ssh -o BatchMode=yes")]
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
        let examined = match self.with.as_deref().map(|with| (with, host_of(with))) {
            None => self.examine(one, &Near::new(one)),
            Some((with, None)) => self.examine(one, &Near::new(Path::new(with))),
            Some((with, Some((host, directory)))) => {
                let mut child = self.start(host, directory)?;
                let (Some(answers), Some(asks)) = (child.stdout.take(), child.stdin.take()) else {
                    bail!("{}: the command has no pipes", self.rsh);
                };
                let far = Far::new(with.to_owned(), BufReader::new(answers), asks);
                let examined = self.examine(one, &far);
                // Its input ends, and so does it.
                drop(far);
                child.wait()?;
                examined
            }
        };
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
    fn examine(&self, one: &Path, there: &dyn OtherSide) -> std::io::Result<Vec<Shown>> {
        let patience = Duration::from_secs(self.patience);
        Sides::open(one, there, patience, &SystemClock)?.examine()
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

/// Host and directory, if a place is on another host.
fn host_of(place: &str) -> Option<(&str, &str)> {
    let (host, directory) = place.split_once(':')?;
    let is_host = !host.is_empty() && !host.starts_with('-') && !host.contains('/');
    (is_host && directory.starts_with('/')).then_some((host, directory))
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
        assert_eq!(host_of("node2:/nfs/data"), Some(("node2", "/nfs/data")));
        assert_eq!(host_of("root@node2:/nfs"), Some(("root@node2", "/nfs")));
        for here in ["/nfs", "/nfs:/x", "nfs", "-oProxyCommand=x:/nfs", "a:b"] {
            assert_eq!(host_of(here), None, "{here}");
        }
    }
}
