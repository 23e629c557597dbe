//! Replays of hybrid models: compares the hits of windows and states with values computed from the
//! trace, and tests pools that are too small.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::HashSet;
use std::sync::Arc;

use kvpool::Verify;
use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool_journal::{Journal, JournalConfig, Options};
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::replay::{Mode, Replay, ReplayConfig, ReplayError, Report};
use kvpool_replay::trace::{Trace, TraceRequest};

/// Number of tokens per block id of the trace.
const NAMED: usize = 512;

fn trace(requests: &[(&[u64], u32)]) -> Trace {
    let request = |(index, &(ids, tail)): (usize, &(&[u64], u32))| TraceRequest {
        // The times are far enough apart that no request waits for another.
        timestamp_ms: index as f64 * 1e6,
        input_length: ids.len() as u32 * NAMED as u32 + tail,
        output_length: 3,
        // A partial last block has an id that no other request has.
        hash_ids: ids.iter().copied().chain((tail > 0).then_some(1_000_000 + index as u64)).collect(),
    };
    Trace::new(requests.iter().enumerate().map(request).collect(), NAMED).unwrap()
}

fn groups(kind: GroupKind, block: usize, number: usize, keep: Keep) -> Groups {
    let sparse = GroupSpec { keep, ..GroupSpec::new(kind, block) };
    let full = std::iter::once(GroupSpec::new(GroupKind::Full, block));
    Groups::new(full.chain(std::iter::repeat_n(sparse, number)).collect(), None).unwrap()
}

const WINDOW: GroupKind = GroupKind::Sliding { window: 1024 };

fn run(trace: &Trace, mode: Mode, groups: &Groups, capacity_blocks: usize) -> Report {
    let config = ReplayConfig {
        mode,
        block_size: groups.unit(),
        groups: Some(groups.clone()),
        capacity_blocks,
        threads: 1,
        ..ReplayConfig::default()
    };
    let mut replay = Replay::new(Arc::new(trace.clone()), config).unwrap();
    let total = replay.total();
    assert_eq!(replay.advance(usize::MAX).unwrap(), total);
    replay.check_invariants().unwrap();
    replay.report()
}

/// Returns the total number of prompt tokens that are in whole blocks of an earlier prompt. The last
/// token of each prompt does not count.
fn seen_before(trace: &Trace, block: usize) -> u64 {
    let mut seen = HashSet::new();
    let mut tokens = 0;
    for request in trace.requests() {
        let whole = request.hash_ids.len().min(request.input_length as usize / NAMED);
        let ids = &request.hash_ids[..whole];
        let shared = ids.iter().take_while(|id| seen.contains(*id)).count() * NAMED;
        let limit = request.input_length as usize - 1;
        tokens += (shared.min(limit) / block * block) as u64;
        seen.extend(ids.iter().copied());
    }
    tokens
}

#[test]
fn where_everything_is_kept_and_fits_every_group_serves_what_was_seen() {
    let made = generate(&GeneratorConfig { requests: 50, seed: 7, ..GeneratorConfig::default() }).unwrap();
    for (kind, block) in
        [(WINDOW, 64), (WINDOW, 16), (GroupKind::Chunked { chunk: 2048 }, 64), (GroupKind::State, 256)]
    {
        let report = run(&made, Mode::Lookup, &groups(kind, block, 2, Keep::All), 2_000_000);
        let tokens = seen_before(&made, block);
        assert!(tokens > 0);
        assert_eq!(report.hits.token_hits, tokens, "{kind:?}");
        assert_eq!(report.hits.tokens, made.summary().input_tokens);
        // A group of kind `chunked` may serve more tokens alone, because it needs no blocks at the end
        // of a chunk.
        assert_eq!(report.groups[0].reach_tokens, tokens, "{kind:?}");
        assert!(report.groups.iter().all(|group| group.reach_tokens >= tokens), "{kind:?}");
        assert_eq!((report.evicted, report.cut_short), (0, Some(0)));
    }
}

/// Returns a trace with two later turns. The first continues the previous turn at the end of its last
/// whole block. The second diverges in the middle of the previous turn.
fn turns() -> Trace {
    trace(&[
        (&[1, 2, 3, 4, 5, 6], 100),
        (&[1, 2, 3, 4, 5, 6, 7, 8], 0),
        (&[1, 2, 3, 4, 20, 21], 17),
        (&[1, 2, 3, 4, 30], 1),
    ])
}

#[test]
fn junctions_keep_the_ends_of_prompts_and_where_one_turned_off() {
    for (kind, block) in [(WINDOW, 16), (GroupKind::State, 256)] {
        let report = run(&turns(), Mode::Lookup, &groups(kind, block, 1, Keep::Junctions), 100_000);
        // Requests 2, 3 and 4 follow request 1. Request 2 continues at its end, where a state was kept.
        // Request 3 diverges in its middle, where no state was kept, and keeps one there. Therefore
        // request 4 hits.
        let [full, sparse] = &report.groups[..] else { panic!("two groups") };
        assert_eq!(report.hits.token_hits, 6 * 512 + 4 * 512, "{kind:?}");
        assert_eq!(full.reach_tokens, 6 * 512 + 2 * 4 * 512, "{kind:?}");
        assert_eq!(sparse.reach_tokens, report.hits.token_hits, "{kind:?}");
    }
}

#[test]
fn spacing_decides_how_much_of_a_turn_off_is_hit() {
    for (every, hit) in [(2048, 4 * 512), (1024, 4 * 512), (4096, 0), (1536, 3 * 512)] {
        let kept = groups(GroupKind::State, 256, 1, Keep::Every(every));
        let report = run(&turns(), Mode::Lookup, &kept, 100_000);
        assert_eq!(report.hits.token_hits, 6 * 512 + hit + 4 * 512, "{every}");
    }
    let all = run(&turns(), Mode::Lookup, &groups(GroupKind::State, 256, 1, Keep::All), 100_000);
    assert_eq!(all.hits.token_hits, 6 * 512 + 2 * 4 * 512);
    let counted = |keep| {
        run(&turns(), Mode::Lookup, &groups(GroupKind::State, 256, 1, keep), 100_000).checkpoints.unwrap()
    };
    assert!(counted(Keep::Junctions) < counted(Keep::Every(1024)));
    assert!(counted(Keep::Every(1024)) < counted(Keep::All));
}

#[test]
fn a_server_without_a_queue_has_the_hits_of_lookups() {
    for (kind, block) in [(WINDOW, 16), (GroupKind::State, 256), (GroupKind::Chunked { chunk: 1024 }, 64)] {
        for keep in [Keep::All, Keep::Junctions, Keep::Every(1536)] {
            let groups = groups(kind, block, 2, keep);
            let [lookup, engine] =
                [Mode::Lookup, Mode::Engine].map(|mode| run(&turns(), mode, &groups, 100_000));
            assert_eq!(engine.hits, lookup.hits, "{kind:?} {keep:?}");
            assert_eq!(engine.groups, lookup.groups, "{kind:?} {keep:?}");
            assert_eq!(engine.engine.unwrap().decode_appends, 4 * 3);
        }
    }
}

#[test]
fn pools_that_are_too_small_end_all_requests_and_stay_sound() {
    let made = generate(&GeneratorConfig { requests: 30, seed: 3, ..GeneratorConfig::default() }).unwrap();
    for (kind, block) in [(WINDOW, 16), (GroupKind::State, 256)] {
        let groups = groups(kind, block, 2, Keep::Every(1024));
        for capacity in [1, 2, 3, 7, 60, 400, 2000] {
            let lookup = run(&made, Mode::Lookup, &groups, capacity);
            assert_eq!(lookup.hits.requests, 30);
            let engine = run(&made, Mode::Engine, &groups, capacity);
            let served = engine.hits.requests + engine.engine.unwrap().rejected;
            assert!(served >= 30, "{capacity}: {served}");
        }
        let tiny = run(&made, Mode::Lookup, &groups, 3);
        assert!(tiny.cut_short > Some(0));
    }
}

#[test]
fn more_memory_for_windows_that_are_given_up() {
    // Eight prompts of 8,192 tokens repeat. With full attention they do not fit into the pool, but with
    // windows they do.
    let ids: Vec<Vec<u64>> = (0..8).map(|prompt| (1..=16).map(|at| prompt * 100 + at).collect()).collect();
    let requests: Vec<_> = (0..32).map(|turn| (&ids[turn % 8][..], 1)).collect();
    let trace = trace(&requests);
    let whole = groups(GroupKind::Full, 64, 3, Keep::All);
    let windows = groups(WINDOW, 64, 3, Keep::Junctions);
    // The capacity has room for the blocks that are kept of each prompt, and for all blocks of the
    // prompt that is computed, which is one chunk.
    let capacity = 8 * (128 + 3 * 17) + 4 * 129;
    assert_eq!(run(&trace, Mode::Lookup, &whole, capacity).hits.token_hits, 0);
    assert_eq!(run(&trace, Mode::Lookup, &windows, capacity).hits.token_hits, 24 * 8192);
}

/// No state was kept at the position at which the third turn diverges, so this turn does not hit there.
/// The report names the group of the states as the reason.
#[test]
fn a_replay_reports_which_group_limits_its_hits() {
    for mode in [Mode::Lookup, Mode::Engine] {
        let groups = groups(GroupKind::State, 256, 1, Keep::Junctions);
        let config = ReplayConfig {
            mode,
            block_size: groups.unit(),
            groups: Some(groups),
            explain: true,
            capacity_blocks: 100_000,
            ..ReplayConfig::default()
        };
        let journal = Journal::ring(1 << 24, JournalConfig::default()).unwrap();
        let mut replay = Replay::with_journal(Arc::new(turns()), config, journal).unwrap();
        replay.advance(usize::MAX).unwrap();
        replay.check_invariants().unwrap();
        let report = replay.report();
        let misses = report.misses.unwrap();
        assert_eq!(misses["unserved"], 4 * 512, "{mode:?}: {misses:?}");
        let unserved: Vec<_> = report.groups.iter().map(|group| group.unserved_tokens).collect();
        assert_eq!(unserved, [Some(0), Some(4 * 512)], "{mode:?}");
        let image = replay.take_journal().and_then(|mut journal| journal.image()).unwrap();
        let run = kvpool_journal::replay(&image, Options::default(), &mut |_| true).unwrap();
        assert_eq!(run.difference, None, "{mode:?}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let groups = groups(WINDOW, 64, 1, Keep::All);
    let config = || ReplayConfig { block_size: 64, groups: Some(groups.clone()), ..ReplayConfig::default() };
    let refused = |config| match Replay::new(Arc::new(turns()), config) {
        Err(ReplayError::InvalidConfig { field, .. }) => field.to_string(),
        Err(error) => error.to_string(),
        Ok(_) => panic!("taken"),
    };
    assert!(refused(ReplayConfig { verify: Verify::Tokens, ..config() }).contains("verif"));
    assert!(refused(ReplayConfig { block_size: 32, ..config() }).contains("block_size is 32"));
}
