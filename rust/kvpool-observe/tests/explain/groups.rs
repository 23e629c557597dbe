//! Scripted cases of `explain` with several KV-cache groups: which group limits a hit, how long a hit
//! each group alone could serve, and why not a longer one.

use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool::{AdmitOptions, CacheManager, ExtraKeys, ManagerConfig, Part};
use kvpool_observe::explain::Requester;
use kvpool_observe::{Explanation, ManagerWatch, MissReason};

use super::{ALL, BLOCK, admit, explaining, run, tokens};

const FULL: GroupSpec = GroupSpec::new(GroupKind::Full, BLOCK);

fn kept(kind: GroupKind, keep: Keep) -> GroupSpec {
    GroupSpec { keep, ..GroupSpec::new(kind, BLOCK) }
}

fn manager(blocks: usize, groups: Vec<GroupSpec>) -> CacheManager {
    let groups = Some(Groups::new(groups, None).unwrap());
    explaining(ManagerConfig { num_blocks: blocks + 1, block_size: BLOCK, groups, ..Default::default() }, ALL)
}

/// Admits, computes and releases a request. The prompt is computed in chunks, which end at the
/// positions `ends` and at the end of the prompt.
fn run_in_chunks(manager: &mut CacheManager, id: &str, tokens: &[u32], ends: &[usize]) {
    let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
    let part = Part { allocate_tokens: Some(0), ..Part::WHOLE };
    manager.admit_with(id, prompt, &AdmitOptions { part, ..AdmitOptions::default() }).unwrap();
    for end in ends.iter().copied().chain([tokens.len()]) {
        manager.extend(id, end).unwrap();
        manager.commit(id, end).unwrap();
        manager.take_plan().unwrap();
    }
    manager.release(id, None).unwrap();
}

fn explain(manager: &CacheManager, id: &str) -> Explanation {
    manager.check_invariants().unwrap();
    manager.explain(id).unwrap()
}

/// The positions, in tokens, at which a group's reach ends, each with its reason.
type Ends = Vec<(usize, &'static str)>;

/// Returns for each group how many tokens it could serve, whether it limits the hit, and where and why
/// its reach ends.
fn reach(explanation: &Explanation) -> Vec<(usize, bool, Ends)> {
    let of = |group: &kvpool_observe::GroupReach| {
        let ends = group.ends.iter().map(|end| (end.tokens.end, end.reason.name())).collect();
        (group.reach_tokens, group.limits, ends)
    };
    explanation.groups.iter().map(of).collect()
}

fn spans(explanation: &Explanation) -> Vec<(usize, usize, &'static str, Option<u16>)> {
    let spans = explanation.spans.iter();
    spans.map(|span| (span.tokens.start, span.tokens.end, span.reason.name(), span.reason.group())).collect()
}

/// If a prompt is computed in one step, the group of states caches one state, at the end of the prompt.
/// A prompt that diverges before that position gets no hit in this group.
#[test]
fn a_state_was_not_kept_where_prompts_part() {
    let mut manager = manager(40, vec![FULL, kept(GroupKind::State, Keep::Junctions)]);
    run_in_chunks(&mut manager, "a", &tokens(0, 6), &[]);
    let mut other = tokens(0, 4);
    other.extend(tokens(100, 2));
    assert_eq!(admit(&mut manager, "b", &other), 0);
    let explanation = explain(&manager, "b");
    assert_eq!(
        reach(&explanation),
        [(16, false, vec![(20, "diverged")]), (0, true, vec![(16, "not-kept")]),]
    );
    assert_eq!(
        spans(&explanation),
        [(0, 16, "unserved", Some(1)), (16, 20, "diverged", None), (20, 24, "behind", None)]
    );
    let misses = manager.misses().unwrap();
    assert_eq!(misses.unserved, [0, 16]);
    assert_eq!(misses.admitted.get("unserved"), Some(manager.stats().unserved_tokens));
}

/// The state group can serve only 8 tokens, up to the last cached state, while full attention can serve
/// 32.
#[test]
fn states_further_on_were_not_kept() {
    let mut manager = manager(60, vec![FULL, kept(GroupKind::State, Keep::Every(8))]);
    run_in_chunks(&mut manager, "a", &tokens(0, 10), &[8, 30]);
    assert_eq!(admit(&mut manager, "b", &tokens(0, 9)), 8);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(32, false, vec![]), (8, true, vec![(32, "not-kept")])]);
    assert_eq!(spans(&explanation), [(8, 32, "unserved", Some(1)), (32, 36, "last-token", None)]);
}

/// If a hit ends inside a block, the explanation starts at the first token after the hit.
#[test]
fn a_hit_ends_inside_a_block() {
    let full = GroupSpec { partial_hits: true, ..GroupSpec::new(GroupKind::Full, 4 * BLOCK) };
    let groups = Some(Groups::new(vec![full], Some(BLOCK)).unwrap());
    let config = ManagerConfig { num_blocks: 40, block_size: BLOCK, groups, ..Default::default() };
    let mut manager = explaining(config, ALL);
    run_in_chunks(&mut manager, "a", &tokens(0, 6), &[]);
    assert_eq!(admit(&mut manager, "b", &tokens(0, 6)), 20);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(20, false, vec![])]);
    assert_eq!(spans(&explanation), [(20, 24, "last-token", None)]);
    let mut other = tokens(0, 5);
    other.extend(tokens(100, 2));
    assert_eq!(admit(&mut manager, "c", &other), 20);
    let explanation = explain(&manager, "c");
    assert_eq!(reach(&explanation), [(20, true, vec![(32, "diverged")])]);
    assert_eq!(spans(&explanation), [(20, 28, "diverged", None)]);
}

/// If a cached state is dropped by its block id, the explanation gives the reason `dropped-by-id`.
#[test]
fn a_dropped_state_limits_a_hit() {
    let mut manager = manager(12, vec![FULL, kept(GroupKind::State, Keep::Every(8))]);
    run_in_chunks(&mut manager, "a", &tokens(0, 4), &[8]);
    let states = (1..=12).map(kvpool::BlockId::new);
    let of_states =
        |block: &kvpool::BlockId| manager.pool().name_of(*block).is_some_and(|name| name.group == 1);
    let states: Vec<_> = states.filter(of_states).collect();
    assert_eq!(states.len(), 2);
    manager.drop_cached(&states).unwrap();
    assert_eq!(admit(&mut manager, "b", &tokens(0, 5)), 0);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(16, false, vec![]), (0, true, vec![(16, "dropped-by-id")])]);
}

/// If blocks of a sliding window are dropped, the hit ends at the last position for which the whole
/// window is still cached.
#[test]
fn a_window_lost_a_block() {
    let mut manager = manager(40, vec![FULL, GroupSpec::new(GroupKind::Sliding { window: 5 }, BLOCK)]);
    run(&mut manager, "a", &tokens(0, 6));
    let of_window = |position: u32| {
        let mut blocks = (1..=40).map(kvpool::BlockId::new);
        let hash =
            manager.prepare(&tokens(0, 6), ExtraKeys::default()).unwrap().chain().hashes()[position as usize];
        blocks.find(|&block| {
            manager.pool().name_of(block).is_some_and(|name| name.group == 1 && *name.hash == hash)
        })
    };
    // With a hit of 24 tokens, the next token reads the tokens from 20 on; with a hit of 20, from 16
    // on. Those tokens are in the blocks 4 and 5.
    let gone = [of_window(4).unwrap(), of_window(5).unwrap()];
    manager.drop_cached(&gone).unwrap();
    assert_eq!(admit(&mut manager, "b", &tokens(0, 7)), 16);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(24, false, vec![]), (16, true, vec![(24, "dropped-by-id")])]);
    assert_eq!(explanation.groups[1].ends[0].blocks, 5..6);
    assert_eq!(spans(&explanation)[0], (16, 24, "unserved", Some(1)));
}

/// With `Keep::Junctions`, a sliding-window group caches only the blocks at the ends of prompts. All
/// other blocks are released without being cached.
#[test]
fn a_window_was_given_up() {
    let mut manager = manager(40, vec![FULL, kept(GroupKind::Sliding { window: 5 }, Keep::Junctions)]);
    run(&mut manager, "a", &tokens(0, 6));
    assert_eq!(admit(&mut manager, "b", &tokens(0, 4)), 0);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(12, false, vec![]), (0, true, vec![(12, "not-kept")])]);
    assert_eq!(
        explanation.to_string(),
        "request \"b\", admitted at 2: 0 of 16 tokens cached\n  \
         group 0 (full) serves 12 tokens\n  \
         group 1 (sliding) serves 0 tokens, the least; at 12: computed before, and not kept\n  \
         blocks 0-2 (tokens 0-11): cached in part, but not all that group 1 needs\n  \
         block 3 (tokens 12-15): cached, but the last token is always left to compute"
    );
}

/// Full attention can also be the group that limits a hit. The explanation is then the same as without
/// other groups.
#[test]
fn full_attention_can_limit_a_hit() {
    let mut manager = manager(12, vec![FULL, GroupSpec::new(GroupKind::Sliding { window: 5 }, BLOCK)]);
    run(&mut manager, "a", &tokens(0, 4));
    run(&mut manager, "b", &tokens(100, 6));
    admit(&mut manager, "c", &tokens(0, 5));
    let explanation = explain(&manager, "c");
    let full = &explanation.groups[0];
    let end = &full.ends[0];
    assert_eq!((end.blocks.start * BLOCK, end.reason.name()), (full.reach_tokens, "evicted"));
    assert_eq!(end.reason.requester(), Some(&Requester::Request("b".into())));
    assert!(full.limits, "{explanation}");
    assert!(!spans(&explanation).iter().any(|span| span.2 == "unserved"), "{explanation}");
}

/// If a prompt was never computed, every group reports that as its reason, and no single group is
/// reported as the limit.
#[test]
fn a_prompt_that_was_never_computed_limits_no_group() {
    let groups = vec![FULL, kept(GroupKind::State, Keep::All), GroupSpec::new(GroupKind::Cross, BLOCK)];
    let mut manager = manager(40, groups);
    admit(&mut manager, "a", &tokens(0, 3));
    let explanation = explain(&manager, "a");
    assert_eq!(
        reach(&explanation),
        [(0, true, vec![(4, "never-seen")]), (0, true, vec![(4, "never-seen")]), (8, false, vec![]),]
    );
    assert_eq!(spans(&explanation), [(0, 4, "never-seen", None), (4, 12, "behind", None)]);
    // While the first request computes the prompt, a second request with the same prompt gets the
    // reason `BeingComputed`.
    admit(&mut manager, "b", &tokens(0, 3));
    let ends = explain(&manager, "b").groups.into_iter().flat_map(|group| group.ends);
    assert!(ends.into_iter().all(|end| matches!(end.reason, MissReason::BeingComputed { .. })));
}

/// Blocks with the same digest in two KV-cache groups are two contents. If one is dropped, the other
/// remains.
#[test]
fn groups_drop_one_digest_separately() {
    let mut manager = manager(40, vec![FULL, FULL]);
    run(&mut manager, "a", &tokens(0, 3));
    let of = |group: u16| {
        let mut blocks = (1..=40).map(kvpool::BlockId::new);
        blocks.find(|&block| {
            let pool = manager.pool();
            pool.name_of(block).is_some_and(|name| name.group == group) && pool.depth_of(block) == Some(2)
        })
    };
    manager.drop_cached(&[of(1).unwrap()]).unwrap();
    assert_eq!(admit(&mut manager, "b", &tokens(0, 4)), 8);
    let explanation = explain(&manager, "b");
    assert_eq!(reach(&explanation), [(12, false, vec![]), (8, true, vec![(12, "dropped-by-id")])]);
    assert_eq!(spans(&explanation), [(8, 12, "dropped-by-id", None), (12, 16, "never-seen", None)]);
}

/// A fork copies the states of its parent. These copies evict blocks that other requests cached.
#[test]
fn a_fork_evicts_for_its_states() {
    let mut manager = manager(7, vec![FULL, kept(GroupKind::State, Keep::Junctions)]);
    run_in_chunks(&mut manager, "a", &tokens(0, 3), &[]);
    admit(&mut manager, "b", &tokens(100, 2));
    assert_eq!(manager.stats().pool.evicted, 0);
    manager.fork("b", "c").unwrap();
    manager.check_invariants().unwrap();
    assert_eq!(manager.stats().pool.evicted, 1);
}

/// If the policy chooses a block for eviction while a planned copy pins it, the block is evicted when
/// the caller takes the plan.
#[test]
fn a_block_pinned_by_a_copy_leaves_with_the_plan() {
    let state = GroupSpec { keep: Keep::Junctions, ..GroupSpec::new(GroupKind::State, 2) };
    let groups = Groups::new(vec![state, state, GroupSpec::new(GroupKind::Full, 4)], None).unwrap();
    let config = ManagerConfig { num_blocks: 10, block_size: 2, groups: Some(groups), ..Default::default() };
    let mut manager = explaining(config, ALL);
    admit(&mut manager, "a", &tokens(0, 2));
    manager.commit("a", 8).unwrap();
    manager.release("a", None).unwrap();
    admit(&mut manager, "b", &tokens(100, 3)[..9]);
    manager.take_plan().unwrap();
    manager.check_invariants().unwrap();
}
