//! One connection of a command or an agent: who is there, what is asked, and the answers in their order.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_grid::event::Joined;
use forebay_grid::vocabulary::{HostName, UserName};
use rustix::process::Uid;

use super::{LOOK, Site, reread, watcher};
use crate::causes::chain;
use crate::controller::Input;
use crate::protocol::budget::{AWAITED_BYTES_MAX, Share};
use crate::protocol::caller::{Numbers, Relayed};
use crate::protocol::flow::FlowAsk;
use crate::protocol::socket::{self, Reader, Unknown};
use crate::protocol::{Answer, Ask, Order, Refusal, RefusalKind, Report};
use crate::server::connections::Connections;
use crate::trust::{check_peer, is_trusted};
use crate::user;

/// The most questions of one connection that wait for their answers.
const AWAITED_MAX: usize = 1024;

/// How long the numbers of a user are not asked for again.
const USER_AGE_MAX: Duration = Duration::from_secs(10);

/// By which socket a connection comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Users of this machine connect themselves.
    Users,
    /// The relay of this node hands on what comes from any node of the cluster.
    Relay,
}

/// Who is at the other end of a connection.
struct Caller {
    uid: Uid,
    user: UserName,
    /// The node that asserts it; none if the kernel of this machine says so.
    node: Option<HostName>,
}

impl Caller {
    /// Who has connected; otherwise why nobody is served.
    fn of(stream: &UnixStream, door: Door) -> Result<Caller> {
        let peer = rustix::net::sockopt::socket_peercred(stream)?;
        if door == Door::Users {
            let number = peer.uid.as_raw();
            let user = user::name_of(number).with_context(|| format!("user {number}"))?;
            return Ok(Caller { uid: peer.uid, user, node: None });
        }
        check_peer(stream)?;
        stream.set_read_timeout(Some(LOOK))?;
        let Relayed { node, identity } = socket::read_framed(stream)?;
        stream.set_read_timeout(None)?;
        identity.check_here(node.as_str())?;
        Ok(Caller { uid: Uid::from_raw(identity.uid), user: identity.user, node: Some(node) })
    }
}

/// One connection from beginning to end.
pub(super) fn converse(
    stream: UnixStream,
    (connection, door): (u64, Door),
    (site, connections): (&Site, &Arc<Connections>),
    inputs: &Sender<Input>,
) -> Result<()> {
    let caller = match Caller::of(&stream, door) {
        Ok(caller) => caller,
        Err(error) => {
            let reason = format!("{error:#}");
            return socket::write(&stream, &Answer::refused(RefusalKind::NotAllowed, reason));
        }
    };
    // What comes through a relay counts for the user whom it asserts, over all nodes.
    let admitted = match door {
        Door::Users => Ok(None),
        Door::Relay => connections.admit(caller.uid).map(Some),
    };
    let _admitted = match admitted {
        Ok(admitted) => admitted,
        Err(reason) => return socket::write(&stream, &Answer::Busy { reason }),
    };
    let result = converse_as((&caller, connection), stream, site, inputs);
    if result.is_err() {
        // It may have ended before its answers; where none is awaited there is nothing to forget.
        let _ = inputs.send(Input::Closed { connection, user: caller.user });
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
    (caller, connection): (&Caller, u64),
    stream: UnixStream,
    site: &Site,
    inputs: &Sender<Input>,
) -> Result<()> {
    let reading = stream.try_clone()?;
    // Who could end the controller is not counted: what an agent says when it joins grows with its jobs.
    let mut reader = if is_trusted(caller.uid) {
        Reader::of_agents(reading)
    } else {
        Reader::of_counted(reading, Share::of(&site.budget, caller.uid))
    };
    let first = reader.read::<Ask>();
    if let Ok(Some(Ask::For { uid })) = first {
        let other = match represented(caller, uid) {
            Ok(other) => other,
            Err(refusal) => return socket::write(&stream, &Answer::Refused(refusal)),
        };
        socket::write(&stream, &Answer::Here)?;
        let next = reader.read();
        let talked = talk((&other, connection), stream, (reader, next), site, inputs);
        if talked.is_err() {
            let _ = inputs.send(Input::Closed { connection, user: other.user });
        }
        return talked;
    }
    talk((caller, connection), stream, (reader, first), site, inputs)
}

/// The user for whom somebody asks.
fn represented(caller: &Caller, uid: u32) -> Result<Caller, Refusal> {
    if !is_trusted(caller.uid) {
        let reason = format!("{} may not ask for other users", caller.user);
        return Err(Refusal::new(RefusalKind::NotAllowed, reason));
    }
    let user = user::name_of(uid)
        .map_err(|error| Refusal::new(RefusalKind::NotAllowed, format!("user {uid}: {error:#}")))?;
    Ok(Caller { uid: Uid::from_raw(uid), user, node: caller.node.clone() })
}

/// What a user asks on a connection, one after the other, from the first question on.
fn talk(
    (caller, connection): (&Caller, u64),
    stream: UnixStream,
    (mut reader, first): (Reader, Result<Option<Ask>>),
    site: &Site,
    inputs: &Sender<Input>,
) -> Result<()> {
    let Caller { uid, user, node } = caller;
    let trusted = is_trusted(*uid);
    let mut first = Some(first);
    // Answers to what was asked without waiting for an answer, in order; bytes of it, and what they are counted by.
    let (mut awaited, mut awaited_bytes, mut shares) = (Vec::new(), 0, Vec::new());
    loop {
        let is_much = awaited.len() >= AWAITED_MAX || awaited_bytes >= AWAITED_BYTES_MAX;
        if first.is_none() && (!reader.has_line() || is_much) {
            answer_all(&stream, &mut awaited)?;
            awaited_bytes = 0;
            shares.clear();
        }
        let ask = match first.take().unwrap_or_else(|| reader.read::<Ask>()) {
            Ok(None) => return Ok(()),
            Ok(Some(ask)) => ask.asked_on(node.as_ref()),
            Err(error) => {
                answer_all(&stream, &mut awaited)?;
                let refusal = Refusal::not_understood(format!("{error:#}"));
                return socket::write(&stream, &Answer::Refused(refusal));
            }
        };
        let (bytes, share) = reader.last_line();
        awaited_bytes += bytes + if has_long_answer(&ask) { AWAITED_BYTES_MAX } else { 0 };
        shares.extend(share);
        if let Ask::Join { joined } = ask {
            if let Err(reason) = check_agent(caller, &joined.host) {
                return socket::write(&stream, &Order::Refused { reason });
            }
            let is_far = node.is_some();
            return converse_with_agent(stream, reader, (connection, is_far), joined, inputs);
        }
        if let Ask::Watch { .. } = ask {
            answer_all(&stream, &mut awaited)?;
            return watcher::converse(&stream, reader, (user, connection), ask, inputs);
        }
        let (reply, answer) = channel();
        awaited.push(answer);
        if let Ask::For { .. } = ask {
            let reason = "\"for\" comes first on a connection, and once";
            let _ = reply.send(Answer::refused(RefusalKind::NotUnderstood, reason));
            continue;
        }
        let taken = match ask {
            Ask::Reload => reload(site, (trusted, user), inputs)?.map(|()| Ask::Reload),
            ask => {
                let ask = match &site.places {
                    Some(places) => places.fill_in(ask),
                    None => ask,
                };
                site.filter.pass(ask, user, node.as_ref())
            }
        };
        let ask = match taken {
            Ok(ask) => ask,
            Err(refusal) => {
                let _ = reply.send(Answer::Refused(refusal));
                continue;
            }
        };
        let input = Input::Ask { connection, user: user.clone(), ask, reply };
        inputs.send(input).ok().context("the controller ends")?;
    }
}

/// Has the settings read again. The question behind it is answered once they are in force.
fn reload(
    site: &Site,
    (trusted, user): (bool, &UserName),
    inputs: &Sender<Input>,
) -> Result<Result<(), Refusal>> {
    if !trusted {
        return Ok(Err(Refusal::new(RefusalKind::NotAllowed, not_theirs(user))));
    }
    match reread(site) {
        Ok(input) => inputs.send(input).ok().context("the controller ends").map(Ok),
        Err(error) => Ok(Err(Refusal::new(RefusalKind::Failed, chain(&error)))),
    }
}

/// Refuses an agent of a user who may not run one, and one with another name than its node's.
fn check_agent(caller: &Caller, host: &HostName) -> Result<(), String> {
    if !is_trusted(caller.uid) {
        return Err(format!("{} is not allowed to be an agent of this grid", caller.user));
    }
    match &caller.node {
        Some(node) if node != host => Err(format!(
            "the agent of node {node} has its name, not {host}: omit --name, or give --name {node}"
        )),
        Some(_) | None => Ok(()),
    }
}

/// Whether the answer may be a long list, of which one at a time is enough for a connection.
fn has_long_answer(ask: &Ask) -> bool {
    matches!(
        ask,
        Ask::Jobs { .. }
            | Ask::Services { .. }
            | Ask::History { .. }
            | Ask::Explain { .. }
            | Ask::Usage { .. }
            | Ask::Sessions { .. }
            | Ask::Hosts
            | Ask::Queues
            | Ask::Resources
            | Ask::Limits
            | Ask::Try { .. }
            | Ask::Reservations
            | Ask::Groups
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
    (connection, is_far): (u64, bool),
    joined: Box<Joined>,
    inputs: &Sender<Input>,
) -> Result<()> {
    let host = joined.host.clone();
    let (outbox, orders) = channel::<Order>();
    let ends = || "the controller ends";
    inputs.send(Input::Joined { connection, joined, outbox }).ok().with_context(ends)?;
    std::thread::Builder::new().name(format!("orders-{connection}")).spawn(move || {
        let mut numbers = UserNumbers::default();
        while let Ok(first) = orders.recv() {
            let mut all: Vec<Order> = std::iter::once(first).chain(orders.try_iter()).collect();
            if is_far {
                all.iter_mut().for_each(|order| numbers.add_to(order));
            }
            if socket::write_all(&stream, &all).is_err() {
                break;
            }
        }
        // The reading side shall notice as well.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    })?;
    let mut said = String::new();
    let result = loop {
        match reader.read_or_unknown::<Report>() {
            Ok(None) => break Ok(()),
            // What it would have said is said again when it joins a controller that understands it.
            Ok(Some(Err(Unknown { reason, .. }))) if reason == said => {}
            Ok(Some(Err(Unknown { reason, .. }))) => {
                tracing::error!(
                    "a report of host {host} is passed over, as its agent is probably newer than this controller; install the same \
                     version of Forebay on all hosts: {reason}"
                );
                said = reason;
            }
            Ok(Some(Ok(report))) => {
                let host = host.clone();
                inputs.send(Input::Report { host, connection, report }).ok().with_context(ends)?;
            }
            Err(error) => break Err(error),
        }
    };
    inputs.send(Input::Left { host, connection }).ok().with_context(ends)?;
    result
}

/// The numbers of the user whose job was started last: most jobs that follow are the same user's.
#[derive(Default)]
struct UserNumbers {
    last: Option<(UserName, Numbers, Instant)>,
}

impl UserNumbers {
    /// Says with a start on another node which numbers its user has here. Of one who is not known here nothing is said: the
    /// submission was refused then, or the user was removed since.
    fn add_to(&mut self, order: &mut Order) {
        let Order::Launch(launch) = order else { return };
        let now = SystemClock.instant();
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < USER_AGE_MAX;
        if let Some((user, numbers, at)) = &self.last
            && *user == launch.user
            && is_fresh(*at)
        {
            launch.numbers = Some(*numbers);
            return;
        }
        let account = user::account_of(&launch.user).ok();
        launch.numbers = account.map(|account| Numbers { uid: account.uid, gid: account.gid });
        self.last = launch.numbers.map(|numbers| (launch.user.clone(), numbers, now));
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::Filter;
    use super::*;
    use crate::home::GridHome;
    use crate::protocol::budget::Budget;

    fn nowhere() -> Site {
        Site {
            home: GridHome::of(std::path::Path::new("/")).unwrap(),
            budget: Arc::new(Budget::new(forebay_base::ByteSize::mib(16))),
            filter: Arc::new(Filter::default()),
            places: None,
        }
    }

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
    fn only_root_and_the_owner_of_a_grid_ask_for_others() {
        let own = rustix::process::geteuid();
        let caller = |uid: Uid| Caller { uid, user: "ann".parse().unwrap(), node: None };
        let stranger = Uid::from_raw(own.as_raw() + 4321);
        assert!(matches!(
            represented(&caller(stranger), own.as_raw()),
            Err(refusal) if refusal.kind == RefusalKind::NotAllowed
        ));
        let other = represented(&caller(own), 4_000_000_001).ok().unwrap();
        assert_eq!((other.uid.as_raw(), other.user.as_str()), (4_000_000_001, "4000000001"));

        // On a connection: what follows is asked by the other user, who may not do so again.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (inputs, taken) = channel();
        let served = std::thread::spawn(move || {
            let connections = Arc::new(Connections::new());
            converse(ours, (7, Door::Users), (&nowhere(), &connections), &inputs)
        });
        let mut reader = Reader::new(theirs.try_clone().unwrap());
        socket::write(&theirs, &Ask::For { uid: 4_000_000_001 }).unwrap();
        assert!(matches!(reader.read(), Ok(Some(Answer::Here))));
        socket::write(&theirs, &Ask::Hosts).unwrap();
        match taken.recv().unwrap() {
            Input::Ask { user, ask: Ask::Hosts, reply, .. } => {
                assert_eq!(user.as_str(), "4000000001");
                reply.send(Answer::Here).unwrap();
            }
            _ => panic!("no question"),
        }
        assert!(matches!(reader.read(), Ok(Some(Answer::Here))));
        for ask in [Ask::For { uid: own.as_raw() }, Ask::Reload] {
            socket::write(&theirs, &ask).unwrap();
            assert!(matches!(reader.read(), Ok(Some(Answer::Refused(_)))), "{ask:?}");
        }
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
        served.join().unwrap().unwrap();
    }

    #[test]
    fn the_controller_hears_that_one_who_waits_or_watches_has_gone() {
        let job = forebay_grid::vocabulary::JobId(1);
        for ask in [Ask::Wait { job }, Ask::Watch { job }] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (inputs, taken) = channel();
            let served = std::thread::spawn(move || {
                let connections = Arc::new(Connections::new());
                converse(ours, (7, Door::Users), (&nowhere(), &connections), &inputs)
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
