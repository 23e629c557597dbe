//! The calls of vLLM's [`Pool`].
//!
//! Keys are recorded completely, because equal keys must refer to the same block. A journal does not
//! record [`Pool::set_num_free`], which withholds free blocks. It also omits calls that are refused
//! only because of withheld blocks, since those calls change nothing.

use kvpool::BlockId;
use kvpool::retention::HintReport;
use kvpool_vllm::{Key, Pool, Removed, Start, VllmError};

use super::answer;
use super::kinds::{Count, Ended, Hint, Seconds, Size, Tenant};
use super::table::calls;
use super::vllm_kinds::{
    At, Claimed, Depth, Flag, Freed, Group, Hash, Hashes, Id, Numbers, Object, Objects, Parent, QueueEnd,
    References, Tokens,
};
use crate::journaled::{Journaled, Recordable, Recording, VllmConfig};
use crate::value::{Reply, Value};
use crate::{Check, JournalConfig, JournalHeader, Outcome};

type Answer<T> = Result<T, VllmError>;

calls! {
    /// A recorded call of vLLM's [`Pool`].
    pub enum VllmCall of Pool;
    /// The calls of vLLM's [`Pool`]. Each method runs the call and, if there is a journal, records it.
    /// Calls whose arguments are lists or closures are methods of `Journaled<Pool>` instead.
    pub trait VllmCalls;

    Allocate allocate(blocks: Count) by hand, "{blocks}",
        |pool| answer(&pool.allocate(blocks, &mut Vec::new(), None));
    Claim claim(blocks: Claimed) by hand, "{blocks}", |pool| answer(&pool.claim(blocks, None));
    Touch touch(blocks: Objects) -> Answer<()>, "{blocks}";
    Free free(blocks: Freed) by hand, "{blocks}", |pool| answer(&pool.free(blocks.iter().copied()));
    Unpin unpin(blocks: Objects) -> Answer<()>, "{blocks}";
    /// Also records the depth of the block and the key of its parent, as in
    /// [`Pool::insert_hash_behind`].
    InsertHash insert_hash(key: Hash, block: Id, num_tokens: Tokens, depth: Depth, parent: Parent) -> bool,
        "block {block}: {key} at depth {depth}, behind {parent}",
        |pool| pool.insert_hash_behind(key, block, num_tokens, depth, parent);
    CacheFull cache_full(start: At, blocks: Claimed, keys: Hashes, block_size: Size) by hand,
        "{blocks} from number {start} on: {keys}",
        |pool| {
            let key_of = |at: usize| keys.get(at).copied().flatten();
            answer(&pool.cache_full(start, blocks, key_of, block_size, &mut Vec::new(), None))
        };
    InsertInIndex insert_in_index(key: Hash, block: Id) -> Answer<()>, "block {block}: {key}";
    RemoveFromIndex remove_from_index(key: Hash, block: Id) -> bool, "block {block}: {key}",
        |pool| pool.remove_from_index(&key, block);
    ClearIndex clear_index() -> (), "";
    RemoveHashes remove_hashes(block: Id) -> Vec<Removed>, "block {block}";
    MoveHashes move_hashes(from: Id, to: Id) -> Answer<()>, "block {from} to {to}";
    Evict evict(block: Id, reuse_first: Flag) -> Answer<Vec<Removed>>, "block {block}";
    Reset reset() -> bool, only |pool| pool.num_free() == pool.core().num_available(), "";
    SetRefCount set_ref_count(block: Object, count: References) -> (), "block {block} to {count}";
    SetHash set_hash(block: Object, key: Hash, num_tokens: Tokens) -> (), "block {block}: {key}";
    ResetHash reset_hash(block: Object) -> (), "block {block}";
    /// Only the first call for each group is recorded, because later calls have no effect.
    ChainGroup chain_group(group: Group) -> (), only |pool| !pool.is_chained(group), "group {group}";
    QueuePop pop_from_queue(blocks: Count) -> Ids<Vec<u32>>, "{blocks}",
        |pool| Ids(pool.pop_from_queue(blocks));
    QueueRemove remove_from_queue(block: Id) -> bool, "block {block}";
    QueuePush push_to_queue(blocks: Objects, front: QueueEnd) -> (), "{blocks} to the {front}";
    Retain retain(blocks: Numbers, retention: Hint) -> Answer<HintReport>, "{blocks}; {retention}";
    AssignTenant assign_tenant(blocks: Numbers, tenant: Tenant) -> Answer<()>, "{blocks}; tenant {tenant}";
    AdvanceTime advance_time(now: Seconds) -> Answer<usize>, "to {now} s";
    Signal signal(blocks: Numbers, signal: Ended) -> Answer<()>, "{blocks}; {signal}";
}

/// An answer that consists of block ids. The check of the answer (its checksum) covers the ids, but not
/// how many there are.
#[derive(Clone, Debug)]
pub struct Ids<T>(pub T);

impl<T: AsRef<[u32]>> Outcome for Ids<T> {
    fn add_to(&self, check: &mut Check) {
        self.0.as_ref().iter().for_each(|&block| check.add(block.into()));
    }
}

impl<T: AsRef<[u32]> + std::fmt::Debug> Reply for Ids<T> {
    fn value(&self) -> Value {
        Value::List(self.0.as_ref().iter().map(|&block| Value::Number(block.into())).collect())
    }

    fn blocks(&self) -> Vec<BlockId> {
        self.0.as_ref().iter().copied().map(BlockId::new).collect()
    }
}

/// The journal of vLLM's pool has no digests of the state. The checks of the answers are enough: the
/// block ids that an allocation returns depend on the order of the whole queue.
impl Recordable for Pool {
    type Config = VllmConfig;
    type Watch = ();
    type Error = VllmError;
    type Record = VllmCall;
    type Memory = ();

    fn create(config: VllmConfig, (): &(), _: JournalConfig) -> Result<Self, VllmError> {
        Self::with_retention(config.num_blocks, config.caching, config.policy, config.retention)
    }

    fn header(config: &VllmConfig, (): &(), journal: JournalConfig) -> JournalHeader {
        let retention = config.retention.clone();
        JournalHeader::of_vllm_pool(config.num_blocks, config.policy, retention, config.caching, journal)
    }

    fn digest(&mut self) -> Option<u64> {
        None
    }

    fn is_poisoned(&self) -> bool {
        self.core().poison_reason().is_some()
    }
}

impl Journaled<Pool> {
    /// Records [`Pool::allocate`]. Returns the blocks that were appended to `out`.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn allocate<'a>(
        &mut self,
        blocks: usize,
        out: &'a mut Vec<u32>,
        removed: Option<&mut Vec<Removed>>,
    ) -> Answer<Ids<&'a [u32]>> {
        let record = move |pool: &Pool| {
            let is_withheld = blocks > pool.num_free() && blocks <= pool.core().num_available();
            (!is_withheld).then_some(VllmCall::Allocate { blocks })
        };
        let run = move |pool: &mut Pool| {
            let first = out.len();
            pool.allocate(blocks, out, removed)?;
            Ok(Ids(&out[first..]))
        };
        self.call(move |pool, _| record(pool), run, |record, _, _, _| record)
    }

    /// Records [`Pool::claim`].
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn claim(&mut self, blocks: &[u32], removed: Option<&mut Vec<Removed>>) -> Answer<()> {
        let run = move |pool: &mut Pool| pool.claim(blocks, removed);
        self.call(|_, _| (), run, |(), _, _, _| Some(VllmCall::Claim { blocks: blocks.to_vec() }))
    }

    /// Records [`Pool::free`], and omits the null block from the record. If there is a journal,
    /// iterates over the blocks twice.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn free(&mut self, blocks: impl IntoIterator<Item = u32> + Clone) -> Answer<()> {
        let asked = blocks.clone();
        let record = move |_: &Pool, _: &mut _| asked.into_iter().filter(|&block| block != 0).collect();
        let run = move |pool: &mut Pool| pool.free(blocks);
        self.call(record, run, |blocks, _, _, _| Some(VllmCall::Free { blocks }))
    }

    /// Records [`Pool::cache_full`]. If there is a journal, calls `key_of` twice for each block.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn cache_full(
        &mut self,
        start: Start,
        blocks: &[u32],
        key_of: impl Fn(usize) -> Option<Key>,
        block_size: usize,
        removed: &mut Vec<Removed>,
        stored: Option<&mut Vec<Option<bool>>>,
    ) -> Answer<()> {
        let record = |_: &Pool, _: &mut _| {
            let (start, keys) = (start.into(), (0..blocks.len()).map(&key_of).collect());
            VllmCall::CacheFull { start, blocks: blocks.to_vec(), keys, block_size }
        };
        let run = |pool: &mut Pool| pool.cache_full(start, blocks, &key_of, block_size, removed, stored);
        self.call(record, run, |record, _, _, _| Some(record))
    }
}
