//! Pages for people: server-rendered, with a small script that keeps them current; nothing on them comes from another machine.
//!
//! A browser is known by a cookie that its login link, or a token, was exchanged for. What changes something is a form that shows the
//! key of its session, which no other site knows; a request that names another origin is refused besides. The content policy allows
//! no script but the two that are served here.

mod action;
mod flows;
mod grid;
mod jobs;
mod layout;
mod now;
mod plot;
mod space;
mod studies;
mod system;
mod trend;

pub(crate) use studies::Shelf;

use forebay_study::report::{SCRIPT, STYLE};
use maud::html;

use crate::app::Who;
use crate::http::{Reply, Request, decoded};
use crate::problem::Problem;
use crate::serve::Site;

/// The cookie of a session.
const COOKIE: &str = "forebay";
/// What pages may load and do.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// The same for reports of studies, which carry their style and script with them and are kept apart from this site.
const REPORT_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                             base-uri 'none'; frame-ancestors 'none'; sandbox allow-scripts";
const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><rect width=\"16\" height=\"16\" rx=\"3\" \
                    fill=\"#115bcf\"/><path d=\"M3 5h10M3 8h7M3 11h4\" stroke=\"#fff\" stroke-width=\"1.8\"/></svg>";

/// What a page is made from.
pub(crate) struct View<'a> {
    pub site: &'a Site,
    pub who: &'a Who,
    pub request: &'a Request,
}

type Page = Result<layout::Content, Problem>;

/// Answers a request for a page.
#[must_use]
pub fn serve(site: &Site, request: &Request) -> Reply {
    let reply = match (request.method.as_str(), request.path.as_str()) {
        ("GET" | "HEAD", "/style.css") => {
            let style = format!("{STYLE}\n{}", include_str!("style.css"));
            return fixed("text/css; charset=utf-8", style);
        }
        ("GET" | "HEAD", "/chart.js") => return fixed("text/javascript; charset=utf-8", SCRIPT),
        ("GET" | "HEAD", "/page.js") => {
            return fixed("text/javascript; charset=utf-8", include_str!("page.js"));
        }
        ("GET" | "HEAD", "/icon.svg") => return fixed("image/svg+xml", ICON),
        ("GET" | "HEAD", "/login") => log_in(site, request),
        ("POST", "/login") => log_in_by_token(site, request),
        _ => match who(site, request) {
            Some(who) => known(&View { site, who: &who, request }),
            None => layout::stranger(401, None),
        },
    };
    guarded(reply, POLICY)
}

fn fixed(kind: &str, text: impl Into<Vec<u8>>) -> Reply {
    let reply = Reply::new(200, kind, text).with("cache-control", "no-cache");
    reply.with("x-content-type-options", "nosniff")
}

fn guarded(reply: Reply, policy: &str) -> Reply {
    let has_policy = reply.headers.iter().any(|(name, _)| *name == "content-security-policy");
    let reply = if has_policy { reply } else { reply.with("content-security-policy", policy) };
    reply
        .with("cache-control", "no-store")
        .with("x-content-type-options", "nosniff")
        .with("referrer-policy", "same-origin")
}

/// The user of a browser that is logged in.
fn who(site: &Site, request: &Request) -> Option<Who> {
    let session = site.app.sessions.lock().find(request.cookie(COOKIE)?, site.app.now())?;
    let who = site.app.who(session.uid).ok()?;
    Some(Who { form_key: Some(session.form_key), ..who })
}

fn begin(site: &Site, uid: u32, to: &str) -> Reply {
    let age = site.app.settings.session_age_max.as_ms();
    let secret = site.app.sessions.lock().begin(uid, site.app.now(), age);
    let secure = if site.app.settings.url().starts_with("https:") { "; Secure" } else { "" };
    let seconds = age / 1000;
    let cookie =
        format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
    Reply::see(to).with("set-cookie", cookie)
}

/// A path of this site that somebody named; the first page if it is not one.
fn own_path(to: Option<&str>) -> &str {
    let is_own = |to: &&str| {
        to.starts_with('/') && !to.starts_with("//") && !to.contains(['\\', '\r', '\n'])
    };
    to.filter(is_own).unwrap_or("/")
}

fn log_in(site: &Site, request: &Request) -> Reply {
    let Some(key) = request.parameter("key") else { return layout::stranger(200, None) };
    let accepted = site.app.sessions.lock().accept(key, site.app.now());
    match accepted {
        Some(uid) => begin(site, uid, own_path(request.parameter("to"))),
        None => layout::stranger(
            403,
            Some("This link was used already, or is older than five minutes."),
        ),
    }
}

fn log_in_by_token(site: &Site, request: &Request) -> Reply {
    if !is_same_origin(request) {
        return layout::stranger(403, Some("The request came from another site."));
    }
    let form = request.form();
    let token = form.iter().find(|(name, _)| name == "token").map_or("", |(_, value)| value.trim());
    match site.app.by_token(token) {
        Ok(who) => begin(site, who.uid, "/"),
        Err(problem) => layout::stranger(403, Some(&problem.detail)),
    }
}

/// Whether a request does not come from another site, as far as the browser says.
fn is_same_origin(request: &Request) -> bool {
    let Some(origin) = request.header("origin") else { return true };
    let host = origin.split_once("://").map(|(_, host)| host);
    host.is_some() && host == request.header("host")
}

fn known(view: &View<'_>) -> Reply {
    let path = view.request.path.as_str();
    if view.request.method == "POST" {
        let done = action::carry_out(view);
        return done.unwrap_or_else(|problem| layout::failed(view, &problem));
    }
    if path == "/live" {
        return match view.site.app.feed.subscribe(&view.who.user, view.who.admin) {
            Some(events) => Reply::events(events),
            None => Reply::problem(&Problem::own("busy", "too many event streams are open")),
        };
    }
    let parts: Vec<String> = path[1..].split('/').map(decoded).collect();
    let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
    let page = match parts[..] {
        [""] => now::page(view),
        ["jobs"] => jobs::list(view),
        ["jobs", id] => jobs::one(view, id),
        ["queues"] => grid::queues(view),
        ["hosts"] => grid::hosts(view),
        ["flows"] => flows::list(view),
        ["flows", id] => flows::one(view, id),
        ["files"] => system::files(view),
        ["health"] => system::health(view),
        ["studies"] => studies::studies(view),
        ["studies", place] => {
            let text = match place {
                "compare" => studies::comparison(view),
                place => studies::report(view, place),
            };
            return match text {
                Ok(text) => Reply::new(200, "text/html; charset=utf-8", text)
                    .with("content-security-policy", REPORT_POLICY),
                Err(problem) => layout::failed(view, &problem),
            };
        }
        _ => Err(Problem::own("not_found", format!("{path} is not a page"))),
    };
    match page {
        Ok(content) => layout::page(view, 200, &content),
        Err(problem) => layout::failed(view, &problem),
    }
}

/// A form of one button that does something.
pub(crate) fn button(view: &View<'_>, action: &str, text: &str) -> maud::Markup {
    html! {
        form method="post" action=(action) {
            input type="hidden" name="key" value=(view.who.form_key.as_deref().unwrap_or_default());
            button type="submit" { (text) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_in_leads_to_this_site_alone() {
        assert_eq!(own_path(Some("/jobs?x=1")), "/jobs?x=1");
        for other in ["//evil.example", "https://evil.example", "/\\evil", "", "/a\r\nb"] {
            assert_eq!(own_path(Some(other)), "/", "{other}");
        }
    }

    #[test]
    fn a_request_of_another_site_is_known_by_its_origin() {
        let request = |origin: &str| Request {
            headers: vec![
                ("host".to_owned(), "grid:8443".to_owned()),
                ("origin".to_owned(), origin.to_owned()),
            ],
            ..Request::default()
        };
        assert!(is_same_origin(&request("https://grid:8443")));
        assert!(!is_same_origin(&request("https://evil")) && !is_same_origin(&request("null")));
    }
}
