//! Payloads: each is handed out exactly once, when its content leaves the block, however it does; beside all else that watches.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::BTreeMap;
use std::sync::Arc;

use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, DuplicatePolicy, EvictionPolicy, ExtraKeys, HashChain,
    HashCursor, HasherConfig, PoolConfig, Tiers,
};
use kvpool_observe::{AdvisorConfig, Evicted, Payload, PayloadError, PoolWatch, Watch, WatchConfig};
use proptest::prelude::*;

const BLOCKS: usize = 9;

fn chain(tokens: &[u32], epoch: u64) -> HashChain {
    let hasher = BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(hasher), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

fn pool(config: PoolConfig, watch: &WatchConfig) -> BlockPool {
    let config = PoolConfig { num_blocks: BLOCKS, block_size: 1, ..config };
    BlockPool::new(config).unwrap().watched(watch).unwrap()
}

fn payloads() -> WatchConfig {
    WatchConfig { payloads: true, ..WatchConfig::default() }
}

/// A pool with a chain of three adopted, held, with the numbers 10, 11 and 12.
fn hung() -> (BlockPool, Vec<BlockId>) {
    let mut pool = pool(PoolConfig::default(), &payloads());
    let blocks = [2, 4, 6].map(BlockId::new).to_vec();
    pool.adopt(&blocks, &chain(&[1, 2, 3], 0), 0).unwrap();
    pool.set_payloads(&blocks, (10..13).map(Payload::Number).collect()).unwrap();
    (pool, blocks)
}

fn numbers(gone: Vec<Evicted>) -> Vec<(u32, Payload)> {
    gone.into_iter().map(|one| (one.block.get(), one.payload)).collect()
}

#[test]
fn a_payload_comes_out_with_its_content_and_once() {
    let (mut pool, blocks) = hung();
    pool.set_payloads(&blocks[..1], vec![Payload::Bytes((*b"node").into())]).unwrap(); // in the place of 10
    pool.release_table(&blocks).unwrap();
    assert_eq!(pool.take_evicted(), []);
    pool.evict(1).unwrap();
    let hash = chain(&[1, 2, 3], 0).hashes()[2];
    let gone = Evicted {
        block: blocks[2],
        hash,
        algorithm: Some(kvpool::HashAlgorithm::Sha256),
        payload: Payload::Number(12),
    };
    assert_eq!(pool.take_evicted(), [gone]);
    pool.acquire_match(&pool.lookup(&chain(&[1, 2], 0), 0, 9).unwrap()).unwrap();
    pool.drop_cached(&blocks).unwrap();
    assert_eq!(
        numbers(pool.take_evicted()),
        [(2, Payload::Bytes((*b"node").into())), (4, Payload::Number(11))]
    );
    assert_eq!(pool.take_evicted(), []);
}

#[test]
fn all_of_them_come_out_by_block_when_everything_is_forgotten() {
    let (mut pool, blocks) = hung();
    pool.bump_epoch().unwrap();
    let expected = [(2, 10), (4, 11), (6, 12)].map(|(block, number)| (block, Payload::Number(number)));
    assert_eq!(numbers(pool.take_evicted()), expected);
    assert_eq!(pool.set_payloads(&blocks[..1], vec![Payload::Number(1)]), not_registered(blocks[0], 0));
    pool.check_invariants().unwrap();
}

fn not_registered(block: BlockId, position: usize) -> Result<(), PayloadError> {
    Err(PayloadError::NotRegistered { block, position })
}

#[test]
fn refused_payloads_are_not_set() {
    let (mut pool, blocks) = hung();
    for block in [0, 1, 99, u32::MAX].map(BlockId::new) {
        let two = vec![Payload::Number(1); 2];
        assert_eq!(pool.set_payloads(&[blocks[0], block], two), not_registered(block, 1));
    }
    let lengths = PayloadError::Lengths { blocks: 3, payloads: 1 };
    assert_eq!(pool.set_payloads(&blocks, vec![Payload::Number(1)]), Err(lengths));
    pool.disown(&blocks).unwrap();
    let expected = [(2, 10), (4, 11), (6, 12)].map(|(block, number)| (block, Payload::Number(number)));
    assert_eq!(numbers(pool.take_evicted()), expected);
    let mut bare = BlockPool::new(PoolConfig::default()).unwrap();
    assert_eq!(bare.set_payloads(&[], Vec::new()), Err(PayloadError::NotKept));
    assert_eq!(bare.take_evicted(), []);
}

/// Nothing is lost and nothing grows for ever: who does not take them sets no more.
#[test]
fn what_is_not_taken_is_bounded() {
    let mut pool = pool(PoolConfig::default(), &payloads());
    let block = [BlockId::new(1)];
    for number in 0..BLOCKS as u64 {
        pool.adopt(&block, &chain(&[7], 0), 0).unwrap();
        pool.set_payloads(&block, vec![Payload::Number(number)]).unwrap();
        pool.disown(&block).unwrap();
    }
    pool.adopt(&block, &chain(&[7], 0), 0).unwrap();
    let refused = PayloadError::NotTaken { waiting: BLOCKS, most: BLOCKS };
    assert_eq!(pool.set_payloads(&block, vec![Payload::Number(99)]), Err(refused));
    let taken: Vec<_> = pool.take_evicted().into_iter().map(|gone| gone.payload).collect();
    assert_eq!(taken, (0..BLOCKS as u64).map(Payload::Number).collect::<Vec<_>>());
    pool.set_payloads(&block, vec![Payload::Number(99)]).unwrap();
}

#[test]
fn payloads_of_a_tier_are_its_own() {
    let config = || PoolConfig { num_blocks: BLOCKS, block_size: 1, ..PoolConfig::default() };
    let mut tiers = Tiers::new(vec![config(), config()]).unwrap();
    let watch = Watch::new(&payloads(), tiers.pool(1).unwrap()).unwrap();
    tiers.observe(1, Box::new(watch)).unwrap();
    assert_eq!(tiers.pool_mut(0).unwrap().set_payloads(&[], Vec::new()), Err(PayloadError::NotKept));
    tiers.pool_mut(1).unwrap().set_payloads(&[], Vec::new()).unwrap();
}

fn numbered(gone: &Evicted) -> Option<(BlockId, (BlockHash, u64))> {
    let Payload::Number(number) = gone.payload else { return None };
    Some((gone.block, (gone.hash, number)))
}

/// What hangs where, by the pool itself: what it held when the payload was set.
type Hung = BTreeMap<BlockId, (BlockHash, u64)>;

fn run(pool: &mut BlockPool, calls: &[(u8, u32, u32)]) {
    let mut held: Vec<Vec<BlockId>> = Vec::new();
    let (mut hung, mut number) = (Hung::new(), 0);
    for &(call, a, b) in calls {
        let chain = chain(&[a % 2, b % 2, a / 2 % 2][..(b / 2 % 4) as usize], pool.epoch());
        let nth = a as usize % held.len().max(1);
        let table = held.get(nth).cloned().unwrap_or_default();
        let drop_table = |held: &mut Vec<Vec<BlockId>>| {
            if !held.is_empty() {
                held.remove(nth);
            }
        };
        // What is handed out may get the content again that it lost.
        let mut fresh = Vec::new();
        match call % 10 {
            0 | 1 => {
                if let Ok(mut blocks) = pool.allocate(chain.len()) {
                    fresh.clone_from(&blocks);
                    for (at, block) in pool.register_table(&blocks, &chain, 0).unwrap() {
                        blocks[at] = block;
                    }
                    held.push(blocks);
                }
            }
            2 => {
                if let Ok(blocks) = pool.allocate(chain.len()) {
                    fresh.clone_from(&blocks);
                    pool.register(&blocks, &chain, 0).unwrap();
                    held.push(blocks);
                }
            }
            3 => held.push(pool.match_and_acquire(&chain, 9).unwrap()),
            4 | 5 => {
                pool.release_table(&table).unwrap();
                drop_table(&mut held);
            }
            6 => drop(pool.evict((b % 3) as usize).unwrap()),
            7 => drop(pool.drop_cached(&[BlockId::new(1 + a % 8)]).unwrap()),
            8 if b % 8 == 0 => drop(pool.bump_epoch().unwrap()),
            8 => {
                let _ = pool.reset();
            }
            _ => {}
        }
        // What is registered gets a payload, at times.
        let registered = |block: &BlockId| pool.is_registered(*block);
        let named: Vec<_> =
            (1..BLOCKS as u32).map(BlockId::new).filter(registered).filter(|_| a % 3 == 0).collect();
        let gone: Hung = hung
            .iter()
            .filter(|&(&block, &(hash, _))| fresh.contains(&block) || pool.hash_of(block) != Some(hash))
            .map(|(&block, &one)| (block, one))
            .collect();
        hung.retain(|block, _| !gone.contains_key(block));
        let taken = pool.take_evicted();
        let found: Hung = taken.iter().filter_map(numbered).collect();
        assert_eq!((found, taken.len()), (gone.clone(), gone.len()));
        let numbers: Vec<_> = (number..).take(named.len()).collect();
        number += named.len() as u64;
        pool.set_payloads(&named, numbers.iter().copied().map(Payload::Number).collect()).unwrap();
        hung.extend(
            named.iter().zip(numbers).map(|(&block, number)| (block, (pool.hash_of(block).unwrap(), number))),
        );
        pool.check_invariants().unwrap();
        if let Some(digest) = pool.state_digest() {
            assert_eq!(digest, pool.state_digest_from_scratch());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn each_payload_comes_out_exactly_once(
        policy in prop::sample::select(kvpool_policies::ALL.to_vec()),
        drop in any::<bool>(),
        beside in any::<bool>(),
        calls in prop::collection::vec((any::<u8>(), any::<u32>(), any::<u32>()), 1..60),
    ) {
        let eviction: EvictionPolicy = policy;
        let duplicates = if drop { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        let advisor = beside.then(AdvisorConfig::default);
        let watch = WatchConfig {
            event_capacity: if beside { 8 } else { 0 }, digest: beside, advisor, ..payloads()
        };
        run(&mut pool(PoolConfig { eviction, duplicates, ..PoolConfig::default() }, &watch), &calls);
    }
}
