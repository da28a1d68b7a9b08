//! The answers to recalls: what an owner takes back is not used any more.

use std::sync::Arc;

use forebay_base::ClientId;
use forebay_base::channel::{CallError, Message, Service};

use super::wire::{decode, encode};
use crate::grants::Recall;
use crate::namespace::Namespace;

/// Answers recalls of other nodes.
pub struct CacheService {
    fs: Arc<Namespace>,
}

impl CacheService {
    /// Answers for what `fs` caches.
    #[must_use]
    pub fn new(fs: Arc<Namespace>) -> CacheService {
        CacheService { fs }
    }
}

impl Service for CacheService {
    fn serve(&self, from: ClientId, request: Message) -> std::result::Result<Message, CallError> {
        let Recall { fileset, why, recalls } = decode(&request.head).map_err(CallError::Refused)?;
        // Of another owner than the present one nothing is used any more.
        let owner = self.fs.remote_owner_at(fileset, from.node);
        let mut all = Vec::new();
        for (recall, items) in recalls {
            all.extend(items.iter().cloned());
            if let Some(owner) = &owner {
                owner.recalled(recall, items);
            }
        }
        if let Some(owner) = &owner {
            let more = owner.return_directories(&all).map_err(|error| {
                CallError::Refused(format!("what was done here could not be reported: {error}"))
            })?;
            all.extend(more);
        }
        // The kernel may have been lent something by an earlier owner.
        self.fs.take_back(&all, why);
        if let Some(owner) = &owner {
            owner.register_opens(&all).map_err(|error| {
                CallError::Refused(format!("what is open could not be told: {error}"))
            })?;
        }
        Ok(Message { head: encode(&()), payload: Vec::new() })
    }
}
