//! Why a request was refused: an answer of the type application/problem+json (RFC 9457), with a kind for programs.

use forebay_engine::protocol::{Refusal, RefusalKind};

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Status of the answer.
    pub status: u16,
    /// Kind, for programs.
    pub kind: &'static str,
    /// Reason, for people.
    pub detail: String,
}

/// Kinds that are not the controller's, with their status and title.
pub const OWN_KINDS: [(&str, u16, &str); 9] = [
    ("unauthorized", 401, "A token is needed"),
    ("not_found", 404, "There is no such page"),
    ("no_output", 404, "There is no output"),
    ("no_token", 404, "There is no such token"),
    ("method_not_allowed", 405, "The method is not allowed here"),
    ("too_large", 413, "The request is too large"),
    ("busy", 503, "The server is busy"),
    ("unreachable", 503, "The controller is unreachable"),
    ("internal", 500, "The server failed"),
];

/// The word of a kind of refusal, its status and its title.
#[must_use]
pub fn kind_of(kind: RefusalKind) -> (&'static str, u16, &'static str) {
    match kind {
        RefusalKind::NoJob => ("no_job", 404, "There is no such job"),
        RefusalKind::NoFlow => ("no_flow", 404, "There is no such flow"),
        RefusalKind::NoQueue => ("no_queue", 404, "There is no such queue"),
        RefusalKind::NoHost => ("no_host", 404, "There is no such host"),
        RefusalKind::NotAllowed => ("not_allowed", 403, "This is not allowed"),
        RefusalKind::QueueClosed => ("queue_closed", 409, "The queue is closed"),
        RefusalKind::Invalid => ("invalid", 422, "The request cannot be carried out"),
        RefusalKind::TooMany => ("too_many", 429, "There are too many of these now"),
        RefusalKind::WrongState => ("wrong_state", 409, "It is not in a state for this"),
        RefusalKind::NoSpace => ("no_space", 503, "The journal has no space"),
        RefusalKind::NotUnderstood => ("not_understood", 400, "The request was not understood"),
        RefusalKind::Failed => ("failed", 500, "The controller failed"),
    }
}

/// All kinds of refusals.
const REFUSALS: [RefusalKind; 12] = [
    RefusalKind::NoJob,
    RefusalKind::NoFlow,
    RefusalKind::NoQueue,
    RefusalKind::NoHost,
    RefusalKind::NotAllowed,
    RefusalKind::QueueClosed,
    RefusalKind::Invalid,
    RefusalKind::TooMany,
    RefusalKind::WrongState,
    RefusalKind::NoSpace,
    RefusalKind::NotUnderstood,
    RefusalKind::Failed,
];

/// All kinds with status and title.
pub fn kinds() -> impl Iterator<Item = (&'static str, u16, &'static str)> {
    REFUSALS.into_iter().map(kind_of).chain(OWN_KINDS)
}

impl Problem {
    /// One of the own kinds.
    #[must_use]
    pub fn own(kind: &'static str, detail: impl Into<String>) -> Problem {
        let status = OWN_KINDS.iter().find(|(own, _, _)| *own == kind).map_or(500, |found| found.1);
        Problem { status, kind, detail: detail.into() }
    }

    /// A request that was not understood.
    #[must_use]
    pub fn not_understood(detail: impl Into<String>) -> Problem {
        Problem { status: 400, kind: "not_understood", detail: detail.into() }
    }

    /// One that cannot be carried out.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem { status: 422, kind: "invalid", detail: detail.into() }
    }

    /// The title of its kind.
    #[must_use]
    pub fn title(&self) -> &'static str {
        kinds()
            .find(|(kind, _, _)| *kind == self.kind)
            .map_or("The request failed", |found| found.2)
    }

    /// As it is sent.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "type": format!("urn:forebay:problem:{}", self.kind),
            "title": self.title(),
            "status": self.status,
            "kind": self.kind,
            "detail": self.detail,
        })
    }
}

impl From<anyhow::Error> for Problem {
    /// A refusal of the controller has its kind; otherwise it could not be asked.
    fn from(error: anyhow::Error) -> Problem {
        match error.downcast_ref::<Refusal>() {
            Some(refusal) => {
                let (kind, status, _) = kind_of(refusal.kind);
                Problem { status, kind, detail: refusal.reason.clone() }
            }
            None => Problem::own("unreachable", format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_its_kind_and_anything_else_is_an_unreachable_controller() {
        let refusal = Refusal::new(RefusalKind::WrongState, "job 1 has ended");
        let problem = Problem::from(anyhow::Error::from(refusal).context("more"));
        assert_eq!((problem.status, problem.kind), (409, "wrong_state"));
        assert_eq!(problem.json()["detail"], "job 1 has ended");
        let problem = Problem::from(anyhow::anyhow!("no answer"));
        assert_eq!((problem.status, problem.kind), (503, "unreachable"));
        assert_eq!(problem.title(), "The controller is unreachable");
    }
}
