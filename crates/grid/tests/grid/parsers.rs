//! Each small language: what it takes, how it prints, and where it says that something is wrong.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use forebay_grid::parse::ParseError;
use forebay_grid::parse::array::{ArraySpec, name_and_array};
use forebay_grid::parse::cron::Schedule;
use forebay_grid::parse::dependency::Dependency;
use forebay_grid::parse::hosts::HostList;
use forebay_grid::parse::period::Period;
use forebay_grid::parse::requeue::{Again, RequeueExits};
use forebay_grid::parse::window::Windows;
use forebay_grid::parse::zone::Zone;
use forebay_grid::vocabulary::{HostName, Moment};

/// Every text reads and prints as said, and what is printed reads back to the same.
fn reads<T>(table: &[(&str, &str)])
where
    T: FromStr<Err = ParseError> + Display + PartialEq + Debug,
{
    for (text, printed) in table {
        let value: T = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(value.to_string(), *printed, "{text}");
        assert_eq!(value.to_string().parse::<T>().as_ref(), Ok(&value), "{text}");
    }
}

/// Every text is refused at the character said, with a reason that holds the words said.
fn refuses<T: FromStr<Err = ParseError> + Debug>(table: &[(&str, usize, &str)]) {
    for (text, at, words) in table {
        let error = text.parse::<T>().expect_err(text);
        assert_eq!(error.at, *at, "{error}");
        assert!(error.reason.contains(words), "{error}");
    }
}

#[test]
fn dependencies_read_as_lsf_writes_them() {
    reads::<Dependency>(&[
        ("done(12)", "done(12)"),
        ("12", "done(12)"),
        ("load", "done(\"load\")"),
        (
            "done(12) && ended(load*) || exit(3,>1)",
            "(done(12) && ended(\"load*\")) || exit(3, > 1)",
        ),
        ("done(1)&&(done(2)||done(3))", "done(1) && (done(2) || done(3))"),
        ("exit(3, 7)", "exit(3, == 7)"),
        ("started(4[3])", "started(4[3])"),
        ("post_done(5) || post_err(5)", "post_done(5) || post_err(5)"),
        ("numdone(6, >= 5) && numexit(6,<2)", "numdone(6, >= 5) && numexit(6, < 2)"),
        ("numended(6, != 1) && numstart(6, <= 3)", "numended(6, != 1) && numstart(6, <= 3)"),
        ("ended(\"my job\")", "ended(\"my job\")"),
        ("ended(\"12\")", "ended(\"12\")"),
        ("done(done)", "done(\"done\")"),
    ]);
    let deep = format!("{}1{}", "(".repeat(33), ")".repeat(33));
    let long = vec!["1"; 1001].join("||");
    refuses::<Dependency>(&[
        ("", 1, "expected a job"),
        ("done(12", 8, "expected \")\""),
        ("done()", 6, "expected a job"),
        ("done(12) &&", 12, "expected a job"),
        ("done(12) & done(13)", 10, "\"&&\", \"||\" or the end"),
        ("done(12) done(13)", 10, "\"&&\", \"||\" or the end"),
        ("finished(12)", 1, "choose from done, ended"),
        ("done(12, 3)", 8, "exactly one job"),
        ("numdone(12)", 11, "comparison"),
        ("exit(12, > x)", 12, "number"),
        ("exit(12, 99999999999)", 10, "at most"),
        ("!done(12)", 1, "\"!\" is not supported"),
        ("(done(12)", 10, "\")\""),
        ("done(0)", 6, "job numbers start at 1"),
        ("done(12[0])", 9, "start at 1"),
        ("ended(\"a", 7, "not closed"),
        ("müde(12) ö(", 1, "is unknown"),
        (&deep, 33, "nested"),
        (&long, 3001, "conditions"),
    ]);
}

#[test]
fn host_lists_read_as_lsf_writes_them() {
    reads::<HostList>(&[
        ("", ""),
        ("gridn1+1 others+2", "gridn1+1 others+2"),
        ("  a   b+3 ", "a b+3"),
        ("all ~h3", "all ~h3"),
        ("a!+2 b", "a!+2 b"),
    ]);
    let preference = |list: &str, host: &str| {
        let list: HostList = list.parse().unwrap();
        list.preference(&host.parse::<HostName>().unwrap())
    };
    for (list, host, expected) in [
        ("", "a", Some(0)),
        ("a+1 others+2", "a", Some(1)),
        ("a+1 others+2", "b", Some(2)),
        ("a+1", "b", None),
        ("all ~a", "a", None),
        ("all ~a", "b", Some(0)),
        ("all+1 a+5", "a", Some(5)),
        ("~a", "b", Some(0)),
        ("a! b+9", "b", None),
        ("a! b+9", "a", Some(0)),
    ] {
        assert_eq!(preference(list, host), expected, "{list} {host}");
    }
    refuses::<HostList>(&[
        ("a a", 3, "twice"),
        ("a+", 3, "preference"),
        ("a+x", 3, "preference"),
        ("a+1000001", 3, "at most"),
        ("a b+1!", 6, "blank"),
        ("~all", 1, "one host"),
        ("others!", 1, "one host"),
        ("a/b", 1, "not allowed"),
        ("+3", 1, "expected a host"),
    ]);
}

#[test]
fn arrays_read_as_lsf_writes_them() {
    reads::<ArraySpec>(&[
        ("[1-100:2]%10", "[1-99:2]%10"),
        ("[1,5,10-12]", "[1,5,10-12]"),
        ("[7]", "[7]"),
        ("[3-3]", "[3]"),
    ]);
    let array: ArraySpec = "[2-8:3,20,30-31]".parse().unwrap();
    let indices: Vec<u32> =
        (0..array.count()).map(|place| array.index_at(place).unwrap()).collect();
    assert_eq!(indices, [2, 5, 8, 20, 30, 31]);
    for (place, index) in (0..).zip(indices) {
        assert_eq!(array.place_of(index), Some(place));
    }
    assert_eq!((array.index_at(6), array.place_of(3), array.place_of(9)), (None, None, None));
    refuses::<ArraySpec>(&[
        ("", 1, "expected \"[\""),
        ("[]", 2, "an index"),
        ("[0-3]", 2, "start at 1"),
        ("[5-3]", 4, "at least 5"),
        ("[1-9:0]", 6, "at least 1"),
        ("[1-3,2]", 6, "must rise"),
        ("[1-3", 5, "\",\" or \"]\""),
        ("[1-3]%0", 7, "at least 1"),
        ("[1-3]%", 7, "the number of elements"),
        ("[1-3]x", 6, "the end"),
        ("[1-1000001]", 2, "at most 1000000 elements"),
        ("[1-100000001]", 4, "at most"),
    ]);
    assert_eq!(name_and_array("load").unwrap(), ("load", None));
    assert_eq!(name_and_array("lo[1-2]%1").unwrap(), ("lo", Some("[1-2]%1".parse().unwrap())));
    assert_eq!(name_and_array("lo[1-x]").unwrap_err().at, 6);
}

#[test]
fn requeue_exits_read_as_lsf_writes_them() {
    reads::<RequeueExits>(&[
        ("", ""),
        ("99 EXCLUDE(137)", "99 EXCLUDE(137)"),
        ("EXCLUDE(1 2) 3", "EXCLUDE(1) EXCLUDE(2) 3"),
        ("all ~1 ~2 EXCLUDE(137)", "all ~1 ~2 EXCLUDE(137)"),
    ]);
    let exits: RequeueExits = "all ~1 EXCLUDE(137)".parse().unwrap();
    let expected =
        [(0, None), (1, None), (2, Some(Again::Anywhere)), (137, Some(Again::Elsewhere))];
    for (value, again) in expected {
        assert_eq!(exits.find(value), again, "{value}");
    }
    refuses::<RequeueExits>(&[
        ("0", 1, "success"),
        ("256", 1, "at most 255"),
        ("99,100", 3, "blank"),
        ("EXCLUDE(9", 10, "\")\""),
        ("9 9", 3, "twice"),
        ("x", 1, "exit value"),
    ]);
}

#[test]
fn lengths_of_time_are_never_guessed() {
    reads::<Period>(&[
        ("90 s", "90 s"),
        ("90", "90 min"),
        ("2h", "2 h"),
        ("500 ms", "500 ms"),
        ("1:30:00", "90 min"),
        ("1-12:00:00", "36 h"),
        ("0 s", "0 s"),
        ("7 d", "7 d"),
    ]);
    refuses::<Period>(&[
        ("", 1, "90 s"),
        ("1:30", 2, "1:30:00"),
        ("5 weeks", 3, "ms, s, min, h or d"),
        ("1:99:00", 3, "at most 59"),
        ("1-25:00:00", 3, "at most 23"),
        ("-3 s", 1, "90 s"),
        ("5 s x", 5, "the end"),
        ("9999 d", 1, "ten years"),
    ]);
}

/// Milliseconds of 2024-01-07 (a Sunday) 00:00 UTC, and so many days, hours and minutes later.
fn week(day: u64, hour: u64, minute: u64) -> Moment {
    Moment(1_704_585_600_000 + ((day * 24 + hour) * 60 + minute) * 60_000)
}

#[test]
fn windows_are_open_when_lsf_says() {
    reads::<Windows>(&[
        ("", ""),
        ("1:22:00-5:06:00 20:00-8:30", "1:22:00-5:6:00 20:00-8:30"),
        ("8-18", "8:00-18:00"),
    ]);
    let utc = Zone::default();
    for (text, day, hour, minute, open) in [
        ("", 3, 12, 0, true),
        ("8-18", 3, 8, 0, true),
        ("8-18", 3, 17, 59, true),
        ("8-18", 3, 18, 0, false),
        ("20:00-8:30", 3, 8, 29, true),
        ("20:00-8:30", 3, 8, 30, false),
        ("20:00-8:30", 6, 23, 0, true),
        ("20:00-8:30", 0, 0, 0, true),
        ("1:22:00-5:06:00", 1, 21, 59, false),
        ("1:22:00-5:06:00", 3, 12, 0, true),
        ("1:22:00-5:06:00", 5, 6, 0, false),
        ("5:19:00-1:08:30", 0, 12, 0, true),
        ("5:19:00-1:08:30", 2, 12, 0, false),
        ("7:0:00-7:1:00", 0, 0, 30, true),
    ] {
        let windows: Windows = text.parse().unwrap();
        assert_eq!(
            windows.is_open(week(day, hour, minute), utc.clocks()),
            open,
            "{text} {day}:{hour}"
        );
    }
    refuses::<Windows>(&[
        ("8", 2, "\"-\""),
        ("25-26", 1, "at most 24"),
        ("8:60-9", 3, "at most 59"),
        ("1:8:00-9:00", 1, "either both"),
        ("8-8", 1, "same time"),
        ("8-9,10-11", 4, "blank"),
        ("9:8:00-1:9:00", 1, "a day is 0"),
    ]);
}

#[test]
fn windows_follow_the_clocks_of_the_zone() {
    let berlin: Zone = "Europe/Berlin".parse().unwrap();
    let windows: Windows = "2:00-4:00".parse().unwrap();
    // 2024-03-31: clocks went from 02:00 to 03:00 at 01:00 UTC.
    let night = 1_711_843_200_000;
    let hour = 3_600_000;
    for (at, open) in [(0, false), (hour - 1, false), (hour, true), (2 * hour, false)] {
        assert_eq!(windows.is_open(Moment(night + at), berlin.clocks()), open, "{at}");
    }
    // Whoever looks when told sees every edge.
    let mut now = Moment(night);
    let mut edges = Vec::new();
    let mut open = windows.is_open(now, berlin.clocks());
    while now.0 < night + 47 * hour {
        now = windows.next_look(now, berlin.clocks());
        if windows.is_open(now, berlin.clocks()) != open {
            open = !open;
            edges.push((now.0 - night) / hour);
        }
    }
    assert_eq!(edges, [1, 2, 24, 26]);
    assert!("Mars/Base".parse::<Zone>().unwrap_err().reason.contains("Europe/Berlin"));
}

#[test]
fn cron_expressions_give_the_next_time() {
    let utc = Zone::default();
    let next =
        |text: &str, from: Moment| text.parse::<Schedule>().unwrap().next_after(from, utc.clocks());
    assert_eq!(next("30 6 * * 1-5", week(0, 12, 0)), Some(week(1, 6, 30)));
    assert_eq!(next("30 6 * * 1-5", week(1, 6, 30)), Some(week(2, 6, 30)));
    assert_eq!(next("*/20 * * * *", week(0, 0, 1)), Some(week(0, 0, 20)));
    assert_eq!(next("@daily", week(0, 0, 1)), Some(week(1, 0, 0)));
    assert_eq!(next("0 0 31 2 *", week(0, 0, 0)), None);
    for text in ["", "* * *", "61 * * * *", "* * * * * *", "x"] {
        assert!(text.parse::<Schedule>().unwrap_err().reason.contains("minute, hour"), "{text}");
    }
}

#[test]
fn lists_and_names_have_a_bound() {
    let hosts = |count: usize| (0..count).map(|host| format!("h{host} ")).collect::<String>();
    assert!(hosts(4096).parse::<HostList>().is_ok());
    let error = hosts(4097).parse::<HostList>().unwrap_err().to_string();
    assert!(error.contains("at most 4096 hosts"), "{error}");
    let ranges = |count: usize| {
        let indices: Vec<String> = (1..=count).map(|index| (2 * index).to_string()).collect();
        format!("[{}]", indices.join(","))
    };
    assert!(ranges(100_000).parse::<ArraySpec>().is_ok());
    let error = ranges(100_001).parse::<ArraySpec>().unwrap_err().to_string();
    assert!(error.contains("at most 100000 ranges"));
    let named = |bytes: usize| format!("done({})", "x".repeat(bytes)).parse::<Dependency>();
    assert!(named(128).is_ok());
    assert!(named(129).unwrap_err().to_string().contains("at most 128 bytes"));
}
