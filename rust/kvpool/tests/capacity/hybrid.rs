//! Tests that the groups of a hybrid model hold, release and evict the right blocks. There is one test
//! per fault or missing feature that was found.

use super::*;
use kvpool::groups::Keep;

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

/// Caches a conversation of 66 tokens. Then evicts its blocks one by one, while no request holds any of
/// them. Returns the length of the hit after each eviction.
fn hits_while_evicting(spec: GroupSpec, preempts: bool) -> Vec<usize> {
    let mut manager = manager(&[FULL, spec], 499);
    let prompt = ids(0..66);
    admit(&mut manager, 0, &prompt, chunk(0)).unwrap();
    compute(&mut manager, 0, 16).unwrap();
    if preempts {
        manager.preempt(0, Until::Now).unwrap();
    } else {
        manager.release(0, Until::Now).unwrap();
    }
    let next: Vec<u32> = ids(0..67);
    let count = manager.stats().pool.cached_free;
    let hit_and_evict = |_| {
        let hit = cached(&manager, &next);
        assert_eq!(manager.evict(1).unwrap().len(), 1);
        hit
    };
    (0..count).map(hit_and_evict).collect()
}

/// The blocks of a cached conversation are evicted one by one. After each eviction, the hit is as long
/// as the remaining blocks allow. A hit of L tokens needs L / 4 blocks of full attention. In the other
/// group, a conversation of L tokens has L / `spacing` states or windows, of one block each.
#[test]
fn the_deepest_block_of_all_groups_is_evicted_first() {
    let kept = [(Keep::All, 4), (Keep::Every(8), 8), (Keep::Every(16), 16), (Keep::Junctions, 64)];
    for (keep, spacing) in kept {
        for spec in [GroupSpec { keep, ..STATE }, GroupSpec { keep, ..sliding(4, 5) }] {
            for preempts in [false, true] {
                let hits = hits_while_evicting(spec, preempts);
                for (gone, &hit) in hits.iter().enumerate() {
                    let left = hits.len() - gone;
                    let fits = |length: &usize| length / 4 + length / spacing <= left;
                    let best = (0..=64).step_by(spacing).filter(fits).max().unwrap();
                    assert!(hit >= best, "{spec:?}: hits {hits:?}, after {gone} evictions {best}");
                }
            }
        }
    }
}

/// Two conversations take turns in a pool that can cache one and a half of them. A conversation hits
/// those of its blocks that are still cached.
#[test]
fn alternating_conversations_hit_the_blocks_that_full_attention_leaves() {
    let mut manager = manager(&[FULL, GroupSpec { keep: Keep::Every(16), ..STATE }], 55);
    let (mut hit, mut full) = (0, 0);
    for turn in 0..10 {
        let first = 1000 * (turn % 2);
        let prompt = ids(first..first + 120 + 2 * turn);
        let admission = admit(&mut manager, i64::from(turn), &prompt, chunk(0)).unwrap();
        hit += admission.cached_tokens;
        full += admission.full_tokens;
        compute(&mut manager, i64::from(turn), 32).unwrap();
        manager.release(i64::from(turn), Until::Now).unwrap();
    }
    assert!(full > 0 && hit + 8 * 16 >= full, "{hit} tokens were hit, full attention had {full}");
}

#[test]
fn a_state_group_has_a_slot_for_each_draft() {
    let mut manager = manager(&[FULL, STATE], 12);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    let before = manager.pool().num_available();
    assert_eq!(manager.group_table(0, 1).unwrap().len(), 1);
    step(&mut manager, 0, &[6], Some(6), 3).unwrap();
    let table = manager.group_table(0, 1).unwrap().to_vec();
    assert_eq!(
        (table.len(), in_table(&manager, 0, 1)),
        (4, 4),
        "after the tokens, and after each of 3 drafts"
    );
    assert_eq!(manager.pool().num_available(), before - 3 - 1, "and a block for 10 slots of full attention");
    // Two drafts are accepted. The block with the state after the second draft becomes the first block
    // of the table.
    step(&mut manager, 0, &[7, 8, 9], Some(9), 3).unwrap();
    let later = manager.group_table(0, 1).unwrap().to_vec();
    assert_eq!((later[0], later.len()), (table[2], 4));
    // No draft is accepted, so the state remains in its block.
    step(&mut manager, 0, &[10], Some(10), 0).unwrap();
    assert_eq!(manager.group_table(0, 1).unwrap()[0], later[0]);
    manager.check_invariants().unwrap();
    manager.release(0, Until::Now).unwrap();
    assert_eq!(held(&manager), 0);
}

/// The engine reads the table of a state group from these changes.
#[test]
fn an_append_returns_the_entries_that_accepted_drafts_exchange() {
    let mut manager = manager(&[FULL, STATE], 12);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], Some(6), 3).unwrap();
    let table = manager.group_table(0, 1).unwrap().to_vec();
    let changes = step(&mut manager, 0, &[7, 8, 9], Some(9), 0).unwrap();
    let exchanged = |index, block| NewBlock { row: 0, index, block, group: 1 };
    let expected = [exchanged(0, table[2]), exchanged(2, table[0])];
    assert_eq!(changes.into_iter().filter(|new| new.group == 1).collect::<Vec<_>>(), expected);
}

#[test]
fn accepted_drafts_move_the_state_in_a_step_that_takes_and_completes_no_block() {
    let mut manager = manager(&[FULL, STATE], 12);
    admit(&mut manager, 0, &ids(0..4), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[4], Some(4), 2).unwrap();
    let table = manager.group_table(0, 1).unwrap().to_vec();
    step(&mut manager, 0, &[5, 6], Some(6), 0).unwrap();
    assert_eq!(manager.group_table(0, 1).unwrap()[0], table[1]);
}

/// Two steps with drafts run. The results of the first step arrive after the second has started.
#[test]
fn a_commit_takes_the_state_of_the_oldest_step_that_has_not_ended() {
    let mut manager = manager(&[FULL, STATE], 12);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], None, 2).unwrap();
    manager.commit(0, 6).unwrap();
    step(&mut manager, 0, &[7, 8], None, 2).unwrap();
    let table = manager.group_table(0, 1).unwrap().to_vec();
    manager.commit(0, 8).unwrap();
    assert_eq!(manager.group_table(0, 1).unwrap()[0], table[1], "the step of token 6 computed one draft");
}

#[test]
fn a_draft_without_a_state_slot_is_not_computed() {
    let mut manager = manager(&[STATE], 4);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    let done = step(&mut manager, 0, &[6, 7], Some(7), 0);
    assert!(matches!(done, Err(ManagerError::BadComputedCount { .. })), "{done:?}");
    step(&mut manager, 0, &[6], Some(6), 1).unwrap();
    let done = step(&mut manager, 0, &[7, 8, 9], Some(9), 0);
    assert!(matches!(done, Err(ManagerError::BadComputedCount { .. })), "{done:?}");
    assert!(matches!(step(&mut manager, 0, &[7], Some(7), 4), Err(ManagerError::OutOfBlocks(_))));
    step(&mut manager, 0, &[7, 8], Some(8), 1).unwrap();
}

/// An engine may append drafts as tokens, and truncate the rejected drafts before it commits. The
/// states of the accepted drafts remain.
#[test]
fn a_truncation_keeps_the_states_of_the_drafts_that_stay() {
    let mut manager = manager(&[FULL, STATE], 20);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], Some(6), 3).unwrap();
    let table = manager.group_table(0, 1).unwrap().to_vec();
    step(&mut manager, 0, &[7, 8, 9], None, 0).unwrap();
    manager.truncate(0, 9, Until::Now).unwrap();
    manager.commit(0, 9).unwrap();
    assert_eq!(manager.group_table(0, 1).unwrap()[0], table[2]);
    manager.commit(0, 9).unwrap();
    assert_eq!(
        manager.group_table(0, 1).unwrap()[0],
        table[2],
        "a commit of the same tokens changes nothing"
    );
}

#[test]
fn forks_and_truncations_do_not_keep_the_states_of_drafts() {
    let mut manager = manager(&[FULL, STATE], 20);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], Some(6), 2).unwrap();
    manager.fork(0, 1).unwrap();
    assert_eq!(in_table(&manager, 1, 1), 1);
    drop(manager.take_plan().unwrap());
    assert_eq!(in_table(&manager, 0, 1), 3);
    manager.truncate(0, 7, Until::Now).unwrap();
    manager.truncate(0, 6, Until::Now).unwrap();
    assert_eq!(in_table(&manager, 0, 1), 1);
    manager.check_invariants().unwrap();
}

/// A fork does not get the draft slots of its parent. So none of its tokens may be treated as an
/// accepted draft.
#[test]
fn a_fork_has_no_drafts_of_its_parent() {
    let mut manager = manager(&[FULL, STATE], 20);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], Some(6), 2).unwrap();
    manager.fork(0, 1).unwrap();
    drop(manager.take_plan().unwrap());
    step(&mut manager, 1, &[7, 8], None, 1).unwrap();
    let table = manager.group_table(1, 1).unwrap().to_vec();
    manager.commit(1, 8).unwrap();
    assert_eq!(manager.group_table(1, 1).unwrap(), table);
}

/// An append allocates blocks for its tokens. After a truncation, the remaining tokens can still be
/// committed, even if the step before the append had drafts.
#[test]
fn a_truncation_keeps_the_cover_of_the_tokens_that_stay() {
    let mut manager = manager(&[STATE], 20);
    admit(&mut manager, 0, &ids(0..6), Part::WHOLE).unwrap();
    step(&mut manager, 0, &[6], Some(6), 1).unwrap();
    step(&mut manager, 0, &[7, 8], None, 0).unwrap();
    manager.truncate(0, 8, Until::Now).unwrap();
    manager.commit(0, 7).unwrap();
    manager.commit(0, 8).unwrap();
    assert!(matches!(step(&mut manager, 0, &[9], Some(9), 0), Err(ManagerError::BadComputedCount { .. })));
}

#[test]
fn an_admission_that_computes_all_hits_nothing_and_caches_its_blocks() {
    let all = Part { compute_all: true, ..Part::WHOLE };
    for specs in [vec![FULL], vec![FULL, sliding(4, 6), STATE]] {
        let mut manager = manager(&specs, 200);
        let prompt = ids(0..41);
        serve(&mut manager, 0, &prompt, 8).unwrap();
        let first = cached(&manager, &prompt);
        assert_eq!(first, 40);
        let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
        assert_eq!(manager.fit(&cursor, all).unwrap().cached_tokens, 0);
        let admission = admit(&mut manager, 1, &prompt, all).unwrap();
        assert_eq!((admission.cached_tokens, admission.cached_blocks), (0, 0));
        let others = manager.block_table(1).unwrap().to_vec();
        compute(&mut manager, 1, 8).unwrap();
        manager.preempt(1, Until::Now).unwrap();
        assert_eq!(manager.resume_with(1, all).unwrap().cached_tokens, 0);
        compute(&mut manager, 1, 8).unwrap();
        manager.release(1, Until::Now).unwrap();
        assert_eq!(cached(&manager, &prompt), 40);
        // After a reset, nothing is cached. A request that may not use cached blocks then registers its
        // blocks under the same names as before.
        manager.reset().unwrap();
        admit(&mut manager, 2, &prompt, Part { allocate_tokens: Some(0), ..all }).unwrap();
        compute(&mut manager, 2, 8).unwrap();
        manager.release(2, Until::Now).unwrap();
        assert_eq!(cached(&manager, &prompt), 40);
        assert_eq!(others.len(), 11);
    }
}

/// In a group with a sliding window and attention sinks (first tokens that every token reads), the
/// blocks of the sinks are not released, and a hit needs them.
#[test]
fn blocks_of_sinks_are_held_and_needed() {
    let sinks = GroupSpec { sink_tokens: 5, ..sliding(4, 8) };
    let mut manager = manager(&[sinks], 100);
    let prompt = ids(0..41);
    admit(&mut manager, 0, &prompt, chunk(0)).unwrap();
    compute(&mut manager, 0, 4).unwrap();
    let table = manager.group_table(0, 0).unwrap().to_vec();
    let there: Vec<_> = (0..table.len()).filter(|&at| !table[at].is_null()).collect();
    // Token 41 reads the sinks, tokens 0 to 4, and tokens 34 to 40.
    assert_eq!(there, [0, 1, 8, 9, 10]);
    manager.release(0, Until::Now).unwrap();
    assert_eq!(cached(&manager, &prompt), 40);
    let admission = admit(&mut manager, 1, &prompt, Part::WHOLE).unwrap();
    let found: Vec<_> = (0..11).filter(|&at| !admission.block_ids[at].is_null()).collect();
    assert_eq!(found, there);
    assert_eq!(&admission.block_ids[..2], &table[..2]);
    manager.release(1, Until::Now).unwrap();
    manager.drop_cached(&table[1..2]).unwrap();
    assert_eq!(cached(&manager, &prompt), 4, "the second block of sinks is gone");
}

#[test]
fn a_lone_request_with_sinks_runs_in_window_sinks_and_a_chunk() {
    let sinks = GroupSpec { sink_tokens: 4, ..sliding(4, 8) };
    // The request needs one block for the sinks, two for the window before the next chunk, and one for
    // the chunk of 4 tokens.
    assert_eq!(lone::run(&[sinks], 200, &ids(0..400), chunk(4)), Ok(4));
    let mut manager = manager(&[sinks], 4);
    let cursor = manager.prepare(&ids(0..400), ExtraKeys::default()).unwrap();
    assert!(manager.fit(&cursor, chunk(4)).unwrap().can_ever_fit);
    serve(&mut manager, 0, &ids(0..400), 4).unwrap();
}

/// A group that caches nothing, such as the heads of a draft model, never limits a hit.
#[test]
fn a_group_that_keeps_nothing_never_limits_hits() {
    let nothing = |spec| GroupSpec { keep: Keep::Nothing, ..spec };
    for spec in [FULL, sliding(4, 6), GroupSpec::new(GroupKind::Chunked { chunk: 8 }, 4), sliding(16, 6)] {
        let mut manager = manager(&[FULL, nothing(spec)], 100);
        let prompt = ids(0..42);
        serve(&mut manager, 0, &prompt, 8).unwrap();
        assert_eq!(
            manager.stats().pool.cached_free,
            10,
            "{spec:?}: blocks of the first group alone are cached"
        );
        let admission = admit(&mut manager, 1, &prompt, Part::WHOLE).unwrap();
        assert_eq!(admission.cached_tokens, 40, "{spec:?}");
        let table = manager.group_table(1, 1).unwrap();
        let first = 40 / spec.block_tokens;
        assert!(table[..first].iter().all(|block| block.is_null()), "{spec:?}: {table:?}");
        assert!(
            table[first..].iter().all(|block| !block.is_null()) && table.len() > first,
            "{spec:?}: {table:?}"
        );
        compute(&mut manager, 1, 8).unwrap();
        manager.check_invariants().unwrap();
    }
    let mut manager = manager(&[FULL, nothing(STATE)], 100);
    serve(&mut manager, 0, &ids(0..42), 8).unwrap();
    assert_eq!(admit(&mut manager, 1, &ids(0..42), Part::WHOLE).unwrap().cached_tokens, 40);
    assert_eq!(in_table(&manager, 1, 1), 1, "a state of its own");
    assert!(manager.take_plan().unwrap().transfers().is_empty(), "nothing is copied into it");
}

fn receive(loaded: Loaded<'_>) -> CacheManager {
    let mut manager = manager(&[FULL, STATE, sliding(4, 6)], 30);
    let part = Part { external_tokens: 19, ..Part::WHOLE };
    let admission = admit(&mut manager, 0, &ids(0..20), part).unwrap();
    assert_eq!((admission.cached_tokens, admission.external_tokens), (0, 19));
    assert_eq!(in_table(&manager, 0, 1), 1, "the connector writes the state after token 19 here");
    manager.external_done(0, loaded).unwrap();
    manager.check_invariants().unwrap();
    manager
}

#[test]
fn a_model_with_states_continues_after_external_tokens() {
    let mut manager = receive(Loaded::All);
    let request = manager.request(0).unwrap();
    assert_eq!((request.state, request.computed_tokens), (RequestState::Running, 19));
    let state = manager.group_table(0, 1).unwrap()[0];
    compute(&mut manager, 0, 20).unwrap();
    assert_eq!(manager.group_table(0, 1).unwrap(), [state]);
    step(&mut manager, 0, &[20], None, 0).unwrap();
    manager.release(0, Until::Now).unwrap();
    assert_eq!(held(&manager), 0);
}

#[test]
fn a_request_whose_state_is_not_loaded_is_preempted_and_recomputed() {
    let last = 18..19;
    for loaded in [Loaded::First(0), Loaded::First(12), Loaded::AllBut(std::slice::from_ref(&last))] {
        let mut manager = receive(loaded);
        assert_eq!(manager.request(0).unwrap().state, RequestState::Preempted, "{loaded:?}");
        assert_eq!(held(&manager), 0, "{loaded:?}");
        let resumed = manager.resume(0).unwrap();
        assert_eq!(resumed.cached_tokens, 0, "no state arrived to go on from");
        compute(&mut manager, 0, 8).unwrap();
        assert_eq!(manager.request(0).unwrap().computed_tokens, 20);
    }
}
