//! Compares a publisher with a real manager under random operations: prompts that share prefixes and
//! grow, releases, evictions, drops in the middle of chains, swaps, resets, epochs, feeds that
//! overflow. After each flush, the published contents are exactly those that the pools hold and that a
//! lookup can reach.

use std::collections::{BTreeMap, BTreeSet};

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{BlockHash, BlockId, CacheManager, ExtraKeys, ManagerConfig, RequestRef};
use kvpool_observe::publish::{Digest, Group, GroupName, Publisher, SinkConfig, base};
use kvpool_observe::{FeedBatch, ManagerWatch};
use proptest::prelude::*;

const BLOCK: usize = 2;

#[derive(Clone, Debug)]
enum Operation {
    Admit { prompt: Vec<u32>, salt: bool },
    Grow { request: usize },
    Release { request: usize },
    Swap { request: usize },
    Evict { blocks: usize },
    Drop { block: u32 },
    Forget { epoch: bool },
    Flush,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let prompt = prop::collection::vec(0..2_u32, 1..14);
    let one = prop_oneof![
        8 => (prompt, prop::bool::weighted(0.2)).prop_map(|(prompt, salt)| Operation::Admit { prompt, salt }),
        4 => (0..9_usize).prop_map(|request| Operation::Grow { request }),
        6 => (0..9_usize).prop_map(|request| Operation::Release { request }),
        3 => (0..9_usize).prop_map(|request| Operation::Swap { request }),
        2 => (0..5_usize).prop_map(|blocks| Operation::Evict { blocks }),
        2 => (1..24_u32).prop_map(|block| Operation::Drop { block }),
        1 => any::<bool>().prop_map(|epoch| Operation::Forget { epoch }),
        4 => Just(Operation::Flush),
    ];
    prop::collection::vec(one, 1..80)
}

struct Run {
    manager: CacheManager,
    publisher: Publisher,
    requests: Vec<u64>,
    swapped: Vec<u64>,
    next: u64,
    /// For each group, whether a lookup needs the parents of a content to reach it.
    chained: Vec<bool>,
}

/// The tiers of a content, its parent, and whether it is a first block.
type Held = (BTreeSet<u8>, Option<BlockHash>, bool);
type Published = BTreeSet<(u8, u16, BlockHash)>;

impl Run {
    fn new(groups: Option<Groups>, host_blocks: usize, capacity: usize) -> Self {
        let chained = groups.as_ref().map_or_else(
            || vec![(BLOCK, true)],
            |groups| groups.specs().iter().map(|spec| (spec.block_tokens, spec.kind.is_full())).collect(),
        );
        let config = ManagerConfig {
            num_blocks: 24,
            block_size: BLOCK,
            host_blocks,
            groups,
            ..ManagerConfig::default()
        };
        let mut manager = CacheManager::new(config).unwrap();
        manager.keep_feed(capacity).unwrap();
        let named = chained.iter().map(|&(block_tokens, chained)| Group {
            name: GroupName::default(),
            block_tokens,
            chained,
        });
        let mut publisher = Publisher::new(named.collect(), 0, base(1)).unwrap();
        publisher.add(SinkConfig::default());
        let chained = chained.into_iter().map(|(_, chained)| chained).collect();
        Self { manager, publisher, requests: vec![], swapped: vec![], next: 0, chained }
    }

    fn pick(requests: &mut Vec<u64>, at: usize) -> Option<u64> {
        (!requests.is_empty()).then(|| requests.remove(at % requests.len()))
    }

    fn take(&mut self, operation: &Operation) {
        match operation {
            Operation::Admit { prompt, salt } => {
                let extra = ExtraKeys {
                    salt: salt.then(|| Box::from(b"salt".as_slice())),
                    epoch: self.manager.pool().epoch(),
                    ..ExtraKeys::default()
                };
                let cursor = self.manager.prepare(prompt, extra).unwrap();
                let id = self.next;
                if self.manager.admit(id, cursor).is_ok() {
                    self.next += 1;
                    self.requests.push(id);
                    self.manager.commit(id, prompt.len()).unwrap();
                }
            }
            Operation::Grow { request } => {
                let Some(id) = Self::pick(&mut self.requests, *request) else { return };
                self.requests.push(id);
                if self.manager.append_tokens(id, &[1, 0, 1], 0).is_ok() {
                    let tokens = self.manager.request(id).unwrap().tokens;
                    self.manager.commit(id, tokens).unwrap();
                }
            }
            Operation::Release { request } => {
                let from = if request % 3 == 2 { &mut self.swapped } else { &mut self.requests };
                if let Some(id) = Self::pick(from, *request) {
                    self.manager.release(id, None).unwrap();
                }
            }
            Operation::Swap { request } => self.swap(*request),
            Operation::Evict { blocks } => {
                self.manager.evict(*blocks).unwrap();
            }
            Operation::Drop { block } => {
                let _refused = self.manager.drop_cached(&[BlockId::new(*block)]);
            }
            Operation::Forget { epoch } => {
                let _refused =
                    if *epoch { self.manager.bump_epoch().map(drop) } else { self.manager.reset().map(drop) };
            }
            Operation::Flush => self.flush(),
        }
    }

    fn swap(&mut self, at: usize) {
        let out = at.is_multiple_of(2);
        let from = if out { &mut self.requests } else { &mut self.swapped };
        let Some(id) = Self::pick(from, at) else { return };
        let ids = [RequestRef::from(id)];
        let begun = if out { self.manager.begin_swap_out(&ids) } else { self.manager.begin_swap_in(&ids) };
        let done = begun.map(|swap| {
            self.manager.take_plan().unwrap();
            self.manager.complete_swap(swap).unwrap();
        });
        let is_out = out == done.is_ok();
        if is_out { self.swapped.push(id) } else { self.requests.push(id) }
    }

    fn take_in(&mut self) {
        for tier in (0..self.manager.tiers().len()).rev() {
            let mut batch = FeedBatch::default();
            self.manager.take_feed(tier, &mut batch);
            self.publisher.take_in(tier as u8, &batch);
        }
    }

    fn flush(&mut self) {
        self.take_in();
        self.publisher.flush(0.0, f64::INFINITY);
        self.publisher.contents().check().unwrap();
        let told: Published = self
            .publisher
            .contents()
            .told_of()
            .map(|(tier, group, digest)| {
                (tier, group, BlockHash::from_bytes(digest.bytes().try_into().unwrap()))
            })
            .collect();
        assert_eq!(told, self.reachable());
    }

    /// Computes the contents that the pools hold and a lookup can reach, from every block.
    fn reachable(&self) -> Published {
        let mut held: BTreeMap<(u16, BlockHash), Held> = BTreeMap::new();
        for tier in 0..self.manager.tiers().len() {
            let pool = self.manager.tiers().pool(tier).unwrap();
            for block in (1..pool.blocks().len() as u32).map(BlockId::new) {
                let Some(content) = pool.blocks().get(block).content.filter(|content| content.computed)
                else {
                    continue;
                };
                if usize::from(content.group) < self.chained.len() {
                    let entry = held
                        .entry((content.group, content.hash))
                        .or_insert_with(|| (BTreeSet::new(), pool.parent_of(block), content.depth == 0));
                    entry.0.insert(tier as u8);
                }
            }
        }
        let of = |group: u16, hash: BlockHash| {
            // Follow the chain from the first block. A content is reachable in those of its tiers that
            // are not faster than the fastest reachable tier of its parent.
            let mut chain = Vec::new();
            let mut at = Some(hash);
            while let Some(hash) = at {
                let Some((tiers, parent, is_first)) = held.get(&(group, hash)) else { return Vec::new() };
                chain.push(tiers);
                let is_enough = !self.chained[usize::from(group)] || *is_first;
                at = parent.filter(|_| !is_enough);
                if at.is_none() && !is_enough {
                    return Vec::new();
                }
            }
            let mut least = 0;
            for tiers in chain[1..].iter().rev() {
                let Some(&fastest) = tiers.range(least..).next() else { return Vec::new() };
                least = fastest;
            }
            chain[0].range(least..).copied().collect()
        };
        let told = held
            .keys()
            .flat_map(|&(group, hash)| of(group, hash).into_iter().map(move |tier| (tier, group, hash)));
        told.collect()
    }
}

fn hybrid() -> Groups {
    let sliding = GroupSpec::new(GroupKind::Sliding { window: 4 }, BLOCK);
    let wide = GroupSpec::new(GroupKind::Sliding { window: 6 }, 2 * BLOCK);
    Groups::new(vec![GroupSpec::new(GroupKind::Full, BLOCK), sliding, wide], Some(BLOCK)).unwrap()
}

proptest! {
    #[test]
    fn published_contents_are_the_reachable_ones(operations in operations()) {
        let mut run = Run::new(None, 12, 1 << 20);
        operations.iter().for_each(|operation| run.take(operation));
        run.flush();
    }

    #[test]
    fn an_overflow_of_the_feed_is_repaired(operations in operations(), capacity in 1_usize..20) {
        let mut run = Run::new(None, 0, capacity);
        operations.iter().filter(|operation| {
            // Do not use salts where the feed may lose changes: contents whose salts are lost are not
            // published.
            !matches!(operation, Operation::Admit { salt: true, .. })
        }).for_each(|operation| run.take(operation));
        run.flush();
    }

    #[test]
    fn every_group_is_published(operations in operations()) {
        let mut run = Run::new(Some(hybrid()), 12, 1 << 20);
        operations.iter().for_each(|operation| run.take(operation));
        run.flush();
    }
}

#[test]
fn contents_with_a_lost_salt_are_not_published() {
    let mut run = Run::new(None, 0, 2);
    run.flush();
    run.take(&Operation::Admit { prompt: vec![1; 8], salt: true });
    run.take_in();
    run.publisher.flush(0.0, 1e9);
    assert_eq!(run.publisher.contents().told_of().count(), 0);
    assert_eq!(run.publisher.contents().untold(), 4);
}

#[test]
fn digests_are_as_long_as_their_algorithm_makes_them() {
    let hash = BlockHash::from_bytes(std::array::from_fn(|at| at as u8));
    assert_eq!(Digest::new(hash, 16).last8(), 0x0809_0a0b_0c0d_0e0f);
    assert_eq!(Digest::new(hash, 32).first8(), 0x0001_0203_0405_0607);
    assert_eq!((Digest::new(hash, 3).bytes().len(), Digest::new(hash, 99).bytes().len()), (8, 32));
}
