//! sstat: what running jobs have used up to now.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use forebay_grid::vocabulary::Moment;

use super::super::row::{Row, client, rows};
use super::super::words::{Given, Grammar, Opt, Style, Takes, Until, harmless, read};
use super::choice::targets;
use super::report::{Column, Layout};
use super::{field, now, report};

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("allsteps", 'a', Nothing),
    read("delimiter", ' ', Value),
    read("fields", ' ', Value),
    read("format", 'o', Value),
    read("helpformat", 'e', Nothing),
    read("jobs", 'j', Value),
    harmless("noconvert", ' ', Nothing),
    read("noheader", 'n', Nothing),
    read("parsable", 'p', Nothing),
    read("parsable2", 'P', Nothing),
    read("pidformat", 'i', Nothing),
    harmless("verbose", 'v', Nothing),
    read("version", 'V', Nothing),
];

const GRAMMAR: Grammar =
    Grammar { command: "sstat", style: Style::Gnu, until: Until::End, tables: &[OPTIONS] };

const FORMAT: &str = "jobid,maxvmsize,maxvmsizenode,maxvmsizetask,avevmsize,maxrss,maxrssnode,maxrsstask,averss,maxpages,\
                      maxpagesnode,maxpagestask,avepages,mincpu,mincpunode,mincputask,avecpu,ntasks,avecpufreq,\
                      reqcpufreqmin,reqcpufreqmax,reqcpufreqgov,consumedenergy,maxdiskread,maxdiskreadnode,\
                      maxdiskreadtask,avediskread,maxdiskwrite,maxdiskwritenode,maxdiskwritetask,avediskwrite";

/// What `-i` shows.
const PIDS: &str = "jobid,nodelist,pids";

/// The fields with their headings and widths, as Slurm has them. What is not measured here is empty.
const FIELDS: &[(&str, &str, i32)] = &[
    ("avecpu", "AveCPU", 10),
    ("avecpufreq", "AveCPUFreq", 10),
    ("avediskread", "AveDiskRead", 14),
    ("avediskwrite", "AveDiskWrite", 14),
    ("avepages", "AvePages", 10),
    ("averss", "AveRSS", 10),
    ("avevmsize", "AveVMSize", 10),
    ("consumedenergy", "ConsumedEnergy", 14),
    ("consumedenergyraw", "ConsumedEnergyRaw", 17),
    ("jobid", "JobID", -12),
    ("maxdiskread", "MaxDiskRead", 12),
    ("maxdiskreadnode", "MaxDiskReadNode", 15),
    ("maxdiskreadtask", "MaxDiskReadTask", 15),
    ("maxdiskwrite", "MaxDiskWrite", 12),
    ("maxdiskwritenode", "MaxDiskWriteNode", 16),
    ("maxdiskwritetask", "MaxDiskWriteTask", 16),
    ("maxpages", "MaxPages", 8),
    ("maxpagesnode", "MaxPagesNode", 12),
    ("maxpagestask", "MaxPagesTask", 14),
    ("maxrss", "MaxRSS", 10),
    ("maxrssnode", "MaxRSSNode", 10),
    ("maxrsstask", "MaxRSSTask", 10),
    ("maxvmsize", "MaxVMSize", 10),
    ("maxvmsizenode", "MaxVMSizeNode", 14),
    ("maxvmsizetask", "MaxVMSizeTask", 14),
    ("mincpu", "MinCPU", 10),
    ("mincpunode", "MinCPUNode", 10),
    ("mincputask", "MinCPUTask", 10),
    ("nodelist", "Nodelist", 20),
    ("ntasks", "NTasks", 8),
    ("pids", "Pids", 20),
    ("reqcpufreqgov", "ReqCPUFreqGov", 13),
    ("reqcpufreqmax", "ReqCPUFreqMax", 13),
    ("reqcpufreqmin", "ReqCPUFreqMin", 13),
];

fn columns(format: &str) -> Result<Vec<Column>> {
    report::columns(format, str::to_ascii_lowercase, |plain| {
        let known = FIELDS.iter().find(|(known, ..)| *known == plain);
        known.map(|(_, heading, usual)| (*heading, *usual))
    })
}

/// A field of the batch step of a job that runs, which is all of its processes.
fn cell(row: &Row, name: &str, now: Moment) -> String {
    let of_job = |name| field::value(row, name, now).unwrap_or_default();
    let host = || of_job("nodelist");
    match name {
        "jobid" => format!("{}.batch", of_job("jobid")),
        "maxrssnode" | "maxpagesnode" | "mincpunode" | "maxdiskreadnode" | "maxdiskwritenode"
        | "nodelist" => host(),
        "maxrsstask" | "maxpagestask" | "mincputask" | "maxdiskreadtask" | "maxdiskwritetask" => {
            "0".to_owned()
        }
        "avepages" => of_job("maxpages"),
        name => of_job(name),
    }
}

/// The columns that options choose.
fn format(given: &Given) -> &str {
    let usual = if given.has("pidformat") { PIDS } else { FORMAT };
    given.value("format").or(given.value("fields")).unwrap_or(usual)
}

/// Runs it; the exit code is 1 if a job is not known.
pub fn run(arguments: &[String]) -> Result<ExitCode> {
    let given = GRAMMAR.read_command(arguments)?;
    if given.has("helpformat") {
        let names: Vec<&str> = FIELDS.iter().map(|(_, heading, _)| *heading).collect();
        outln!("{}", names.join("\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let columns = columns(format(&given))?;
    let layout = Layout::of(&given);
    let mut ids = given.list("jobs");
    ids.extend(given.words.iter().flat_map(|word| word.split(',')));
    ensure!(!ids.is_empty(), "You didn't give me any jobs to stat.");
    let mut client = client()?;
    let mut text = if given.has("noheader") { String::new() } else { layout.headings(&columns) };
    let mut code = ExitCode::SUCCESS;
    let now = now();
    for id in ids {
        let targets = targets(&[id], &mut client)?.unwrap_or_default();
        let found = rows(&mut client, Some(&targets[..]), false)?;
        let running: Vec<&Row> = found.iter().filter(|row| row.view.started.is_some()).collect();
        if running.is_empty() {
            note!("sstat: error: no steps running for job {id}");
            code = ExitCode::from(1);
        }
        for row in running {
            let cells: Vec<String> =
                columns.iter().map(|column| cell(row, &column.name, now)).collect();
            text += &layout.line(&columns, &cells);
        }
    }
    crate::output::put(super::plain_output(&text).as_bytes())?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_field_is_known() {
        assert_eq!(columns(FORMAT).unwrap().len(), 31);
        assert_eq!(columns(PIDS).unwrap().len(), 3);
        assert!(columns("MaxRSS,Nonsense").is_err());
    }
}
