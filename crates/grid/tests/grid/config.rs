//! Settings: what they mean unless set, and what is said of a bad one.

use forebay_grid::config::{Config, Dispatch};
use forebay_grid::parse::period::Period;

#[test]
fn an_empty_file_is_one_queue_with_defaults() {
    let config = Config::read("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.queue_default().as_str(), "normal");
    assert_eq!(config.general.host_timeout, Period::seconds(90));
}

#[test]
fn settings_read_back_from_what_they_are_written_as() {
    let text = r#"
[general]
dispatch = { interval = { sleep = "10 s" } }
time_zone = "Europe/Berlin"
admins = ["root"]
[fair_share]
shares = { alice = 10 }
[[queue]]
name = "night"
hosts = "gridn1+1 others+2"
run_windows = "20:00-8:30"
[queue.load]
r1m = { schedule = 0.7, stop = 2.0 }
[[host]]
name = "gridn1"
memory = "4 GiB"
role = "control"
"#;
    let config = Config::read(text).unwrap();
    let sleep = Period::seconds(10);
    assert_eq!(config.general.dispatch, Dispatch::Interval { sleep, accept: 0 });
    assert_eq!(Config::read(&toml::to_string(&config).unwrap()).unwrap(), config);
    let bytes = postcard::to_allocvec(&config).unwrap();
    assert_eq!(postcard::from_bytes::<Config>(&bytes).unwrap(), config);
}

#[test]
fn a_bad_setting_is_told_with_line_key_value_and_what_is_allowed() {
    for (text, line, words) in [
        (
            "[general]\nlease = \"90 s\"\nhost_timeout = \"60 s\"",
            3,
            "host_timeout = 1 min: must be longer",
        ),
        ("[general]\n\nlease = \"1 ms\"", 3, "general.lease = 1 ms: must be at least 100 ms"),
        ("[general]\nsleep = 3", 2, "unknown field `sleep`"),
        ("[general]\ntime_zone = \"Mars\"", 2, "Europe/Berlin"),
        ("[general]\nqueue_default = \"x\"", 2, "the name of a queue"),
        ("[general]\nreap_interval = \"10 ms\"", 2, "at least 1 s"),
        ("[general]\nattempts_max = 0", 2, "attempts_max = 0: must be at least 1"),
        ("[general]\ndispatch = { interval = { sleep = \"1 ms\" } }", 2, "dispatch.interval.sleep"),
        ("[fair_share]\nhalf_life = \"0 s\"", 2, "at least 1 s"),
        ("[fair_share]\nrun_time_weight = -1.0", 2, "0 to 1000000"),
        ("[fair_share.shares]\nbob = 0", 1, "0 for bob"),
        ("[[queue]]\nname = \"a\"\n[[queue]]\nname = \"a\"", 4, "queue[1].name = a"),
        ("[[queue]]\npriority = 3", 1, "missing field `name`"),
        ("[[queue]]\nname = \"a b\"", 2, "not allowed"),
        ("[[queue]]\nname = \"a\"\nhosts = \"h+\"", 3, "character 3: expected a preference"),
        ("[[queue]]\nname = \"a\"\nrun_windows = \"8\"", 3, "character 2"),
        (
            "[[queue]]\nname = \"a\"\ntime_limit_max = \"1 h\"\ntime_limit_default = \"2 h\"",
            4,
            "at most time_limit_max",
        ),
        (
            "[[queue]]\nname = \"a\"\n[queue.load]\nr1m = { schedule = 2.0, stop = 1.0 }",
            4,
            "queue[0].load.r1m.stop = 1",
        ),
        (
            "[[queue]]\nname = \"a\"\n[queue.load]\nmem = { schedule = 100, stop = 200 }",
            4,
            "queue[0].load.mem.stop = 200",
        ),
        ("[[host]]\nname = \"h\"\nslots = 100001", 3, "0 to 100000"),
        ("[[host]]\nname = \"h\"\n[[host]]\nname = \"h\"", 4, "two hosts have this name"),
        ("queue = []", 1, "at least one queue"),
        (
            "[general]\nunlisted_hosts = \"close\"\n[[queue]]\nname = \"a\"\nhosts = \"h others\"\n[[host]]\nname = \"g\"",
            5,
            "h is not listed",
        ),
        ("[general", 1, ""),
    ] {
        let error = Config::read(text).expect_err(text);
        assert_eq!(error.line, Some(line), "{text}\n{error}");
        assert!(error.to_string().contains(words), "{text}\n{error}");
    }
}

#[test]
fn users_who_do_not_exist_are_told_with_their_line() {
    let exists = |user: &forebay_grid::vocabulary::UserName| user.as_str() != "bob";
    for (text, line, words) in [
        ("[general]\nadmins = [\n\"ann\",\n\"bob\"]", 4, "general.admins[1] = bob"),
        ("[fair_share]\nshares = { ann = 1, bob = 2 }", 2, "fair_share.shares = bob"),
        ("[[queue]]\nname = \"a\"\nusers = [\"bob\"]", 3, "queue[0].users[0] = bob"),
    ] {
        let error = Config::read_for(text, exists).expect_err(text);
        assert_eq!(error.line, Some(line), "{text}\n{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(Config::read(text).is_ok());
    }
}
