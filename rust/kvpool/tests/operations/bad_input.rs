//! Tests that invalid input to the public API changes nothing and returns a typed error. The message
//! contains the value and the limit.
//!
//! A policy that violates its contract is also invalid input. The pool detects the violation before it
//! uses the result, poisons itself, and returns the reason from every later call.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::sync::{Arc, Mutex};

use kvpool::hash::{HashChain, HashError};
use kvpool::{
    BlockAllocator, BlockHash, BlockHasher, BlockId, BlockPool, CacheManager, Candidate, Computed, Covered,
    DuplicatePolicy, Evictor, ExtraKeys, FreeBlockList, HashAlgorithm, HashCursor, HasherConfig,
    InvariantViolation, Loaded, LruEvictor, MAX_BLOCKS, ManagerConfig, ManagerError, NULL_BLOCK, Part,
    PoolConfig, PoolError, PrefixIndex, RequestRef, Rows, Ticket, Until, Verify,
};
use kvpool_observe::{PoolWatch, WatchConfig};

const B: usize = 4;

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn pool_config(num_blocks: usize) -> PoolConfig {
    PoolConfig { num_blocks, block_size: B, ..Default::default() }
}

fn pool() -> BlockPool {
    BlockPool::new(pool_config(10)).unwrap()
}

fn chain_of(config: HasherConfig, epoch: u64, tokens: &[u32]) -> HashChain {
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys { epoch, ..Default::default() }).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn chain(tokens: &[u32]) -> HashChain {
    chain_of(HasherConfig { block_size: B, ..Default::default() }, 0, tokens)
}

fn manager_config() -> ManagerConfig {
    ManagerConfig { num_blocks: 6, block_size: B, ..Default::default() }
}

/// Returns a manager with five blocks. Request 1 is running and has 6 tokens in 2 blocks; 4 of the
/// tokens are computed. Request "two" is preempted and has 3 tokens.
fn manager() -> CacheManager {
    let mut manager = CacheManager::new(manager_config()).unwrap();
    manager.admit(1, prompt(&manager, 6)).unwrap();
    manager.commit(1, 4).unwrap();
    manager.admit("two", prompt(&manager, 3)).unwrap();
    manager.preempt("two", None).unwrap();
    manager
}

fn prompt(manager: &CacheManager, tokens: u32) -> HashCursor {
    manager.prepare(&(0..tokens).collect::<Vec<_>>(), ExtraKeys::default()).unwrap()
}

fn observe(pool: &BlockPool) -> impl PartialEq + std::fmt::Debug + use<> {
    let block = |b| (pool.ref_count(b), pool.state(b), pool.hash_of(b), pool.is_computed(b));
    let blocks: Vec<_> = (0..pool.num_blocks() as u32).map(|b| block(BlockId::new(b))).collect();
    (pool.free_order(), pool.eviction_order(), pool.stats(), blocks)
}

fn observe_manager(manager: &CacheManager) -> impl PartialEq + std::fmt::Debug + use<> {
    let mut stats = manager.stats();
    stats.refusals = 0; // refusals are counted
    let request =
        |id: RequestRef<'_>| (manager.request(id).ok(), manager.block_table(id).ok().map(<[_]>::to_vec));
    (observe(manager.pool()), stats, request(1.into()), request("two".into()))
}

/// Checks that the call fails with this message, and that the pool is unchanged.
#[track_caller]
fn refused<T: std::fmt::Debug>(
    pool: &mut BlockPool,
    message: &str,
    call: impl FnOnce(&mut BlockPool) -> Result<T, PoolError>,
) {
    let before = observe(pool);
    assert_eq!(call(pool).unwrap_err().to_string(), message);
    assert_eq!(observe(pool), before);
    pool.check_invariants().unwrap();
}

/// Checks that the call fails with this message, and that the manager is unchanged.
#[track_caller]
fn denied<T: std::fmt::Debug, E: Into<ManagerError> + std::fmt::Debug>(
    manager: &mut CacheManager,
    message: &str,
    call: impl FnOnce(&mut CacheManager) -> Result<T, E>,
) {
    let before = observe_manager(manager);
    assert_eq!(call(manager).unwrap_err().into().to_string(), message);
    assert_eq!(observe_manager(manager), before);
    manager.check_invariants().unwrap();
}

// --- Settings ---

#[test]
fn a_number_of_blocks_out_of_range() {
    for num_blocks in [0, 1, MAX_BLOCKS + 1, usize::MAX] {
        let message =
            format!("num_blocks is {num_blocks}: must be from 2 (block 0 is the null block) to {MAX_BLOCKS}");
        let with_evictor =
            BlockPool::with_evictor(pool_config(num_blocks), Box::new(LruEvictor::new(0).unwrap()));
        for error in [
            BlockPool::new(pool_config(num_blocks)).unwrap_err(),
            with_evictor.unwrap_err(),
            BlockAllocator::new(num_blocks).unwrap_err(),
            FreeBlockList::new(num_blocks).unwrap_err(),
            PrefixIndex::with_parents(num_blocks, B, Verify::Tokens).unwrap_err(),
        ] {
            assert_eq!(error.to_string(), message);
            assert!(matches!(error, PoolError::InvalidConfig { field: "num_blocks", .. }));
        }
        let error = CacheManager::new(ManagerConfig { num_blocks, ..manager_config() }).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    assert_eq!(BlockPool::new(pool_config(2)).unwrap().num_usable(), 1);
}

#[test]
fn a_block_size_out_of_range() {
    // The hasher defines the largest block size. A block size is checked before any memory is allocated
    // for it.
    for block_size in [0, u32::MAX as usize + 1, 1 << 40, usize::MAX] {
        for verify in Verify::ALL {
            let expected = format!("block_size is {block_size}: must be from 1 to 4294967295 tokens");
            let config = PoolConfig { block_size, verify: *verify, ..pool_config(2) };
            assert_eq!(BlockPool::new(config).unwrap_err().to_string(), expected);
            let error = PrefixIndex::new(2, block_size, *verify).unwrap_err();
            assert!(matches!(error, PoolError::InvalidConfig { field: "block_size", .. }), "{error}");
            let config = ManagerConfig { block_size, num_blocks: 2, verify: *verify, ..Default::default() };
            assert_eq!(CacheManager::new(config).unwrap_err().to_string(), expected);
        }
        let error = BlockHasher::new(HasherConfig { block_size, ..Default::default() }).unwrap_err();
        assert_eq!(error, HashError::BlockSize { block_size, max: u32::MAX as usize });
    }
}

#[test]
fn a_watermark_out_of_range() {
    for (watermark, shown) in [
        (-0.1, "-0.1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (f64::NAN, "NaN"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        let error = CacheManager::new(ManagerConfig { watermark, ..manager_config() }).unwrap_err();
        let message = format!("watermark is {shown}: must be a share of the pool, from 0.0 to below 1.0");
        assert_eq!(error.to_string(), message);
    }
    for watermark in [0.0, -0.0, 0.999] {
        CacheManager::new(ManagerConfig { watermark, ..manager_config() }).unwrap();
    }
}

#[test]
fn a_name_that_nothing_has() {
    let known: Vec<_> = kvpool_policies::ALL.iter().map(|policy| policy.name()).collect();
    let known = known.join(", ");
    let error = kvpool_policies::by_name("mru").unwrap_err();
    assert_eq!(error.to_string(), format!("eviction is \"mru\": must be one of {known}"));
    let error = "md5".parse::<HashAlgorithm>().unwrap_err();
    assert!(error.to_string().starts_with("unknown hash algorithm \"md5\", known: sha256, blake3, xxh3,"));
    let error = "yes".parse::<Verify>().unwrap_err();
    assert_eq!(error.to_string(), "unknown verify mode \"yes\", known: none, fingerprint, tokens");
}

#[test]
fn an_algorithm_that_needs_more_than_it_was_given() {
    let config = |algorithm| ManagerConfig { algorithm, ..manager_config() };
    let error = CacheManager::new(config(HashAlgorithm::Xxh3)).unwrap_err();
    let message = "xxh3 is not cryptographic: a pool that indexes it must verify hits (verify \
         = \"fingerprint\" or \"tokens\")";
    assert_eq!(error.to_string(), message);
    let error = CacheManager::new(config(HashAlgorithm::VllmXxhash)).unwrap_err();
    assert_eq!(error, ManagerError::Hash(HashError::SeedRequired { algorithm: HashAlgorithm::VllmXxhash }));
    let error = CacheManager::new(ManagerConfig { key: Some([1; 32]), ..manager_config() }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "algorithm sha256 takes no key: blake3 does, and the fingerprints that verify hits do"
    );
    // Extra keys that an encoding cannot represent are refused when the prompt is prepared.
    let manager = CacheManager::new(config(HashAlgorithm::VllmSha256)).unwrap();
    let extra = ExtraKeys { tenant: Some((*b"t").into()), ..Default::default() };
    assert!(matches!(
        manager.prepare(&[1], extra),
        Err(ManagerError::Hash(HashError::ExtraNotRepresentable { .. }))
    ));
}

// --- The pool ---

#[test]
fn blocks_that_are_not_there_or_not_held() {
    let mut pool = pool();
    pool.allocate(3).unwrap();
    let unknown = "block id 10 is outside this pool: ids run from 1 to 9";
    let largest = format!("block id {} is outside this pool: ids run from 1 to 9", u32::MAX);
    type Call = fn(&mut BlockPool, &[BlockId]) -> Result<(), PoolError>;
    let calls: [(&str, Call); 7] = [
        ("acquired", |pool, ids| pool.acquire(ids)),
        ("released", |pool, ids| pool.release(ids)),
        ("released", |pool, ids| pool.release_table(ids)),
        ("released", |pool, ids| pool.release_after(ids, 1)),
        ("marked computed", |pool, ids| pool.mark_computed(ids)),
        ("evicted", |pool, ids| pool.drop_cached(ids).map(drop)),
        ("registered", |pool, ids| pool.register(ids, &chain(&[0; 16]), 0).map(drop)),
    ];
    for (operation, call) in calls {
        refused(&mut pool, unknown, |pool| call(pool, &ids(&[10])));
        refused(&mut pool, &largest, |pool| call(pool, &ids(&[u32::MAX])));
        let null = format!("block 0 is the null block: it cannot be {operation}");
        refused(&mut pool, &null, |pool| call(pool, &[NULL_BLOCK]));
        call(&mut pool, &[]).unwrap(); // an empty call is valid
    }
    for (nothing_held, call) in [
        ("block 5 has 0 references: cannot acquire it (reference 1 of this call)", calls[0].1),
        ("block 5 has 0 references: cannot release it (reference 1 of this call)", calls[1].1),
        ("block 5 has 0 references: cannot release it (reference 0 of this call)", calls[2].1),
        ("block 5 has 0 references: cannot release it (reference 1 of this call)", calls[3].1),
        ("block 5 has 0 references: cannot register it (reference 1 of this call)", calls[6].1),
    ] {
        refused(&mut pool, nothing_held, |pool| call(pool, &ids(&[1, 5])));
    }
    let twice = "block 2 has 1 references: cannot release it (reference 2 of this call)";
    refused(&mut pool, twice, |pool| pool.release(&ids(&[2, 1, 2])));
    refused(&mut pool, twice, |pool| pool.release_after(&ids(&[2, 1, 2]), 1));
    assert_eq!((pool.ref_count(BlockId::new(10)), pool.state(BlockId::new(10))), (None, None));
}

#[test]
fn references_that_belong_to_a_fence() {
    let mut pool = pool();
    pool.allocate(2).unwrap();
    pool.acquire(&ids(&[1])).unwrap();
    pool.release_after(&ids(&[1]), 7).unwrap();
    let message = "block 1 has 1 references: cannot release it (reference 2 of this call)";
    refused(&mut pool, message, |pool| pool.release(&ids(&[1, 2, 1])));
    pool.release(&ids(&[1])).unwrap();
    let message = "block 1 has 0 references: cannot release it (reference 0 of this call)";
    refused(&mut pool, message, |pool| pool.release(&ids(&[1])));
    refused(&mut pool, message, |pool| pool.release_after(&ids(&[1]), 9));
    let message =
        "out of blocks: 9 needed, 7 available, 2 missing; 1 more are fenced until their step completes";
    refused(&mut pool, message, |pool| pool.allocate(9));
}

#[test]
fn chains_that_do_not_belong_to_the_pool() {
    let mut pool = pool();
    let table = pool.allocate(3).unwrap();
    let xxh3 = HasherConfig {
        algorithm: HashAlgorithm::Xxh3,
        block_size: B,
        verify: Verify::Fingerprint,
        ..Default::default()
    };
    let message = "xxh3 is not cryptographic: a pool that indexes it must verify hits (verify \
         = \"fingerprint\" or \"tokens\")";
    refused(&mut pool, message, |pool| pool.register(&table[..1], &chain_of(xxh3, 0, &[1; 8]), 0));
    pool.register(&table[..1], &chain(&[9; 4]), 0).unwrap();
    let config = |algorithm, block_size| HasherConfig { algorithm, block_size, ..Default::default() };
    for (chain, message) in [
        (
            chain_of(config(HashAlgorithm::Sha256, 2), 0, &[1; 8]),
            "the hash chain was made for blocks of 2 tokens, the pool has blocks of 4",
        ),
        (
            chain_of(config(HashAlgorithm::Blake3, B), 0, &[1; 8]),
            "the hash chain was made with blake3, this pool has registered blocks hashed with sha256",
        ),
        (
            chain_of(config(HashAlgorithm::Sha256, B), 3, &[1; 8]),
            "the hash chain belongs to epoch 3, the pool is in epoch 0: hash the tokens again",
        ),
    ] {
        refused(&mut pool, message, |pool| pool.match_and_acquire(&chain, usize::MAX));
        refused(&mut pool, message, |pool| pool.probe(&chain, usize::MAX));
        refused(&mut pool, message, |pool| pool.register(&table[1..], &chain, 0));
    }
    let good = chain(&[1; 8]);
    for (blocks, start) in [(3, 0), (2, 1), (1, 2), (0, 3)] {
        let message =
            format!("{blocks} blocks from position {start} do not fit a hash chain of 2 full blocks");
        refused(&mut pool, &message, |pool| pool.register(&table[..blocks], &good, start));
    }
    for (blocks, start, last) in
        [(1, usize::MAX, usize::MAX), (3, usize::MAX - 1, usize::MAX), (2, 268_435_455, 268_435_456)]
    {
        let message =
            format!("block {last} of a hash chain is too deep: an index notes positions up to 268435455");
        refused(&mut pool, &message, |pool| pool.register(&table[..blocks], &good, start));
    }
    refused(&mut pool, "block 1 is already registered", |pool| pool.register(&ids(&[2, 1]), &good, 0));
    refused(&mut pool, "block 2 is already registered", |pool| pool.register(&ids(&[2, 2]), &good, 0));
    let message = "block 2 is not registered: register it before marking it computed";
    refused(&mut pool, message, |pool| pool.mark_computed(&ids(&[1, 2])));
    pool.bump_epoch().unwrap();
    let message = "the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again";
    refused(&mut pool, message, |pool| pool.register(&table, &good, 0));
}

#[test]
fn chains_without_the_data_that_the_pool_compares() {
    let external =
        HashChain::from_digests(HashAlgorithm::Sha256, B, 0, vec![BlockHash::from_bytes([1; 32])]).unwrap();
    for (verify, bare, lacks) in [
        (Verify::Fingerprint, &external, "fingerprints"),
        (Verify::Tokens, &external, "fingerprints"),
        (Verify::Tokens, &forged(&[5], &[]), "tokens"),
        (Verify::Fingerprint, &chain(&[1; 4]), "fingerprints"),
    ] {
        let mut pool = BlockPool::new(PoolConfig { verify, ..pool_config(10) }).unwrap();
        pool.allocate(1).unwrap();
        let message = format!(
            "the pool verifies hits by {lacks}, the hash chain does not carry them: use a hasher with \
             the same setting"
        );
        refused(&mut pool, &message, |pool| pool.match_and_acquire(bare, 1));
        refused(&mut pool, &message, |pool| pool.probe(bare, 1));
        refused(&mut pool, &message, |pool| pool.register(&ids(&[1]), bare, 0));
    }
}

/// Returns a chain for a hash collision. Chains of one length have equal digests, but the given
/// fingerprints and tokens.
fn forged(fingerprints: &[u128], tokens: &[u32]) -> HashChain {
    let hashes = (1..=fingerprints.len() as u8).map(|at| BlockHash::from_bytes([at; 32])).collect();
    HashChain::forged(HashAlgorithm::Sha256, B, 0, hashes, fingerprints.to_vec(), tokens.to_vec())
}

#[test]
fn collisions_are_counted_misses() {
    let mine = forged(&[1, 2, 3], &[1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3]);
    let other_fingerprint = forged(&[1, 9, 3], mine.tokens());
    let other_tokens = forged(&[1, 2, 3], &[1, 1, 1, 1, 2, 2, 2, 9, 3, 3, 3, 3]);
    for (verify, other) in [
        (Verify::Fingerprint, &other_fingerprint),
        (Verify::Tokens, &other_fingerprint),
        (Verify::Tokens, &other_tokens),
    ] {
        let config = PoolConfig { verify, ..pool_config(10) };
        let events = WatchConfig { event_capacity: 50, ..WatchConfig::default() };
        let mut pool = BlockPool::new(config).unwrap().watched(&events).unwrap();
        let table = pool.allocate(3).unwrap();
        pool.register(&table, &mine, 0).unwrap();
        pool.mark_computed(&table).unwrap();
        pool.take_events();

        // A lookup stops before the block that collides, and increments the number of collisions. A
        // probe changes no counter.
        assert_eq!(pool.probe(other, 3).unwrap().cached_blocks, 1);
        assert_eq!(pool.stats().collisions, 0);
        assert_eq!(pool.match_and_acquire(other, 3).unwrap(), table[..1]);
        let stats = pool.stats();
        assert_eq!((stats.collisions, stats.hits, stats.misses), (1, 1, 2));

        // A registration also ends before the block that collides, because lookups could not reach
        // later blocks. The caller keeps all of its blocks.
        let theirs = pool.allocate(3).unwrap();
        let registered = pool.register(&theirs, other, 0).unwrap();
        assert_eq!((registered.blocks, registered.collided), (1, true));
        assert_eq!((pool.stats().collisions, pool.stats().registered), (2, 4));
        assert_eq!(
            theirs.iter().map(|&b| pool.hash_of(b).is_some()).collect::<Vec<_>>(),
            [true, false, false]
        );
        pool.mark_computed(&theirs[..1]).unwrap();
        assert_eq!(pool.mark_computed(&theirs[1..2]), Err(PoolError::NotRegistered { block: theirs[1] }));
        assert!(pool.take_events().events.is_empty(), "nothing became matchable");
        pool.release_table(&theirs).unwrap();
        pool.check_invariants().unwrap();
        // The collision does not affect lookups of the first content.
        assert_eq!(pool.match_and_acquire(&mine, 3).unwrap(), table);
    }
}

#[test]
fn reset_and_resize_that_cannot_be() {
    let mut pool = pool();
    let table = pool.allocate(3).unwrap();
    pool.register(&table, &chain(&[1; 12]), 0).unwrap();
    pool.release_after(&table[..1], 4).unwrap();
    let message =
        "2 blocks are active and 1 fenced: release them first, or bump the epoch, which always succeeds";
    refused(&mut pool, message, BlockPool::reset);
    pool.release(&table[1..]).unwrap();
    let message =
        "0 blocks are active and 1 fenced: release them first, or bump the epoch, which always succeeds";
    refused(&mut pool, message, BlockPool::reset);
    for to in [0, 1, 9, MAX_BLOCKS + 1, usize::MAX] {
        let message =
            format!("cannot resize from 10 to {to} blocks: a pool only grows, up to {MAX_BLOCKS} blocks");
        refused(&mut pool, &message, |pool| pool.resize(to));
    }
    pool.resize(10).unwrap();
    pool.complete_step(u64::MAX).unwrap();
    pool.reset().unwrap();
}

// --- The manager ---

#[test]
fn requests_that_are_unknown_or_known_already() {
    let mut manager = manager();
    let unknown = "no request has the id 9: admit it first";
    denied(&mut manager, unknown, |m| m.release(9, None));
    denied(&mut manager, unknown, |m| m.release(9, Some(1)));
    denied(&mut manager, unknown, |m| m.preempt(9, None));
    denied(&mut manager, unknown, |m| m.resume(9));
    denied(&mut manager, unknown, |m| m.commit(9, 0));
    denied(&mut manager, unknown, |m| m.append_tokens(9, &[1], 0));
    denied(&mut manager, unknown, |m| m.append(&[1.into(), 9.into()], &[1, 1], Computed::AllButLast));
    denied(&mut manager, unknown, |m| m.commit_batch(&[1.into(), 9.into()], &[5, 5]));
    denied(&mut manager, unknown, |m| m.request(9));
    denied(&mut manager, unknown, |m| m.block_table(9).map(<[_]>::to_vec));
    // The number 1 and the string "1" are different ids.
    denied(&mut manager, "no request has the id \"1\": admit it first", |m| m.release("1", None));
    assert!(manager.contains(1) && manager.contains("two") && !manager.contains("1") && !manager.contains(2));
    for id in [1.into(), kvpool::RequestId::from("two")] {
        let message = format!("request {id} is known already: release it before admitting it again");
        denied(&mut manager, &message, |m| m.admit(id.clone(), prompt(m, 3)));
        denied(&mut manager, &message, |m| m.plan_admit(&mut m.plan_step(), id, prompt(m, 3)));
    }
}

#[test]
fn requests_in_the_wrong_state() {
    let mut manager = manager();
    let preempted = "request \"two\" is preempted: cannot";
    let message = |operation: &str| format!("{preempted} {operation}");
    denied(&mut manager, &message("extend it"), |m| m.extend("two", 1));
    denied(&mut manager, &message("end its load"), |m| m.external_done("two", Loaded::All));
    denied(&mut manager, &message("commit tokens of it"), |m| m.commit("two", 1));
    denied(&mut manager, &message("commit tokens of it"), |m| {
        m.commit_batch(&[1.into(), "two".into()], &[6, 1])
    });
    denied(&mut manager, &message("preempt it"), |m| m.preempt("two", None));
    denied(&mut manager, &message("preempt it"), |m| m.plan_preempt(&mut m.plan_step(), "two", None));
    denied(&mut manager, "request 1 is running: cannot resume it", |m| m.resume(1));
    denied(&mut manager, "request 1 is running: cannot resume it", |m| m.plan_resume(&mut m.plan_step(), 1));
}

#[test]
fn prompts_that_cannot_be_admitted() {
    let mut manager = manager();
    denied(&mut manager, "request 3 has no tokens: a prompt has at least one", |m| m.admit(3, prompt(m, 0)));
    // The error of a refused admission contains the prompt, so that the caller can use it again.
    let refused = manager.admit(1, prompt(&manager, 5)).unwrap_err();
    assert_eq!((refused.cursor.num_tokens(), refused.to_string()), (5, refused.error.to_string()));

    let foreign = "this prompt was hashed with other settings than the manager's: make it with the \
         manager's own hasher";
    for config in [
        HasherConfig { block_size: 2, ..Default::default() },
        HasherConfig { block_size: B, algorithm: HashAlgorithm::Blake3, ..Default::default() },
        HasherConfig { block_size: B, seed: Some("s".into()), ..Default::default() },
        HasherConfig { block_size: B, verify: Verify::Tokens, ..Default::default() },
    ] {
        let mut cursor =
            HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), ExtraKeys::default()).unwrap();
        cursor.append(&[1, 2, 3]);
        denied(&mut manager, foreign, |m| m.admit(3, cursor.clone()));
        denied(&mut manager, foreign, |m| m.probe(&cursor));
        denied(&mut manager, foreign, |m| m.plan_admit(&mut m.plan_step(), 3, cursor));
    }
    // A prompt from another hasher is accepted if the settings are the same.
    let twin = BlockHasher::new(HasherConfig { block_size: B, ..Default::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(twin), ExtraKeys::default()).unwrap();
    cursor.append(&[7]);
    manager.admit(3, cursor).unwrap();

    let stale = prompt(&manager, 5);
    manager.bump_epoch().unwrap();
    let message = "the hash chain belongs to epoch 0, the pool is in epoch 1: hash the tokens again";
    denied(&mut manager, message, |m| m.admit(4, stale.clone()));
    denied(&mut manager, message, |m| m.probe(&stale));
    // A preempted request is hashed again when it is resumed, or when its resumption is planned.
    let mut step = manager.plan_step();
    assert_eq!(manager.plan_resume(&mut step, "two"), Ok(0));
    manager.resume("two").unwrap();
    manager.check_invariants().unwrap();
}

#[test]
fn a_request_that_does_not_fit() {
    let mut manager = manager();
    // The refused requests either do not fit now, or never fit. The pool has 5 blocks, and 3 of them
    // are available.
    let prompt = |m: &CacheManager, tokens| m.prepare(&vec![99; tokens], ExtraKeys::default()).unwrap();
    for (tokens, needed, message) in [
        (16, 4, "out of blocks: 4 needed, 3 available, 1 missing"),
        (20, 5, "out of blocks: 5 needed, 3 available, 2 missing"),
        (21, 6, "out of blocks: 6 needed, 3 available, 3 missing; it can never fit this pool"),
        (400, 100, "out of blocks: 100 needed, 3 available, 97 missing; it can never fit this pool"),
    ] {
        let refused = manager.admit(3, prompt(&manager, tokens)).unwrap_err();
        let ManagerError::OutOfBlocks(refusal) = refused.error else { panic!("{}", refused.error) };
        assert_eq!((refusal.needed, refusal.can_ever_fit), (needed, tokens <= 20));
        denied(&mut manager, message, |m| m.admit(3, prompt(m, tokens)));
        denied(&mut manager, message, |m| m.plan_admit(&mut m.plan_step(), 3, prompt(m, tokens)));
    }
    let message = "out of blocks: 4 needed, 3 available, 1 missing; it can never fit this pool";
    denied(&mut manager, message, |m| m.append_tokens(1, &[0; 15], 0));
    denied(&mut manager, message, |m| m.plan_append(&mut m.plan_step(), 1, &[0; 15], 0));
    assert_eq!(manager.append_tokens(1, &[0; 14], 0).unwrap().len(), 3);
    // Request 1 fills the pool alone. It cannot grow, even if all other requests are released or
    // preempted.
    let message = "out of blocks: 1 needed, 0 available, 1 missing; it can never fit this pool";
    denied(&mut manager, message, |m| m.append_tokens(1, &[0], 0));
    denied(&mut manager, message, |m| m.append(&[1.into()], &[0], Computed::AllButLast));
    denied(&mut manager, message, |m| m.plan_append(&mut m.plan_step(), 1, &[0], 0));
    manager.release(1, Some(3)).unwrap();
    let message =
        "out of blocks: 1 needed, 0 available, 1 missing; 5 more are fenced until their step completes";
    denied(&mut manager, message, |m| m.resume("two"));
    manager.complete_step(3).unwrap();
    manager.resume("two").unwrap();
}

#[test]
fn a_batch_of_which_each_fits_alone_may_fit_later() {
    let mut manager = CacheManager::new(manager_config()).unwrap();
    for (id, tokens) in [(1, 12), (2, 8)] {
        manager.admit(id, manager.prepare(&vec![id as u32; tokens], ExtraKeys::default()).unwrap()).unwrap();
    }
    let result = manager.append(&[1.into(), 2.into()], &[0, 0], Computed::Nothing);
    let Err(ManagerError::OutOfBlocks(refusal)) = result else { panic!("{result:?}") };
    assert_eq!((refusal.needed, refusal.missing, refusal.can_ever_fit), (2, 2, true));
}

#[test]
fn rows_that_do_not_fit_each_other() {
    let mut manager = manager();
    let requests = [1.into()];
    let rows = |tokens, offsets| Rows { requests: &requests, tokens, offsets, ..Rows::default() };
    for (offsets, position, offset, least, most) in
        [(&[1_usize, 2][..], 0, 1, 0, 0), (&[0, 3], 1, 3, 2, 2), (&[0, 1], 1, 1, 2, 2)]
    {
        let message = format!("offset {offset} at position {position}: must be from {least} to {most}");
        denied(&mut manager, &message, |m| m.append_ragged(&rows(&[7, 7], offsets)));
        denied(&mut manager, &message, |m| m.plan_append_ragged(&mut m.plan_step(), &rows(&[7, 7], offsets)));
    }
    let two = "1 requests but 2 stretches of tokens, by offsets: one each is needed";
    denied(&mut manager, two, |m| m.append_ragged(&rows(&[], &[0, 0, 0])));
    denied(&mut manager, "1 requests but 2 tokens: one each is needed", |m| {
        m.append_ragged(&rows(&[7, 7], &[]))
    });
    let short = Rows { computed: Computed::Counts(&[]), ..rows(&[7], &[]) };
    denied(&mut manager, "1 requests but 0 counts: one each is needed", |m| m.append_ragged(&short));
    let short = Rows { covered: Covered::Each(&[7, 8]), ..rows(&[7], &[]) };
    denied(&mut manager, "1 requests but 2 covered counts: one each is needed", |m| m.append_ragged(&short));
    let said = Rows { computed: Computed::AllButLast, ..rows(&[7], &[]) };
    denied(&mut manager, "computed is AllButLast: must be Nothing", |m| {
        m.plan_append_ragged(&mut m.plan_step(), &said)
    });
    let lengths = "1 requests but 0 lengths: one each is needed";
    denied(&mut manager, lengths, |m| m.truncate_batch(&requests, &[], Until::Now));
    let ticket = "ticket 9 is not open: it has ended already, or is of another pool (0 are open)";
    let until = || Until::Ticket(Ticket::new(9));
    denied(&mut manager, ticket, |m| m.truncate_batch(&requests, &[1], until()));
    denied(&mut manager, ticket, |m| m.release_batch(&[], until()));
    denied(&mut manager, "1 requests but 0 children: one each is needed", |m| m.fork_batch(&requests, &[]));
    denied(&mut manager, ticket, |m| m.truncate(1, 1, until()));
    denied(&mut manager, ticket, |m| m.release(1, until()));
    denied(&mut manager, ticket, |m| m.preempt(1, until()));
    denied(&mut manager, ticket, |m| m.end_fence(Ticket::new(9)));
    let external = Part { external_tokens: 9, ..Part::WHOLE };
    denied(&mut manager, "request \"two\": 9 external tokens, must be from 0 to 2", |m| {
        m.resume_with("two", external)
    });
}

#[test]
fn computed_counts_that_cannot_be() {
    let mut manager = manager();
    for asked in [7, usize::MAX, 3, 0] {
        let message =
            format!("request 1 has 6 tokens, blocks for 6, 4 computed: cannot set computed to {asked}");
        denied(&mut manager, &message, |m| m.commit(1, asked));
        denied(&mut manager, &message, |m| m.commit_batch(&[1.into()], &[asked]));
        let (requests, counts) = ([1.into()], [asked]);
        let rows = Rows {
            requests: &requests,
            offsets: &[0, 0],
            computed: Computed::Counts(&counts),
            ..Rows::default()
        };
        denied(&mut manager, &message, |m| m.append_ragged(&rows));
    }
    assert_eq!(manager.commit(1, 4).unwrap(), 0); // a repeated commit is valid
}

#[test]
fn batches_that_do_not_match_or_repeat() {
    let mut manager = manager();
    let two = [RequestRef::Int(1), RequestRef::Int(1)];
    denied(&mut manager, "2 requests but 1 tokens: one each is needed", |m| {
        m.append(&two, &[5], Computed::AllButLast)
    });
    denied(&mut manager, "0 requests but 1 tokens: one each is needed", |m| {
        m.append(&[], &[5], Computed::AllButLast)
    });
    denied(&mut manager, "2 requests but 3 counts: one each is needed", |m| m.commit_batch(&two, &[5, 5, 5]));
    let twice = "request 1 is named twice in one call";
    denied(&mut manager, twice, |m| m.append(&two, &[5, 5], Computed::AllButLast));
    denied(&mut manager, twice, |m| m.commit_batch(&two, &[5, 6]));
    assert!(manager.append(&[], &[], Computed::AllButLast).unwrap().is_empty());
    let mut plan = manager.plan_step();
    manager.plan_append(&mut plan, 1, &[5], 0).unwrap();
    let twice = "request 1 is named twice in one step";
    denied(&mut manager, twice, |m| m.plan_release(&mut plan, 1, None));
    denied(&mut manager, twice, |m| m.plan_preempt(&mut plan, 1, None));
    assert_eq!(plan.len(), 1);
}

#[test]
fn steps_of_another_time_or_manager() {
    let stale = "the manager has changed since this step was begun: begin a new one";
    let mut manager = manager();
    let changes: [fn(&mut CacheManager); 7] = [
        |m| drop(m.append_tokens(1, &[], 0).unwrap()),
        |m| assert_eq!(m.commit(1, 5), Ok(0)),
        |m| drop(m.admit(5, prompt(m, 1)).unwrap()),
        |m| m.preempt(5, None).unwrap(),
        |m| drop(m.resume(5).unwrap()),
        |m| m.release(5, None).unwrap(),
        |m| m.resize(7).unwrap(),
    ];
    for change in changes {
        let mut plan = manager.plan_step();
        manager.plan_release(&mut plan, 1, None).unwrap();
        change(&mut manager);
        denied(&mut manager, stale, |m| m.plan_release(&mut plan, "two", None));
        denied(&mut manager, stale, |m| m.commit_step(&mut plan));
    }
    // A plan is refused by any other manager, even if that manager has the same history.
    let (mut one, mut two) = (self::manager(), self::manager());
    let mut plan = one.plan_step();
    one.plan_release(&mut plan, 1, None).unwrap();
    denied(&mut two, stale, |m| m.plan_release(&mut plan, "two", None));
    denied(&mut two, stale, |m| m.commit_step(&mut plan));
    one.commit_step(&mut plan).unwrap();
    denied(&mut one, stale, |m| m.commit_step(&mut plan)); // the same result a second time
}

#[test]
fn pool_calls_through_the_manager() {
    let mut manager = manager();
    let message =
        "2 blocks are active and 0 fenced: release them first, or bump the epoch, which always succeeds";
    denied(&mut manager, message, CacheManager::reset);
    let message = format!("cannot resize from 6 to 5 blocks: a pool only grows, up to {MAX_BLOCKS} blocks");
    denied(&mut manager, &message, |m| m.resize(5));
    let message = "block id 6 is outside this pool: ids run from 1 to 5";
    denied(&mut manager, message, |m| m.drop_cached(&ids(&[1, 6])));
    denied(&mut manager, "block 0 is the null block: it cannot be evicted", |m| m.drop_cached(&ids(&[1, 0])));
}

// --- Policies that break their contract ---

/// The wrong answers that a policy can give.
#[derive(Clone, Copy, Debug, Default)]
enum Lie {
    #[default]
    None,
    /// The policy evicts this block, in whatever state it is.
    Evict(u32),
    /// The policy evicts no block.
    Keep,
    /// The policy evicts its first victim again and again.
    Repeat,
    /// When the policy has to remove a block, it always returns true, or always false.
    Removed(bool),
}

#[derive(Debug)]
struct Liar(LruEvictor, Arc<Mutex<Lie>>);

impl Liar {
    fn lie(&self) -> Lie {
        *self.1.lock().unwrap()
    }
}

impl Evictor for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn insert(&mut self, candidates: &mut [Candidate]) {
        self.0.insert(candidates);
    }
    fn remove(&mut self, block: BlockId) -> bool {
        let held = self.0.remove(block);
        if let Lie::Removed(answer) = self.lie() { answer } else { held }
    }
    fn evict(&mut self) -> Option<BlockId> {
        match self.lie() {
            Lie::Evict(block) => Some(BlockId::new(block)),
            Lie::Keep => None,
            Lie::Repeat => self.0.order().first().copied(),
            _ => self.0.evict(),
        }
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

/// Returns a pool whose policy can be made to give wrong answers. Blocks 1 and 2 are cached, 3 is held
/// and registered, 4 is held, and 5 is free.
fn pool_of_a_liar() -> (BlockPool, Arc<Mutex<Lie>>) {
    let lie = Arc::new(Mutex::new(Lie::None));
    let policy = Box::new(Liar(LruEvictor::new(6).unwrap(), Arc::clone(&lie)));
    let mut pool = BlockPool::with_evictor(pool_config(6), policy).unwrap();
    let table = pool.allocate(3).unwrap();
    pool.register(&table, &chain(&[1; 12]), 0).unwrap();
    pool.mark_computed(&table).unwrap();
    pool.allocate(1).unwrap();
    pool.release_table(&table[..2]).unwrap();
    pool.check_invariants().unwrap();
    (pool, lie)
}

/// Checks that the pool has detected the wrong answer: this call and every later call return the same
/// error, and no block is allocated.
#[track_caller]
fn poisoned<T: std::fmt::Debug>(
    lie: Lie,
    expected: &str,
    call: impl FnOnce(&mut BlockPool) -> Result<T, PoolError>,
) {
    let (mut pool, teller) = pool_of_a_liar();
    *teller.lock().unwrap() = lie;
    let error = call(&mut pool).unwrap_err();
    let reason = pool.poison_reason().unwrap_or_default().to_owned();
    assert!(reason.contains(expected), "{lie:?}: {reason:?} does not say {expected:?}");
    assert_eq!(error, PoolError::Poisoned { reason: reason.clone() });
    assert_eq!(error.to_string(), format!("this pool is poisoned and refuses work: {reason}"));

    *teller.lock().unwrap() = Lie::None; // the policy's later answers do not matter
    let before = (pool.free_order(), pool.eviction_order(), pool.stats());
    let (chain, held) = (chain(&[1; 12]), ids(&[4]));
    let answers = [
        pool.allocate(1).map(drop),
        pool.acquire(&held),
        pool.release(&held),
        pool.release_table(&held),
        pool.release_after(&held, 1),
        pool.complete_step(1).map(drop),
        pool.match_and_acquire(&chain, 1).map(drop),
        pool.probe(&chain, 1).map(drop),
        pool.register(&held, &chain, 0).map(drop),
        pool.mark_computed(&held),
        pool.drop_cached(&held).map(drop),
        pool.reset().map(drop),
        pool.bump_epoch().map(drop),
        pool.resize(9),
    ];
    assert_eq!(answers, std::array::from_fn(|_| Err(error.clone())));
    assert_eq!((pool.free_order(), pool.eviction_order(), pool.stats()), before);
    assert!(pool.check_invariants().unwrap_err().to_string().contains(&reason));
}

#[test]
fn a_policy_that_evicts_a_block_it_does_not_have_poisons_the_pool() {
    // The evicted block is held and registered, held, free, the null block, or unknown.
    for block in [3, 4, 5, 0, 6, u32::MAX] {
        let says = format!("the evictor gave up block {block}, which is in use");
        poisoned(Lie::Evict(block), &says, |pool| pool.allocate(2));
        poisoned(Lie::Evict(block), &says, BlockPool::bump_epoch);
        poisoned(Lie::Evict(block), &says, |pool| {
            pool.release(&ids(&[4]))?;
            pool.allocate(3)
        });
    }
    poisoned(Lie::Repeat, "the evictor gave up block 2, which is in use", |pool| pool.allocate(3));
    poisoned(Lie::Repeat, "the evictor gave up block 2, which is in use", BlockPool::bump_epoch);
}

#[test]
fn a_policy_that_gives_up_nothing_poisons_the_pool() {
    let says = "the evictor has fewer blocks than it reports";
    poisoned(Lie::Keep, says, |pool| pool.allocate(2));
    poisoned(Lie::Keep, says, BlockPool::bump_epoch);
    poisoned(Lie::Keep, says, |pool| {
        pool.release(&ids(&[3, 4]))?;
        pool.reset()
    });
}

#[test]
fn a_policy_that_answers_a_removal_wrongly_poisons_the_pool() {
    let chain = chain(&[1; 12]);
    poisoned(Lie::Removed(false), "block 1 is cached, has no references, and is not in the order", |pool| {
        pool.match_and_acquire(&chain, 1)
    });
    poisoned(Lie::Removed(false), "block 2", |pool| pool.drop_cached(&ids(&[2])));
    poisoned(Lie::Removed(true), "block 3", |pool| pool.drop_cached(&ids(&[3])));
}

#[test]
fn an_honest_policy_is_never_accused() {
    for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
        let config = PoolConfig { duplicates, ..pool_config(6) };
        let policy = Box::new(Liar(LruEvictor::new(6).unwrap(), Arc::default()));
        let mut pool = BlockPool::with_evictor(config, policy).unwrap();
        for _ in 0..2 {
            let (one, two) = (pool.allocate(2).unwrap(), pool.allocate(2).unwrap());
            let chain = chain_of(HasherConfig { block_size: B, ..Default::default() }, pool.epoch(), &[1; 8]);
            for table in [&one, &two] {
                pool.register(table, &chain, 0).unwrap();
                pool.mark_computed(table).unwrap();
            }
            pool.release_table(&one).unwrap();
            pool.drop_cached(&one).unwrap();
            pool.drop_cached(&two[1..]).unwrap(); // while it is held
            pool.release_table(&two).unwrap();
            pool.bump_epoch().unwrap();
            pool.reset().unwrap();
            pool.check_invariants().unwrap();
        }
    }
}

/// If an id has ten megabytes, the messages of all errors that contain the id are still short. `Debug`
/// shows whole ids.
#[test]
fn long_ids_are_shortened_in_messages() {
    let (short, long) = ("s".repeat(64), "l".repeat(10_000_000));
    let id = kvpool::RequestId::from(long.as_str());
    let shown = format!("\"{}... (10000000 characters)\"", "l".repeat(64));
    assert_eq!((id.to_string(), id.as_ref().to_string()), (shown.clone(), shown.clone()));
    assert_eq!(kvpool::RequestId::from(short.as_str()).to_string(), format!("{short:?}"));
    assert_eq!(format!("{id:?}").len(), long.len() + 2);
    let mut manager = CacheManager::new(ManagerConfig::default()).unwrap();
    let error = manager.preempt(long.as_str(), None).unwrap_err();
    assert!(error.to_string().contains(&shown) && error.to_string().len() < 200, "{error}");
}
