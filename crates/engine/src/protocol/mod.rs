//! What commands, controller and agents say to each other: one JSON value on each line of a unix socket.
//!
//! Messages are plain data; docs/formats/grid-protocol.md describes them. `socket` carries them, [`client`] is the side of
//! commands, [`caller`] says who is at the other end, `budget` bounds what long lines of users take.

mod agent;
mod answer;
mod area;
mod ask;
pub(crate) mod budget;
pub mod caller;
pub mod client;
pub mod explain;
pub mod flow;
mod notice;
pub(crate) mod socket;
mod usage;
mod view;

pub use agent::{
    Containment, Health, Launch, Limited, Missing, Order, Report, ServiceWatch, Using,
};
pub use answer::{Answer, Refusal, RefusalKind, unknown_word};
pub use area::{Area, AreaKind, AreaState, AreaView, Orphans, Seen, Sizes};
pub use ask::{Ask, Detail, Page, Start};
pub use flow::{FlowAnswer, FlowAsk, FlowView, ScheduleView, StepView};
pub use notice::Notice;
pub use socket::{Reader, connect, listen, write};
pub use usage::{UsageKey, UsageQuery, UsageRow};
pub use view::{
    Asked, GroupView, HostState, HostView, JobView, LimitsView, QueueView, RANGES_MAX,
    ResourceView, Runs, ServiceView,
};
