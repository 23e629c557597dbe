//! Property 5: no interleaving of lookups and allocations gives a block to two requests, unless both
//! got it by the same hash. A matched block is not allocated while the match has references to it.
//!
//! In vllm#37164 and vllm#10507, blocks that one request had found were allocated by another request,
//! or by the request itself, before it had acquired them.
//!
//! An implementation fails this test if a lookup returns ids that only a later call acquires, or if the
//! blocks of a hit are counted as available.

use super::*;

/// In vllm#37164 and #10507, another request took matched blocks between the lookup and the allocation,
/// or the allocation itself evicted them. The test tries every interleaving of three requests in a pool
/// that is too small for them. A request that gets a cached block finds the KV of its own prefix in it,
/// and no request's KV is overwritten.
#[test]
fn property_05_no_interleaving_gives_a_block_to_two_owners() {
    // The prompts share prefixes and have different ends. There are four usable blocks.
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[9, 9, 1, 2]];
    let (mut hits, mut refusals) = (0, 0);
    for order in interleavings(3, 4) {
        let mut engine = Engine::new(4);
        // An earlier request left both shared blocks cached. They are the only blocks that can be
        // evicted.
        engine.admit(10, prompts[0]).unwrap();
        engine.compute_all(10);
        engine.release(10, None);
        let mut at = [0; 3];
        for request in order {
            let (id, step) = (request as i64, at[request]);
            at[request] += 1;
            match step {
                0 => match engine.admit(id, prompts[request]) {
                    Ok(admission) => hits += admission.cached_blocks,
                    Err(ManagerError::OutOfBlocks(_)) => refusals += 1,
                    Err(error) => panic!("{error}"),
                },
                _ if !engine.is_running(id) => {}
                1 => engine.compute(
                    id,
                    prompts[request]
                        .len()
                        .div_ceil(2)
                        .max(engine.manager.request(id).unwrap().computed_tokens),
                ),
                2 => engine.compute_all(id),
                _ => engine.release(id, None),
            }
            engine.check();
            // Two tables share a block only at the same position and with the same hash.
            let tables: Vec<_> =
                engine.requests.keys().map(|&id| engine.manager.block_table(id).unwrap()).collect();
            let mut owners = BTreeMap::new();
            for (at, block) in tables.iter().flat_map(|table| table.iter().enumerate()) {
                if let Some(other) = owners.insert(*block, at) {
                    assert_eq!(other, at, "{block:?} is at two places");
                    assert!(
                        engine.manager.pool().is_computed(*block),
                        "{block:?} is shared and not published"
                    );
                }
            }
        }
        assert_eq!(engine.manager.pool().num_available(), 4);
    }
    assert!(
        hits > 10_000 && refusals > 10_000,
        "{hits} hits, {refusals} refusals: the pool is scarce and shared"
    );
}

/// Tests vllm#37164 within one step. The first admission of the plan needs many blocks. If they were
/// allocated before the match of the second admission is acquired, the match would be evicted.
#[test]
fn property_05_a_planned_step_does_not_evict_its_matches() {
    for order in permutations(2) {
        let mut engine = Engine::new(5);
        let shared = [1, 2, 3, 4];
        for (id, tokens) in [(10, &shared[..]), (11, &[7, 7, 8, 8])] {
            engine.admit(id, tokens).unwrap();
            engine.compute_all(id);
            engine.release(id, None); // #1 and #2 are the next victims, and one block is free
        }
        let prompts: [&[u32]; 2] = [&[5, 5, 6], &[1, 2, 3, 4, 9]];
        let mut plan = engine.manager.plan_step();
        for &at in &order {
            let cursor = engine.manager.prepare(prompts[at], ExtraKeys::default()).unwrap();
            engine.manager.plan_admit(&mut plan, at as i64, cursor).unwrap();
        }
        assert_eq!(plan.available_blocks(), 0);
        let outcomes = engine.manager.commit_step(&mut plan).unwrap();
        for (&at, outcome) in order.iter().zip(&outcomes) {
            let kvpool::StepOutcome::Admitted(admission) = outcome else { panic!("{outcome:?}") };
            let (id, tokens) = (at as i64, prompts[at].to_vec());
            assert_eq!(admission.cached_blocks, if at == 1 { 2 } else { 0 });
            engine.requests.insert(id, Sequence { tokens, epoch: 0 });
            engine.read_cached(id, admission);
        }
        engine.compute_all(0);
        engine.compute_all(1);
        engine.check();
        let tables: BTreeSet<_> =
            [0, 1].iter().flat_map(|&id| engine.manager.block_table(id).unwrap()).collect();
        assert_eq!(tables.len(), 5, "no block is in both tables");
    }
}
