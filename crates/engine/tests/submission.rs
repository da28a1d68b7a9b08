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
