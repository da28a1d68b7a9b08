//! Calls that wait for others, and those that others wait for: each class has room and threads of its own.
//!
//! | Class | May wait for | Its own are |
//! |---|---|---|
//! | ordinary | recalls: other nodes give back what they cache before a change | window, queue, threads |
//! | recall | a release: who gives back says first what it has done | threads |
//! | release | a disk: an object is opened on a third node | window, queue, threads |
//! | disk | nobody's call | window, queue, threads |
//!
//! Each waits only for classes below it, so whatever calls wait, those that they wait for get through.

use forebay_base::channel::ServiceId;

use super::super::frame::Kind;
use crate::settings::Settings;

/// What a call waits for, and who for it: for classes further down only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may wait for recalls.
    Ordinary,
    /// It takes back what a node caches.
    Recall,
    /// Others wait for it ([`Channel::release`](forebay_base::Channel::release)).
    Release,
    /// It uses a disk, and waits for nobody.
    Disk,
}

/// One of something for each class.
#[derive(Debug, Default)]
pub struct ByClass<T>([T; 4]);

impl<T> ByClass<T> {
    /// Makes one for each.
    pub fn new(mut make: impl FnMut(Class) -> T) -> ByClass<T> {
        ByClass(Class::ALL.map(&mut make))
    }

    /// That of a class.
    pub fn of(&self, class: Class) -> &T {
        let [ordinary, recall, release, disk] = &self.0;
        match class {
            Class::Ordinary => ordinary,
            Class::Recall => recall,
            Class::Release => release,
            Class::Disk => disk,
        }
    }

    /// See [`ByClass::of`].
    pub fn of_mut(&mut self, class: Class) -> &mut T {
        let [ordinary, recall, release, disk] = &mut self.0;
        match class {
            Class::Ordinary => ordinary,
            Class::Recall => recall,
            Class::Release => release,
            Class::Disk => disk,
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// See [`ByClass::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 4] = [Class::Ordinary, Class::Recall, Class::Release, Class::Disk];

    /// That of a call of a service that is not a release.
    pub fn of_call(service: u8) -> Class {
        if service == ServiceId::Cache as u8 { Class::Recall } else { Class::Ordinary }
    }

    /// That of a release of a service.
    pub fn of_release(service: u8) -> Class {
        if service == ServiceId::Disks as u8 { Class::Disk } else { Class::Release }
    }

    /// That of a call that arrived in a frame of this kind.
    pub fn of_frame(kind: Kind, service: u8) -> Class {
        if kind == Kind::Release { Class::of_release(service) } else { Class::of_call(service) }
    }

    /// The kind of its frames.
    pub fn kind(self) -> Kind {
        match self {
            Class::Ordinary | Class::Recall => Kind::Request,
            Class::Release | Class::Disk => Kind::Release,
        }
    }

    /// How many calls may be unanswered at a time, and how many bytes.
    pub fn window(self, settings: &Settings) -> (usize, usize) {
        match self {
            Class::Ordinary | Class::Recall | Class::Disk => {
                (settings.calls_max, settings.calls_bytes_max)
            }
            Class::Release => (settings.releases_max, usize::MAX),
        }
    }

    /// How many calls of one session are carried out at a time.
    pub fn served_max(self, settings: &Settings) -> usize {
        match self {
            Class::Ordinary | Class::Recall | Class::Disk => settings.served_per_session_max,
            Class::Release => settings.releases_max,
        }
    }

    /// How many threads carry them out, of all sessions.
    pub fn threads_max(self, settings: &Settings) -> usize {
        match self {
            Class::Ordinary | Class::Disk => settings.serving_threads_max,
            Class::Recall | Class::Release => settings.release_threads_max,
        }
    }
}
