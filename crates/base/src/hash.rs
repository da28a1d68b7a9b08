//! Keyed hashing of names, for directory cookies.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// The file system's secret for name hashes: without it nobody can choose names that collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u8; 16]);

impl HashKey {
    /// SipHash-1-3 of `bytes` under this key (Aumasson and Bernstein, "SipHash", 2012).
    #[must_use]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish()
    }
}
