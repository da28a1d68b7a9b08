//! What the daemon of a mount reports to monitors.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use anyhow::Result;
use forebay_base::FilesetId;
use forebay_fs::metrics::label;
use forebay_fs::stats::OPERATIONS;
use forebay_fuse::activity::askers::{Cause, JobOf};
use forebay_fuse::activity::ledger::Tally;
use forebay_metrics::{Listen, Metric, Page, Render, Server, Table, own};

use super::Running;
use crate::attribution::{self, Activity, By, CauseRow, OperationRow, Users, Work};

static USER_OPERATIONS: Metric =
    Metric::counter("forebay_user_operations", &["user"], "Operations of processes of a user");
static USER_TIME: Metric = Metric::counter(
    "forebay_user_operation_time",
    &["user"],
    "Total time of the operations of a user",
)
.seconds();
static USER_READ: Metric = Metric::counter(
    "forebay_user_read",
    &["user"],
    "Bytes that the daemon read for a user (served path)",
)
.bytes();
static USER_WRITTEN: Metric = Metric::counter(
    "forebay_user_written",
    &["user"],
    "Bytes that the daemon wrote for a user, and the growth of files that the kernel writes for it",
)
.bytes();

/// What the daemon of a mount reports of users.
#[cfg_attr(not(test), expect(dead_code, reason = "docs/metrics.md is generated from it"))]
pub static USERS: Table = Table {
    title: "File system: users",
    page: "/metrics/users",
    about: "Of the daemon behind a mount, for processes of this machine. The user `(kernel)` stands for operations without a \
            process: closes, and pages that the kernel writes back.",
    metrics: &[&USER_OPERATIONS, &USER_TIME, &USER_READ, &USER_WRITTEN],
};

static JOB_OPERATIONS: Metric =
    Metric::counter("forebay_job_operations", &["job", "user"], "Operations of processes of a job");
static JOB_TIME: Metric = Metric::counter(
    "forebay_job_operation_time",
    &["job", "user"],
    "Total time of the operations of a job",
)
.seconds();
static JOB_READ: Metric = Metric::counter(
    "forebay_job_read",
    &["job", "user"],
    "Bytes that the daemon read for a job (served path)",
)
.bytes();
static JOB_WRITTEN: Metric = Metric::counter(
    "forebay_job_written",
    &["job", "user"],
    "Bytes that the daemon wrote for a job, and the growth of files that the kernel writes for it",
)
.bytes();

/// What the daemon of a mount reports of jobs.
#[cfg_attr(not(test), expect(dead_code, reason = "docs/metrics.md is generated from it"))]
pub static JOBS: Table = Table {
    title: "File system: jobs",
    page: "/metrics/jobs",
    about: "As for users. `12` is a job of a Forebay grid, `slurm-12` and `lsf-12` are jobs of others; `-` stands for \
            processes without a job, `?` for processes that had ended before they were looked up.",
    metrics: &[&JOB_OPERATIONS, &JOB_TIME, &JOB_READ, &JOB_WRITTEN],
};

impl Running {
    /// Answers monitors from now on.
    pub(super) fn serve_metrics(self: &Arc<Running>, listen: Listen) -> Result<()> {
        let running = Arc::downgrade(self);
        let (for_users, for_jobs) = (Weak::clone(&running), Weak::clone(&running));
        let pages = vec![
            ("/metrics", Box::new(move || gather(&running, Running::report)) as Render),
            ("/metrics/users", Box::new(move || gather(&for_users, Running::report_users))),
            ("/metrics/jobs", Box::new(move || gather(&for_jobs, Running::report_jobs))),
        ];
        Server::start(listen, pages)?;
        Ok(())
    }

    /// Who caused what since the mount, and how long operations took.
    pub(super) fn activity(&self) -> Activity {
        let names: HashMap<FilesetId, String> = self.fs.fileset_names().into_iter().collect();
        let name = |fileset: FilesetId| {
            names.get(&fileset).cloned().unwrap_or_else(|| fileset.to_string())
        };
        let cause = |(cause, tally): (Cause, Tally)| CauseRow {
            fileset: name(cause.fileset),
            uid: cause.uid,
            is_job_known: cause.job != JobOf::Unknown,
            job: match cause.job {
                JobOf::Job(job) => Some(job.to_string()),
                JobOf::None | JobOf::Unknown => None,
            },
            work: Work {
                operations: tally.operations,
                nanoseconds: tally.nanoseconds,
                read_bytes: tally.read,
                written_bytes: tally.written,
            },
        };
        let causes = self.session.askers().read().into_iter().map(cause).collect();
        let mut operations = Vec::new();
        for (fileset, name) in &names {
            let Some(activity) = self.session.activities().find(*fileset) else { continue };
            for ((_, text), latency) in OPERATIONS.iter().zip(activity.latencies()) {
                let counts = latency.read().into_iter().enumerate();
                let buckets: Vec<(usize, u64)> = counts.filter(|(_, count)| *count > 0).collect();
                if !buckets.is_empty() {
                    let nanoseconds = u64::try_from(latency.sum().as_nanos()).unwrap_or(u64::MAX);
                    let operation = label(text).to_owned();
                    operations.push(OperationRow {
                        fileset: name.clone(),
                        operation,
                        nanoseconds,
                        buckets,
                    });
                }
            }
        }
        Activity { causes, operations }
    }

    fn report_users(&self, page: &mut Page) {
        self.report_causes(
            page,
            By::User,
            [&USER_OPERATIONS, &USER_TIME, &USER_READ, &USER_WRITTEN],
        );
    }

    fn report_jobs(&self, page: &mut Page) {
        self.report_causes(page, By::Job, [&JOB_OPERATIONS, &JOB_TIME, &JOB_READ, &JOB_WRITTEN]);
    }

    fn report_causes(&self, page: &mut Page, by: By, metrics: [&'static Metric; 4]) {
        let [operations, time, read, written] = metrics;
        let mut users = Users::default();
        for (whose, work) in
            attribution::grouped(&self.activity(), &Activity::default(), by, &mut users)
        {
            let labels: Vec<&str> = match by {
                By::Job => vec![&whose.job, &whose.user],
                By::User | By::Fileset | By::All => vec![&whose.user],
            };
            page.count(operations, &labels, work.operations);
            page.set(time, &labels, work.seconds());
            page.count(read, &labels, work.read_bytes);
            page.count(written, &labels, work.written_bytes);
        }
    }

    fn report(&self, page: &mut Page) {
        own::gather(page, "mount");
        self.session.report(&self.fs, page);
        self.fs.report(page);
        if let Some(member) = self.member.as_ref().and_then(Weak::upgrade) {
            let owned = self.fs.own_filesets().len();
            forebay_node::metrics::report(page, &member, owned, &self.fs.client_usage());
        }
    }
}

/// Fills a page, unless the file system was unmounted. It is not closed meanwhile.
fn gather(running: &Weak<Running>, fill: impl Fn(&Running, &mut Page)) -> Option<Page> {
    let running = running.upgrade()?;
    let ended = running.ended();
    if *ended {
        return None;
    }
    let mut page = Page::new();
    fill(&running, &mut page);
    Some(page)
}
