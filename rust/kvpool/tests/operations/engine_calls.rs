//! Tests calls that engines make between admission and release: turns with images, chunks, external KV,
//! drafts, delayed releases.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool::{
    AdmitOptions, CacheManager, Computed, Covered, ExtraKeys, HashError, Loaded, ManagerConfig, ManagerError,
    MultimodalItem, Part, RequestState, Rows, Until,
};

const B: usize = 4;

fn manager(num_blocks: usize) -> CacheManager {
    let config = ManagerConfig { num_blocks, host_blocks: 8, block_size: B, ..ManagerConfig::default() };
    CacheManager::new(config).unwrap()
}

fn admit(manager: &mut CacheManager, id: &str, tokens: &[u32], part: Part) -> kvpool::Admission {
    let options = AdmitOptions { part, ..AdmitOptions::default() };
    manager.admit_with(id, manager.prepare(tokens, ExtraKeys::default()).unwrap(), &options).unwrap()
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

fn image(offset: u64) -> MultimodalItem {
    MultimodalItem { identifier: (*b"image").into(), offset, length: 2 }
}

/// If the second turn of a conversation adds an image, its blocks have the hashes of a prompt that
/// contains the image from the start. No prompt with another image, or without an image, hits them.
#[test]
fn a_turn_with_an_image_is_found_by_its_image() {
    let mut manager = manager(32);
    admit(&mut manager, "chat", &tokens(6), Part::WHOLE);
    manager.append_turn("chat", &tokens(14)[6..], &[image(7)], 0).unwrap();
    manager.commit("chat", 14).unwrap();
    manager.check_invariants().unwrap();
    let cached = |items: Vec<MultimodalItem>| {
        let extra = ExtraKeys { multimodal: items, ..ExtraKeys::default() };
        manager.probe(&manager.prepare(&tokens(14), extra).unwrap()).unwrap().cached_blocks
    };
    assert_eq!((cached(vec![image(7)]), cached(vec![image(8)]), cached(Vec::new())), (3, 1, 1));
}

/// Multimodal items that begin before the end of the tokens are refused. No block is taken and no token
/// is appended.
#[test]
fn a_turn_with_an_image_in_the_past_changes_nothing() {
    let mut manager = manager(32);
    admit(&mut manager, "chat", &tokens(6), Part::WHOLE);
    for state in [RequestState::Running, RequestState::Preempted] {
        let before = (manager.request("chat").unwrap(), manager.pool().free_order());
        let error = manager.append_turn("chat", &[1; 9], &[image(3)], 5).unwrap_err();
        assert!(matches!(error, ManagerError::Hash(HashError::ItemAppended { .. })), "{error:?}");
        assert_eq!((manager.request("chat").unwrap(), manager.pool().free_order()), before, "{state:?}");
        if state == RequestState::Running {
            manager.preempt("chat", Until::Now).unwrap();
        }
    }
}

/// If only a chunk of the prompt has blocks, no tokens after the chunk can be committed, because they
/// have no slots.
#[test]
fn a_chunk_is_computed_as_far_as_it_has_blocks() {
    let mut manager = manager(32);
    let admission =
        admit(&mut manager, "long", &tokens(20), Part { allocate_tokens: Some(6), ..Part::WHOLE });
    assert_eq!(admission.block_ids.len(), 2);
    assert!(matches!(manager.commit("long", 9), Err(ManagerError::BadComputedCount { covered: 8, .. })));
    manager.commit("long", 6).unwrap();
    assert_eq!(manager.extend("long", 4).unwrap(), [], "covers no less than before");
    assert_eq!(manager.extend("long", 12).unwrap().len(), 1);
    manager.commit("long", 12).unwrap();
    // One call covers the last chunk of the prompt, and another one commits it and appends the sampled
    // token.
    let rows = Rows {
        requests: &["long".into()],
        offsets: &[0, 0],
        covered: Covered::Each(&[20]),
        ..Rows::default()
    };
    assert_eq!(manager.append_ragged(&rows).unwrap().len(), 2);
    manager.append(&["long".into()], &[7], Computed::AllButLast).unwrap();
    assert_eq!(manager.request("long").unwrap().computed_tokens, 20);
    manager.check_invariants().unwrap();
}

/// Accepted drafts are registered with the step that accepted them. After drafts are rejected, only
/// their slots remain.
#[test]
fn accepted_drafts_are_computed_and_rejected_ones_are_not() {
    let mut manager = manager(32);
    admit(&mut manager, "a", &tokens(6), Part::WHOLE);
    let step = |manager: &mut CacheManager, tokens: &[u32]| {
        let rows = Rows {
            requests: &["a".into()],
            tokens,
            offsets: &[0, tokens.len()],
            computed: Computed::AllButLast,
            covered: Covered::Lookahead(5),
            ..Rows::default()
        };
        manager.append_ragged(&rows).unwrap().len()
    };
    assert_eq!(step(&mut manager, &[6]), 1); // seven tokens and five drafts need twelve slots
    assert_eq!(step(&mut manager, &[7]), 1); // no draft was accepted, so one more slot is needed
    assert_eq!(manager.request("a").unwrap().computed_tokens, 7);
    // Two drafts were accepted. The table already has slots for them.
    assert_eq!(step(&mut manager, &[8, 9, 10]), 0);
    let info = manager.request("a").unwrap();
    assert_eq!((info.tokens, info.computed_tokens, info.blocks), (11, 10, 4));
    assert_eq!(manager.pool().stats().registered, 2);
    // A truncation also releases lookahead slots. Their blocks are fenced, because the step may still
    // write to them.
    manager.truncate("a", 8, Until::Step(1)).unwrap();
    assert_eq!((manager.block_table("a").unwrap().len(), manager.pool().num_fenced()), (2, 2));
    manager.check_invariants().unwrap();
}

/// As in dynamo #15079, a request is aborted during a transfer of KV. Its blocks must not be allocated
/// to other requests before the transfer has ended.
#[test]
fn an_abort_during_a_load_keeps_the_blocks_until_it_ends() {
    let mut manager = manager(8);
    admit(&mut manager, "a", &tokens(12), Part { external_tokens: 11, ..Part::WHOLE });
    assert_eq!(manager.request("a").unwrap().state, RequestState::Loading);
    assert!(manager.commit("a", 4).is_err() && manager.preempt("a", None).is_err());
    manager.release("a", Until::Now).unwrap();
    assert_eq!((manager.pool().num_available(), manager.stats().releasing), (4, 1));
    assert!(
        manager.admit("a", manager.prepare(&[1], ExtraKeys::default()).unwrap()).is_err(),
        "its id is taken"
    );
    assert_eq!(manager.external_done("a", Loaded::All).unwrap(), 0);
    assert_eq!((manager.pool().num_available(), manager.contains("a")), (7, false));
    assert_eq!(manager.pool().stats().registered, 0, "nobody vouches for what came late");
    manager.check_invariants().unwrap();
}

/// Tokens whose load failed are computed, and also the tokens after them. Tokens that are cached on the
/// device are not loaded.
#[test]
fn failed_ranges_are_computed_again() {
    let mut manager = manager(32);
    admit(&mut manager, "first", &tokens(9), Part::WHOLE);
    manager.commit("first", 9).unwrap();
    let part = Part { external_tokens: 16, ..Part::WHOLE };
    let admission = admit(&mut manager, "a", &tokens(20), part);
    assert_eq!((admission.cached_tokens, admission.external_tokens), (8, 8));
    // The connector did not load the tokens that were cached. So a report that they failed has no
    // effect.
    manager.external_done("a", Loaded::AllBut(&[0..4, 14..15])).unwrap();
    let stats = manager.stats();
    assert_eq!(manager.request("a").unwrap().computed_tokens, 14);
    assert_eq!(
        (stats.prompt_tokens, stats.hit_tokens, stats.external_tokens, stats.computed_tokens),
        (29, 8, 6, 15)
    );
    manager.check_invariants().unwrap();
}

/// A token that is sampled after a preemption is appended to the preempted request, and is part of its
/// resumption.
#[test]
fn a_preempted_request_takes_the_token_sampled_last() {
    let mut manager = manager(32);
    admit(&mut manager, "a", &tokens(8), Part::WHOLE);
    manager.commit("a", 8).unwrap();
    manager.preempt("a", Until::Step(1)).unwrap();
    assert_eq!(manager.append(&["a".into()], &[8], Computed::AllButLast).unwrap(), []);
    manager.complete_step(1).unwrap();
    let admission = manager.resume("a").unwrap();
    assert_eq!((admission.cached_tokens, admission.block_ids.len()), (8, 3));
    manager.check_invariants().unwrap();
}

/// The release of a request that is being swapped out waits until the swap is completed or aborted. If
/// the ticket of the release has ended by then, nothing is fenced.
#[test]
fn a_release_during_a_swap_takes_effect_at_its_end() {
    for complete in [true, false] {
        let mut manager = manager(8);
        admit(&mut manager, "a", &tokens(8), Part::WHOLE);
        let swap = manager.begin_swap_out(&["a".into()]).unwrap();
        let ticket = manager.fence().unwrap();
        manager.release("a", ticket).unwrap();
        manager.end_fence(ticket).unwrap();
        assert!(manager.contains("a"));
        manager.take_plan().unwrap();
        if complete {
            manager.complete_swap(swap).unwrap();
        } else {
            manager.abort_swap(swap).unwrap();
        }
        assert!(!manager.contains("a"));
        let idle = |tier: usize| manager.tiers().pool(tier).unwrap().num_held() == 0;
        assert!(idle(0) && idle(1));
        manager.check_invariants().unwrap();
    }
}

/// A later admission of a plan cannot hit cached blocks that an earlier admission of the same plan
/// evicts, even if it needs no other block.
#[test]
fn a_plan_promises_a_cached_block_once() {
    let mut manager = manager(5);
    admit(&mut manager, "old", &tokens(8), Part::WHOLE);
    manager.commit("old", 8).unwrap();
    manager.release("old", Until::Now).unwrap();
    let prompt =
        |manager: &CacheManager, tokens: &[u32]| manager.prepare(tokens, ExtraKeys::default()).unwrap();
    let mut plan = manager.plan_step();
    manager.plan_admit(&mut plan, "big", prompt(&manager, &[9; 16])).unwrap();
    let part = Part { allocate_tokens: Some(0), ..Part::WHOLE };
    let options = AdmitOptions { part, ..AdmitOptions::default() };
    // The admission of "big", which is planned first, evicts the blocks of this prompt. So this
    // admission hits nothing.
    let hit = manager.plan_admit_with(&mut plan, "hit", prompt(&manager, &tokens(9)), &options);
    assert_eq!(hit.unwrap(), 0);
    manager.commit_step(&mut plan).unwrap();
    assert_eq!(manager.block_table("big").unwrap().len(), 4);
    assert_eq!(manager.block_table("hit").unwrap().len(), 0);
    manager.check_invariants().unwrap();
}
