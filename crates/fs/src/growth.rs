//! Whose bytes files grow by that the kernel writes itself: told to whoever attributes work.

use forebay_base::Ino;

/// Is told how much files grow. May be called with the lock of the inode held, by any thread: it must not wait, nor ask the
/// file system for anything.
pub trait Growth: Send + Sync {
    /// The kernel has written to a file directly, and it is longer by so many bytes.
    fn grew(&self, ino: Ino, bytes: u64);
}
