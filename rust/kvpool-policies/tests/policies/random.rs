//! Compares every policy with its model. Random calls admit, hit, release, pop, park, put back, evict
//! and remove blocks, in a pool that may grow.

use kvpool::evictor::{Content, Policy, Release};
use kvpool_policies::{AdaptiveReplacement, Recency, S3Fifo};
use proptest::prelude::*;

use crate::{content, id, models};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Looks up a content. If it is cached, it is hit. Otherwise it is admitted to a free block, or to
    /// that of a victim.
    Use {
        key: u64,
        then: Then,
    },
    Release(usize),
    Pop(Then),
    Take(usize, Then),
    Unpop(usize),
    Forget(usize),
    Evict(usize),
    Clear,
    Grow,
}

/// When the test evicts a block that it has popped. A block that is in use, or is to be evicted later,
/// is parked until then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Now,
    Later,
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let then = prop_oneof![4 => Just(Then::Now), 1 => Just(Then::Later)];
    let at = 0_usize..64;
    prop_oneof![
        // The calls request a few contents often, and the others rarely.
        24 => (prop_oneof![0_u64..6, 0_u64..30], then.clone())
            .prop_map(|(key, then)| Step::Use { key, then }),
        4 => at.clone().prop_map(Step::Release),
        2 => then.clone().prop_map(Step::Pop),
        1 => (at.clone(), then).prop_map(|(at, then)| Step::Take(at, then)),
        3 => at.clone().prop_map(Step::Unpop),
        1 => at.clone().prop_map(Step::Forget),
        1 => at.prop_map(Step::Evict),
        1 => prop_oneof![9 => Just(Step::Grow), 1 => Just(Step::Clear)],
    ]
}

/// A block that has a content.
#[derive(Clone, Copy, Debug)]
struct Block {
    block: u32,
    content: Content,
    held: bool,
    /// Whether the block was popped from the order and still has its content.
    parked: bool,
}

/// A policy and its model, which get the same calls.
struct Pair<'a> {
    policy: &'a mut dyn Policy,
    model: &'a mut dyn Policy,
    blocks: Vec<Block>,
    num_blocks: u32,
}

impl Pair<'_> {
    fn both(&mut self, mut call: impl FnMut(&mut dyn Policy)) {
        call(self.policy);
        call(self.model);
        self.policy.check_invariants().unwrap();
    }

    fn pop(&mut self) -> Option<usize> {
        let (popped, expected) = (self.policy.pop(), self.model.pop());
        assert_eq!(popped, expected, "the next victim of {}", self.policy.name());
        self.policy.check_invariants().unwrap();
        let popped = popped?.get();
        let at = self.blocks.iter().position(|block| block.block == popped && !block.parked);
        Some(at.unwrap_or_else(|| panic!("{popped} is given up and not there: {:?}", self.blocks)))
    }

    fn evicted(&mut self, at: usize) {
        let Block { block, content, .. } = self.blocks.swap_remove(at);
        self.both(|policy| policy.evicted(id(block), content));
    }

    /// Parks or evicts a popped block. It is parked if it is in use, or if it is to be evicted later.
    fn given_up(&mut self, at: usize, then: Then) {
        if self.blocks[at].held || then == Then::Later {
            self.blocks[at].parked = true;
        } else {
            self.evicted(at);
        }
    }

    fn unpop(&mut self, at: usize) {
        if std::mem::take(&mut self.blocks[at].parked) {
            let block = id(self.blocks[at].block);
            self.both(|policy| policy.unpop(block));
        }
    }

    fn release(&mut self, at: usize) {
        if std::mem::take(&mut self.blocks[at].held) {
            self.unpop(at);
            let block = id(self.blocks[at].block);
            self.both(|policy| {
                policy.begin_release(&Release::default());
                policy.release(block);
            });
        }
    }

    fn hit(&mut self, at: usize) {
        self.blocks[at].held = true;
        let block = id(self.blocks[at].block);
        self.both(|policy| policy.hit(block));
    }

    fn admit(&mut self, content: Content) -> Option<usize> {
        let free = (1..self.num_blocks).find(|&free| self.blocks.iter().all(|block| block.block != free));
        let block = match free {
            Some(block) => block,
            None => loop {
                let at = self.pop()?;
                if !self.blocks[at].held {
                    let block = self.blocks[at].block;
                    self.evicted(at);
                    break block;
                }
                self.blocks[at].parked = true;
            },
        };
        self.both(|policy| policy.admit(id(block), content));
        self.blocks.push(Block { block, content, held: true, parked: false });
        Some(self.blocks.len() - 1)
    }

    fn run(&mut self, step: Step) {
        let any = |at: usize| at.checked_rem(self.blocks.len());
        match step {
            Step::Use { key, then } => {
                let found = self.blocks.iter().position(|block| block.content.key == key);
                let at = match found {
                    Some(at) => {
                        self.hit(at);
                        Some(at)
                    }
                    None => self.admit(content(key)),
                };
                if let Some(at) = at
                    && then == Then::Now
                {
                    self.release(at);
                }
            }
            Step::Release(at) => any(at).into_iter().for_each(|at| self.release(at)),
            Step::Pop(then) => self.pop().into_iter().for_each(|at| self.given_up(at, then)),
            Step::Take(at, then) => {
                // Only a block that is in the order can be removed from it.
                if let Some(at) = any(at)
                    && !self.blocks[at].held
                    && !self.blocks[at].parked
                {
                    let block = id(self.blocks[at].block);
                    self.both(|policy| policy.take(block));
                    self.given_up(at, then);
                }
            }
            Step::Unpop(at) => any(at).into_iter().for_each(|at| self.unpop(at)),
            Step::Evict(at) => {
                if let Some(at) = any(at)
                    && self.blocks[at].parked
                    && !self.blocks[at].held
                {
                    self.evicted(at);
                }
            }
            Step::Forget(at) => {
                if let Some(at) = any(at) {
                    let block = id(self.blocks.swap_remove(at).block);
                    self.both(|policy| policy.forget(block));
                }
            }
            Step::Clear => {
                self.blocks.clear();
                self.both(|policy| policy.clear());
            }
            Step::Grow => {
                self.num_blocks = (self.num_blocks + 1).min(24);
                let num_blocks = self.num_blocks as usize;
                self.both(|policy| policy.grow(num_blocks).unwrap());
            }
        }
    }
}

pub(crate) fn agree(policy: &mut dyn Policy, model: &mut dyn Policy, num_blocks: u32, steps: &[Step]) {
    model.grow(num_blocks as usize).unwrap();
    let mut pair = Pair { policy, model, blocks: Vec::new(), num_blocks };
    for &step in steps {
        pair.run(step);
    }
    while let Some(at) = pair.pop() {
        pair.given_up(at, Then::Now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn policies_are_their_models(blocks in 2_u32..14, steps in prop::collection::vec(step(), 1..120)) {
        let n = blocks as usize;
        agree(&mut Recency::new(n).unwrap(), &mut models::Lru::default(), blocks, &steps);
        agree(&mut S3Fifo::new(n).unwrap(), &mut models::S3Fifo::default(), blocks, &steps);
        agree(&mut AdaptiveReplacement::new(n).unwrap(), &mut models::Arc::default(), blocks, &steps);
    }
}
