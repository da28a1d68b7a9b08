//! Several nodes with one namespace: real daemons on hosts of their own, an etcd between them.

mod faults;
mod names;
