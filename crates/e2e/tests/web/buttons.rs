//! What the buttons of pages do: each is pressed as a browser does it, by sending its form.

use forebay_e2e::wait_until;
use serde_json::Value;

use crate::fixture::{LIMIT, Site};
use crate::pages::session;

/// A browser that is logged in.
struct Browser<'a> {
    site: &'a Site,
    cookie: String,
    token: String,
}

impl Browser<'_> {
    fn page(&self, path: &str) -> String {
        self.site.send("GET", path, &[("Cookie", &self.cookie)], "").body
    }

    /// Sends the form of a button that a page has.
    fn press(&self, page: &str, action: &str) {
        let shown = self.page(page);
        let form = format!("<form method=\"post\" action=\"{action}\">");
        let rest = shown.split_once(&form).unwrap_or_else(|| panic!("{action}: {shown}")).1;
        let key = rest.split_once("name=\"key\" value=\"").expect("a key").1;
        let body = format!("key={}", key.split('"').next().expect("an end"));
        let answer = self.site.send("POST", action, &[("Cookie", &self.cookie)], &body);
        assert_eq!((answer.status, answer.header("location")), (303, Some(page)), "{answer:?}");
    }

    fn api(&self, path: &str) -> Value {
        let authorization = format!("Bearer {}", self.token);
        self.site.send("GET", path, &[("Authorization", &authorization)], "").json()
    }

    fn wait_for(&self, path: &str, field: &str, wanted: &Value) {
        wait_until(&format!("{path}: {field} is {wanted}"), LIMIT, || {
            self.api(path).pointer(field) == Some(wanted)
        });
    }
}

#[test]
fn the_buttons_of_jobs_hosts_queues_and_flows_do_what_they_say() {
    let site = Site::start("");
    let (cookie, _) = session(&site);
    let browser = Browser { site: &site, cookie, token: site.token() };
    let job = site.forebay(&["submit", "--", "sleep", "600"]).output().trim().to_owned();
    let (page, shown) = (format!("/jobs/{job}"), format!("/api/v1/jobs/{job}"));
    let press = |verb: &str| browser.press(&page, &format!("{page}/{verb}"));
    let is = |state: &str| browser.wait_for(&shown, "/jobs/0/state", &state.into());
    is("running");
    press("hold");
    is("suspended");
    press("release");
    is("running");
    press("requeue");
    browser.wait_for(&shown, "/jobs/0/attempts", &2.into());
    is("running");
    press("kill");
    is("killed");
    assert!(!browser.page(&page).contains(&format!("{page}/kill")), "an ended job has no Kill");

    let host =
        browser.api("/api/v1/hosts")["hosts"][0]["name"].as_str().expect("a name").to_owned();
    for (verb, is_open) in [("close", false), ("open", true)] {
        browser.press("/hosts", &format!("/hosts/{host}/{verb}"));
        browser.wait_for("/api/v1/hosts", "/hosts/0/open", &is_open.into());
    }
    let queues = browser.api("/api/v1/queues");
    let queue = queues["queues"][0]["name"].as_str().expect("a name").to_owned();
    for (verb, field, value) in [
        ("close", "open", false),
        ("open", "open", true),
        ("inactivate", "active", false),
        ("activate", "active", true),
    ] {
        browser.press("/queues", &format!("/queues/{queue}/{verb}"));
        browser.wait_for("/api/v1/queues", &format!("/queues/0/{field}"), &value.into());
    }

    // A step that fails while a file is missing, then one that waits.
    let (file, ready) = (site.folder().join("flow.toml"), site.folder().join("ready"));
    let flow = format!(
        "[flow]\nname = \"two\"\n[[job]]\nname = \"first\"\ncommand = [\"test\", \"-e\", \"{}\"]\n\
         [[job]]\nname = \"second\"\nafter = \"done(first)\"\ncommand = [\"sleep\", \"600\"]\n",
        ready.display()
    );
    std::fs::write(&file, flow).expect("writes the flow");
    site.forebay(&["flow", "run", &file.display().to_string()]).succeeds();
    let (page, shown) = ("/flows/1", "/api/v1/flows/1");
    browser.wait_for(shown, "/state", &"failed".into());
    std::fs::write(&ready, "").expect("writes a file");
    browser.press(page, "/flows/1/rerun");
    browser.wait_for(shown, "/steps/1/state", &"running".into());
    browser.press(page, "/flows/1/kill");
    browser.wait_for(shown, "/state", &"killed".into());
}
