//! Tests hashing that reads the hashes of cached blocks (`keep_tokens`). The result must always be the
//! chain that hashing computes, also if digests collide, and hits must be as safe as without it.
//! `KVPOOL_MODEL_OPERATIONS` sets the number of random operations (default 50,000).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::HashMap;
use std::sync::Arc;

use kvpool::hash::{HashAlgorithm, MultimodalItem};
use kvpool::{
    Adapter, AdmitOptions, BlockHasher, BlockId, BlockPool, CacheManager, Computed, ExtraKeys, HashCursor,
    HasherConfig, ManagerConfig, ManagerError, Place, PoolConfig, Refused, RequestRef, RequestState, Until,
    Verify,
};

use crate::numbers::Numbers;

fn salted(salt: &[u8]) -> ExtraKeys {
    ExtraKeys { salt: Some(salt.into()), ..ExtraKeys::default() }
}

fn hasher(algorithm: HashAlgorithm, block_size: usize, verify: Verify) -> Arc<BlockHasher> {
    let seed = Some("a seed".to_owned());
    let config = HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() };
    Arc::new(BlockHasher::new(config).unwrap())
}

fn pool(num_blocks: usize, block_size: usize, verify: Verify) -> BlockPool {
    let config = PoolConfig { num_blocks, block_size, verify, keep_tokens: true, ..PoolConfig::default() };
    BlockPool::new(config).unwrap()
}

fn hashed(hasher: &Arc<BlockHasher>, extra: &ExtraKeys, tokens: &[u32]) -> HashCursor {
    let mut cursor = HashCursor::new(hasher.clone(), extra.clone()).unwrap();
    cursor.append(tokens);
    cursor
}

/// Reads a prompt from the pool, checks that its chain is the one that hashing computes, and returns the
/// number of blocks that were hashed.
#[track_caller]
fn read(pool: &BlockPool, hasher: &Arc<BlockHasher>, extra: &ExtraKeys, tokens: &[u32]) -> u64 {
    let expected = hashed(hasher, extra, tokens);
    let mut cursor = HashCursor::new(hasher.clone(), extra.clone()).unwrap();
    assert_eq!(pool.append_known(&mut cursor, tokens), expected.chain().len());
    assert_eq!((cursor.chain(), cursor.tail()), (expected.chain(), expected.tail()));
    cursor.hashed_blocks()
}

/// Registers the full blocks of a prompt, all in one call, and returns them.
fn register(pool: &mut BlockPool, cursor: &HashCursor) -> Vec<BlockId> {
    let blocks = pool.allocate(cursor.chain().len()).unwrap();
    pool.register(&blocks, cursor.chain(), 0).unwrap();
    pool.mark_computed(&blocks).unwrap();
    blocks
}

#[test]
fn a_cached_prompt_is_hashed_once_per_branch() {
    for algorithm in HashAlgorithm::ALL {
        let hasher = hasher(*algorithm, 4, Verify::Fingerprint);
        let mut pool = pool(64, 4, Verify::Fingerprint);
        let extra = ExtraKeys::default();
        let prompt: Vec<u32> = (0..80).collect();
        assert_eq!(read(&pool, &hasher, &extra, &prompt), 20, "nothing is cached");
        register(&mut pool, &hashed(&hasher, &extra, &prompt));
        assert_eq!(read(&pool, &hasher, &extra, &prompt), 1);
        // A second prompt leaves the first after 10 blocks. Its blocks are now the latest after block 10.
        let other: Vec<u32> = prompt[..40].iter().copied().chain(200..230).collect();
        assert_eq!(read(&pool, &hasher, &extra, &other), 1 + 7);
        let cursor = hashed(&hasher, &extra, &other);
        let blocks = pool.allocate(7).unwrap();
        pool.register(&blocks, cursor.chain(), 10).unwrap();
        assert_eq!(read(&pool, &hasher, &extra, &other), 1);
        assert_eq!(read(&pool, &hasher, &extra, &prompt), 2);
    }
}

#[test]
fn a_turn_continues_a_cursor_inside_a_block() {
    let (hasher, extra) = (hasher(HashAlgorithm::Sha256, 4, Verify::None), ExtraKeys::default());
    let mut pool = pool(64, 4, Verify::None);
    let prompt: Vec<u32> = (0..83).collect();
    register(&mut pool, &hashed(&hasher, &extra, &prompt));
    for first in 0..20 {
        for most in [1, 3, usize::MAX] {
            let mut cursor = hashed(&hasher, &extra, &prompt[..first]);
            let mut at = first;
            loop {
                let appended = pool.append_registered(&mut cursor, &prompt[at..], most);
                at += appended;
                if appended < most.saturating_mul(4) {
                    break;
                }
            }
            cursor.append(&prompt[at..]);
            assert_eq!(cursor.chain(), hashed(&hasher, &extra, &prompt).chain(), "{first} {most}");
            let own = first as u64 / 4;
            assert!(cursor.hashed_blocks() <= own + 2, "{first} {most}: {}", cursor.hashed_blocks());
        }
    }
}

/// Equal tokens of a block prove nothing: the blocks before it must be equal, too.
#[test]
fn equal_tokens_after_another_prefix_are_not_the_same_block() {
    let (hasher, extra) = (hasher(HashAlgorithm::Sha256, 2, Verify::None), ExtraKeys::default());
    let mut pool = pool(64, 2, Verify::None);
    register(&mut pool, &hashed(&hasher, &extra, &[1, 1, 7, 7, 8, 8]));
    register(&mut pool, &hashed(&hasher, &extra, &[2, 2, 3, 3]));
    read(&pool, &hasher, &extra, &[2, 2, 7, 7, 8, 8]);
    read(&pool, &hasher, &extra, &[2, 2, 3, 3, 8, 8]);
}

/// A block gets another content while its old child is still cached. The index then guesses the old child
/// as the next block of a prompt, and the child has the tokens of the prompt. It must not be taken, because
/// it follows another content.
#[test]
fn a_child_of_the_content_that_a_block_had_before_is_not_the_next_block() {
    let (hasher, extra) = (hasher(HashAlgorithm::Sha256, 2, Verify::None), ExtraKeys::default());
    let mut pool = pool(64, 2, Verify::None);
    let blocks = register(&mut pool, &hashed(&hasher, &extra, &[1, 1, 7, 7, 8, 8]));
    pool.release(&blocks).unwrap();
    pool.drop_cached(&blocks[..1]).unwrap();
    assert_eq!(register(&mut pool, &hashed(&hasher, &extra, &[2, 2])), blocks[..1]);
    read(&pool, &hasher, &extra, &[2, 2, 7, 7, 8, 8]);
}

#[test]
fn a_block_that_is_used_again_has_its_new_tokens() {
    let (hasher, extra) = (hasher(HashAlgorithm::Sha256, 2, Verify::None), ExtraKeys::default());
    let mut pool = pool(5, 2, Verify::None);
    let old = register(&mut pool, &hashed(&hasher, &extra, &[1, 1, 2, 2, 3, 3, 4, 4]));
    pool.release(&old).unwrap();
    for tokens in [[1, 1, 2, 2, 5, 5, 6, 6], [9, 9, 2, 2, 3, 3, 4, 4]] {
        let blocks = register(&mut pool, &hashed(&hasher, &extra, &tokens));
        read(&pool, &hasher, &extra, &[1, 1, 2, 2, 3, 3, 4, 4]);
        read(&pool, &hasher, &extra, &tokens);
        pool.release(&blocks).unwrap();
    }
    // Blocks that are registered without tokens, by name, are not matched by their old tokens.
    pool.drop_cached(&(1..5).map(BlockId::new).collect::<Vec<_>>()).unwrap();
    let blocks = pool.allocate(4).unwrap();
    let other = hashed(&hasher, &extra, &[5, 5, 6, 6, 7, 7, 8, 8]);
    pool.register_named(&blocks, other.chain().hashes(), 0, |_, _| {}).unwrap();
    read(&pool, &hasher, &extra, &[9, 9, 2, 2, 3, 3, 4, 4]);
}

#[test]
fn a_dropped_parent_only_costs_hashes() {
    let (hasher, extra) = (hasher(HashAlgorithm::Sha256, 2, Verify::None), ExtraKeys::default());
    let mut pool = pool(64, 2, Verify::None);
    let prompt: Vec<u32> = (0..20).collect();
    let blocks = register(&mut pool, &hashed(&hasher, &extra, &prompt));
    pool.release(&blocks).unwrap();
    pool.drop_cached(&blocks[3..4]).unwrap();
    assert_eq!(read(&pool, &hasher, &extra, &prompt), 1 + 7);
    // Computed again in another block, it leads to its children again.
    let again = pool.allocate(2).unwrap()[1];
    pool.register(&[again], hashed(&hasher, &extra, &prompt).chain(), 3).unwrap();
    assert_eq!(read(&pool, &hasher, &extra, &prompt), 2);
}

/// An item and its placeholder tokens: the next block has the same tokens and no item.
#[test]
fn a_block_with_an_item_is_not_the_text_block_with_its_tokens() {
    let image = |offset| MultimodalItem { identifier: (*b"image").into(), offset, length: 5 };
    for algorithm in HashAlgorithm::ALL {
        let hasher = hasher(*algorithm, 2, Verify::Fingerprint);
        let mut pool = pool(64, 2, Verify::Fingerprint);
        let with = |offset| ExtraKeys { multimodal: vec![image(offset)], ..ExtraKeys::default() };
        let tokens = [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6];
        for first in [&with(4), &ExtraKeys::default(), &with(3)] {
            register(&mut pool, &hashed(&hasher, first, &tokens));
            for second in [&with(4), &with(3), &with(6), &ExtraKeys::default()] {
                read(&pool, &hasher, second, &tokens);
            }
        }
        assert_eq!(read(&pool, &hasher, &with(4), &tokens), 1 + 3);
    }
}

/// In vLLM's encodings the root of every chain is the same, and the salt is only in the first block.
#[test]
fn other_extra_keys_never_share_a_first_block() {
    let adapted = |id: &[u8]| ExtraKeys {
        adapter: Some(Adapter { id: id.into(), path: None }),
        ..ExtraKeys::default()
    };
    let all = [ExtraKeys::default(), salted(b"a"), salted(b"b"), adapted(b"x"), adapted(b"y")];
    for algorithm in HashAlgorithm::ALL {
        let verify = if algorithm.is_cryptographic() { Verify::None } else { Verify::Tokens };
        let hasher = hasher(*algorithm, 2, verify);
        let mut pool = pool(64, 2, verify);
        for extra in &all {
            register(&mut pool, &hashed(&hasher, extra, &[1, 2, 3, 4, 5, 6]));
            for other in &all {
                read(&pool, &hasher, other, &[1, 2, 3, 4, 5, 6, 7]);
            }
        }
    }
}

#[test]
fn a_pool_of_another_kind_is_not_read() {
    let extra = ExtraKeys::default();
    let tokens: Vec<u32> = (0..16).collect();
    let mut pool = pool(64, 2, Verify::None);
    register(&mut pool, &hashed(&hasher(HashAlgorithm::Sha256, 2, Verify::None), &extra, &tokens));
    let others = [
        hasher(HashAlgorithm::Sha256, 4, Verify::None),
        hasher(HashAlgorithm::Sha256, 2, Verify::Fingerprint),
        hasher(HashAlgorithm::Blake3, 2, Verify::None),
    ];
    for other in others {
        let blocks = tokens.len() / other.block_size();
        assert_eq!(read(&pool, &other, &extra, &tokens), blocks as u64);
    }
    let off = BlockPool::new(PoolConfig { num_blocks: 64, block_size: 2, ..PoolConfig::default() }).unwrap();
    assert_eq!(read(&off, &hasher(HashAlgorithm::Sha256, 2, Verify::None), &extra, &tokens), 8);
}

/// The number that stands for the KV of a block: it depends on all tokens and keys up to its end.
fn kv(salt: usize, tokens: &[u32]) -> u64 {
    tokens.iter().fold(salt as u64 + 1, |all, &token| {
        (all ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    })
}

/// A manager whose digests have few bits, and the KV that an engine would have in each block.
struct Engine {
    manager: CacheManager,
    hasher: Arc<BlockHasher>,
    kv: HashMap<Place, u64>,
    requests: HashMap<i64, (usize, Vec<u32>)>,
    next: i64,
    hit_blocks: usize,
}

impl Engine {
    fn new(block_size: usize, verify: Verify, bits: u32) -> Self {
        let config =
            ManagerConfig { num_blocks: 40, block_size, host_blocks: 40, verify, ..ManagerConfig::default() };
        let settings = HasherConfig { block_size, verify, ..HasherConfig::default() };
        Self {
            manager: CacheManager::new(config).unwrap(),
            hasher: Arc::new(BlockHasher::truncated(settings, bits).unwrap()),
            kv: HashMap::new(),
            requests: HashMap::new(),
            next: 0,
            hit_blocks: 0,
        }
    }

    /// Hashes a prompt by reading the pool, and compares the chain with the one that hashing computes.
    fn prepare(&self, salt: usize, tokens: &[u32]) -> HashCursor {
        let extra = ExtraKeys { epoch: self.manager.pool().epoch(), ..salted(&[salt as u8]) };
        let expected = hashed(&self.hasher, &extra, tokens);
        let mut cursor = HashCursor::new(self.hasher.clone(), extra).unwrap();
        self.manager.pool().append_known(&mut cursor, tokens);
        assert_eq!(cursor.chain(), expected.chain());
        cursor
    }

    /// Writes the KV of the computed tokens, from `from` on.
    fn write(&mut self, id: i64, from: usize) {
        let (salt, tokens) = &self.requests[&id];
        let size = self.hasher.block_size();
        for (at, &block) in self.manager.block_table(id).unwrap().iter().enumerate() {
            let end = ((at + 1) * size).min(tokens.len());
            if end > from {
                self.kv.insert(Place { tier: 0, block }, kv(*salt, &tokens[..end]));
            }
        }
    }

    /// Checks that the first blocks of a request contain its KV.
    fn check(&self, id: i64, blocks: usize) {
        let (salt, tokens) = &self.requests[&id];
        let size = self.hasher.block_size();
        for (at, &block) in self.manager.block_table(id).unwrap()[..blocks].iter().enumerate() {
            let expected = kv(*salt, &tokens[..(at + 1) * size]);
            assert_eq!(self.kv.get(&Place { tier: 0, block }), Some(&expected), "block {at} of {id}");
        }
    }

    fn copy(&mut self) {
        for copy in self.manager.take_plan().unwrap().transfers() {
            let value = self.kv.get(&copy.src).copied().unwrap_or(0);
            self.kv.insert(copy.dst, value);
        }
    }

    fn admit(&mut self, numbers: &mut Numbers, checked: bool) {
        let salt = numbers.below(2);
        let len = 1 + numbers.below(self.hasher.block_size() * 8);
        // Few different tokens, in runs, so that prompts share beginnings and single blocks.
        let tokens: Vec<u32> =
            (0..len).map(|at| ((at / self.hasher.block_size()) % 2 + numbers.below(8) / 7) as u32).collect();
        let cursor = self.prepare(salt, &tokens);
        let id = self.next;
        match self.manager.admit_with(id, cursor, &AdmitOptions::default()) {
            Ok(admission) => {
                self.next += 1;
                self.requests.insert(id, (salt, tokens));
                self.hit_blocks += admission.cached_blocks;
                self.copy();
                if checked {
                    self.check(id, admission.cached_blocks);
                }
                self.write(id, admission.cached_tokens);
                self.manager.commit(id, len).unwrap();
            }
            Err(Refused { error: ManagerError::OutOfBlocks(_), .. }) => {
                let oldest = self.requests.keys().min().copied();
                oldest.into_iter().for_each(|id| self.release(id));
            }
            refused => drop(refused.unwrap()),
        }
    }

    fn append(&mut self, id: i64, numbers: &mut Numbers) {
        if self.manager.request(id).unwrap().state != RequestState::Running {
            return;
        }
        let before = self.requests[&id].1.len();
        let tokens = [numbers.below(2) as u32];
        if self.manager.append(&[RequestRef::Int(id)], &tokens, Computed::AllButLast).is_ok() {
            self.copy();
            self.requests.get_mut(&id).unwrap().1.extend(tokens);
            self.write(id, before);
            self.manager.commit(id, before + 1).unwrap();
        }
    }

    /// Swaps a request out and in again, or aborts one of both.
    fn swap(&mut self, id: i64, numbers: &mut Numbers, checked: bool) {
        let state = self.manager.request(id).unwrap().state;
        let swap = match state {
            RequestState::Running => self.manager.begin_swap_out(&[id.into()]),
            RequestState::Swapped => self.manager.begin_swap_in(&[id.into()]),
            _ => return,
        };
        let Ok(swap) = swap else { return };
        self.copy();
        if numbers.below(8) == 0 {
            self.manager.abort_swap(swap).unwrap();
        } else {
            self.manager.complete_swap(swap).unwrap();
        }
        if checked && self.manager.request(id).unwrap().state == RequestState::Running {
            self.check(id, self.requests[&id].1.len() / self.hasher.block_size());
        }
    }

    fn release(&mut self, id: i64) {
        self.manager.release(id, Until::Now).unwrap();
        self.requests.remove(&id);
    }

    fn step(&mut self, numbers: &mut Numbers, checked: bool) {
        let mut ids: Vec<_> = self.requests.keys().copied().collect();
        ids.sort_unstable();
        let some = ids.get(numbers.below(ids.len())).copied();
        match (numbers.below(100), some) {
            (0, _) => {
                ids.into_iter().for_each(|id| self.release(id));
                self.manager.bump_epoch().unwrap();
            }
            (1..40, Some(id)) => self.append(id, numbers),
            (40..50, Some(id)) => self.swap(id, numbers, checked),
            (50..70, Some(id)) => self.release(id),
            _ => self.admit(numbers, checked),
        }
    }
}

/// Digests of 6 and 8 bits collide all the time. The chains that are read from the pool are those of
/// hashing, and with verification no hit returns the KV of another prompt, after swaps neither.
#[test]
fn colliding_digests_give_no_wrong_hit_and_no_wrong_chain() {
    let operations = std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok());
    let operations: usize = operations.unwrap_or(50_000);
    let verifies = [Verify::None, Verify::Fingerprint, Verify::Tokens];
    let cases: Vec<_> = verifies
        .into_iter()
        .flat_map(|verify| [(1, 6), (3, 6), (4, 8), (16, 8)].map(|(size, bits)| (verify, size, bits)))
        .collect();
    for (seed, &(verify, size, bits)) in cases.iter().enumerate() {
        let (mut engine, mut numbers) = (Engine::new(size, verify, bits), Numbers(seed as u64));
        for _ in 0..operations / cases.len() {
            engine.step(&mut numbers, verify > Verify::None);
        }
        engine.manager.check_invariants().unwrap();
        let collisions = engine.manager.stats().pool.collisions;
        assert!(engine.hit_blocks > 50, "{verify:?} {size} {bits}: {} hits", engine.hit_blocks);
        assert!(
            verify == Verify::None || collisions > 10,
            "{verify:?} {size} {bits}: {collisions} collisions"
        );
    }
}
