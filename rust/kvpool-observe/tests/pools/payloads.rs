//! Each payload is returned exactly once, when its content leaves the block for any reason. The tests
//! run with all other observers and without them.

use std::collections::BTreeMap;

use kvpool::{BlockHash, BlockId, BlockPool, PoolConfig, Tiers};
use kvpool_observe::{
    AdvisorConfig, Evicted, Payload, PayloadError, PoolWatch, Scrubber, Watch, WatchConfig,
};
use proptest::prelude::*;

use super::traffic::{BLOCKS, Check, Reason, Traffic, chain_of, duplicates, operations, policies};

fn pool(config: PoolConfig, watch: &WatchConfig) -> BlockPool {
    let config = PoolConfig { num_blocks: BLOCKS, block_size: 1, ..config };
    BlockPool::new(config).unwrap().watched(watch).unwrap()
}

fn payloads() -> WatchConfig {
    WatchConfig { payloads: true, ..WatchConfig::default() }
}

/// Returns a pool that holds a chain of three registered blocks with the payloads 10, 11 and 12.
fn attached() -> (BlockPool, Vec<BlockId>) {
    let mut pool = pool(PoolConfig::default(), &payloads());
    let blocks = [2, 4, 6].map(BlockId::new).to_vec();
    pool.adopt(&blocks, &chain_of(&[1, 2, 3], 0), 0).unwrap();
    pool.set_payloads(&blocks, (10..13).map(Payload::Number).collect()).unwrap();
    (pool, blocks)
}

fn numbers(gone: Vec<Evicted>) -> Vec<(u32, Payload)> {
    gone.into_iter().map(|one| (one.block.get(), one.payload)).collect()
}

#[test]
fn a_payload_comes_out_with_its_content_and_once() {
    let (mut pool, blocks) = attached();
    pool.set_payloads(&blocks[..1], vec![Payload::Bytes((*b"node").into())]).unwrap(); // replaces 10
    pool.release_table(&blocks).unwrap();
    assert_eq!(pool.take_evicted(), []);
    pool.evict(1).unwrap();
    let hash = chain_of(&[1, 2, 3], 0).hashes()[2];
    let gone = Evicted {
        block: blocks[2],
        hash,
        algorithm: Some(kvpool::HashAlgorithm::Sha256),
        payload: Payload::Number(12),
    };
    assert_eq!(pool.take_evicted(), [gone]);
    pool.acquire_match(&pool.lookup(&chain_of(&[1, 2], 0), 0, 9).unwrap()).unwrap();
    pool.drop_cached(&blocks).unwrap();
    assert_eq!(
        numbers(pool.take_evicted()),
        [(2, Payload::Bytes((*b"node").into())), (4, Payload::Number(11))]
    );
    assert_eq!(pool.take_evicted(), []);
}

#[test]
fn all_of_them_come_out_by_block_when_everything_is_forgotten() {
    let (mut pool, blocks) = attached();
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
    let (mut pool, blocks) = attached();
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

/// No payload is lost, and memory is bounded: until a caller takes the waiting payloads, it cannot set
/// more.
#[test]
fn what_is_not_taken_is_bounded() {
    let mut pool = pool(PoolConfig::default(), &payloads());
    let block = [BlockId::new(1)];
    for number in 0..BLOCKS as u64 {
        pool.adopt(&block, &chain_of(&[7], 0), 0).unwrap();
        pool.set_payloads(&block, vec![Payload::Number(number)]).unwrap();
        pool.disown(&block).unwrap();
    }
    pool.adopt(&block, &chain_of(&[7], 0), 0).unwrap();
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

/// The payload of each block, with the content that the block had when the payload was set.
#[derive(Default)]
struct AttachedPayloads {
    by_block: BTreeMap<BlockId, (BlockHash, u64)>,
    next: u64,
}

impl Check for AttachedPayloads {
    fn changed(&mut self, pool: &mut BlockPool, _reason: Reason, fresh: &[BlockId]) {
        // A freshly allocated block has lost its content, even if it already has the same content
        // again.
        let is_gone = |block: &BlockId, hash| fresh.contains(block) || pool.hash_of(*block) != Some(hash);
        let (gone, left) = std::mem::take(&mut self.by_block)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|&(block, (hash, _))| is_gone(&block, hash));
        self.by_block = left;
        let taken = pool.take_evicted();
        let found: BTreeMap<_, _> = taken.iter().filter_map(numbered).collect();
        assert_eq!((found, taken.len()), (gone.clone(), gone.len()));
        let all = (1..pool.num_blocks() as u32).map(BlockId::new);
        let some: Vec<_> =
            all.filter(|block| (self.next + u64::from(block.get())).is_multiple_of(3)).collect();
        for block in some {
            let Some(hash) = pool.hash_of(block) else { continue };
            pool.set_payloads(&[block], vec![Payload::Number(self.next)]).unwrap();
            self.by_block.insert(block, (hash, self.next));
            self.next += 1;
        }
        self.next += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// Each payload is returned once, with all other observers and without them.
    #[test]
    fn each_payload_comes_out_exactly_once(
        eviction in policies(),
        duplicates in duplicates(),
        beside in any::<bool>(),
        operations in operations(60),
    ) {
        let advisor = beside.then(AdvisorConfig::default);
        let watch = WatchConfig {
            event_capacity: if beside { 8 } else { 0 }, digest: beside, metrics: beside, advisor, ..payloads()
        };
        let (mut traffic, mut attached) = (Traffic::new(eviction, duplicates), AttachedPayloads::default());
        traffic.pool.watch(&watch).unwrap();
        let mut scrubber = Scrubber::default();
        for operation in &operations {
            traffic.run(operation, &mut attached);
            traffic.pool.check_invariants().unwrap();
            scrubber.scrub(&mut traffic.pool, 4).unwrap();
            if let Some(digest) = traffic.pool.state_digest() {
                prop_assert_eq!(digest, traffic.pool.state_digest_from_scratch());
            }
        }
    }
}
