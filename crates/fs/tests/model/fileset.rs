//! What happens to one fileset while the others go on: it crashes and is taken over, or rests.

use std::time::Duration;

use forebay_base::FilesetId;
use forebay_fs::quota::{LimitChange, QuotaChange, Subject};

use super::op::Pick;
use super::world::World;
use crate::support::Handle;

/// Epochs between two crashes of filesets: more than a mount takes.
const EPOCHS: u64 = 1000;

impl World<'_> {
    /// Sets a quota that is never reached, or removes it: what is held is compared with what there is, by fsck as well.
    pub fn change_quota(&mut self, fileset: Pick, user: u32) {
        let id = FilesetId(u16::from(fileset) % 4);
        let name = ["/", "data", "work", "util"][usize::from(id.0)];
        let (subject, fs) = (Subject::User(user), self.fs().at_owner());
        // Another node may own it by now.
        let Ok(known) = fs.quotas(Some(name)) else { return };
        if let Some(quota) = known.iter().find(|quota| quota.subject == subject) {
            let inodes =
                self.tree.select(|node| node.fileset == id && node.uid == user && node.nlink > 0);
            assert_eq!(quota.usage.inodes, inodes.len() as u64, "inodes of user {user}");
            fs.remove_quota(name, subject).unwrap();
        } else {
            let change = QuotaChange { hard_bytes: LimitChange::To(1 << 50), ..Default::default() };
            fs.set_quota(name, subject, &change).unwrap();
        }
        self.note_commit_of(Some(id), None);
    }

    /// Filesets that nobody uses are closed: what was done in them is in their stores then. One that has objects to remove stays
    /// open, once it is committed.
    pub fn rest(&mut self) {
        self.fs().close_unused(Duration::ZERO);
        if self.fs().nodes.is_some() {
            return;
        }
        for fileset in (1..4).map(FilesetId) {
            let is_open =
                self.handles.iter().any(|handle| self.tree.node(handle.ino).fileset == fileset);
            let health = self.fs().commit_health_of(fileset);
            if !is_open && health.is_none_or(|health| health.pending == 0) {
                self.note_commit_of(Some(fileset), None);
            }
        }
    }

    /// One fileset crashes and is taken over by another node. The others do not notice.
    pub fn crash_fileset(&mut self, fileset: Pick) {
        if self.fs().taker.is_none() {
            return;
        }
        let id = FilesetId(u16::from(fileset) % 4);
        self.epoch += EPOCHS;
        let nodes = self.tree.select(|node| node.fileset == id);
        self.may_be_lost.extend(nodes);
        self.fs().crash_fileset(id, self.epoch, fileset.is_multiple_of(2));
        let (lost, kept): (Vec<Handle>, Vec<Handle>) =
            self.handles.drain(..).partition(|handle| handle.ino.fileset() == id);
        self.handles = kept;
        for handle in lost {
            // The kernel reports it all the same, and whether that is refused does not matter.
            let _ = handle.try_close();
        }
        let known: Vec<_> = self.refs.keys().copied().filter(|ino| ino.fileset() == id).collect();
        known.into_iter().for_each(|ino| self.forget_all(ino));
        self.cursors.retain(|cursor| cursor.ino.fileset() != id);
        self.tree.take_over(self.committed.clone(), id);
        self.adopt_contents(Some(id), false);
        self.committed.take_over(self.tree.committed(|_| true), id);
        self.verify();
        self.commit();
    }
}
