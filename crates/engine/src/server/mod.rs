//! The controller behind its socket. The kernel says which user is on the other side.
//!
//! Threads: the one that called [`serve`] is the controller; one accepts, one waits for signals, one looks for
//! files that flows wait for, one for each connection, one more for the orders of each
//! agent, and two more for each watcher.

pub mod arrival;
mod connections;
pub mod settings;
mod watcher;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use forebay_base::time::SystemClock;
use forebay_grid::event::Joined;
use forebay_grid::vocabulary::UserName;
use forebay_process::user::is_root;
use forebay_store::StoreError;
use forebay_store::redb::{RedbOptions, RedbStore};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::causes::chain;
use crate::controller::{Controller, Input};
use crate::files::claim_soon;
use crate::home::{Begin, GridHome};
use crate::journal::reserve::Reserve;
use crate::protocol::budget::{AWAITED_BYTES_MAX, Budget, Share};
use crate::protocol::flow::FlowAsk;
use crate::protocol::socket::{self, Reader};
use crate::protocol::{Answer, Ask, Order, RefusalKind, Report};
use crate::server::connections::Connections;
use crate::trust::is_trusted;
use crate::user;

/// How often a thread that waits for the controller looks whether its peer is still there.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The most questions of one connection that wait for their answers.
const AWAITED_MAX: usize = 1024;

/// Memory for pages of the journal.
const CACHE_BYTES: usize = 32 << 20;

/// Runs the controller of a grid until SIGTERM or SIGINT. SIGHUP makes it read its settings again.
///
/// # Errors
/// If another one runs, the settings are bad, the journal is missing though there was a grid and it is not to begin anew,
/// or the journal cannot be read or written.
pub fn serve(home: &GridHome, begin: Begin) -> Result<()> {
    home.make()?;
    let Some(_lock) = claim_soon(&home.lock())? else {
        bail!("a controller of {} is already running", home.folder().display());
    };
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let config = settings::read_to_begin(home)?;
    // SAFETY: umask always succeeds; no other thread makes files yet.
    unsafe { libc::umask(0o077) };
    let path = home.journal();
    home.check_journal(begin)?;
    let budget = Arc::new(Budget::new(config.general.user_messages_bytes_max));
    let mut controller = Controller::open(open_journal(&path)?, config, Arc::new(SystemClock))?;
    let mut reserve = Reserve::of(&path)?;
    home.note_begun();
    let mode = if is_root() { 0o666 } else { 0o600 };
    let listener = reserve.lend(|| socket::listen(&home.socket(), mode))?;
    controller.keep_reserve(reserve);
    let (inputs, taken) = channel();
    let for_signals = (home.clone(), inputs.clone(), Arc::clone(&budget));
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || obey_signals(signals, (&for_signals.0, &for_signals.2), &for_signals.1))?;
    let (for_arrivals, for_connections) = (inputs.clone(), Arc::new(home.clone()));
    std::thread::Builder::new()
        .name("arrivals".to_owned())
        .spawn(move || arrival::watch(&for_arrivals))?;
    std::thread::Builder::new()
        .name("accept".to_owned())
        .spawn(move || accept(&listener, &for_connections, &budget, &inputs))?;
    tracing::info!(folder = %home.folder().display(), "the controller is ready");
    let result = controller.run(&taken);
    let _ = std::fs::remove_file(home.socket());
    tracing::info!(?result, "the controller ends");
    result
}

/// Opens the journal, or makes it. A controller that is just being killed has it a moment longer.
fn open_journal(path: &Path) -> Result<RedbStore> {
    const TRIES: u32 = 200;
    let options = RedbOptions { cache_bytes: CACHE_BYTES };
    for _ in 1..TRIES {
        match RedbStore::open_with(path, &options) {
            Err(StoreError::InUse(_)) => std::thread::sleep(Duration::from_millis(5)),
            Err(_) if !path.exists() => return Ok(RedbStore::create_with(path, &options)?),
            opened => return Ok(opened?),
        }
    }
    Ok(RedbStore::open_with(path, &options)?)
}

/// What makes the settings of the file count, or why the old ones do.
fn reread((home, budget): (&GridHome, &Budget)) -> Result<Input> {
    let read = settings::read(home);
    match &read {
        Ok(config) => {
            budget.set(config.general.user_messages_bytes_max);
            tracing::info!("settings reloaded: {} queues", config.queues.len());
            for warning in settings::warnings(home, config) {
                tracing::warn!("{warning}");
            }
        }
        Err(error) => {
            tracing::error!("settings not reloaded, the old ones stay in force: {}", chain(error));
        }
    }
    Ok(Input::Configured(Box::new(read?)))
}

fn obey_signals(
    mut signals: Signals,
    (home, budget): (&GridHome, &Budget),
    inputs: &Sender<Input>,
) {
    for signal in signals.forever() {
        let input = if signal == SIGHUP {
            let Ok(input) = reread((home, budget)) else { continue };
            input
        } else {
            Input::Stop
        };
        if inputs.send(input).is_err() {
            return;
        }
    }
}

fn accept(
    listener: &UnixListener,
    home: &Arc<GridHome>,
    budget: &Arc<Budget>,
    inputs: &Sender<Input>,
) {
    let connections = Arc::new(Connections::new());
    for (number, stream) in (1..).zip(listener.incoming()) {
        let Ok(stream) = stream else {
            // Out of descriptors: others may close theirs.
            std::thread::sleep(std::time::Duration::from_millis(10));
            continue;
        };
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else { continue };
        let admitted = match connections.admit(peer.uid) {
            Ok(admitted) => admitted,
            Err(reason) => {
                let _ = socket::write(&stream, &Answer::Busy { reason });
                continue;
            }
        };
        let (home, budget, inputs) = (Arc::clone(home), Arc::clone(budget), inputs.clone());
        // Without a thread the connection is closed, and its client asks again.
        let _ = std::thread::Builder::new().name(format!("connection-{number}")).spawn(move || {
            if let Err(error) = converse(stream, number, (&home, &budget), &inputs) {
                tracing::debug!("connection {number}: {error:#}");
            }
            drop(admitted);
        });
    }
}

/// One connection from beginning to end.
fn converse(
    stream: UnixStream,
    connection: u64,
    (home, budget): (&GridHome, &Arc<Budget>),
    inputs: &Sender<Input>,
) -> Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    let user = match user::name_of(uid.as_raw()) {
        Ok(user) => user,
        Err(error) => {
            let reason = format!("user {}: {error:#}", uid.as_raw());
            return socket::write(&stream, &Answer::refused(RefusalKind::NotAllowed, reason));
        }
    };
    let result = converse_as((&user, connection), stream, (home, budget), inputs);
    if result.is_err() {
        // It may have ended before its answers; where none is awaited there is nothing to forget.
        let _ = inputs.send(Input::Closed { connection, user });
    }
    result
}

fn not_theirs(user: &UserName) -> String {
    format!(
        "{user} may not reload the settings: only root and the user who runs the controller may"
    )
}

/// One connection of a user.
fn converse_as(
    (user, connection): (&UserName, u64),
    stream: UnixStream,
    (home, budget): (&GridHome, &Arc<Budget>),
    inputs: &Sender<Input>,
) -> Result<()> {
    let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid;
    let trusted = is_trusted(uid);
    let reading = stream.try_clone()?;
    // Who could end the controller is not counted: what an agent says when it joins grows with its jobs.
    let mut reader = if trusted {
        Reader::of_agents(reading)
    } else {
        Reader::of_counted(reading, Share::of(budget, uid))
    };
    // Answers to what was asked without waiting for an answer, in order; bytes of it, and what they are counted by.
    let (mut awaited, mut awaited_bytes, mut shares) = (Vec::new(), 0, Vec::new());
    loop {
        let is_much = awaited.len() >= AWAITED_MAX || awaited_bytes >= AWAITED_BYTES_MAX;
        if !reader.has_line() || is_much {
            answer_all(&stream, &mut awaited)?;
            awaited_bytes = 0;
            shares.clear();
        }
        let ask = match reader.read::<Ask>() {
            Ok(None) => return Ok(()),
            Ok(Some(ask)) => ask,
            Err(error) => {
                answer_all(&stream, &mut awaited)?;
                let refusal = Answer::refused(RefusalKind::NotUnderstood, format!("{error:#}"));
                return socket::write(&stream, &refusal);
            }
        };
        let (bytes, share) = reader.last_line();
        awaited_bytes += bytes + if has_long_answer(&ask) { AWAITED_BYTES_MAX } else { 0 };
        shares.extend(share);
        if let Ask::Join { joined } = ask {
            if !trusted {
                let reason = format!("{user} may not be an agent of this grid");
                return socket::write(&stream, &Answer::refused(RefusalKind::NotAllowed, reason));
            }
            return converse_with_agent(stream, reader, connection, joined, inputs);
        }
        if let Ask::Watch { .. } = ask {
            answer_all(&stream, &mut awaited)?;
            return watcher::converse(&stream, reader, (user, connection), ask, inputs);
        }
        let (reply, answer) = channel();
        awaited.push(answer);
        if let Ask::Reload = ask {
            if !trusted {
                let _ = reply.send(Answer::refused(RefusalKind::NotAllowed, not_theirs(user)));
                continue;
            }
            match reread((home, budget)) {
                // The question behind it is answered once the settings count.
                Ok(input) => inputs.send(input).ok().context("the controller ends")?,
                Err(error) => {
                    let _ = reply.send(Answer::refused(RefusalKind::Failed, chain(&error)));
                    continue;
                }
            }
        }
        let input = Input::Ask { connection, user: user.clone(), ask, reply };
        inputs.send(input).ok().context("the controller ends")?;
    }
}

/// Whether the answer may be a long list, of which one at a time is enough for a connection.
fn has_long_answer(ask: &Ask) -> bool {
    matches!(
        ask,
        Ask::Jobs { .. }
            | Ask::History { .. }
            | Ask::Explain { .. }
            | Ask::Usage { .. }
            | Ask::Sessions { .. }
            | Ask::Hosts
            | Ask::Queues
            | Ask::Flow { flow: FlowAsk::List { .. } | FlowAsk::Show(_) | FlowAsk::Schedules }
    )
}

/// Waits for answers and gives them out: what was asked together becomes durable together. The wait ends
/// when nobody is there any more who could read them.
fn answer_all(stream: &UnixStream, awaited: &mut Vec<Receiver<Answer>>) -> Result<()> {
    let mut answers = Vec::new();
    for awaited in awaited.drain(..) {
        answers.push(loop {
            match awaited.recv_timeout(LOOK) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Timeout) if socket::is_there(stream) => {}
                Err(RecvTimeoutError::Timeout) => bail!("the client disconnected"),
                Err(RecvTimeoutError::Disconnected) => bail!("the controller ends"),
            }
        });
    }
    if answers.is_empty() { Ok(()) } else { socket::write_all(stream, &answers) }
}

fn converse_with_agent(
    stream: UnixStream,
    mut reader: Reader,
    connection: u64,
    joined: Box<Joined>,
    inputs: &Sender<Input>,
) -> Result<()> {
    let host = joined.host.clone();
    let (outbox, orders) = channel::<Order>();
    let ends = || "the controller ends";
    inputs.send(Input::Joined { connection, joined, outbox }).ok().with_context(ends)?;
    std::thread::Builder::new().name(format!("orders-{connection}")).spawn(move || {
        while let Ok(first) = orders.recv() {
            let all: Vec<Order> = std::iter::once(first).chain(orders.try_iter()).collect();
            if socket::write_all(&stream, &all).is_err() {
                break;
            }
        }
        // The reading side shall notice as well.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    })?;
    let result = loop {
        match reader.read::<Report>() {
            Ok(None) => break Ok(()),
            Ok(Some(report)) => {
                let host = host.clone();
                inputs.send(Input::Report { host, connection, report }).ok().with_context(ends)?;
            }
            Err(error) => break Err(error),
        }
    };
    inputs.send(Input::Left { host, connection }).ok().with_context(ends)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_client_that_went_away_and_one_that_only_asks_no_more_is_answered() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (reply, answer) = channel();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let later = std::thread::spawn(move || {
            std::thread::sleep(LOOK + Duration::from_millis(200));
            reply.send(Answer::Here).unwrap();
        });
        answer_all(&ours, &mut vec![answer]).unwrap();
        later.join().unwrap();
        assert!(matches!(Reader::new(theirs).read::<Answer>(), Ok(Some(Answer::Here))));
        // The stream of the reader is closed by now.
        let (_reply, answer) = channel();
        let error = answer_all(&ours, &mut vec![answer]).unwrap_err();
        assert_eq!(error.to_string(), "the client disconnected");
    }

    #[test]
    fn the_controller_hears_that_one_who_waits_or_watches_has_gone() {
        let job = forebay_grid::vocabulary::JobId(1);
        for ask in [Ask::Wait { job }, Ask::Watch { job }] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (inputs, taken) = channel();
            let served = std::thread::spawn(move || {
                let nowhere = GridHome::of(std::path::Path::new("/")).unwrap();
                let budget = Arc::new(Budget::new(forebay_base::ByteSize::mib(16)));
                converse(ours, 7, (&nowhere, &budget), &inputs)
            });
            socket::write(&theirs, &ask).unwrap();
            let asked = taken.recv().unwrap();
            assert!(matches!(asked, Input::Ask { connection: 7, .. }));
            drop(theirs);
            let closed = taken.iter().find(|input| matches!(input, Input::Closed { .. }));
            assert!(matches!(closed, Some(Input::Closed { connection: 7, .. })), "{ask:?}");
            let _ = served.join().unwrap();
            drop(asked);
        }
    }
}
