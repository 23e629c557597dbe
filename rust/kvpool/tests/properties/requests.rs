//! Properties 8 to 10: preemption, and aborts in any state.

use super::*;

/// ascend#16315: with asynchronous scheduling a preempted request's blocks do not come back in the same step; a scheduler
/// that does not see them as pending preempts everybody, or never ends.
#[test]
fn property_08_preempting_until_demand_is_met_ends_and_stops_in_time() {
    for running in 1..=4usize {
        for size in 1..=3usize {
            for shared in [false, true] {
                for demand in 1..=running * size {
                    preempt_until_met(running, size, shared, demand);
                }
            }
        }
    }
}

fn preempt_until_met(running: usize, size: usize, shared: bool, demand: usize) {
    let mut engine = Engine::new(running * size);
    for at in 0..running as u32 {
        // All tables begin with the same block, or none do.
        let mut tokens: Vec<_> = (0..(B * size) as u32).map(|token| 100 * (at + 1) + token).collect();
        if shared {
            tokens[..B].fill(1);
        }
        engine.admit(i64::from(at), &tokens).unwrap();
        engine.compute_all(i64::from(at));
    }
    let step = 5;
    let prompt: Vec<_> = (0..(B * demand) as u32).map(|token| 5000 + token).collect();
    let mut victims: Vec<_> = (0..running as i64).collect();
    let mut completed = false;
    let mut pending = 0;
    loop {
        let refusal = match engine.admit(99, &prompt) {
            Ok(_) => break,
            Err(ManagerError::OutOfBlocks(refusal)) => refusal,
            Err(error) => panic!("{error}"),
        };
        assert!(refusal.can_ever_fit);
        assert_eq!((refusal.fenced, refusal.missing), (pending, refusal.needed - refusal.available));
        if refusal.missing <= refusal.fenced {
            assert!(!completed, "what was pending did not come");
            engine.manager.complete_step(step).unwrap();
            (completed, pending) = (true, 0);
            continue;
        }
        assert!(!completed, "too few were preempted, though enough seemed to be pending");
        let victim = victims.pop().unwrap_or_else(|| panic!("nobody runs, and the demand is not met"));
        engine.manager.preempt(victim, Some(step)).unwrap();
        pending = engine.manager.pool().num_fenced();
        engine.check();
    }
    engine.check();
    // It stopped as soon as enough was pending: without its last victim, the demand was not met.
    let blocks_of = |survivors: usize| match (shared, survivors) {
        (_, 0) => 0,
        (true, n) if size > 1 => 1 + n * (size - 1),
        (_, n) => n * size,
    };
    let total = running * size;
    assert!(total - blocks_of(victims.len()) >= demand);
    assert!(victims.len() == running || total - blocks_of(victims.len() + 1) < demand, "one victim too many");
}

/// A request in one of the states that it can be aborted in, beside another one that shares its prefix.
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

/// vllm#46283, #41269, #44100: an abort in some state, or with its completion message lost, sent twice or late, left
/// blocks behind or freed them twice.
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
    // The abort may come twice as well.
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
    // The last deadline: every step has ended by now.
    engine.manager.complete_step(STEP).unwrap();
    assert_eq!(engine.manager.pool().num_fenced(), 0, "{what}");
    assert_eq!(held(&engine), without, "{what}");
    assert_eq!(engine.manager.block_table(1).unwrap(), bystander);
    assert!(bystander.iter().all(|&block| engine.manager.pool().ref_count(block) == Some(1)), "{what}");
    engine.check();
    engine.release(1, None);
    assert_eq!(engine.manager.pool().num_available(), 20, "{what}");
}
