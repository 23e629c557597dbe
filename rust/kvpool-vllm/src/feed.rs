//! `FeedLog`: a log of the contents that a pool's index gained and lost, with their tokens. A publisher
//! of KV events reads it.
//!
//! An observer of the core pool cannot provide these events, because only this crate knows vLLM's keys
//! of the contents. Instead, the calls that cache and evict blocks write into this log.
//!
//! The log is bounded. If it becomes full before the publisher reads it, everything in it is dropped.
//! The dropped contents are published when they are cached again.

use kvpool::BlockHash;
use kvpool_observe::FeedBatch;
use kvpool_observe::publish::{Digest, Keys};

use crate::key::{Key, padded};
use crate::pool::Removed;

/// For each block: its digest, its group, and its extra keys.
pub type FeedKeys = Vec<(Digest, u16, Keys)>;

/// A bounded log of contents that were stored and removed. A publisher of KV events reads it.
///
/// ```
/// use kvpool_vllm::FeedLog;
/// let mut log = FeedLog::new(1000);
/// log.cleared();
/// let (mut batch, mut keys) = Default::default();
/// log.take(&mut batch, &mut keys);
/// assert!(keys.is_empty());
/// ```
#[derive(Debug)]
pub struct FeedLog {
    capacity: usize,
    batch: FeedBatch,
    keys: FeedKeys,
}

/// A block that a call may cache: its position among the blocks of the call, its hash, and the hash of
/// the previous block.
pub type Link = (usize, BlockHash, Option<BlockHash>);

/// The consecutive blocks of one request that one call caches.
#[derive(Clone, Debug, Default)]
pub struct FeedRun {
    /// Position in the request of the first of these blocks.
    pub first: usize,
    /// KV-cache group in which the blocks are cached.
    pub group: u16,
    /// Number of tokens of each block.
    pub block_size: usize,
    /// Number of bytes of each digest.
    pub digest_len: usize,
    /// Those of the blocks that have a digest.
    pub links: Vec<Link>,
    /// The tokens of all blocks of the call, one block after the other.
    pub tokens: Vec<u32>,
    /// The extra keys of each entry of `links`. The list is empty if no block has extra keys.
    pub keys: Vec<Keys>,
}

impl FeedRun {
    /// Adds the block at position `at`. `before` is the digest of the previous block, or `None` for the
    /// first block of a request. A block whose digest has more than 32 bytes is skipped.
    pub fn link(&mut self, at: usize, digest: &[u8], before: Option<&[u8]>) {
        if let Some(hash) = padded(digest) {
            self.digest_len = digest.len();
            self.links.push((at, hash, before.and_then(padded)));
        }
    }
}

impl FeedLog {
    /// Creates an empty log for at most `capacity` changes. A capacity of 0 counts as 1.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), batch: FeedBatch::default(), keys: Vec::new() }
    }

    /// Makes room for this number of changes. If they do not fit, drops everything in the log.
    fn reserve(&mut self, changes: usize) {
        if self.batch.events.len() + changes > self.capacity {
            self.cleared();
        }
    }

    /// Records that the index has lost all contents.
    pub fn cleared(&mut self) {
        self.batch.cleared();
        self.keys.clear();
    }

    /// Records the contents that no block has any more. Entries of `removed` whose content other blocks
    /// still have are ignored.
    pub fn removed(&mut self, removed: &[Removed]) {
        self.reserve(removed.len());
        for Removed { key, .. } in removed.iter().filter(|removed| removed.last_copy) {
            self.remove(key);
        }
    }

    /// Records that a key has no cached block any more.
    pub fn removed_key(&mut self, key: &Key) {
        self.reserve(1);
        self.remove(key);
    }

    fn remove(&mut self, key: &Key) {
        if let (Some(hash), Ok(group)) = (padded(key.digest()), u16::try_from(key.group())) {
            self.batch.removed(hash, group);
        }
    }

    /// Records those blocks whose keys are new to the index. `new` has one entry per block: whether its
    /// key is new, or `None` if the block was not cached.
    pub fn stored(&mut self, run: FeedRun, new: &[Option<bool>]) {
        let FeedRun { first, group, block_size, digest_len, links, tokens, keys } = run;
        let is_new = |at: usize| new.get(at) == Some(&Some(true));
        let count = links.iter().filter(|&&(at, ..)| is_new(at)).count();
        if count == 0 {
            return;
        }
        self.reserve(count);
        self.batch.digest_len = digest_len;
        for &(at, hash, parent) in links.iter().filter(|&&(at, ..)| is_new(at)) {
            let some = tokens.get(at * block_size..(at + 1) * block_size);
            self.batch.stored(hash, group, parent, (first + at) as u32, some);
        }
        let keyed = links.iter().zip(keys).filter(|((at, ..), _)| is_new(*at));
        self.keys.extend(keyed.map(|(&(_, hash, _), keys)| (Digest::new(hash, digest_len), group, keys)));
    }

    /// Moves everything in the log into the two lists, which are emptied before. The log then reuses
    /// the memory of these lists.
    pub fn take(&mut self, batch: &mut FeedBatch, keys: &mut FeedKeys) {
        batch.renew();
        keys.clear();
        std::mem::swap(&mut self.batch, batch);
        std::mem::swap(&mut self.keys, keys);
    }
}

#[cfg(test)]
mod tests {
    use kvpool_observe::publish::Keys;
    use kvpool_observe::{FeedBatch, FeedEvent};

    use super::{FeedLog, FeedRun};
    use crate::Key;
    use crate::pool::Removed;

    fn run(digests: &[u8]) -> FeedRun {
        let mut run = FeedRun { first: 1, block_size: 2, tokens: (0..20).collect(), ..FeedRun::default() };
        for (at, digest) in digests.iter().enumerate() {
            run.link(at, &[*digest; 16], Some(&[digest - 1; 16]));
        }
        run
    }

    fn taken(log: &mut FeedLog) -> FeedBatch {
        let mut batch = FeedBatch::default();
        log.take(&mut batch, &mut Vec::new());
        batch
    }

    #[test]
    fn a_new_key_is_recorded_with_the_tokens_of_its_block() {
        let mut log = FeedLog::new(9);
        log.stored(run(&[1, 2, 3]), &[Some(false), Some(true), None]);
        let batch = taken(&mut log);
        let tokens = match batch.events[..] {
            [FeedEvent::Stored { depth: 2, tokens, .. }] => tokens.unwrap(),
            _ => panic!("{batch:?}"),
        };
        assert_eq!((batch.tokens(tokens), batch.digest_len), (&[2, 3][..], 16));
        assert!(taken(&mut log).is_empty());
    }

    #[test]
    fn a_key_is_recorded_when_its_last_copy_is_removed() {
        let mut log = FeedLog::new(9);
        let key = Key::new(&[7; 16], 0).unwrap();
        let removed = |last_copy| Removed { block: 1, key, last_copy };
        log.removed(&[removed(false), removed(true)]);
        log.removed_key(&key);
        assert_eq!(taken(&mut log).events.len(), 2);
    }

    #[test]
    fn a_full_log_is_dropped() {
        let mut log = FeedLog::new(2);
        log.stored(run(&[1, 2]), &[Some(true); 2]);
        log.stored(run(&[3]), &[Some(true)]);
        let batch = taken(&mut log);
        assert!(matches!(batch.events[..], [FeedEvent::Cleared, FeedEvent::Stored { .. }]), "{batch:?}");
    }

    #[test]
    fn a_removal_that_does_not_fit_drops_the_log() {
        let mut log = FeedLog::new(2);
        log.stored(run(&[1, 2]), &[Some(true); 2]);
        log.removed(&[Removed { block: 1, key: Key::new(&[1; 16], 0).unwrap(), last_copy: true }]);
        let batch = taken(&mut log);
        assert!(matches!(batch.events[..], [FeedEvent::Cleared, FeedEvent::Removed { .. }]), "{batch:?}");
    }

    #[test]
    fn only_the_keys_of_new_contents_are_recorded() {
        let mut log = FeedLog::new(9);
        let run = FeedRun { group: 3, keys: vec![Keys::default(); 2], ..run(&[1, 2]) };
        log.stored(run, &[Some(false), Some(true)]);
        let (mut batch, mut keys) = (FeedBatch::default(), Vec::new());
        log.take(&mut batch, &mut keys);
        assert_eq!(keys.iter().map(|(_, group, _)| *group).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_digest_longer_than_the_core_s_is_left_out() {
        let mut run = FeedRun::default();
        run.link(0, &[1; 33], None);
        assert!(run.links.is_empty());
    }
}
