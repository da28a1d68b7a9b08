//! The owner's part in delegated directories: it carries out what was reported to it, once and in order.

use std::collections::BTreeMap;

use forebay_base::{ClientId, Epoch, FilesetId};

use super::files::{Body, DIRECTORIES, Object, Op, item};
use super::machine::{Context, Machine, Out};
use super::serving::Part;
use crate::grants::reports::{CarriedOut, Verdict};
use crate::session::{Operation, server};

/// A report that arrived.
#[derive(Clone, Debug)]
pub struct Report {
    pub client: ClientId,
    pub operation: Operation,
    pub epoch: Epoch,
    pub changes: Vec<(u64, Op)>,
}

/// What clients have reported, and reports that wait at the gate.
#[derive(Debug, Default)]
pub struct Reports {
    waiting: Vec<Report>,
    done: BTreeMap<ClientId, CarriedOut>,
}

impl Reports {
    /// The session of a client is over.
    pub fn ended(&mut self, client: ClientId) {
        self.waiting.retain(|report| report.client != client);
    }

    pub fn take_waiting(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.waiting)
    }

    fn forget(&mut self, client: ClientId) {
        self.done.remove(&client);
    }
}

impl Machine {
    /// A report arrived from a client.
    pub fn report_arrived(&mut self, fileset: FilesetId, report: Report, ctx: &mut Context) {
        match self.parts.get_mut(&fileset) {
            Some(part) => part.reports.waiting.push(report),
            None => return self.answer_report(&report, false, ctx),
        }
        self.serve_waiting(fileset, ctx);
    }

    /// Reports that waited at the gate are carried out, now that it is open.
    pub fn carry_reports(&mut self, fileset: FilesetId, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        for report in std::mem::take(&mut part.reports.waiting) {
            let is_carried_out = self.carry_report(fileset, &report, ctx);
            self.answer_report(&report, is_carried_out, ctx);
        }
    }

    fn carry_report(&mut self, fileset: FilesetId, report: &Report, ctx: &mut Context) -> bool {
        let Some(part) = self.parts.get_mut(&fileset) else { return false };
        for (number, op) in &report.changes {
            let counts =
                part.epoch == report.epoch && part.grants.has(report.client, &item(op.object));
            let done = part.reports.done.entry(report.client).or_default();
            match done.judge(*number, counts) {
                Verdict::Void => return false,
                Verdict::Again => continue,
                Verdict::New => {}
            }
            ctx.out.push(Out::Answers(fileset, part.epoch));
            let state = part.memory.entry(op.object).or_default();
            let again = state.lineage.contains(&op.number);
            let done = state.change(*op);
            part.generation += 1;
            ctx.out.push(Out::Applied { fileset, op: *op, done, again, reported: true });
        }
        true
    }

    pub fn answer_report(&mut self, report: &Report, is_carried_out: bool, ctx: &mut Context) {
        let body = Body::Reported(is_carried_out);
        self.serving(server::Event::Answered(report.client, report.operation, body), ctx);
    }

    /// A client is gone, and with it what it has not reported.
    pub fn end_delegations(&mut self, fileset: FilesetId, client: ClientId, ctx: &mut Context) {
        let Some(part) = self.parts.get_mut(&fileset) else { return };
        part.reports.forget(client);
        for object in part.delegated_to(client) {
            let value = part.memory.get(&object).and_then(|state| state.value);
            ctx.out.push(Out::Undelegated(fileset, part.epoch, object, value));
        }
    }
}

impl Part {
    fn delegated_to(&self, client: ClientId) -> Vec<Object> {
        let directories = (DIRECTORIES..=Object::MAX).take(8);
        directories.filter(|object| self.grants.has(client, &item(*object))).collect()
    }
}
