//! The hosts of a cluster's nodes: each node examines its own, and one command puts together what they say.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::thread;
use std::time::Duration;

use forebay_base::threads::side_by_side;
use serde::{Deserialize, Serialize};

use crate::checks::{self, About, Examined, look};
use crate::finding::Verdict;
use crate::host::{Host, Place};

/// What a node says of its host, as it travels: the name of a check, and what that says.
#[derive(Serialize, Deserialize)]
struct Said(String, Verdict);

/// How long a directory may take. Whoever asks waits for 20 seconds.
const PLACE_MAX: Duration = Duration::from_secs(10);

/// Directories that are looked at, at the same time.
const PLACES_AT_ONCE: usize = 64;

/// The check under which a node says what it could not check.
const NODES: &str = "cluster/nodes";

/// What all checks of a host say of this one and of these directories, for [`add`] on another node. A directory that cannot be looked at
/// is named, with the reason. One examination goes on at a time: one that a disk holds up holds up no other thread.
///
/// # Errors
/// If the host is being examined already, or cannot be.
pub fn report(paths: impl IntoIterator<Item = PathBuf>) -> Result<String, String> {
    static EXAMINATION: Mutex<()> = Mutex::new(());
    let _alone = match EXAMINATION.try_lock() {
        Ok(alone) => alone,
        Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err("it is being checked already: try again in a minute".to_owned());
        }
    };
    let mut host = Host::here(&[]).map_err(|error| error.to_string())?;
    let paths: BTreeSet<PathBuf> = paths.into_iter().collect();
    let paths = Vec::from_iter(paths);
    let places = side_by_side("examine", PLACES_AT_ONCE, &paths, |path| {
        look_at(path, PLACE_MAX, |path| {
            let there = Host::here(&[path.to_owned()]).map_err(|error| error.source.to_string());
            there.map(|there| there.places)
        })
    });
    let mut failed = Vec::new();
    for (path, found) in paths.iter().zip(places) {
        match found {
            Ok(found) => host.places.extend(found),
            Err(reason) => {
                let text = format!("directory {} was not checked: {reason}", path.display());
                failed.push(Said(NODES.to_owned(), Verdict::Unknown(text)));
            }
        }
    }
    let mut said = said(look(&checks::all(), &host));
    said.append(&mut failed);
    serde_json::to_string(&said).map_err(|error| error.to_string())
}

fn said(verdicts: Vec<(About, Verdict)>) -> Vec<Said> {
    let said = |(about, verdict): (About, Verdict)| Said(about.code.to_owned(), verdict);
    verdicts.into_iter().map(said).collect()
}

/// Directories that a thread is looking at. It cannot be ended while their disk hangs, so there is at most one for each.
fn looking() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static LOOKING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    LOOKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at a directory in a thread of its own, so that a disk that hangs keeps nobody longer than `most`.
fn look_at(
    path: &Path,
    most: Duration,
    look: impl FnOnce(&Path) -> Result<Vec<Place>, String> + Send + 'static,
) -> Result<Vec<Place>, String> {
    if !looking().insert(path.to_owned()) {
        return Err("an earlier check of it has not ended: its disk hangs".to_owned());
    }
    let (tell, told) = mpsc::channel();
    let own = path.to_owned();
    let work = move || {
        let found = look(&own);
        looking().remove(&own);
        let _ = tell.send(found);
    };
    if let Err(error) = thread::Builder::new().name("examine".to_owned()).spawn(work) {
        looking().remove(path);
        return Err(error.to_string());
    }
    let late = |_| Err(format!("it did not answer within {} s", most.as_secs()));
    told.recv_timeout(most).unwrap_or_else(late)
}

/// What nodes say of their hosts, each with its name: a report, or why there is none. What several say alike is said once, with the names of
/// all of them.
#[must_use]
pub fn add(mut examined: Examined, hosts: &[(String, Result<String, String>)]) -> Examined {
    let known = checks::known();
    let about = |code: &str| known.iter().find(|about| about.code == code).copied();
    let nodes = about(NODES);
    let mut places: HashMap<(About, Verdict), usize> = HashMap::new();
    let mut all: Vec<(About, Verdict, Vec<&str>)> = Vec::new();
    for (name, report) in hosts {
        let said = report.as_ref().map_err(Clone::clone).and_then(|text| {
            serde_json::from_str::<Vec<Said>>(text).map_err(|_| {
                "its report cannot be understood: is it a different version?".to_owned()
            })
        });
        let said = said.unwrap_or_else(|reason| {
            let text = format!("its host was not checked: {reason}");
            vec![Said(NODES.to_owned(), Verdict::Unknown(text))]
        });
        for Said(code, verdict) in said {
            // A check that only another version has is named under that of the nodes.
            let (about, verdict) = match (about(&code), nodes) {
                (Some(about), _) => (about, verdict),
                (None, Some(nodes)) => {
                    (nodes, Verdict::Unknown(format!("this version does not know check {code}")))
                }
                (None, None) => continue,
            };
            let place = *places.entry((about, verdict.clone())).or_insert(all.len());
            match all.get_mut(place) {
                Some((.., names)) => names.push(name),
                None => all.push((about, verdict, vec![name.as_str()])),
            }
        }
    }
    for (about, verdict, names) in all {
        examined.note(about, verdict.of_nodes(&names.join(", ")));
    }
    examined.sorted()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Fix, Severity};

    fn write(verdicts: Vec<(About, Verdict)>) -> String {
        serde_json::to_string(&said(verdicts)).unwrap()
    }

    #[test]
    fn what_hosts_say_alike_is_said_once_and_a_host_that_says_nothing_is_named() {
        let known = checks::known();
        let about = |code: &str| *known.iter().find(|about| about.code == code).unwrap();
        let swap = |evidence: &str| {
            let fix = Fix::sysctl("vm.swappiness", 10);
            (about("memory/swappiness"), Verdict::warning(evidence.to_owned(), fix))
        };
        let fine = (about("fuse/device"), Verdict::Fine("/dev/fuse".to_owned()));
        let problem = (
            about("fuse/device"),
            Verdict::problem("none".to_owned(), Fix::ByHand { advice: "load\nit".to_owned() }),
        );
        let of_later = r#"[["later/check",{"fine":"x"}]]"#;
        let examined = add(
            Examined::default(),
            &[
                ("n1".to_owned(), Ok(write(vec![swap("60"), fine.clone()]))),
                ("n2".to_owned(), Ok(write(vec![swap("60"), problem]))),
                ("n3".to_owned(), Ok(write(vec![swap("30"), fine]))),
                ("n4".to_owned(), Err("timed out".to_owned())),
                ("n5".to_owned(), Ok("{}".to_owned())),
                ("n6".to_owned(), Ok(of_later.to_owned())),
            ],
        );
        let found: Vec<(Severity, &str)> =
            examined.findings.iter().map(|one| (one.severity, &*one.evidence)).collect();
        let wanted = [
            (Severity::Problem, "n2: none"),
            (Severity::Warning, "n1, n2: 60"),
            (Severity::Warning, "n3: 30"),
        ];
        assert_eq!(found, wanted);
        let fixes: Vec<String> = examined.findings.iter().map(|one| one.fix.line()).collect();
        let swappiness = "sysctl -w vm.swappiness='10'";
        let wanted = [
            "on n2: load it".to_owned(),
            format!("on n1, n2: {swappiness}"),
            format!("on n3: {swappiness}"),
        ];
        assert_eq!(fixes, wanted);
        assert_eq!(examined.fine.len(), 1);
        assert_eq!(examined.fine[0].text, "n1, n3: /dev/fuse");
        let unknown: Vec<&str> = examined.unknown.iter().map(|line| &*line.text).collect();
        assert_eq!(
            unknown,
            [
                "n4: its host was not checked: timed out",
                "n5: its host was not checked: its report cannot be understood: is it a different version?",
                "n6: this version does not know check later/check",
            ]
        );
    }

    #[test]
    fn a_report_has_what_all_checks_of_a_host_say_and_names_what_cannot_be_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let text = report([folder.path().to_owned(), "/nonexistent".into()]).unwrap();
        let mut examined = add(Examined::default(), &[("n1".to_owned(), Ok(text))]);
        let absent = examined.unknown.extract_if(.., |line| line.text.contains("/nonexistent"));
        let absent: Vec<String> = absent.map(|line| line.text).collect();
        let reason = "No such file or directory (os error 2)";
        let wanted = format!("n1: directory /nonexistent was not checked: {reason}");
        assert_eq!(absent, [wanted]);
        let own = checks::examine(&Host::here(&[folder.path().to_owned()]).unwrap());
        let count = |it: &Examined| (it.findings.len(), it.fine.len(), it.unknown.len());
        assert_eq!(count(&examined), count(&own));
        assert!(examined.fine.iter().all(|line| line.text.starts_with("n1: ")));
    }

    #[test]
    fn a_directory_that_hangs_is_named_and_keeps_one_thread_however_often_it_is_asked_for() {
        let path = Path::new("/a/disk/that/hangs");
        let (release, hangs) = mpsc::channel::<()>();
        let hung = look_at(path, Duration::ZERO, move |_| {
            let _ = hangs.recv();
            Ok(Vec::new())
        });
        assert_eq!(hung.unwrap_err(), "it did not answer within 0 s");
        let again = look_at(path, Duration::MAX, |_| panic!("no second thread looks at it"));
        assert!(again.unwrap_err().contains("has not ended"));
        drop(release);
        while looking().contains(path) {
            thread::yield_now();
        }
        let absent = look_at(path, Duration::from_secs(600), |_| Err("not there".to_owned()));
        assert_eq!(absent.unwrap_err(), "not there");
    }
}
