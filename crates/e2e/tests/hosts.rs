//! The fixture of several hosts keeps its promises: a test that cuts a network must be sure that it is cut.

use std::process::Command;
use std::time::Duration;

use forebay_e2e::{Hosts, need, run};

fn reaches(hosts: &Hosts, from: usize, to: usize) -> bool {
    // A connection to a port that nobody listens to is refused at once; one to a host that is not reached is not.
    let address = hosts.address(to);
    let mut program = need::program("bash");
    program.args(["-c", &format!("exec 3<>/dev/tcp/{address}/9")]);
    let mut limited: Command = need::program("timeout");
    limited.arg("2").arg(program.get_program()).args(program.get_args());
    let ended = run(&mut hosts.command(from, &limited), Duration::from_secs(10));
    ended.stderr.contains("refused")
}

#[test]
fn hosts_reach_each_other_until_they_are_cut() {
    let hosts = Hosts::make(3);
    assert!(reaches(&hosts, 0, 1) && reaches(&hosts, 1, 0) && reaches(&hosts, 2, 1));
    hosts.cut(0, 1);
    assert!(!reaches(&hosts, 0, 1) && reaches(&hosts, 2, 1));
    hosts.mend(0, 1);
    assert!(reaches(&hosts, 0, 1));
    hosts.unplug(1);
    assert!(!reaches(&hosts, 0, 1) && !reaches(&hosts, 1, 2) && reaches(&hosts, 0, 2));
    hosts.plug_in(1);
    assert!(reaches(&hosts, 0, 1));
}
