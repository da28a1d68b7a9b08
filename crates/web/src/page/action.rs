//! What the buttons of pages do.

use forebay_engine::protocol::client::makes_no_sense;
use forebay_engine::protocol::{Answer, Ask, FlowAsk};
use forebay_grid::event::{QueueVerb, Verb};
use forebay_grid::journal::HostSwitch;
use subtle::ConstantTimeEq as _;

use super::{COOKIE, View, is_same_origin};
use crate::api::jobs::command;
use crate::http::{Reply, decoded};
use crate::problem::Problem;

/// Carries out what a form asks, and shows the page that it was on.
pub fn carry_out(view: &View<'_>) -> Result<Reply, Problem> {
    let form = view.request.form();
    let shown = form.iter().find(|(name, _)| name == "key").map_or("", |(_, value)| value);
    let key = view.who.form_key.as_deref().unwrap_or_default();
    let is_ours = !key.is_empty() && bool::from(shown.as_bytes().ct_eq(key.as_bytes()));
    if !is_ours || !is_same_origin(view.request) {
        let reason = "the form is not one of this session: load its page again";
        return Err(Problem { status: 403, kind: "not_allowed", detail: reason.to_owned() });
    }
    let parts: Vec<String> = view.request.path.split('/').skip(1).map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
    let unknown = || Problem::own("not_found", format!("{} is not an action", view.request.path));
    let number = |text: &str| text.parse().map_err(|_| unknown());
    let ask = match parts[..] {
        ["logout"] => {
            if let Some(secret) = view.request.cookie(COOKIE) {
                view.site.app.sessions.lock().end(secret);
            }
            return Ok(Reply::see("/login"));
        }
        ["jobs", id, verb] => {
            let verb = match verb {
                "kill" => Verb::Kill,
                "hold" => Verb::Hold,
                "release" => Verb::Release,
                "requeue" => Verb::Requeue,
                _ => return Err(unknown()),
            };
            let target = id.parse().map_err(|_| unknown())?;
            command(&view.site.app, view.who, target, verb)?;
            return Ok(back(&parts));
        }
        ["flows", id, "kill"] => {
            Ask::Flow { flow: FlowAsk::Kill(number(id).map(forebay_grid::flow::FlowId)?) }
        }
        ["flows", id, "rerun"] => {
            Ask::Flow { flow: FlowAsk::Rerun(number(id).map(forebay_grid::flow::FlowId)?) }
        }
        ["hosts", host, verb] => {
            let state = match verb {
                "open" => HostSwitch::Open,
                "close" => HostSwitch::Closed,
                _ => return Err(unknown()),
            };
            Ask::Host { host: host.parse().map_err(|_| unknown())?, state }
        }
        ["queues", queue, verb] => {
            let verb = match verb {
                "open" => QueueVerb::Open,
                "close" => QueueVerb::Close,
                "activate" => QueueVerb::Activate,
                "inactivate" => QueueVerb::Inactivate,
                _ => return Err(unknown()),
            };
            Ask::Queue { queue: queue.parse().map_err(|_| unknown())?, verb }
        }
        _ => return Err(unknown()),
    };
    match view.site.app.client(view.who)?.ask(&ask)? {
        Answer::Obeyed { .. } => Ok(back(&parts)),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

/// The page on which a form was.
fn back(parts: &[&str]) -> Reply {
    match parts {
        [what @ ("jobs" | "flows"), id, _] => Reply::see(&format!("/{what}/{}", encoded(id))),
        [what, ..] => Reply::see(&format!("/{what}")),
        [] => Reply::see("/"),
    }
}

/// A part of a path.
pub fn encoded(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
