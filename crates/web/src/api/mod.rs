//! The REST API: what can be asked, how it is looked up, and its description.
//!
//! Programs show a token with each request (`Authorization: Bearer`); cookies of browsers do not count here, so no other site can
//! have a browser ask. An operation asks the controller as the user of the token.

mod changes;
mod convert;
pub mod grid;
pub mod jobs;
pub mod new_job;
pub mod openapi;
pub mod operation;
pub mod shape;
pub mod table;
pub mod views;

use operation::Call;
use table::OPERATIONS;

use crate::app::App;
use crate::http::{Reply, Request};
use crate::problem::Problem;

/// Where the API is.
pub const ROOT: &str = "/api/";

/// Answers a request to the API.
#[must_use]
pub fn serve(app: &App, request: &Request) -> Reply {
    let reply = answer(app, request).unwrap_or_else(|problem| Reply::problem(&problem));
    reply.with("cache-control", "no-store").with("x-content-type-options", "nosniff")
}

fn answer(app: &App, request: &Request) -> Result<Reply, Problem> {
    let needed = || {
        let reason = "a token is needed: Authorization: Bearer TOKEN; forebay web token makes one";
        Problem::own("unauthorized", reason)
    };
    let shown = request.header("authorization").and_then(|text| text.strip_prefix("Bearer "));
    let who = app.by_token(shown.ok_or_else(needed)?.trim())?;
    let mut methods = Vec::new();
    for operation in &OPERATIONS {
        let Some(parts) = operation.parts(&request.path) else { continue };
        if operation.method == request.method {
            return (operation.run)(&Call { app, who: &who, request, parts });
        }
        methods.push(operation.method);
    }
    Err(if methods.is_empty() {
        let reason = format!("{} is not a path of the API: see /openapi.json", request.path);
        Problem::own("not_found", reason)
    } else {
        let reason = format!("{} takes {}", request.path, methods.join(", "));
        Problem::own("method_not_allowed", reason)
    })
}
