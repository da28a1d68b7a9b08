//! Network interfaces between the hosts of a cluster.

use super::Check;
use crate::finding::{Fix, Verdict};
use crate::host::Host;

/// From this speed on large frames and buffers matter, Mbit/s.
const FAST_MBITS: u64 = 10_000;
/// What the studies set.
const LARGE_MTU: u64 = 9000;
/// Socket buffers that fill 10 Gbit/s over a path of 3 ms, bytes.
const BUFFER_BYTES: u64 = 4 << 20;

pub(super) const CHECKS: &[Check] = &[
    Check {
        code: "network/frame-size",
        title: "Size of network frames",
        why: "Frames of 9000 bytes need only a sixth of the interrupts and headers; the studies [1, 3, 4] set them. All hosts and \
              switches between must agree.",
        look: frames,
    },
    Check {
        code: "network/rings",
        title: "Receive ring",
        why: "Bursts of data overflow a short ring, and TCP then waits for the loss to be found. The studies [1, 3, 4] set 8192.",
        look: rings,
    },
    Check {
        code: "network/socket-buffers",
        title: "Limits of socket buffers",
        why: "A connection carries at most one buffer for each round trip.",
        look: buffers,
    },
    Check {
        code: "network/interrupts",
        title: "Interrupts spread over processors",
        why: "If one processor takes all interrupts of a network interface, it limits its rate; irqbalance spreads them.",
        look: interrupts,
    },
];

/// Speed of an interface, Mbit/s; 0 if it does not say, as virtual ones do.
fn speed(host: &Host, name: &str) -> u64 {
    host.number(&format!("sys/class/net/{name}/speed")).unwrap_or(0)
}

fn frames(host: &Host) -> Vec<Verdict> {
    let look = |name: String| {
        let mtu = host.number(&format!("sys/class/net/{name}/mtu"))?;
        let speed = speed(host, &name);
        Some(if speed >= FAST_MBITS && mtu < LARGE_MTU {
            Verdict::advice(
                format!("{name}: frames of {mtu} bytes at {speed} Mbit/s"),
                Fix::Command {
                    command: format!(
                        "ip link set dev {name} mtu {LARGE_MTU}   # and in the network's configuration, on all hosts and switches"
                    ),
                },
            )
        } else {
            Verdict::Fine(format!("{name}: frames of {mtu} bytes"))
        })
    };
    host.interfaces().into_iter().filter_map(look).collect()
}

fn rings(host: &Host) -> Vec<Verdict> {
    let look = |name: String| {
        let (now, most) = *host.told.rings.get(&name)?;
        let evidence = format!("{name}: {now} of at most {most}");
        Some(if speed(host, &name) >= FAST_MBITS && now < most.min(8192) {
            Verdict::advice(
                evidence,
                Fix::Command { command: format!("ethtool -G {name} rx {}", most.min(8192)) },
            )
        } else {
            Verdict::Fine(evidence)
        })
    };
    host.interfaces().into_iter().filter_map(look).collect()
}

fn buffers(host: &Host) -> Vec<Verdict> {
    let is_fast = host.interfaces().iter().any(|name| speed(host, name) >= FAST_MBITS);
    let look = |key: &str| {
        let now = host.number(&format!("proc/sys/net/core/{key}"))?;
        let evidence = format!("net.core.{key} = {now}");
        Some(if is_fast && now < BUFFER_BYTES {
            Verdict::advice(evidence, Fix::sysctl(&format!("net.core.{key}"), BUFFER_BYTES))
        } else {
            Verdict::Fine(evidence)
        })
    };
    ["rmem_max", "wmem_max"].into_iter().filter_map(look).collect()
}

fn interrupts(host: &Host) -> Vec<Verdict> {
    let interfaces = host.interfaces();
    let many = interfaces.iter().find(|name| {
        let queues = host.list(&format!("sys/class/net/{name}/queues"));
        queues.iter().filter(|queue| queue.starts_with("rx-")).count() > 1
    });
    let Some(name) = many else { return Vec::new() };
    let is_number = |entry: &String| entry.bytes().all(|byte| byte.is_ascii_digit());
    let runs = host
        .list("proc")
        .into_iter()
        .filter(is_number)
        .any(|pid| host.text(&format!("proc/{pid}/comm")).as_deref() == Some("irqbalance"));
    vec![if runs {
        Verdict::Fine("irqbalance runs".to_owned())
    } else {
        Verdict::advice(
            format!("{name} has several receive queues, but irqbalance is not running"),
            Fix::ByHand {
                advice: "install and start irqbalance, unless the driver spreads its interrupts by itself (see /proc/interrupts)"
                    .to_owned(),
            },
        )
    }]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn host(folder: &std::path::Path, speed: &str, mtu: &str) -> Host {
        for (file, text) in
            [("operstate", "up"), ("speed", speed), ("mtu", mtu), ("device/vendor", "x")]
        {
            let path = folder.join("sys/class/net/eth0").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut host = Host::below(folder);
        host.told.rings.insert("eth0".into(), (512, 4096));
        host
    }

    #[test]
    fn a_fast_interface_wants_large_frames_and_a_long_ring() {
        let folder = tempfile::tempdir().unwrap();
        let host = host(folder.path(), "25000", "1500");
        assert!(matches!(frames(&host)[..], [Verdict::Found { .. }]));
        assert!(
            matches!(&rings(&host)[..], [Verdict::Found { fix, .. }] if fix.line() == "ethtool -G eth0 rx 4096")
        );
    }

    #[test]
    fn a_slow_or_virtual_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for speed in ["1000", "-1"] {
            let host = host(folder.path(), speed, "1500");
            assert!(matches!(frames(&host)[..], [Verdict::Fine(_)]));
            assert!(matches!(rings(&host)[..], [Verdict::Fine(_)]));
        }
    }
}
