//! Compares `TransferPlan` with a simultaneous assignment. The transfers are random, between few blocks
//! of two tiers, so that chains, cycles and blocks with several readers are frequent.
//!
//! `KVPOOL_MODEL_OPERATIONS` sets the number of plans (a tenth of its value; default 20,000).
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, BTreeSet};

use kvpool::{BlockId, Place, PlanError, Run, Transfer, TransferPlan, runs};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCKS: u32 = 6;

fn at(tier: usize, block: u32) -> Place {
    Place { tier, block: BlockId::new(block) }
}

fn copy(src: Place, dst: Place) -> Transfer {
    Transfer { src, dst }
}

/// Returns scratch blocks for breaking cycles. No random plan uses them for anything else.
fn scratch_blocks(n: usize) -> Vec<Place> {
    (0..n).map(|i| at(i % 2, 100 + i as u32)).collect()
}

fn place() -> impl Strategy<Value = Place> {
    (0usize..2, 1..=BLOCKS).prop_map(|(tier, block)| at(tier, block))
}

/// Draws random transfers in which each destination occurs once.
fn transfers() -> impl Strategy<Value = Vec<Transfer>> {
    let choices = prop::collection::vec((place(), place()), 0..16);
    // Random transfers seldom form cycles, so half of the plans are made from permutations, which
    // consist only of cycles.
    let all: Vec<Place> = (0..2).flat_map(|tier| (1..=BLOCKS).map(move |block| at(tier, block))).collect();
    let permutation = Just(all.clone()).prop_shuffle().prop_map(move |shuffled| {
        all.iter().zip(shuffled).map(|(&src, dst)| copy(src, dst)).collect::<Vec<_>>()
    });
    let free = choices.prop_map(|pairs| {
        let mut written = BTreeSet::new();
        let pairs = pairs.into_iter().filter(|(_, dst)| written.insert(*dst));
        pairs.map(|(src, dst)| copy(src, dst)).collect::<Vec<_>>()
    });
    // Draws a random permutation in which some transfers read another source.
    let torn = (permutation.clone(), prop::collection::vec((any::<prop::sample::Index>(), place()), 0..5))
        .prop_map(|(mut transfers, changes)| {
            for (index, src) in changes {
                index.get_mut(&mut transfers).src = src;
            }
            transfers
        });
    prop_oneof![4 => free, 1 => permutation, 3 => torn]
}

type Bytes = BTreeMap<Place, u64>;

fn memory() -> Bytes {
    let blocks = (0..2).flat_map(|tier| (1..=BLOCKS).map(move |block| at(tier, block)));
    blocks.chain(scratch_blocks(12)).enumerate().map(|(i, place)| (place, 1000 + i as u64)).collect()
}

fn simultaneously(before: &Bytes, transfers: &[Transfer]) -> Bytes {
    let mut after = before.clone();
    for t in transfers {
        after.insert(t.dst, before[&t.src]);
    }
    after
}

/// Returns the number of cycles of the transfers. Follows each destination to its source until a block
/// appears again.
fn cycles_in(transfers: &[Transfer]) -> usize {
    let source: BTreeMap<Place, Place> =
        transfers.iter().filter(|t| t.src != t.dst).map(|t| (t.dst, t.src)).collect();
    let mut cycles = BTreeSet::new();
    for &start in source.keys() {
        let mut at = start;
        let mut walked = Vec::new();
        while let Some(&next) = source.get(&at) {
            walked.push(at);
            at = next;
            if at == start {
                cycles.insert(walked.iter().min().copied());
                break;
            }
            if walked.len() > source.len() {
                break; // leads into a cycle without `start`
            }
        }
    }
    cycles.len()
}

fn check_runs(round: &[Transfer]) {
    let merged = runs(round);
    let next = |place: Place, by: usize| at(place.tier, place.block.get() + by as u32);
    let expanded: Vec<_> = merged
        .iter()
        .flat_map(|run| (0..run.len).map(|i| copy(next(run.src, i), next(run.dst, i))))
        .collect();
    assert_eq!(expanded, round, "runs cover exactly the round, in its order");
    let continues =
        |a: &Run, b: &Run| next(a.src, a.len) == b.src && next(a.dst, a.len) == b.dst && a.len > 0;
    for pair in merged.windows(2) {
        assert!(!continues(&pair[0], &pair[1]), "{pair:?} are one run");
    }
    let sources: BTreeSet<_> = round.iter().map(|t| t.src).collect();
    if sources.len() == round.len() {
        // If no block has several readers, every run is as long as possible, for any order of the
        // transfers.
        for a in &merged {
            assert!(merged.iter().all(|b| !continues(a, b)), "{a:?} goes on in {merged:?}");
        }
    }
}

fn check_plan(transfers: &[Transfer], order: &[usize], spare: usize) {
    let plan = TransferPlan::new(transfers.to_vec()).unwrap();
    let kept: Vec<_> = transfers.iter().copied().filter(|t| t.src != t.dst).collect();
    assert_eq!(plan.transfers(), kept, "transfers stay in order, those onto themselves are left out");
    assert_eq!((plan.len(), plan.is_empty()), (kept.len(), kept.is_empty()));

    let cycles = cycles_in(transfers);
    for scratch in 0..cycles {
        let refused = plan.rounds(&scratch_blocks(scratch)).unwrap_err();
        assert_eq!(refused, PlanError::NeedsScratch { cycles, scratch });
    }
    let rounds = plan.rounds(&scratch_blocks(cycles + spare)).unwrap();
    assert_eq!(rounds.iter().map(Vec::len).sum::<usize>(), kept.len() + cycles, "one more per cycle");
    assert_eq!(rounds, plan.rounds(&scratch_blocks(cycles + spare)).unwrap(), "deterministic");

    let before = memory();
    let mut one_by_one = before.clone();
    let mut by_runs = before.clone();
    for round in &rounds {
        assert!(!round.is_empty());
        let read: BTreeSet<_> = round.iter().map(|t| t.src).collect();
        let written: BTreeSet<_> = round.iter().map(|t| t.dst).collect();
        assert!(read.is_disjoint(&written), "{round:?} reads what it writes");
        assert_eq!(written.len(), round.len(), "{round:?} writes a block twice");
        assert!(round.is_sorted_by_key(|t| (t.src.tier, t.dst.tier, t.src, t.dst)));
        check_runs(round);

        let mut shuffled = round.clone();
        shuffled.sort_by_key(|t| order[t.dst.block.index() % order.len()]);
        for t in shuffled {
            one_by_one.insert(t.dst, one_by_one[&t.src]);
        }
        for run in runs(round).iter().rev() {
            for i in (0..run.len as u32).rev() {
                let read = by_runs[&at(run.src.tier, run.src.block.get() + i)];
                by_runs.insert(at(run.dst.tier, run.dst.block.get() + i), read);
            }
        }
    }
    let expected = simultaneously(&before, transfers);
    for (place, bytes) in expected {
        if place.block.get() < 100 {
            assert_eq!(one_by_one[&place], bytes, "{place:?} after {rounds:?}");
            assert_eq!(by_runs[&place], bytes, "{place:?} after the runs of {rounds:?}");
        }
    }
    // Only one scratch block per cycle is used.
    for &unused in &scratch_blocks(cycles + spare)[cycles..] {
        assert_eq!(one_by_one[&unused], before[&unused]);
    }
}

fn config() -> Config {
    let operations: u32 =
        std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(50_000);
    Config {
        cases: operations.div_ceil(10),
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    }
}

#[test]
fn rounds_equal_simultaneous_assignment() {
    let setting = (transfers(), prop::collection::vec(0usize..100, 7), 0usize..3);
    let result = TestRunner::new(config()).run(&setting, |(transfers, order, spare)| {
        check_plan(&transfers, &order, spare);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn duplicates_and_null_blocks_are_refused() {
    let any_place = (0usize..2, prop_oneof![1 => Just(0u32), 30 => 1u32..40]);
    let any_place = any_place.prop_map(|(tier, block)| at(tier, block));
    let setting = prop::collection::vec((any_place.clone(), any_place), 0..9);
    let result = TestRunner::new(config()).run(&setting, |pairs| {
        let transfers: Vec<_> = pairs.iter().map(|&(src, dst)| copy(src, dst)).collect();
        let mut written = BTreeSet::new();
        let first_error = transfers.iter().find_map(|t| {
            if t.src.block.is_null() {
                Some(PlanError::NullBlock { role: "the source" })
            } else if t.dst.block.is_null() {
                Some(PlanError::NullBlock { role: "the destination" })
            } else {
                (!written.insert(t.dst)).then_some(PlanError::DuplicateDestination { place: t.dst })
            }
        });
        assert_eq!(TransferPlan::new(transfers).err(), first_error);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn scratch_blocks_are_not_those_of_the_plan() {
    let plan = TransferPlan::new(vec![copy(at(0, 1), at(0, 2)), copy(at(0, 2), at(0, 1))]).unwrap();
    for used in [at(0, 1), at(0, 2)] {
        assert_eq!(plan.rounds(&[used]).unwrap_err(), PlanError::ScratchInUse { place: used });
    }
    let twice = at(0, 3);
    assert_eq!(plan.rounds(&[twice, twice]).unwrap_err(), PlanError::ScratchInUse { place: twice });
    assert_eq!(plan.rounds(&[at(1, 0)]).unwrap_err(), PlanError::NullBlock { role: "scratch" });
    // An id names a different block in each tier.
    assert_eq!(plan.rounds(&[at(1, 1)]).unwrap().len(), 3);
}

#[test]
fn a_long_chain_is_run_from_its_end_without_recursion() {
    const N: u32 = 100_000;
    let chain: Vec<_> = (1..N).map(|b| copy(at(0, b), at(0, b + 1))).collect();
    let rounds = TransferPlan::new(chain.clone()).unwrap().rounds(&[]).unwrap();
    assert_eq!(rounds.len(), chain.len());
    assert_eq!((rounds[0][0], rounds[chain.len() - 1][0]), (chain[chain.len() - 1], chain[0]));

    let ring: Vec<_> = (1..=N).map(|b| copy(at(0, b), at(0, b % N + 1))).collect();
    let plan = TransferPlan::new(ring).unwrap();
    assert_eq!(plan.rounds(&[]).unwrap_err(), PlanError::NeedsScratch { cycles: 1, scratch: 0 });
    assert_eq!(plan.rounds(&[at(1, 1)]).unwrap().len(), N as usize + 1);
}

/// In vLLM #35990, 193 copies formed three runs.
#[test]
fn runs_are_merged_by_tier_and_neighbourhood() {
    let spans = [(10, 500, 100), (200, 300, 60), (400, 800, 33)];
    let shuffled = spans.iter().flat_map(|&(src, dst, len)| {
        (0..len).rev().map(move |i| copy(at(0, src + i), at(1, dst + i))).collect::<Vec<_>>()
    });
    let plan = TransferPlan::new(shuffled.collect()).unwrap();
    let rounds = plan.rounds(&[]).unwrap();
    assert_eq!((plan.len(), rounds.len()), (193, 1));
    let merged: Vec<_> =
        runs(&rounds[0]).iter().map(|run| (run.src.block.get(), run.dst.block.get(), run.len)).collect();
    assert_eq!(merged, spans.map(|(src, dst, len)| (src, dst, len as usize)));

    // Transfers out of a tier and into it are not merged, although all four ids are neighbours.
    // Transfers of ids at the end of the range are not merged either.
    let both = [copy(at(0, 1), at(1, 1)), copy(at(1, 2), at(0, 2))];
    let rounds = TransferPlan::new(both.to_vec()).unwrap().rounds(&[]).unwrap();
    assert_eq!((rounds.len(), runs(&rounds[0]).len()), (1, 2));
    let last = [copy(at(0, u32::MAX - 1), at(1, 1)), copy(at(0, u32::MAX), at(1, 2))];
    assert_eq!(runs(&last)[0].len, 2);
    assert!(runs(&[]).is_empty());
}
