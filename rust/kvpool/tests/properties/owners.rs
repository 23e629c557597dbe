//! Properties 5 to 7: no block has two owners, cached ones are evicted last, fenced ones come back in time.

use super::*;

/// vllm#37164, #10507: between a lookup and the allocation behind it, another request took the matched blocks, or the
/// allocation itself evicted them. Every interleaving of three requests over a pool that is too small for them: whoever is
/// given a cached block finds in it the KV of its own prefix, and nobody's KV is overwritten.
#[test]
fn property_05_no_interleaving_gives_a_block_to_two_owners() {
    // Shared prefixes, and different ends; four usable blocks.
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[9, 9, 1, 2]];
    let (mut hits, mut refusals) = (0, 0);
    for order in interleavings(3, 4) {
        let mut engine = Engine::new(4);
        // An earlier request left both shared blocks cached, with nothing but them to evict later on.
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
            // Two tables share a block only at the same place, under the same hash.
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

/// vllm#37164, within one step: a plan's first admission needs so many blocks that allocating them before the second
/// one's match is acquired would evict that match.
#[test]
fn property_05_a_planned_step_does_not_evict_what_it_matched() {
    for order in permutations(2) {
        let mut engine = Engine::new(5);
        let shared = [1, 2, 3, 4];
        for (id, tokens) in [(10, &shared[..]), (11, &[7, 7, 8, 8])] {
            engine.admit(id, tokens).unwrap();
            engine.compute_all(id);
            engine.release(id, None); // #1 and #2 are the next victims, one block is free
        }
        let prompts: [&[u32]; 2] = [&[5, 5, 6], &[1, 2, 3, 4, 9]];
        let mut plan = engine.manager.begin_step();
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

/// vllm#42948, #42656: the allocator took cached blocks while blocks without content were free, or put blocks whose hash
/// was gone in the middle of the eviction order.
#[test]
fn property_06_cached_blocks_are_evicted_only_when_no_free_block_is_left() {
    for cached in 0..=3 {
        for (uncached, untouched, dropped) in [(0, 1, 0), (1, 0, 1), (2, 1, 1), (0, 2, 2), (1, 1, 0)] {
            let usable = cached + uncached + untouched + dropped;
            for n in 0..=usable {
                let mut pool = pool(usable);
                // Taken and released in one go, in an order that mixes them.
                let kept = fill(&mut pool, &(0..(B * cached) as u32).collect::<Vec<_>>());
                let registered_only = pool.allocate(dropped).unwrap();
                let chain = chain(&(50..50 + (B * dropped) as u32).collect::<Vec<_>>());
                pool.register(&registered_only, &chain, 0).unwrap(); // its KV is never written
                let plain = pool.allocate(uncached).unwrap();
                let mixed: Vec<_> = [kept, registered_only, plain].concat();
                pool.release(&mixed).unwrap();
                let free = usable - cached;
                assert_eq!(sums(&pool), (free, cached, 0, 0));
                let hashed: BTreeSet<_> = all_blocks(&pool).filter(|&b| pool.hash_of(b).is_some()).collect();
                assert_eq!(hashed.len(), cached);
                let victims = pool.eviction_order();

                let got = pool.allocate(n).unwrap();

                let carried: Vec<_> = got.iter().copied().filter(|block| hashed.contains(block)).collect();
                assert_eq!(carried, victims[..n.saturating_sub(free)], "allocate({n}) of {free} free");
                assert_eq!(pool.stats().evicted as usize, carried.len());
                assert!(
                    got.iter().all(|&block| pool.hash_of(block).is_none()),
                    "what is handed out has no hash"
                );
            }
        }
    }
}

/// vllm#45357, tpu-inference#3449: under asynchronous scheduling a freed block was handed out while a running step could
/// still write to it; or, once fenced, it never came back. Every order of three fenced releases and three completions.
#[test]
fn property_07_a_fenced_block_comes_back_exactly_when_its_step_completes() {
    for shared in [false, true] {
        for order in permutations(6) {
            let mut pool = pool(3);
            let blocks = pool.allocate(3).unwrap();
            if shared {
                pool.acquire(&blocks[1..2]).unwrap(); // a second holder, who stays
            }
            let (mut fenced_on, mut completed) = (BTreeMap::new(), 0);
            for &event in &order {
                if event < 3 {
                    let step = event as u64 + 1;
                    pool.release_after(&blocks[event..=event], step).unwrap();
                    fenced_on.insert(blocks[event], step);
                } else {
                    let step = event as u64 - 2;
                    pool.complete_step(step).unwrap();
                    completed = completed.max(step);
                }
                let mut allocatable = 0;
                for &block in &blocks {
                    let expected = match fenced_on.get(&block) {
                        _ if shared && block == blocks[1] => BlockState::Active,
                        None => BlockState::Active,
                        Some(step) if *step > completed => BlockState::Fenced,
                        Some(_) => BlockState::Free,
                    };
                    assert_eq!(pool.state(block), Some(expected), "{order:?}, {block:?} after event {event}");
                    allocatable += usize::from(expected == BlockState::Free);
                }
                let too_many = pool.allocate(allocatable + 1);
                assert!(matches!(too_many, Err(PoolError::OutOfBlocks(_))), "{order:?}: {too_many:?}");
                assert_eq!(pool.num_available(), allocatable);
            }
            let last = pool.allocate(if shared { 2 } else { 3 }).unwrap();
            assert!(!shared || !last.contains(&blocks[1]));
        }
    }
}

/// vllm#45357, seen from the KV: a request ends while its step runs, another is admitted at once, and the running step
/// writes late. Nobody's KV is damaged, and a hit on a fenced block still succeeds.
#[test]
fn property_07_a_late_write_of_a_running_step_hits_nobody() {
    for preempt in [false, true] {
        let mut engine = Engine::new(6);
        engine.admit(1, &[1, 2, 3, 4, 5]).unwrap();
        engine.compute(1, 4);
        let table = engine.manager.block_table(1).unwrap().to_vec();
        if preempt {
            engine.manager.preempt(1, Some(8)).unwrap();
        } else {
            engine.release(1, Some(8));
        }
        // The same prefix: its blocks are fenced, computed, and may be read.
        let admission = engine.admit(2, &[1, 2, 3, 4, 6]).unwrap();
        assert_eq!(admission.block_ids[..2], table[..2]);
        assert!(!admission.block_ids.contains(&table[2]), "a fenced block was handed out");
        engine.admit(3, &[7, 7, 7]).unwrap();
        engine.compute_all(3);
        engine.compute_all(2);
        assert!(engine.manager.block_table(3).unwrap().iter().all(|block| !table.contains(block)));
        engine.memory[table[2].index()] = (99, vec![5]); // step 8 writes late
        engine.check();
        // Earlier steps end nothing; the step itself ends everything, once.
        assert_eq!(engine.manager.complete_step(7).unwrap(), 0);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Fenced));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 3);
        assert_eq!(engine.manager.pool().state(table[2]), Some(BlockState::Free));
        assert_eq!(engine.manager.complete_step(8).unwrap(), 0);
        engine.check();
    }
}
