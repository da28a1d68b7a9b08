//! Pages in a real browser, and what nobody else can make a browser do.

use forebay_e2e::wait_until;
use serde_json::{Value, json};

use crate::browser::drive;
use crate::fixture::{LIMIT, Site};

fn login(site: &Site) -> String {
    site.forebay(&["web", "login"]).output().trim().to_owned()
}

/// The cookie of a browser that has used a login link, and the key of its forms.
pub fn session(site: &Site) -> (String, String) {
    let link = login(site);
    let path = link.strip_prefix(&site.url()).expect("the link leads to the server");
    let answer = site.send("GET", path, &[], "");
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").unwrap();
    for part in ["HttpOnly", "SameSite=Lax", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    assert_eq!(site.send("GET", path, &[], "").status, 403, "a link is good once");
    let page = site.send("GET", "/", &[("Cookie", &cookie)], "");
    let form = page.body.split_once("name=\"key\" value=\"").expect("a form").1;
    (cookie, form.split('"').next().unwrap().to_owned())
}

/// A job that reads and writes something all the time.
const BUSY: &str = "echo started; while sleep 0.1; do head -c 2000000 /dev/zero >\"$WORK/x\"; cat \"$WORK/x\" >/dev/null; done";

#[test]
fn every_page_works_in_a_browser_and_a_job_is_killed_by_the_keyboard() {
    let site = Site::start_mounted("[history]\ninterval = \"1 s\"\n");
    let job = site.forebay(&["submit", "-J", "long", "--", "sh", "-c", BUSY]);
    let job = job.output().trim().to_owned();
    let failed = site.forebay(&["submit", "--", "false"]).output().trim().to_owned();
    for number in 0..6 {
        let name = format!("waits{number}");
        site.forebay(&["submit", "-J", &name, "-n", "2", "--", "sleep", "600"]).succeeds();
    }
    let file = site.folder().join("flow.toml");
    let flow = "[flow]\nname = \"month\"\n[[job]]\nname = \"load\"\ncommand = [\"true\"]\npriority = 9\n[[job]]\nname = \"sum\"\n\
                after = \"done(load)\"\ncommand = [\"true\"]\n[[job]]\nname = \"report\"\nafter = \"done(sum)\"\ncommand = [\"true\"]\n";
    std::fs::write(&file, flow).unwrap();
    site.forebay(&["flow", "run", &file.display().to_string()]).succeeds();
    std::fs::write(site.mountpoint().join("data/file"), vec![7_u8; 3_000_000]).unwrap();
    wait_until("the job runs", LIMIT, || {
        site.forebay(&["jobs", &job, "--json"]).stdout.contains("\"running\"")
    });
    let (cookie, _) = session(&site);
    wait_until("there are two samples, which rates need", LIMIT, || {
        let now = site.send("GET", "/", &[("Cookie", &cookie)], "").body;
        !now.contains("Tasks that end, per minute: nothing was recorded yet")
    });
    wait_until("space is counted", LIMIT, || {
        site.send("GET", "/files", &[("Cookie", &cookie)], "").body.contains("Content changed")
    });
    wait_until("the timeline of the job has two points", LIMIT, || {
        let now = site.send("GET", &format!("/jobs/{job}"), &[("Cookie", &cookie)], "").body;
        now.contains("Over time") && now.contains("Bytes by system calls")
    });
    let page = |path: &str| format!("{}{path}", site.url());
    let paths = [
        ("now", "/".to_owned()),
        ("jobs", "/jobs?ended=1".to_owned()),
        ("job", format!("/jobs/{job}")),
        ("failed", format!("/jobs/{failed}")),
        ("queues", "/queues".to_owned()),
        ("hosts", "/hosts".to_owned()),
        ("flows", "/flows?ended=1".to_owned()),
        ("flow", "/flows/1".to_owned()),
        ("files", "/files".to_owned()),
        ("health", "/health".to_owned()),
        ("studies", "/studies".to_owned()),
    ];
    let pages: Vec<Value> = paths.iter().map(|(name, path)| json!([name, page(path)])).collect();
    let act = page(&format!("/jobs/{job}"));
    let seen = drive(&json!({"login": login(&site), "pages": pages, "act": act}));
    assert_eq!(seen["logged_in"], "root");
    assert_eq!(seen["killed"], true);
    assert_eq!(seen["complaints"], json!([]), "the browser complains");
    let own = format!("{}/", site.url());
    for request in seen["requests"].as_array().unwrap() {
        let url = request.as_str().unwrap();
        assert!(
            url.starts_with(&own) || url == "about:blank",
            "a request leaves the machine: {url}"
        );
    }
    for (name, _) in &paths {
        for look in ["light", "dark", "narrow", "wall"] {
            let one = &seen["pages"][name][look];
            assert!(one["title"].is_string(), "{name} {look}: {one}");
            assert_eq!(one["wide"], Value::Null, "{name} is wider than the screen");
            assert_eq!(one["unnamed"], json!([]), "{name}: elements without a name");
        }
        let paper = |look: &str| seen["pages"][name][look]["paper"].clone();
        assert_ne!(paper("light"), paper("dark"), "{name} has no dark colours");
        let letters = |look: &str| seen["pages"][name][look]["letters"].as_f64();
        let large = letters("wall") >= letters("light").map(|letters| 2.0 * letters);
        let across = seen["pages"][name]["wall"]["across"].as_f64() > Some(0.8);
        assert!(large && across, "{name} is small on a wall screen");
    }
    let text = |name: &str| seen["pages"][name]["light"]["text"].as_str().unwrap().to_owned();
    let now = &seen["pages"]["now"]["light"];
    assert!(text("now").contains("slots in use") && now["charts"].as_u64() >= Some(3), "{now}");
    assert!(text("job").contains("started") && text("job").contains("Kill"), "{}", text("job"));
    assert_eq!(seen["pages"]["job"]["light"]["charts"], 2, "the timeline of the job");
    assert!(text("failed").contains("exit value 1"), "{}", text("failed"));
    assert!(text("jobs").contains("waits5"), "{}", text("jobs"));
    assert!(
        text("files").contains("data") && text("files").contains("strict"),
        "{}",
        text("files")
    );
    for part in ["under 1 day", "over 1 year", "Not counted: work", "The biggest", "The oldest"] {
        assert!(text("files").contains(part), "{part}: {}", text("files"));
    }
    assert!(text("flow").contains("report"), "{}", text("flow"));
}

/// A mix that is done at once.
const MIX: &str = "name = \"small\"\ntitle = \"Jobs\"\nstudy = \"none\"\ndefaults = { scale = 1, concurrent = 2 }\n\
    [[class]]\nname = \"write\"\ntitle = \"streams\"\nkind = \"io\"\njobs = { per_run = 2 }\n\
    space = { data_meanwhile = \"8 MiB\" }\n[[class.step]]\n[class.step.do.stream]\nfile = \"data/{job}\"\n\
    file_bytes = \"1 MiB\"\npattern = \"write\"\n";

#[test]
fn studies_are_listed_with_their_figures_and_compared_in_a_browser() {
    let mut site = Site::start("");
    let (studies, storage) = (site.folder().join("studies"), site.folder().join("storage"));
    for folder in [&studies, &storage] {
        std::fs::create_dir(folder).unwrap();
    }
    let text = |path: &std::path::Path| path.display().to_string();
    for (name, mix) in
        [("a-before", MIX), ("b-after", MIX), ("d-other", &MIX.replace("small", "tiny"))]
    {
        let file = site.folder().join("mix.toml");
        std::fs::write(&file, mix).unwrap();
        let out = text(&studies.join(name));
        let words =
            ["bench", "run", "--file", &text(&file), "--on", &text(&storage), "--out", &out];
        site.forebay(&words).succeeds();
    }
    std::fs::create_dir(studies.join("c-broken")).unwrap();
    std::fs::write(studies.join("c-broken/report.html"), "<p>old").unwrap();
    // Links lead elsewhere: the server would show what only it may read.
    let secret = site.folder().join("secret");
    std::fs::write(&secret, "hidden").unwrap();
    std::fs::create_dir(studies.join("e-secret")).unwrap();
    std::os::unix::fs::symlink(&secret, studies.join("e-secret/report.html")).unwrap();
    std::os::unix::fs::symlink(studies.join("a-before"), studies.join("f-link")).unwrap();
    site.kill_server();
    let settings = format!("studies = [\"{}\"]\n", text(&studies));
    std::fs::write(site.root().join("grid/web.toml"), settings).unwrap();
    site.serve();
    let (cookie, _) = session(&site);
    // The numbers of studies are in the order of their names.
    let get = |path: &str| site.send("GET", path, &[("Cookie", &cookie)], "");
    for (path, part) in [
        ("/studies/compare?study=0", "mark two to 8"),
        ("/studies/compare?study=0&study=0", "mark two to 8"),
        ("/studies/compare?study=0&study=9", "there is no report 9"),
        ("/studies/4", "there is no report 4"),
        ("/studies/compare?study=0&study=3", "cannot be compared"),
        ("/studies/compare?study=0&study=2", "broken"),
    ] {
        let answer = get(path);
        assert!(answer.status >= 400 && answer.body.contains(part), "{path}: {}", answer.body);
    }
    let page = |path: &str| format!("{}{path}", site.url());
    let pages = json!([
        ["study-list", page("/studies")],
        ["study-comparison", page("/studies/compare?study=1&study=0")],
    ]);
    let seen = drive(&json!({"login": login(&site), "pages": pages}));
    assert_eq!(seen["complaints"], json!([]), "the browser complains");
    for look in ["light", "dark", "narrow"] {
        let list = &seen["pages"]["study-list"][look];
        assert_eq!((&list["wide"], &list["unnamed"]), (&Value::Null, &json!([])), "{list}");
        let shown = list["text"].as_str().unwrap();
        for part in ["small", "tiny", "before", "after", "CPU/real", "Without figures", "broken"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        // Two studies of the same mix on the same storage: charts over time.
        assert!(list["charts"].as_u64() >= Some(2), "{list}");
    }
    let compared = seen["pages"]["study-comparison"]["light"].clone();
    let shown = compared["text"].as_str().unwrap();
    assert!(
        shown.contains("b-after/a-before"),
        "the older is what the other is compared with: {shown}"
    );
}

#[test]
fn forms_of_other_sites_and_strangers_change_nothing() {
    let site = Site::start("");
    let job = site.forebay(&["submit", "--", "sleep", "600"]).output().trim().to_owned();
    let (cookie, key) = session(&site);
    let path = format!("/jobs/{job}/kill");
    let post =
        |headers: &[(&str, &str)], body: &str| site.send("POST", &path, headers, body).status;
    let form = format!("key={key}");
    assert_eq!(post(&[], &form), 401, "without the cookie");
    assert_eq!(post(&[("Cookie", &cookie)], ""), 403, "without the key");
    assert_eq!(post(&[("Cookie", &cookie)], "key=0"), 403, "with another key");
    let other = [("Cookie", &*cookie), ("Origin", "https://evil.example")];
    assert_eq!(post(&other, &form), 403, "from another site");
    // A cookie is not a token, and a token is not a cookie.
    assert_eq!(site.send("GET", "/api/v1/jobs", &[("Cookie", &cookie)], "").status, 401);
    assert!(site.forebay(&["jobs", "--json"]).output().contains("sleep"), "the job is there still");
    assert_eq!(post(&[("Cookie", &cookie), ("Origin", &site.url())], &form), 303);
    wait_until("the job is killed", LIMIT, || {
        site.forebay(&["jobs", &job, "--json"]).stdout.contains("\"killed\"")
    });
    let page = site.send("GET", "/jobs", &[("Cookie", &cookie)], "");
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(site.send("POST", "/logout", &[("Cookie", &cookie)], &form).status, 303);
    assert_eq!(site.send("GET", "/jobs", &[("Cookie", &cookie)], "").status, 401);
    let by_token = site.send("POST", "/login", &[], &format!("token={}", site.token()));
    assert_eq!((by_token.status, by_token.header("location")), (303, Some("/")));
    assert_eq!(site.send("POST", "/login", &[], "token=fbt_no").status, 403);
}

#[test]
fn names_that_users_choose_cannot_become_markup() {
    let site = Site::start("");
    let job = site
        .forebay(&["submit", "--", "echo", "<script>alert(1)</script>"])
        .output()
        .trim()
        .to_owned();
    let (cookie, _) = session(&site);
    for path in [
        "/jobs?ended=1&text=%3Cscript%3E",
        "/jobs?ended=1",
        &format!("/jobs/{job}"),
        "/%3Cscript%3E",
    ] {
        let page = site.send("GET", path, &[("Cookie", &cookie)], "");
        assert!(!page.body.contains("<script>"), "{path}");
    }
}
