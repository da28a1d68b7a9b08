//! Who reads a connection: callers that wait read for each other, and the thread that receives a call may carry it out.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use forebay_base::channel::{CallError, Channel, Message, ServiceId};
use forebay_base::{ClientId, NodeId};
use forebay_node::session::Hub;
use forebay_node::session::crew::{Crew, Work};
use forebay_node::settings::Settings;
use parking_lot::{Condvar, Mutex};

use crate::support::proxy::Proxy;
use crate::support::{Door, Noting, World, message, quick, wait_until};

/// Calls whose name begins with "slow" stand before the door; all are answered with themselves.
fn slow_behind(door: &Arc<Door>) -> Arc<Noting> {
    let door = Arc::clone(door);
    Noting::new(move |_, message| {
        if message.head.starts_with(b"slow") {
            door.pass();
        }
        Ok(message)
    })
}

/// Two nodes; the second one calls the first one through the proxy.
struct Pair {
    world: World,
    server: Arc<Hub>,
    client: Arc<Hub>,
    proxy: Proxy,
}

impl Pair {
    fn new(service: &Arc<Noting>, settings: &Settings) -> Pair {
        let world = World::new();
        let services = [ServiceId::Files, ServiceId::Disks].map(|id| (id, service.clone() as _));
        let server = world.node((1, 1), services.into(), settings.clone());
        let client = world.node((2, 1), vec![], settings.clone());
        let proxy = Proxy::to(server.address().to_string());
        world.book.set(1, proxy.address.clone());
        Pair { world, server, client, proxy }
    }

    fn channel(&self) -> Arc<dyn Channel> {
        self.client.channel(NodeId(1), ServiceId::Files)
    }

    fn waiting_calls(&self) -> usize {
        self.client.sessions()[0].figures.waiting_calls
    }
}

fn call(channel: &Arc<dyn Channel>, name: &str) {
    assert_eq!(channel.call(message(name)), Ok(message(name)));
}

#[test]
fn slow_calls_do_not_stop_short_ones() {
    let door = Arc::<Door>::default();
    let pair = Pair::new(&slow_behind(&door), &quick());
    let channel = pair.channel();
    std::thread::scope(|scope| {
        let mut slow = Vec::new();
        for begun in 1..=5 {
            let channel = &channel;
            slow.push(scope.spawn(move || call(channel, &format!("slow {begun}"))));
            wait_until("the slow call is begun", || door.before.load(Ordering::SeqCst) == begun);
            for short in 0..100 {
                call(channel, &format!("short {begun} {short}"));
            }
            assert!(slow.iter().all(|slow| !slow.is_finished()));
        }
        door.open();
    });
}

#[test]
fn callers_get_their_own_answers_in_whatever_order_they_arrive() {
    const CALLERS: usize = 16;
    let turn = Arc::new((Mutex::new(usize::MAX), Condvar::new()));
    let begun = Arc::<AtomicUsize>::default();
    let (turns, counted) = (Arc::clone(&turn), Arc::clone(&begun));
    let service = Noting::new(move |_, message| {
        let mine: usize = std::str::from_utf8(&message.head).unwrap().parse().unwrap();
        counted.fetch_add(1, Ordering::SeqCst);
        let (now, changed) = &*turns;
        let mut now = now.lock();
        while *now != mine {
            changed.wait(&mut now);
        }
        Ok(message)
    });
    let pair = Pair::new(&service, &quick());
    let channel = pair.channel();
    // The first caller reads; its answer is the first one, the last one, and one in the middle.
    for round in 0..3 {
        let order: Vec<usize> = match round {
            0 => (0..CALLERS).collect(),
            1 => (0..CALLERS).rev().collect(),
            _ => (0..CALLERS).map(|at| (at * 5 + 8) % CALLERS).collect(),
        };
        begun.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let mut calls = Vec::new();
            for caller in 0..CALLERS {
                let channel = &channel;
                calls.push(scope.spawn(move || call(channel, &format!("{caller}"))));
                wait_until("the call is begun", || begun.load(Ordering::SeqCst) == caller + 1);
            }
            for next in order {
                *turn.0.lock() = next;
                turn.1.notify_all();
                wait_until("the answer is there", || calls[next].is_finished());
            }
            *turn.0.lock() = usize::MAX;
        });
    }
}

#[test]
fn callers_that_read_for_each_other_survive_a_cut() {
    let door = Arc::<Door>::default();
    let service = slow_behind(&door);
    let pair = Pair::new(&service, &quick());
    let channel = pair.channel();
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let channel = &channel;
            scope.spawn(move || call(channel, &format!("slow {caller}")));
        }
        wait_until("all calls are begun", || door.before.load(Ordering::SeqCst) == 4);
        for cut in 0..3 {
            pair.proxy.cut();
            call(&channel, &format!("after cut {cut}"));
        }
        door.open();
    });
    for caller in 0..4 {
        assert_eq!(service.count(format!("slow {caller}").as_bytes()), 1);
    }
}

#[test]
fn the_caller_that_reads_learns_that_its_session_is_over() {
    let ends: [fn(&Pair); 2] = [
        |pair| {
            let client = ClientId { node: NodeId(2), incarnation: 1 };
            pair.server.evict(client, "it did not answer a recall");
        },
        |pair| pair.client.stop(),
    ];
    for end in ends {
        let door = Arc::<Door>::default();
        let pair = Pair::new(&slow_behind(&door), &quick());
        let channel = pair.channel();
        std::thread::scope(|scope| {
            let calls = ["slow a", "slow b", "slow c"]
                .map(|name| scope.spawn(|| channel.call(message(name)).unwrap_err()));
            wait_until("all calls are begun", || door.before.load(Ordering::SeqCst) == 3);
            end(&pair);
            for call in calls {
                let error = call.join().unwrap();
                assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
            }
            door.open();
        });
    }
}

#[test]
fn an_answer_arrives_after_the_caller_that_read_has_given_up() {
    let long = Duration::from_secs(60);
    let settings = Settings { silence_max: long, session_grace: long, ..quick() };
    let service = Noting::echo();
    let pair = Pair::new(&service, &settings);
    let channel = |service| pair.client.channel(NodeId(1), service);
    call(&channel(ServiceId::Files), "before");
    pair.proxy.stall();
    std::thread::scope(|scope| {
        let channel = &channel;
        let files = scope.spawn(move || channel(ServiceId::Files).call(message("given up")));
        wait_until("the first caller waits", || pair.waiting_calls() == 1);
        let disks = scope.spawn(move || channel(ServiceId::Disks).call(message("kept")));
        wait_until("the second caller waits", || pair.waiting_calls() == 2);
        pair.world.book.remove(1);
        pair.world.book.succeed(1, 1);
        let error = files.join().unwrap().unwrap_err();
        assert!(matches!(error, CallError::Unreachable(_)), "{error:?}");
        assert!(!disks.is_finished());
        pair.proxy.release();
        assert_eq!(disks.join().unwrap(), Ok(message("kept")));
    });
}

#[test]
fn a_call_may_wait_for_a_call_back_that_waits_for_another_call() {
    let back: Arc<OnceLock<Arc<dyn Channel>>> = Arc::default();
    let there: Arc<OnceLock<Arc<dyn Channel>>> = Arc::default();
    let world = World::new();
    let recall = Arc::clone(&back);
    let files = Noting::new(move |_, message| {
        if message.head.starts_with(b"change") {
            return recall.get().unwrap().call(message);
        }
        Ok(message)
    });
    let tell = Arc::clone(&there);
    let cache = Noting::new(move |_, message| {
        let told = Message { head: [b"tell ".as_slice(), &message.head].concat(), payload: vec![] };
        assert_eq!(tell.get().unwrap().call(told.clone()), Ok(told));
        Ok(message)
    });
    let server = world.node((1, 1), vec![(ServiceId::Files, files.clone())], quick());
    let client = world.node((2, 1), vec![(ServiceId::Cache, cache.clone())], quick());
    assert!(back.set(server.channel(NodeId(2), ServiceId::Cache)).is_ok());
    assert!(there.set(client.channel(NodeId(1), ServiceId::Files)).is_ok());
    let channel = Arc::clone(there.get().unwrap());
    for callers in [1, 8] {
        std::thread::scope(|scope| {
            for caller in 0..callers {
                let channel = &channel;
                scope.spawn(move || {
                    for round in 0..100 {
                        call(channel, &format!("change {callers} {caller} {round}"));
                    }
                });
            }
        });
    }
    assert_eq!(files.counts.lock().values().sum::<usize>(), 1800);
    assert_eq!(cache.counts.lock().values().sum::<usize>(), 900);
}

/// Reports on how many processors its thread may run.
struct Where(mpsc::Sender<u32>);

impl Work for Where {
    fn work(self: Arc<Self>) {
        self.0.send(processors(None)).unwrap();
    }
}

fn processors(thread: Option<rustix::thread::Pid>) -> u32 {
    rustix::thread::sched_getaffinity(thread).unwrap().count()
}

#[test]
fn a_thread_that_a_bound_one_starts_is_not_bound() {
    let process = rustix::process::getpid();
    let all = rustix::thread::sched_getaffinity(Some(process)).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
    let mut one = rustix::thread::CpuSet::new();
    one.set(first);
    // As threads of the FUSE ring are.
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    assert_eq!(processors(None), 1);
    let (sender, receiver) = mpsc::channel();
    Crew::new(1).offer(Arc::new(Where(sender)));
    assert_eq!(receiver.recv().unwrap(), processors(Some(process)));
}

/// How often a thread has gone to sleep.
fn sleeps_of(task: &Path) -> u64 {
    let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
    let counted = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    counted.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// How often the threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.flatten().map(|task| sleeps_of(&task.path())).sum()
}

#[test]
#[ignore = "a measurement, to be run alone: cargo test -p forebay-node --test node cost_of_a_call -- --ignored --nocapture"]
fn cost_of_a_call() {
    const CALLS: u32 = 20_000;
    let world = World::new();
    let _server = world.node((1, 1), vec![(ServiceId::Files, Noting::echo())], Settings::default());
    let client = world.node((2, 1), vec![], Settings::default());
    let channel = client.channel(NodeId(1), ServiceId::Files);
    for callers in [1, 2, 4] {
        call(&channel, "before");
        let (before, start) = (sleeps(), Instant::now());
        let of_callers = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..callers {
                scope.spawn(|| {
                    (0..CALLS / callers).for_each(|_| call(&channel, "x"));
                    let slept = sleeps_of(Path::new("/proc/thread-self"));
                    of_callers.fetch_add(slept, Ordering::Relaxed);
                });
            }
        });
        let slept = (sleeps() + of_callers.into_inner()).saturating_sub(before);
        let time = start.elapsed();
        println!(
            "{callers} callers: {:.1} us and {:.2} wake-ups for each call",
            time.as_secs_f64() * 1e6 / f64::from(CALLS),
            f64::from(u32::try_from(slept).unwrap_or(u32::MAX)) / f64::from(CALLS)
        );
    }
}
