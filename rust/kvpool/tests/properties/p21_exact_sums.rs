//! Property 21: free + cached-free + active + fenced is the number of usable blocks, per tier and after every call, recounted
//! from scratch and equal to the running counters; moves between tiers keep the sums.
//!
//! Bugs: sglang#35270, mllm#656, trtllm#12834: counters drifted from what was there, and schedulers waited for ever.
//! Fails it: a counter that some path changes without the list, or the list without the counter.

use super::histories::*;
use super::*;

/// sglang#35270, mllm#656, trtllm#12834: running counters drifted from what was really there. After every history, the
/// counters equal a recount that uses nothing but the lists and the references, and they add up.
#[test]
fn property_21_counters_equal_a_recount_and_add_up() {
    every_history(5, |world, act, history| {
        world.act(act);
        let (free, cached_free, active, fenced) = sums(&world.pool);
        assert_eq!(recount(&world.pool), (free, cached_free, active, fenced), "{history:?}");
        assert_eq!(free + cached_free + active + fenced, 4, "{history:?}");
        assert_eq!(world.pool.num_available(), free + cached_free, "{history:?}");
        let registered = all_blocks(&world.pool).filter(|&b| world.pool.hash_of(b).is_some()).count();
        assert_eq!(world.pool.stats().registered, registered, "{history:?}");
    });
}

#[derive(Clone, Debug)]
enum Move {
    Admit(usize, Vec<u32>),
    Append(usize, u32),
    Commit(usize),
    Fork(usize),
    Truncate(usize, usize),
    Trim(usize, usize),
    Free(usize, bool),
    CompleteStep,
    BeginSwap(usize, usize),
    TakePlan,
    EndSwap(usize, bool),
    BumpEpoch,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let nth = || 0usize..6;
    let act = prop_oneof![
        6 => (0usize..3, prop::collection::vec(0u32..2, 1..9)).prop_map(|(t, tokens)| Move::Admit(t, tokens)),
        4 => (nth(), 0u32..2).prop_map(|(nth, token)| Move::Append(nth, token)),
        4 => nth().prop_map(Move::Commit),
        3 => nth().prop_map(Move::Fork),
        1 => (nth(), 0usize..9).prop_map(|(nth, keep)| Move::Truncate(nth, keep)),
        1 => (nth(), 0usize..4).prop_map(|(nth, window)| Move::Trim(nth, window)),
        3 => (nth(), any::<bool>()).prop_map(|(nth, fence)| Move::Free(nth, fence)),
        2 => Just(Move::CompleteStep),
        6 => (nth(), 0usize..3).prop_map(|(nth, to)| Move::BeginSwap(nth, to)),
        4 => Just(Move::TakePlan),
        4 => (nth(), any::<bool>()).prop_map(|(nth, complete)| Move::EndSwap(nth, complete)),
        1 => Just(Move::BumpEpoch),
    ];
    prop::collection::vec(act, 1..100)
}

/// What the holders of tier `tier` add up to: tables, swaps' destinations, fences and pins.
fn check_tier(sequences: &Sequences, tier: usize, usable: usize) {
    let pool = sequences.tiers().pool(tier).unwrap();
    let (free, cached_free, active, fenced) = sums(pool);
    assert_eq!(recount(pool), (free, cached_free, active, fenced), "tier {tier}");
    assert_eq!(free + cached_free + active + fenced, usable, "tier {tier}");
    assert_eq!(pool.num_available(), free + cached_free, "tier {tier}");
    let registered = all_blocks(pool).filter(|&block| pool.hash_of(block).is_some()).count();
    assert_eq!(pool.stats().registered, registered, "tier {tier}");
}

/// Blocks that somebody holds, per tier: a swap takes as many from one as it gives to the other, once it is over.
fn holders(sequences: &Sequences) -> u32 {
    let pools = (0..sequences.tiers().len()).map(|tier| sequences.tiers().pool(tier).unwrap());
    pools.flat_map(|pool| all_blocks(pool).map(|block| pool.num_holders(block)).collect::<Vec<_>>()).sum()
}

proptest! {
    /// trtllm#12834 across three tiers: forks, copies, swaps that are completed and taken back, fences and epochs. After every
    /// call every tier adds up, and a swap neither makes nor loses a reference.
    #[test]
    fn property_21_every_tier_adds_up_and_moves_keep_the_sum(
        usable in (3usize..9, 1usize..9, 1usize..5),
        moves in moves(),
    ) {
        let usable = [usable.0, usable.1, usable.2];
        let tier = |&usable: &usize| PoolConfig { num_blocks: usable + 1, block_size: B, ..Default::default() };
        let tiers = Tiers::new(usable.iter().map(tier).collect()).unwrap();
        let mut sequences = Sequences::new(tiers, hasher()).unwrap();
        let (mut live, mut swaps, mut step) = (Vec::<SequenceId>::new(), Vec::new(), 0);
        for act in moves {
            let before = holders(&sequences);
            let pick = |nth: usize| live.get(nth % live.len().max(1)).copied();
            match act {
                Move::Admit(tier, tokens) => {
                    let extra = ExtraKeys { epoch: sequences.epoch(), ..Default::default() };
                    let mut prompt = HashCursor::new(hasher(), extra).unwrap();
                    prompt.append(&tokens);
                    live.extend(sequences.admit(prompt, tier).ok());
                }
                Move::Append(nth, token) => {
                    let _ = pick(nth).map(|id| sequences.append(id, &[token], 0));
                }
                Move::Commit(nth) => {
                    let _ = pick(nth).map(|id| sequences.commit_deduped(id, sequences.info(id).unwrap().tokens));
                }
                Move::Fork(nth) => live.extend(pick(nth).and_then(|id| sequences.fork(id).ok())),
                Move::Truncate(nth, keep) => drop(pick(nth).map(|id| sequences.truncate(id, keep))),
                Move::Trim(nth, window) => drop(pick(nth).map(|id| sequences.trim_window(id, window))),
                Move::Free(nth, fence) => {
                    if let Some(id) = pick(nth) && sequences.free(id, fence.then_some(step)).is_ok() {
                        live.retain(|&other| other != id);
                    }
                }
                Move::CompleteStep => {
                    sequences.complete_step(step).unwrap();
                    step += 1;
                }
                Move::BeginSwap(nth, to) => {
                    // The sequence with all that share its blocks, as a group that is swapped.
                    if let Some(id) = pick(nth) {
                        let table = sequences.block_table(id).unwrap().to_vec();
                        let shares = |other: &SequenceId| {
                            let other = sequences.block_table(*other).unwrap();
                            other.iter().any(|block| !block.is_null() && table.contains(block))
                        };
                        let group: Vec<_> = live.iter().copied().filter(shares).collect();
                        let moved: u32 = group
                            .iter()
                            .flat_map(|&id| sequences.block_table(id).unwrap())
                            .map(|block| u32::from(!block.is_null()))
                            .sum();
                        if let Ok(swap) = sequences.begin_swap(&group, to) {
                            assert_eq!(holders(&sequences), before + moved, "one more for each that moves");
                            swaps.push((swap, moved));
                        }
                    }
                }
                Move::TakePlan => {
                    sequences.take_plan().unwrap();
                    assert_eq!(holders(&sequences), before);
                }
                Move::EndSwap(nth, complete) if !swaps.is_empty() => {
                    let at = nth % swaps.len();
                    let (swap, moved) = swaps[at];
                    let ended = if complete {
                        sequences.complete_swap(swap).is_ok()
                    } else {
                        sequences.abort_swap(swap).is_ok()
                    };
                    if ended {
                        swaps.remove(at);
                        assert_eq!(holders(&sequences), before - moved, "as many as before it was begun");
                    }
                }
                Move::EndSwap(..) => {}
                Move::BumpEpoch => drop(sequences.bump_epoch().unwrap()),
            }
            for (tier, &usable) in usable.iter().enumerate() {
                check_tier(&sequences, tier, usable);
            }
            sequences.check_invariants().unwrap();
        }
        // Everything ends, and everything is there.
        for (swap, _) in swaps {
            sequences.abort_swap(swap).unwrap();
        }
        sequences.take_plan().unwrap();
        for id in live {
            sequences.free(id, None).unwrap();
        }
        sequences.complete_step(step).unwrap();
        for (tier, &usable) in usable.iter().enumerate() {
            check_tier(&sequences, tier, usable);
            assert_eq!(sequences.tiers().pool(tier).unwrap().num_available(), usable);
        }
    }
}
