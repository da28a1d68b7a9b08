//! A headless Chromium that shows a page, and what it has to say about it.

use std::path::PathBuf;

use forebay_e2e::{need, run};

use crate::fixture::LIMIT;

/// What came of a page.
pub struct Shown {
    /// The document after its script ran.
    pub dom: String,
    /// What the page's script or the browser complained of.
    pub complaints: Vec<String>,
    /// The first element that makes the page wider than a phone's screen.
    pub too_wide: Option<String>,
    /// What is read out with the pointer in the middle of the first chart that can be read.
    pub read_out: Option<String>,
}

/// Asks the page, in a frame as wide as a phone, whether something sticks out; `document.title` tells.
const ASK: &str = r#"<script>
addEventListener("error", (event) => { document.documentElement.dataset.failed = event.message; });
addEventListener("load", () => {
  const width = document.documentElement.clientWidth;
  const wide = [...document.body.querySelectorAll("*")].find((element) =>
    !element.closest(".scroll, .unseen") && element.getBoundingClientRect().right > width + 1);
  if (document.documentElement.scrollWidth > width) {
    document.documentElement.dataset.wide = wide ? wide.outerHTML.slice(0, 200) : "?";
  }
  const drawing = document.querySelector(".plot > svg[data-unit]");
  if (drawing) {
    const area = drawing.getBoundingClientRect();
    const place = { clientX: area.left + area.width / 2, clientY: area.top + 5, bubbles: true };
    drawing.dispatchEvent(new PointerEvent("pointermove", place));
    document.documentElement.dataset.read = document.querySelector(".readout")?.innerText ?? "none";
  }
});
</script>"#;

/// Shows the page as wide as a phone. The page stays below the test's folder for people to look at.
///
/// # Panics
/// If Chromium is missing or does not show the page.
pub fn show(name: &str, page: &str) -> Shown {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench-page");
    std::fs::create_dir_all(&folder).expect("makes the folder");
    std::fs::write(folder.join(format!("{name}.html")), page).expect("writes the page");
    let asked = folder.join(format!("{name}.asked.html"));
    std::fs::write(&asked, page.replacen("<head>", &format!("<head>{ASK}"), 1)).expect("writes");
    let profile = tempfile::tempdir().expect("makes a profile");
    let mut command = need::program("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--window-size=390,844", "--enable-logging=stderr", "--v=0", "--dump-dom"])
        .arg("--virtual-time-budget=4000")
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", asked.display()));
    let ended = run(&mut command, LIMIT);
    let (told, dom) = (ended.stderr, ended.stdout);
    assert!(ended.status.success() && dom.contains("</html>"), "{name}: {told}");
    let mut complaints: Vec<String> =
        told.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect();
    complaints.extend(attribute(&dom, "data-failed"));
    Shown {
        too_wide: attribute(&dom, "data-wide"),
        read_out: attribute(&dom, "data-read"),
        complaints,
        dom,
    }
}

/// An attribute of the document's first element.
fn attribute(dom: &str, name: &str) -> Option<String> {
    let start = dom.find("<html")?;
    let tag = &dom[start..start + dom[start..].find("<head")?];
    let value = tag.split_once(&format!("{name}=\""))?.1;
    Some(value.split('"').next().unwrap_or(value).to_owned())
}
