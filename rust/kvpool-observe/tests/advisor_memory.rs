//! Memory of an advisor: it allocates all memory at construction, and no more than it reports.
//!
//! This is a test binary of its own because it counts the allocations of the whole process.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

#[path = "../../kvpool/tests/common/counting.rs"]
mod counting;

use kvpool::retention::TenantId;
use kvpool::{BlockHash, BlockPool, HashAlgorithm, HashChain, PoolConfig};
use kvpool_observe::{AdvisorConfig, PoolWatch, WatchConfig};

fn pool(num_blocks: usize, advisor: Option<AdvisorConfig>) -> BlockPool {
    let config = PoolConfig { num_blocks, block_size: 1, ..PoolConfig::default() };
    BlockPool::new(config).unwrap().watched(&WatchConfig { advisor, ..WatchConfig::default() }).unwrap()
}

/// Returns two numbers of bytes: the additional memory of a pool with this advisor, and the size that
/// the advisor reports.
fn bytes(num_blocks: usize, config: AdvisorConfig) -> (isize, isize) {
    let start = counting::counts().1;
    let plain = pool(num_blocks, None);
    let without = counting::counts().1 - start;
    drop(plain);
    let advised = pool(num_blocks, Some(config));
    let with = counting::counts().1 - start;
    (with - without, advised.advice().unwrap().memory_bytes as isize)
}

#[test]
fn the_advisor_uses_no_more_memory_than_it_reports() {
    for num_blocks in [2, 1000, 1 << 20, 1 << 22] {
        let (held, said) = bytes(num_blocks, AdvisorConfig::default());
        println!("{num_blocks} blocks: {held} bytes, {said} stated");
        assert!(held <= said && said <= 4 << 20, "{num_blocks} blocks: {held} bytes, {said} stated");
    }
    for &policy in kvpool_policies::ALL.iter().filter(|&&policy| policy != kvpool_policies::LAST_ACCESS) {
        let with = |policies| {
            bytes(
                1 << 20,
                AdvisorConfig {
                    policies,
                    max_tenants: 0,
                    max_sampled_blocks: 1 << 16,
                    ..AdvisorConfig::default()
                },
            )
        };
        let ((before, said_before), (after, said)) = (with(vec![]), with(vec![policy]));
        let slots = f64::from(1 << 13);
        println!("{}: {:.1} bytes per slot", policy.name(), (after - before) as f64 / slots);
        assert!(after - before <= said - said_before, "{}: more than is stated", policy.name());
    }
}

fn chain(nth: u64, blocks: u64) -> HashChain {
    let digest = |at: u64| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(nth * 1_000_003 + at).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes());
        BlockHash::from_bytes(bytes)
    };
    HashChain::from_digests(HashAlgorithm::Sha256, 1, 0, (0..blocks).map(digest).collect()).unwrap()
}

/// No traffic makes the advisor's memory grow. A lookup allocates only its list of sampled blocks.
#[test]
fn memory_does_not_grow() {
    let policies: Vec<_> = kvpool_policies::ALL
        .iter()
        .copied()
        .filter(|&policy| policy != kvpool_policies::LAST_ACCESS)
        .collect();
    let config = AdvisorConfig {
        max_sampled_blocks: 512,
        window: Some(5_000),
        policies,
        max_tenants: 3,
        ..AdvisorConfig::default()
    };
    let chains: Vec<_> = (0..300).map(|nth| chain(nth, 20 + nth % 30)).collect();
    let run = |advisor: Option<AdvisorConfig>| {
        let mut pool = pool(1001, advisor);
        let mut table = Vec::with_capacity(1000);
        let (mut allocations, mut held) = (0, (0, 0));
        for turn in 0..2_000_usize {
            let chain = &chains[turn * turn % 300];
            let (start, bytes) = counting::counts();
            let found = pool.match_and_acquire_for(chain, usize::MAX, TenantId(turn as u32 % 7)).unwrap();
            allocations += counting::counts().0 - start;
            table.clear();
            table.extend_from_slice(&found);
            pool.allocate_into(chain.len() - found.len(), &mut table).unwrap();
            pool.register(&table[found.len()..], chain, found.len()).unwrap();
            pool.mark_computed(&table[found.len()..]).unwrap();
            table.reverse();
            pool.release(&table).unwrap();
            drop(found);
            // From this turn on, the lists of the pool itself no longer grow.
            if turn == 500 {
                held.0 = counting::counts().1;
            } else if turn > 500 {
                held.1 = counting::counts().1;
                assert_eq!(counting::counts().1, bytes, "turn {turn}");
            }
        }
        assert_eq!(held.0, held.1);
        allocations
    };
    let (with, without) = (run(Some(config)), run(None));
    assert!(with <= without + 2_000, "{with} allocations, {without} without an advisor");
}
