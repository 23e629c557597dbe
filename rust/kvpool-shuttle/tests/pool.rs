//! Tests a real pool and manager that several threads use under shuttle. A lock protects them, as in
//! the Python bindings.
//!
//! Each model checks a statement that must be true under every schedule. Most models have a variant
//! that violates the protocol and must fail, which proves that the check can fail.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

mod common;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Counter, Ordering};

use common::{check, together};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, CacheManager, ExtraKeys, HashCursor, HasherConfig,
    ManagerConfig, ManagerError, PoolConfig, PoolError, PoolStats,
};
use kvpool_observe::{BlockEvent, ManagerWatch, ManagerWatchConfig, PoolWatch, WatchConfig};
use shuttle::sync::{Mutex, MutexGuard};
use shuttle::thread::yield_now;

const BLOCK: usize = 4;

/// The lock of the Python bindings, together with the pool or manager that it protects.
struct Locked<T>(Mutex<T>);

impl<T> Locked<T> {
    fn new(state: T) -> Arc<Self> {
        Arc::new(Self(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no panic")
    }
}

fn manager(num_blocks: usize) -> Arc<Locked<CacheManager>> {
    let config = ManagerConfig { num_blocks, block_size: BLOCK, ..ManagerConfig::default() };
    let watch = ManagerWatchConfig { event_capacity: 1000, ..ManagerWatchConfig::default() };
    let manager = CacheManager::new(config).and_then(|manager| manager.watched(&watch));
    Locked::new(manager.expect("a configuration"))
}

fn pool(num_blocks: usize) -> Arc<Locked<BlockPool>> {
    let config = PoolConfig { num_blocks, block_size: BLOCK, ..PoolConfig::default() };
    let watch = WatchConfig { event_capacity: 1000, ..WatchConfig::default() };
    Locked::new(BlockPool::new(config).and_then(|pool| pool.watched(&watch)).expect("a configuration"))
}

fn hasher() -> Arc<BlockHasher> {
    let config = HasherConfig { block_size: BLOCK, ..HasherConfig::default() };
    Arc::new(BlockHasher::new(config).expect("a configuration"))
}

/// Makes a prompt of whole blocks. Prompts with the same first token have the same content.
fn prompt(hasher: &Arc<BlockHasher>, first: u32, blocks: usize, epoch: u64) -> HashCursor {
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher.clone(), extra).expect("no extra keys");
    cursor.append(&(first..first + (blocks * BLOCK) as u32).collect::<Vec<_>>());
    cursor
}

type Task<R> = Box<dyn FnOnce() -> R + Send>;

// The next tests hash prompts outside of the lock while the weights change.

/// For each block, the epoch of the weights with which an engine computed its content. This map stands
/// for the KV memory, which is not part of the manager.
type Written = Arc<Mutex<Vec<Option<u64>>>>;

/// Serves a request: hashes in the current epoch without holding the lock, then admits, computes and
/// commits. Returns how often it had to hash again.
fn serve(manager: &Locked<CacheManager>, written: &Written, id: i64, careless: bool) -> usize {
    let mut stale = 0;
    let (admission, epoch) = loop {
        let (hasher, epoch) = {
            let locked = manager.lock();
            (locked.hasher().clone(), locked.pool().epoch())
        };
        let mut cursor = prompt(&hasher, 7, 3, epoch); // without holding the lock
        let mut locked = manager.lock();
        if careless && locked.pool().epoch() != epoch {
            // A faulty caller: moves the cursor to the new epoch, but computes KV with the old weights.
            cursor.rebase(locked.pool().epoch()).expect("no extra keys");
        }
        let now = locked.pool().epoch();
        match locked.admit(id, cursor) {
            Ok(admission) => break (admission, if careless { epoch } else { now }),
            Err(refused) => {
                assert!(matches!(
                    refused.error,
                    ManagerError::Pool(PoolError::StaleEpoch { chain, pool }) if chain < pool
                ));
                stale += 1;
            }
        }
    };
    {
        let mut written = written.lock().expect("no panic");
        for (position, block) in admission.block_ids.iter().enumerate() {
            if position < admission.cached_blocks {
                let found = written[block.index()];
                assert_eq!(found, Some(epoch), "request {id} hit KV of other weights in {block:?}");
            } else {
                written[block.index()] = Some(epoch);
            }
        }
    }
    // The weights may change at this point. From then on, no request may hit any of these blocks.
    let mut locked = manager.lock();
    locked.commit(id, 12).expect("it runs");
    drop(locked);
    manager.lock().release(id, None).expect("it runs");
    stale
}

fn prompts_and_epochs(careless: bool, stale: &Counter) {
    let (manager, written) = (manager(20), Written::new(Mutex::new(vec![None; 20])));
    let serves = |ids: [i64; 2]| -> Task<usize> {
        let (manager, written) = (manager.clone(), written.clone());
        Box::new(move || ids.iter().map(|&id| serve(&manager, &written, id, careless)).sum())
    };
    let bumps = {
        let manager = manager.clone();
        Box::new(move || {
            for _ in 0..2 {
                manager.lock().bump_epoch().expect("not poisoned");
                yield_now();
            }
            0
        })
    };
    let retries: usize = together(vec![serves([1, 2]), serves([3, 4]), bumps]).iter().sum();
    stale.fetch_add(retries, Ordering::Relaxed);
    let locked = manager.lock();
    locked.check_invariants().expect("intact");
    assert_eq!((locked.pool().epoch(), locked.pool().stats().active), (2, 0));
}

#[test]
fn a_prompt_hashed_before_the_epoch_changed_is_refused_and_never_hits() {
    let stale = Arc::new(Counter::new(0));
    let counted = stale.clone();
    check(move || prompts_and_epochs(false, &counted));
    assert!(stale.load(Ordering::Relaxed) > 100, "the epoch never changed between hash and admission");
}

#[test]
#[should_panic(expected = "KV of other weights")]
fn a_stale_prompt_with_only_a_new_label_hits_other_weights() {
    check(|| prompts_and_epochs(true, &Counter::new(0)));
}

// The next tests plan a step first and commit it later.

fn planned_steps(check_then_act: bool, outcomes: &[Counter; 2]) {
    let manager = manager(8);
    {
        let mut locked = manager.lock();
        for id in 0..2_i64 {
            let cursor = locked.prepare(&[id as u32; BLOCK], ExtraKeys::default()).expect("no extra keys");
            locked.admit(id, cursor).expect("fits");
        }
    }
    // Number of times that the other thread has changed the manager. It is written while the manager's
    // lock is held.
    let changes = Arc::new(Counter::new(0));
    let steps: Task<usize> = {
        let (manager, changes) = (manager.clone(), changes.clone());
        Box::new(move || {
            let (mut committed, mut stale) = (0, 0);
            while committed < 2 && stale < 20 {
                if check_then_act {
                    let fits = manager.lock().pool().num_available() >= 2;
                    for id in (0..2_i64).filter(|_| fits) {
                        let mut locked = manager.lock();
                        locked.append_tokens(id, &[9; BLOCK], 0).expect("there was room for both");
                    }
                    committed += usize::from(fits);
                    stale += usize::from(!fits);
                    continue;
                }
                let (mut plan, before) = {
                    let locked = manager.lock();
                    (locked.plan_step(), changes.load(Ordering::Relaxed))
                };
                let planned = (0..2_i64).try_for_each(|id| {
                    let locked = manager.lock();
                    locked.plan_append(&mut plan, id, &[9; BLOCK], 0).map(drop)
                });
                let done = planned.and_then(|()| {
                    let mut locked = manager.lock();
                    let done = locked.commit_step(&mut plan).map(drop);
                    let changed = changes.load(Ordering::Relaxed) - before;
                    assert!(done.is_err() || changed == 0, "committed after {changed} changes");
                    done
                });
                match done {
                    Ok(()) => committed += 1,
                    Err(ManagerError::StaleStep | ManagerError::OutOfBlocks { .. }) => stale += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            outcome(&manager, committed);
            committed * 100 + stale
        })
    };
    let others: Task<usize> = {
        let manager = manager.clone();
        Box::new(move || {
            for turn in 0..4 {
                let hasher = manager.lock().hasher().clone();
                let cursor = prompt(&hasher, 100 * turn, 3, 0);
                let mut locked = manager.lock();
                let admitted = locked.admit(100 + i64::from(turn), cursor);
                changes.fetch_add(usize::from(admitted.is_ok()), Ordering::Relaxed);
                drop(locked);
                yield_now();
                if let Ok(admission) = admitted {
                    assert_eq!(admission.block_ids.len(), 3);
                    let mut locked = manager.lock();
                    locked.release(100 + i64::from(turn), None).expect("it runs");
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            }
            0
        })
    };
    let done = together(vec![steps, others])[0];
    outcomes[0].fetch_add(done / 100, Ordering::Relaxed);
    outcomes[1].fetch_add(done % 100, Ordering::Relaxed);
}

/// Checks that both requests grew by the same number of steps, because a commit executes all of its
/// plan or nothing.
fn outcome(manager: &Locked<CacheManager>, committed: usize) {
    let locked = manager.lock();
    for id in 0..2_i64 {
        let tokens = locked.request(id).expect("it runs").tokens;
        assert_eq!(tokens, BLOCK * (1 + committed), "request {id} after {committed} steps");
    }
    locked.check_invariants().expect("intact");
}

#[test]
fn a_step_that_was_planned_before_a_change_does_nothing() {
    let outcomes = Arc::new([const { Counter::new(0) }; 2]);
    let counted = outcomes.clone();
    check(move || planned_steps(false, &counted));
    assert!(outcomes.iter().all(|outcome| outcome.load(Ordering::Relaxed) > 100), "{outcomes:?}");
}

#[test]
#[should_panic(expected = "there was room for both")]
fn a_check_before_a_separate_commit_can_be_stale() {
    let outcomes = Arc::new([const { Counter::new(0) }; 2]);
    check(move || planned_steps(true, &outcomes));
}

// The next tests check that a block has only one owner.

/// For each block that was newly allocated, its owner and the content that the owner wrote.
struct Memory {
    owners: Vec<Counter>,
    content: Vec<Counter>,
}

fn hands(look_first: bool) {
    let (pool, hasher) = (pool(7), hasher());
    let memory = Arc::new(Memory { owners: vec_of_counters(7), content: vec_of_counters(7) });
    let shared = prompt(&hasher, 1, 2, 0);
    let work = |worker: usize| -> Task<()> {
        let (pool, memory, hasher, shared) = (pool.clone(), memory.clone(), hasher.clone(), shared.clone());
        Box::new(move || {
            for turn in 0..3 {
                // The prompt is either the shared prefix or a prefix that only this worker uses.
                let own = prompt(&hasher, 1000 * (worker * 10 + turn) as u32, 2, 0);
                let (chain, content) = if (worker + turn).is_multiple_of(2) {
                    (shared.chain(), 1)
                } else {
                    (own.chain(), 1000 * (worker * 10 + turn))
                };
                let found = if look_first {
                    // A faulty caller: looks up the blocks first and acquires them later. Another
                    // request may own them by then.
                    let seen: Vec<BlockId> = {
                        let locked = pool.lock();
                        let copies = |hash: &BlockHash| locked.copies(hash).first().copied();
                        let held = |block: &BlockId| {
                            locked.is_computed(*block) && locked.ref_count(*block) > Some(0)
                        };
                        chain.hashes().iter().map_while(copies).take_while(held).collect()
                    };
                    yield_now();
                    if pool.lock().acquire(&seen).is_ok() { seen } else { Vec::new() }
                } else {
                    pool.lock().match_and_acquire(chain, usize::MAX).expect("a chain of this pool")
                };
                for &block in &found {
                    let holds = memory.content[block.index()].load(Ordering::Relaxed);
                    assert_eq!(holds, content, "{block:?} was found for {content}");
                }
                let Ok(fresh) = pool.lock().allocate(2 - found.len()) else {
                    pool.lock().release(&found).expect("held");
                    continue;
                };
                for &block in &fresh {
                    let before = memory.owners[block.index()].swap(worker + 1, Ordering::Relaxed);
                    assert_eq!(before, 0, "{block:?} is in two hands");
                    memory.content[block.index()].store(content, Ordering::Relaxed);
                }
                yield_now();
                {
                    let mut locked = pool.lock();
                    let registered = locked.register(&fresh, chain, found.len()).expect("held").blocks;
                    assert_eq!(registered, fresh.len());
                }
                pool.lock().mark_computed(&fresh).expect("registered");
                yield_now();
                for &block in &fresh {
                    assert_eq!(memory.content[block.index()].load(Ordering::Relaxed), content, "overwritten");
                    assert_eq!(memory.owners[block.index()].swap(0, Ordering::Relaxed), worker + 1);
                }
                let table: Vec<_> = found.into_iter().chain(fresh).collect();
                pool.lock().release_table(&table).expect("held");
            }
        })
    };
    together((0..3).map(work).collect());
    let locked = pool.lock();
    locked.check_invariants().expect("intact");
    let stats = locked.stats();
    assert_eq!((stats.active, stats.available()), (0, 6));
}

fn vec_of_counters(length: usize) -> Vec<Counter> {
    (0..length).map(|_| Counter::new(0)).collect()
}

#[test]
fn no_block_has_two_owners() {
    check(|| hands(false));
}

#[test]
#[should_panic(expected = "was found for")]
fn a_lookup_with_a_separate_acquire_can_return_other_content() {
    check(|| hands(true));
}

// In the next tests, another thread ends fences.

/// A device that runs steps in order, later than the scheduler. When it runs a step, it writes to the
/// blocks of this step.
fn fences(fenced: bool) {
    let pool = pool(5);
    let memory = Arc::new(vec_of_counters(5));
    let (queue, steps) = shuttle::sync::mpsc::channel::<(u64, Vec<BlockId>)>();
    let device: Task<()> = {
        let (pool, memory) = (pool.clone(), memory.clone());
        Box::new(move || {
            for (step, table) in steps {
                for &block in &table {
                    memory[block.index()].store(step as usize, Ordering::Relaxed);
                }
                pool.lock().complete_step(step).expect("not poisoned");
            }
        })
    };
    let scheduler: Task<()> = {
        let (pool, memory) = (pool.clone(), memory.clone());
        Box::new(move || {
            for step in 1..=3 {
                let table = pool.lock().allocate(1).expect("four blocks, three at most fenced");
                queue.send((step, table.clone())).expect("the device runs");
                // The request is aborted while its step is running.
                let mut locked = pool.lock();
                if fenced { locked.release_after(&table, step) } else { locked.release(&table) }
                    .expect("held");
                drop(locked);
                let Ok(next) = pool.lock().allocate(1) else { continue };
                let marker = 100 + step as usize;
                memory[next[0].index()].store(marker, Ordering::Relaxed);
                yield_now();
                let now = memory[next[0].index()].load(Ordering::Relaxed);
                assert_eq!(now, marker, "a step wrote to a block that is somebody else's");
                pool.lock().release(&next).expect("held");
            }
        })
    };
    together(vec![device, scheduler]);
    let stats = pool.lock().stats();
    assert_eq!((stats.fenced, stats.active, stats.free), (0, 0, 4));
    pool.lock().check_invariants().expect("intact");
}

#[test]
fn a_fenced_block_has_no_new_owner_before_its_step_ends() {
    check(|| fences(true));
}

#[test]
#[should_panic(expected = "a step wrote to a block")]
fn without_a_fence_a_step_writes_to_other_requests() {
    check(|| fences(false));
}

// In the next tests, a consumer reads the events of the pool.

fn apply(live: &mut HashSet<BlockHash>, events: Vec<BlockEvent>) {
    for event in events {
        match event {
            BlockEvent::Stored { hash, .. } => {
                assert!(live.insert(hash), "lost or out of order: stored twice");
            }
            BlockEvent::Removed { hash, .. } => {
                assert!(live.remove(&hash), "lost or out of order: removed and not there");
            }
            BlockEvent::Cleared { .. } => live.clear(),
            _ => {}
        }
    }
}

/// Returns the contents that a lookup in the pool would find, computed only from the states of its
/// blocks.
fn matchable(pool: &BlockPool) -> HashSet<BlockHash> {
    let blocks = (1..pool.num_blocks() as u32).map(BlockId::new);
    blocks.filter(|&block| pool.is_computed(block)).filter_map(|block| pool.hash_of(block)).collect()
}

fn events(consumers: usize) {
    let (pool, hasher) = (pool(6), hasher());
    let live = Arc::new(Mutex::new(HashSet::new()));
    let work = |worker: u32| -> Task<()> {
        let (pool, hasher) = (pool.clone(), hasher.clone());
        Box::new(move || {
            for turn in 0..3 {
                // Both workers use the same two contents, and the pool has too few blocks for all
                // requests.
                let cursor = prompt(&hasher, 100 * ((worker + turn) % 2), 2, 0);
                let found = pool.lock().match_and_acquire(cursor.chain(), 2).expect("a chain of this pool");
                let Ok(fresh) = pool.lock().allocate(2 - found.len()) else {
                    pool.lock().release(&found).expect("held");
                    continue;
                };
                pool.lock().register(&fresh, cursor.chain(), found.len()).expect("held");
                pool.lock().mark_computed(&fresh).expect("registered");
                let table: Vec<_> = found.into_iter().chain(fresh).collect();
                pool.lock().release_table(&table).expect("held");
                if worker == 0 && turn == 1 {
                    // While any block is in use, the reset is refused and reports no event.
                    let _ = pool.lock().reset();
                }
            }
        })
    };
    let consumer = || -> Task<()> {
        let (pool, live) = (pool.clone(), live.clone());
        Box::new(move || {
            for _ in 0..4 {
                let batch = pool.lock().take_events();
                assert_eq!(batch.dropped, 0);
                yield_now();
                apply(&mut live.lock().expect("no panic"), batch.events);
            }
        })
    };
    let workers = (0..2).map(work);
    together(workers.chain((0..consumers).map(|_| consumer())).collect());
    let mut locked = pool.lock();
    let mut live = live.lock().expect("no panic");
    apply(&mut live, locked.take_events().events);
    assert_eq!(*live, matchable(&locked), "lost or out of order: the set is not what is matchable");
}

#[test]
fn the_events_give_what_is_matchable() {
    check(|| events(1));
}

/// Two consumers of one event stream may apply the events in the wrong order. A consumer has to take
/// and apply events in one critical section.
#[test]
#[should_panic(expected = "lost or out of order")]
fn two_consumers_of_one_stream_lose_its_order() {
    check(|| events(2));
}

// In the next tests, another thread reads statistics.

fn check_sums(stats: &PoolStats) {
    let PoolStats { usable, free, cached_free, active, fenced, .. } = *stats;
    assert_eq!(
        free + cached_free + active + fenced,
        usable,
        "blocks are counted twice or not at all: {stats:?}"
    );
}

fn statistics(in_parts: bool) {
    let manager = manager(9);
    let work = |worker: i64| -> Task<()> {
        let manager = manager.clone();
        Box::new(move || {
            for turn in 0..3_i64 {
                let id = worker * 10 + turn;
                let hasher = manager.lock().hasher().clone();
                let cursor = prompt(&hasher, 100 * (turn % 2) as u32, 2, 0);
                if manager.lock().admit(id, cursor).is_err() {
                    continue;
                }
                manager.lock().commit(id, 2 * BLOCK).expect("it runs");
                manager.lock().release(id, Some(turn as u64)).expect("it runs");
                manager.lock().complete_step(turn as u64).expect("not poisoned");
            }
        })
    };
    let reads: Task<()> = {
        let manager = manager.clone();
        Box::new(move || {
            let mut before = manager.lock().stats();
            for _ in 0..6 {
                let mut stats = manager.lock().stats();
                if in_parts {
                    stats.pool.active = manager.lock().stats().pool.active;
                }
                check_sums(&stats.pool);
                assert_eq!(stats.hit_tokens + stats.computed_tokens, stats.prompt_tokens);
                let counters = |stats: &kvpool::ManagerStats| {
                    [
                        stats.admissions,
                        stats.prompt_tokens,
                        stats.pool.allocated,
                        stats.pool.hits,
                        stats.pool.evicted,
                    ]
                };
                let grew =
                    counters(&before).iter().zip(counters(&stats)).all(|(before, after)| *before <= after);
                assert!(grew, "a counter went back");
                before = stats;
            }
        })
    };
    together(vec![work(1), work(2), reads]);
    manager.lock().check_invariants().expect("intact");
}

#[test]
fn statistics_sum_up_at_any_moment() {
    check(|| statistics(false));
}

#[test]
#[should_panic(expected = "counted twice or not at all")]
fn statistics_read_in_parts_do_not() {
    check(|| statistics(true));
}
