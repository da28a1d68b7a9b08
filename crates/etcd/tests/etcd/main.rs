//! The client against real servers (Debian: etcd-server).

mod calls;
mod faults;
mod tls;
mod watches;
