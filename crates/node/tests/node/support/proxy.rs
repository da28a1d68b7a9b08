//! A proxy between two nodes that cuts connections, or stalls them without closing them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct State {
    pairs: Mutex<Vec<(TcpStream, TcpStream)>>,
    stalled: Mutex<bool>,
    released: Condvar,
    stopping: AtomicBool,
}

/// Everything that connects to it is led to one address.
pub struct Proxy {
    pub address: String,
    state: Arc<State>,
}

impl Proxy {
    pub fn to(target: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("has an address").to_string();
        let state = Arc::<State>::default();
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&target)) else {
                    continue;
                };
                let pair = (client.try_clone().unwrap(), server.try_clone().unwrap());
                accepting.pairs.lock().push(pair);
                for (from, to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let state = Arc::clone(&accepting);
                    std::thread::spawn(move || carry(&state, from, to));
                }
            }
        });
        Proxy { address, state }
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for (client, server) in self.state.pairs.lock().drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Carries nothing until it is released, and loses nothing.
    pub fn stall(&self) {
        *self.state.stalled.lock() = true;
    }

    pub fn release(&self) {
        *self.state.stalled.lock() = false;
        self.state.released.notify_all();
    }
}

fn carry(state: &State, mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let mut stalled = state.stalled.lock();
        while *stalled && !state.stopping.load(Ordering::SeqCst) {
            state.released.wait_for(&mut stalled, Duration::from_millis(100));
        }
        drop(stalled);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.release();
        self.cut();
        let _ = TcpStream::connect(&self.address);
    }
}
