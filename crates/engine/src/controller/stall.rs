//! A journal without space: the controller waits for some instead of ending, and jobs that run go on.
//!
//! What was decided when the disk turned out to be full stays decided and undone: nobody is told, no order goes out,
//! and its batch is tried again as it is. Until it is written the engine decides nothing more. Questions are answered
//! from memory, which may show what was asked for last; whatever would change something is refused with the reason;
//! hosts that are there have their leases renewed, as a lease needs no record: a controller that starts again
//! takes all hosts for granted one at that time. What else hosts say waits, in its order.
//!
//! Before it comes to that, the journal lives on its reserve ([`crate::journal::reserve`]), and only what makes it grow is
//! refused: new jobs and flows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_grid::Effect;
use forebay_grid::vocabulary::{HostName, JobId};
use forebay_store::{Store, StoreError};

use super::{Controller, Taken, touched};
use crate::controller::input::{Follow, Input};
use crate::protocol::flow::FlowAsk;
use crate::protocol::{Answer, Ask, Order, RefusalKind, Report};

/// How often a journal without space is tried.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// How often the reserve is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What waits for space.
pub(super) struct Stall {
    effects: Vec<Effect>,
    parts: Vec<(usize, Follow)>,
    /// Jobs of which tasks may have ended or were forgotten.
    touched: BTreeSet<JobId>,
    /// What hosts and flows said since.
    held: Vec<Input>,
    since: Instant,
    tried: Instant,
    reason: String,
}

/// How the space for the journal is, but for a stall.
#[derive(Default)]
pub(super) struct Space {
    pub reserve: crate::journal::reserve::Reserve,
    is_short: bool,
    looked: Option<Instant>,
    /// Whether the journal was written since.
    pub is_written: bool,
}

/// Whether an error says that there is no space.
pub(super) fn is_full(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<StoreError>(), Some(StoreError::Full(_)))
}

/// The host that says something.
fn host_of(input: &Input) -> Option<&HostName> {
    match input {
        Input::Joined { joined, .. } => Some(&joined.host),
        Input::Report { host, .. } | Input::Left { host, .. } => Some(host),
        Input::Ask { .. }
        | Input::Closed { .. }
        | Input::Watches { .. }
        | Input::Looked { .. }
        | Input::Told { .. }
        | Input::Configured(_)
        | Input::Stop => None,
    }
}

impl<S: Store> Controller<S> {
    /// What people have to know of the journal, if it is short of space.
    pub(super) fn trouble(&self) -> Option<String> {
        if let Some(stall) = &self.stall {
            return Some(format!(
                "the journal of this grid cannot be written: {}; running jobs continue, and nothing else is started \
                 or changed until there is space",
                stall.reason
            ));
        }
        self.space.is_short.then(|| {
            format!(
                "No space left on the disk of this grid's journal, which now uses its reserve (journal_reserve = {}): no \
                 jobs are accepted until there is space",
                self.engine.settings().journal_reserve
            )
        })
    }

    /// Keeps the reserve of the journal whole, as far as there is space.
    pub(super) fn look_at_space(&mut self) {
        let now = self.time.instant();
        let looked = self.space.looked;
        let is_recent = looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK);
        // The store cuts its file at times, and with it the reserve: that is taken again before somebody else does.
        let is_written = std::mem::take(&mut self.space.is_written);
        if is_recent && !(is_written && self.space.reserve.has_moved()) {
            return;
        }
        self.space.looked = Some(now);
        let is_whole = self.space.reserve.hold(self.engine.settings().journal_reserve.0);
        if self.space.is_short == is_whole {
            self.space.is_short = !is_whole;
            match self.trouble() {
                Some(trouble) => tracing::error!("{trouble}"),
                None => tracing::info!("the journal's reserve is full again"),
            }
        }
    }

    /// Refuses what would make the journal grow while it is short of space; the input if it may be taken.
    pub(super) fn within_space(&self, input: Input) -> Option<Input> {
        let grows = |ask: &Ask| {
            matches!(
                ask,
                Ask::Submit { .. } | Ask::Flow { flow: FlowAsk::Run { .. } | FlowAsk::Schedule(_) }
            )
        };
        match (input, self.trouble()) {
            (Input::Ask { ask, reply, .. }, Some(reason)) if grows(&ask) => {
                // Whoever asked may be gone.
                let _ = reply.send(Answer::refused(RefusalKind::NoSpace, reason));
                None
            }
            (input, _) => Some(input),
        }
    }

    /// Nothing more is decided until what was decided is written.
    pub(super) fn begin_stall(&mut self, taken: Taken, error: &anyhow::Error) {
        let now = self.time.instant();
        let stall = Stall {
            touched: touched(&taken.outcome),
            effects: taken.outcome.effects,
            parts: taken.parts,
            held: Vec::new(),
            since: now,
            tried: now,
            reason: format!("{error:#}"),
        };
        self.stall = Some(stall);
        tracing::error!("{}", self.trouble().unwrap_or_default());
    }

    /// How long to wait until the journal is tried again, if it is short of space.
    pub(super) fn stalled_for(&self) -> Option<Duration> {
        let stall = self.stall.as_ref()?;
        let waited = self.time.instant().saturating_duration_since(stall.tried);
        Some(TRY_AGAIN.saturating_sub(waited))
    }

    /// Takes inputs while nothing can be written.
    pub(super) fn take_stalled(&mut self, inputs: Vec<Input>) {
        for input in inputs {
            self.take_one_stalled(input);
        }
        self.answer_some();
    }

    fn take_one_stalled(&mut self, input: Input) {
        let reason = self.trouble().unwrap_or_default();
        match input {
            Input::Ask { ask: Ask::Reload, reply, .. } => {
                let _ = reply.send(Answer::refused(RefusalKind::NoSpace, reason));
            }
            Input::Configured(_) => tracing::error!("settings were not changed: {reason}"),
            Input::Ask { .. } | Input::Closed { .. } | Input::Watches { .. } => {
                match input.meaning(&mut self.outboxes) {
                    (Some(_), Follow::Reply(reply)) => {
                        let _ = reply.send(Answer::refused(RefusalKind::NoSpace, reason));
                    }
                    (_, follow) => self.follow(follow),
                }
            }
            Input::Report { host, connection, report } => {
                if matches!(report, Report::Load { .. }) {
                    self.renew_lease(&host, connection);
                }
                self.hold_report(Input::Report { host, connection, report });
            }
            Input::Joined { connection, joined, outbox } => {
                // What its connections before this one said is in what it says now.
                self.drop_held(|input| host_of(input) == Some(&joined.host));
                self.hold(Input::Joined { connection, joined, outbox });
            }
            Input::Left { .. } | Input::Looked { .. } | Input::Told { .. } => self.hold(input),
            Input::Stop => {}
        }
    }

    /// Lets the jobs of a host run on, unless it was decided that they do not.
    fn renew_lease(&self, host: &HostName, connection: u64) {
        let Some(stall) = &self.stall else { return };
        let is_given_up = stall
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Disconnect { host: other } if other == host));
        let is_replaced = stall.held.iter().any(|input| {
            host_of(input) == Some(host)
                && matches!(input, Input::Joined { .. } | Input::Left { .. })
        });
        let is_away = self.engine.away().contains(host);
        if self.outboxes.is_open(host, connection) && !is_given_up && !is_replaced && !is_away {
            let lease = self.engine.settings().lease;
            self.outboxes.tell(host, Order::Grant { lease });
        }
    }

    /// Keeps what a host reports; of its load the latest.
    fn hold_report(&mut self, input: Input) {
        if matches!(&input, Input::Report { report: Report::Load { .. }, .. }) {
            let is_load = |other: &Input| {
                matches!(other, Input::Report { report: Report::Load { .. }, .. })
                    && host_of(other) == host_of(&input)
            };
            self.drop_held(is_load);
        }
        self.hold(input);
    }

    fn hold(&mut self, input: Input) {
        if let Some(stall) = &mut self.stall {
            stall.held.push(input);
        }
    }

    fn drop_held(&mut self, is_dropped: impl Fn(&Input) -> bool) {
        if let Some(stall) = &mut self.stall {
            stall.held.retain(|input| !is_dropped(input));
        }
    }

    /// Tries to write what could not be written; then everything goes on where it stopped.
    ///
    /// # Errors
    /// If the journal cannot be written for another reason than space.
    pub(super) fn try_again(&mut self) -> Result<()> {
        let Some(mut stall) = self.stall.take() else { return Ok(()) };
        match self.journal.write_again() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                (stall.tried, stall.reason) = (self.time.instant(), format!("{error:#}"));
                self.stall = Some(stall);
                return Ok(());
            }
            Err(error) => return Err(error.context("the journal cannot be written")),
        }
        let lasted = self.time.instant().saturating_duration_since(stall.since);
        tracing::info!(?lasted, "the journal can be written again");
        self.carry_all_out(stall.effects, stall.parts);
        self.tell_ends(&stall.touched);
        self.engine.excuse_silence(u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX));
        self.apply(stall.held);
        self.settle()
    }
}
