//! Messages between versions: each kind as it is on the wire today is read and written again as it is, and a field that a later
//! version adds to an answer, an order or a report does not keep anybody from reading it.

use forebay_engine::protocol::{Answer, Ask, Order, Refusal, RefusalKind, Report};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const ASKS: &str = r#"
{"ask":"submit","spec":{"command":["true"],"name":"one"},"key":"00000000-0000-0000-0000-000000000007"}
{"ask":"command","target":{"job":1,"index":null},"verb":"kill"}
{"ask":"command","target":{"job":1,"index":3},"verb":{"signal":"usr1"}}
{"ask":"modify","job":1,"changes":{"priority":5,"rank":"top"}}
{"ask":"queue","queue":"normal","verb":"close"}
{"ask":"host","host":"h1","state":"closed"}
{"ask":"jobs","target":null,"ended":true,"page":{"most":10,"detail":"asked"}}
{"ask":"services","ended":false}
{"ask":"reserve","reservation":{"name":"course","users":["ann"],"hosts":["h1"],"slots":2,"start":1,"end":2}}
{"ask":"unreserve","name":"course"}
{"ask":"reservations"}
{"ask":"group","group":"/risk/daily","verb":{"add":{"limit":5}}}
{"ask":"group","group":"/risk","verb":"delete"}
{"ask":"groups"}
{"ask":"hosts"}
{"ask":"queues"}
{"ask":"resources"}
{"ask":"limits"}
{"ask":"try","spec":{"command":["true"],"features":"ssd && !slow","warning":"USR1@5 min"}}
{"ask":"history","target":{"job":1,"index":null},"from":[{"job":1,"index":0},2]}
{"ask":"explain","target":{"job":1,"index":null}}
{"ask":"wait","job":1}
{"ask":"wait_element","task":{"job":1,"index":2}}
{"ask":"flow","flow":{"kill":3}}
{"ask":"flow","flow":"schedules"}
{"ask":"watch","job":1}
{"ask":"sessions","orphans":"listed"}
{"ask":"keep_checkpoint","target":{"job":1,"index":null},"number":"1.2"}
{"ask":"usage","query":{"by":["user","project"],"since":"2026-11-01","until":null}}
{"ask":"for","uid":1000}
{"ask":"ping"}
{"ask":"reload"}
{"ask":"join","joined":{"host":"h1","facts":{"cores":4,"memory_bytes":1},"memory":"kept","runs":[{"task":{"job":1,"index":0},"attempt":1,"status":"Running"},{"task":{"job":2,"index":0},"attempt":1,"status":{"Exited":[{"code":0},null]}}]}}
"#;

const ANSWERS: &str = r#"
{"answer":"accepted","job":1}
{"answer":"obeyed","tasks":2}
{"answer":"busy","reason":"256 connections are open"}
{"answer":"refused","kind":"no_job","reason":"there is no job 1"}
{"answer":"jobs","jobs":[],"next":{"job":1,"index":0},"total":4}
{"answer":"hosts","hosts":[]}
{"answer":"queues","queues":[],"trouble":"no space"}
{"answer":"resources","resources":[{"name":"licence","host":null,"total":2,"used":1}]}
{"answer":"limits","limits":{"finished_age_seconds":604800.0,"tasks_max":1000000,"user_tasks_max":250000,"user_slots_max":null,"dispatch_seconds":0.0,"accept_rounds":0,"rerun":false,"profiles":["sas"],"submit_filter":false}}
{"answer":"tried","queue":"normal","host":"h1","start":7}
{"answer":"reservations","reservations":[]}
{"answer":"groups","groups":[{"group":"/risk","limit":5,"used":2,"pending":3,"running":2,"suspended":0,"ended":1}]}
{"answer":"history","attempts":[],"next":null}
{"answer":"explained","explanation":{"never_ran":{"reasons":["held"]}},"used":null}
{"answer":"ended","value":3}
{"answer":"flow","flow":{"ended":"done"}}
{"answer":"noticed","notice":{"notice":"finished","job":1,"value":0,"at":7}}
{"answer":"sessions","areas":[],"removed":[],"unknown":["h1"],"faults":[]}
{"answer":"usage","rows":[]}
{"answer":"here"}
"#;

const ORDERS: &str = r#"
{"order":"launch","task":{"job":1,"index":0},"attempt":1,"requeues":0,"user":"ann","numbers":{"uid":1000,"gid":100},"spec":{"command":["true"]},"slots":1,"time_limit":"1 min","gpus":[0],"wrap":{},"watch":{"port":80,"interval":"5 s","unready_max":"1 min"}}
{"order":"refused","reason":"no"}
{"order":"kill","task":{"job":1,"index":0},"attempt":1,"why":"time_limit"}
{"order":"suspend","task":{"job":1,"index":0},"attempt":1}
{"order":"resume","task":{"job":1,"index":0},"attempt":1}
{"order":"signal","task":{"job":1,"index":0},"attempt":1,"signal":"usr1"}
{"order":"warn","task":{"job":1,"index":0},"attempt":1}
{"order":"grant","lease":"30 s"}
{"order":"noted","task":{"job":1,"index":0},"attempt":1}
{"order":"release_work","task":{"job":1,"index":0},"requeues":0}
{"order":"keep_checkpoint","query":1,"task":{"job":1,"index":0},"requeues":0,"user":"ann","number":"1.2","job_host":"h1"}
{"order":"list_areas","query":1,"sizes":"counted"}
{"order":"reap","query":1,"areas":[{"path":"/w/1","task":{"job":1,"index":0},"requeues":0,"kind":"work","aside":false,"owner":"ann","bytes":7,"made":1,"inode":2}]}
"#;

const REPORTS: &str = r#"
{"report":"load","load":{"r15s":0.5,"r1m":0.5,"r15m":0.5,"ut":0.1,"pg":0.0,"io":0.0,"tmp":100.0,"mem":100.0,"swp":0.0,"iop":0.25}}
{"report":"using","containment":"group","runs":[{"task":{"job":1,"index":0},"attempt":1,"usage":null,"area_bytes":7,"health":{"ready":true,"why":null,"address":"h1"},"note":"PENDING"}]}
{"report":"started","task":{"job":1,"index":0},"attempt":1,"pid":7}
{"report":"exited","task":{"job":1,"index":0},"attempt":1,"exit":{"signal":9},"usage":null}
{"report":"lost","task":{"job":1,"index":0},"attempt":1,"loss":{"unable":"no space"}}
{"report":"work_released","task":{"job":1,"index":0},"requeues":0,"result":{"Ok":null}}
{"report":"checkpoint_kept","query":1,"result":{"Err":"no space"}}
{"report":"areas","query":1,"seen":{"areas":[],"more":false,"faults":[]}}
{"report":"reaped","query":1,"removed":[],"faults":["busy"]}
"#;

fn values(lines: &str) -> Vec<Value> {
    let read =
        |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    lines.lines().filter(|line| !line.is_empty()).map(read).collect()
}

/// Every kind that the reader of a message knows, as it says itself of one that it does not know.
fn kinds<T: DeserializeOwned>(tag: &str) -> Vec<String> {
    let error = serde_json::from_value::<T>(json!({tag: "?"})).map(drop).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected one of ").expect("it lists what it expects");
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn check<T: DeserializeOwned + Serialize>(tag: &str, lines: &str) {
    let mut missing = kinds::<T>(tag);
    assert!(missing.len() > 5, "{missing:?}");
    let mut faults = Vec::new();
    for mut line in values(lines) {
        missing.retain(|kind| line[tag] != *kind);
        match serde_json::from_value::<T>(line.clone()) {
            Ok(read) => {
                let written = serde_json::to_value(&read).unwrap();
                if written != line {
                    faults.push(format!("{line}\n  is written as {written}"));
                }
            }
            Err(error) => faults.push(format!("{line}\n  is not read: {error}")),
        }
        line["added_later"] = json!({"a": [1]});
        if let Err(error) = serde_json::from_value::<T>(line) {
            faults.push(format!("a field that was added keeps it from being read: {error}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(missing.is_empty(), "no {tag} of these kinds is tested: {missing:?}");
}

#[test]
fn every_question_is_read_and_written_as_it_was() {
    check::<Ask>("ask", ASKS);
}

#[test]
fn every_answer_is_read_and_written_as_it_was() {
    check::<Answer>("answer", ANSWERS);
}

#[test]
fn every_order_is_read_and_written_as_it_was() {
    check::<Order>("order", ORDERS);
}

#[test]
fn every_report_is_read_and_written_as_it_was() {
    check::<Report>("report", REPORTS);
}

#[test]
fn a_load_that_later_versions_measure_is_passed_over() {
    let line = json!({"report": "load", "load": {"r15s": 0.5, "moon": 1}});
    let Ok(Report::Load { load }) = serde_json::from_value(line) else { panic!("it is not read") };
    assert_eq!((load.r15s, load.iop), (0.5, 0.0));
}

#[test]
fn a_refusal_of_a_kind_that_only_later_versions_know_is_a_refusal() {
    let read = |kind: Value| {
        let line = json!({"answer": "refused", "kind": kind, "reason": "the moon is full"});
        serde_json::from_value::<Answer>(line)
    };
    let Ok(Answer::Refused(Refusal { kind, reason })) = read(json!("full_moon")) else {
        panic!("it is not read")
    };
    assert_eq!((kind, reason.as_str()), (RefusalKind::Failed, "the moon is full"));
    assert!(read(json!(7)).is_err());
}
