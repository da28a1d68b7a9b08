//! A connection that watches jobs: answers come as things happen, whatever is asked meanwhile.
//!
//! Threads: one takes what the controller says and never waits, one writes. The next question is read when the last one
//! was answered and the answer written, and who leaves more than `UNREAD_MAX` answers unread is cut off: it can
//! connect and watch again. So a watcher holds a bounded part of the controller's memory, also one that was stopped.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};

use anyhow::Result;
use forebay_grid::vocabulary::UserName;

use crate::controller::Input;
use crate::protocol::socket::{self, Reader};
use crate::protocol::{Answer, Ask, RefusalKind};
use crate::server::LOOK;

/// The most answers that wait to be written: what a job has to tell at first, twice.
const UNREAD_MAX: usize = 4096;

/// Carries a connection that watches, from the first question that says so.
pub(crate) fn converse(
    stream: &UnixStream,
    mut reader: Reader,
    (user, connection): (&UserName, u64),
    first: Ask,
    inputs: &Sender<Input>,
) -> Result<()> {
    let reply = begin_to_write(stream.try_clone()?)?;
    let mut next = Ok(Some(first));
    let result = loop {
        let ask = match next {
            Ok(Some(ask @ Ask::Watch { .. })) => ask,
            Ok(Some(_)) => {
                let reason = "this connection watches jobs and accepts no other requests";
                let _ = reply.sender.send(Answer::refused(RefusalKind::NotUnderstood, reason));
                break Ok(());
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        // A user's questions are answered in order: once the second one is, so is the first.
        let sent = [ask, Ask::Ping].into_iter().all(|ask| {
            let (user, reply) = (user.clone(), reply.sender.clone());
            inputs.send(Input::Ask { connection, user, ask, reply }).is_ok()
        });
        if !sent || !was_written(stream, &reply.written) {
            break Ok(());
        }
        next = reader.read::<Ask>();
    };
    let _ = inputs.send(Input::Closed { connection, user: user.clone() });
    result
}

/// Where answers go, and word of each question that was answered for good.
struct Reply {
    sender: Sender<Answer>,
    written: Receiver<()>,
}

/// Begins to write what is answered, until nobody answers any more or nobody reads.
fn begin_to_write(stream: UnixStream) -> Result<Reply> {
    let (sender, answers) = channel::<Answer>();
    let (queue, unread) = sync_channel::<Answer>(UNREAD_MAX);
    let (tell, written) = channel();
    let taken = stream.try_clone()?;
    std::thread::Builder::new().name("notices".to_owned()).spawn(move || {
        while let Ok(answer) = answers.recv() {
            if queue.try_send(answer).is_err() {
                // The other two threads shall notice as well.
                let _ = taken.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    })?;
    std::thread::Builder::new().name("notices-out".to_owned()).spawn(move || {
        while let Ok(first) = unread.recv() {
            let all = std::iter::once(first).chain(unread.try_iter().take(UNREAD_MAX));
            let (marks, notices): (Vec<Answer>, Vec<Answer>) =
                all.partition(|answer| matches!(answer, Answer::Here));
            if socket::write_all(&stream, &notices).is_err() {
                break;
            }
            // Whoever asked may be gone.
            for _ in marks {
                let _ = tell.send(());
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    })?;
    Ok(Reply { sender, written })
}

/// Waits until the answer to the last question was written; whether it was, and somebody is there still.
fn was_written(stream: &UnixStream, written: &Receiver<()>) -> bool {
    loop {
        match written.recv_timeout(LOOK) {
            Ok(()) => return true,
            Err(RecvTimeoutError::Timeout) if socket::is_there(stream) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A watcher's client, and what reaches the controller.
    fn watch() -> (UnixStream, Receiver<Input>, std::thread::JoinHandle<Result<()>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (inputs, taken) = channel();
        let first = Ask::Watch { job: forebay_grid::vocabulary::JobId(1) };
        let reader = Reader::of_many(ours.try_clone().unwrap());
        let served = std::thread::spawn(move || {
            converse(&ours, reader, (&"ann".parse().unwrap(), 7), first, &inputs)
        });
        (theirs, taken, served)
    }

    fn ask(taken: &Receiver<Input>) -> (Ask, Sender<Answer>) {
        match taken.recv_timeout(LIMIT).unwrap() {
            Input::Ask { ask, reply, .. } => (ask, reply),
            _ => panic!("no question"),
        }
    }

    #[test]
    fn the_next_question_is_read_when_the_last_one_was_answered() {
        let (theirs, taken, served) = watch();
        let again = Ask::Watch { job: forebay_grid::vocabulary::JobId(2) };
        socket::write_all(&theirs, &[again]).unwrap();
        let (_, reply) = ask(&taken);
        assert!(matches!(ask(&taken), (Ask::Ping, _)));
        assert!(taken.recv_timeout(Duration::from_millis(200)).is_err(), "it reads on");
        reply.send(Answer::Obeyed { tasks: 1 }).unwrap();
        reply.send(Answer::Here).unwrap();
        assert!(matches!(ask(&taken), (Ask::Watch { .. }, _)));
        let mut reader = Reader::new(theirs.try_clone().unwrap());
        assert!(matches!(reader.read::<Answer>(), Ok(Some(Answer::Obeyed { tasks: 1 }))));
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(served.join().unwrap().is_ok());
        drop(reply);
    }

    #[test]
    fn one_who_reads_nothing_is_cut_off() {
        let (mut theirs, taken, served) = watch();
        let (_, reply) = ask(&taken);
        let reason = "x".repeat(1000);
        let mut sent = 0;
        while reply.send(Answer::refused(RefusalKind::Failed, &*reason)).is_ok() {
            sent += 1;
            if sent % 1000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            assert!(sent < 10_000_000, "it takes without end");
        }
        served.join().unwrap().unwrap();
        theirs.read_to_end(&mut Vec::new()).unwrap();
    }
}
