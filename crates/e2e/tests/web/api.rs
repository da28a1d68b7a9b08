//! The REST API: every operation, who may do what, and events.

use std::collections::BTreeSet;

use forebay_e2e::{need, wait_until};
use serde_json::{Value, json};

use crate::fixture::{Answer, LIMIT, Site, free_port};
use crate::schema::fault;

/// A program that knows the description of the API and holds every answer against it.
struct Client<'a> {
    site: &'a Site,
    token: String,
    document: Value,
    called: BTreeSet<String>,
}

impl Client<'_> {
    fn new(site: &Site) -> Client<'_> {
        let document = site.send("GET", "/openapi.json", &[], "").json();
        Client { site, token: site.token(), document, called: BTreeSet::new() }
    }

    /// Calls an operation by its name, with the parameters of its path.
    fn call(&mut self, id: &str, parts: &[&str], query: &str, body: Option<Value>) -> Answer {
        let paths = self.document["paths"].as_object().unwrap();
        let (path, method, operation) = paths
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().iter().map(move |(method, of)| (path, method, of))
            })
            .find(|(_, _, operation)| operation["operationId"] == id)
            .unwrap_or_else(|| panic!("there is no operation {id}"));
        let mut parts = parts.iter();
        let path: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { parts.next().expect("a part") } else { part })
            .collect();
        let path = format!("{}{query}", path.join("/"));
        let authorization = format!("Bearer {}", self.token);
        let body = body.map(|body| {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert_eq!(fault(&self.document, schema, &body, id), None, "the request itself");
            body.to_string()
        });
        let headers = [("Authorization", &*authorization), ("Content-Type", "application/json")];
        let answer =
            self.site.send(&method.to_uppercase(), &path, &headers, &body.unwrap_or_default());
        let response = &operation["responses"][answer.status.to_string()];
        assert!(response.is_object(), "{id}: {} is not described: {answer:?}", answer.status);
        if let Some(contents) = response["content"].as_object() {
            let kind = answer.header("content-type").unwrap();
            let schema = &contents.get(kind).unwrap_or_else(|| panic!("{id}: {kind}"))["schema"];
            assert_eq!(fault(&self.document, schema, &answer.json(), id), None);
        }
        self.called.insert(id.to_owned());
        answer
    }

    fn get(&mut self, id: &str, parts: &[&str], query: &str) -> Value {
        let answer = self.call(id, parts, query, None);
        assert_eq!(answer.status, 200, "{id}: {answer:?}");
        answer.json()
    }

    fn submit(&mut self, job: Value) -> String {
        let answer = self.call("submit_job", &[], "", Some(job));
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["job"].to_string()
    }

    fn refused(
        &mut self,
        id: &str,
        parts: &[&str],
        query: &str,
        body: Option<Value>,
    ) -> (u16, String) {
        let answer = self.call(id, parts, query, body);
        let kind = answer.json()["kind"].as_str().expect("a problem").to_owned();
        (answer.status, kind)
    }

    fn wait_for(&mut self, job: &str, state: &str) -> Value {
        let mut last = Value::Null;
        wait_until(&format!("job {job} is {state}"), LIMIT, || {
            last = self.get("show_job", &[job], "")["jobs"][0].clone();
            last["state"] == state
        });
        last
    }
}

#[test]
fn the_rest_api_does_what_the_commands_do_and_answers_as_it_is_described() {
    let site = Site::start("[history]\ninterval = \"1 s\"\n");
    let mut api = Client::new(&site);
    assert_eq!(api.get("me", &[], ""), json!({"user": "root", "admin": true}));

    // One job from its submission to its end.
    let folder = site.folder().display().to_string();
    let script = "echo hello $A; echo oops >&2; exit 3";
    let job = api.submit(json!({
        "command": ["sh", "-c", script], "name": "first", "directory": folder, "output": "out-%J", "error": "err-%J",
        "environment": {"A": "world"}, "memory": "64M", "time_limit": "1 h",
    }));
    let shown = api.wait_for(&job, "exited");
    assert_eq!((&shown["exit_code"], &shown["name"]), (&json!(3), &json!("first")));
    assert_eq!(shown["options"]["memory_bytes"], 64 << 20);
    assert_eq!(api.get("job_output", &[&job], "")["text"], "hello world\n");
    let part = api.get("job_output", &[&job], "?stream=errors&offset=2&bytes=2");
    assert_eq!((&part["text"], &part["length"]), (&json!("ps"), &json!(5)));
    let history = api.get("job_history", &[&job], "");
    assert_eq!(history["attempts"][0]["outcome"], "exit value 3");
    let said = site.forebay(&["history", &job, "--json"]).output();
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap().as_array().unwrap().len(), 1);
    assert!(!api.get("explain_job", &[&job], "")["reasons"].as_array().unwrap().is_empty());

    // Verbs, lists and pages.
    let array = api.submit(json!({"command": ["sleep", "600"], "name": "many[1-3]", "hold": true}));
    assert_eq!(api.get("list_jobs", &[], "")["jobs"][0]["state"], "held");
    let all = api.get("list_jobs", &[], "?ended=true&limit=1");
    assert_eq!((all["jobs"].as_array().unwrap().len(), &all["total"]), (1, &json!(2)));
    let next = format!("?ended=true&limit=1&page={}", all["next"].as_str().unwrap());
    assert_eq!(api.get("list_jobs", &[], &next)["jobs"][0]["job"].to_string(), array);
    assert_eq!(api.call("release_job", &[&array], "", None).json()["tasks"], 3);
    api.wait_for(&format!("{array}[1]"), "running");
    assert_eq!(api.call("hold_job", &[&format!("{array}%5B1%5D")], "", None).json()["tasks"], 1);
    api.wait_for(&format!("{array}[1]"), "suspended");
    let changes = json!({"time_limit": "7 min", "name": "more", "running_max": 1});
    assert_eq!(api.call("modify_job", &[&array], "", Some(changes)).json()["tasks"], 3);
    let changed = api.get("show_job", &[&array], "")["jobs"][0].clone();
    assert_eq!(
        (&changed["name"], &changed["options"]["time_limit_seconds"]),
        (&json!("more"), &json!(420.0))
    );
    assert_eq!(api.call("modify_job", &[&array], "", Some(json!({}))).status, 422);
    let element = format!("{array}%5B1%5D");
    assert_eq!(api.call("modify_job", &[&element], "", Some(json!({"slots": 2}))).status, 422);
    assert_eq!(api.call("kill_job", &[&array], "", None).json()["tasks"], 3);
    api.wait_for(&format!("{array}[1]"), "killed");
    assert_eq!(api.call("requeue_job", &[&job], "", None).status, 200);
    api.wait_for(&job, "exited");

    let script = "trap 'exit 5' USR1; echo ready; while :; do sleep 0.05; done";
    let waits = api
        .submit(json!({"command": ["sh", "-c", script], "name": "waits", "directory": folder,
        "output": "waits-%J", "io_heavy": true, "post": "true"}));
    api.wait_for(&waits, "running");
    wait_until("it has set its trap", LIMIT, || {
        api.call("job_output", &[&waits], "", None).json()["text"] == "ready\n"
    });
    let usr1 = Some(json!({"signal": "SIGUSR1"}));
    assert_eq!(api.call("signal_job", &[&waits], "", usr1).json()["tasks"], 1);
    assert_eq!(api.wait_for(&waits, "exited")["exit_code"], 5);
    let kill = Some(json!({"signal": "KILL"}));
    assert_eq!(api.call("signal_job", &[&waits], "", kill).status, 422);

    // The rest of the grid.
    let hosts = api.get("list_hosts", &[], "")["hosts"].clone();
    let host = hosts[0]["name"].as_str().unwrap().to_owned();
    assert_eq!((hosts.as_array().unwrap().len(), &hosts[0]["slots"]), (2, &json!(2)));
    api.call("close_host", &[&host], "", None);
    assert_eq!(api.get("list_hosts", &[], "")["hosts"][0]["open"], false);
    api.call("open_host", &[&host], "", None);
    let queue = api.get("list_queues", &[], "")["queues"][0]["name"].as_str().unwrap().to_owned();
    for (verb, field, value) in [
        ("close_queue", "open", false),
        ("open_queue", "open", true),
        ("inactivate_queue", "active", false),
        ("activate_queue", "active", true),
    ] {
        assert_eq!(api.call(verb, &[&queue], "", None).status, 200);
        assert_eq!(api.get("list_queues", &[], "")["queues"][0][field], value, "{verb}");
    }
    assert_eq!(api.get("list_services", &[], "?ended=true")["services"], json!([]));
    let usage = api.get("usage", &[], "?by=user,queue");
    assert_eq!(usage["rows"][0]["user"], "root");
    api.get("list_areas", &[], "");

    pages(&mut api);
    reservations(&mut api, &host, &folder);
    groups(&mut api, &folder);
    flows(&mut api, &folder);
    own_things(&mut api);
    faults(&mut api, &job);
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    for methods in api.document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            wanted.insert(operation["operationId"].as_str().unwrap().to_owned());
        }
    }
    // Events have a test of their own.
    assert!(wanted.remove("events"));
    assert_eq!(api.called, wanted, "every operation was called");
}

/// Pages end, and show each line once, also where as many elements of an array run as a page has lines.
fn pages(api: &mut Client<'_>) {
    let array = api.submit(json!({"command": ["sleep", "600"], "name": "full[1-20]"}));
    for element in 1..=4 {
        api.wait_for(&format!("{array}[{element}]"), "running");
    }
    let ids = [1, 2, 3, 4].map(|element| format!("{array}[{element}]"));
    for (query, limit) in [("", 4), ("", 3), ("&name=full", 4), ("&name=full", 3)] {
        let (mut found, mut page) = (Vec::new(), String::new());
        for _ in 0..10 {
            let list = api.get("list_jobs", &[], &format!("?limit={limit}{query}{page}"));
            let lines = list["jobs"].as_array().unwrap().clone();
            found.extend(lines.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            match list["next"].as_str() {
                Some(next) => {
                    page = format!("&page={}", next.replace('[', "%5B").replace(']', "%5D"));
                }
                None => {
                    page.clear();
                    break;
                }
            }
        }
        assert_eq!(page, "", "the list ends: {found:?}");
        assert_eq!(found, [&ids[..], std::slice::from_ref(&array)].concat(), "{query} {limit}");
    }
    api.call("kill_job", &[&array], "", None);
    for element in 1..=4 {
        api.wait_for(&format!("{array}[{element}]"), "killed");
    }
    // Ordinary jobs.
    let held = json!({"command": ["true"], "name": "page", "hold": true});
    let jobs: Vec<String> = (0..3).map(|_| api.submit(held.clone())).collect();
    for query in ["?limit=1", "?limit=1&name=page"] {
        let (mut found, mut page) = (Vec::new(), String::new());
        for _ in 0..3 {
            let list = api.get("list_jobs", &[], &format!("{query}{page}"));
            found.push(list["jobs"][0]["id"].as_str().unwrap().to_owned());
            page = list["next"].as_str().map(|next| format!("&page={next}")).unwrap_or_default();
        }
        assert_eq!((&found, &*page), (&jobs, ""), "{query}");
    }
    for job in &jobs {
        api.call("kill_job", &[job], "", None);
    }
}

fn groups(api: &mut Client<'_>, folder: &str) {
    assert_eq!(api.get("list_groups", &[], "")["groups"], json!([]));
    let limit = json!({"group": "/risk", "limit": 1});
    assert_eq!(api.call("limit_group", &[], "", Some(limit)).status, 200);
    let job = |group: &str, command: &str| json!({"command": ["sh", "-c", command], "directory": folder, "group": group, "warning": "USR1@5 min"});
    let runs = api.submit(job("/risk/daily", "exec sleep 600"));
    let waits = api.submit(job("/risk/eu", "true"));
    assert_eq!(api.wait_for(&runs, "running")["group"], "/risk/daily");
    let shown = api.wait_for(&waits, "pending");
    assert_eq!(shown["options"]["warning"], "USR1@5 min");
    let why = api.get("explain_job", &[&waits], "").to_string();
    assert!(why.contains("job group /risk has 1 of at most 1"), "{why}");
    let chosen = |api: &mut Client<'_>, query: &str| -> Vec<String> {
        let jobs = api.get("list_jobs", &[], query);
        jobs["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(chosen(api, "?group=/risk&ended=true"), [&*runs, &*waits]);
    assert_eq!(chosen(api, "?group=/risk/eu"), [&*waits]);
    assert_eq!(chosen(api, "?group=/ri"), [""; 0]);
    assert_eq!(chosen(api, "?group=/risk&state=running&user=root&queue=normal"), [&*runs]);
    assert_eq!(api.get("list_jobs", &[], "?group=/risk&limit=1")["next"], json!(waits));
    assert_eq!(api.refused("list_jobs", &[], "?group=risk", None).0, 400);
    assert_eq!(api.refused("delete_group", &[], "?group=/risk", None).0, 422);
    // Without a limit the other one starts.
    assert_eq!(api.call("limit_group", &[], "", Some(json!({"group": "/risk"}))).status, 200);
    api.wait_for(&waits, "done");
    api.call("kill_job", &[&runs], "", None);
    api.wait_for(&runs, "killed");
    let listed = api.get("list_groups", &[], "");
    let names: Vec<&str> = listed["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| of["group"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"/risk/daily") && names.contains(&"/risk/eu"), "{listed}");
    assert_eq!(api.call("delete_group", &[], "?group=/risk", None).status, 204);
}

fn reservations(api: &mut Client<'_>, host: &str, folder: &str) {
    let new = json!({"name": "course", "users": ["root"], "hosts": [host], "slots": 1, "duration": "2 h"});
    let made = api.call("create_reservation", &[], "", Some(new.clone()));
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.json()["name"], "course");
    assert_eq!(api.get("list_reservations", &[], "")["reservations"], json!([made.json()]));
    let refused = api.refused("create_reservation", &[], "", Some(new));
    assert_eq!(refused, (422, "invalid".into()));
    let job = json!({
        "command": ["true"], "directory": folder, "reservation": "course", "inputs": ["data/a", "/etc/passwd"],
    });
    let job = api.submit(job);
    let shown = api.wait_for(&job, "done");
    assert_eq!(
        (&shown["host"], &shown["options"]["reservation"]),
        (&json!(host), &json!("course"))
    );
    let inputs = shown["options"]["inputs"].as_array().unwrap();
    let paths: Vec<&str> = inputs.iter().map(|input| input["path"].as_str().unwrap()).collect();
    assert!(paths[0].ends_with("/data/a") && paths[1] == "/etc/passwd", "{paths:?}");
    assert_eq!(api.call("delete_reservation", &["course"], "", None).status, 204);
    assert_eq!(api.get("list_reservations", &[], "")["reservations"], json!([]));
    assert_eq!(api.refused("delete_reservation", &["course"], "", None), (422, "invalid".into()));
}

fn flows(api: &mut Client<'_>, folder: &str) {
    let file = "[flow]\nname = \"two\"\n[[job]]\nname = \"a\"\ncommand = [\"true\"]\n\
                [[job]]\nname = \"b\"\nafter = \"done(a)\"\ncommand = [\"false\"]\n";
    let answer = api.call("run_flow", &[], "", Some(json!({"file": file, "directory": folder})));
    assert_eq!(answer.status, 201, "{answer:?}");
    let flow = answer.json()["flow"].to_string();
    wait_until("the flow fails", LIMIT, || api.get("show_flow", &[&flow], "")["state"] == "failed");
    assert_eq!(api.get("show_flow", &[&flow], "")["steps"][1]["after"], "done(\"a\")");
    assert_eq!(api.get("list_flows", &[], "?ended=true")["flows"][0]["failed"], json!(["b"]));
    assert_eq!(api.call("rerun_flow", &[&flow], "", None).status, 200);
    let again = api.call("kill_flow", &[&flow], "", None).status;
    assert!(again == 200 || again == 409, "it may have failed again by now: {again}");
    let refused = api.call("run_flow", &[], "", Some(json!({"file": "[flow]\nnam = 1\n"})));
    assert_eq!((refused.status, &refused.json()["kind"]), (422, &json!("invalid")));
}

/// What the server itself keeps.
fn own_things(api: &mut Client<'_>) {
    wait_until("there are samples", LIMIT, || {
        let samples = api.get("samples", &[], "?seconds=60");
        samples["values"]["slots"].as_array().unwrap().contains(&json!(4.0))
    });
    assert_eq!(api.refused("samples", &[], "?subject=nonsense", None), (404, "not_found".into()));
    api.get("list_alerts", &[], "");
    let spare = api.site.forebay(&["web", "token", "--name", "spare", "--json"]).output();
    let spare: Value = serde_json::from_str(&spare).unwrap();
    let listed = api.get("list_tokens", &[], "")["tokens"].clone();
    let names: Vec<&Value> =
        listed.as_array().unwrap().iter().map(|token| &token["name"]).collect();
    assert_eq!(names, ["", "spare"]);
    assert_eq!((&listed[0]["this"], &listed[1]["this"]), (&json!(true), &json!(false)));
    assert_eq!(api.call("revoke_token", &[&spare["id"].to_string()], "", None).status, 204);
    assert_eq!(api.refused("revoke_token", &["77"], "", None), (404, "no_token".into()));
    let authorization = format!("Bearer {}", spare["token"].as_str().unwrap());
    let revoked = api.site.send("GET", "/api/v1/me", &[("Authorization", &authorization)], "");
    assert_eq!(revoked.status, 401);
}

fn faults(api: &mut Client<'_>, job: &str) {
    assert_eq!(api.refused("show_job", &["999"], "", None), (404, "no_job".into()));
    assert_eq!(api.refused("show_job", &["x"], "", None), (400, "not_understood".into()));
    assert_eq!(api.refused("kill_job", &[job], "", None), (409, "wrong_state".into()));
    assert_eq!(api.refused("list_jobs", &[], "?limit=many", None), (400, "not_understood".into()));
    assert_eq!(api.refused("open_queue", &["none"], "", None), (404, "no_queue".into()));
    assert_eq!(api.refused("close_host", &["none"], "", None), (404, "no_host".into()));
    assert_eq!(api.refused("show_flow", &["99"], "", None), (404, "no_flow".into()));
    let wrong = |api: &mut Client<'_>, job: Value| api.refused("submit_job", &[], "", Some(job));
    assert_eq!(wrong(api, json!({"command": []})), (422, "invalid".into()));
    assert_eq!(wrong(api, json!({"command": ["a"], "memory": "much"})), (422, "invalid".into()));
    assert_eq!(wrong(api, json!({"command": ["a"], "queue": "none"})), (404, "no_queue".into()));
    let authorization = format!("Bearer {}", api.token);
    let headers = [("Authorization", &*authorization)];
    let send = |method: &str, path: &str, body: &str| {
        let answer = api.site.send(method, path, &headers, body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        (answer.status, answer.json()["kind"].as_str().unwrap().to_owned())
    };
    let understood = |text: &str| send("POST", "/api/v1/jobs", text);
    assert_eq!(understood("{"), (400, "not_understood".into()));
    assert_eq!(understood(r#"{"command":["a"],"memroy":"1G"}"#), (400, "not_understood".into()));
    assert_eq!(send("GET", "/api/v1/nothing", ""), (404, "not_found".into()));
    assert_eq!(send("DELETE", "/api/v1/jobs", ""), (405, "method_not_allowed".into()));
    let nobody = api.site.send("GET", "/api/v1/jobs", &[], "");
    assert_eq!((nobody.status, nobody.header("www-authenticate")), (401, Some("Bearer")));
}

#[test]
fn a_submission_that_is_repeated_makes_one_job() {
    let site = Site::start("");
    let authorization = format!("Bearer {}", site.token());
    let key = "5f0c1c0e-6f1e-4c8e-9d8a-2f1f2f3f4f5f";
    let headers = [("Authorization", &*authorization), ("Idempotency-Key", key)];
    let submit = |headers: &[(&str, &str)]| {
        site.send("POST", "/api/v1/jobs", headers, r#"{"command":["true"]}"#)
    };
    let (first, again) = (submit(&headers).json(), submit(&headers).json());
    assert_eq!(first, again);
    assert_ne!(submit(&headers[..1]).json(), first);
    let wrong = submit(&[headers[0], ("Idempotency-Key", "x")]);
    assert_eq!(wrong.status, 400);
}

#[test]
fn a_user_sees_and_changes_the_own_jobs_alone() {
    const USER: u32 = 4321;
    let site = Site::start("");
    let of_root = site.forebay(&["submit", "--", "sleep", "600"]).output().trim().to_owned();
    let token = site.forebay_as(USER, &["web", "token", "--for", "1 h"]).output().trim().to_owned();
    let authorization = format!("Bearer {token}");
    let send = |method: &str, path: &str, body: &str| {
        site.send(method, path, &[("Authorization", &*authorization)], body)
    };
    assert_eq!(send("GET", "/api/v1/me", "").json(), json!({"user": "4321", "admin": false}));
    assert_eq!(send("GET", "/api/v1/jobs", "").json()["jobs"], json!([]));
    for (method, path) in [
        ("GET", format!("/api/v1/jobs/{of_root}")),
        ("GET", format!("/api/v1/jobs/{of_root}/output")),
        ("POST", format!("/api/v1/jobs/{of_root}/kill")),
    ] {
        assert_eq!(send(method, &path, "").status, 404, "{path}");
    }
    let host = send("GET", "/api/v1/hosts", "").json()["hosts"][0]["name"].clone();
    let closed = send("POST", &format!("/api/v1/hosts/{}/close", host.as_str().unwrap()), "");
    assert_eq!((closed.status, &closed.json()["kind"]), (403, &json!("not_allowed")));
    // Its job runs as the user, and what it wrote is read with the rights of the user.
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(USER), Some(USER)).unwrap();
    let body =
        json!({"command": ["sh", "-c", "id -u"], "directory": folder.path(), "output": "out"});
    let job = send("POST", "/api/v1/jobs", &body.to_string());
    assert_eq!(job.status, 201, "{job:?}");
    let job = job.json()["job"].to_string();
    let output = || send("GET", &format!("/api/v1/jobs/{job}/output"), "");
    wait_until("the job has written", LIMIT, || {
        output().status == 200 && output().json()["text"] == "4321\n"
    });
    let file = folder.path().join("out");
    std::fs::remove_file(&file).unwrap();
    let secret = site.folder().join("secret");
    std::fs::write(&secret, "root's").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&secret, &file).unwrap();
    assert_eq!((output().status, &output().json()["kind"]), (404, &json!("no_output")));
    // Nobody else revokes the token, and only admins mute.
    let refused = site.forebay_as(USER + 1, &["web", "revoke", "1"]).refused();
    assert!(refused.contains("there is no token 1 of yours"), "{refused}");
    let refused = site.forebay_as(USER, &["alerts", "--mute", "fill", "--for", "1 h"]).refused();
    assert!(refused.contains("only admins"), "{refused}");
    site.forebay_as(USER, &["web", "revoke", "1"]).succeeds();
    assert_eq!(send("GET", "/api/v1/me", "").status, 401);
    site.forebay(&["kill", &of_root]).succeeds();
}

#[test]
fn changes_of_jobs_and_hosts_come_as_events() {
    let site = Site::start("");
    let token = site.token();
    let mut next = site.follow(&token);
    assert_eq!(next().0, "ready");
    // The first look has nothing to compare with.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let job = site.forebay(&["submit", "--", "sleep", "600"]).output().trim().to_owned();
    let mut until = |wanted: &dyn Fn(&str, &Value) -> bool| {
        for _ in 0..200 {
            let (name, data) = next();
            if wanted(&name, &data) {
                return;
            }
        }
        panic!("the event does not come");
    };
    let state = |state: &'static str| {
        let job = job.clone();
        move |name: &str, data: &Value| {
            name == "job" && data["id"] == *job && data["state"] == state
        }
    };
    until(&state("running"));
    let host = serde_json::from_str::<Value>(&site.forebay(&["hosts", "--json"]).output()).unwrap()
        [0]["name"]
        .clone();
    site.forebay(&["host", "close", host.as_str().unwrap()]).succeeds();
    until(&|name, data| name == "host" && data["name"] == host && data["open"] == false);
    site.forebay(&["kill", &job]).succeeds();
    until(&state("killed"));
}

#[test]
fn other_machines_are_served_over_tls_alone() {
    let site = Site::start("");
    let root = site.root().display().to_string();
    let refused = site.forebay(&["web", "serve", &root, "--listen", "0.0.0.0:1234"]).refused();
    assert!(refused.contains("needs TLS") && refused.contains("--tls-cert"), "{refused}");
    let second = site.forebay(&["web", "serve", &root, "--listen", &free_port().to_string()]);
    assert!(second.refused().contains("already running"));
    drop(site);

    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = forebay_e2e::run(
        need::program("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
            ])
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&cert),
        LIMIT,
    );
    made.succeeds();
    let settings = format!(
        "listen = \"127.0.0.1:{port}\"\ntls_cert = \"{}\"\ntls_key = \"{}\"\n[history]\ninterval = \"1 s\"\n[alerts]\npersist = \"1 s\"\n",
        cert.display(),
        key.display()
    );
    let site = Site::start_tls(&settings, port);
    let program = format!(
        "import ssl,urllib.request as u\nc=ssl.create_default_context(cafile={:?})\n\
         print(u.urlopen('https://127.0.0.1:{port}/openapi.json',context=c).read().decode())",
        cert.display().to_string()
    );
    let read = forebay_e2e::run(need::program("python3").args(["-c", &program]), LIMIT).output();
    assert!(read.contains("\"openapi\": \"3.1.0\""), "{read}");
    // Two days are fewer than two weeks.
    wait_until("the certificate is an alert", LIMIT, || {
        site.forebay(&["alerts", "--json"]).stdout.contains("certificate/web")
    });
}
