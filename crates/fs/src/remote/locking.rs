//! Locks as they are asked for between nodes.

use forebay_base::{ClientId, Ino};

use super::wire::{LockAnswer, LockAsked};
use crate::locks::{Ask, File, Holder, Kind, Sort, Ticket, Waited};

pub(crate) fn holder(client: ClientId, ino: Ino, owner: u64, whole: bool) -> (File, Holder) {
    let sort = if whole { Sort::Flock } else { Sort::Fcntl };
    (File { ino, sort }, Holder { client, owner })
}

pub(crate) fn of(client: ClientId, asked: LockAsked) -> (File, Holder) {
    holder(client, asked.ino, asked.owner, asked.whole)
}

pub(crate) fn ask(client: ClientId, asked: LockAsked, kind: Kind) -> Ask {
    let (_, holder) = of(client, asked);
    Ask { holder, pid: asked.pid, range: asked.range, kind }
}

pub(crate) fn answer(waited: Waited, ticket: Ticket) -> LockAnswer {
    match waited {
        Waited::Granted => LockAnswer::Granted,
        Waited::Waiting => LockAnswer::Waiting(ticket),
    }
}
