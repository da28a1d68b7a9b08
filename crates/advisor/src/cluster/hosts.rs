//! The hosts of a cluster's nodes: each node examines its own, and one command puts together what they say.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::checks::{self, About, Examined, look};
use crate::finding::Verdict;
use crate::host::Host;

/// What a node says of its host, as it travels: the name of a check, and what that says.
#[derive(Serialize, Deserialize)]
struct Said(String, Verdict);

/// What all checks of a host say of this one and of these directories, for [`add`] on another node. Directories that cannot be looked at
/// are left out: whoever uses them reports them.
#[must_use]
pub fn report(paths: Vec<PathBuf>) -> String {
    let mut readable = paths;
    readable.retain(|path| Host::here(std::slice::from_ref(path)).is_ok());
    let host = Host::here(&readable).or_else(|_| Host::here(&[]));
    let said = host.map_or_else(|_| Vec::new(), |host| look(&checks::all(), &host));
    write(said)
}

fn write(said: Vec<(About, Verdict)>) -> String {
    let said: Vec<Said> =
        said.into_iter().map(|(about, verdict)| Said(about.code.to_owned(), verdict)).collect();
    serde_json::to_string(&said).unwrap_or_default()
}

/// What nodes say of their hosts, each with its name: a report, or why there is none. What several say alike is said once, with the names of
/// all of them.
#[must_use]
pub fn add(mut examined: Examined, hosts: &[(String, Result<String, String>)]) -> Examined {
    let known = checks::known();
    let about = |code: &str| known.iter().find(|about| about.code == code).copied();
    let nodes = about("cluster/nodes");
    let mut all: Vec<(About, Verdict, Vec<&str>)> = Vec::new();
    for (name, report) in hosts {
        let said = report.as_ref().map_err(Clone::clone).and_then(|text| {
            serde_json::from_str::<Vec<Said>>(text).map_err(|_| {
                "its report cannot be understood: is it a different version?".to_owned()
            })
        });
        let said = said.unwrap_or_else(|reason| {
            let text = format!("its host was not checked: {reason}");
            vec![Said("cluster/nodes".to_owned(), Verdict::Unknown(text))]
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
            match all.iter_mut().find(|(known, same, _)| *known == about && *same == verdict) {
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
            Verdict::problem("none".to_owned(), Fix::ByHand { advice: "load it".to_owned() }),
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
    fn a_report_has_what_all_checks_of_a_host_say_and_leaves_out_what_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let text = report(vec![folder.path().to_owned(), "/nonexistent".into()]);
        let examined = add(Examined::default(), &[("n1".to_owned(), Ok(text))]);
        let own = checks::examine(&Host::here(&[folder.path().to_owned()]).unwrap());
        let count = |it: &Examined| (it.findings.len(), it.fine.len(), it.unknown.len());
        assert_eq!(count(&examined), count(&own));
        assert!(examined.fine.iter().all(|line| line.text.starts_with("n1: ")));
    }
}
