//! Pages for people.
use crate::http::{Reply, Request};
use crate::problem::Problem;
use crate::serve::Site;

/// Answers a request for a page.
#[must_use]
pub fn serve(_site: &Site, request: &Request) -> Reply {
    Reply::problem(&Problem::own("not_found", request.path.clone()))
}
