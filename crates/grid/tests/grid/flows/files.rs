//! Files of flows.

use forebay_grid::flow::FlowSpec;
use forebay_grid::flow::file::Surroundings;
use forebay_grid::spec::Sharing;

use super::read;

#[test]
fn jobs_of_a_flow_ask_for_what_other_jobs_ask_for() {
    let text = "[flow]\nname = \"f\"\nproject = \"risk\"\ngroup = \"/risk\"\nwarn = \"USR1@5min\"\n\
                [[job]]\nname = \"a\"\ncommand = \"x\"\nresource = \"gpu:2,sas:1\"\nexclusive = true\n\
                feature = \"ssd && !slow\"\nprofile = \"sas\"\npre = \"module load x\"\nio_heavy = true\n\
                [[job]]\nname = \"b\"\ncommand = \"y\"\ngroup = \"/other\"\npost = \"z\"\n";
    let flow = read(text);
    let (a, b) = (&flow.steps[0], &flow.steps[1]);
    assert_eq!(a.resources.to_string(), "gpu:2,sas:1");
    assert_eq!(a.features.as_ref().unwrap().to_string(), "ssd && !slow");
    assert_eq!((a.sharing, b.sharing), (Sharing::Exclusive, Sharing::Shared));
    assert_eq!((a.pre.as_deref(), b.post.as_deref()), (Some("module load x"), Some("z")));
    assert!(a.profile.is_some() && a.io_heavy && !b.io_heavy);
    let groups = [a, b].map(|step| step.group.as_ref().unwrap().to_string());
    assert_eq!(groups, ["/risk", "/other"]);
    assert!([a, b].iter().all(|of| of.project == "risk" && of.warning.is_some()));
}

#[test]
fn a_bad_file_is_refused_with_the_line_and_the_name() {
    let head = "[flow]\nname = \"f\"\n";
    let a = "[[job]]\nname = \"a\"\ncommand = \"true\"\n";
    let b = "[[job]]\nname = \"b\"\ncommand = \"true\"\n";
    for (text, line, reason) in [
        (String::new(), None, "flow"),
        (head.to_owned(), Some(2), "no job"),
        (format!("[flow]\nname = \"a b\"\n{a}"), Some(2), "\"a b\""),
        (format!("[flow]\nname = \"7\"\n{a}"), Some(2), "must not be a number"),
        (format!("[flow]\nname = \"f\"\nnam = 1\n{a}"), Some(3), "unknown field `nam`"),
        (format!("{head}{a}{a}"), Some(7), "two jobs are named \"a\""),
        (format!("{head}[[job]]\nname = \"a\"\n"), Some(3), "command"),
        (format!("{head}[[job]]\nname = \"a\"\ncommand = []\n"), Some(5), "the command is missing"),
        (format!("{head}command = \"true\"\n{a}"), Some(3), "below a [[job]]"),
        (format!("{head}after = \"a\"\n{a}"), Some(3), "below a [[job]]"),
        (format!("{head}array = \"1-3\"\n{a}"), Some(3), "below a [[job]]"),
        (
            format!("{head}[job.b]\ncommand = \"true\"\n"),
            Some(3),
            "write [[job]] with name = \"b\"",
        ),
        (format!("{head}[job]\nname = \"a\"\ncommand = \"true\"\n"), Some(3), "write [[job]]"),
        (format!("{head}{a}{b}after = \"c\"\n"), Some(9), "no job \"c\""),
        (format!("{head}{a}{b}after = \"done(a\"\n"), Some(9), "expected"),
        (format!("{head}{a}{b}after = 7\n"), Some(9), "a string or a list of strings"),
        (format!("{head}{a}{b}after = \"12\"\n"), Some(9), "not a job number"),
        (format!("{head}{a}{b}after = \"a[3]\"\n"), Some(9), "no element 3"),
        (format!("{head}{a}{b}after = \"post_err(a)\"\n"), Some(9), "post_err"),
        (format!("{head}{a}{b}after = \"done(a[*])\"\n"), Some(9), "this job is not an array"),
        (
            format!("{head}{a}{b}array = \"1-2\"\nafter = \"done(a[*])\"\n"),
            Some(10),
            "job a is not an array",
        ),
        (
            format!("{head}{a}array = \"1-2\"\n{b}array = \"2-4\"\nafter = \"a[*]\"\n"),
            Some(11),
            "job a has no element 3",
        ),
        (
            format!("{head}{a}array = \"1\"\n{b}array = \"1\"\nafter = \"a[*] || ended(a)\"\n"),
            Some(11),
            "by && only",
        ),
        (format!("{head}{a}after = \"a\"\n"), Some(6), "a after a"),
        (format!("{head}{a}after = \"b\"\n{b}after = \"a\"\n"), Some(6), "a after b after a"),
        (format!("{head}{a}array = \"1-x\"\n"), Some(6), "array"),
        (format!("{head}{a}slots = 0\n"), Some(6), "at least 1"),
        (format!("{head}{a}time_limit = \"soon\"\n"), Some(6), "soon"),
        (format!("{head}{a}[schedule]\n"), Some(6), "one of cron, at and file"),
        (format!("{head}{a}[schedule]\ncron = \"0 6\"\n"), Some(7), "cron"),
        (format!("{head}{a}[schedule]\ncron = \"@daily\"\nzone = \"Mars\"\n"), Some(8), "Mars"),
        (format!("{head}{a}[schedule]\nat = \"2027-01-01\"\n"), Some(7), "day and time"),
        (
            format!("{head}{a}[schedule]\nat = \"2027-01-01T06:00Z\"\n"),
            Some(7),
            "must not contain a zone",
        ),
        (format!("{head}{a}[schedule]\nfile = \"in/*\"\n"), Some(7), "absolute"),
        (format!("{head}{a}[schedule]\nfile = \"/a/../b\"\n"), Some(7), ".."),
        (
            format!("{head}{a}[schedule]\nfile = \"/a\"\noverlap = false\n"),
            Some(8),
            "apply to cron and at only",
        ),
    ] {
        let error = FlowSpec::read(&text, &Surroundings::default()).unwrap_err();
        assert!(error.reason.contains(reason), "{text}: {error}");
        assert!(line.is_none() || error.line == line, "{text}: {error}");
    }
}

#[test]
fn what_a_flow_says_of_all_jobs_counts_for_each() {
    let big = format!("environment = {{ A = \"{}\" }}", "x".repeat(1 << 20));
    let jobs: Vec<String> = (0..9).map(|number| format!("j{number}")).collect();
    let mut text = format!("[flow]\nname = \"f\"\n{big}\n");
    for job in &jobs {
        text += &format!("[[job]]\nname = \"{job}\"\ncommand = \"true\"\n");
    }
    let error = FlowSpec::read(&text, &Surroundings::default()).unwrap_err();
    assert!(error.reason.contains("8388608 bytes together"), "{error}");
    assert_eq!(error.line, Some(25), "the eighth is one too many");
}

#[test]
fn jobs_take_what_the_flow_says_unless_they_say_otherwise() {
    let around = Surroundings {
        directory: "/place".to_owned(),
        umask: 0o22,
        environment: vec![("A".to_owned(), "0".to_owned()), ("B".to_owned(), "0".to_owned())],
    };
    let text = "[flow]\nname = \"f\"\nqueue = \"night\"\nslots = 2\ndirectory = \"data\"\n\
                environment = { A = \"1\", C = \"1\" }\n\
                [[job]]\nname = \"a\"\ncommand = [\"x\", \"y z\"]\n\
                [[job]]\nname = \"b\"\ncommand = \"x y\"\nqueue = \"day\"\nslots = 1\n\
                directory = \"/tmp\"\nenvironment = { A = \"2\" }\narray = \"1-9%3\"\n\
                after = [\"a\", \"ended(a)\"]\n";
    let flow = FlowSpec::read(text, &around).unwrap();
    let (a, b) = (&flow.steps[0], &flow.steps[1]);
    let text = |pairs: &[(String, String)]| {
        pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(a.command, ["x", "y z"]);
    assert_eq!(b.command, ["/bin/sh", "-c", "x y"]);
    assert_eq!((a.slots, b.slots, a.umask), (2, 1, 0o22));
    assert_eq!((a.directory.as_str(), b.directory.as_str()), ("/place/data", "/tmp"));
    assert_eq!(
        (a.queue.as_ref().unwrap().as_str(), b.queue.as_ref().unwrap().as_str()),
        ("night", "day")
    );
    assert_eq!(text(&a.environment), "A=1 B=0 C=1");
    assert_eq!(text(&b.environment), "A=2 B=0 C=1");
    assert_eq!(b.array.as_ref().unwrap().to_string(), "[1-9]%3");
    assert_eq!(b.depends.as_ref().unwrap().to_string(), "done(\"a\") && ended(\"a\")");
}
