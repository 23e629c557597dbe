//! Historical bugs of KV-cache systems as properties: one test each, written so that the code that had the bug fails it.
//!
//! The numbers are those of the list of 25 that the design was made from; those about tiers, transfers, sliding windows
//! and partial blocks belong to other tests. "Any interleaving" is enumerated here, not sampled. What these tests look at
//! is what an engine would see: an [`Engine`] keeps a pretend KV memory and reads it back on every hit.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

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

/// vllm#42571, dynamo#13398: `free([b, b])` with two references put `b` on the queue twice, or counted it twice and
/// linked it once, so that the count and the walks went apart.
#[test]
fn property_01_a_block_freed_twice_in_one_call_is_queued_once() {
    // Every call of up to five ids over three blocks with 1, 2 and 3 references, cached or not.
    let calls: Vec<Vec<u32>> = (0..=5u32)
        .flat_map(|length| {
            (0..3u32.pow(length)).map(move |n| (0..length).map(|digit| n / 3u32.pow(digit) % 3 + 1).collect())
        })
        .collect();
    assert_eq!(calls.len(), 364);
    for cached in [false, true] {
        for call in &calls {
            let mut pool = pool(5);
            let blocks =
                if cached { fill(&mut pool, &[1, 2, 3, 4, 5, 6]) } else { pool.allocate(3).unwrap() };
            assert_eq!(raw(&blocks), [1, 2, 3]);
            pool.acquire(&ids(&[2, 3, 3])).unwrap();
            let named = |b: u32| call.iter().filter(|&&other| other == b).count() as u32;
            let fits = (1..=3).all(|b| named(b) <= b);

            let result = pool.release(&ids(call));

            assert_eq!(result.is_ok(), fits, "{call:?}: {result:?}");
            let left = |b: u32| if fits { b - named(b) } else { b };
            let idle = (1..=3).filter(|&b| left(b) == 0).count();
            (1..=3).for_each(|b| assert_eq!(pool.ref_count(id(b)), Some(left(b)), "{call:?}"));
            let order = if cached { pool.eviction_order() } else { pool.free_order() };
            let distinct: BTreeSet<_> = order.iter().collect();
            assert_eq!(distinct.len(), order.len(), "{call:?} queued a block twice: {order:?}");
            let expected = if cached { (2, idle, 3 - idle, 0) } else { (2 + idle, 0, 3 - idle, 0) };
            assert_eq!((sums(&pool), recount(&pool)), (expected, expected), "{call:?}");
            pool.check_invariants().unwrap(); // walks every list in both directions
        }
    }
}

/// trtllm#14937: a block on two lists at once, after a release of what nobody held.
#[test]
fn property_02_a_block_is_on_one_list_and_an_unheld_block_cannot_be_released() {
    // With a fence open, and with none: a pool checks a release in two ways.
    for fence in [true, false] {
        let mut pool = pool(6);
        cache(&mut pool, &[1, 2, 3, 4]); // #1, #2
        let active = pool.allocate(2).unwrap(); // #3, #4
        pool.release_after(&active[..1], 1).unwrap();
        if !fence {
            pool.complete_step(1).unwrap();
        }
        let places = |pool: &BlockPool, b: BlockId| {
            let on = |list: Vec<BlockId>| list.iter().filter(|&&other| other == b).count();
            on(pool.free_order()) + on(pool.eviction_order()) + usize::from(pool.ref_count(b) > Some(0))
        };
        for (block, state) in [
            (1, BlockState::CachedFree),
            (3, if fence { BlockState::Fenced } else { BlockState::Free }),
            (4, BlockState::Active),
            (5, BlockState::Free),
            (6, BlockState::Free),
        ] {
            let block = id(block);
            assert_eq!((pool.state(block), places(&pool, block)), (Some(state), 1), "{block:?}");
            if state == BlockState::Active {
                continue;
            }
            let before = observe(&pool);
            for call in [vec![block], vec![id(4), block], vec![block, id(4)]] {
                for result in [pool.release(&call), pool.release_table(&call), pool.release_after(&call, 9)] {
                    let refused =
                        matches!(result, Err(PoolError::NotHeld { block: b, held: 0, .. }) if b == block);
                    assert!(refused, "{call:?} of a {state:?} block: {result:?}");
                }
                assert_eq!(observe(&pool), before, "{call:?}");
            }
            assert_eq!(places(&pool, block), 1);
        }
        // The null block is on no list, whatever is asked.
        assert!(pool.release(&[BlockId::default()]).is_err());
        assert_eq!(places(&pool, id(0)), 0);
    }
}

/// ascend#14283, lmcache#987: an allocation of 0, of a negative number or of more than there is changed the counts.
#[test]
fn property_03_an_impossible_allocation_changes_nothing() {
    for cached in 0..=2 {
        for held in 0..=2 {
            let mut pool = pool(6);
            cache(&mut pool, &(0..2 * cached as u32).collect::<Vec<_>>());
            let held = pool.allocate(held).unwrap();
            if let [first, ..] = held[..] {
                pool.release_after(&[first], 7).unwrap();
            }
            let available = pool.num_available();
            assert_eq!(available, 6 - held.len());
            let before = observe(&pool);
            // -1 and the most negative number, as a caller's unsigned count has them.
            for n in [0, available + 1, 7, usize::MAX, isize::MIN.cast_unsigned()] {
                let mut out = ids(&[77]);
                let result = pool.allocate_into(n, &mut out);
                if n == 0 {
                    assert_eq!(result, Ok(()));
                } else {
                    let fenced = usize::from(!held.is_empty());
                    assert_eq!(
                        result,
                        Err(PoolError::OutOfBlocks(Refusal::new(n, available, fenced, n <= 6)))
                    );
                }
                assert_eq!(raw(&out), [77], "allocate({n})");
                assert_eq!(observe(&pool), before, "allocate({n})");
            }
            assert_eq!(pool.allocate(available).unwrap().len(), available);
            assert_eq!(sums(&pool), recount(&pool));
        }
    }
}

/// Calls `call` with each of `bad` at the first, a middle and the last place of `good`: it fails, and nothing changes.
/// Then with `good` alone: it succeeds, so the calls before failed for the bad id only.
fn fails_everywhere(
    name: &str,
    good: &[u32],
    bad: &[u32],
    call: impl Fn(&mut BlockPool, &[BlockId]) -> Result<(), PoolError>,
) {
    for fence in [true, false] {
        let mut pool = crowded_pool(fence);
        pool.take_events();
        let before = observe(&pool);
        for &bad in bad {
            for at in [0, good.len() / 2, good.len()] {
                let mut named = good.to_vec();
                named.insert(at, bad);
                let result = call(&mut pool, &ids(&named));
                assert!(result.is_err(), "{name}({named:?}) succeeded");
                assert_eq!(observe(&pool), before, "{name}({named:?}) failed and changed the pool");
                assert!(
                    pool.take_events().events.is_empty(),
                    "{name}({named:?}) failed and reported a change"
                );
                pool.check_invariants().unwrap();
            }
        }
        call(&mut pool, &ids(good)).unwrap();
        assert_ne!(observe(&pool), before, "{name}({good:?}) does something");
    }
}

/// Blocks in every state: 1, 2 cached; 3, 4 held and registered; 5 held twice; 6 registered and not computed; 7 fenced, or
/// free, and then no fence is open; 8, 9 held; 10 to 12 free.
fn crowded_pool(fence: bool) -> BlockPool {
    let config = PoolConfig { num_blocks: 13, block_size: B, event_capacity: 100, ..Default::default() };
    let mut pool = BlockPool::new(config).unwrap();
    cache(&mut pool, &[1, 2, 3, 4]);
    let held = pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap();
    assert_eq!(raw(&fill(&mut pool, &[5, 6, 7, 8])), [3, 4]);
    pool.release_table(&held).unwrap();
    assert_eq!(raw(&pool.allocate(5).unwrap()), [5, 6, 7, 8, 9]);
    pool.acquire(&ids(&[5])).unwrap();
    pool.register(&ids(&[6]), &chain(&[9, 9]), 0).unwrap();
    pool.release_after(&ids(&[7]), 3).unwrap();
    assert_eq!(sums(&pool), (3, 2, 6, 1));
    if !fence {
        pool.complete_step(3).unwrap();
    }
    pool
}

/// vllm#24228: a call that failed half-way had already moved blocks or counters. Every fallible call, made to fail at its
/// first, a middle and its last element, leaves free order, eviction order, counts, states and hashes as they were.
#[test]
fn property_04_a_failed_call_of_the_pool_changes_nothing() {
    let (null, unknown, free, cached, fenced) = (0, 13, 10, 1, 7);
    fails_everywhere("acquire", &[3, 5, 5, 8], &[null, unknown, free, cached], BlockPool::acquire);
    let unreleasable = [null, unknown, free, cached, fenced, 8];
    let mine = [3, 8, 5, 5, 6]; // 8 once more is once too often
    fails_everywhere("release", &mine, &unreleasable, BlockPool::release);
    fails_everywhere("release_table", &mine, &unreleasable, BlockPool::release_table);
    fails_everywhere("release_after", &mine, &unreleasable, |pool, ids| pool.release_after(ids, 4));
    fails_everywhere("release_after", &mine, &unreleasable, |pool, ids| {
        pool.complete_step(1)?;
        pool.release_after(ids, 1) // completed: released at once
    });
    fails_everywhere("mark_computed", &[3, 6, 4], &[null, unknown, free, 8], |pool, ids| {
        pool.mark_computed(ids)
    });
    fails_everywhere("evict", &[2, 3, 6, 8], &[null, unknown], |pool, ids| pool.evict(ids).map(drop));
    let long = chain(&[20, 21, 22, 23, 24, 25, 26, 27]);
    fails_everywhere("register", &[5, 8, 9], &[null, unknown, free, cached, 3, 6, 8], |pool, ids| {
        pool.register(ids, &long, 0).map(drop)
    });
    // A chain that is too short is found out at its end.
    let mut pool = crowded_pool(true);
    let before = observe(&pool);
    for (blocks, start) in [(&[5, 8, 9][..], 2), (&[5][..], 4), (&[][..], 5), (&[5][..], usize::MAX)] {
        let result = pool.register(&ids(blocks), &long, start);
        assert_eq!(result, Err(PoolError::ChainTooShort { start, blocks: blocks.len(), chain: 4 }));
        assert_eq!(observe(&pool), before);
    }
}

/// Blocks of two; 2 of 9 available. 1, 3: two full blocks, the next token needs one more; 2: three tokens; 4: preempted.
fn crowded_manager() -> CacheManager {
    let config = ManagerConfig { num_blocks: 10, block_size: B, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap();
    for (id, tokens) in [(1, &[1, 2, 3, 4][..]), (2, &[5, 6, 7]), (3, &[8, 9, 10, 11]), (4, &[1, 2, 5, 5, 5])]
    {
        let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
        manager.admit(id, prompt).unwrap();
    }
    manager.commit(4, 4).unwrap();
    manager.commit(1, 2).unwrap();
    manager.preempt(4, None).unwrap();
    let prompt = manager.prepare(&[30], ExtraKeys::default()).unwrap();
    manager.admit(5, prompt).unwrap();
    assert_eq!(manager.pool().num_available(), 2);
    manager
}

/// vllm#24228, for the manager: batches that fail at the first, a middle and the last request, admissions that fail
/// after their match, plans that fail.
#[test]
fn property_04_a_failed_call_of_the_manager_changes_nothing() {
    let mut manager = crowded_manager();
    let before = observe_manager(&manager);
    let unchanged = |manager: &CacheManager, what: &dyn std::fmt::Debug| {
        assert_eq!(observe_manager(manager), before, "{what:?} failed and changed the manager");
        manager.check_invariants().unwrap();
    };
    // Unknown, preempted, named twice.
    for bad in [9, 4, 2] {
        for at in 0..=3 {
            let mut batch = vec![1, 2, 3];
            batch.insert(at, bad);
            let refs: Vec<_> = batch.iter().map(|&id| RequestRef::Int(id)).collect();
            for commit_first in [false, true] {
                assert!(manager.append(&refs, &[0; 4], commit_first).is_err(), "{batch:?}");
                unchanged(&manager, &(&batch, commit_first));
            }
            assert!(manager.commit_batch(&refs, &[4, 3, 4, 4]).is_err(), "{batch:?}");
            unchanged(&manager, &batch);
        }
    }
    // The last good row is the one that finds no block: with 1 and 3, request 6 makes three.
    let prompt = manager.prepare(&[40, 41], ExtraKeys::default()).unwrap();
    let mut full = crowded_manager();
    full.admit(6, prompt).unwrap();
    let before_full = observe_manager(&full);
    for batch in [[1, 2, 3, 6], [6, 3, 2, 1], [2, 1, 6, 3]] {
        let refs: Vec<_> = batch.iter().map(|&id| RequestRef::Int(id)).collect();
        for commit_first in [false, true] {
            let result = full.append(&refs, &[0; 4], commit_first);
            assert!(
                matches!(result, Err(ManagerError::OutOfBlocks(refusal)) if (refusal.needed, refusal.missing) == (3, 2)),
                "{result:?}"
            );
            assert_eq!(observe_manager(&full), before_full);
        }
    }
    // Counts that are too large, or go back, at each place.
    for at in 0..3 {
        for (good, bad) in [([4, 3, 4], 99), ([4, 3, 4], usize::MAX)] {
            let mut counts = good;
            counts[at] = bad;
            let result = manager.commit_batch(&[1.into(), 2.into(), 3.into()], &counts);
            assert!(matches!(result, Err(ManagerError::BadComputedCount { .. })), "{result:?}");
            unchanged(&manager, &counts);
        }
    }
    let result = manager.commit_batch(&[3.into(), 2.into(), 1.into()], &[4, 3, 1]); // 2 of request 1 are computed
    assert!(
        matches!(result, Err(ManagerError::BadComputedCount { asked: 1, computed: 2, .. })),
        "{result:?}"
    );
    unchanged(&manager, &"a count that goes back");
    // A match that succeeds (held and idle blocks), then no blocks for the rest.
    let long = [1, 2, 5, 5, 50, 51, 52, 53];
    let prompt = manager.prepare(&long, ExtraKeys::default()).unwrap();
    assert_eq!(manager.probe(&prompt).unwrap().cached_blocks, 2);
    let refused = manager.admit(8, prompt).unwrap_err();
    assert!(matches!(refused.error, ManagerError::OutOfBlocks(_)));
    unchanged(&manager, &"admit");
    assert!(manager.append_tokens(1, &[0; 99], 0).is_err());
    unchanged(&manager, &"append_tokens");
    // A plan changes nothing, whether it fails or is dropped; a stale one is refused as a whole.
    let mut plan = manager.begin_step();
    manager.plan_preempt(&mut plan, 3, None).unwrap();
    manager.plan_admit(&mut plan, 8, *refused.cursor).unwrap();
    assert!(manager.plan_append(&mut plan, 1, &[0; 99]).is_err());
    assert!(manager.plan_release(&mut plan, 9, None).is_err());
    unchanged(&manager, &"a plan");
    manager.complete_step(0).unwrap();
    assert_eq!(manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
    unchanged(&manager, &"a stale plan");
    // Not vacuous: the good rows alone do succeed.
    assert_eq!(manager.commit_batch(&[1.into(), 2.into(), 3.into()], &[4, 3, 4]).unwrap(), 4);
    assert_eq!(manager.append(&[1.into(), 2.into(), 3.into()], &[0; 3], true).unwrap().len(), 2);
    // Resuming fails while too little is left, after its match.
    let before = observe_manager(&manager);
    assert!(matches!(manager.resume(4), Err(ManagerError::OutOfBlocks(_))));
    assert_eq!(observe_manager(&manager), before);
}

/// vllm#37164, #10507: between a lookup and the allocation behind it, another request took the matched blocks, or the
/// allocation itself evicted them. Every interleaving of three requests over a pool that is too small for them: whoever is
/// given a cached block finds in it the KV of its own prefix, and nobody's KV is overwritten.
#[test]
fn property_05_no_interleaving_gives_a_block_to_two_owners() {
    // Shared prefixes, and different ends; four usable blocks.
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[9, 9, 1, 2]];
    let (mut hits, mut refusals) = (0, 0);
    for order in interleavings(3, 4) {
        let mut engine = Engine::new(4);
        // An earlier request left both shared blocks cached, with nothing but them to evict later on.
        engine.admit(10, prompts[0]).unwrap();
        engine.compute_all(10);
        engine.release(10, None);
        let mut at = [0; 3];
        for request in order {
            let (id, step) = (request as i64, at[request]);
            at[request] += 1;
            match step {
                0 => match engine.admit(id, prompts[request]) {
                    Ok(admission) => hits += admission.cached_blocks,
                    Err(ManagerError::OutOfBlocks(_)) => refusals += 1,
                    Err(error) => panic!("{error}"),
                },
                _ if !engine.is_running(id) => {}
                1 => engine.compute(
                    id,
                    prompts[request]
                        .len()
                        .div_ceil(2)
                        .max(engine.manager.request(id).unwrap().computed_tokens),
                ),
                2 => engine.compute_all(id),
                _ => engine.release(id, None),
            }
            engine.check();
            // Two tables share a block only at the same place, under the same hash.
            let tables: Vec<_> =
                engine.requests.keys().map(|&id| engine.manager.block_table(id).unwrap()).collect();
            let mut owners = BTreeMap::new();
            for (at, block) in tables.iter().flat_map(|table| table.iter().enumerate()) {
                if let Some(other) = owners.insert(*block, at) {
                    assert_eq!(other, at, "{block:?} is at two places");
                    assert!(
                        engine.manager.pool().is_computed(*block),
                        "{block:?} is shared and not published"
                    );
                }
            }
        }
        assert_eq!(engine.manager.pool().num_available(), 4);
    }
    assert!(
        hits > 10_000 && refusals > 10_000,
        "{hits} hits, {refusals} refusals: the pool is scarce and shared"
    );
}

/// vllm#37164, within one step: a plan's first admission needs so many blocks that allocating them before the second
/// one's match is acquired would evict that match.
#[test]
fn property_05_a_planned_step_does_not_evict_what_it_matched() {
    for order in permutations(2) {
        let mut engine = Engine::new(5);
        let shared = [1, 2, 3, 4];
        for (id, tokens) in [(10, &shared[..]), (11, &[7, 7, 8, 8])] {
            engine.admit(id, tokens).unwrap();
            engine.compute_all(id);
            engine.release(id, None); // #1 and #2 are the next victims, one block is free
        }
        let prompts: [&[u32]; 2] = [&[5, 5, 6], &[1, 2, 3, 4, 9]];
        let mut plan = engine.manager.begin_step();
        for &at in &order {
            let cursor = engine.manager.prepare(prompts[at], ExtraKeys::default()).unwrap();
            engine.manager.plan_admit(&mut plan, at as i64, cursor).unwrap();
        }
        assert_eq!(plan.available_blocks(), 0);
        let outcomes = engine.manager.commit_step(&mut plan).unwrap();
        for (&at, outcome) in order.iter().zip(&outcomes) {
            let kvpool::StepOutcome::Admitted(admission) = outcome else { panic!("{outcome:?}") };
            let (id, tokens) = (at as i64, prompts[at].to_vec());
            assert_eq!(admission.cached_blocks, if at == 1 { 2 } else { 0 });
            engine.requests.insert(id, Sequence { tokens, epoch: 0 });
            engine.read_cached(id, admission);
        }
        engine.compute_all(0);
        engine.compute_all(1);
        engine.check();
        let tables: BTreeSet<_> =
            [0, 1].iter().flat_map(|&id| engine.manager.block_table(id).unwrap()).collect();
        assert_eq!(tables.len(), 5, "no block is in both tables");
    }
}

/// vllm#42948, #42656: the allocator took cached blocks while blocks without content were free, or put blocks whose hash
/// was gone in the middle of the eviction order.
#[test]
fn property_06_cached_blocks_are_evicted_only_when_no_free_block_is_left() {
    for cached in 0..=3 {
        for (uncached, untouched, dropped) in [(0, 1, 0), (1, 0, 1), (2, 1, 1), (0, 2, 2), (1, 1, 0)] {
            let usable = cached + uncached + untouched + dropped;
            for n in 0..=usable {
                let mut pool = pool(usable);
                // Taken and released in one go, in an order that mixes them.
                let kept = fill(&mut pool, &(0..(B * cached) as u32).collect::<Vec<_>>());
                let registered_only = pool.allocate(dropped).unwrap();
                let chain = chain(&(50..50 + (B * dropped) as u32).collect::<Vec<_>>());
                pool.register(&registered_only, &chain, 0).unwrap(); // its KV is never written
                let plain = pool.allocate(uncached).unwrap();
                let mixed: Vec<_> = [kept, registered_only, plain].concat();
                pool.release(&mixed).unwrap();
                let free = usable - cached;
                assert_eq!(sums(&pool), (free, cached, 0, 0));
                let hashed: BTreeSet<_> = all_blocks(&pool).filter(|&b| pool.hash_of(b).is_some()).collect();
                assert_eq!(hashed.len(), cached);
                let victims = pool.eviction_order();

                let got = pool.allocate(n).unwrap();

                let carried: Vec<_> = got.iter().copied().filter(|block| hashed.contains(block)).collect();
                assert_eq!(carried, victims[..n.saturating_sub(free)], "allocate({n}) of {free} free");
                assert_eq!(pool.stats().evicted as usize, carried.len());
                assert!(
                    got.iter().all(|&block| pool.hash_of(block).is_none()),
                    "what is handed out has no hash"
                );
            }
        }
    }
}

/// vllm#45357, tpu-inference#3449: under asynchronous scheduling a freed block was handed out while a running step could
/// still write to it; or, once fenced, it never came back. Every order of three fenced releases and three completions.
#[test]
fn property_07_a_fenced_block_comes_back_exactly_when_its_step_completes() {
    for shared in [false, true] {
        for order in permutations(6) {
            let mut pool = pool(3);
            let blocks = pool.allocate(3).unwrap();
            if shared {
                pool.acquire(&blocks[1..2]).unwrap(); // a second holder, who stays
            }
            let (mut fenced_on, mut completed) = (BTreeMap::new(), 0);
            for &event in &order {
                if event < 3 {
                    let step = event as u64 + 1;
                    pool.release_after(&blocks[event..=event], step).unwrap();
                    fenced_on.insert(blocks[event], step);
                } else {
                    let step = event as u64 - 2;
                    pool.complete_step(step).unwrap();
                    completed = completed.max(step);
                }
                let mut allocatable = 0;
                for &block in &blocks {
                    let expected = match fenced_on.get(&block) {
                        _ if shared && block == blocks[1] => BlockState::Active,
                        None => BlockState::Active,
                        Some(step) if *step > completed => BlockState::Fenced,
                        Some(_) => BlockState::Free,
                    };
                    assert_eq!(pool.state(block), Some(expected), "{order:?}, {block:?} after event {event}");
                    allocatable += usize::from(expected == BlockState::Free);
                }
                let too_many = pool.allocate(allocatable + 1);
                assert!(matches!(too_many, Err(PoolError::OutOfBlocks(_))), "{order:?}: {too_many:?}");
                assert_eq!(pool.num_available(), allocatable);
            }
            let last = pool.allocate(if shared { 2 } else { 3 }).unwrap();
            assert!(!shared || !last.contains(&blocks[1]));
        }
    }
}

/// vllm#45357, seen from the KV: a request ends while its step runs, another is admitted at once, and the running step
/// writes late. Nobody's KV is damaged, and a hit on a fenced block still succeeds.
#[test]
fn property_07_a_late_write_of_a_running_step_hits_nobody() {
    for preempt in [false, true] {
        let mut engine = Engine::new(6);
        engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
        engine.compute(1, 4);
        let table = engine.manager.block_table(1).unwrap().to_vec();
        if preempt {
            engine.manager.preempt(1, Some(8)).unwrap();
        } else {
            engine.release(1, Some(8));
        }
        // The same prefix: its blocks are fenced, computed, and may be read.
        let admission = engine.admit(2, &[1, 2, 3, 4, 6]).unwrap();
        assert_eq!(admission.block_ids[..2], table[..2]);
        assert!(!admission.block_ids.contains(&table[2]), "a fenced block was handed out");
        engine.admit(3, &[7, 7, 7]).unwrap();
        engine.compute_all(3);
        engine.compute_all(2);
        assert!(engine.manager.block_table(3).unwrap().iter().all(|block| !table.contains(block)));
        engine.memory[table[2].index()] = (99, vec![5]); // step 8 writes late
        engine.check();
        // Earlier steps end nothing; the step itself ends everything, once.
        assert_eq!(engine.manager.complete_step(7).unwrap(), 0);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Fenced));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 3);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Free));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 0);
        engine.check();
    }
}

/// ascend#16315: with asynchronous scheduling a preempted request's blocks do not come back in the same step; a scheduler
/// that does not see them as pending preempts everybody, or never ends.
#[test]
fn property_08_preempting_until_demand_is_met_ends_and_stops_in_time() {
    for running in 1..=4usize {
        for size in 1..=3usize {
            for shared in [false, true] {
                for demand in 1..=running * size {
                    preempt_until_met(running, size, shared, demand);
                }
            }
        }
    }
}

fn preempt_until_met(running: usize, size: usize, shared: bool, demand: usize) {
    let mut engine = Engine::new(running * size);
    for at in 0..running as u32 {
        // All tables begin with the same block, or none do.
        let mut tokens: Vec<_> = (0..(B * size) as u32).map(|token| 100 * (at + 1) + token).collect();
        if shared {
            tokens[..B].fill(1);
        }
        engine.admit(i64::from(at), &tokens).unwrap();
        engine.compute_all(i64::from(at));
    }
    let step = 5;
    let prompt: Vec<_> = (0..(B * demand) as u32).map(|token| 5000 + token).collect();
    let mut victims: Vec<_> = (0..running as i64).collect();
    let mut completed = false;
    let mut pending = 0;
    loop {
        let refusal = match engine.admit(99, &prompt) {
            Ok(_) => break,
            Err(ManagerError::OutOfBlocks(refusal)) => refusal,
            Err(error) => panic!("{error}"),
        };
        assert!(refusal.can_ever_fit);
        assert_eq!((refusal.fenced, refusal.missing), (pending, refusal.needed - refusal.available));
        if refusal.missing <= refusal.fenced {
            assert!(!completed, "what was pending did not come");
            engine.manager.complete_step(step).unwrap();
            (completed, pending) = (true, 0);
            continue;
        }
        assert!(!completed, "too few were preempted, though enough seemed to be pending");
        let victim = victims.pop().unwrap_or_else(|| panic!("nobody runs, and the demand is not met"));
        engine.manager.preempt(victim, Some(step)).unwrap();
        pending = engine.manager.pool().num_fenced();
        engine.check();
    }
    engine.check();
    // It stopped as soon as enough was pending: without its last victim, the demand was not met.
    let blocks_of = |survivors: usize| match (shared, survivors) {
        (_, 0) => 0,
        (true, n) if size > 1 => 1 + n * (size - 1),
        (_, n) => n * size,
    };
    let total = running * size;
    assert!(total - blocks_of(victims.len()) >= demand);
    assert!(victims.len() == running || total - blocks_of(victims.len() + 1) < demand, "one victim too many");
}

/// A request in one of the states that it can be aborted in, beside another one that shares its prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Admitted,
    PartlyCommitted,
    Committed,
    Decoding,
    Preempted,
    PreemptedAfterStep,
    Resumed,
    ResumedWhileFenced,
    StaleEpoch,
}

const STAGES: [Stage; 9] = [
    Stage::Admitted,
    Stage::PartlyCommitted,
    Stage::Committed,
    Stage::Decoding,
    Stage::Preempted,
    Stage::PreemptedAfterStep,
    Stage::Resumed,
    Stage::ResumedWhileFenced,
    Stage::StaleEpoch,
];

const STEP: u64 = 10;

fn bring_to(engine: &mut Engine, request: i64, stage: Stage) {
    engine.admit(request, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
    match stage {
        Stage::Admitted => {}
        Stage::PartlyCommitted => engine.compute(request, 5),
        Stage::Committed => engine.compute_all(request),
        Stage::StaleEpoch => {
            engine.compute(request, 5);
            engine.manager.bump_epoch().unwrap();
            engine.compute_all(request);
        }
        _ => {
            engine.compute_all(request);
            for token in 0..4 {
                engine.append(request, token).unwrap();
                engine.compute_all(request);
            }
            engine.append(request, 4).unwrap(); // sampled, not computed
        }
    }
    let fence = matches!(stage, Stage::PreemptedAfterStep | Stage::ResumedWhileFenced).then_some(STEP);
    if matches!(
        stage,
        Stage::Preempted | Stage::PreemptedAfterStep | Stage::Resumed | Stage::ResumedWhileFenced
    ) {
        engine.manager.preempt(request, fence).unwrap();
    }
    if matches!(stage, Stage::Resumed | Stage::ResumedWhileFenced) {
        engine.resume(request).unwrap();
    }
    engine.check();
}

/// vllm#46283, #41269, #44100: an abort in some state, or with its completion message lost, sent twice or late, left
/// blocks behind or freed them twice.
#[test]
fn property_10_an_abort_in_any_state_gives_everything_back() {
    let messages: [&[u64]; 7] = [
        &[],
        &[STEP],
        &[STEP, STEP],
        &[STEP - 1, STEP],
        &[STEP + 5],
        &[STEP, STEP - 1],
        &[3, 3, STEP + 1, STEP],
    ];
    for stage in STAGES {
        for fence in [None, Some(STEP), Some(STEP - 1)] {
            for early in [&[][..], &[STEP]] {
                for late in messages {
                    abort(stage, fence, early, late);
                }
            }
        }
    }
}

fn abort(stage: Stage, fence: Option<u64>, early: &[u64], late: &[u64]) {
    let what = format!("{stage:?}, released after {fence:?}, completed {early:?}, then {late:?}");
    let mut engine = Engine::new(20);
    engine.admit(1, &[1, 2, 3, 4, 8]).unwrap();
    engine.compute_all(1);
    let held = |engine: &Engine| {
        let stats = engine.manager.stats();
        (stats.pool.free + stats.pool.cached_free, stats.pool.active, stats.running, stats.preempted)
    };
    let without = held(&engine);
    let bystander = engine.manager.block_table(1).unwrap().to_vec();

    bring_to(&mut engine, 2, stage);
    for &step in early {
        engine.manager.complete_step(step).unwrap();
    }
    let fenced_before = engine.manager.pool().num_fenced();
    engine.release(2, fence);
    // The abort may come twice as well.
    let after = observe_manager(&engine.manager);
    assert_eq!(engine.manager.release(2, fence), Err(ManagerError::UnknownRequest { id: 2.into() }));
    assert_eq!(observe_manager(&engine.manager), after);
    engine.check();

    let is_open = |step: u64| early.iter().all(|&completed| completed < step);
    if fence.is_some_and(is_open) && !matches!(stage, Stage::Preempted | Stage::PreemptedAfterStep) {
        assert!(engine.manager.pool().num_fenced() > fenced_before, "{what}: nothing waits for the step");
    }
    for &step in late {
        engine.manager.complete_step(step).unwrap();
        engine.check();
    }
    // The last deadline: every step has ended by now.
    engine.manager.complete_step(STEP).unwrap();
    assert_eq!(engine.manager.pool().num_fenced(), 0, "{what}");
    assert_eq!(held(&engine), without, "{what}");
    assert_eq!(engine.manager.block_table(1).unwrap(), bystander);
    assert!(bystander.iter().all(|&block| engine.manager.pool().ref_count(block) == Some(1)), "{what}");
    engine.check();
    engine.release(1, None);
    assert_eq!(engine.manager.pool().num_available(), 20, "{what}");
}

/// What can be done to a small pool, for tests that try every history.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Takes blocks for the whole prompt (true) or its first block (false), and registers them.
    Start(bool),
    /// The engine has written the newest table.
    Computed,
    /// The oldest table is released.
    Release,
    /// The newest table is released, fenced on the next step.
    Fence,
    CompleteStep,
    Hit,
    Allocate,
    EvictFirst,
    BumpEpoch,
}

const ACTS: [Act; 10] = [
    Act::Start(true),
    Act::Start(false),
    Act::Computed,
    Act::Release,
    Act::Fence,
    Act::CompleteStep,
    Act::Hit,
    Act::Allocate,
    Act::EvictFirst,
    Act::BumpEpoch,
];

/// A pool of four blocks of which tables hold some.
struct World {
    pool: BlockPool,
    tables: Vec<Vec<BlockId>>,
    step: u64,
}

impl World {
    /// Empty, or with two computed copies of one prompt: one held, one cached-free.
    fn new(duplicates: DuplicatePolicy, prelude: bool) -> Self {
        let config = PoolConfig {
            num_blocks: 5,
            block_size: B,
            duplicates,
            event_capacity: 1000,
            ..Default::default()
        };
        let mut world = Self { pool: BlockPool::new(config).unwrap(), tables: Vec::new(), step: 0 };
        if prelude {
            for act in [Act::Start(true), Act::Start(true), Act::Computed] {
                world.act(act);
            }
            world.tables.rotate_left(1);
            world.act(Act::Computed);
        }
        world
    }

    fn prompt(&self) -> &'static HashChain {
        static CHAINS: OnceLock<Vec<HashChain>> = OnceLock::new();
        let make = || (0..8).map(|epoch| chain_in(epoch, &[1, 2, 3, 4])).collect();
        &CHAINS.get_or_init(make)[self.pool.epoch() as usize]
    }

    /// Calls that are refused are part of a history, too.
    fn act(&mut self, act: Act) {
        let chain = self.prompt();
        match act {
            Act::Start(whole) => {
                if let Ok(blocks) = self.pool.allocate(if whole { 2 } else { 1 }) {
                    self.pool.register(&blocks, chain, 0).unwrap();
                    self.tables.push(blocks);
                }
            }
            Act::Computed => {
                if let Some(table) = self.tables.last() {
                    let _ = self.pool.mark_computed(table); // not registered, perhaps
                }
            }
            Act::Release if !self.tables.is_empty() => {
                let table = self.tables.remove(0);
                self.pool.release_table(&table).unwrap();
            }
            Act::Fence => {
                if let Some(table) = self.tables.pop() {
                    self.pool.release_after(&table, self.step).unwrap();
                }
            }
            Act::CompleteStep => {
                self.pool.complete_step(self.step).unwrap();
                self.step += 1;
            }
            Act::Hit => {
                let blocks = self.pool.match_and_acquire(chain, 2).unwrap();
                self.tables.extend(Some(blocks).filter(|blocks| !blocks.is_empty()));
            }
            Act::Allocate => self.tables.extend(self.pool.allocate(1).ok()),
            Act::EvictFirst => drop(self.pool.evict(&ids(&[1])).unwrap()),
            Act::BumpEpoch => drop(self.pool.bump_epoch().unwrap()),
            Act::Release => {}
        }
    }

    /// Computed copies by hash.
    fn copies(&self) -> BTreeMap<BlockHash, usize> {
        let mut copies = BTreeMap::new();
        for hash in
            all_blocks(&self.pool).filter(|&b| self.pool.is_computed(b)).filter_map(|b| self.pool.hash_of(b))
        {
            *copies.entry(hash).or_insert(0) += 1;
        }
        copies
    }
}

/// Calls `check` with the world before the last act of every history of one to `depth` acts, and with that act.
fn every_history(depth: u32, check: impl Fn(&mut World, Act, &dyn std::fmt::Debug)) {
    for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
        for prelude in [false, true] {
            for length in 1..=depth {
                for number in 0..ACTS.len().pow(length) {
                    let acts: Vec<_> =
                        (0..length).map(|at| ACTS[number / ACTS.len().pow(at) % ACTS.len()]).collect();
                    let mut world = World::new(duplicates, prelude);
                    acts[..acts.len() - 1].iter().for_each(|&act| world.act(act));
                    check(&mut world, acts[acts.len() - 1], &(duplicates, prelude, &acts));
                }
            }
        }
    }
}

/// vllm#55092: a removal was reported while another copy was resident. A content's number of computed copies goes from 0
/// exactly if `Stored` is reported, and to 0 exactly if `Removed` is; so the events replayed are the matchable hashes.
#[test]
fn property_13_events_say_when_a_content_appears_and_when_its_last_copy_goes() {
    every_history(5, |world, act, history| {
        world.pool.take_events();
        let before: BTreeSet<_> = world.copies().into_keys().collect();
        world.act(act);
        let after: BTreeSet<_> = world.copies().into_keys().collect();
        let mut replayed = before;
        for event in world.pool.take_events().events {
            match event {
                BlockEvent::Stored { hash, .. } => {
                    assert!(replayed.insert(hash), "{history:?}: stored twice");
                }
                BlockEvent::Removed { hash, .. } => {
                    assert!(replayed.remove(&hash), "{history:?}: removed, not there");
                }
                BlockEvent::Cleared { .. } => replayed.clear(),
                _ => panic!("{event:?}"),
            }
        }
        assert_eq!(replayed, after, "{history:?}");
        // What is said to be matchable is what a lookup finds.
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        let hashes = world.prompt().hashes();
        assert_eq!(found.len(), hashes.iter().take_while(|hash| after.contains(hash)).count(), "{history:?}");
    });
}

/// vllm#49377: blocks were indexed under hashes of tokens that were never written to them, once drafts had been rejected.
#[test]
fn property_16_a_rejected_draft_is_never_indexed() {
    let mut pool = pool(8);
    let mut cursor = HashCursor::new(hasher(), ExtraKeys::default()).unwrap();
    cursor.append(&[1, 2, 3]);
    cursor.append(&[90, 91, 92]); // drafts: they fill blocks 1 and 2
    cursor.truncate(4).unwrap(); // one is accepted
    cursor.append(&[5, 6]);
    assert_eq!(*cursor.chain(), chain(&[1, 2, 3, 90, 5, 6]));
    let blocks = pool.allocate(3).unwrap();
    pool.register(&blocks, cursor.chain(), 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    let matched =
        |pool: &mut BlockPool, tokens: &[u32]| pool.match_and_acquire(&chain(tokens), 3).unwrap().len();
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 5, 6]), 3);
    assert_eq!(matched(&mut pool, &[1, 2, 3, 90, 91, 92]), 2);

    // Through the manager: full blocks whose tokens are not committed are not indexed, however often they are appended.
    let mut engine = Engine::new(8);
    engine.admit(1, &[1, 2, 3]).unwrap();
    engine.compute_all(1);
    for token in [4, 5, 6, 7] {
        engine.append(1, token).unwrap();
    }
    assert_eq!(engine.manager.pool().stats().registered, 1);
    engine.compute(1, 5);
    assert_eq!(engine.manager.pool().stats().registered, 2);
    engine.check_index();
}

#[derive(Clone, Debug)]
enum Call {
    Admit(i64, Vec<u32>),
    Append(i64, u32),
    Compute(i64, usize),
    Preempt(i64, bool),
    Resume(i64),
    Release(i64, bool),
    CompleteStep,
    BumpEpoch,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let id = || 0i64..4;
    let call = prop_oneof![
        4 => (id(), prop::collection::vec(0u32..2, 1..9)).prop_map(|(id, tokens)| Call::Admit(id, tokens)),
        4 => (id(), 0u32..2).prop_map(|(id, token)| Call::Append(id, token)),
        8 => (id(), 0usize..6).prop_map(|(id, more)| Call::Compute(id, more)),
        2 => (id(), any::<bool>()).prop_map(|(id, fence)| Call::Preempt(id, fence)),
        3 => id().prop_map(Call::Resume),
        2 => (id(), any::<bool>()).prop_map(|(id, fence)| Call::Release(id, fence)),
        2 => Just(Call::CompleteStep),
        1 => Just(Call::BumpEpoch),
    ];
    prop::collection::vec(call, 1..80)
}

/// Runs calls that are possible, and skips the others. `after` sees the engine after each.
fn play(engine: &mut Engine, calls: &[Call], mut after: impl FnMut(&Engine)) {
    let mut step = 0;
    for call in calls {
        match call {
            Call::Admit(id, tokens) if !engine.requests.contains_key(id) => {
                let _ = engine.admit(*id, tokens); // refused, perhaps
            }
            Call::Append(id, token) if engine.is_running(*id) => drop(engine.append(*id, *token)),
            Call::Compute(id, more) if engine.is_running(*id) => {
                let info = engine.manager.request(*id).unwrap();
                engine.compute(*id, info.tokens.min(info.computed_tokens + more));
            }
            Call::Preempt(id, fence) if engine.is_running(*id) => {
                engine.manager.preempt(*id, fence.then_some(step)).unwrap();
            }
            Call::Resume(id) if engine.requests.contains_key(id) && !engine.is_running(*id) => {
                drop(engine.resume(*id));
            }
            Call::Release(id, fence) if engine.requests.contains_key(id) => {
                engine.release(*id, fence.then_some(step));
            }
            Call::CompleteStep => {
                engine.manager.complete_step(step).unwrap();
                step += 1;
            }
            Call::BumpEpoch => drop(engine.manager.bump_epoch().unwrap()),
            _ => {}
        }
        engine.check();
        after(engine);
    }
}

proptest! {
    /// vllm#49377: every block that can be hit is indexed under the hash of the KV that is really in it, whatever was
    /// appended, committed in parts, preempted, resumed, evicted and rehashed.
    #[test]
    fn property_16_every_index_entry_names_the_kv_that_was_written(usable in 3usize..9, calls in calls()) {
        play(&mut Engine::new(usable), &calls, Engine::check_index);
    }
}

/// vllm#44701, #30931, #3264: adapters, salts or images that were left out of a hash, or mixed up in it, shared blocks.
/// Prompts with the same tokens and extra keys that differ in one field never share, and equal ones do.
#[test]
fn property_18_requests_share_only_if_every_extra_key_is_equal() {
    let bytes = |text: &str| Some(text.as_bytes().into());
    let adapter =
        |id: &str, path: Option<&str>| Some(Adapter { id: id.as_bytes().into(), path: path.map(Into::into) });
    let image = |identifier: &str, offset, length| MultimodalItem {
        identifier: identifier.as_bytes().into(),
        offset,
        length,
    };
    let none = ExtraKeys::default;
    // The same strings in every field, moved between fields, split differently, empty, absent.
    let native = [
        none(),
        ExtraKeys { salt: bytes(""), ..none() },
        ExtraKeys { salt: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("ab"), ..none() },
        ExtraKeys { tenant: bytes(""), ..none() },
        ExtraKeys { tenant: bytes("a"), ..none() },
        ExtraKeys { user: bytes("a"), ..none() },
        ExtraKeys { adapter: adapter("a", None), ..none() },
        ExtraKeys { adapter: adapter("b", None), ..none() },
        ExtraKeys { salt: bytes("a"), tenant: bytes("b"), ..none() },
        ExtraKeys { salt: bytes("b"), tenant: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("a"), tenant: bytes(""), ..none() },
        ExtraKeys { salt: bytes("a"), user: bytes("b"), ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 2)], ..none() },
        ExtraKeys { multimodal: vec![image("a", 1, 1)], ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 1), image("b", 1, 1)], ..none() },
        ExtraKeys { multimodal: vec![image("b", 0, 1), image("a", 1, 1)], ..none() },
        ExtraKeys { salt: bytes("a"), multimodal: vec![image("a", 0, 2)], ..none() },
    ];
    let vllm = [
        none(),
        ExtraKeys { salt: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("ab"), ..none() },
        ExtraKeys { adapter: adapter("a", Some("p")), ..none() },
        ExtraKeys { adapter: adapter("p", Some("a")), ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 2)], ..none() },
        ExtraKeys { multimodal: vec![image("b", 0, 2)], ..none() },
        ExtraKeys { salt: bytes("a"), multimodal: vec![image("a", 0, 2)], ..none() },
    ];
    for &algorithm in HashAlgorithm::ALL {
        let extras = if algorithm.is_vllm() { &vllm[..] } else { &native };
        let verify = if algorithm.is_cryptographic() { Verify::None } else { Verify::Fingerprint };
        let seed = Some("0".into());
        let config =
            ManagerConfig { num_blocks: 200, block_size: B, algorithm, verify, seed, ..Default::default() };
        let mut manager = CacheManager::new(config).unwrap();
        let tokens = [1, 2, 3, 4, 5];
        for (at, extra) in extras.iter().enumerate() {
            let admission =
                manager.admit(at as i64, manager.prepare(&tokens, extra.clone()).unwrap()).unwrap();
            assert_eq!(
                admission.cached_tokens, 0,
                "{algorithm}: {extra:?} was given another request's blocks"
            );
            manager.commit(at as i64, 5).unwrap();
        }
        for (at, extra) in extras.iter().enumerate() {
            let admission =
                manager.admit(100 + at as i64, manager.prepare(&tokens, extra.clone()).unwrap()).unwrap();
            assert_eq!(
                admission.block_ids[..2],
                manager.block_table(at as i64).unwrap()[..2],
                "{algorithm}: {extra:?}"
            );
        }
        manager.check_invariants().unwrap();
    }
}

/// lmcache#2136, DingoCache#77: digests differed between processes, Python versions, hash seeds. These were computed by
/// another program, with Python's `hashlib`: see `docs/hashing.md`. All other vectors are in `data/hash_vectors.json`.
#[test]
fn property_19_digests_are_these_everywhere() {
    let golden = |algorithm, expected: &[&str]| {
        let config = HasherConfig { algorithm, block_size: 4, ..Default::default() };
        let mut cursor =
            HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), ExtraKeys::default()).unwrap();
        cursor.append(&[0, 1, 2, 3, 65_535, 65_536, u32::MAX - 1, u32::MAX]);
        let digests: Vec<_> = cursor.chain().hashes().iter().map(|hash| format!("{hash:?}")).collect();
        assert_eq!(digests, expected, "{algorithm}");
    };
    golden(
        HashAlgorithm::Sha256,
        &[
            "41a841d81982818f7eab34fa8f9aee1ccac353902b5ce433ea04051c16265001",
            "77ce3a995417c2f8fa5553a3a4e3f9bef3195737cf68da4c481993ce4b56e7a3",
        ],
    );
    golden(
        HashAlgorithm::VllmSha256,
        &[
            "9da1c53089c000ad1a79a77c143b68dda00e2a85315bc1f690bbd03ba4a195dd",
            "a314a1822e24f79e7234cf7d5fe276b4cd922c245bcb9472c4f57862e48e2abb",
        ],
    );
    golden(
        HashAlgorithm::VllmSha256Cbor,
        &[
            "c49ab11fb576db6f376aef58c24f728a0ba1807e8cac5f940f1a5c4c20741898",
            "c145bd369b66409346aabb34accecb49cb2bf775a347a6f71b309b06c5688c56",
        ],
    );
}

/// ovg-project/kvcached#401, nano#219: with two copies of a content, evicting one made the content unmatchable, or left an
/// entry that named a block with other content. Copies go in every order, by every way out.
#[test]
fn property_20_copies_of_a_content_can_go_in_any_order() {
    let chain = chain(&[1, 2, 3, 4]);
    for order in permutations(3) {
        for ways in 0..27 {
            let mut pool = pool(9);
            let copies: Vec<_> = (0..3).map(|_| fill(&mut pool, &[1, 2, 3, 4])).collect();
            for (nth, &copy) in order.iter().enumerate() {
                let table = &copies[copy];
                match ways / 3usize.pow(nth as u32) % 3 {
                    0 => {
                        pool.release_table(table).unwrap();
                        assert_eq!(pool.evict(table).unwrap(), 2);
                    }
                    1 => assert_eq!(pool.evict(table).unwrap(), 2), // while it is held
                    _ => {
                        // Evicted by an allocation of everything that nobody holds.
                        pool.release_table(table).unwrap();
                        pool.allocate(pool.num_available()).unwrap();
                    }
                }
                pool.check_invariants().unwrap();
                let left: Vec<_> = order[nth + 1..].iter().map(|&copy| &copies[copy]).collect();
                let found = pool.match_and_acquire(&chain, 2).unwrap();
                assert_eq!(
                    found.is_empty(),
                    left.is_empty(),
                    "{order:?}, {ways}: a copy is left and not found"
                );
                for (at, block) in found.iter().enumerate() {
                    assert!(
                        left.iter().any(|table| table[at] == *block),
                        "{order:?}, {ways}: {block:?} is not a copy"
                    );
                    assert_eq!(pool.hash_of(*block), Some(chain.hashes()[at]));
                }
                pool.release_table(&found).unwrap();
            }
            assert_eq!(pool.stats().registered, 0);
        }
    }
}

/// kvcached#401, nano#219, for the index in every small history: each registered block is found among the copies of its own
/// hash, and what a lookup returns carries the hash that was asked for.
#[test]
fn property_20_every_entry_names_a_block_with_its_hash() {
    every_history(4, |world, act, history| {
        world.act(act);
        world.pool.check_invariants().unwrap();
        let copies = world.copies();
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        for (block, hash) in found.iter().zip(world.prompt().hashes()) {
            assert_eq!(world.pool.hash_of(*block), Some(*hash), "{history:?}");
        }
        let expected = world.prompt().hashes().iter().take_while(|hash| copies.contains_key(hash)).count();
        assert_eq!(found.len(), expected, "{history:?}: a dangling or a lost entry");
    });
    // The index alone: no two chains share an entry, and a removed block leaves none.
    let mut index = PrefixIndex::new(8, B, Verify::None, false).unwrap();
    let (one, two) = (chain(&[1, 2]), chain(&[3, 4]));
    for (block, chain) in [(1, &one), (2, &two), (3, &one), (4, &one), (5, &two)] {
        index.insert(id(block), chain, 0).unwrap();
    }
    for order in permutations(3) {
        let mut index = index.clone();
        for (nth, &at) in order.iter().enumerate() {
            assert!(index.remove(id([1, 3, 4][at])));
            let left = index.copies(&one.hashes()[0]);
            assert_eq!(left.len(), 2 - nth);
            assert!(left.iter().all(|&block| index.hash_of(block) == Some(one.hashes()[0])));
            assert_eq!(raw(&index.copies(&two.hashes()[0])), [2, 5]);
            index.check_invariants().unwrap();
        }
        assert_eq!(index.num_hashes(), 1);
    }
}

/// sglang#35270, mllm#656, trtllm#12834: running counters drifted from what was really there. After every history, the
/// counters equal a recount that uses nothing but the lists and the references, and they add up.
#[test]
fn property_21_counters_equal_a_recount_and_add_up() {
    every_history(5, |world, act, history| {
        world.act(act);
        let (free, cached_free, active, fenced) = sums(&world.pool);
        assert_eq!(recount(&world.pool), (free, cached_free, active, fenced), "{history:?}");
        assert_eq!(free + cached_free + active + fenced, 4, "{history:?}");
        assert_eq!(world.pool.num_available(), free + cached_free, "{history:?}");
        let registered = all_blocks(&world.pool).filter(|&b| world.pool.hash_of(b).is_some()).count();
        assert_eq!(world.pool.stats().registered, registered, "{history:?}");
    });
}

/// What a policy was asked to do.
#[derive(Debug, Default)]
struct Log {
    inside: AtomicBool,
    inserts: AtomicUsize,
    removals: AtomicUsize,
    evictions: AtomicUsize,
    calls: AtomicUsize,
}

/// LRU that notes every call, and every call made while another one is running.
#[derive(Debug)]
struct Watched(LruEvictor, Arc<Log>);

impl Watched {
    fn enter<T>(&mut self, counter: fn(&Log) -> &AtomicUsize, call: impl FnOnce(&mut LruEvictor) -> T) -> T {
        assert!(!self.1.inside.swap(true, Ordering::Relaxed), "the policy was re-entered");
        counter(&self.1).fetch_add(1, Ordering::Relaxed);
        self.1.calls.fetch_add(1, Ordering::Relaxed);
        let result = call(&mut self.0);
        self.1.inside.store(false, Ordering::Relaxed);
        result
    }
}

impl Evictor for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }
    fn insert(&mut self, candidates: &mut [Candidate]) {
        self.enter(|log| &log.inserts, |lru| lru.insert(candidates));
    }
    fn remove(&mut self, block: BlockId) -> bool {
        self.enter(|log| &log.removals, |lru| lru.remove(block))
    }
    fn evict(&mut self) -> Option<BlockId> {
        self.enter(|log| &log.evictions, Evictor::evict)
    }
    fn len(&self) -> usize {
        self.0.len()
    }
    fn contains(&self, block: BlockId) -> bool {
        self.0.contains(block)
    }
    fn order(&self) -> Vec<BlockId> {
        self.0.order()
    }
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.0.grow(num_blocks)
    }
    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.0.check_invariants()
    }
}

/// sglang#27631, trtllm#17926: an eviction started another one; committing computed blocks allocated and could fail; an
/// eviction loop did not end. One call of the policy per victim, none for a commit.
#[test]
fn property_22_one_eviction_per_victim_and_none_for_a_commit() {
    for cached in 0..=4usize {
        for n in 0..=6usize {
            let log = Arc::new(Log::default());
            let evictor = Watched(LruEvictor::new(0), Arc::clone(&log));
            let config = PoolConfig { num_blocks: 7, block_size: B, ..Default::default() };
            let mut pool = BlockPool::with_evictor(config, Box::new(evictor)).unwrap();
            cache(&mut pool, &(0..(B * cached) as u32).collect::<Vec<_>>());
            let before = log.calls.load(Ordering::Relaxed);
            let got = pool.allocate(n).unwrap();
            let victims = n.saturating_sub(6 - cached);
            assert_eq!(got.len(), n);
            assert_eq!(log.evictions.load(Ordering::Relaxed), victims, "evict({n}) of {cached} cached");
            assert_eq!(pool.stats().cached_free, cached - victims);
            assert!(pool.allocate(7 - n).is_err());
            assert_eq!(log.calls.load(Ordering::Relaxed) - before, victims, "a refused call asks nothing");

            // The pool is full or not: what is held can be committed, without a block and without the policy.
            let available = pool.num_available();
            let before = (pool.stats().allocated, log.calls.load(Ordering::Relaxed));
            let chain = chain(&(100..100 + (B * n) as u32).collect::<Vec<_>>());
            pool.register(&got, &chain, 0).unwrap();
            pool.mark_computed(&got).unwrap();
            assert_eq!((pool.stats().allocated, log.calls.load(Ordering::Relaxed)), before);
            assert_eq!(pool.num_available(), available);

            // Everything can be evicted, and then it is over.
            pool.release_table(&got).unwrap();
            assert_eq!(pool.allocate(6).unwrap().len(), 6);
            assert!(pool.allocate(1).is_err());
            pool.check_invariants().unwrap();
        }
    }
    // The same through a manager whose pool is full: a commit needs no block.
    let mut engine = Engine::new(3);
    engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!(engine.manager.pool().num_available(), 0);
    let allocated = engine.manager.stats().pool.allocated;
    assert_eq!(engine.manager.commit(1, 5).unwrap(), 2);
    assert_eq!(engine.manager.stats().pool.allocated, allocated);
}

/// vllm#55461, mooncake#2286, #3028: blocks that were said to be evictable could not be evicted. For every policy, whatever
/// was hit, shared, fenced and dropped before: all that is available can be allocated, at once or one by one.
#[test]
fn property_23_what_is_evictable_can_be_allocated() {
    for &eviction in EvictionPolicy::ALL {
        for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
            for n in 1..=12 {
                for singly in [false, true] {
                    let config = PoolConfig {
                        num_blocks: 13,
                        block_size: B,
                        eviction,
                        duplicates,
                        ..Default::default()
                    };
                    let mut pool = BlockPool::new(config).unwrap();
                    let first = fill(&mut pool, &[1, 2, 3, 4, 5, 6]);
                    let copy = fill(&mut pool, &[1, 2, 3, 4]);
                    let other = fill(&mut pool, &[7, 8, 9, 10]);
                    pool.release(&[first[2], first[0], first[1]]).unwrap();
                    pool.release_after(&copy, 1).unwrap();
                    let hit = pool.match_and_acquire(&chain(&[1, 2]), 1).unwrap();
                    pool.release_table(&other).unwrap();
                    pool.complete_step(1).unwrap();
                    pool.evict(&other[..1]).unwrap();
                    pool.release_table(&hit).unwrap();
                    assert_eq!(pool.num_available(), 12);
                    assert!(pool.stats().cached_free >= 4);
                    let got: BTreeSet<_> = if singly {
                        (0..n).flat_map(|_| pool.allocate(1).unwrap()).collect()
                    } else {
                        pool.allocate(n).unwrap().into_iter().collect()
                    };
                    assert_eq!(
                        (got.len(), pool.num_available()),
                        (n, 12 - n),
                        "{eviction:?}, {duplicates:?}"
                    );
                    pool.check_invariants().unwrap();
                }
            }
        }
    }
}

/// trtllm#15018, lmdeploy#4917: the blocks of a step that failed, or of a request that was aborted, were found by others.
#[test]
fn property_24_a_failed_step_is_never_matchable() {
    let prompt = [1, 2, 3, 4, 5, 6, 7];
    for fence in [None, Some(1)] {
        for committed in 0..=7usize {
            for preempt in [false, true] {
                let mut engine = Engine::new(10);
                engine.admit(1, &prompt).unwrap();
                engine.compute(1, committed);
                engine.write(1, 7); // the step was launched, wrote what it wrote, and failed: no commit follows
                if preempt {
                    engine.manager.preempt(1, fence).unwrap();
                }
                engine.release(1, fence);
                for _ in 0..2 {
                    let cursor = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
                    assert_eq!(engine.manager.probe(&cursor).unwrap().cached_blocks, committed / B);
                    assert_eq!(engine.manager.pool().stats().registered, committed / B);
                    engine.manager.complete_step(1).unwrap();
                }
                assert_eq!(engine.admit(2, &prompt).unwrap().cached_tokens, committed / B * B);
                engine.check_index();
            }
        }
    }
}

/// NeMo-RL#4018: after an update of the weights, requests were given KV of the old ones, by way of requests that had been
/// running, preempted or hashed before it. For every algorithm: vLLM's digests do not contain the epoch.
#[test]
fn property_24_nothing_from_before_an_epoch_bump_is_matched_after_it() {
    for &algorithm in HashAlgorithm::ALL {
        let verify = if algorithm.is_cryptographic() { Verify::None } else { Verify::Tokens };
        let config = ManagerConfig {
            num_blocks: 41,
            block_size: B,
            algorithm,
            verify,
            seed: Some("0".into()),
            ..Default::default()
        };
        let mut engine = Engine::new(40);
        engine.manager = CacheManager::new(config).unwrap();
        let prompt: Vec<_> = (1..=9).collect();
        for id in 1..=4 {
            engine.admit(id, &prompt).unwrap();
            engine.compute(id, if id == 1 { 9 } else { 8 });
        }
        engine.manager.preempt(2, None).unwrap();
        engine.manager.preempt(3, Some(1)).unwrap();
        engine.release(4, Some(1));
        let old = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
        let mut plan = engine.manager.begin_step();
        engine.manager.plan_admit(&mut plan, 90, old.clone()).unwrap();

        assert_eq!(engine.manager.bump_epoch().unwrap(), 1);

        // A plan and a prompt from before are refused, and the prompt is handed back.
        assert_eq!(engine.manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
        let stale = ManagerError::Pool(PoolError::StaleEpoch { chain: 0, pool: 1 });
        assert_eq!(engine.manager.probe(&old).unwrap_err(), stale);
        let refused = engine.manager.admit(91, old).unwrap_err();
        assert_eq!((refused.error, refused.cursor.num_tokens()), (stale, 9));

        let misses = |engine: &Engine| {
            let cursor = engine.manager.prepare(&prompt, ExtraKeys::default()).unwrap();
            assert_eq!(engine.manager.probe(&cursor).unwrap().cached_blocks, 0, "{algorithm}");
            assert_eq!(engine.manager.pool().stats().registered, 0, "{algorithm}");
        };
        misses(&engine);
        // The running request goes on with KV of both weights: never published, also not when it ends.
        for token in 0..5 {
            engine.append(1, token).unwrap();
            engine.compute_all(1);
            misses(&engine);
        }
        engine.manager.complete_step(1).unwrap(); // late messages of the old epoch
        misses(&engine);
        engine.release(1, Some(2));
        engine.manager.complete_step(2).unwrap();
        misses(&engine);
        // Preempted ones are computed anew, from the first token, and published from then on.
        assert_eq!(engine.resume(2).unwrap().cached_tokens, 0, "{algorithm}");
        engine.compute_all(2);
        assert_eq!(engine.resume(3).unwrap().cached_tokens, 8, "{algorithm}");
        assert_eq!(engine.admit(5, &prompt).unwrap().cached_tokens, 8, "{algorithm}");
        engine.check();
    }
}

/// vllm#25780, #43736: hits and prompt tokens were counted again on every retry of an admission and after every
/// preemption, so that hit rates exceeded 1 or fell with load.
#[test]
fn property_25_each_prompt_token_counts_once() {
    let mut engine = Engine::new(8);
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[1, 2, 9, 9, 9, 9]];
    let counts = |engine: &Engine| {
        let stats = engine.manager.stats();
        (stats.prompt_tokens, stats.hit_tokens, stats.computed_tokens, stats.admissions)
    };
    engine.admit(0, prompts[0]).unwrap();
    assert_eq!(counts(&engine), (5, 0, 5, 1));
    engine.compute_all(0);
    engine.admit(1, prompts[1]).unwrap(); // 2 blocks hit
    assert_eq!(counts(&engine), (12, 4, 8, 2));
    engine.admit(7, &[50, 51, 52, 53]).unwrap();
    assert_eq!(counts(&engine), (16, 4, 12, 3));
    for attempt in 0..5 {
        let before = counts(&engine);
        let error = engine.admit(2, prompts[2]).unwrap_err(); // 1 block hit, 2 more needed, 1 there
        assert!(matches!(error, ManagerError::OutOfBlocks(_)));
        assert_eq!(counts(&engine), before, "a refused admission counts nothing");
        assert_eq!(engine.manager.stats().refusals, attempt + 1);
    }
    for round in 0..4 {
        engine.manager.preempt(1, None).unwrap();
        engine.resume(1).unwrap();
        assert_eq!(counts(&engine), (16, 4, 12, 3), "a preemption counts no prompt again");
        assert_eq!(engine.manager.stats().resumed_tokens, 7 * (round + 1));
        assert_eq!(engine.manager.stats().resumed_hit_tokens, 4 * (round + 1));
    }
    engine.release(7, None);
    engine.admit(2, prompts[2]).unwrap();
    assert_eq!(counts(&engine), (22, 6, 16, 4));
    // Decoding adds no prompt tokens.
    engine.append(2, 1).unwrap();
    engine.compute_all(2);
    assert_eq!(counts(&engine), (22, 6, 16, 4));
}

proptest! {
    /// vllm#25780, #43736, for any calls: the counters equal the sums over first admissions.
    #[test]
    fn property_25_hits_and_computed_tokens_sum_to_prompt_tokens(usable in 3usize..9, calls in calls()) {
        let mut engine = Engine::new(usable);
        let mut seen = BTreeSet::new();
        let (mut prompt_tokens, mut hit_tokens) = (0, 0);
        play(&mut engine, &calls, |engine| {
            let stats = engine.manager.stats();
            // A request that is new since the last call was just admitted.
            for id in engine.requests.keys() {
                if seen.insert(*id) {
                    let info = engine.manager.request(*id).unwrap();
                    prompt_tokens += info.tokens as u64;
                    hit_tokens += info.cached_tokens as u64;
                }
            }
            seen.retain(|id| engine.requests.contains_key(id));
            assert_eq!((stats.prompt_tokens, stats.hit_tokens), (prompt_tokens, hit_tokens));
            assert_eq!(stats.hit_tokens + stats.computed_tokens, stats.prompt_tokens);
        });
    }
}
