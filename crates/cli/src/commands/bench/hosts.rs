//! The hosts of a study on the grid of a cluster: starts their watchers, and lets them go.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock;
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_grid::vocabulary::JobId;
use forebay_study::hosts::{FOLDER, Hosts};
use forebay_study::run::{Areas, Observer, Progress, Scratch};
use uuid::Uuid;

use super::launcher::GridLauncher;
use super::mounts::at_node;

/// How long a watcher may take to be started and to find the storage.
const START_MAX: Duration = Duration::from_secs(120);
const TURN: Duration = Duration::from_millis(100);

/// Beginning of the name of a file that all hosts must see on the storage.
const SEEN: &str = ".forebay-bench-seen-";

/// Where a study runs.
pub struct Places<'a> {
    /// The storages.
    pub subjects: &'a [Areas],
    /// Where temporary files of jobs go.
    pub scratch: Scratch,
    /// The mount point on each host, if they differ.
    pub mounts: &'a [PathBuf],
    /// The folder of the result.
    pub out: &'a Path,
    /// The forebay program.
    pub program: &'a Path,
}

/// A file on the storage; gone when dropped.
struct Mark(PathBuf);

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Starts the watchers and waits until each has described its host. `None` if it was interrupted.
pub fn start(
    places: &Places<'_>,
    launcher: &mut GridLauncher,
    clock: &Arc<dyn Clock>,
    observer: &mut dyn Observer,
) -> Result<Option<RefCell<Hosts>>> {
    let folder = places.out.join(FOLDER);
    let marks = mark(places.subjects)?;
    let names: Vec<String> = launcher.hosts().iter().map(ToString::to_string).collect();
    let mut hosts = Hosts::make(&folder, &names, Arc::clone(clock))?;
    let started = submit(places, launcher, &folder, &names, &marks).and_then(|watchers| {
        let home = launcher.home().clone();
        hosts.ask_for_fates(Box::new(move |host| fate(&home, *watchers.get(host)?)));
        wait(&mut hosts, &folder, clock, observer)
    });
    match started {
        Ok(true) => Ok(Some(RefCell::new(hosts))),
        Ok(false) => {
            end(hosts, launcher);
            Ok(None)
        }
        Err(error) => {
            end(hosts, launcher);
            Err(error)
        }
    }
}

/// Lets the watchers go, and removes what they wrote.
pub fn end(hosts: Hosts, launcher: &mut GridLauncher) {
    hosts.end();
    launcher.end_watchers();
}

/// Puts a file on each storage.
fn mark(subjects: &[Areas]) -> Result<Vec<Mark>> {
    let id = Uuid::new_v4();
    let mut marks = Vec::new();
    for areas in subjects {
        let path = areas.data.join(format!("{SEEN}{id}"));
        fs::File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        marks.push(Mark(path));
    }
    Ok(marks)
}

fn submit(
    places: &Places<'_>,
    launcher: &mut GridLauncher,
    folder: &Path,
    names: &[String],
    marks: &[Mark],
) -> Result<BTreeMap<String, JobId>> {
    let text = |path: &Path| {
        let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()));
        text.map(str::to_owned)
    };
    let mut watchers = BTreeMap::new();
    for (place, name) in names.iter().enumerate() {
        let here = |path: &Path| text(&at_node(places.mounts, path, place));
        let mut command = vec![text(places.program)?, "bench".to_owned(), "watch-host".to_owned()];
        command.extend([here(folder)?, "--host".to_owned(), name.clone()]);
        command.extend(["--records".to_owned(), here(places.out)?]);
        for areas in places.subjects {
            command.push("--storage".to_owned());
            command.extend([here(&areas.data)?, here(&areas.work)?, here(&areas.util)?]);
        }
        if places.scratch == Scratch::OfJobs {
            command.push("--work-of-jobs".to_owned());
        }
        for Mark(path) in marks {
            command.extend(["--seen".to_owned(), here(path)?]);
        }
        let log = here(&folder.join(format!("{name}.log")))?;
        watchers.insert(name.clone(), launcher.watch_host(place, command, log)?);
    }
    Ok(watchers)
}

/// Why a watcher does not run any more, as the grid knows it. A controller that cannot be reached says nothing.
fn fate(home: &GridHome, job: JobId) -> Option<String> {
    let (lines, _) = Client::connect(home).ok()?.jobs(Some(job.into()), true, None).ok()?;
    let line = lines.first().filter(|line| line.ended.is_some())?;
    let how = line.exit.as_ref().map_or_else(String::new, |exit| format!(", {exit}"));
    Some(format!("its watcher, job {job}, has ended: {}{how}", line.state))
}

/// Waits until all hosts have answered; false if it was interrupted.
fn wait(
    hosts: &mut Hosts,
    folder: &Path,
    clock: &Arc<dyn Clock>,
    observer: &mut dyn Observer,
) -> Result<bool> {
    let begin = clock.instant();
    loop {
        hosts.read()?;
        hosts.known()?;
        let silent: Vec<String> = hosts.silent()?.into_iter().map(str::to_owned).collect();
        let Some(first) = silent.first() else { return Ok(true) };
        if clock.instant().saturating_duration_since(begin) > START_MAX {
            let log = fs::read_to_string(folder.join(format!("{first}.log"))).unwrap_or_default();
            let said = log.lines().rfind(|line| !line.trim().is_empty());
            let said = said.map_or(String::new(), |line| format!(" It said: {line}."));
            bail!(
                "the watcher of host {first} has not answered for {} s.{said} It needs a free slot there (forebay jobs), and the \
                 folder of the result (--out), {}, must be one that all hosts share",
                START_MAX.as_secs(),
                folder.parent().unwrap_or(folder).display()
            );
        }
        if observer.interrupted().is_some() {
            return Ok(false);
        }
        observer.progress(Progress::Hosts { silent });
        std::thread::sleep(TURN);
    }
}
