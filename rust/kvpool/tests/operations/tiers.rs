//! Tests tiers and plans. Swaps end completely or not at all, and invalid input is refused. A refusal
//! is a typed error that changes nothing, and its message contains the value and the limit.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::sync::Arc;

use kvpool::hash::{HashAlgorithm, HashChain};
use kvpool::{
    BlockHasher, BlockId, BlockPool, ExtraKeys, Fit, HashCursor, HasherConfig, Place, PlanError, PoolConfig,
    PoolError, SwapId, TierError, Tiers, Transfer, TransferPlan, Verify,
};
use kvpool_observe::TierWatch;

const B: usize = 4;

fn tier(num_blocks: usize) -> PoolConfig {
    PoolConfig { num_blocks, block_size: B, ..Default::default() }
}

fn tiers(usable: &[usize]) -> Tiers {
    Tiers::new(usable.iter().map(|usable| tier(usable + 1)).collect()).unwrap()
}

fn observe_tiers(tiers: &Tiers) -> impl PartialEq + std::fmt::Debug + use<> {
    let block =
        |pool: &BlockPool, b| (pool.ref_count(b), pool.state(b), pool.hash_of(b), pool.is_computed(b));
    let pool = |tier| {
        let pool = tiers.pool(tier).unwrap();
        let blocks = (0..pool.num_blocks() as u32).map(BlockId::new);
        let blocks: Vec<_> = blocks.map(|b| (block(pool, b), pool.fence_references(b))).collect();
        (pool.free_order(), pool.eviction_order(), pool.stats(), blocks)
    };
    let pools: Vec<_> = (0..tiers.len()).map(pool).collect();
    (pools, tiers.pending_copies().collect::<Vec<_>>())
}

/// Checks that the call fails with this message and changes nothing in any tier.
#[track_caller]
fn refused<T>(tiers: &mut Tiers, message: &str, call: impl FnOnce(&mut Tiers) -> Result<T, TierError>) {
    let before = observe_tiers(tiers);
    assert_eq!(call(tiers).err().unwrap().to_string(), message);
    assert_eq!(observe_tiers(tiers), before);
    tiers.check_invariants().unwrap();
}

#[test]
fn tiers_that_cannot_be() {
    let refused = |configs, message: &str| {
        let error = Tiers::new(configs).unwrap_err();
        assert!(matches!(error, TierError::Pool(PoolError::InvalidConfig { .. })));
        assert_eq!(error.to_string(), message);
    };
    refused(vec![], "tiers is 0: must be at least 1");
    let other = PoolConfig { block_size: 8, ..tier(3) };
    refused(vec![tier(3), other], "block_size is 8: must be the same in every tier");
    let other = PoolConfig { verify: Verify::Tokens, ..tier(3) };
    refused(vec![tier(3), tier(3), other], "verify is tokens: must be the same in every tier");
    let limit = kvpool::MAX_BLOCKS;
    let message = format!("num_blocks is 1: must be from 2 (block 0 is the null block) to {limit}");
    refused(vec![tier(3), tier(1)], &message);
}

#[test]
fn tiers_and_swaps_that_do_not_exist() {
    let mut tiers = tiers(&[5, 5]);
    let held = tiers.pool_mut(0).unwrap().allocate(1).unwrap();
    let message = "tier 2 does not exist: there are 2";
    refused(&mut tiers, message, |tiers| tiers.begin_swap(&held, 0, 2));
    refused(&mut tiers, message, |tiers| tiers.fit_swap(&held, 0, 2, 0));
    refused(&mut tiers, message, |tiers| tiers.take_events(2));
    refused(&mut tiers, message, |tiers| tiers.pool(2).map(drop));
    refused(&mut tiers, message, |tiers| tiers.pool_mut(2).map(drop));
    refused(&mut tiers, message, |tiers| tiers.copy_on_write(2, held[0]));
    let message = "a swap from tier 0 to itself";
    refused(&mut tiers, message, |tiers| tiers.begin_swap(&held, 0, 0));
    refused(&mut tiers, message, |tiers| tiers.fit_swap(&held, 0, 0, 0));

    let swap = tiers.begin_swap(&held, 0, 1).unwrap();
    let planned =
        "swap 0 cannot be completed: its copies are still planned, take the plan and execute it first";
    refused(&mut tiers, planned, |tiers| tiers.complete_swap(swap));
    tiers.abort_swap(swap).unwrap();
    for number in [0, 9] {
        let (swap, message) = (
            SwapId::from_number(number),
            format!("swap {number} is not under way: it was completed or aborted, or never begun"),
        );
        refused(&mut tiers, &message, |tiers| tiers.complete_swap(swap));
        refused(&mut tiers, &message, |tiers| tiers.abort_swap(swap));
        refused(&mut tiers, &message, |tiers| tiers.swap_mapping(swap));
    }
}

#[test]
fn errors_of_other_layers() {
    let plan = PlanError::NullBlock { role: "the source" };
    assert_eq!(TierError::from(plan.clone()), TierError::Plan(plan.clone()));
    assert_eq!(TierError::from(plan).to_string(), "the null block is the source of a transfer");
}

/// A swap needs one reference to a block for each time that it contains the block.
#[test]
fn blocks_that_are_not_held() {
    let mut tiers = Tiers::new(vec![tier(4), tier(4)]).unwrap();
    let held = tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    tiers.pool_mut(0).unwrap().acquire(&held[..1]).unwrap();
    let free = BlockId::new(3);
    let message = "block 3 has 0 references: cannot write to it (reference 0 of this call)";
    refused(&mut tiers, message, |tiers| tiers.is_writable(0, free));
    refused(&mut tiers, message, |tiers| tiers.copy_on_write(0, free));
    let outside = BlockId::new(77);
    refused(
        &mut tiers,
        "block 77 has 0 references: cannot write to it (reference 0 of this call)",
        |tiers| tiers.copy_on_write(0, outside),
    );
    refused(&mut tiers, "block 3 has 0 references: cannot swap it (reference 1 of this call)", |tiers| {
        tiers.begin_swap(&[held[0], free], 0, 1)
    });
    // The first block has two references and is in the call twice. The second block has one reference,
    // so its second entry is refused.
    refused(&mut tiers, "block 2 has 1 references: cannot swap it (reference 3 of this call)", |tiers| {
        tiers.begin_swap(&[held[0], held[0], held[1], held[1]], 0, 1)
    });
    refused(&mut tiers, "block id 77 is outside this pool: ids run from 1 to 3", |tiers| {
        tiers.fit_swap(&[outside], 0, 1, 0)
    });
    // References that one swap moves are not available for another swap, and their holder cannot
    // release them.
    let swap = tiers.begin_swap(&[held[0]], 0, 1).unwrap();
    refused(&mut tiers, "block 1 has 1 references: cannot swap it (reference 1 of this call)", |tiers| {
        tiers.begin_swap(&[held[0], held[0]], 0, 1)
    });
    tiers.take_plan().unwrap();
    tiers.abort_swap(swap).unwrap();
    let swap = tiers.begin_swap(&[held[1]], 0, 1).unwrap();
    tiers.take_plan().unwrap();
    tiers.pool_mut(0).unwrap().release(&held[1..]).unwrap();
    let released = tiers.complete_swap(swap).unwrap_err().to_string();
    assert_eq!(released, "block 2 has 0 references: cannot complete its swap (reference 0 of this call)");
    tiers.abort_swap(swap).unwrap();
    tiers.check_invariants().unwrap();
    // A copy of the shared block is refused, because no block is available for it.
    tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    refused(&mut tiers, "out of blocks: 1 needed, 0 available, 1 missing", |tiers| {
        tiers.copy_on_write(0, held[0])
    });
}

/// A block has two references. Each reference moves with its own swap. One swap is completed, and the
/// other is aborted.
#[test]
fn one_block_is_in_two_swaps_at_once() {
    let mut tiers = tiers(&[4, 4, 4]);
    let block = tiers.pool_mut(0).unwrap().allocate(1).unwrap();
    tiers.pool_mut(0).unwrap().acquire(&block).unwrap();
    let (first, second) = (tiers.begin_swap(&block, 0, 1).unwrap(), tiers.begin_swap(&block, 0, 2).unwrap());
    assert_eq!(tiers.take_plan().unwrap().len(), 2);
    tiers.complete_swap(first).unwrap();
    assert_eq!(tiers.pool(0).unwrap().ref_count(block[0]), Some(1));
    tiers.abort_swap(second).unwrap();
    assert_eq!((tiers.pool(1).unwrap().stats().active, tiers.pool(2).unwrap().stats().free), (1, 4));
    assert_eq!(tiers.fit_swap(&block, 0, 2, 4), Ok(Fit::Never));
    assert!(tiers.is_writable(0, block[0]).unwrap());
    tiers.check_invariants().unwrap();
}

fn chain(algorithm: HashAlgorithm, first: u32) -> HashChain {
    let hasher = BlockHasher::new(HasherConfig { algorithm, block_size: 4, ..Default::default() }).unwrap();
    let mut cursor = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
    cursor.append(&(first..first + 8).collect::<Vec<_>>());
    cursor.chain().clone()
}

/// If other calls have changed the blocks of a swap, its end is refused as a whole, or skips the parts
/// that are no longer possible. It never stops in the middle.
#[test]
fn a_swap_ends_as_a_whole() {
    let mut tiers = tiers(&[4, 4]);
    let blocks = tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    let sha = chain(HashAlgorithm::Sha256, 0);
    tiers.pool_mut(0).unwrap().register(&blocks, &sha, 0).unwrap();
    tiers.pool_mut(0).unwrap().mark_computed(&blocks).unwrap();
    let swap = tiers.begin_swap(&blocks, 0, 1).unwrap();
    tiers.take_plan().unwrap();
    let host: Vec<_> = tiers.swap_mapping(swap).unwrap().iter().map(|moved| moved.1).collect();
    tiers.pool_mut(1).unwrap().register(&host[1..], &sha, 1).unwrap();
    tiers.complete_swap(swap).unwrap();
    assert_eq!(tiers.pool(0).unwrap().stats().cached_free, 2);
    assert_eq!(tiers.pool(1).unwrap().stats().registered, 2);
    tiers.check_invariants().unwrap();

    let back = tiers.begin_swap(&host[..1], 1, 0).unwrap();
    let taken = tiers.swap_mapping(back).unwrap()[0].1;
    tiers.pool_mut(0).unwrap().release(&[taken]).unwrap();
    assert!(tiers.abort_swap(back).is_err() && tiers.complete_swap(back).is_err());
    assert_eq!(tiers.swap_mapping(back).unwrap().len(), 1); // still running
    tiers.pool_mut(0).unwrap().match_and_acquire(&sha, 1).unwrap();
    tiers.abort_swap(back).unwrap();
    tiers.check_invariants().unwrap();
}

/// If the digests of two tiers cannot be compared, a swap moves only bytes and no registrations.
#[test]
fn a_swap_between_algorithms_moves_no_registration() {
    let mut tiers = tiers(&[4, 4]);
    for (tier, algorithm) in [(0, HashAlgorithm::Sha256), (1, HashAlgorithm::Blake3)] {
        let pool = tiers.pool_mut(tier).unwrap();
        let block = pool.allocate(1).unwrap();
        pool.register(&block, &chain(algorithm, 0), 0).unwrap();
        pool.mark_computed(&block).unwrap();
    }
    let swap = tiers.begin_swap(&[BlockId::new(1)], 0, 1).unwrap();
    tiers.take_plan().unwrap();
    tiers.complete_swap(swap).unwrap();
    let host = tiers.pool(1).unwrap();
    assert_eq!(host.probe(&chain(HashAlgorithm::Blake3, 0), 2).unwrap().cached_blocks, 1);
    tiers.check_invariants().unwrap();
}

/// A block that is fenced for a running step is not written in place, regardless of which request the
/// step belongs to.
#[test]
fn planned_and_fenced_blocks_are_counted() {
    let mut tiers = tiers(&[4, 4]);
    let blocks = tiers.pool_mut(0).unwrap().allocate(1).unwrap();
    tiers.pool_mut(0).unwrap().acquire(&blocks).unwrap();
    tiers.pool_mut(0).unwrap().release_after(&blocks, 3).unwrap();
    let own = tiers.copy_on_write(0, blocks[0]).unwrap();
    assert_ne!(own, blocks[0]);
    assert_eq!((tiers.num_planned(), tiers.pool(0).unwrap().num_fenced()), (1, 1));
    tiers.take_plan().unwrap();
    assert_eq!(tiers.pool_mut(0).unwrap().complete_step(3).unwrap(), 1);
    assert_eq!(tiers.pool(0).unwrap().stats().free, 3);
    tiers.check_invariants().unwrap();
}

// --- Plans ---

fn at(tier: usize, block: u32) -> Place {
    Place { tier, block: BlockId::new(block) }
}

#[test]
fn plans_that_cannot_be() {
    let copy = |src, dst| Transfer { src, dst };
    let refused = |transfers, message: &str| {
        assert_eq!(TransferPlan::new(transfers).unwrap_err().to_string(), message);
    };
    refused(
        vec![copy(at(0, 1), at(1, 7)), copy(at(0, 2), at(1, 7))],
        "block 7 of tier 1 is written twice by one plan",
    );
    // A transfer from a block to itself writes nothing, but counts as a write in this check.
    refused(
        vec![copy(at(1, 7), at(1, 7)), copy(at(0, 2), at(1, 7))],
        "block 7 of tier 1 is written twice by one plan",
    );
    refused(vec![copy(at(0, 0), at(1, 7))], "the null block is the source of a transfer");
    refused(vec![copy(at(0, 3), at(0, 0))], "the null block is the destination of a transfer");
    refused(vec![copy(at(0, 0), at(0, 0))], "the null block is the source of a transfer");
}

#[test]
fn scratch_blocks_that_cannot_be() {
    let copy = |src, dst| Transfer { src: at(0, src), dst: at(0, dst) };
    let plan = TransferPlan::new(vec![copy(1, 2), copy(2, 1), copy(3, 4), copy(4, 3)]).unwrap();
    let refused = |scratch: &[Place], message: &str| {
        assert_eq!(plan.rounds(scratch).unwrap_err().to_string(), message);
    };
    let lacking = "the plan has 2 cycles and was given 1 scratch blocks: one each is needed";
    refused(&[at(0, 5)], lacking);
    refused(&[at(0, 5), at(0, 4)], "block 4 of tier 0 cannot be a scratch block: it is used already");
    refused(&[at(0, 5), at(0, 5)], "block 5 of tier 0 cannot be a scratch block: it is used already");
    refused(&[at(0, 0), at(0, 5)], "the null block is scratch of a transfer");
    assert!(plan.rounds(&[at(0, 5), at(1, 1)]).is_ok());
}
