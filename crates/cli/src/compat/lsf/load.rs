//! lsload and lshosts: how loaded hosts are, and what they have.

use std::process::ExitCode;

use anyhow::{Result, bail};
use forebay_engine::protocol::{Answer, Ask, HostState, HostView};
use forebay_grid::config::Load;

use super::super::row::client;
use super::super::words::{Grammar, Opt, Style, Takes, Until, harmless, ignored};
use super::NOTHING;

use Takes::{Nothing, Value};

const OPTIONS: &[Opt] = &[
    harmless("l", ' ', Nothing),
    harmless("w", ' ', Nothing),
    harmless("E", ' ', Nothing),
    harmless("N", ' ', Nothing),
    ignored("I", ' ', Value),
    ignored("R", ' ', Value),
];

/// The hosts that are named, or all.
fn hosts(command: &'static str, arguments: &[String]) -> Result<Vec<HostView>> {
    let grammar = Grammar { command, style: Style::Lsf, until: Until::End, tables: &[OPTIONS] };
    let given = grammar.read(arguments)?;
    let Answer::Hosts { hosts, .. } = client()?.ask(&Ask::Hosts)? else {
        bail!("the controller is a different version");
    };
    if given.words.is_empty() {
        return Ok(hosts);
    }
    let mut named = Vec::new();
    for word in &given.words {
        match hosts.iter().find(|host| host.name.as_str() == word) {
            Some(host) => named.push(host.clone()),
            None => bail!("{word}: Bad host name, host name not found"),
        }
    }
    Ok(named)
}

/// A number of MiB as LSF shows it.
fn size(mib: f64) -> String {
    match mib {
        mib if mib >= 1024.0 * 1024.0 => format!("{:.1}T", mib / (1024.0 * 1024.0)),
        mib if mib >= 10_000.0 => format!("{:.1}G", mib / 1024.0),
        mib => format!("{mib:.0}M"),
    }
}

/// The indices of load as lsload shows them; none if they are not known.
fn measured(host: &HostView) -> Option<String> {
    let load = host.load.filter(|_| host.state == HostState::Up)?;
    let Load { r15s, r1m, r15m, ut, pg, tmp, swp, mem, .. } = load;
    // What its agent measures is for each slot, LSF's for the whole host.
    let [r15s, r1m, r15m] = [r15s, r1m, r15m].map(|each| each * f64::from(host.slots.max(1)));
    Some(format!(
        "{r15s:>5.1} {r1m:>5.1} {r15m:>5.1} {:>4.0}% {pg:>5.1} {NOTHING:>3} {NOTHING:>5} {:>5} {:>5} {:>5}",
        ut * 100.0,
        size(tmp),
        size(swp),
        size(mem)
    ))
}

/// The same as bhosts shows them, with the bytes of devices.
pub fn indices(host: &HostView) -> String {
    let Some(load) = host.load.filter(|_| host.state == HostState::Up) else {
        return [NOTHING; 11].map(|none| format!("{none:>5}")).join(" ");
    };
    let [r15s, r1m, r15m] =
        [load.r15s, load.r1m, load.r15m].map(|each| each * f64::from(host.slots.max(1)));
    format!(
        "{r15s:>6.1} {r1m:>5.1} {r15m:>5.1} {:>4.0}% {:>5.1} {:>5.0} {NOTHING:>4} {NOTHING:>5} {:>5} {:>5} {:>5}",
        load.ut * 100.0,
        load.pg,
        load.io,
        size(load.tmp),
        size(load.swp),
        size(load.mem)
    )
}

fn load_line(host: &HostView) -> String {
    let head = |status: &str| format!("{:<15} {status:>6}", host.name);
    match measured(host) {
        Some(load) => format!("{} {load}\n", head("ok")),
        None => head("unavail") + "\n",
    }
}

/// Runs lsload.
pub fn lsload(arguments: &[String]) -> Result<ExitCode> {
    let hosts = hosts("lsload", arguments)?;
    let mut text = String::from(
        "HOST_NAME       status  r15s   r1m  r15m   ut    pg  ls    it   tmp   swp   mem\n",
    );
    hosts.iter().for_each(|host| text += &load_line(host));
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Runs lshosts.
pub fn lshosts(arguments: &[String]) -> Result<ExitCode> {
    let hosts = hosts("lshosts", arguments)?;
    let mut text =
        String::from("HOST_NAME      type    model  cpuf ncpus maxmem maxswp server RESOURCES\n");
    for host in hosts {
        let memory = host.memory_bytes.map(|bytes| size(bytes as f64 / f64::from(1 << 20)));
        text += &format!(
            "{:<14} LINUX   {NOTHING:<6} {:>4.1} {:>5} {:>6} {NOTHING:>6} {:>6} ({})\n",
            host.name,
            1.0,
            host.slots,
            memory.as_deref().unwrap_or(NOTHING),
            "Yes",
            host.features.join(" ")
        );
    }
    out!("{text}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (mib, shown) in
            [(0.4, "0M"), (512.0, "512M"), (9_999.0, "9999M"), (20_480.0, "20.0G"), (3e6, "2.9T")]
        {
            assert_eq!(size(mib), shown);
        }
    }
}
