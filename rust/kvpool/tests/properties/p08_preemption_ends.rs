//! Property 8: in any state, a scheduler that preempts requests until enough blocks are available needs
//! at most one preemption per running request. It counts fenced blocks as available later.
//!
//! In ascend#16315, a scheduler preempted all requests, or never stopped, because the blocks of a
//! preempted request become available one step later.
//!
//! An implementation fails this test if a refusal reports the number of missing blocks, but not the
//! number of fenced blocks.

use super::histories::*;
use super::*;

/// In ascend#16315, with asynchronous scheduling, the blocks of a preempted request do not become
/// available in the same step. A scheduler that does not know how many blocks are pending preempts all
/// requests, or never stops.
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
        // Either all tables begin with the same block, or all with different blocks.
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
    // The scheduler has not preempted too many requests: without the last preemption, there would be
    // too few blocks.
    let blocks_of = |survivors: usize| match (shared, survivors) {
        (_, 0) => 0,
        (true, n) if size > 1 => 1 + n * (size - 1),
        (_, n) => n * size,
    };
    let total = running * size;
    assert!(total - blocks_of(victims.len()) >= demand);
    assert!(victims.len() == running || total - blocks_of(victims.len() + 1) < demand, "one victim too many");
}

proptest! {
    /// Tests all states that random calls lead to, while earlier steps still run. For every number of
    /// blocks that the pool can provide, there are at most as many preemptions as running requests. The
    /// blocks that were reported as pending become available.
    #[test]
    fn property_08_preempting_ends_in_any_state(
        usable in 3usize..9,
        calls in calls(),
        demand in 1usize..9,
        oldest_first in any::<bool>(),
    ) {
        let mut engine = Engine::new(usable);
        play(&mut engine, &calls, |_| {});
        let mut victims: Vec<i64> =
            engine.requests.keys().copied().filter(|&id| engine.is_running(id)).collect();
        if oldest_first {
            victims.reverse();
        }
        // Each preempted request is in a different step, which still runs. The steps complete only when
        // no request is left to preempt.
        let running = victims.len();
        let prompt: Vec<_> = (0..(B * demand.min(usable)) as u32).map(|token| 5000 + token).collect();
        let (mut preemptions, mut completed) = (0, false);
        loop {
            let refusal = match engine.admit(99, &prompt) {
                Ok(_) => break,
                Err(ManagerError::OutOfBlocks(refusal)) => refusal,
                Err(error) => panic!("{error}"),
            };
            assert!(refusal.can_ever_fit);
            assert_eq!(refusal.fenced, engine.manager.pool().num_fenced());
            if refusal.missing <= refusal.fenced {
                assert!(!completed, "what was pending did not come");
                engine.manager.complete_step(1000).unwrap();
                completed = true;
                continue;
            }
            let victim = victims.pop().unwrap_or_else(|| panic!("nobody runs, and the demand is not met"));
            engine.manager.preempt(victim, Some(900 + preemptions)).unwrap();
            preemptions += 1;
            engine.check();
        }
        assert!(preemptions as usize <= running);
        engine.check();
    }
}
