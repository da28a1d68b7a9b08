//! A headless Chromium that loads pages and acts on them; browser.py drives it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_e2e::{need, run};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(900);

/// Where pictures of pages stay, for people to look at.
pub fn pictures() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web-pages");
    std::fs::create_dir_all(&folder).expect("makes the folder");
    folder
}

/// Carries out a plan; what was seen.
pub fn drive(plan: &Value) -> Value {
    let profile = tempfile::tempdir().expect("makes a profile");
    let chromium = need::program("chromium").get_program().to_owned();
    let mut command = need::program("python3");
    command.args(["-c", include_str!("browser.py")]).arg(chromium).arg(profile.path());
    command.arg(pictures()).arg(plan.to_string());
    let told = run(&mut command, LIMIT).output();
    serde_json::from_str(&told).expect("the driver reports in JSON")
}
