//! Tests the memory of policies and of retention. They allocate only in `new` and `grow`, and the
//! amount is that of their documentation.
//!
//! This is a test binary of its own because it counts the allocations of the whole process.

#[path = "../../kvpool/tests/common/counting.rs"]
mod counting;

use kvpool::evictor::{Content, Policy, Release};
use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{BlockId, PoolError};
use kvpool_policies::{Adaptive, AdaptiveReplacement, Closed, Hazard, Recency, S3Fifo};

fn boxed<P: Policy + 'static>(policy: Result<P, PoolError>) -> Result<Box<dyn Policy>, PoolError> {
    Ok(Box::new(policy?))
}

type Make = fn(usize) -> Result<Box<dyn Policy>, PoolError>;

/// For each policy, the documented number of bytes per block (including ghosts), and of additional
/// bytes per pool.
const POLICIES: [(usize, usize, Make); 5] = [
    (9, 0, |blocks| boxed(Recency::new(blocks))),
    (32, 0, |blocks| boxed(S3Fifo::new(blocks))),
    (33, 0, |blocks| boxed(AdaptiveReplacement::new(blocks))),
    (111, 0, |blocks| boxed(Adaptive::new(blocks))),
    // Small pools have more ghosts per block, which take at most 14,336 * 8 additional bytes.
    (23, 340_000 + 14_336 * 8, |blocks| boxed(Hazard::new(blocks))),
];

#[test]
fn memory_is_taken_at_once_and_as_much_as_stated() {
    const BLOCKS: usize = 1 << 14;
    for (stated, fixed, make) in POLICIES {
        let (_, before) = counting::counts();
        let mut policy = make(BLOCKS).unwrap();
        let per_block = (counting::counts().1 - before) as f64 / BLOCKS as f64 - fixed as f64 / BLOCKS as f64;
        let name = policy.name();
        assert!(
            per_block <= stated as f64 + 0.1,
            "{name} takes {per_block:.2} bytes per block, not {stated}"
        );
        assert!(
            per_block > stated as f64 - 1.1,
            "{name} takes {per_block:.2} bytes per block, {stated} are stated"
        );

        let content = |n: usize| Content { key: n as u64 * n as u64 % 40_009, depth: (n % 50) as u32 };
        let mut contents = vec![Content::default(); BLOCKS];
        let (allocations, _) = counting::counts();
        for n in 0..4 * BLOCKS {
            let victim = if n < BLOCKS - 1 { BlockId::new(n as u32 + 1) } else { policy.pop().unwrap() };
            if n >= BLOCKS - 1 {
                policy.evicted(victim, contents[victim.index()]);
            }
            contents[victim.index()] = content(n);
            policy.admit(victim, content(n));
            policy.begin_release(&Release::default());
            policy.release(victim);
            let other = BlockId::new((n * 7 % BLOCKS) as u32);
            policy.hit(other);
            policy.release(other);
            policy.take(other);
            policy.unpop(other);
            if let Some(next) = policy.pop() {
                policy.unpop(next);
            }
            if n % 16 == 0 {
                policy.forget(other);
                policy.admit(other, content(n));
                policy.release(other);
            }
        }
        policy.clear();
        assert_eq!(counting::counts().0, allocations, "{name} allocates after it was made");
    }
}

#[test]
fn retention_takes_as_much_as_stated() {
    const BLOCKS: usize = 1 << 14;
    let held = |retention: Option<&RetentionConfig>| {
        let (_, before) = counting::counts();
        let evictor = Closed::new(Recency::new(BLOCKS).unwrap(), BLOCKS, retention).unwrap();
        let per_block = (counting::counts().1 - before) as f64 / BLOCKS as f64;
        drop(evictor);
        per_block
    };
    let limits = TenantLimits { tenant: TenantId(1), floor: 1, ceiling: None };
    let tenants = RetentionConfig { tenants: vec![limits], ..Default::default() };
    let (none, some, with_tenants) =
        (held(None), held(Some(&RetentionConfig::default())), held(Some(&tenants)));
    let taken = [none, some - none, with_tenants - some];
    for (taken, stated) in taken.into_iter().zip([32.0 + 9.0, 45.0, 18.0]) {
        assert!((taken - stated).abs() < 0.5, "{taken:.2} bytes per block, {stated} are stated");
    }
}
