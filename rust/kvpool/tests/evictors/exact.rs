//! Compares evictors with retention with the exact model, with random valid and invalid calls. For LRU,
//! the whole order is compared after each call. For other policies, the model checks that the policy
//! was allowed to evict the block that it chose.

use super::model::Model;
use super::*;
use kvpool::{Candidate, Content};

#[derive(Clone, Debug)]
enum Call {
    /// Gives a block in use a new content.
    Registered {
        block: usize,
        parent: Option<usize>,
    },
    /// Gives a block in use another parent.
    Relink(usize, usize),
    /// Acquires a block, its parent, the parent's parent and so on, as a lookup does.
    HitPrefix(usize),
    Hit(usize),
    /// Removes the references of some or all blocks in use.
    Release {
        blocks: Vec<usize>,
        deeper: Vec<u32>,
    },
    Remove(usize),
    Evict(usize),
    Retain(usize, Retention),
    Assign(usize, u32),
    Advance(f64),
    Clear,
    Grow,
}

const MOST: usize = 14;

fn call() -> impl Strategy<Value = Call> {
    let block = || 1..MOST;
    prop_oneof![
        // In most cases the parent of a block is the block with the id before it, so that parents and
        // children are often cached together.
        7 => (block(), prop_oneof![2 => Just(None), 5 => Just(Some(None)), 2 =>
            block().prop_map(|b| Some(Some(b)))])
            .prop_map(|(block, parent)| Call::Registered {
                block, parent: parent.map(|p| p.unwrap_or(block - 1)) }),
        2 => (block(), block()).prop_map(|(block, parent)| Call::Relink(block, parent)),
        2 => block().prop_map(Call::HitPrefix),
        2 => block().prop_map(Call::Hit),
        6 => (prop::collection::vec(block(), 1..6), prop::collection::vec(0_u32..4, 6))
            .prop_map(|(blocks, deeper)| Call::Release { blocks, deeper }),
        1 => block().prop_map(Call::Remove),
        4 => (1_usize..4).prop_map(Call::Evict),
        4 => (block(), retention()).prop_map(|(block, retention)| Call::Retain(block, retention)),
        3 => (block(), prop_oneof![3 => Just(3_u32), 3 => Just(7), 1 => Just(9)])
            .prop_map(|(b, t)| Call::Assign(b, t)),
        3 => (-1_i8..6).prop_map(|half| Call::Advance(f64::from(half) / 2.0)),
        1 => prop_oneof![Just(Call::Clear), Just(Call::Grow), Just(Call::Grow)],
    ]
}

struct Pair {
    kind: Kind,
    evictor: Box<dyn Evictor>,
    model: Model,
    num_blocks: usize,
    now: Option<f64>,
    parents: Vec<Option<usize>>,
    expired: u64,
}

impl Pair {
    fn new(kind: Kind, num_blocks: usize, config: &RetentionConfig) -> Self {
        let evictor = kind.build(num_blocks, config);
        let model = Model::new(num_blocks, config);
        Self { kind, evictor, model, num_blocks, now: None, parents: vec![None; MOST], expired: 0 }
    }

    fn is_lru(&self) -> bool {
        [Kind::Retaining(kvpool_policies::LRU), Kind::StrictLru].contains(&self.kind)
    }

    fn evict(&mut self) {
        let victim = self.evictor.evict().map(BlockId::index);
        if self.is_lru() {
            assert_eq!(victim, self.model.evict());
        } else if let Some(victim) = victim {
            assert!(self.model.may_go(victim), "{:?} gives up {victim}", self.kind);
            self.model.remove(victim);
        } else {
            assert!(self.model.order().is_empty(), "{:?} gives up nothing", self.kind);
        }
    }

    fn apply(&mut self, call: &Call) {
        let fits = |block: usize| block < self.num_blocks;
        match *call {
            Call::Registered { block, parent } => {
                let parent = parent.filter(|&parent| parent > 0 && fits(parent));
                // The caller guarantees that the block is in use, because a block that is not in use
                // must lose its content before it gets another one.
                if fits(block) && !self.model.is_idle(block) {
                    let content = Content { key: block as u64, depth: 0 };
                    self.evictor.registered(id(block), content, parent.map(id));
                    self.model.registered(block, parent);
                    self.parents[block] = parent;
                }
            }
            Call::Relink(block, parent) if fits(block) && fits(parent) => {
                self.evictor.relink(id(block), id(parent));
                self.model.relink(block, parent);
                self.parents[block] = self.model.parent(block);
            }
            Call::HitPrefix(block) => {
                let mut prefix: Vec<_> =
                    std::iter::successors(Some(block), |&b| self.parents[b]).take(5).collect();
                prefix.dedup();
                for block in prefix.into_iter().rev() {
                    self.hit(block);
                }
            }
            Call::Hit(block) => self.hit(block),
            Call::Release { ref blocks, ref deeper } => {
                let released = blocks.iter().zip(deeper).filter(|&(&block, _)| fits(block));
                let released: Vec<_> = released.map(|(&block, &depth)| (block, depth)).collect();
                let mut candidates: Vec<_> =
                    released.iter().map(|&(block, depth)| Candidate { block: id(block), depth }).collect();
                self.evictor.insert(&mut candidates);
                self.model.release(&released);
            }
            Call::Remove(block) => {
                assert_eq!(self.evictor.remove(id(block)), fits(block) && self.model.is_idle(block));
                if fits(block) {
                    self.model.remove(block);
                }
            }
            Call::Evict(n) => {
                for _ in 0..n {
                    self.evict();
                }
            }
            Call::Retain(block, retention) if fits(block) => {
                let hint = self.evictor.retention_mut().unwrap().retain(id(block), retention).ok();
                assert_eq!(hint, self.model.retain(block, retention));
            }
            Call::Assign(block, tenant) if fits(block) => {
                self.evictor.retention_mut().unwrap().assign(id(block), TenantId(tenant));
                self.model.assign(block, tenant);
            }
            Call::Relink(..) | Call::Retain(..) | Call::Assign(..) => {}
            Call::Advance(by) => {
                let now = self.now.map_or(100.0, |now| now + by);
                let expired = self.evictor.retention_mut().unwrap().advance_time(now).ok();
                assert_eq!(expired, self.model.advance_time(now));
                if let Some(expired) = expired {
                    self.now = Some(now);
                    self.expired += expired as u64;
                }
            }
            Call::Clear => {
                self.evictor.clear();
                self.model.clear();
            }
            Call::Grow => {
                self.num_blocks = (self.num_blocks + 1).min(MOST);
                self.evictor.grow(self.num_blocks).unwrap();
                self.model.grow(self.num_blocks);
            }
        }
    }

    fn hit(&mut self, block: usize) {
        if block < self.num_blocks {
            assert_eq!(self.evictor.hit(id(block)), self.model.is_idle(block));
            self.model.hit(block);
        }
    }

    fn check(&self) {
        self.evictor.check_invariants().unwrap();
        if self.is_lru() {
            assert_eq!(indices(&self.evictor.order()), self.model.order());
        }
        for block in 1..self.num_blocks {
            assert_eq!(self.evictor.contains(id(block)), self.model.is_idle(block));
            assert!(self.model.is_known(block) || !self.model.is_idle(block));
            assert_eq!(self.evictor.parent(id(block)).map(BlockId::index), self.model.parent(block));
            assert_eq!(self.evictor.has_dependents(id(block)), self.model.children(block) > 0);
        }
        let stats = self.evictor.retention().unwrap().stats();
        let gauges = [stats.demoted, stats.below_normal, stats.above_normal, stats.pinned, stats.with_ttl];
        assert_eq!((gauges, stats.expired), (self.model.gauges(), self.expired));
    }
}

fn check_kinds(kinds: Vec<Kind>) {
    const LENGTH: u32 = 80;
    let setting = (prop::sample::select(kinds), 4..MOST).prop_flat_map(|(kind, num_blocks)| {
        let calls = prop::collection::vec(call(), LENGTH as usize);
        (Just(kind), Just(num_blocks), limits(num_blocks - 1), any::<bool>(), calls)
    });
    check(file!(), LENGTH, setting, |(kind, num_blocks, config, clock, calls)| {
        let mut pair = Pair::new(kind, num_blocks, &config);
        if clock {
            pair.apply(&Call::Advance(0.0));
        }
        for call in &calls {
            pair.apply(call);
            pair.check();
            for tenant in [3, 7, 9] {
                let blocks = pair.evictor.retention().unwrap().tenant_blocks(TenantId(tenant));
                assert_eq!(blocks, pair.model.tenant_blocks(tenant));
            }
        }
    });
}

#[test]
fn lru_with_retention_equals_the_exact_model() {
    check_kinds(vec![Kind::Retaining(kvpool_policies::LRU), Kind::StrictLru]);
}

#[test]
fn every_policy_with_retention_evicts_only_permitted_blocks() {
    check_kinds(Kind::all().into_iter().filter(|kind| kind.has_retention()).collect());
}
