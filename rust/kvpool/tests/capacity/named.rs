//! Contains one test for each fault of capacity that was found.

use super::*;
use kvpool::Fit;

fn ids(range: std::ops::Range<u32>) -> Vec<u32> {
    range.collect()
}

fn partial(block_tokens: usize) -> GroupSpec {
    GroupSpec { partial_hits: true, ..GroupSpec::new(GroupKind::Full, block_tokens) }
}

/// Returns models, each with a prompt that fills a pool. An entry contains the groups, the number of
/// tokens per hash unit, the number of tokens of the prompt, and the number of blocks that the prompt
/// needs.
fn models_that_fill_a_pool() -> Vec<(Vec<GroupSpec>, usize, u32, usize)> {
    vec![
        (vec![FULL], 4, 15, 4),
        (vec![partial(8)], 4, 15, 2),
        (vec![partial(512)], 16, 1000, 2),
        (vec![FULL, sliding(4, 8)], 4, 19, 10),
        (vec![FULL, STATE], 4, 15, 5),
        (vec![FULL, STATE, STATE, STATE], 4, 15, 7),
        (vec![partial(8), STATE], 4, 15, 4),
        (vec![GroupSpec { margin: 1, ..FULL }], 4, 15, 4),
    ]
}

fn of_unit(specs: &[GroupSpec], unit: usize, usable: usize) -> CacheManager {
    manager_of(Groups::new(specs.to_vec(), Some(unit)).unwrap(), usable)
}

#[test]
fn what_ran_alone_can_be_resumed_and_admitted_again_in_the_same_pool() {
    for (specs, unit, tokens, usable) in models_that_fill_a_pool() {
        let prompt = ids(0..tokens);
        let mut manager = of_unit(&specs, unit, usable);
        admit(&mut manager, 0, &prompt, chunk(0)).unwrap();
        compute(&mut manager, 0, prompt.len()).unwrap();
        manager.preempt(0, Until::Now).unwrap();
        let resumed = manager.resume(0).unwrap_or_else(|error| panic!("{specs:?}: {error}"));
        assert_eq!(resumed.block_ids.len(), prompt.len().div_ceil(specs[0].block_tokens));
        compute(&mut manager, 0, prompt.len()).unwrap();
        manager.release(0, Until::Now).unwrap();
        admit(&mut manager, 1, &prompt, Part::WHOLE).unwrap_or_else(|error| panic!("{specs:?}: {error}"));
    }
}

/// A long prompt that fills the pool is admitted, although blocks of a short prompt are cached.
#[test]
fn a_prompt_that_fills_the_pool_is_admitted_after_a_short_one_with_the_same_beginning() {
    for (specs, short, long, usable) in [
        (vec![FULL, STATE], 9, 15, 5),
        (vec![FULL, STATE, STATE, STATE], 9, 15, 7),
        (vec![partial(8)], 13, 31, 4),
        (vec![FULL, sliding(4, 8)], 9, 15, 8),
    ] {
        let mut manager = of_unit(&specs, 4, usable);
        serve(&mut manager, 0, &ids(0..short), usize::MAX).unwrap();
        admit(&mut manager, 1, &ids(0..long), Part::WHOLE)
            .unwrap_or_else(|error| panic!("{specs:?}: {error}"));
        compute(&mut manager, 1, usize::MAX).unwrap();
    }
    let of_544 = |kind| GroupSpec::new(kind, 544);
    let states = [of_544(GroupKind::State); 3];
    let mut manager = of_unit(&[&[of_544(GroupKind::Full)][..], &states].concat(), 544, 13);
    serve(&mut manager, 0, &ids(0..600), 1000).unwrap();
    admit(&mut manager, 1, &ids(0..5000), Part::WHOLE).unwrap();
}

/// The longest hit would take the only available block, because another request holds the first block.
/// No hit would need too many new blocks. So the admission uses the hit between them.
#[test]
fn a_hit_between_the_longest_and_none_is_found() {
    let mut manager = of_unit(&[FULL], 4, 4);
    serve(&mut manager, 0, &ids(0..9), 9).unwrap();
    admit(&mut manager, 1, &[ids(0..4), ids(100..105)].concat(), Part::WHOLE).unwrap();
    let part = Part { allocate_tokens: Some(1), external_tokens: 4, ..Part::WHOLE };
    let admission = admit(&mut manager, 2, &ids(0..10), part).unwrap();
    assert_eq!((admission.cached_tokens, admission.block_ids.len()), (4, 2));
}

/// If a hit needs a copy and no block is available for it, a shorter hit is used.
#[test]
fn a_hit_is_as_long_as_the_pool_allows() {
    let mut manager = of_unit(&[partial(8)], 4, 4);
    serve(&mut manager, 0, &ids(0..14), 14).unwrap();
    assert_eq!(cached(&manager, &ids(0..16)), 12, "8 tokens shared, 4 more in a copy");
    admit(&mut manager, 1, &[77], Part::WHOLE).unwrap();
    assert_eq!(cached(&manager, &ids(0..16)), 12, "2 cached blocks, and a third one for the copy");
    admit(&mut manager, 2, &[78], Part::WHOLE).unwrap();
    assert_eq!(cached(&manager, &ids(0..16)), 8, "no block is left for a copy");
    let admission = admit(&mut manager, 3, &ids(0..16), Part::WHOLE).unwrap();
    assert_eq!((admission.cached_tokens, admission.block_ids.len()), (8, 2));
}

#[test]
fn tokens_that_had_no_blocks_before_the_call_are_not_computed() {
    for specs in [vec![FULL], vec![FULL, sliding(4, 6)], vec![FULL, STATE]] {
        let mut manager = manager(&specs, 200);
        admit(&mut manager, 0, &ids(0..40), chunk(8)).unwrap();
        manager.commit(0, 8).unwrap();
        let refused = |done: Result<(), ManagerError>| {
            assert!(matches!(done, Err(ManagerError::BadComputedCount { .. })), "{specs:?}: {done:?}");
        };
        refused(manager.commit(0, 40).map(drop));
        refused(next_chunk(&mut manager, 0, 40, 40));
        refused(next_chunk(&mut manager, 0, 9, 40));
        refused(step(&mut manager, 0, &[77], Some(40), 0).map(drop));
        refused(manager.append(&[0.into()], &[77], Computed::AllButLast).map(drop));
        let request = manager.request(0).unwrap();
        assert_eq!((request.tokens, request.computed_tokens), (40, 8), "a refused call changes nothing");
        assert_eq!(cached(&manager, &ids(0..41)), 8, "{specs:?}");
        next_chunk(&mut manager, 0, 8, 40).unwrap();
        next_chunk(&mut manager, 0, 40, 40).unwrap();
        assert_eq!(cached(&manager, &ids(0..41)), 40, "{specs:?}");
    }
}

/// Drafts can be accepted only if the call before had allocated slots for them.
#[test]
fn accepted_drafts_are_computed_only_if_they_had_slots() {
    let mut manager = manager(&[FULL], 20);
    admit(&mut manager, 0, &ids(0..8), Part::WHOLE).unwrap();
    let done = step(&mut manager, 0, &[8, 9], Some(9), 0);
    assert!(matches!(done, Err(ManagerError::BadComputedCount { .. })), "{done:?}");
    step(&mut manager, 0, &[8], Some(8), 3).unwrap();
    step(&mut manager, 0, &[9, 10, 11, 12], Some(12), 3).unwrap();
    assert_eq!(manager.request(0).unwrap().computed_tokens, 12);
}

#[test]
fn external_tokens_take_blocks_of_windows_only_where_later_tokens_read_them() {
    let windows = [GroupSpec::new(GroupKind::Full, 16)].into_iter().chain([sliding(16, 128); 5]);
    let specs: Vec<_> = windows.chain([GroupSpec::new(GroupKind::Chunked { chunk: 160 }, 16)]).collect();
    let prompt = ids(0..8000);
    let part = Part { external_tokens: 7999, ..Part::WHOLE };
    let mut manager = manager(&specs, 500 + 5 * 9 + 10);
    let cursor = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
    let fit = manager.fit(&cursor, part).unwrap();
    assert_eq!((fit.fit, fit.can_ever_fit), (Fit::Ok, true));
    admit(&mut manager, 0, &prompt, part).unwrap();
    let loading: Vec<_> = (0..specs.len()).map(|group| in_table(&manager, 0, group)).collect();
    assert_eq!(loading[0], 500);
    assert!(loading[1..6].iter().all(|&held| held <= 9), "{loading:?} blocks by group");
    assert!(loading[6] <= 10, "{loading:?} blocks by group");
    manager.external_done(0, Loaded::All).unwrap();
    assert_eq!(manager.request(0).unwrap().computed_tokens, 7999);
    let missing = manager.group_table(0, 1).unwrap()[7999 / 16 - 7..].iter().filter(|block| block.is_null());
    assert_eq!(missing.count(), 0, "the window behind the external tokens");
}

/// Returns the smallest number of blocks in a pool with which `goes` succeeds.
fn least(goes: impl Fn(usize) -> Result<(), ManagerError>) -> usize {
    (1..400).find(|&usable| goes(usable).is_ok()).unwrap()
}

#[test]
fn blocks_that_a_step_frees_count_for_what_the_same_step_needs() {
    let windows = |kind| {
        let group = GroupSpec::new(kind, 16);
        vec![GroupSpec::new(GroupKind::Full, 16), group, group, group]
    };
    for specs in [windows(GroupKind::Sliding { window: 64 }), windows(GroupKind::Chunked { chunk: 64 })] {
        let prefill = |usable, one: bool| {
            let mut manager = manager(&specs, usable);
            admit(&mut manager, 0, &ids(0..512), chunk(128))?;
            (128..512).step_by(128).try_for_each(|computed| {
                if one {
                    return next_chunk(&mut manager, 0, computed, computed + 128);
                }
                manager.commit(0, computed)?;
                manager.extend(0, computed + 128).map(drop)
            })
        };
        assert_eq!(
            least(|usable| prefill(usable, true)),
            least(|usable| prefill(usable, false)),
            "{specs:?}"
        );
        for lookahead in [0, 1, 3, 7] {
            let decode = |usable, one: bool| {
                let mut manager = manager(&specs, usable);
                admit(&mut manager, 0, &[0], Part::WHOLE)?;
                (1..200).try_for_each(|at| {
                    if !one {
                        manager.commit(0, at)?;
                    }
                    step(&mut manager, 0, &[at as u32], one.then_some(at), lookahead).map(drop)
                })
            };
            let (one, two) = (least(|usable| decode(usable, true)), least(|usable| decode(usable, false)));
            assert_eq!(one, two, "{lookahead} drafts, {specs:?}");
        }
    }
}

#[test]
fn a_prompt_in_chunks_is_not_refused_permanently() {
    let window = sliding(16, 64);
    let specs = [GroupSpec::new(GroupKind::Full, 16), window, window, window];
    let usable = 100 + 3 * 9;
    let prompt = ids(0..1600);
    let mut pool = manager(&specs, usable);
    let cursor = pool.prepare(&prompt, ExtraKeys::default()).unwrap();
    let whole = pool.fit(&cursor, Part::WHOLE).unwrap();
    assert_eq!((whole.fit, whole.can_ever_fit), (Fit::InChunks, false));
    let by_chunks = pool.fit(&cursor, chunk(64)).unwrap();
    assert_eq!((by_chunks.fit, by_chunks.can_ever_fit), (Fit::Ok, true));
    assert!(admit(&mut pool, 0, &prompt, Part::WHOLE).is_err());
    lone::run(&specs, usable, &prompt, chunk(64)).unwrap();
    // While another request runs, the prompt does not fit now, but later.
    admit(&mut pool, 1, &ids(5000..6000), chunk(480)).unwrap();
    let later = pool.fit(&cursor, chunk(64)).unwrap();
    assert_eq!((later.fit, later.can_ever_fit), (Fit::Later, true));
    // The prompt needs more blocks of full attention than the pool has. Its first chunk fits, but the
    // whole prompt never fits.
    let too_long = pool.prepare(&ids(0..4000), ExtraKeys::default()).unwrap();
    let first = manager(&specs, usable).fit(&too_long, chunk(64)).unwrap();
    assert_eq!((first.fit, first.can_ever_fit), (Fit::Ok, false));
    assert_eq!(pool.fit(&too_long, Part::WHOLE).unwrap().fit, Fit::Never);
}

#[test]
fn a_registered_tail_is_written_in_place_where_no_block_is_left_for_a_copy() {
    for spec in [FULL, partial(8)] {
        let size = spec.block_tokens;
        let mut manager = of_unit(&[spec], 4, 2);
        admit(&mut manager, 0, &ids(0..2 * size as u32), Part::WHOLE).unwrap();
        manager.commit(0, 2 * size).unwrap();
        let table = manager.block_table(0).unwrap().to_vec();
        manager.truncate(0, 2 * size - 2, Until::Now).unwrap();
        step(&mut manager, 0, &[99], None, 0).unwrap();
        assert_eq!(manager.block_table(0).unwrap(), table);
        assert_eq!(cached(&manager, &ids(0..2 * size as u32 + 1)), size, "nobody hits what is written over");
        assert!(manager.take_plan().unwrap().transfers().is_empty());
        manager.commit(0, 2 * size - 1).unwrap();
    }
}

/// If two requests share their last block, the manager makes a copy for the request that writes. If no
/// block is available for the copy, it refuses the append.
#[test]
fn a_shared_tail_is_never_written_in_place() {
    let mut manager = manager(&[FULL], 2);
    admit(&mut manager, 0, &ids(0..8), Part::WHOLE).unwrap();
    manager.commit(0, 8).unwrap();
    manager.fork(0, 1).unwrap();
    manager.truncate(0, 6, Until::Now).unwrap();
    assert!(matches!(step(&mut manager, 0, &[9], None, 0), Err(ManagerError::OutOfBlocks(_))));
    manager.release(1, Until::Now).unwrap();
    step(&mut manager, 0, &[9], None, 0).unwrap();
}
