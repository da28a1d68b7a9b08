//! Operations on hosts, queues, flows, usage, areas, tokens, and what the server keeps itself.

use forebay_engine::protocol::client::{Client, makes_no_sense};
use forebay_engine::protocol::{
    Answer, AreaView, Ask, FlowAnswer, FlowAsk, FlowView, HostView, Orphans, QueueView, UsageKey,
    UsageQuery,
};
use forebay_grid::event::QueueVerb;
use forebay_grid::flow::FlowId;
use forebay_grid::group::GroupVerb;
use forebay_grid::journal::HostSwitch;

use super::operation::{Call, sent};
use super::views::{
    AlertList, Flow, FlowAccepted, FlowList, GroupLimit, Host, HostList, JobGroup, JobGroupList,
    Me, NewFlow, NewReservation, Obeyed, Queue, QueueList, Reservation, ReservationList, Service,
    ServiceList, TokenList, TokenView, UsageList, UsageSum, WorkArea, WorkAreaList,
};
use crate::http::Reply;
use crate::problem::Problem;

type Done = Result<Reply, Problem>;

pub(super) fn me(call: &Call<'_>) -> Done {
    sent(200, &Me { user: call.who.user.to_string(), admin: call.who.admin })
}

/// All hosts, and what is wrong with the journal.
pub fn all_hosts(client: &mut Client) -> Result<(Vec<HostView>, Option<String>), Problem> {
    match client.ask(&Ask::Hosts)? {
        Answer::Hosts { hosts, trouble } => Ok((hosts, trouble)),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

/// All queues, and what is wrong with the journal.
pub fn all_queues(client: &mut Client) -> Result<(Vec<QueueView>, Option<String>), Problem> {
    match client.ask(&Ask::Queues)? {
        Answer::Queues { queues, trouble } => Ok((queues, trouble)),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn hosts(call: &Call<'_>) -> Done {
    let (hosts, trouble) = all_hosts(&mut call.app.client(call.who)?)?;
    sent(200, &HostList { hosts: hosts.into_iter().map(Host::from).collect(), trouble })
}

pub(super) fn queues(call: &Call<'_>) -> Done {
    let (queues, trouble) = all_queues(&mut call.app.client(call.who)?)?;
    sent(200, &QueueList { queues: queues.into_iter().map(Queue::from).collect(), trouble })
}

pub(super) fn services(call: &Call<'_>) -> Done {
    let ask = Ask::Services { ended: call.is_set("ended")? };
    match call.app.client(call.who)?.ask(&ask)? {
        Answer::Jobs { jobs, .. } => {
            let services = jobs.into_iter().filter_map(Service::of).collect();
            sent(200, &ServiceList { services })
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

fn obeyed(call: &Call<'_>, ask: &Ask) -> Done {
    match call.app.client(call.who)?.ask(ask)? {
        Answer::Obeyed { tasks } => sent(200, &Obeyed { tasks }),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

fn switch_host(call: &Call<'_>, state: HostSwitch) -> Done {
    obeyed(call, &Ask::Host { host: call.part(0, "host")?, state })
}

pub(super) fn open_host(call: &Call<'_>) -> Done {
    switch_host(call, HostSwitch::Open)
}

pub(super) fn close_host(call: &Call<'_>) -> Done {
    switch_host(call, HostSwitch::Closed)
}

fn switch_queue(call: &Call<'_>, verb: QueueVerb) -> Done {
    obeyed(call, &Ask::Queue { queue: call.part(0, "queue")?, verb })
}

pub(super) fn open_queue(call: &Call<'_>) -> Done {
    switch_queue(call, QueueVerb::Open)
}

pub(super) fn close_queue(call: &Call<'_>) -> Done {
    switch_queue(call, QueueVerb::Close)
}

pub(super) fn activate_queue(call: &Call<'_>) -> Done {
    switch_queue(call, QueueVerb::Activate)
}

pub(super) fn inactivate_queue(call: &Call<'_>) -> Done {
    switch_queue(call, QueueVerb::Inactivate)
}

pub(super) fn groups(call: &Call<'_>) -> Done {
    match call.app.client(call.who)?.ask(&Ask::Groups)? {
        Answer::Groups { groups } => {
            sent(200, &JobGroupList { groups: groups.into_iter().map(JobGroup::from).collect() })
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn limit_group(call: &Call<'_>) -> Done {
    let GroupLimit { group, limit } = call.body()?;
    let read = group.parse();
    let group = read.map_err(|error: String| Problem::invalid(format!("group: {error}")))?;
    obeyed(call, &Ask::Group { group, verb: GroupVerb::Limit { limit } })
}

pub(super) fn delete_group(call: &Call<'_>) -> Done {
    let group = call.parameter("group")?;
    let group =
        group.ok_or_else(|| Problem::not_understood("group: give the path of the group"))?;
    match call.app.client(call.who)?.ask(&Ask::Group { group, verb: GroupVerb::Delete })? {
        Answer::Obeyed { .. } => Ok(Reply::new(204, "application/json", "")),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn reservations(call: &Call<'_>) -> Done {
    match call.app.client(call.who)?.ask(&Ask::Reservations)? {
        Answer::Reservations { reservations } => {
            let reservations = reservations.into_iter().map(Reservation::from).collect();
            sent(200, &ReservationList { reservations })
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn reserve(call: &Call<'_>) -> Done {
    let new: NewReservation = call.body()?;
    let reservation = new.into_reservation(call.app.now())?;
    let ask = Ask::Reserve { reservation: Box::new(reservation.clone()) };
    match call.app.client(call.who)?.ask(&ask)? {
        Answer::Obeyed { .. } => sent(201, &Reservation::from(reservation)),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn unreserve(call: &Call<'_>) -> Done {
    match call.app.client(call.who)?.ask(&Ask::Unreserve { name: call.part(0, "reservation")? })? {
        Answer::Obeyed { .. } => Ok(Reply::new(204, "application/json", "")),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn flows(call: &Call<'_>) -> Done {
    let flows = call.app.client(call.who)?.flows(call.is_set("ended")?)?;
    sent(200, &FlowList { flows: flows.into_iter().map(Flow::from).collect() })
}

/// One run with its steps.
pub fn one_flow(client: &mut Client, flow: FlowId) -> Result<FlowView, Problem> {
    match client.ask(&Ask::Flow { flow: FlowAsk::Show(flow) })? {
        Answer::Flow { flow: FlowAnswer::Shown(flow) } => Ok(*flow),
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn show_flow(call: &Call<'_>) -> Done {
    let flow = one_flow(&mut call.app.client(call.who)?, call.part(0, "flow")?)?;
    sent(200, &Flow::from(flow))
}

pub(super) fn run_flow(call: &Call<'_>) -> Done {
    let flow: NewFlow = call.body()?;
    let spec = flow.into_spec(&call.who.user, &call.app.account(call.who)?)?;
    if spec.trigger.is_some() {
        let reason =
            "the file has a [schedule], which starts the flow: forebay flow schedule takes it";
        return Err(Problem::invalid(reason));
    }
    let flow = call.app.client(call.who)?.run_flow(Box::new(spec))?;
    let reply = sent(201, &FlowAccepted { flow: flow.0 })?;
    Ok(reply.with("location", format!("/api/v1/flows/{flow}")))
}

pub(super) fn kill_flow(call: &Call<'_>) -> Done {
    obeyed(call, &Ask::Flow { flow: FlowAsk::Kill(call.part(0, "flow")?) })
}

pub(super) fn rerun_flow(call: &Call<'_>) -> Done {
    obeyed(call, &Ask::Flow { flow: FlowAsk::Rerun(call.part(0, "flow")?) })
}

fn usage_key(text: &str) -> Result<UsageKey, Problem> {
    match text {
        "user" => Ok(UsageKey::User),
        "queue" => Ok(UsageKey::Queue),
        "day" => Ok(UsageKey::Day),
        "host" => Ok(UsageKey::Host),
        "project" => Ok(UsageKey::Project),
        other => Err(Problem::not_understood(format!(
            "by=\"{other}\": choose from user, queue, day, host and project, with commas between them"
        ))),
    }
}

pub(super) fn usage(call: &Call<'_>) -> Done {
    let by = call.request.parameter("by").unwrap_or_default();
    let keys = by.split(',').filter(|part| !part.is_empty()).map(usage_key);
    let query = UsageQuery {
        by: keys.collect::<Result<_, _>>()?,
        since: call.parameter("since")?,
        until: call.parameter("until")?,
    };
    match call.app.client(call.who)?.ask(&Ask::Usage { query })? {
        Answer::Usage { rows } => {
            sent(200, &UsageList { rows: rows.into_iter().map(UsageSum::from).collect() })
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

/// Work areas, and hosts whose areas are not known.
pub fn all_areas(client: &mut Client) -> Result<(Vec<AreaView>, Vec<String>), Problem> {
    match client.ask(&Ask::Sessions { orphans: Orphans::Listed })? {
        Answer::Sessions { areas, unknown, .. } => {
            Ok((areas, unknown.iter().map(ToString::to_string).collect()))
        }
        answer => Err(makes_no_sense(&answer).into()),
    }
}

pub(super) fn areas(call: &Call<'_>) -> Done {
    let (areas, unknown) = all_areas(&mut call.app.client(call.who)?)?;
    sent(200, &WorkAreaList { areas: areas.into_iter().map(WorkArea::from).collect(), unknown })
}

pub(super) fn tokens(call: &Call<'_>) -> Done {
    let found = call.app.tokens.lock().list(Some(call.who.uid), call.app.now());
    let view = |token: crate::token::Token| TokenView {
        this: call.who.token == Some(token.id),
        id: token.id,
        name: token.name,
        made: token.made.into(),
        expires: token.expires.into(),
    };
    sent(200, &TokenList { tokens: found.into_iter().map(view).collect() })
}

pub(super) fn revoke(call: &Call<'_>) -> Done {
    let id = call.part(0, "token")?;
    let revoked = call.app.tokens.lock().revoke(Some(call.who.uid), id);
    revoked.map_err(|error| Problem::own("no_token", format!("{error:#}")))?;
    Ok(Reply::new(204, "application/json", ""))
}

pub(super) fn alerts(call: &Call<'_>) -> Done {
    sent(200, &AlertList { alerts: call.app.alerts.list() })
}

pub(super) fn samples(call: &Call<'_>) -> Done {
    let subject = call.request.parameter("subject").unwrap_or("grid");
    let seconds = call.parameter::<u64>("seconds")?.unwrap_or(3600);
    match call.app.history.read(subject, call.app.now(), seconds) {
        Some(samples) => sent(200, &samples),
        None => Err(Problem::own(
            "not_found",
            format!(
                "subject=\"{subject}\": choose from {}",
                call.app.history.subjects().join(", ")
            ),
        )),
    }
}

pub(super) fn events(call: &Call<'_>) -> Done {
    let all = call.who.admin;
    match call.app.feed.subscribe(&call.who.user, all) {
        Some(events) => Ok(Reply::events(events)),
        None => Err(Problem::own("busy", "too many event streams are open: try again later")),
    }
}
