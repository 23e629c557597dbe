//! Bad input to sequences, tiers and plans: a typed error whose message names the value and the limit, and nothing has
//! changed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::error::Error;
use std::sync::Arc;

use kvpool::hash::HashError;
use kvpool::{
    BlockHasher, BlockId, BlockPool, ExtraKeys, HashCursor, HasherConfig, Place, PlanError, PoolConfig,
    PoolError, SequenceError, SequenceId, Sequences, SwapId, TierError, Tiers, Transfer, TransferPlan,
    Verify,
};
use kvpool_observe::TierWatch;

const B: usize = 4;

fn hasher(block_size: usize) -> Arc<BlockHasher> {
    Arc::new(BlockHasher::new(HasherConfig { block_size, ..Default::default() }).unwrap())
}

fn tier(num_blocks: usize) -> PoolConfig {
    PoolConfig { num_blocks, block_size: B, ..Default::default() }
}

fn prompt(sequences: &Sequences, tokens: u32) -> HashCursor {
    let mut prompt = HashCursor::new(Arc::clone(sequences.hasher()), ExtraKeys::default()).unwrap();
    prompt.append(&(0..tokens).collect::<Vec<_>>());
    prompt
}

struct World {
    sequences: Sequences,
    /// 6 tokens, 4 of them computed, in 2 of tier 0's 5 blocks.
    a: SequenceId,
    /// A fork of it.
    b: SequenceId,
    /// 2 tokens, in one of tier 1's 2 blocks.
    host: SequenceId,
    freed: SequenceId,
}

fn world() -> World {
    let mut sequences = Sequences::new(Tiers::new(vec![tier(6), tier(3)]).unwrap(), hasher(B)).unwrap();
    let a = sequences.admit(prompt(&sequences, 6), 0).unwrap();
    sequences.commit(a, 4).unwrap();
    let b = sequences.fork(a).unwrap();
    let host = sequences.admit(prompt(&sequences, 2), 1).unwrap();
    let freed = sequences.admit(prompt(&sequences, 1), 0).unwrap();
    sequences.free(freed, None).unwrap();
    World { sequences, a, b, host, freed }
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

impl World {
    fn observe(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let sequences = &self.sequences;
        let one = |id| {
            let tokens =
                sequences.cursor(id).ok().map(|cursor| (cursor.num_tokens(), cursor.tail().to_vec()));
            (sequences.info(id).ok(), sequences.block_table(id).ok().map(<[_]>::to_vec), tokens)
        };
        (observe_tiers(sequences.tiers()), [self.a, self.b, self.host, self.freed].map(one), sequences.len())
    }

    /// The call fails with this message, and everything is as it was.
    #[track_caller]
    fn refused<T, E: Error>(
        &mut self,
        message: &str,
        call: impl FnOnce(&mut Sequences, &Handles) -> Result<T, E>,
    ) -> E {
        let handles = Handles { a: self.a, b: self.b, host: self.host, freed: self.freed };
        let before = self.observe();
        let error = call(&mut self.sequences, &handles).err().unwrap();
        assert_eq!(error.to_string(), message);
        assert_eq!(self.observe(), before);
        self.sequences.check_invariants().unwrap();
        error
    }
}

struct Handles {
    a: SequenceId,
    b: SequenceId,
    host: SequenceId,
    freed: SequenceId,
}

// --- Sequences ------------------------------------------------------------------------------------------------------

#[test]
fn a_stale_handle() {
    let mut world = world();
    let message = "sequence 3.0 is stale: its sequence was freed, or there never was one";
    assert_eq!(world.freed.to_string(), "sequence 3.0");
    world.refused(message, |sequences, at| sequences.append(at.freed, &[1], 1));
    world.refused(message, |sequences, at| sequences.commit_deduped(at.freed, 0));
    world.refused(message, |sequences, at| sequences.truncate(at.freed, 0));
    world.refused(message, |sequences, at| sequences.trim_window(at.freed, 0));
    world.refused(message, |sequences, at| sequences.fork(at.freed));
    world.refused(message, |sequences, at| sequences.free(at.freed, None));
    world.refused(message, |sequences, at| sequences.free(at.freed, Some(3)));
    world.refused(message, |sequences, at| sequences.info(at.freed));
    world.refused(message, |sequences, at| sequences.block_table(at.freed).map(<[_]>::to_vec));
    world.refused(message, |sequences, at| sequences.cursor(at.freed).cloned());
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.a, at.freed], 1, 0));
    let error = world.refused(message, |sequences, at| sequences.begin_swap(&[at.a, at.freed], 1));
    assert_eq!(error, SequenceError::Stale { handle: world.freed });
    let never = "sequence 4294967295.4294967295 is stale: its sequence was freed, or there never was one";
    world.refused(never, |sequences, _| sequences.free(SequenceId::from_bits(u64::MAX), None));
}

#[test]
fn a_sequence_named_twice_by_one_swap() {
    let mut world = world();
    let message = "sequence 0.0 is named twice in one call";
    let error = world.refused(message, |sequences, at| sequences.begin_swap(&[at.a, at.b, at.a], 1));
    assert_eq!(error, SequenceError::NamedTwice { handle: world.a });
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.a, at.a], 1, 0));
}

#[test]
fn a_sequence_that_is_being_swapped() {
    let mut world = world();
    let swap = world.sequences.begin_swap(&[world.host], 0).unwrap();
    let message = "sequence 2.0 is being swapped: complete or abort the swap first";
    world.refused(message, |sequences, at| sequences.append(at.host, &[], 0));
    world.refused(message, |sequences, at| sequences.commit_deduped(at.host, 2));
    world.refused(message, |sequences, at| sequences.truncate(at.host, 1));
    world.refused(message, |sequences, at| sequences.trim_window(at.host, 0));
    world.refused(message, |sequences, at| sequences.fork(at.host));
    world.refused(message, |sequences, at| sequences.free(at.host, Some(1)));
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.host], 0, 0));
    let error = world.refused(message, |sequences, at| sequences.begin_swap(&[at.host], 0));
    assert_eq!(error, SequenceError::Moving { handle: world.host });
    world.sequences.abort_swap(swap).unwrap();
    world.sequences.free(world.host, None).unwrap();
}

#[test]
fn a_group_that_is_not_in_one_tier() {
    let mut world = world();
    let message = "a swap needs at least one sequence, and all of them in one tier";
    let error = world.refused(message, |sequences, at| sequences.begin_swap(&[at.a, at.host], 1));
    assert_eq!(error, SequenceError::NotOneTier);
    world.refused(message, |sequences, _| sequences.begin_swap(&[], 1));
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.host, at.b], 0, 0));
}

#[test]
fn prompts_that_cannot_be_admitted() {
    let mut world = world();
    let error = world.refused("a sequence has at least one token", |sequences, _| {
        sequences.admit(prompt(sequences, 0), 0)
    });
    assert_eq!(error, SequenceError::Empty);

    let message =
        "this prompt was hashed with other settings than these sequences': make it with their own hasher";
    let mut foreign = HashCursor::new(hasher(B + 1), ExtraKeys::default()).unwrap();
    foreign.append(&[1]);
    let error = world.refused(message, |sequences, _| sequences.admit(foreign, 0));
    assert_eq!(error, SequenceError::ForeignCursor);
    // Another hasher with the same settings is as good.
    let mut equal = HashCursor::new(hasher(B), ExtraKeys::default()).unwrap();
    equal.append(&[1]);
    let equal = world.sequences.admit(equal, 0).unwrap();
    world.sequences.free(equal, None).unwrap();

    let message = "the hash chain belongs to epoch 3, the pool is in epoch 0: hash the tokens again";
    let error = world.refused(message, |sequences, _| {
        let extra = ExtraKeys { epoch: 3, ..Default::default() };
        let mut early = HashCursor::new(Arc::clone(sequences.hasher()), extra)?;
        early.append(&[1]);
        sequences.admit(early, 0)
    });
    assert_eq!(error, SequenceError::Tier(TierError::Pool(PoolError::StaleEpoch { chain: 3, pool: 0 })));
}

#[test]
fn a_count_of_computed_tokens_out_of_range() {
    let mut world = world();
    for computed in [3, 7, usize::MAX] {
        let message =
            format!("sequence 0.0 has 6 tokens, 4 of them computed: cannot set computed to {computed}");
        let error = world.refused(&message, |sequences, at| sequences.commit_deduped(at.a, computed));
        let expected =
            SequenceError::BadComputedCount { handle: world.a, asked: computed, tokens: 6, computed: 4 };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_length_out_of_range() {
    let mut world = world();
    for asked in [7, usize::MAX] {
        let message = format!("cannot keep {asked} tokens of sequence 0.0: from 0 to 6 can be kept");
        world.refused(&message, |sequences, at| sequences.truncate(at.a, asked));
    }
    assert_eq!(world.sequences.trim_window(world.a, 0), Ok(1));
    let message = "cannot keep 3 tokens of sequence 0.0: from 4 to 6 can be kept";
    let error = world.refused(message, |sequences, at| sequences.truncate(at.a, 3));
    assert_eq!(error, SequenceError::BadLength { handle: world.a, asked: 3, least: 4, tokens: 6 });
}

#[test]
fn too_few_blocks() {
    let mut world = world();
    // Of tier 0's 5 blocks, 3 are free; of tier 1's 2, one.
    world.refused("out of blocks: 4 needed, 3 available, 1 missing", |sequences, _| {
        sequences.admit(prompt(sequences, 17), 0)
    });
    let never = "out of blocks: 5 needed, 3 available, 2 missing; it can never fit this pool";
    let error = world.refused(never, |sequences, _| sequences.admit(prompt(sequences, 21), 0));
    assert!(matches!(error, SequenceError::OutOfBlocks(refusal) if !refusal.can_ever_fit));
    // The shared tail is copied: one more than are missing.
    let filler = world.sequences.admit(prompt(&world.sequences, 12), 0).unwrap();
    world.refused("out of blocks: 2 needed, 1 available, 1 missing", |sequences, at| {
        sequences.append(at.b, &[7; 2], 1)
    });
    world.sequences.free(filler, None).unwrap();
    world.refused("out of blocks: 2 needed, 1 available, 1 missing", |sequences, at| {
        sequences.begin_swap(&[at.a, at.b], 1)
    });
    for lookahead in [usize::MAX / 2, usize::MAX] {
        // Two blocks are there, and the tail is shared.
        let needed = lookahead.saturating_add(6).div_ceil(B) - 2 + 1;
        let missing = needed - 3;
        let message = format!(
            "out of blocks: {needed} needed, 3 available, {missing} missing; it can never fit this pool"
        );
        world.refused(&message, |sequences, at| sequences.append(at.a, &[], lookahead));
    }

    let long = world.sequences.admit(prompt(&world.sequences, 8), 1);
    assert!(long.is_err());
    world.sequences.free(world.host, Some(5)).unwrap();
    let fenced =
        "out of blocks: 2 needed, 1 available, 1 missing; 1 more are fenced until their step completes";
    world.refused(fenced, |sequences, at| sequences.begin_swap(&[at.a], 1));
}

#[test]
fn sequences_over_pools_with_other_settings() {
    let tiers = Tiers::new(vec![tier(3)]).unwrap();
    let error = Sequences::new(tiers, hasher(B + 1)).unwrap_err();
    assert_eq!(error.to_string(), "the hash chain was made for blocks of 5 tokens, the pool has blocks of 4");
    // Hits are verified in these tiers, and this hasher makes nothing to verify them by.
    let config = PoolConfig { verify: Verify::Fingerprint, ..tier(3) };
    let error = Sequences::new(Tiers::new(vec![config]).unwrap(), hasher(B)).unwrap_err();
    let expected = "the pool verifies hits by fingerprints, the hash chain does not carry them: use a hasher with the same setting";
    assert_eq!(error.to_string(), expected);
}

/// Errors of the layers below keep their kind.
#[test]
fn errors_of_other_layers() {
    let hash = HashError::TruncateBeyondEnd { requested: 9, len: 6 };
    assert_eq!(SequenceError::from(hash.clone()).to_string(), "cannot truncate to 9 tokens: there are 6");
    assert_eq!(SequenceError::from(hash.clone()), SequenceError::Hash(hash));
    let plan = PlanError::NullBlock { role: "the source" };
    assert_eq!(SequenceError::from(plan.clone()), SequenceError::Tier(TierError::Plan(plan.clone())));
    assert_eq!(TierError::from(plan).to_string(), "the null block is the source of a transfer");
    let shortage = BlockPool::new(tier(2)).unwrap().allocate(2).unwrap_err();
    assert!(matches!(SequenceError::from(shortage), SequenceError::OutOfBlocks(_)));
}

// --- Tiers ----------------------------------------------------------------------------------------------------------

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
fn a_tier_that_does_not_exist() {
    let mut world = world();
    let message = "tier 2 does not exist: there are 2";
    let error = world.refused(message, |sequences, _| sequences.admit(prompt(sequences, 3), 2));
    assert_eq!(error, SequenceError::Tier(TierError::UnknownTier { tier: 2, tiers: 2 }));
    world.refused(message, |sequences, _| sequences.fit(1, 2, 0));
    world.refused(message, |sequences, at| sequences.begin_swap(&[at.a], 2));
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.a], 2, 0));
    world.refused(message, |sequences, _| sequences.take_events(2));
    world.refused(message, |sequences, _| sequences.tiers().pool(2).map(BlockPool::num_blocks));
}

#[test]
fn a_swap_to_the_same_tier() {
    let mut world = world();
    let message = "a swap from tier 0 to itself";
    let error = world.refused(message, |sequences, at| sequences.begin_swap(&[at.a, at.b], 0));
    assert_eq!(error, SequenceError::Tier(TierError::SameTier { tier: 0 }));
    world.refused(message, |sequences, at| sequences.fit_swap(&[at.b], 0, 0));
}

#[test]
fn a_swap_that_is_not_under_way() {
    let mut world = world();
    let message = "swap 9 is not under way: it was completed or aborted, or never begun";
    let never = SwapId::from_number(9);
    let error = world.refused(message, |sequences, _| sequences.complete_swap(never));
    assert_eq!(error, SequenceError::Tier(TierError::UnknownSwap { swap: 9 }));
    world.refused(message, |sequences, _| sequences.abort_swap(never));
    world.refused(message, |sequences, _| sequences.tiers().swap_mapping(never));
    let over = world.sequences.begin_swap(&[world.host], 0).unwrap();
    world.sequences.abort_swap(over).unwrap();
    let message = "swap 0 is not under way: it was completed or aborted, or never begun";
    world.refused(message, |sequences, _| sequences.complete_swap(over));
    world.refused(message, |sequences, _| sequences.abort_swap(over));
}

#[test]
fn a_swap_whose_copies_are_still_planned() {
    let mut world = world();
    let swap = world.sequences.begin_swap(&[world.host], 0).unwrap();
    let message =
        "swap 0 cannot be completed: its copies are still planned, take the plan and execute it first";
    let error = world.refused(message, |sequences, _| sequences.complete_swap(swap));
    assert_eq!(error, SequenceError::Tier(TierError::CopiesNotTaken { swap: 0 }));
    world.sequences.take_plan().unwrap();
    world.sequences.complete_swap(swap).unwrap();
}

/// The tiers alone, with references that the caller counts.
#[test]
fn blocks_that_are_not_held() {
    let mut tiers = Tiers::new(vec![tier(4), tier(4)]).unwrap();
    let held = tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    tiers.pool_mut(0).unwrap().acquire(&held[..1]).unwrap();
    let refused = |tiers: &mut Tiers, message: &str, call: &dyn Fn(&mut Tiers) -> Option<TierError>| {
        let before = observe_tiers(tiers);
        assert_eq!(call(tiers).unwrap().to_string(), message);
        assert_eq!(observe_tiers(tiers), before);
        tiers.check_invariants().unwrap();
    };
    let free = BlockId::new(3);
    let message = "block 3 has 0 references: cannot write to it (reference 0 of this call)";
    refused(&mut tiers, message, &|tiers| tiers.is_writable(0, free).err());
    refused(&mut tiers, message, &|tiers| tiers.copy_on_write(0, free).err());
    let outside = BlockId::new(77);
    refused(
        &mut tiers,
        "block 77 has 0 references: cannot write to it (reference 0 of this call)",
        &|tiers| tiers.copy_on_write(0, outside).err(),
    );
    refused(&mut tiers, "tier 5 does not exist: there are 2", &|tiers| tiers.copy_on_write(5, held[0]).err());
    refused(&mut tiers, "tier 5 does not exist: there are 2", &|tiers| tiers.pool_mut(5).err());
    refused(&mut tiers, "block 3 has 0 references: cannot swap it (reference 1 of this call)", &|tiers| {
        tiers.begin_swap(&[held[0], free], 0, 1).err()
    });
    // One entry per reference: the second block has one, the first two.
    refused(&mut tiers, "block 2 has 1 references: cannot swap it (reference 3 of this call)", &|tiers| {
        tiers.begin_swap(&[held[0], held[0], held[1], held[1]], 0, 1).err()
    });
    refused(&mut tiers, "block id 77 is outside this pool: ids run from 1 to 3", &|tiers| {
        tiers.fit_swap(&[outside], 0, 1, 0).err()
    });
    // References that one swap moves are not there for another, and not for their holder to release.
    let swap = tiers.begin_swap(&[held[0]], 0, 1).unwrap();
    refused(&mut tiers, "block 1 has 1 references: cannot swap it (reference 1 of this call)", &|tiers| {
        tiers.begin_swap(&[held[0], held[0]], 0, 1).err()
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
    // No block is left for a copy of the shared one.
    tiers.pool_mut(0).unwrap().allocate(2).unwrap();
    refused(&mut tiers, "out of blocks: 1 needed, 0 available, 1 missing", &|tiers| {
        tiers.copy_on_write(0, held[0]).err()
    });
}

// --- Plans ----------------------------------------------------------------------------------------------------------

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
    // Even by a transfer that would be left out.
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
