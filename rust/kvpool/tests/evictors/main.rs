//! Tests evictors. All policies have to fulfil the same contract, the order of eviction with retention
//! is compared with an exact model, and each policy is tested with adverse workloads.
//!
//! All tests run over [`kvpool_policies::ALL`], so a new policy is tested automatically.
//! `KVPOOL_MODEL_OPERATIONS` sets the number of operations of each random test (default 30,000).
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests fail by panicking, as tests do, and tables are shown on request"
)]

mod adversaries;
mod copies;
mod exact;
mod leases;
mod model;
mod pins;
mod rules;
mod strict;

use std::sync::{Arc, OnceLock};

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, EvictionPolicy, Evictor, ExtraKeys, HashChain, HashCursor, HasherConfig, Policy,
};
use kvpool_policies::{Closed, Recency, S3Fifo};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

fn id(block: usize) -> BlockId {
    BlockId::new(block as u32)
}

fn indices(blocks: &[BlockId]) -> Vec<usize> {
    blocks.iter().map(|block| block.index()).collect()
}

/// The ways to construct an evictor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The evictor of a pool without retention.
    Plain(EvictionPolicy),
    /// The evictor of a pool with retention.
    Retaining(EvictionPolicy),
    /// LRU inside `Closed`, without retention, as the advisor and `kvpool size` use it.
    ClosedLru,
    /// LRU in an evictor with retention, inside of [`strict::Strict`], which fails on calls that are
    /// not allowed. LRU's order contains no blocks in use.
    StrictLru,
    StrictS3Fifo,
}

impl Kind {
    fn all() -> Vec<Self> {
        let plain = kvpool_policies::ALL.iter().map(|&policy| Self::Plain(policy));
        plain.chain(Self::retaining()).chain([Self::ClosedLru, Self::StrictLru, Self::StrictS3Fifo]).collect()
    }

    fn retaining() -> impl Iterator<Item = Self> {
        let possible = |policy: &&EvictionPolicy| policy.build(8, Some(&RetentionConfig::default())).is_ok();
        kvpool_policies::ALL.iter().filter(possible).map(|&policy| Self::Retaining(policy))
    }

    fn has_retention(self) -> bool {
        matches!(self, Self::Retaining(_) | Self::StrictLru | Self::StrictS3Fifo)
    }

    fn build(self, num_blocks: usize, retention: &RetentionConfig) -> Box<dyn Evictor> {
        fn closed<P: Policy + Clone + 'static>(
            policy: P,
            num_blocks: usize,
            retention: Option<&RetentionConfig>,
        ) -> Box<dyn Evictor> {
            Box::new(Closed::new(policy, num_blocks, retention).unwrap())
        }
        let (lru, s3_fifo) = (Recency::new(num_blocks).unwrap(), S3Fifo::new(num_blocks).unwrap());
        match self {
            Self::Plain(policy) => policy.build(num_blocks, None).unwrap(),
            Self::Retaining(policy) => policy.build(num_blocks, Some(retention)).unwrap(),
            Self::ClosedLru => closed(lru, num_blocks, None),
            Self::StrictLru => closed(strict::Strict::new(lru), num_blocks, Some(retention)),
            Self::StrictS3Fifo => closed(strict::Strict::new(s3_fifo), num_blocks, Some(retention)),
        }
    }
}

const BLOCK_SIZE: usize = 2;

fn hasher() -> &'static Arc<BlockHasher> {
    static HASHER: OnceLock<Arc<BlockHasher>> = OnceLock::new();
    let config = HasherConfig { block_size: BLOCK_SIZE, ..Default::default() };
    HASHER.get_or_init(|| Arc::new(BlockHasher::new(config).unwrap()))
}

/// Returns the chain of a prompt that is given as a path in a tree. Each element of the path is one
/// block, so paths with a common beginning share blocks.
fn chain(epoch: u64, path: &[u8]) -> HashChain {
    let extra = ExtraKeys { epoch, ..Default::default() };
    let mut cursor = HashCursor::new(Arc::clone(hasher()), extra).unwrap();
    cursor.append(&path.iter().flat_map(|&step| [u32::from(step); BLOCK_SIZE]).collect::<Vec<_>>());
    cursor.chain().clone()
}

fn retention() -> impl Strategy<Value = Retention> {
    let priority = prop::sample::select(vec![0_u8, 34, 35, 35, 36, 80, 80, 80, 100]);
    let keep = prop_oneof![
        1 => Just(Keep::Demoted),
        4 => priority.prop_map(|p| Keep::Priority(Priority::new(p).unwrap())),
        2 => Just(Keep::Pinned),
    ];
    let seconds = (0_u8..12).prop_map(|half| f64::from(half) / 2.0);
    let ttl = prop_oneof![
        2 => Just(None),
        1 => seconds.clone().prop_map(|s| Some(Ttl::Idle(s))),
        1 => seconds.prop_map(|s| Some(Ttl::Absolute(s))),
    ];
    (keep, ttl, any::<bool>()).prop_map(|(keep, ttl, demote)| Retention {
        keep,
        ttl,
        then: if demote { Then::Demote } else { Then::Normal },
    })
}

/// Draws random settings for a pool of `usable` blocks: a budget of pins, and two tenants with limits.
fn limits(usable: usize) -> impl Strategy<Value = RetentionConfig> {
    let third = usable / 3;
    let tenant = move |nth: u32| {
        (0..=third, prop_oneof![Just(None), (0..=third).prop_map(Some)]).prop_map(move |(floor, above)| {
            TenantLimits { tenant: TenantId(nth), floor, ceiling: above.map(|above| floor + above) }
        })
    };
    let tenants = prop_oneof![
        1 => Just(Vec::new()),
        3 => (tenant(7), tenant(3)).prop_map(|(a, b)| vec![a, b]),
    ];
    (0..=third, tenants).prop_map(|(pin_budget, tenants)| RetentionConfig { pin_budget, tenants })
}

fn operations_in_all() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(30_000)
}

/// Runs `test` on random sequences of `length` operations. A failing sequence is shrunk, and its seed
/// is stored beside the test's file.
fn check<S: Strategy>(file: &'static str, length: u32, strategy: S, test: impl Fn(S::Value)) {
    let config = Config {
        cases: operations_in_all().div_ceil(length),
        source_file: Some(file),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
