//! A submission whose answer is lost: its client asks again, and there is one job.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_base::time::StepClock;
use forebay_engine::controller::{Controller, Input};
use forebay_engine::home::GridHome;
use forebay_engine::protocol::client::Client;
use forebay_engine::protocol::{Answer, Ask, Page, Refusal, RefusalKind};
use forebay_grid::config::Config;
use forebay_grid::spec::JobSpec;
use forebay_grid::vocabulary::JobId;
use forebay_store::memory::MemoryStore;
use uuid::Uuid;

type Shared = Arc<MemoryStore>;

/// When it begins, in seconds since 1970.
const BEGIN: i64 = 1_000_000;

fn controller(store: &Shared, seconds: i64) -> Controller<Shared> {
    let clock = Arc::new(StepClock::new(seconds));
    Controller::open(Arc::clone(store), Config::default(), clock).unwrap()
}

fn ask(controller: &mut Controller<Shared>, user: &str, ask: Ask) -> Answer {
    let (reply, answer) = channel();
    let user = user.parse().unwrap();
    controller.take(vec![Input::Ask { connection: 1, user, ask, reply }]).unwrap();
    answer.try_recv().expect("an answer")
}

fn spec(name: &str) -> JobSpec {
    let command = vec!["true".to_owned()];
    JobSpec { command, name: name.to_owned(), ..JobSpec::default() }
}

fn keyed(key: u128) -> Ask {
    Ask::Submit { spec: Box::new(spec("one")), key: Some(Uuid::from_u128(key)) }
}

fn accepted(answer: &Answer) -> u64 {
    let Answer::Accepted { job } = answer else { panic!("{answer:?}") };
    job.0
}

fn jobs(controller: &mut Controller<Shared>) -> usize {
    let all = Ask::Jobs { target: None, ended: true, page: Page::default() };
    match ask(controller, "ann", all) {
        Answer::Jobs { jobs, .. } => jobs.len(),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_submission_with_the_same_key_is_answered_with_the_same_job() {
    let store = Shared::default();
    let mut first = controller(&store, BEGIN);
    assert_eq!(accepted(&ask(&mut first, "ann", keyed(7))), 1);
    assert_eq!(accepted(&ask(&mut first, "ann", keyed(7))), 1);
    // Another key, another user and no key are other submissions.
    assert_eq!(accepted(&ask(&mut first, "ann", keyed(8))), 2);
    assert_eq!(accepted(&ask(&mut first, "bob", keyed(7))), 3);
    assert_eq!(accepted(&ask(&mut first, "ann", Ask::submit(spec("one")))), 4);
    // From the journal as from memory, and from a snapshot.
    drop(first);
    let mut second = controller(&store, BEGIN);
    assert_eq!(accepted(&ask(&mut second, "ann", keyed(7))), 1);
    let (stop, stopped) = channel();
    stop.send(Input::Stop).unwrap();
    second.run(&stopped).unwrap();
    let mut third = controller(&store, BEGIN);
    assert_eq!(accepted(&ask(&mut third, "ann", keyed(8))), 2);
    assert_eq!(jobs(&mut third), 3);
    drop(third);
    let mut later = controller(&store, BEGIN + 60 * 60 + 1);
    assert_eq!(accepted(&ask(&mut later, "ann", keyed(8))), 5, "after an hour it is forgotten");
}

#[test]
fn a_submission_that_was_refused_is_tried_again_under_its_key() {
    let store = Shared::default();
    let mut controller = controller(&store, BEGIN);
    let unknown = JobSpec { queue: Some("none".parse().unwrap()), ..spec("one") };
    let key = Some(Uuid::from_u128(7));
    let refused = ask(&mut controller, "ann", Ask::Submit { spec: Box::new(unknown), key });
    let Answer::Refused(Refusal { kind: RefusalKind::NoQueue, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(accepted(&ask(&mut controller, "ann", keyed(7))), 1);
}

/// What becomes of a connection.
#[derive(Clone, Copy)]
enum Fate {
    /// So many lines of it are taken, and it ends before any is answered.
    Lost(usize),
    Answered,
}

/// Has a controller take the lines of one connection.
fn serve(controller: &mut Controller<Shared>, mut stream: &UnixStream, fate: Fate) {
    let most = if let Fate::Lost(lines) = fate { lines } else { usize::MAX };
    for line in BufReader::new(stream).lines().take(most) {
        let Ok(line) = line else { return };
        let answer = ask(controller, "ann", serde_json::from_str(&line).unwrap());
        if let Fate::Answered = fate {
            let line = serde_json::to_string(&answer).unwrap() + "\n";
            stream.write_all(line.as_bytes()).unwrap();
        }
    }
}

#[test]
fn a_client_whose_answer_is_lost_asks_again_and_there_is_one_job() {
    let root = tempfile::tempdir().unwrap();
    let home = GridHome::of(root.path()).unwrap();
    std::fs::create_dir_all(home.folder()).unwrap();
    let listener = UnixListener::bind(home.socket()).unwrap();
    let served = std::thread::spawn(move || {
        let mut controller = controller(&Shared::default(), BEGIN);
        for fate in [Fate::Lost(2), Fate::Answered, Fate::Lost(1), Fate::Answered] {
            let (stream, _) = listener.accept().unwrap();
            serve(&mut controller, &stream, fate);
        }
        jobs(&mut controller)
    });
    let mut client = Client::connect(&home).unwrap();
    let mut taken = Vec::new();
    let specs = ["a", "b", "c"].map(spec).to_vec();
    client
        .submit_all(specs, |place, answer| {
            taken.push((place, accepted(&answer)));
            Ok(())
        })
        .unwrap();
    assert_eq!(taken, [(0, 1), (1, 2), (2, 3)]);
    drop(client);
    let mut client = Client::connect(&home).unwrap();
    assert_eq!(client.submit(spec("d")).unwrap(), JobId(4));
    drop(client);
    assert_eq!(served.join().unwrap(), 4);
}

/// A submission as the version before advance reservations and inputs sent it. It stays as it is.
const OLDER: &str = r#"{"ask":"submit","spec":{"command":["true"],"queue":null,"name":"one","slots":1,"hosts":"",
    "memory":"1 GiB","array":null,"depends":null,"on_never":null,"priority":0,"rerun":"as_queue","requeue_exits":"","environment":[],
    "time_limit":null,"output":null,"error":null,"directory":"/","umask":18,"checkpoint":"none","held":false,"project":"",
    "interactive":null,"script":null,"dialect":null,"begin":null,"deadline":null,"resources":"","sharing":"shared","pre":null,
    "post":null,"profile":null,"io_heavy":false,"service":null,"notify":null}}"#;

/// What that version took: each of its fields.
fn older_fields() -> Vec<String> {
    let older: serde_json::Value = serde_json::from_str(OLDER).unwrap();
    older["spec"].as_object().unwrap().keys().cloned().collect()
}

fn sent(spec: JobSpec) -> Vec<String> {
    let text = serde_json::to_string(&Ask::submit(spec)).unwrap();
    let sent: serde_json::Value = serde_json::from_str(&text).unwrap();
    sent["spec"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn an_older_submission_is_accepted() {
    let Ask::Submit { spec: older, key: None } = serde_json::from_str(OLDER).unwrap() else {
        panic!("not a submission")
    };
    let wanted = JobSpec {
        slots: 1,
        memory: Some(forebay_base::ByteSize(1 << 30)),
        directory: "/".to_owned(),
        umask: 18,
        ..spec("one")
    };
    assert_eq!(*older, wanted);
}

#[test]
fn a_submission_that_asks_for_nothing_new_is_understood_by_older_controllers() {
    assert_eq!(sent(spec("one")), ["command", "name"]);
    let usual = JobSpec {
        slots: 2,
        queue: Some("normal".parse().unwrap()),
        memory: Some(forebay_base::ByteSize(1 << 20)),
        output: Some("out".to_owned()),
        umask: 18,
        ..spec("one")
    };
    let known = older_fields();
    let new: Vec<String> = sent(usual).into_iter().filter(|field| !known.contains(field)).collect();
    assert!(new.is_empty(), "an older controller refuses {new:?}");
    // What is new is sent, and refused by those who cannot do it.
    let reserved = JobSpec { reservation: Some("course".parse().unwrap()), ..spec("one") };
    assert_eq!(sent(reserved), ["command", "name", "reservation"]);
}

#[test]
fn what_is_sent_and_what_the_journal_keeps_is_the_whole_job() {
    let job = JobSpec {
        slots: 3,
        held: true,
        reservation: Some("course".parse().unwrap()),
        environment: vec![("A".to_owned(), "1".to_owned())].into(),
        ..spec("one")
    };
    for job in [job, spec("two"), JobSpec::default()] {
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<JobSpec>(&text).unwrap(), job);
        let bytes = postcard::to_stdvec(&job).unwrap();
        assert_eq!(postcard::from_bytes::<JobSpec>(&bytes).unwrap(), job);
    }
    // In the journal each field has its place, whether it is set or not: the bytes are those of versions before.
    let bytes = postcard::to_stdvec(&JobSpec::default()).unwrap();
    assert!(bytes.len() >= 35, "{} bytes", bytes.len());
}

#[test]
fn a_field_that_a_reader_does_not_know_is_named() {
    let newer = r#"{"ask":"submit","spec":{"command":["true"],"zone":"a"}}"#;
    let error = serde_json::from_str::<Ask>(newer).unwrap_err().to_string();
    assert_eq!(forebay_engine::protocol::unknown_word(&error), Some("zone"));
    let error = serde_json::from_str::<Ask>(r#"{"ask":"teleport"}"#).unwrap_err().to_string();
    assert_eq!(forebay_engine::protocol::unknown_word(&error), Some("teleport"));
    assert_eq!(forebay_engine::protocol::unknown_word("a line has no end"), None);
}
