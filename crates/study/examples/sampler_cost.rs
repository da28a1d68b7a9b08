//! What watching costs: `cargo run --release -p forebay-study --example sampler_cost [JOBS] [SECONDS]`
//! prints the processor time that the sampler takes while it watches so many jobs, once a second and as
//! fast as it can.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::Clock as _;
use forebay_base::time::SystemClock;
use forebay_process::{Accounting, Child, end_all};
use forebay_study::record::DeviceScope;
use forebay_study::sampler::{INTERVAL_MIN, Sampler};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (jobs, seconds) = (next(80)?, next(10)?);
    let accounting = Accounting::find(Arc::new(SystemClock));
    let mut children = Vec::new();
    for _ in 0..jobs {
        let mut sleep = Command::new("sleep");
        sleep.arg("3600").stdin(Stdio::null());
        children.push(Child::spawn(sleep, &accounting)?);
    }
    for interval in [Duration::from_secs(1), INTERVAL_MIN] {
        let clock = SystemClock;
        let scope = DeviceScope::AllDisks;
        let sampler = Sampler::start(interval, &scope, clock.instant(), Arc::new(clock))?;
        for child in &children {
            sampler.job_started(child.id(), clock.instant());
        }
        let (before, start) = (processor_seconds()?, clock.instant());
        std::thread::sleep(Duration::from_secs(seconds));
        let used = processor_seconds()? - before;
        let passed = clock.instant().duration_since(start).as_secs_f64();
        let samples = sampler.stop().len() as f64;
        println!(
            "{jobs} jobs, every {interval:?}: {:.3} % of a core, {:.2} ms a sample",
            used / passed * 100.0,
            used / samples * 1000.0
        );
    }
    end_all(&mut children, Duration::from_secs(5))?;
    Ok(())
}

/// Processor seconds that this process has used.
fn processor_seconds() -> std::io::Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanoseconds += text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    }
    Ok(nanoseconds / 1e9)
}
