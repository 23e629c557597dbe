//! Property 10: after a request is aborted in any state, the counts are as if it had never existed, at
//! the latest when its last step or swap has ended. Completion messages of its steps and swaps may be
//! lost, sent twice or late.
//!
//! In vllm#46283, vllm#41269 and vllm#44100, an abort at certain times leaked blocks, or freed them
//! twice.
//!
//! An implementation fails this test if a release only considers running requests, or if it handles a
//! late message as a new one.

use super::*;

/// The states in which a request is aborted. Another request shares its prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Admitted,
    PartlyCommitted,
    Committed,
    Decoding,
    Preempted,
    PreemptedAfterStep,
    Resumed,
    ResumedWhileFenced,
    StaleEpoch,
}

const STAGES: [Stage; 9] = [
    Stage::Admitted,
    Stage::PartlyCommitted,
    Stage::Committed,
    Stage::Decoding,
    Stage::Preempted,
    Stage::PreemptedAfterStep,
    Stage::Resumed,
    Stage::ResumedWhileFenced,
    Stage::StaleEpoch,
];

const STEP: u64 = 10;

fn bring_to(engine: &mut Engine, request: i64, stage: Stage) {
    engine.admit(request, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
    match stage {
        Stage::Admitted => {}
        Stage::PartlyCommitted => engine.compute(request, 5),
        Stage::Committed => engine.compute_all(request),
        Stage::StaleEpoch => {
            engine.compute(request, 5);
            engine.manager.bump_epoch().unwrap();
            engine.compute_all(request);
        }
        _ => {
            engine.compute_all(request);
            for token in 0..4 {
                engine.append(request, token).unwrap();
                engine.compute_all(request);
            }
            engine.append(request, 4).unwrap(); // sampled, not computed
        }
    }
    let fence = matches!(stage, Stage::PreemptedAfterStep | Stage::ResumedWhileFenced).then_some(STEP);
    if matches!(
        stage,
        Stage::Preempted | Stage::PreemptedAfterStep | Stage::Resumed | Stage::ResumedWhileFenced
    ) {
        engine.manager.preempt(request, fence).unwrap();
    }
    if matches!(stage, Stage::Resumed | Stage::ResumedWhileFenced) {
        engine.resume(request).unwrap();
    }
    engine.check();
}

/// In vllm#46283, #41269 and #44100, an abort in some state leaked blocks or freed them twice, or did
/// so when a completion message was lost, sent twice or late.
#[test]
fn property_10_an_abort_in_any_state_gives_everything_back() {
    let messages: [&[u64]; 7] = [
        &[],
        &[STEP],
        &[STEP, STEP],
        &[STEP - 1, STEP],
        &[STEP + 5],
        &[STEP, STEP - 1],
        &[3, 3, STEP + 1, STEP],
    ];
    for stage in STAGES {
        for fence in [None, Some(STEP), Some(STEP - 1)] {
            for early in [&[][..], &[STEP]] {
                for late in messages {
                    abort(stage, fence, early, late);
                }
            }
        }
    }
}

fn abort(stage: Stage, fence: Option<u64>, early: &[u64], late: &[u64]) {
    let what = format!("{stage:?}, released after {fence:?}, completed {early:?}, then {late:?}");
    let mut engine = Engine::new(20);
    engine.admit(1, &[1, 2, 3, 4, 8]).unwrap();
    engine.compute_all(1);
    let held = |engine: &Engine| {
        let stats = engine.manager.stats();
        (stats.pool.free + stats.pool.cached_free, stats.pool.active, stats.running, stats.preempted)
    };
    let without = held(&engine);
    let bystander = engine.manager.block_table(1).unwrap().to_vec();

    bring_to(&mut engine, 2, stage);
    for &step in early {
        engine.manager.complete_step(step).unwrap();
    }
    let fenced_before = engine.manager.pool().num_fenced();
    engine.release(2, fence);
    // A second abort of the same request is refused and changes nothing.
    let after = observe_manager(&engine.manager);
    assert_eq!(engine.manager.release(2, fence), Err(ManagerError::UnknownRequest { id: 2.into() }));
    assert_eq!(observe_manager(&engine.manager), after);
    engine.check();

    let is_open = |step: u64| early.iter().all(|&completed| completed < step);
    if fence.is_some_and(is_open) && !matches!(stage, Stage::Preempted | Stage::PreemptedAfterStep) {
        assert!(engine.manager.pool().num_fenced() > fenced_before, "{what}: nothing waits for the step");
    }
    for &step in late {
        engine.manager.complete_step(step).unwrap();
        engine.check();
    }
    // All steps have ended now, so all blocks of the aborted request have to be available.
    engine.manager.complete_step(STEP).unwrap();
    assert_eq!(engine.manager.pool().num_fenced(), 0, "{what}");
    assert_eq!(held(&engine), without, "{what}");
    assert_eq!(engine.manager.block_table(1).unwrap(), bystander);
    assert!(bystander.iter().all(|&block| engine.manager.pool().ref_count(block) == Some(1)), "{what}");
    engine.check();
    engine.release(1, None);
    assert_eq!(engine.manager.pool().num_available(), 20, "{what}");
}

/// The points at which a request is aborted during a swap to the host and back.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Trip {
    OutBegun,
    OutTaken,
    Out,
    InBegun,
    InTaken,
    Back,
}

/// Aborts a request and its fork at each point of a swap: while they move to the host, in the host,
/// while they move back, and afterwards. During a swap their blocks remain held, because the engine may
/// still make the copies. The blocks are released when the swap is completed or aborted. The completion
/// messages arrive late and twice.
#[test]
fn property_10_an_abort_anywhere_in_a_swap_gives_everything_back() {
    for trip in [Trip::OutBegun, Trip::OutTaken, Trip::Out, Trip::InBegun, Trip::InTaken, Trip::Back] {
        for take_back in [false, true] {
            for fence in [None, Some(STEP)] {
                abort_on_the_way(trip, take_back, fence);
            }
        }
    }
}

fn abort_on_the_way(trip: Trip, take_back: bool, fence: Option<u64>) {
    let what = format!("{trip:?}, taken back: {take_back}, {fence:?}");
    let (num_blocks, host_blocks) = (21, 11);
    let config = ManagerConfig { num_blocks, host_blocks, block_size: B, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap();
    let admit = |manager: &mut CacheManager, id: i64, tokens: &[u32]| {
        let cursor = manager.prepare(tokens, ExtraKeys::default()).unwrap();
        manager.admit(id, cursor).unwrap();
        manager.commit(id, tokens.len()).unwrap();
    };
    let held = |manager: &CacheManager| {
        let tier = |tier| {
            let (free, cached_free, active, fenced) = sums(manager.tiers().pool(tier).unwrap());
            (free + cached_free, active, fenced)
        };
        let stats = manager.stats();
        (tier(0), tier(1), stats.running, stats.preempted, stats.swapped, stats.moving)
    };
    admit(&mut manager, 1, &[1, 2, 3, 4, 8]);
    let without = held(&manager);
    admit(&mut manager, 2, &[1, 2, 3, 4, 5, 6, 7]);
    manager.fork(2, 3).unwrap();
    manager.append_tokens(3, &[9], 0).unwrap();
    let group = [RequestRef::Int(2), RequestRef::Int(3)];

    let mut over = Vec::new();
    let mut under_way = None;
    for (out, last) in [(true, Trip::Out), (false, Trip::Back)] {
        let swap = if out { manager.begin_swap_out(&group) } else { manager.begin_swap_in(&group) }.unwrap();
        under_way = Some(swap);
        if trip == if out { Trip::OutBegun } else { Trip::InBegun } {
            break;
        }
        manager.take_plan().unwrap();
        if trip < last {
            break;
        }
        manager.complete_swap(swap).unwrap();
        over.push(swap);
        under_way = None;
        if trip == last {
            break;
        }
    }
    manager.check_invariants().unwrap();
    if let Some(swap) = under_way {
        // The blocks are not released while copies may still be made.
        let before = held(&manager);
        for (id, releasing) in [(2, 1), (3, 2)] {
            manager.release(id, fence).unwrap();
            let refused = manager.release(id, fence);
            assert!(matches!(refused, Err(ManagerError::WrongState { .. })), "{what}: {refused:?}");
            let after = held(&manager);
            assert_eq!((after.0, after.1), (before.0, before.1), "{what}: blocks went");
            assert_eq!((manager.stats().releasing, manager.stats().moving), (releasing, 2 - releasing));
            manager.check_invariants().unwrap();
        }
        if take_back {
            manager.abort_swap(swap).unwrap();
        } else {
            manager.take_plan().unwrap();
            manager.complete_swap(swap).unwrap();
        }
        over.push(swap);
    } else {
        manager.release(2, fence).unwrap();
        manager.release(3, fence).unwrap();
    }
    // All messages arrive late and twice.
    let before = observe_manager(&manager);
    for &swap in &over {
        assert!(manager.complete_swap(swap).is_err(), "{what}");
        assert!(manager.abort_swap(swap).is_err(), "{what}");
    }
    for id in [2, 3] {
        assert_eq!(manager.release(id, fence), Err(ManagerError::UnknownRequest { id: id.into() }));
    }
    assert_eq!(observe_manager(&manager), before, "{what}");
    manager.take_plan().unwrap(); // the fork's copy, if it was never taken; it is not needed any more
    for step in [STEP, STEP, STEP - 1] {
        manager.complete_step(step).unwrap();
        manager.check_invariants().unwrap();
    }
    assert_eq!(held(&manager), without, "{what}");
}
