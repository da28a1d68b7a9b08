//! Operations, one file per verb. Each takes the locks it needs in inode order, changes memory, and
//! hands all records it changed to the write set under one lock: together they are one step of the
//! consistent prefix that a crash leaves.

mod attributes;
mod create;
mod directory;
mod fileset;
mod link;
mod lookup;
mod open;
mod read_write;
mod rename;
mod space;
mod sync;
mod unlink;
mod xattr;

pub use create::New;
pub(crate) use create::Reported;
pub use directory::DirectoryItem;
pub use fileset::{ArchiveStatus, DiskStatus, FilesetStatus};
pub(crate) use fileset::{check_fileset_name, fileset_root, shown_name};
pub use lookup::Found;
pub use open::{Access, Home, Opened};
pub(crate) use open::{Closer, NodeOpener};
pub use rename::Replace;
pub use space::Statistics;
pub use xattr::{SetMode, SetXattr};
