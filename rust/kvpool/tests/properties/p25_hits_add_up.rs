//! Property 25: summed over all requests, hits + computed tokens == prompt tokens, even if requests are
//! refused or preempted several times.
//!
//! In vllm#25780 and vllm#43736, each retry and each preemption counted the prompt and its hits again.
//!
//! An implementation fails this test if it counts in the lookup instead of in the admission that
//! succeeds.

use super::histories::*;
use super::*;

/// In vllm#25780 and #43736, hits and prompt tokens were counted again on every retry of an admission
/// and after every preemption. Hit rates exceeded 1, or decreased under load.
#[test]
fn property_25_each_prompt_token_counts_once() {
    let mut engine = Engine::new(8);
    let prompts: [&[u32]; 3] = [&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7, 8], &[1, 2, 9, 9, 9, 9]];
    let counts = |engine: &Engine| {
        let stats = engine.manager.stats();
        (stats.prompt_tokens, stats.hit_tokens, stats.computed_tokens, stats.admissions)
    };
    engine.admit(0, prompts[0]).unwrap();
    assert_eq!(counts(&engine), (5, 0, 5, 1));
    engine.compute_all(0);
    engine.admit(1, prompts[1]).unwrap(); // 2 blocks are hits
    assert_eq!(counts(&engine), (12, 4, 8, 2));
    engine.admit(7, &[50, 51, 52, 53]).unwrap();
    assert_eq!(counts(&engine), (16, 4, 12, 3));
    for attempt in 0..5 {
        let before = counts(&engine);
        // The admission hits one block and needs two more, but only one is available.
        let error = engine.admit(2, prompts[2]).unwrap_err();
        assert!(matches!(error, ManagerError::OutOfBlocks(_)));
        assert_eq!(counts(&engine), before, "a refused admission counts nothing");
        assert_eq!(engine.manager.stats().refusals, attempt + 1);
    }
    for round in 0..4 {
        engine.manager.preempt(1, None).unwrap();
        engine.resume(1).unwrap();
        assert_eq!(counts(&engine), (16, 4, 12, 3), "a preemption counts no prompt again");
        assert_eq!(engine.manager.stats().resumed_tokens, 7 * (round + 1));
        assert_eq!(engine.manager.stats().resumed_hit_tokens, 4 * (round + 1));
    }
    engine.release(7, None);
    engine.admit(2, prompts[2]).unwrap();
    assert_eq!(counts(&engine), (22, 6, 16, 4));
    // Decoding adds no prompt tokens.
    engine.append(2, 1).unwrap();
    engine.compute_all(2);
    assert_eq!(counts(&engine), (22, 6, 16, 4));
}

proptest! {
    /// Tests vllm#25780 and #43736 with random calls: the counters equal the sums over the first
    /// admissions of all requests.
    #[test]
    fn property_25_hits_and_computed_tokens_sum_to_prompt_tokens(usable in 3usize..9, calls in calls()) {
        let mut engine = Engine::new(usable);
        let mut seen = BTreeSet::new();
        let (mut prompt_tokens, mut hit_tokens) = (0, 0);
        play(&mut engine, &calls, |engine| {
            let stats = engine.manager.stats();
            // Each request that is new after the call was admitted by it. Its tokens and hits are added
            // to the sums.
            for id in engine.requests.keys() {
                if seen.insert(*id) {
                    let info = engine.manager.request(*id).unwrap();
                    prompt_tokens += info.tokens as u64;
                    hit_tokens += info.cached_tokens as u64;
                }
            }
            seen.retain(|id| engine.requests.contains_key(id));
            assert_eq!((stats.prompt_tokens, stats.hit_tokens), (prompt_tokens, hit_tokens));
            assert_eq!(stats.hit_tokens + stats.computed_tokens, stats.prompt_tokens);
        });
    }
}
