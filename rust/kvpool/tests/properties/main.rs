//! Historical bugs of KV-cache systems as properties: one test each, written so that the code that had the bug fails it.
//!
//! The numbers are those of the list of 25 that the design was made from; those about tiers, transfers, sliding windows
//! and partial blocks belong to other tests. "Any interleaving" is enumerated here, not sampled. What these tests look at
//! is what an engine would see: an [`Engine`] keeps a pretend KV memory and reads it back on every hit.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod allocation;
mod content;
mod eviction;
mod histories;
mod identity;
mod owners;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kvpool::hash::{HashChain, MultimodalItem};
use kvpool::{
    Adapter, Admission, BlockEvent, BlockHash, BlockHasher, BlockId, BlockPool, BlockState, CacheManager,
    Candidate, DuplicatePolicy, EvictionPolicy, Evictor, ExtraKeys, HashAlgorithm, HashCursor, HasherConfig,
    InvariantViolation, LruEvictor, ManagerConfig, ManagerError, PoolConfig, PoolError, PrefixIndex, Refusal,
    RequestRef, RequestState, Verify,
};
use proptest::prelude::*;

/// Tokens per block, everywhere here.
const B: usize = 2;

fn id(id: u32) -> BlockId {
    BlockId::new(id)
}

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn raw(blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|block| block.get()).collect()
}

fn pool(usable: usize) -> BlockPool {
    BlockPool::new(PoolConfig { num_blocks: usable + 1, block_size: B, ..Default::default() }).unwrap()
}

fn hasher() -> Arc<BlockHasher> {
    static HASHER: OnceLock<Arc<BlockHasher>> = OnceLock::new();
    let make = || Arc::new(BlockHasher::new(HasherConfig { block_size: B, ..Default::default() }).unwrap());
    Arc::clone(HASHER.get_or_init(make))
}

/// The chain of `tokens` in an epoch.
fn chain_in(epoch: u64, tokens: &[u32]) -> HashChain {
    let mut cursor = HashCursor::new(hasher(), ExtraKeys { epoch, ..Default::default() }).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn chain(tokens: &[u32]) -> HashChain {
    chain_in(0, tokens)
}

/// Takes blocks for `tokens`, registers them, marks them computed.
fn fill(pool: &mut BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let chain = chain_in(pool.epoch(), tokens);
    let blocks = pool.allocate(chain.len()).unwrap();
    pool.register(&blocks, &chain, 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    blocks
}

/// [`fill`], then releases them: they are cached-free.
fn cache(pool: &mut BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let blocks = fill(pool, tokens);
    pool.release_table(&blocks).unwrap();
    blocks
}

fn all_blocks(pool: &BlockPool) -> impl Iterator<Item = BlockId> + use<> {
    (0..pool.num_blocks() as u32).map(BlockId::new)
}

/// Everything that a caller can see of a pool.
fn observe(pool: &BlockPool) -> impl PartialEq + std::fmt::Debug + use<> {
    let block = |b| {
        (pool.ref_count(b), pool.fence_references(b), pool.state(b), pool.hash_of(b), pool.is_computed(b))
    };
    let blocks: Vec<_> = all_blocks(pool).map(block).collect();
    (pool.free_order(), pool.eviction_order(), pool.stats(), pool.epoch(), blocks)
}

/// Everything that a caller can see of a manager, but for the count of refusals.
fn observe_manager(manager: &CacheManager) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut stats = manager.stats();
    stats.refusals = 0;
    let request = |id: i64| (manager.request(id).ok(), manager.block_table(id).ok().map(<[_]>::to_vec));
    (observe(manager.pool()), stats, (0..12).map(request).collect::<Vec<_>>())
}

/// (free, cached-free, active, fenced), counted from the lists and the references alone.
fn recount(pool: &BlockPool) -> (usize, usize, usize, usize) {
    let held = |b: &BlockId| pool.ref_count(*b).unwrap() > 0;
    let fenced = |b: &BlockId| held(b) && pool.ref_count(*b) == Some(pool.fence_references(*b));
    let usable = || all_blocks(pool).skip(1);
    (
        usable().filter(|b| !held(b) && pool.free_order().contains(b)).count(),
        usable().filter(|b| !held(b) && pool.eviction_order().contains(b)).count(),
        usable().filter(|b| held(b) && !fenced(b)).count(),
        usable().filter(fenced).count(),
    )
}

fn sums(pool: &BlockPool) -> (usize, usize, usize, usize) {
    let stats = pool.stats();
    (stats.free, stats.cached_free, stats.active, stats.fenced)
}

/// All orders of `n` things.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    let insert = |order: &Vec<usize>, at| {
        let mut order = order.clone();
        order.insert(at, n - 1);
        order
    };
    shorter.iter().flat_map(|order| (0..n).map(move |at| insert(order, at))).collect()
}

/// All interleavings of `programs` programs of `steps` steps each: which program runs next, in every order.
fn interleavings(programs: usize, steps: usize) -> Vec<Vec<usize>> {
    fn go(left: &mut [usize], so_far: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
        if left.iter().all(|&n| n == 0) {
            out.push(so_far.clone());
        }
        for at in 0..left.len() {
            if left[at] > 0 {
                left[at] -= 1;
                so_far.push(at);
                go(left, so_far, out);
                so_far.pop();
                left[at] += 1;
            }
        }
    }
    let mut out = Vec::new();
    go(&mut vec![steps; programs], &mut Vec::new(), &mut out);
    out
}

/// A pretend engine: a manager, and the KV memory that its blocks name.
struct Engine {
    manager: CacheManager,
    /// Per block: the epoch of the weights, and the tokens that its KV was computed from.
    memory: Vec<(u64, Vec<u32>)>,
    requests: BTreeMap<i64, Sequence>,
}

struct Sequence {
    tokens: Vec<u32>,
    /// The weights that its KV is computed with.
    epoch: u64,
}

impl Engine {
    fn new(usable: usize) -> Self {
        let config = ManagerConfig { num_blocks: usable + 1, block_size: B, ..Default::default() };
        Self {
            manager: CacheManager::new(config).unwrap(),
            memory: vec![(u64::MAX, Vec::new()); usable + 1],
            requests: BTreeMap::new(),
        }
    }

    /// Admits a request, and reads the KV of the blocks that it was given as cached.
    fn admit(&mut self, id: i64, tokens: &[u32]) -> Result<Admission, ManagerError> {
        let cursor = self.manager.prepare(tokens, ExtraKeys::default()).unwrap();
        let admission = self.manager.admit(id, cursor).map_err(|refused| refused.error)?;
        let epoch = self.manager.pool().epoch();
        self.requests.insert(id, Sequence { tokens: tokens.to_vec(), epoch });
        self.read_cached(id, &admission);
        Ok(admission)
    }

    fn resume(&mut self, id: i64) -> Result<Admission, ManagerError> {
        let admission = self.manager.resume(id)?;
        self.requests.get_mut(&id).unwrap().epoch = self.manager.pool().epoch();
        self.read_cached(id, &admission);
        Ok(admission)
    }

    fn read_cached(&self, id: i64, admission: &Admission) {
        let Sequence { tokens, epoch } = &self.requests[&id];
        assert!(admission.cached_tokens < tokens.len(), "the last token of request {id} is left to compute");
        for (at, block) in admission.block_ids.iter().take(admission.cached_blocks).enumerate() {
            let expected = (*epoch, tokens[..(at + 1) * B].to_vec());
            assert_eq!(
                self.memory[block.index()],
                expected,
                "request {id} was given {block:?} with other KV"
            );
        }
    }

    /// Writes the KV of a request's tokens up to `computed`, then commits them.
    fn compute(&mut self, id: i64, computed: usize) {
        self.write(id, computed);
        self.manager.commit(id, computed).unwrap();
    }

    fn write(&mut self, id: i64, computed: usize) {
        let Sequence { tokens, epoch } = &self.requests[&id];
        let before = self.manager.request(id).unwrap().computed_tokens;
        let table = self.manager.block_table(id).unwrap();
        for (at, block) in table.iter().enumerate().take(computed.div_ceil(B)).skip(before / B) {
            assert_eq!(
                self.manager.pool().ref_count(*block),
                Some(1),
                "{block:?} is written while it is shared"
            );
            self.memory[block.index()] = (*epoch, tokens[..computed.min((at + 1) * B)].to_vec());
        }
    }

    fn compute_all(&mut self, id: i64) {
        self.compute(id, self.requests[&id].tokens.len());
    }

    fn append(&mut self, id: i64, token: u32) -> Result<(), ManagerError> {
        self.manager.append_tokens(id, &[token], 0)?;
        self.requests.get_mut(&id).unwrap().tokens.push(token);
        Ok(())
    }

    fn release(&mut self, id: i64, after_step: Option<u64>) {
        self.manager.release(id, after_step).unwrap();
        self.requests.remove(&id);
    }

    fn is_running(&self, id: i64) -> bool {
        self.manager.request(id).is_ok_and(|info| info.state == RequestState::Running)
    }

    /// No running request's KV was overwritten, and every invariant holds.
    fn check(&self) {
        self.manager.check_invariants().unwrap();
        for (id, Sequence { tokens, epoch }) in &self.requests {
            let info = self.manager.request(*id).unwrap();
            for (at, block) in self.manager.block_table(*id).unwrap().iter().enumerate() {
                if at * B < info.computed_tokens {
                    let expected = (*epoch, tokens[..info.computed_tokens.min((at + 1) * B)].to_vec());
                    assert_eq!(self.memory[block.index()], expected, "the KV of request {id} in {block:?}");
                }
            }
        }
    }

    /// Every block that can be hit is indexed under the hash of what is really written in it.
    fn check_index(&self) {
        let pool = self.manager.pool();
        for block in all_blocks(pool).filter(|&block| pool.is_computed(block)) {
            let (epoch, tokens) = &self.memory[block.index()];
            assert_eq!(pool.hash_of(block), chain_in(*epoch, tokens).hashes().last().copied(), "{block:?}");
            assert_eq!((*epoch, tokens.len() % B), (pool.epoch(), 0), "{block:?}");
        }
    }
}
