//! Whether the memory that a job asks for is a limit, or only a number.

use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Containment, HostState, HostView};
use forebay_grid::spec::JobSpec;

/// Says on standard error if a job may run on hosts that do not enforce the memory it asks for.
pub fn warn_if_not_enforced(client: &mut Client, spec: &JobSpec) {
    let Some(memory) = spec.memory else { return };
    // Whoever cannot be asked says why when the job is submitted.
    let Ok(Answer::Hosts { hosts, .. }) = client.ask(&Ask::Hosts) else { return };
    let names = not_enforcing(&hosts);
    if !names.is_empty() {
        note!(
            "forebay: warning: --mem {memory} is reserved but not enforced on {names}: no memory controller is \
             available there (see `jobs in` of forebay hosts); a job may use more"
        );
    }
}

/// Names of the hosts that are up and enforce no limit of memory.
fn not_enforcing(hosts: &[HostView]) -> String {
    let loose = |host: &&HostView| {
        host.state == HostState::Up
            && matches!(host.containment, Some(Containment::Tree | Containment::Group))
    };
    let names: Vec<String> = hosts.iter().filter(loose).map(|host| host.name.to_string()).collect();
    names.join(", ")
}
