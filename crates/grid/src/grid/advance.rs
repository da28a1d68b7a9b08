//! Advance reservations: making and giving them up, and what they keep jobs from.
//!
//! A job that names a reservation starts only in its time, on its hosts and within its slots there, and may run until its
//! end at the latest. Any other job starts on such a host only if it leaves the slots that are reserved while it
//! may still run: what has no known end may always run.

use crate::advance::{AdvanceReservation, RESERVATIONS_MAX};
use crate::event::{Effect, Outcome, Refusal};
use crate::grid::Grid;
use crate::grid::explain::{HostObstacle, Reason};
use crate::hosts::HostNow;
use crate::journal::Change;
use crate::parse::period::Period;
use crate::ready::Shape;
use crate::spec::{JobSpec, Sharing};
use crate::task::Task;
use crate::vocabulary::{HostId, HostName, JobId, Moment, QueueId, ReservationName, UserName};

impl Grid {
    pub(super) fn reserve_in_advance(
        &mut self,
        by: &UserName,
        reservation: AdvanceReservation,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        let name = &reservation.name;
        self.check_admin(by, || format!("make reservation {name}"))?;
        let known = &self.ledger.advance;
        if known.contains_key(name) {
            let fault = format!("there is a reservation {name} already: delete it first");
            return Err(Refusal::Invalid(fault));
        }
        if known.len() >= RESERVATIONS_MAX {
            let fault = format!("there are {RESERVATIONS_MAX} reservations already: delete some");
            return Err(Refusal::TooMany(fault));
        }
        if let Some(fault) = reservation.fault(self.now) {
            return Err(Refusal::Invalid(fault));
        }
        for host in &reservation.hosts {
            self.check_reserved_host(&reservation, host)?;
        }
        self.record(Change::Reserved(Box::new(reservation)), out);
        self.look_at_reservations();
        Ok(Effect::Obeyed { tasks: 0 })
    }

    /// Whether a host has the slots of a reservation besides those of others at the same time.
    fn check_reserved_host(
        &self,
        reservation: &AdvanceReservation,
        host: &HostName,
    ) -> Result<(), Refusal> {
        let id = self.host_id(host).filter(|id| self.is_listed(*id));
        let id = id.ok_or_else(|| Refusal::NoSuchHost(host.clone()))?;
        let whole = self.index.hosts[id.0 as usize].slots;
        let name = &reservation.name;
        if let Some(slots) = reservation.slots.filter(|slots| *slots > whole) {
            let fault = format!("reservation {name}: {slots} slots of {host}, which has {whole}");
            return Err(Refusal::Invalid(fault));
        }
        let others = || self.ledger.advance.values();
        let overlaps = |other: &&AdvanceReservation| {
            other.start < reservation.end && reservation.start < other.end
        };
        let moments = others().filter(overlaps).map(|other| other.start.max(reservation.start));
        let at_most = moments.map(|at| self.slots_set_aside(host, whole, at)).max();
        let own = reservation.slots_of(host, whole).unwrap_or(0);
        if let Some(taken) = at_most.filter(|taken| taken + own > whole) {
            let names: Vec<String> = others()
                .filter(overlaps)
                .filter(|other| other.hosts.contains(host))
                .map(|other| other.name.to_string())
                .collect();
            return Err(Refusal::Invalid(format!(
                "reservation {name}: {host} has {whole} slots, of which {} already have {taken} at that time",
                names.join(", ")
            )));
        }
        Ok(())
    }

    pub(super) fn unreserve(
        &mut self,
        by: &UserName,
        name: &ReservationName,
        out: &mut Outcome,
    ) -> Result<Effect, Refusal> {
        self.check_admin(by, || format!("delete reservation {name}"))?;
        if !self.ledger.advance.contains_key(name) {
            return Err(Refusal::NoSuchReservation(name.clone()));
        }
        self.record(Change::Unreserved(name.clone()), out);
        self.look_at_reservations();
        Ok(Effect::Obeyed { tasks: 0 })
    }

    /// Forgets reservations that are over, and lets jobs start for which one has begun or is over.
    pub(super) fn follow_reservations(&mut self, out: &mut Outcome) {
        if self.reservations_look > self.now {
            return;
        }
        let over = |reservation: &&AdvanceReservation| reservation.end <= self.now;
        let over = self.ledger.advance.values().filter(over);
        let over: Vec<ReservationName> = over.map(|of| of.name.clone()).collect();
        for name in over {
            self.record(Change::Unreserved(name), out);
        }
        self.look_at_reservations();
    }

    /// Something about reservations is other than before, or a time of one has come.
    fn look_at_reservations(&mut self) {
        let all = self.ledger.advance.values();
        let times = all.flat_map(|reservation| [reservation.start, reservation.end]);
        let next = times.filter(|at| *at > self.now).min();
        self.reservations_look = next.unwrap_or(Moment::NEVER);
        self.index.stir();
    }

    /// Refuses a job that names a reservation which is not there, or not for its user.
    pub(super) fn check_reservation(&self, user: &UserName, spec: &JobSpec) -> Result<(), Refusal> {
        let Some(name) = &spec.reservation else { return Ok(()) };
        let reservation = self.ledger.advance.get(name);
        let reservation = reservation.ok_or_else(|| Refusal::NoSuchReservation(name.clone()))?;
        if reservation.users.contains(user) {
            return Ok(());
        }
        let what = format!("use reservation {name}");
        Err(Refusal::NotAllowed { user: user.clone(), what })
    }

    /// Why the reservation of a job lets none of a user start now.
    pub(super) fn reservation_obstacle(
        &self,
        name: Option<&ReservationName>,
        user: &UserName,
    ) -> Option<Reason> {
        let name = name?;
        match self.ledger.advance.get(name) {
            None => Some(Reason::ReservationGone(name.clone())),
            Some(of) if of.end <= self.now => Some(Reason::ReservationGone(name.clone())),
            Some(of) if !of.users.contains(user) => Some(Reason::ReservationOfOthers(name.clone())),
            Some(of) if of.start > self.now => {
                Some(Reason::ReservationStarts { name: name.clone(), at: of.start })
            }
            Some(_) => None,
        }
    }

    /// How long a job may run at most because of its reservation.
    pub(super) fn reserved_for(&self, spec: &JobSpec) -> Option<Period> {
        let reservation = self.ledger.advance.get(spec.reservation.as_ref()?)?;
        Some(Period(reservation.end.since(self.now)))
    }

    /// Why reservations keep a job of a shape from a host that is otherwise as `now`.
    pub(super) fn set_aside(
        &self,
        queue: QueueId,
        shape: &Shape,
        host: HostId,
        now: &HostNow,
    ) -> Option<HostObstacle> {
        if self.ledger.advance.is_empty() {
            return None;
        }
        let (name, whole) = (self.ledger.hosts.at(host.0), now.slots);
        let needed = if shape.sharing == Sharing::Exclusive { whole } else { shape.slots };
        if let Some(own) = &shape.reservation {
            // That it is there was looked at before.
            let Some(most) = self.ledger.advance.get(own)?.slots_of(name, whole) else {
                return Some(HostObstacle::NotInReservation);
            };
            let used = self.slots_in(now, own);
            let short = used.saturating_add(needed) > most;
            return short.then_some(HostObstacle::ReservationSlots { used, most });
        }
        let ends = self.end_if_started(queue, shape, host);
        let in_its_way = |of: &&AdvanceReservation| {
            of.end > self.now
                && ends.is_none_or(|ends| ends > of.start)
                && of.slots_of(name, whole).is_some_and(|slots| slots > 0)
        };
        self.ledger.advance.values().filter(in_its_way).find_map(|of| {
            let at = of.start.max(self.now);
            let reserved = self.slots_set_aside(name, whole, at);
            let others = self.slots_of_others(now, at);
            let free = whole.saturating_sub(reserved).saturating_sub(others);
            (needed > free).then_some(HostObstacle::SetAside { from: of.start, until: of.end })
        })
    }

    /// Slots of a host that reservations have at a moment.
    fn slots_set_aside(&self, host: &HostName, whole: u32, at: Moment) -> u32 {
        let then = self.ledger.advance.values().filter(|of| of.holds_at(at));
        then.filter_map(|of| of.slots_of(host, whole)).sum()
    }

    /// The reservation that a job on a host runs in, as far as it was not given up.
    fn reservation_of(&self, job: JobId) -> Option<&AdvanceReservation> {
        self.ledger.advance.get(self.ledger.jobs[&job].spec.reservation.as_ref()?)
    }

    /// Slots that jobs of a reservation use on a host.
    fn slots_in(&self, now: &HostNow, name: &ReservationName) -> u32 {
        let own = now.runs.iter().filter(|task| {
            self.reservation_of(task.job).is_some_and(|reservation| reservation.name == *name)
        });
        own.filter_map(|task| Some(self.ledger.task(*task).and_then(Task::run)?.busy_slots())).sum()
    }

    /// Slots that jobs on a host may still use at a moment outside the reservations of then.
    fn slots_of_others(&self, now: &HostNow, at: Moment) -> u32 {
        let others = now.runs.iter().filter(|task| {
            self.reservation_of(task.job).is_none_or(|reservation| !reservation.holds_at(at))
        });
        let slots = others.filter_map(|task| {
            let run = self.ledger.task(*task).and_then(Task::run)?;
            let queue = self.ledger.jobs[&task.job].queue;
            let stays = at <= self.now || self.end_of(queue, run).is_none_or(|ends| ends > at);
            stays.then(|| run.busy_slots())
        });
        slots.sum()
    }

    /// The first reservation of others that has slots of a host at a time, for people.
    pub(super) fn reservation_on(&self, host: HostId, from: Moment) -> Option<ReservationName> {
        let name = self.ledger.hosts.at(host.0);
        let of = |of: &&AdvanceReservation| of.start == from && of.hosts.contains(name);
        self.ledger.advance.values().find(of).map(|of| of.name.clone())
    }

    /// All reservations that are not over, in the order of their names.
    pub fn reservations(&self) -> impl Iterator<Item = &AdvanceReservation> {
        self.ledger.advance.values()
    }
}
