//! `forebay tasks`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use forebay_base::ByteSize;
use forebay_fs::tasks::{TaskState, TaskStatus};

use super::disk::change;
use crate::control::{self, Answer, Ask, TaskOrder};
use crate::home::Home;
use crate::output::{Table, bytes};

/// List and control tasks of a file system: disks that are being emptied, pools that are being evened out, policies and scrubs.
///
/// Tasks work in the background while the file system is mounted, one after another, within their speed. They never touch
/// files that programs have open. After a crash or an unmount they go on with the next mount.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay tasks list /srv/forebay
  forebay tasks pause /srv/forebay 3
  forebay tasks resume /srv/forebay 3
  forebay tasks speed /srv/forebay 3 20MiB
  forebay tasks cancel /srv/forebay 3")]
pub struct Tasks {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List tasks with progress and time left.
    #[command(after_help = "Examples:
  forebay tasks list /srv/forebay
  forebay tasks list /srv/forebay --json | jq '.[] | select(.state == \"running\")'")]
    List {
        /// Home folder of the file system.
        root: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pause a task.
    #[command(after_help = "Examples:\n  forebay tasks pause /srv/forebay 3")]
    Pause(One),
    /// Resume a task that was paused.
    #[command(after_help = "Examples:\n  forebay tasks resume /srv/forebay 3")]
    Resume(One),
    /// Cancel a task. What it has done stays; a disk that was being emptied takes new files again.
    #[command(after_help = "Examples:\n  forebay tasks cancel /srv/forebay 3")]
    Cancel(One),
    /// Set how many bytes per second a task may copy.
    #[command(after_help = "Examples:
  forebay tasks speed /srv/forebay 3 20MiB
  forebay tasks speed /srv/forebay 3 0        no bound")]
    Speed {
        #[command(flatten)]
        one: One,
        /// Bytes per second, such as 20MiB; 0 for no bound. The setting task_speed is the default of all tasks.
        speed: ByteSize,
    },
}

/// A task of a file system.
#[derive(clap::Args)]
struct One {
    /// Home folder of the file system.
    root: PathBuf,
    /// Number of the task.
    task: u64,
}

impl Tasks {
    pub fn run(self) -> Result<ExitCode> {
        match self.action {
            Action::List { root, json } => list(&root, json)?,
            Action::Pause(one) => order(&one, TaskOrder::Pause)?,
            Action::Resume(one) => order(&one, TaskOrder::Resume)?,
            Action::Cancel(one) => order(&one, TaskOrder::Cancel)?,
            Action::Speed { one, speed } => {
                order(&one, TaskOrder::Speed { bytes_per_second: speed.0 })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn order(one: &One, order: TaskOrder) -> Result<()> {
    let ask = Ask::OrderTask { task: one.task, order };
    change(&one.root, &ask, |fs| Ok(order.give(fs, one.task)?))
}

fn list(root: &Path, json: bool) -> Result<()> {
    let home = Home::at(root)?;
    let tasks = if home.try_lock()?.is_none() {
        match control::ask(home.root(), &Ask::Tasks)? {
            Answer::Tasks { tasks } => tasks,
            _ => bail!("the daemon answered without tasks; does it run another version?"),
        }
    } else {
        let open = home.open()?;
        forebay_fs::offline::tasks(&open.stores)?
    };
    if json {
        return crate::output::put_json(&tasks);
    }
    let mut table =
        Table::new(&["ID", "TASK", "STATE", "DONE", "FILES", "COPIED", "SPEED", "LEFT"]);
    for task in &tasks {
        table.row(cells(task));
    }
    out!("{}", table.render());
    for task in &tasks {
        if let Some(note) = &task.note {
            outln!("  task {} waits: {note}", task.id);
        }
    }
    Ok(())
}

/// A task in a line of its own.
pub fn line(task: &TaskStatus) -> String {
    let cells = cells(task);
    let note = task.note.as_ref().map_or_else(String::new, |note| format!("; waits: {note}"));
    format!(
        "task {}: {}, {}, {} done, {} files, {} copied, {} left{note}",
        cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], cells[7]
    )
}

fn cells(task: &TaskStatus) -> Vec<String> {
    let state = match task.state {
        TaskState::Running => "running",
        TaskState::Paused => "paused",
        TaskState::Done => "done",
        TaskState::Cancelled => "cancelled",
    };
    let done = match (task.state, task.files_left) {
        (TaskState::Done, _) => "100 %".to_owned(),
        (_, Some(left)) => {
            let all = u128::from(task.progress.files) + u128::from(left);
            format!("{} %", u128::from(task.progress.files) * 100 / all.max(1))
        }
        (_, None) => "-".to_owned(),
    };
    let left = task.seconds_left.filter(|_| !task.state.has_ended());
    let speed = if task.speed == 0 { "any".to_owned() } else { format!("{}/s", bytes(task.speed)) };
    vec![
        task.id.to_string(),
        task.title.clone(),
        state.to_owned(),
        done,
        task.progress.files.to_string(),
        bytes(task.progress.bytes),
        speed,
        left.map_or_else(|| "-".to_owned(), time),
    ]
}

/// A time in words.
fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
