//! What the web server reports to monitors: its own requests, and whether it sees the system. What the grid and the file system report
//! is on the pages of their daemons.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_metrics::{Metric, Page, Render, Table, own};

use crate::serve::Site;

static REQUESTS: Metric = Metric::counter(
    "forebay_web_requests",
    &["part", "status"],
    "Requests that were answered: of pages or the API, by the class of the status (2xx, 4xx, ...)",
);
static TIME: Metric = Metric::counter(
    "forebay_web_request",
    &["part"],
    "Time until the answers to requests were ready; the wait for the controller is part of it",
)
.seconds();
static STREAMS: Metric = Metric::gauge(
    "forebay_web_streams",
    &[],
    "Event streams of browsers and programs that are open",
);
static SESSIONS: Metric = Metric::gauge("forebay_web_sessions", &[], "Browsers that are logged in");
static TOKENS: Metric =
    Metric::gauge("forebay_web_tokens", &[], "Tokens of programs that are valid");
static ALERTS: Metric =
    Metric::gauge("forebay_web_alerts", &["state"], "Alerts that fire, or are muted while they do");
static LOOK_AGE: Metric = Metric::gauge(
    "forebay_web_look_age",
    &[],
    "Time since the server last looked at the system; it does so at each interval of its history",
)
.seconds();
static REACHES_CONTROLLER: Metric = Metric::gauge(
    "forebay_web_reaches_controller",
    &[],
    "1 if the controller answered when the server last looked",
);
static SEES_FILES: Metric = Metric::gauge(
    "forebay_web_sees_files",
    &[],
    "1 if the daemon of the file system answered when the server last looked",
);

/// What there is.
pub static TABLE: Table = Table {
    title: "Web server",
    page: "/metrics",
    about: "Of `forebay web serve`. Static files count as pages.",
    metrics: &[
        &REQUESTS,
        &TIME,
        &STREAMS,
        &SESSIONS,
        &TOKENS,
        &ALERTS,
        &LOOK_AGE,
        &REACHES_CONTROLLER,
        &SEES_FILES,
    ],
};

/// The parts of the server, in the order of [`Counts`].
const PARTS: [&str; 2] = ["pages", "api"];
/// Classes of status.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A part of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Pages,
    Api,
}

/// Requests since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: [[AtomicU64; CLASSES.len()]; PARTS.len()],
    microseconds: [AtomicU64; PARTS.len()],
}

impl Counts {
    /// Counts a request that was answered.
    pub fn answered(&self, part: Part, status: u16, took: std::time::Duration) {
        let part = match part {
            Part::Pages => 0,
            Part::Api => 1,
        };
        let class = usize::from((status / 100).clamp(1, 5) - 1);
        self.requests[part][class].fetch_add(1, Ordering::Relaxed);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.microseconds[part].fetch_add(took, Ordering::Relaxed);
    }

    #[expect(clippy::cast_precision_loss, reason = "monitors know only such numbers")]
    fn gather(&self, page: &mut Page) {
        for (place, part) in PARTS.iter().enumerate() {
            for (class, count) in CLASSES.iter().zip(&self.requests[place]) {
                page.count(&REQUESTS, &[part, class], count.load(Ordering::Relaxed));
            }
            let microseconds = self.microseconds[place].load(Ordering::Relaxed);
            page.set(&TIME, &[part], microseconds as f64 / 1e6);
        }
    }
}

/// The pages of a server.
pub(crate) fn pages(site: &Arc<Site>) -> Vec<(&'static str, Render)> {
    let site = Arc::clone(site);
    vec![("/metrics", Box::new(move || Some(render(&site))))]
}

#[expect(clippy::cast_precision_loss, reason = "monitors know only such numbers")]
fn render(site: &Site) -> Page {
    let mut page = Page::new();
    own::gather(&mut page, "web");
    site.counts.gather(&mut page);
    let (app, look) = (&site.app, Arc::clone(&site.look.lock()));
    let now = app.now();
    page.set_whole(&STREAMS, &[], app.feed.followers() as u64);
    page.set_whole(&SESSIONS, &[], app.sessions.lock().count(now) as u64);
    page.set_whole(&TOKENS, &[], app.tokens.lock().list(None, now).len() as u64);
    let alerts = app.alerts.list();
    let firing = alerts.iter().filter(|alert| alert.firing);
    let (muted, heard): (Vec<_>, Vec<_>) = firing.partition(|alert| alert.muted_until.is_some());
    page.set_whole(&ALERTS, &["firing"], heard.len() as u64);
    page.set_whole(&ALERTS, &["muted"], muted.len() as u64);
    // Before the first look there is no age.
    if look.at.0 > 0 {
        page.set(&LOOK_AGE, &[], now.since(look.at) as f64 / 1000.0);
        let reaches = look.unreachable.is_none();
        page.set_whole(&REACHES_CONTROLLER, &[], u64::from(reaches));
        page.set_whole(&SEES_FILES, &[], u64::from(look.files.is_some()));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_part_and_class() {
        let counts = Counts::default();
        for status in [200, 204, 404, 999] {
            counts.answered(Part::Api, status, std::time::Duration::from_millis(500));
        }
        let mut page = Page::new();
        counts.gather(&mut page);
        let text = page.open_metrics();
        for line in [
            "forebay_web_requests_total{part=\"api\",status=\"2xx\"} 2\n",
            "forebay_web_requests_total{part=\"api\",status=\"5xx\"} 1\n",
            "forebay_web_request_seconds_total{part=\"api\"} 2.0\n",
            "forebay_web_requests_total{part=\"pages\",status=\"2xx\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
