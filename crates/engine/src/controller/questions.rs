//! Questions that only look: what the engine, the history or the hosts know. Some are answered later, when a job or a
//! flow has ended, when something happens to a job, or when hosts have said what work areas they have.

use std::sync::mpsc::Sender;

use anyhow::{Result, bail};
use forebay_grid::flow::event::FlowState;
use forebay_grid::vocabulary::{JobId, TaskId, UserName};
use forebay_store::Store;

use super::Controller;
use crate::controller::history;
use crate::controller::lookups::{Lookup, Question};
use crate::controller::watch::Watches;
use crate::engine::JobEnd;
use crate::protocol::flow::{FlowAnswer, FlowAsk};
use crate::protocol::{Answer, Ask, Refusal, RefusalKind};

impl<S: Store> Controller<S> {
    /// Answers, now or later.
    pub(super) fn answer(&mut self, lookup: Lookup) {
        let Lookup { user, connection, question } = lookup;
        match question {
            Question::Ask { ask, reply } => {
                let answer = self.look((&user, connection), &ask, &reply);
                let refused = |error| Some(refused(error));
                if let Some(mut answer) = answer.unwrap_or_else(refused) {
                    self.uses.complete(&mut answer);
                    if let Ask::Explain { target } = ask {
                        let task = TaskId { job: target.job, index: target.index.unwrap_or(0) };
                        if let Some((host, _)) = self.engine.place_of(task) {
                            self.uses.explain(task, &host, &mut answer);
                        }
                    }
                    // Whoever asked may be gone.
                    let _ = reply.send(answer);
                }
            }
            Question::Closed => {
                self.waits.forget(connection);
                self.element_waits.forget(connection);
                self.flow_waits.forget(connection);
                self.watches.forget(connection);
                self.keeps.forget(connection);
            }
        }
    }

    /// The answer to a question, unless it comes later.
    fn look(
        &mut self,
        (user, connection): (&UserName, u64),
        ask: &Ask,
        reply: &Sender<Answer>,
    ) -> Result<Option<Answer>> {
        let engine = &*self.engine;
        Ok(Some(match ask {
            // Settings were read by whoever had the connection.
            Ask::Ping | Ask::For { .. } | Ask::Reload => Answer::Here,
            &Ask::Wait { job } => match self.end(user, job)? {
                Some(JobEnd { value, .. }) => Answer::Ended { value },
                None => {
                    self.waits.add(job, connection, reply.clone());
                    return Ok(None);
                }
            },
            &Ask::WaitElement { task } => {
                let known = self.engine.may_see_job(user, task.job);
                if !known || self.engine.state(task).is_none() {
                    bail!(Refusal::no_job(task.into()));
                }
                match self.engine.task_end(task) {
                    Some(JobEnd { value, .. }) => Answer::Ended { value },
                    None => {
                        self.element_waits.add(task, connection, reply.clone());
                        return Ok(None);
                    }
                }
            }
            &Ask::Watch { job } => {
                self.watch((user, connection), job, reply)?;
                return Ok(None);
            }
            &Ask::Flow { flow: FlowAsk::Wait(flow) } => match engine.flow(flow) {
                Some((owner, state)) if engine.may_see(user, owner) => {
                    if state == FlowState::Running {
                        self.flow_waits.add(flow, connection, reply.clone());
                        return Ok(None);
                    }
                    Answer::Flow { flow: FlowAnswer::Ended(state) }
                }
                Some(_) | None => Answer::no_flow(flow),
            },
            &Ask::Sessions { orphans } => {
                let (hosts, now) = (self.outboxes.hosts(), self.time.look().now);
                let asked = (user.clone(), orphans, reply.clone());
                let orders = self.sessions.ask(engine, now, hosts, asked);
                self.tell_all(orders);
                return Ok(None);
            }
            &Ask::KeepCheckpoint { target, number } => {
                let (hosts, asker) = (self.outboxes.hosts(), (user, connection, reply));
                let order = self.keeps.ask(engine, &hosts, asker, (target, number))?;
                self.tell_all(vec![order]);
                return Ok(None);
            }
            &Ask::History { target, from } => {
                let (attempts, next) = self.journal.history(target, from)?;
                history::answer(engine, user, target, attempts, next)
            }
            Ask::Usage { query } => {
                let visible = |owner: &UserName| engine.may_see(user, owner);
                let rows = self.journal.accounts().answer(query, visible);
                let rows = rows.map_err(|reason| Refusal::new(RefusalKind::Invalid, reason));
                Answer::Usage { rows: rows? }
            }
            Ask::Jobs { target: Some(target), .. } | Ask::Explain { target } => {
                let used = |task, attempt| {
                    Ok(self.journal.attempt(task, attempt)?.and_then(|record| record.usage))
                };
                history::with_usage(engine, *target, engine.answer(user, ask), used)?
            }
            ask => self.with_trouble(engine.answer(user, ask)),
        }))
    }

    /// An answer about the grid as a whole, with what is wrong with its journal.
    fn with_trouble(&self, mut answer: Answer) -> Answer {
        if let Answer::Hosts { trouble, .. } | Answer::Queues { trouble, .. } = &mut answer {
            *trouble = self.trouble();
        }
        answer
    }

    fn watch(
        &mut self,
        (user, connection): (&UserName, u64),
        job: JobId,
        reply: &Sender<Answer>,
    ) -> Result<()> {
        self.end(user, job)?;
        let tasks = self.engine.spec(job).map_or(0, |spec| spec.tasks());
        let too_many = || Refusal::new(RefusalKind::TooMany, Watches::too_many(job));
        let (ended, None) = self.journal.history(job.into(), None)? else { bail!(too_many()) };
        if tasks > Watches::TASKS_MAX {
            bail!(too_many());
        }
        self.watches.add(&*self.engine, (job, connection), ended, reply.clone());
        Ok(())
    }

    /// How a job ended, if all of it has; an error if there is none that the user may see.
    fn end(&self, user: &UserName, job: JobId) -> Result<Option<JobEnd>> {
        if self.engine.may_see_job(user, job) {
            return Ok(self.engine.end(job));
        }
        bail!(Refusal::no_job(job.into()))
    }
}

/// What cannot be answered: refused, or failed.
fn refused(error: anyhow::Error) -> Answer {
    let refusal = error.downcast::<Refusal>();
    Answer::Refused(
        refusal.unwrap_or_else(|error| Refusal::new(RefusalKind::Failed, format!("{error:#}"))),
    )
}
