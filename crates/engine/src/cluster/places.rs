//! Where the files are that jobs name as their inputs: on the node that owns their fileset, or whose folder of a native fileset they
//! lie in. It is a preference and no more: where nobody can say, nothing is said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_base::time::SystemClock;
use forebay_base::{Clock as _, FilesetId};
use forebay_grid::spec::{Input, JobSpec};
use forebay_grid::vocabulary::HostName;
use forebay_node::members::Book;

use crate::protocol::Ask;
use crate::protocol::flow::FlowAsk;

/// How long what etcd said of owners is not asked again.
const AGE_MAX: Duration = Duration::from_secs(2);

/// Owners and nodes, as etcd says.
#[derive(Debug, Default)]
struct Known {
    owners: BTreeMap<FilesetId, HostName>,
    nodes: Vec<HostName>,
}

/// What is known of places on a cluster.
pub struct Places {
    book: Book,
    last: Mutex<Option<(Instant, Arc<Known>)>>,
}

impl Places {
    /// Those of a cluster.
    #[must_use]
    pub fn new(book: &Book) -> Places {
        Places { book: book.clone(), last: Mutex::new(None) }
    }

    /// Fills in on which hosts the inputs of submitted jobs lie.
    #[must_use]
    pub fn fill_in(&self, mut ask: Ask) -> Ask {
        let jobs: Vec<&mut JobSpec> = match &mut ask {
            Ask::Submit { spec, .. } | Ask::Try { spec } => vec![&mut **spec],
            Ask::Flow { flow: FlowAsk::Run { spec, .. } | FlowAsk::Schedule(spec) } => {
                spec.steps.iter_mut().collect()
            }
            _ => return ask,
        };
        let inputs: Vec<&mut Input> = jobs.into_iter().flat_map(|job| &mut job.inputs).collect();
        if !inputs.is_empty() {
            let known = self.known();
            for input in inputs {
                input.home = known.home_of(input);
            }
        }
        ask
    }

    fn known(&self) -> Arc<Known> {
        let now = SystemClock.instant();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = &*last
            && now.saturating_duration_since(*at) < AGE_MAX
        {
            return Arc::clone(known);
        }
        let known = Arc::new(self.ask().unwrap_or_else(|error| {
            tracing::debug!("the homes of inputs are not known: {error}");
            Known::default()
        }));
        *last = Some((now, Arc::clone(&known)));
        known
    }

    fn ask(&self) -> forebay_node::Result<Known> {
        let (sight, view) = self.book.read()?;
        let name = |node| sight.nodes.get(&node)?.name.parse::<HostName>().ok();
        let owners = view
            .owners
            .iter()
            .filter_map(|(fileset, record)| Some((*fileset, name(record.owner.as_ref()?.node)?)));
        let nodes = sight.nodes.values().filter_map(|node| node.name.parse().ok()).collect();
        Ok(Known { owners: owners.collect(), nodes })
    }
}

impl Known {
    fn home_of(&self, input: &Input) -> Option<HostName> {
        let owner = input.fileset.and_then(|fileset| self.owners.get(&FilesetId(fileset)));
        owner.cloned().or_else(|| {
            let folder = input.folder.as_deref()?;
            self.nodes.iter().find(|node| node.as_str() == folder).cloned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_of_a_file_is_the_owner_of_its_fileset_or_the_node_of_its_folder() {
        let host = |name: &str| name.parse::<HostName>().unwrap();
        let known = Known {
            owners: BTreeMap::from([(FilesetId(3), host("n1"))]),
            nodes: vec![host("n1"), host("n2")],
        };
        let home = |fileset: Option<u16>, folder: Option<&str>| {
            let path = "/mnt/x".to_owned();
            known.home_of(&Input { path, fileset, folder: folder.map(str::to_owned), home: None })
        };
        assert_eq!(home(Some(3), Some("n2")), Some(host("n1")));
        assert_eq!(home(Some(4), Some("n2")), Some(host("n2")));
        assert_eq!(home(None, Some("n2")), Some(host("n2")));
        assert_eq!(home(Some(4), Some("else")), None);
        assert_eq!(home(None, None), None);
    }
}
