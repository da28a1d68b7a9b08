//! What must hold, checked as things happen and at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_base::{ClientId, Epoch, FilesetId, NodeId};

use super::asking::{Finish, Load};
use super::files::{DIRECTORIES, Object, Op, State, States, Verb};
use super::history::{Done, Span, is_linearizable};
use crate::ownership::Change;

#[derive(Clone, Copy, Debug)]
struct Record {
    author: NodeId,
    fileset: FilesetId,
    op: Op,
    begin: Duration,
    end: Option<(Duration, Finish)>,
    /// Its program died with its daemon.
    orphan: bool,
    applied: usize,
}

/// Sees everything, and says what is wrong.
#[derive(Debug)]
pub struct Witness {
    /// The first thing that must not happen.
    pub fault: Option<String>,
    /// Only what the store guarantees is checked.
    store_only: bool,
    records: Vec<Record>,
    /// Records of changes, by the number of the operation.
    numbered: BTreeMap<u64, usize>,
    running: BTreeMap<(ClientId, usize), usize>,
    /// When each epoch began to be possible.
    begun: BTreeMap<(FilesetId, Epoch), Duration>,
    opened: BTreeMap<FilesetId, Epoch>,
    resets: BTreeMap<(FilesetId, Object), Vec<Span>>,
    number: u64,
    pub takeovers: u64,
    pub synced: u64,
    pub kept_reads: u64,
    pub reports: u64,
}

impl Witness {
    pub fn new(store_only: bool) -> Witness {
        Witness {
            fault: None,
            store_only,
            records: Vec::new(),
            numbered: BTreeMap::new(),
            running: BTreeMap::new(),
            begun: BTreeMap::new(),
            opened: BTreeMap::new(),
            resets: BTreeMap::new(),
            number: 0,
            takeovers: 0,
            synced: 0,
            kept_reads: 0,
            reports: 0,
        }
    }

    fn wrong(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    pub fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    pub fn author(&self, number: u64) -> Option<NodeId> {
        Some(self.records[*self.numbered.get(&number)?].author)
    }

    pub fn begin(
        &mut self,
        of: ClientId,
        program: usize,
        fileset: FilesetId,
        op: Op,
        now: Duration,
    ) {
        let index = self.records.len();
        if !matches!(op.verb, Verb::Sync(_)) {
            self.numbered.insert(op.number, index);
        }
        self.running.insert((of, program), index);
        self.records.push(Record {
            author: of.node,
            fileset,
            op,
            begin: now,
            end: None,
            orphan: false,
            applied: 0,
        });
    }

    pub fn end(&mut self, of: ClientId, program: usize, finish: Finish, now: Duration) {
        let Some(index) = self.running.remove(&(of, program)) else { return };
        let record = &mut self.records[index];
        record.end = Some((now, finish));
        self.kept_reads += u64::from(record.begin == now && record.op.verb == Verb::Read);
        let changes = record.op.verb.changes() && record.op.verb != Verb::Open;
        let (op, applied) = (record.op, record.applied);
        match finish {
            Finish::Done if changes && applied != 1 => {
                self.wrong(format!("{op:?} was acknowledged and carried out {applied} times"));
            }
            Finish::Nothing if changes && applied != 0 => {
                self.wrong(format!("{op:?} was refused and carried out {applied} times"));
            }
            Finish::Read(_)
            | Finish::Done
            | Finish::Here
            | Finish::Not
            | Finish::Nothing
            | Finish::Unknown => {}
        }
    }

    /// A daemon died, and its programs with it.
    pub fn died(&mut self, of: ClientId) {
        let gone: Vec<_> =
            self.running.keys().filter(|(client, _)| *client == of).copied().collect();
        for key in gone {
            if let Some(index) = self.running.remove(&key) {
                self.records[index].orphan = true;
            }
        }
    }

    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    pub fn changed(&mut self, change: Change, now: Duration) {
        if let Change::Owner(fileset, Some(record)) = change {
            self.begun.entry((fileset, record.epoch)).or_insert(now);
        }
    }

    pub fn opened(
        &mut self,
        fileset: FilesetId,
        epoch: Epoch,
        states: &States,
        load: Load,
        now: Duration,
    ) {
        self.takeovers += 1;
        let newest = self.opened.entry(fileset).or_default();
        *newest = (*newest).max(epoch);
        let begin = self.begun.get(&(fileset, epoch)).copied().unwrap_or_default();
        let directories = DIRECTORIES..DIRECTORIES + load.directories;
        for object in (0..load.objects).chain(directories) {
            let found = states.get(&object).and_then(|state| state.value);
            let span = Span { begin, end: now, done: Done::Reset(found) };
            self.resets.entry((fileset, object)).or_default().push(span);
        }
    }

    /// A request passed a gate.
    pub fn answers(
        &mut self,
        fileset: FilesetId,
        epoch: Epoch,
        by: ClientId,
        owner: Option<ClientId>,
    ) {
        if owner != Some(by) {
            self.wrong(format!(
                "{by:?} answers for fileset {fileset} in epoch {epoch} of {owner:?}"
            ));
        }
        let newest = self.opened.get(&fileset).copied().unwrap_or_default();
        if newest > epoch && !self.store_only {
            self.wrong(format!(
                "{by:?} answers for fileset {fileset} in epoch {epoch} after epoch {newest} was opened"
            ));
        }
    }

    pub fn applied(
        &mut self,
        fileset: FilesetId,
        op: Op,
        done: bool,
        again: bool,
        holders: &[NodeId],
    ) {
        let Some(index) = self.numbered.get(&op.number).copied() else { return };
        let record = &mut self.records[index];
        record.applied += usize::from(done);
        let (told, times) = (record.end, record.applied);
        if again || (times > 1 && op.verb != Verb::Open) {
            self.wrong(format!("{op:?} of fileset {fileset} was carried out again"));
        }
        if told.is_some() && done && !self.store_only {
            self.wrong(format!("{op:?} was carried out after its program was told {told:?}"));
        }
        if done && !holders.is_empty() && !self.store_only {
            self.wrong(format!(
                "{op:?} of fileset {fileset} took effect while nodes {holders:?} may use what they cached"
            ));
        }
    }

    /// What a node has done by itself was reported to the owner, which has carried it out.
    pub fn reported(
        &mut self,
        fileset: FilesetId,
        op: Op,
        done: bool,
        again: bool,
        holders: &[NodeId],
    ) {
        self.reports += 1;
        let Some(index) = self.numbered.get(&op.number).copied() else { return };
        let record = &mut self.records[index];
        record.applied += usize::from(done);
        let is_own = matches!(record.end, Some((_, Finish::Here)));
        if again || record.applied > 1 {
            self.wrong(format!("{op:?} of fileset {fileset} was reported and carried out again"));
        }
        if self.store_only {
            return;
        }
        if !done {
            self.wrong(format!(
                "{op:?} of fileset {fileset} was done in a delegated directory, and cannot be carried out"
            ));
        }
        if !is_own {
            self.wrong(format!("{op:?} of fileset {fileset} was reported, and nobody has done it"));
        }
        if !holders.is_empty() {
            self.wrong(format!(
                "{op:?} of fileset {fileset} was reported while it is delegated to nodes {holders:?} as well"
            ));
        }
    }

    /// A client is gone to which a directory was delegated: what it did not report is lost. An owner that was superseded may say that
    /// late, when it is not so any more.
    pub fn undelegated(
        &mut self,
        (fileset, epoch): (FilesetId, Epoch),
        object: Object,
        value: Option<u64>,
        now: Duration,
    ) {
        if self.opened.get(&fileset).is_some_and(|newest| *newest > epoch) {
            return;
        }
        let span = Span { begin: now, end: now, done: Done::Reset(value) };
        self.resets.entry((fileset, object)).or_default().push(span);
    }

    pub fn synced(&mut self, fileset: FilesetId, op: Op, state: Option<&State>) {
        self.synced += 1;
        if !state.is_some_and(|state| state.lineage.contains(&op.number)) {
            self.wrong(format!("{op:?} of fileset {fileset} was synced but is not in the store"));
        }
    }

    /// What can only be judged at the end.
    pub fn finish(&self, now: Duration, calm: Duration) -> Result<(), String> {
        if let Some(index) = self.running.values().next() {
            let record = &self.records[*index];
            return Err(format!(
                "nothing came of {:?} of fileset {}, begun at {:?}, by {now:?}, although all was well from {calm:?} on",
                record.op, record.fileset, record.begin
            ));
        }
        if self.store_only {
            return Ok(());
        }
        for ((fileset, object), spans) in self.histories() {
            if !is_linearizable(&spans) {
                return Err(format!(
                    "object {object} of fileset {fileset} has no order: {}",
                    told(&spans)
                ));
            }
        }
        Ok(())
    }

    fn histories(&self) -> BTreeMap<(FilesetId, Object), Vec<Span>> {
        let mut histories = self.resets.clone();
        for record in &self.records {
            if let Some(span) = record.span() {
                histories.entry((record.fileset, record.op.object)).or_default().push(span);
            }
        }
        histories
    }
}

/// A history in short.
fn told(spans: &[Span]) -> String {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.begin);
    let told = spans.iter().map(|span| {
        let end = match span.end {
            Duration::MAX => "?".to_owned(),
            end => format!("{:.4}", end.as_secs_f64()),
        };
        format!("\n  {:.4} - {end}: {:?}", span.begin.as_secs_f64(), span.done)
    });
    told.collect()
}

impl Record {
    /// What it is in the history of its object; none if it tells nothing.
    fn span(&self) -> Option<Span> {
        let number = self.op.number;
        let (end, finish) = match self.end {
            Some((end, finish)) => (end, finish),
            None => (Duration::MAX, Finish::Unknown),
        };
        let (end, done) = match (self.op.verb, finish) {
            (Verb::Read, Finish::Read(value)) => (end, Done::Read(value)),
            (Verb::Write | Verb::WriteOpen, Finish::Done | Finish::Here) => {
                (end, Done::Write(number))
            }
            (Verb::Create, Finish::Done | Finish::Here) => (end, Done::Create(number, true)),
            (Verb::Create, Finish::Not) => (end, Done::Create(number, false)),
            (Verb::Remove, Finish::Done | Finish::Here) => (end, Done::Remove(true)),
            (Verb::Remove, Finish::Not) => (end, Done::Remove(false)),
            // What was never carried out need not be put in order.
            _ if self.applied == 0 => return None,
            (Verb::Write | Verb::WriteOpen, _) => (Duration::MAX, Done::Write(number)),
            (Verb::Create, _) => (Duration::MAX, Done::MaybeCreate(number)),
            (Verb::Remove, _) => (Duration::MAX, Done::MaybeRemove),
            (Verb::Read | Verb::Open | Verb::Close | Verb::Sync(_), _) => return None,
        };
        Some(Span { begin: self.begin, end, done })
    }
}
