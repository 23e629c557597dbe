//! Property 21: in each tier and after every call, free + cached-free + active + fenced is the number
//! of usable blocks. The counters of the pool equal a recount from scratch. Moves between tiers do not
//! change the sums.
//!
//! In sglang#35270, mllm#656 and trtllm#12834, counters differed more and more from the real state, and
//! schedulers waited forever.
//!
//! An implementation fails this test if it changes a counter without the list, or a list without its
//! counter.

use super::histories::*;
use super::*;

/// In sglang#35270, mllm#656 and trtllm#12834, counters differed from the real state. After every
/// history, the counters must equal a recount from only the lists and the references, and their sum
/// must be the number of usable blocks.
#[test]
fn property_21_counters_equal_a_recount_and_add_up() {
    every_history(4, |world, act, history| {
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
    Admit(i64, Vec<u32>),
    Append(i64, u32),
    Commit(i64),
    Fork(i64, i64),
    Truncate(i64, usize),
    Trim(i64, usize),
    Release(i64, bool),
    CompleteStep,
    BeginSwap(i64),
    TakePlan,
    EndSwap(usize, bool),
    BumpEpoch,
}

const IDS: std::ops::Range<i64> = 0..6;

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let act = prop_oneof![
        6 => (IDS, prop::collection::vec(0u32..2, 1..9)).prop_map(|(id, tokens)| Move::Admit(id, tokens)),
        4 => (IDS, 0u32..2).prop_map(|(id, token)| Move::Append(id, token)),
        4 => IDS.prop_map(Move::Commit),
        3 => (IDS, IDS).prop_map(|(parent, child)| Move::Fork(parent, child)),
        1 => (IDS, 0usize..9).prop_map(|(id, keep)| Move::Truncate(id, keep)),
        1 => (IDS, 0usize..4).prop_map(|(id, window)| Move::Trim(id, window)),
        3 => (IDS, any::<bool>()).prop_map(|(id, fence)| Move::Release(id, fence)),
        2 => Just(Move::CompleteStep),
        6 => IDS.prop_map(Move::BeginSwap),
        4 => Just(Move::TakePlan),
        4 => (0usize..6, any::<bool>()).prop_map(|(nth, complete)| Move::EndSwap(nth, complete)),
        1 => Just(Move::BumpEpoch),
    ];
    prop::collection::vec(act, 1..100)
}

/// Checks that the references in a tier are those of tables, destinations of swaps, fences and pins.
fn check_tier(manager: &CacheManager, tier: usize, usable: usize) {
    let pool = manager.tiers().pool(tier).unwrap();
    let (free, cached_free, active, fenced) = sums(pool);
    assert_eq!(recount(pool), (free, cached_free, active, fenced), "tier {tier}");
    assert_eq!(free + cached_free + active + fenced, usable, "tier {tier}");
    assert_eq!(pool.num_available(), free + cached_free, "tier {tier}");
    let registered = all_blocks(pool).filter(|&block| pool.hash_of(block).is_some()).count();
    assert_eq!(pool.stats().registered, registered, "tier {tier}");
}

/// Returns the number of references of holders in both tiers together. A swap does not change this
/// number, because one tier loses as many as the other gains.
fn holders(manager: &CacheManager) -> u32 {
    let pools = (0..2).map(|tier| manager.tiers().pool(tier).unwrap());
    pools.flat_map(|pool| all_blocks(pool).map(|block| pool.num_holders(block)).collect::<Vec<_>>()).sum()
}

/// Returns a request and all requests that share its blocks, which have to be swapped together.
fn family(manager: &CacheManager, id: i64) -> Vec<i64> {
    let held = |id| manager.block_table(id).unwrap_or_default().iter().filter(|block| !block.is_null());
    let tier = |id| manager.request(id).ok().map(|info| info.tier);
    let own: Vec<_> = held(id).collect();
    IDS.filter(|&other| tier(other) == tier(id) && held(other).any(|block| own.contains(&block))).collect()
}

proptest! {
    /// Tests trtllm#12834 with two tiers: forks, copies, completed and aborted swaps, fences and
    /// epochs. After every call, the sums of each tier are correct, and a swap neither adds nor loses a
    /// reference.
    #[test]
    fn property_21_every_tier_adds_up_and_moves_keep_the_sum(
        usable in (3usize..9, 1usize..9),
        moves in moves(),
    ) {
        let usable = [usable.0, usable.1];
        let (num_blocks, host_blocks) = (usable[0] + 1, usable[1] + 1);
        let config = ManagerConfig { num_blocks, host_blocks, block_size: B, ..Default::default() };
        let mut manager = CacheManager::new(config).unwrap();
        let (mut swaps, mut step) = (Vec::new(), 0);
        for act in moves {
            let before = holders(&manager);
            match act {
                Move::Admit(id, tokens) => {
                    let prompt = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
                    let _ = manager.admit(id, prompt);
                }
                Move::Append(id, token) => drop(manager.append_tokens(id, &[token], 0)),
                Move::Commit(id) => {
                    let _ = manager.request(id).map(|info| manager.commit(id, info.tokens));
                }
                Move::Fork(parent, child) => drop(manager.fork(parent, child)),
                Move::Truncate(id, keep) => drop(manager.truncate(id, keep, None)),
                Move::Trim(id, window) => drop(manager.trim_window(id, window)),
                Move::Release(id, fence) => drop(manager.release(id, fence.then_some(step))),
                Move::CompleteStep => {
                    manager.complete_step(step).unwrap();
                    step += 1;
                }
                Move::BeginSwap(id) => {
                    let ids = family(&manager, id);
                    let tables = ids.iter().flat_map(|&id| manager.block_table(id).unwrap());
                    let moved: u32 = tables.map(|block| u32::from(!block.is_null())).sum();
                    let group: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                    let begun = manager.begin_swap_out(&group).or_else(|_| manager.begin_swap_in(&group));
                    if let Ok(swap) = begun {
                        assert_eq!(holders(&manager), before + moved, "one more for each that moves");
                        swaps.push((swap, moved));
                    }
                }
                Move::TakePlan => {
                    manager.take_plan().unwrap();
                    assert_eq!(holders(&manager), before);
                }
                Move::EndSwap(nth, complete) if !swaps.is_empty() => {
                    let at = nth % swaps.len();
                    let (swap, moved) = swaps[at];
                    let (known, ended) = if complete {
                        (manager.num_requests(), manager.complete_swap(swap).is_ok())
                    } else {
                        (manager.num_requests(), manager.abort_swap(swap).is_ok())
                    };
                    if ended {
                        swaps.remove(at);
                        let left = manager.num_requests() == known;
                        assert!(!left || holders(&manager) == before - moved, "as many as before it was \
                             begun");
                    }
                }
                Move::EndSwap(..) => {}
                Move::BumpEpoch => drop(manager.bump_epoch().unwrap()),
            }
            for (tier, &usable) in usable.iter().enumerate() {
                check_tier(&manager, tier, usable);
            }
            manager.check_invariants().unwrap();
        }
        // All swaps, requests and steps end. Then every block is available.
        for (swap, _) in swaps {
            manager.abort_swap(swap).unwrap();
        }
        manager.take_plan().unwrap();
        IDS.for_each(|id| drop(manager.release(id, None)));
        manager.complete_step(step).unwrap();
        for (tier, &usable) in usable.iter().enumerate() {
            check_tier(&manager, tier, usable);
            assert_eq!(manager.tiers().pool(tier).unwrap().num_available(), usable);
        }
    }
}
