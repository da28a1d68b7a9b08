//! Metrics of the controller and the host of a node, over TLS.

use forebay_e2e::command::run;
use forebay_e2e::{need, wait_until};

use crate::fixture::{LIMIT, Nodes, SHORT, text};

#[test]
fn the_controller_and_the_host_of_a_node_serve_metrics_over_tls() {
    let grid = Nodes::start(1, 1, SHORT);
    grid.down(0).succeeds();
    let folder = grid.base().join("prom");
    std::fs::create_dir(&folder).expect("makes a folder");
    grid.cluster.forebay(0, &["cluster", "monitor", "prom", &text(&folder)]).succeeds();
    let address = grid.cluster.hosts().address(0);
    let metrics = format!("{address}:9464");
    grid.up(0, &["--controller", "--metrics", &metrics, "--metrics-tls"]).succeeds();
    let file = |name: &str| text(&folder.join(name));
    let page = |port: u16, options: &[&str]| {
        let mut curl = need::program("curl");
        curl.args(["--silent", "--max-time", "30", "--cacert", &file("ca.pem")]).args(options);
        curl.arg(format!("https://{address}:{port}/metrics"));
        run(&mut grid.cluster.hosts().command(0, &curl), LIMIT).stdout
    };
    let (certificate, key) = (file("prom.pem"), file("prom.key"));
    let shown = ["--cert", &*certificate, "--key", &*key];
    for (port, metric) in
        [(9464, "forebay_host_up{host=\"n0\"} 1"), (9466, "forebay_agent_connected{host=\"n0\"} 1")]
    {
        wait_until(metric, LIMIT, || page(port, &shown).contains(metric));
        assert!(page(port, &[]).contains("needs a certificate"), "{port}");
    }
    // The daemon of the node tells those of the grid which monitors were removed.
    grid.cluster.forebay(0, &["cluster", "monitor", "prom", "--remove"]).succeeds();
    for port in [9464, 9466] {
        wait_until("a removed monitor is refused", LIMIT, || page(port, &shown).is_empty());
        assert!(page(port, &[]).contains("needs a certificate"), "{port} answers others");
    }
}
