//! Tests `Chained`: even if blocks are released one at a time, the cached blocks of a prompt are always
//! a prefix of the prompt.

use std::collections::HashMap;

use kvpool::evictor::{Content, Policy, Release};
use kvpool::{BlockId, PoolError};
use kvpool_policies::{Adaptive, AdaptiveReplacement, Chained, Hazard, Recency, S3Fifo};
use proptest::prelude::*;

use crate::{Make, boxed, id};

fn chained<P: Policy + Clone + 'static>(
    policy: Result<P, PoolError>,
    blocks: usize,
) -> Result<Box<dyn Policy>, PoolError> {
    boxed(Chained::new(policy?, blocks))
}

const CHAINED: [(&str, Make); 5] = [
    ("lru", |blocks| chained(Recency::new(blocks), blocks)),
    ("s3-fifo", |blocks| chained(S3Fifo::new(blocks), blocks)),
    ("arc", |blocks| chained(AdaptiveReplacement::new(blocks), blocks)),
    ("adaptive", |blocks| chained(Adaptive::new(blocks), blocks)),
    ("hazard", |blocks| chained(Hazard::new(blocks), blocks)),
];

/// A cache with a policy. It stores the cached block for each chain and depth.
struct Cache {
    order: Box<dyn Policy>,
    blocks: HashMap<(u64, u32), BlockId>,
    capacity: usize,
    spare: BlockId,
}

impl Cache {
    /// Serves a request for the first `length` blocks of a chain, from the last block to the first.
    /// Checks that every victim is the last cached block of its chain.
    fn request(&mut self, chain: u64, length: u32) {
        let known = (0..length).take_while(|&depth| self.blocks.contains_key(&(chain, depth))).count();
        self.order.begin_release(&Release { length, known: known as u32, ..Release::default() });
        for depth in (0..length).rev() {
            let block = if let Some(&block) = self.blocks.get(&(chain, depth)) {
                self.order.hit(block);
                block
            } else {
                self.admit(chain, depth)
            };
            self.order.release(block);
            self.order.check_invariants().unwrap();
        }
    }

    fn admit(&mut self, chain: u64, depth: u32) -> BlockId {
        let block = self.spare;
        self.order.admit(block, Content { key: chain << 8 | u64::from(depth), depth });
        if self.blocks.len() == self.capacity {
            let victim = self.order.pop().unwrap();
            let (&(of, at), _) = self.blocks.iter().find(|&(_, &block)| block == victim).unwrap();
            self.order.evicted(victim, Content { key: of << 8 | u64::from(at), depth: at });
            self.blocks.remove(&(of, at));
            self.spare = victim;
        } else {
            self.spare = id(self.blocks.len() as u32 + 2);
        }
        self.blocks.insert((chain, depth), block);
        block
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_cached_part_of_a_prompt_is_its_start(
        policy in 0..CHAINED.len(),
        capacity in 1_usize..20,
        requests in prop::collection::vec((0_u64..6, 1_u32..9), 1..80),
    ) {
        let (name, make) = CHAINED[policy];
        let order = make(capacity + 2).unwrap();
        prop_assert_eq!(order.name(), name);
        let mut cache = Cache { order, blocks: HashMap::new(), capacity, spare: id(1) };
        for (chain, length) in requests {
            cache.request(chain, length);
            for &(chain, depth) in cache.blocks.keys() {
                let has_beginning = depth == 0 || cache.blocks.contains_key(&(chain, depth - 1));
                prop_assert!(has_beginning, "{} keeps {} of {} without what is before it", name, depth,
                    chain);
            }
        }
        // The test puts all victims back and evicts them again. The order is the same: the ends of
        // chains are evicted first.
        let held = cache.blocks.len();
        let victims: Vec<_> = std::iter::from_fn(|| cache.order.pop()).collect();
        prop_assert_eq!(victims.len(), held);
    }
}

/// A caller such as a store does not announce releases of requests. Then no block has a parent, and the
/// order is that of the policy inside.
#[test]
fn without_requests_there_are_no_chains() {
    let mut order = Chained::new(S3Fifo::new(9).unwrap(), 9).unwrap();
    for block in 1..6 {
        order.admit(id(block), Content { key: block.into(), depth: 6 - block });
        order.release(id(block));
    }
    order.take(id(2));
    order.unpop(id(2));
    assert_eq!(std::iter::from_fn(|| order.pop()).collect::<Vec<_>>(), [2, 1, 3, 4, 5].map(id));
}
