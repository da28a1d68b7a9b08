//! Faults that tests put into the protocol, to prove that the simulation finds them. Outside of tests none exists.

/// A fault of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests put faults in"))]
pub(crate) enum Fault {
    /// A node relies on its lease from when the answer came, to the very end of it.
    LeaseFromAnswer,
    /// A node that registered anew answers without looking at what was taken over.
    AnswersUnchecked,
    /// A takeover compares nothing.
    TakeoverWithoutCompare,
    /// A takeover does not look whether the owner is a member again.
    TakeoverOfTheLiving,
    /// A node that was superseded keeps what it holds.
    SupersededGoesOn,
    /// A fileset is handed over before grants on it were recalled.
    HandoverWithoutRecall,
    /// A restarted owner does not wait until its former life's grants have lapsed.
    NoWaitAfterRestart,
    /// A repeated request is carried out again.
    NoKeptResults,
    /// Kept results are dropped before they were acknowledged.
    ResultsDroppedEarly,
    /// A request is carried out although its caller has given up.
    ExpiryIgnored,
    /// A recall is acknowledged before what it names was invalidated.
    AcknowledgedEarly,
    /// An answer that crossed a recall is cached.
    CrossedRecallIgnored,
    /// A change takes effect before its recalls were acknowledged.
    ChangeWithoutRecall,
    /// Grants are given on items that are about to change.
    GrantDuringChange,
    /// A client goes on using its own grant on what it changes.
    OwnGrantKept,
    /// A client that gives a grant back does not say which one it means.
    ReturnWithoutNumber,
    /// A client is evicted before what was vouched for has lapsed.
    EvictedTooEarly,
    /// A client uses grants after its owner's word for them has lapsed.
    LapseIgnored,
    /// An owner vouches for longer than its own lease lasts.
    VouchBeyondLease,
    /// A superseded owner vouches for clients that have not dropped its grants.
    VouchAfterLoss,
    /// A gate is closed by a thread when it comes to it; requests do not look at the clock.
    GateWithoutClock,
    /// A recall is acknowledged only when the kernel says so, however long it waits for a change under way.
    KernelAlone,
    /// Reads wait while a change waits for recalls.
    ReadsWaitForChanges,
    /// A change takes effect without looking at the gate again after its recalls.
    GateNotLookedAtAgain,
    /// An owner does not look at the numbers of changes that are reported.
    ReportCarriedOutAgain,
    /// Changes in delegated directories are lost, and whoever syncs them is not told.
    LossUntold,
    /// A delegated directory goes back before what was done there is reported.
    ReturnedUnreported,
    /// An owner answers a look-up of a directory that is delegated to somebody else.
    DelegatedToldToOthers,
    /// A client asks the owner for something before it reports what it has done.
    AskedBeforeReport,
    /// Reports take the slots of all other calls.
    ReleaseWaits,
}

#[cfg(test)]
pub(crate) use injected::{is, put};

/// Whether the fault was put in: never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}

#[cfg(test)]
mod injected {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Whether the fault was put in on this thread.
    pub(crate) fn is(fault: Fault) -> bool {
        FAULT.get() == Some(fault)
    }

    /// Puts a fault in on this thread, or takes it out.
    pub(crate) fn put(fault: Option<Fault>) {
        FAULT.set(fault);
    }
}
