//! Makes random calls of a pool. A [`Check`] is notified before and after each change.

use std::sync::{Arc, LazyLock};

use kvpool::retention::TenantId;
use kvpool::{
    BlockHasher, BlockId, BlockPool, DuplicatePolicy, EvictionPolicy, ExtraKeys, HashChain, HashCursor,
    HasherConfig, PoolConfig,
};
use kvpool_observe::PoolWatch;
use proptest::prelude::*;

/// Number of blocks that each pool has at the start.
pub(crate) const BLOCKS: usize = 9;

static HASHER: LazyLock<Arc<BlockHasher>> = LazyLock::new(|| {
    Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap())
});

/// Returns the hash chain of these tokens, one token per block.
pub(crate) fn chain_of(tokens: &[u32], epoch: u64) -> HashChain {
    let mut cursor = HashCursor::new(HASHER.clone(), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

/// Returns a hash chain with one token per block. Chains with different `nth` differ in their first
/// block.
pub(crate) fn chain(nth: u64, blocks: u64, epoch: u64) -> HashChain {
    chain_of(&(0..blocks).map(|at| (nth * 1000 + at) as u32).collect::<Vec<_>>(), epoch)
}

/// One call, or the calls that serve one prompt.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Looks up, allocates and registers the blocks of a prompt, and marks the first `computed` of them
    /// as computed. If `replaces` is true, duplicates are dropped at once.
    Serve {
        tokens: Vec<u32>,
        computed: usize,
        tenant: u32,
        replaces: bool,
    },
    /// Releases a table, either at once or when a step has completed.
    Release {
        nth: usize,
        after: Option<u64>,
    },
    Share {
        nth: usize,
    },
    Complete {
        step: u64,
    },
    Drop {
        block: u32,
    },
    Evict {
        blocks: usize,
    },
    Forget {
        epoch: bool,
    },
    Grow,
    Wait {
        seconds: u8,
    },
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let tokens = prop::collection::vec(0..2_u32, 1..10);
    let serve = (tokens, 0..9_usize, 0..4_u32, prop::bool::weighted(0.2));
    prop_oneof![
        8 => serve.prop_map(|(tokens, computed, tenant, replaces)| {
            // In half of the cases all blocks become computed.
            let computed = if tenant % 2 == 0 { usize::MAX } else { computed };
            Operation::Serve { tokens, computed, tenant, replaces }
        }),
        7 => (0..8_usize, prop::option::weighted(0.3, 0..4_u64))
            .prop_map(|(nth, after)| Operation::Release { nth, after }),
        1 => (0..8_usize).prop_map(|nth| Operation::Share { nth }),
        1 => (0..4_u64).prop_map(|step| Operation::Complete { step }),
        1 => any::<u32>().prop_map(|block| Operation::Drop { block }),
        1 => (0..4_usize).prop_map(|blocks| Operation::Evict { blocks }),
        1 => any::<bool>().prop_map(|epoch| Operation::Forget { epoch }),
        1 => Just(Operation::Grow),
        2 => (0..9_u8).prop_map(|seconds| Operation::Wait { seconds }),
    ]
}

pub(crate) fn operations(most: usize) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..most)
}

pub(crate) fn policies() -> impl Strategy<Value = EvictionPolicy> {
    prop_oneof![Just(kvpool_policies::LRU), prop::sample::select(kvpool_policies::ALL)]
}

pub(crate) fn duplicates() -> impl Strategy<Value = DuplicatePolicy> {
    prop::sample::select(DuplicatePolicy::ALL)
}

/// The reasons for which a content can be removed from its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Evicted,
    Dropped,
    Cleared,
}

/// A test's checks, which run in every phase of an operation.
pub(crate) trait Check {
    /// Called after a lookup that requested `_asked` blocks and acquired `_blocks`.
    fn looked_up(&mut self, _blocks: &[BlockId], _asked: usize, _tenant: Option<u32>) {}

    /// Called after the pool has changed. Contents that are missing now were removed for `_reason`, and
    /// the blocks of `_fresh` were allocated.
    fn changed(&mut self, _pool: &mut BlockPool, _reason: Reason, _fresh: &[BlockId]) {}

    /// Called after the pool's clock was set to `_now`.
    fn time_passed(&mut self, _now: f64) {}
}

impl Check for () {}

/// A pool, and the block tables that hold its blocks.
pub(crate) struct Traffic {
    pub(crate) pool: BlockPool,
    tables: Vec<Vec<BlockId>>,
    now: f64,
}

impl Traffic {
    pub(crate) fn new(eviction: EvictionPolicy, duplicates: DuplicatePolicy) -> Self {
        Self::sized(BLOCKS, eviction, duplicates)
    }

    pub(crate) fn sized(num_blocks: usize, eviction: EvictionPolicy, duplicates: DuplicatePolicy) -> Self {
        let config = PoolConfig { num_blocks, block_size: 1, eviction, duplicates, ..PoolConfig::default() };
        Self { pool: BlockPool::new(config).unwrap(), tables: Vec::new(), now: 0.0 }
    }

    pub(crate) fn run(&mut self, operation: &Operation, check: &mut impl Check) {
        let pool = &mut self.pool;
        let mut reason = Reason::Dropped;
        match *operation {
            Operation::Serve { ref tokens, computed, tenant, replaces } => {
                let tenant = (tenant > 0).then_some(tenant);
                self.tables.push(serve(pool, tokens, computed, tenant, replaces, check));
            }
            Operation::Release { nth, after } if nth < self.tables.len() => {
                let table = self.tables.swap_remove(nth);
                let released = match after {
                    None => pool.release_table(&table),
                    Some(step) => pool.release_after(&table, step),
                };
                released.unwrap();
            }
            Operation::Share { nth } if nth < self.tables.len() => {
                pool.acquire(&self.tables[nth]).unwrap();
                self.tables.push(self.tables[nth].clone());
            }
            Operation::Complete { step } => drop(pool.complete_step(step).unwrap()),
            Operation::Drop { block } => {
                let block = BlockId::new(1 + block % pool.num_usable() as u32);
                pool.drop_cached(&[block]).unwrap();
            }
            Operation::Evict { blocks } => {
                pool.evict(blocks).unwrap();
                reason = Reason::Evicted;
            }
            Operation::Forget { epoch } => {
                let _refused = if epoch { pool.bump_epoch().map(drop) } else { pool.reset().map(drop) };
                reason = Reason::Cleared;
            }
            Operation::Grow if pool.num_blocks() < 64 => pool.resize(pool.num_blocks() + 1).unwrap(),
            Operation::Wait { seconds } => {
                self.now += f64::from(seconds) * 0.7;
                pool.observe_time(self.now).unwrap();
                check.time_passed(self.now);
            }
            _ => {}
        }
        check.changed(pool, reason, &[]);
    }
}

/// Serves the part of a prompt for which the pool has blocks. Returns its block table.
fn serve(
    pool: &mut BlockPool,
    tokens: &[u32],
    computed: usize,
    tenant: Option<u32>,
    replaces: bool,
    check: &mut impl Check,
) -> Vec<BlockId> {
    let chain = chain_of(tokens, pool.epoch());
    let found = match tenant {
        None => pool.match_and_acquire(&chain, usize::MAX),
        Some(tenant) => pool.match_and_acquire_for(&chain, usize::MAX, TenantId(tenant)),
    };
    let mut table = found.unwrap();
    check.looked_up(&table, chain.len(), tenant);
    let hits = table.len();
    let missing = (chain.len() - hits).min(pool.num_available());
    pool.allocate_into(missing, &mut table).unwrap();
    check.changed(pool, Reason::Evicted, &table[hits..]);
    if replaces && missing == chain.len() {
        for (at, block) in pool.register_table(&table, &chain, 0).unwrap() {
            table[at] = block;
        }
    } else {
        pool.register(&table[hits..], &chain, hits).unwrap();
        let end = table.len().min(hits.saturating_add(computed));
        pool.mark_computed(&table[hits..end]).unwrap();
    }
    table
}
