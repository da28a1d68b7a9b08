//! sreport: what users and accounts have used over whole days, from the grid's own accounting.
//!
//! `sreport_amounts.rs` has the period of a report and how amounts are printed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use forebay_engine::protocol::{Answer, Ask, Refusal, UsageKey, UsageQuery};

use super::super::row::{client, me};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read, refused};
use super::report::{Column, Layout, columns};
use super::sreport_amounts::{Amounts, Period};
use super::{now, units};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("all_clusters", 'a', Nothing),
    harmless("cluster", 'M', Value),
    refused("federation", ' ', Nothing, "a grid is not part of a federation"),
    harmless("local", ' ', Nothing),
    read("noheader", 'n', Nothing),
    read("parsable", 'p', Nothing),
    read("parsable2", 'P', Nothing),
    harmless("quiet", 'Q', Nothing),
    read("time", 't', Value),
    read("tres", 'T', Value),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "sreport", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

/// The account of jobs without a project.
const NO_PROJECT: &str = "default";

/// How many users a list of the top ones has.
const TOP: usize = 10;

/// A report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Utilization,
    UsersOfAccounts,
    AccountsOfUsers,
    Top,
}

const REPORTS: [(&str, &str, Report); 5] = [
    ("cluster", "utilization", Report::Utilization),
    ("cluster", "accountutilizationbyuser", Report::UsersOfAccounts),
    ("cluster", "userutilizationbyaccount", Report::AccountsOfUsers),
    ("user", "topusage", Report::Top),
    ("user", "top", Report::Top),
];

/// Reports that need what a grid does not record.
const REFUSED: [(&str, &str, &str); 7] = [
    (
        "cluster",
        "accountutilizationbyqos",
        "jobs are not accounted by QOS; see forebay usage --by queue",
    ),
    ("cluster", "userutilizationbywckey", "jobs have no wckeys"),
    ("cluster", "wckeyutilizationbyuser", "jobs have no wckeys"),
    ("job", "sizesbyaccount", "the sizes of jobs are not recorded"),
    ("job", "sizesbyaccountandwckey", "jobs have no wckeys"),
    ("job", "sizesbywckey", "jobs have no wckeys"),
    ("reservation", "utilization", "what is used within reservations is not recorded"),
];

/// Fields with their headings and widths; the width of amounts grows with them.
const FIELDS: [(&str, &str, i32); 11] = [
    ("account", "Account", 15),
    ("allocated", "Allocated", 12),
    ("cluster", "Cluster", 9),
    ("down", "Down", 10),
    ("energy", "Energy", 8),
    ("idle", "Idle", 12),
    ("login", "Login", 9),
    ("proper", "Proper Name", 15),
    ("planned", "Planned", 9),
    ("planneddown", "PLND Down", 10),
    ("reported", "Reported", 12),
];

impl Report {
    /// The one that two words name, which may be shortened.
    fn of(words: &[String]) -> Result<Report> {
        let [kind, name, ..] = words else {
            bail!(
                "name a report, such as: sreport cluster utilization start=2026-11-01 end=2026-12-01, \
                 sreport cluster AccountUtilizationByUser, sreport user top"
            );
        };
        let (kind, name) = (kind.to_ascii_lowercase(), name.to_ascii_lowercase());
        let is_it = |of: &str, known: &str| of.starts_with(&kind) && known.starts_with(&name);
        if let Some((.., report)) = REPORTS.iter().find(|(of, known, _)| is_it(of, known)) {
            return Ok(*report);
        }
        match REFUSED.iter().find(|(of, known, _)| is_it(of, known)) {
            Some((.., reason)) => bail!("{kind} {name} is not supported: {reason}"),
            None => bail!("Not valid report {kind} {name}"),
        }
    }

    fn title(self, top: usize) -> String {
        match self {
            Report::Utilization => "Cluster Utilization".to_owned(),
            Report::UsersOfAccounts => "Cluster/Account/User Utilization".to_owned(),
            Report::AccountsOfUsers => "Cluster/User/Account Utilization".to_owned(),
            Report::Top => format!("Top {top} Users"),
        }
    }

    fn format(self) -> &'static str {
        match self {
            Report::Utilization => "cluster,allocated,down,planneddown,idle,planned,reported",
            Report::UsersOfAccounts => "cluster,account,login,proper,used,energy",
            Report::AccountsOfUsers => "cluster,login,proper,account,used,energy",
            Report::Top => "cluster,login,proper,account,used,energy",
        }
    }
}

/// What stands behind the name of a report.
#[derive(Debug, Default, PartialEq)]
struct Conditions {
    start: Option<String>,
    end: Option<String>,
    format: Option<String>,
    users: Vec<String>,
    accounts: Vec<String>,
    top: Option<usize>,
    /// Whether a user has one line for all accounts.
    grouped: bool,
}

impl Conditions {
    fn read(report: Report, words: &[String]) -> Result<Conditions> {
        let mut read = Conditions::default();
        let list = |value: &str| {
            value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((&word[..], ""));
            let (key, is_bare) = (key.to_ascii_lowercase(), !word.contains('='));
            let is = |name: &str, least: usize| key.len() >= least && name.starts_with(&key);
            if is_bare {
                if report == Report::Top && is("group", 1) {
                    read.grouped = true;
                } else if !is("tree", 4) && !is("all_clusters", 3) {
                    bail!("Unknown condition: {word}: write start=, end= or format=");
                }
            } else if is("start", 1) {
                read.start = Some(value.to_owned());
            } else if is("end", 1) {
                read.end = Some(value.to_owned());
            } else if is("format", 1) {
                read.format = Some(value.to_owned());
            } else if report != Report::Utilization && is("users", 1) {
                read.users.extend(list(value));
            } else if report != Report::Utilization && (is("accounts", 2) || key == "acct") {
                read.accounts.extend(list(value));
            } else if report == Report::Top && is("topcount", 1) {
                let count = value.parse().with_context(|| format!("{word}: expected a number"))?;
                read.top = Some(count);
            } else if !is("clusters", 1) {
                bail!("Unknown condition: {word}");
            }
        }
        Ok(read)
    }
}

/// What was used, in slots times seconds: by one user for one account, or, in a line of a report, by all of those that it does not name.
#[derive(Clone, Debug, PartialEq)]
struct Share {
    user: String,
    account: String,
    seconds: f64,
}

fn line(account: &str, user: &str, seconds: f64) -> Share {
    Share { account: account.to_owned(), user: user.to_owned(), seconds }
}

/// The lines of a report of shares.
fn lines(report: Report, shares: &[Share], conditions: &Conditions) -> Vec<Share> {
    let takes = |list: &[String], name: &str| list.is_empty() || list.iter().any(|one| one == name);
    let shares = shares.iter().filter(|share| {
        takes(&conditions.users, &share.user) && takes(&conditions.accounts, &share.account)
    });
    let shares: Vec<&Share> = shares.collect();
    let sum = |of: &dyn Fn(&Share) -> bool| -> f64 {
        shares.iter().filter(|share| of(share)).map(|share| share.seconds).sum()
    };
    let all = || shares.iter().copied().cloned();
    let mut found = Vec::new();
    match report {
        Report::Utilization => {}
        // Each account with its sum, and then its users.
        Report::UsersOfAccounts => {
            let accounts: BTreeSet<&str> = shares.iter().map(|share| &share.account[..]).collect();
            if !accounts.is_empty() {
                found.push(line("root", "", sum(&|_| true)));
            }
            for account in accounts {
                found.push(line(account, "", sum(&|share| share.account == account)));
                let mut own: Vec<Share> = all().filter(|line| line.account == account).collect();
                own.sort_by(|a, b| a.user.cmp(&b.user));
                found.extend(own);
            }
        }
        Report::AccountsOfUsers => {
            found = all().collect();
            found.sort_by(|a, b| (&a.user, &a.account).cmp(&(&b.user, &b.account)));
        }
        Report::Top => {
            found = all().collect();
            if conditions.grouped {
                let mut of_user: BTreeMap<String, Share> = BTreeMap::new();
                for next in found.drain(..) {
                    let entry = of_user
                        .entry(next.user.clone())
                        .or_insert_with(|| line("", &next.user, 0.0));
                    entry.seconds += next.seconds;
                    let joint = if entry.account.is_empty() { "" } else { ", " };
                    entry.account += &format!("{joint}{}", next.account);
                }
                found = of_user.into_values().collect();
            }
            found.sort_by(|a, b| b.seconds.total_cmp(&a.seconds).then_with(|| a.user.cmp(&b.user)));
            found.truncate(conditions.top.unwrap_or(TOP));
        }
    }
    found
}

/// The columns of a report. Those of amounts are as wide as the largest one needs.
fn columns_of(format: &str, amounts: Amounts, most: f64) -> Result<Vec<Column>> {
    let full = |name: &str| {
        let lower = name.to_ascii_lowercase();
        let all = FIELDS.iter().map(|(name, ..)| *name).chain([
            "used",
            "proper name",
            "reserved",
            "plnddown",
        ]);
        let known: Vec<&str> = all.filter(|known| known.starts_with(&lower)).collect();
        // A name that is another one's beginning means itself.
        let known = known.iter().find(|known| **known == lower).or(known.first()).copied();
        match known {
            Some("proper name") => "proper".to_owned(),
            Some("reserved") => "planned".to_owned(),
            Some("plnddown") => "planneddown".to_owned(),
            Some(known) if !lower.is_empty() => known.to_owned(),
            Some(_) | None => lower,
        }
    };
    let known = |name: &str| {
        if name == "used" {
            return Some(("Used", amounts.width(most)));
        }
        let found = FIELDS.iter().find(|(known, ..)| *known == name);
        found.map(|(name, heading, width)| {
            let is_amount = ["allocated", "idle", "reported"].contains(name);
            let more = if is_amount && amounts.has_both() { 8 } else { 0 };
            (*heading, width + more)
        })
    };
    columns(format, full, known)
}

/// Runs sreport.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    for tres in given.list("tres") {
        ensure!(
            tres.eq_ignore_ascii_case("cpu"),
            "--tres={tres} is not supported: a grid accounts for slots (cpu) only; see forebay usage for more"
        );
    }
    let amounts = given.value("time").map_or(Ok(Amounts::Minutes), str::parse)?;
    let report = Report::of(&given.words)?;
    let conditions = Conditions::read(report, &given.words[2..])?;
    let period = Period::of(conditions.start.as_deref(), conditions.end.as_deref(), now())?;
    let mut client = client()?;
    let query = UsageQuery {
        by: match report {
            Report::Utilization => vec![UsageKey::User],
            Report::UsersOfAccounts | Report::AccountsOfUsers | Report::Top => {
                vec![UsageKey::User, UsageKey::Project]
            }
        },
        since: Some(period.first),
        until: Some(period.last),
    };
    let usage = client.ask(&Ask::Usage { query }).map_err(|error| {
        if error.is::<Refusal>() { error.context("give a shorter period") } else { error }
    })?;
    let (Answer::Usage { rows }, Answer::Hosts { hosts, .. }) = (usage, client.ask(&Ask::Hosts)?)
    else {
        bail!("the controller is a different version");
    };
    let shares: Vec<Share> = rows
        .iter()
        .map(|row| Share {
            user: row.user.as_ref().map(ToString::to_string).unwrap_or_default(),
            account: row
                .project
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| NO_PROJECT.to_owned()),
            seconds: row.slot_seconds,
        })
        .collect();
    let user = me();
    if user != "root" && shares.iter().all(|share| share.user == user) {
        note!("sreport: only your own jobs are counted, unless you are an admin of the grid");
    }
    let slots: u64 = hosts.iter().map(|host| u64::from(host.slots)).sum();
    let reported = slots as f64 * period.seconds() as f64;
    let text = print(report, &given, &conditions, (amounts, period), (&shares[..], reported))?;
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    report: Report,
    given: &Given,
    conditions: &Conditions,
    (amounts, period): (Amounts, Period),
    (shares, reported): (&[Share], f64),
) -> Result<String> {
    let lines = lines(report, shares, conditions);
    let most = lines.iter().map(|line| line.seconds).fold(0.0, f64::max);
    let format = conditions.format.as_deref().unwrap_or(report.format());
    let columns = columns_of(format, amounts, most)?;
    let layout = Layout::of(given);
    let mut text = String::new();
    if !given.has("noheader") {
        let rule = "-".repeat(80);
        let day = |at| units::moment(Some(at), "Unknown");
        let (begin, end) =
            (day(period.begin), day(forebay_grid::vocabulary::Moment(period.end.0 - 1000)));
        let seconds = match report {
            Report::Utilization => String::new(),
            _ => format!(" ({} secs)", period.seconds()),
        };
        let title = report.title(conditions.top.unwrap_or(TOP));
        text += &format!(
            "{rule}\n{title} {begin} - {end}{seconds}\nUsage reported in {}\n{rule}\n",
            amounts.words()
        );
        text += &layout.headings(&columns);
    }
    let amount = |seconds: f64| amounts.print(seconds, reported);
    if report == Report::Utilization {
        let allocated: f64 = shares.iter().map(|share| share.seconds).sum();
        let cell = |column: &Column| match &column.name[..] {
            "cluster" => super::CLUSTER.to_owned(),
            "allocated" => amount(allocated),
            "idle" => amount((reported - allocated).max(0.0)),
            "reported" => amount(reported),
            _ => String::new(),
        };
        return Ok(text + &layout.line(&columns, &columns.iter().map(cell).collect::<Vec<_>>()));
    }
    for line in &lines {
        let cell = |column: &Column| match &column.name[..] {
            "cluster" => super::CLUSTER.to_owned(),
            "account" => line.account.clone(),
            "login" => line.user.clone(),
            "proper" => {
                forebay_process::user::full_name_of(&line.user).ok().flatten().unwrap_or_default()
            }
            "used" => amount(line.seconds),
            _ => String::new(),
        };
        text += &layout.line(&columns, &columns.iter().map(cell).collect::<Vec<_>>());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn shares() -> Vec<Share> {
        vec![line("lab", "bob", 600.0), line("lab", "ann", 60.0), line("default", "ann", 1200.0)]
    }

    fn printed(line: &str) -> String {
        let given = GRAMMAR.read(&words(line)).unwrap();
        let report = Report::of(&given.words).unwrap();
        let conditions = Conditions::read(report, &given.words[2..]).unwrap();
        let amounts = given.value("time").map_or(Ok(Amounts::Minutes), str::parse).unwrap();
        let moment = |hours: u64| forebay_grid::vocabulary::Moment(hours * 3_600_000);
        let day = jiff::civil::date(2026, 11, 1);
        let period = Period { first: day, last: day, begin: moment(24), end: moment(48) };
        print(report, &given, &conditions, (amounts, period), (&shares()[..], 86_400.0)).unwrap()
    }

    #[test]
    fn accounts_have_their_sum_and_then_their_users() {
        assert_eq!(
            printed("-nP cluster AccountUtilizationByUser"),
            "forebay|root|||31|\nforebay|default|||20|\nforebay|default|ann||20|\n\
             forebay|lab|||11|\nforebay|lab|ann||1|\nforebay|lab|bob||10|\n"
        );
        let of_bob = printed("-nP cluster account users=bob format=login,used -t seconds");
        assert_eq!(of_bob, "|600\n|600\nbob|600\n");
        let of_account =
            printed("-n -P cluster acc accounts=lab format=account,login,used%5 -t percent");
        assert_eq!(of_account, "root||0.76%\nlab||0.76%\nlab|ann|0.07%\nlab|bob|0.69%\n");
    }

    #[test]
    fn the_top_users_come_first_and_may_have_one_line_for_all_accounts() {
        assert_eq!(
            printed("-nP user top topcount=2 format=l,ac,u"),
            "ann|default|20\nbob|lab|10\n"
        );
        assert_eq!(
            printed("-nP user top group format=l,ac,u"),
            "ann|lab, default|21\nbob|lab|10\n"
        );
    }

    #[test]
    fn a_report_has_slurms_headings() {
        let text = printed("cluster utilization -t hourper");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "Usage reported in CPU Hours/Percentage of Total");
        assert!(lines[1].starts_with("Cluster Utilization 1970-01-0"), "{text}");
        assert_eq!(lines[4].split_whitespace().next(), Some("Cluster"));
        assert!(lines[6].contains("1(2.15%)") && lines[6].contains("24(100.00%)"), "{text}");
        let top = printed("user topusage");
        assert!(top.contains("Top 10 Users") && top.contains("(86400 secs)"), "{top}");
        assert!(
            top.contains(" Cluster     Login     Proper Name         Account     Used   Energy \n"),
            "{top}"
        );
    }

    #[test]
    fn what_a_grid_does_not_record_is_refused_with_the_reason() {
        for (line, why) in [
            ("reservation utilization", "within reservations"),
            ("cluster UserUtilizationByWckey", "wckeys"),
            ("cluster nonsense", "Not valid"),
            ("cluster", "name a report"),
        ] {
            let error = Report::of(&words(line)).unwrap_err().to_string();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(Conditions::read(Report::Top, &words("topcount=x")).is_err());
        assert!(Conditions::read(Report::Utilization, &words("wckeys=x")).is_err());
        for report in [Report::Utilization, Report::Top] {
            let error = Conditions::read(report, &words("2026-11-01")).unwrap_err().to_string();
            assert_eq!(error, "Unknown condition: 2026-11-01: write start=, end= or format=");
        }
        assert!(columns_of("nonsense", Amounts::Hours, 0.0).is_err());
    }
}
