//! The server as a whole: opens what it keeps, looks at the system every few seconds, and answers requests until it is told to end.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_engine::files::claim_soon;
use forebay_engine::home::GridHome;
use forebay_metrics::{Listen, Server};
use parking_lot::{Condvar, Mutex};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::alerts::Alerts;
use crate::alerts::book::Seen;
use crate::alerts::rules::{end_of, unknown};
use crate::api;
use crate::app::{App, folder, socket};
use crate::door;
use crate::feed::Feed;
use crate::history::History;
use crate::history::collect::{Collector, Look};
use crate::history::runs::Runs;
use crate::http::{Bounds, HANDSHAKE_MAX, HEAD_MAX, Http, Reply, Request, Serve, read_tls};
use crate::metrics::{self, Counts, Part};
use crate::page;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::token::{Sessions, Tokens};
use crate::watched::Watched;

/// Requests to all that is served.
pub struct Site {
    /// What is asked.
    pub app: Arc<App>,
    /// The latest look at the system.
    pub look: Mutex<Arc<Look>>,
    /// Studies that were read.
    pub(crate) shelf: page::Shelf,
    /// Requests that were answered.
    pub(crate) counts: Counts,
}

impl Serve for Site {
    fn serve(&self, request: Request) -> Reply {
        let begun = SystemClock.instant();
        let is_api = request.path.starts_with(api::ROOT);
        let reply = if is_api { api::serve(&self.app, &request) } else { self.page(&request) };
        let part = if is_api { Part::Api } else { Part::Pages };
        let took = SystemClock.instant().saturating_duration_since(begun);
        self.counts.answered(part, reply.status, took);
        reply
    }
}

impl Site {
    fn page(&self, request: &Request) -> Reply {
        match (request.method.as_str(), request.path.as_str()) {
            ("GET" | "HEAD", "/openapi.json") => {
                Reply::new(200, "application/json", api::openapi::text())
                    .with("cache-control", "no-cache")
            }
            ("GET" | "HEAD", "/healthz") => Reply::new(200, "text/plain; charset=utf-8", "ok\n"),
            ("GET" | "HEAD" | "POST", _) => page::serve(self, request),
            (method, _) => Reply::problem(&Problem::own(
                "method_not_allowed",
                format!("{method} is not served here"),
            )),
        }
    }
}

/// Runs the web server of a grid until SIGTERM or SIGINT, and answers monitors if they have an address. `ready` is called with its address once it answers.
///
/// # Errors
/// If another one runs, its files cannot be read, or the address cannot be served.
pub fn run(
    home: &GridHome,
    settings: Settings,
    watched: Box<dyn Watched>,
    monitors: Option<Listen>,
    ready: impl FnOnce(&str),
) -> Result<()> {
    settings.check_safe()?;
    home.make()?;
    // SAFETY: umask always succeeds; no other thread makes files yet.
    unsafe { libc::umask(0o077) };
    let folder = folder(home);
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let Some(_lock) = claim_soon(&folder.join("lock"))? else {
        bail!("a web server of {} is already running", home.folder().display());
    };
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let tls = match (&settings.tls_cert, &settings.tls_key) {
        (Some(cert), Some(key)) => Some(read_tls(cert, key)?),
        _ => None,
    };
    let bounds = Bounds {
        connections: settings.connections_max as usize,
        requests: settings.requests_max as usize,
        body_bytes: usize::try_from(settings.request_bytes_max.0)?,
        head: HEAD_MAX,
        handshake: HANDSHAKE_MAX,
    };
    let http = Http::listen(settings.listen, tls, bounds)?;
    let site = Arc::new(Site {
        app: open(home, settings, watched, &folder)?,
        look: Mutex::default(),
        shelf: page::Shelf::default(),
        counts: Counts::default(),
    });
    let end = Arc::new((Mutex::new(false), Condvar::new()));
    let (thread_site, thread_end) = (Arc::clone(&site), Arc::clone(&end));
    let collected = std::thread::Builder::new()
        .name("collect".to_owned())
        .spawn(move || collect(&thread_site, &thread_end))?;
    door::serve(&site.app)?;
    let url = site.app.settings.url();
    let pages = metrics::pages(&site);
    let _monitors = monitors.map(|listen| Server::start(listen, pages)).transpose()?;
    http.start(site)?;
    tracing::info!(url, "the web server is ready");
    ready(&url);
    signals.forever().next();
    *end.0.lock() = true;
    end.1.notify_all();
    let _ = std::fs::remove_file(socket(home));
    let _ = collected.join();
    tracing::info!("the web server ends");
    Ok(())
}

fn open(
    home: &GridHome,
    settings: Settings,
    watched: Box<dyn Watched>,
    folder: &Path,
) -> Result<Arc<App>> {
    let grid = home.folder().parent().unwrap_or(home.folder()).display().to_string();
    let history = folder.join("history");
    Ok(Arc::new(App {
        home: home.clone(),
        tokens: Mutex::new(Tokens::open(&folder.join("tokens.json"))?),
        sessions: Mutex::new(Sessions::default()),
        feed: Feed::start(home, settings.streams_max as usize)?,
        history: History::open(&history, settings.history)?,
        runs: Runs::open(&history.join("runs"), settings.history.runs_max)?,
        alerts: Alerts::open(&folder.join("alerts.json"), &settings.alerts, &grid)?,
        watched,
        clock: Arc::new(SystemClock),
        settings,
    }))
}

/// Looks at the system at each interval, until the end.
fn collect(site: &Site, (end, told): &(Mutex<bool>, Condvar)) {
    let interval = std::time::Duration::from_millis(site.app.settings.history.interval.as_ms());
    let mut collector = Collector::default();
    let mut next = SystemClock.instant();
    let mut ended = end.lock();
    while !*ended {
        parking_lot::MutexGuard::unlocked(&mut ended, || {
            let look = collector.look(&site.app);
            let found = site.app.settings.alerts.judge(&look);
            let end_of = |code: &str| end_of(&look, code);
            let seen = Seen { found, unknown: &unknown(&look), end_of: &end_of };
            site.app.alerts.take(look.at, seen);
            *site.look.lock() = look;
        });
        // A look that took long, or a machine that slept, is not made up for.
        next = (next + interval).max(SystemClock.instant());
        told.wait_until(&mut ended, next);
    }
}
