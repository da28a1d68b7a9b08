//! `forebay reservation`: slots of hosts that are set aside for some users for a time.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask};
use forebay_grid::advance::AdvanceReservation;
use forebay_grid::parse::period::Period;
use forebay_grid::vocabulary::{HostName, Moment, ReservationName, UserName};

use super::{Listing, Which, clock, no_sense, time_of};
use crate::output::Table;

/// Reserve slots of hosts in advance for some users.
///
/// From its start to its end only jobs of its users that name the reservation (--reservation) start on the slots that it
/// has. Before its start, other jobs start there only if their time limit ends by then; jobs that run
/// already are left alone. A job in a reservation may run until the end of the reservation.
///
/// Admins of the grid create and delete reservations; everybody may list them.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay reservation create course --users ann,ben --hosts n1,n2 --start 09:00 --duration '8 h'
  forebay reservation create close --users ann --hosts gridn1 --slots 4 --end 18:00
  forebay submit --reservation course -- ./exercise
  forebay reservation list
  forebay reservation delete course")]
pub struct Reservation {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Create(Create),
    List(List),
    Delete(Delete),
}

/// Create a reservation.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  forebay reservation create course --users ann,ben --hosts n1 --start 09:00 --end 17:00
  forebay reservation create close --users ann --hosts gridn1 --slots 4 --duration '2 h'")]
struct Create {
    #[command(flatten)]
    which: Which,
    /// Name of the reservation, which jobs give.
    #[arg(value_parser = |text: &str| text.parse::<ReservationName>())]
    name: ReservationName,
    /// Users whose jobs may use it, separated by commas.
    #[arg(long, required = true, value_delimiter = ',', value_parser = |text: &str| text.parse::<UserName>())]
    users: Vec<UserName>,
    /// Hosts of which it has slots, separated by commas.
    #[arg(short = 'm', long, required = true, value_delimiter = ',', value_parser = |text: &str| text.parse::<HostName>())]
    hosts: Vec<HostName>,
    /// Number of slots of each host [default: all of them].
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    slots: Option<u32>,
    /// When it starts: 18:00 (the next time it is that late), 2027-01-31T18:00, or '+2 h' [default: now].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = clock::read)]
    start: Option<Moment>,
    /// When it ends; written as for --start.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, required_unless_present = "duration", value_parser = clock::read)]
    end: Option<Moment>,
    /// How long it lasts from its start on, such as '8 h'.
    #[arg(long, value_name = "TIME", conflicts_with = "end", value_parser = |text: &str| text.parse::<Period>())]
    duration: Option<Period>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// List the reservations that are not over.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay reservation list\n  forebay reservation list --json")]
struct List {
    #[command(flatten)]
    listing: Listing,
}

/// Delete a reservation: its jobs that run continue, those that wait for it keep waiting until they are modified.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay reservation delete course")]
struct Delete {
    #[command(flatten)]
    which: Which,
    /// Name of the reservation.
    #[arg(value_parser = |text: &str| text.parse::<ReservationName>())]
    name: ReservationName,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Reservation {
    pub fn run(self) -> Result<ExitCode> {
        match self.verb {
            Verb::Create(create) => create.run(),
            Verb::List(list) => list.run(),
            Verb::Delete(delete) => delete.run(),
        }
    }
}

/// Creates a reservation.
///
/// # Errors
/// If it is refused.
pub fn create(client: &mut Client, reservation: AdvanceReservation) -> Result<()> {
    match client.ask(&Ask::Reserve { reservation: Box::new(reservation) })? {
        Answer::Obeyed { .. } => Ok(()),
        answer => Err(no_sense(&answer)),
    }
}

/// Deletes a reservation.
///
/// # Errors
/// If there is none, or the user may not.
pub fn delete(client: &mut Client, name: ReservationName) -> Result<()> {
    match client.ask(&Ask::Unreserve { name })? {
        Answer::Obeyed { .. } => Ok(()),
        answer => Err(no_sense(&answer)),
    }
}

/// All reservations that are not over.
///
/// # Errors
/// If the controller is a different version.
pub fn all(answer: Answer) -> Result<Vec<AdvanceReservation>> {
    match answer {
        Answer::Reservations { reservations } => Ok(reservations),
        answer => Err(no_sense(&answer)),
    }
}

/// The end of what begins at `start`, as one of two options says it.
///
/// # Errors
/// If neither does.
pub fn end_of(start: Moment, end: Option<Moment>, lasts: Option<Period>) -> Result<Moment> {
    match (end, lasts) {
        (Some(end), _) => Ok(end),
        (None, Some(lasts)) => Ok(start.after(lasts.as_ms())),
        (None, None) => bail!("the end of the reservation is missing"),
    }
}

impl Create {
    fn run(self) -> Result<ExitCode> {
        let start = self.start.unwrap_or_else(clock::now);
        let reservation = AdvanceReservation {
            name: self.name,
            users: self.users,
            hosts: self.hosts,
            slots: self.slots,
            start,
            end: end_of(start, self.end, self.duration)?,
        };
        create(&mut self.which.client()?, reservation.clone())?;
        if self.json { super::print_json(&reservation) } else { Ok(ExitCode::SUCCESS) }
    }
}

impl List {
    fn run(self) -> Result<ExitCode> {
        self.listing.print(&Ask::Reservations, all, |reservations| {
            let mut table = Table::new(&["reservation", "users", "hosts", "slots", "start", "end"]);
            for of in reservations {
                table.row(vec![
                    of.name.to_string(),
                    list(&of.users),
                    list(&of.hosts),
                    of.slots.map_or_else(|| "all".to_owned(), |slots| slots.to_string()),
                    time_of(of.start),
                    time_of(of.end),
                ]);
            }
            table
        })
    }
}

/// Names with commas.
pub fn list(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

impl Delete {
    fn run(self) -> Result<ExitCode> {
        delete(&mut self.which.client()?, self.name.clone())?;
        if self.json {
            return super::print_json(&serde_json::json!({ "reservation": self.name }));
        }
        Ok(ExitCode::SUCCESS)
    }
}
