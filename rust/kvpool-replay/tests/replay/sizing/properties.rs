//! Properties of small random traces, at every capacity.

use kvpool_replay::{
    sizing::{
        Blocks, CurvePoint, HintConfig, References, SampleConfig, SampledLru, lru, lru_distances,
        lru_with_hints, optimal, over_time,
    },
    trace::Trace,
};
use proptest::{collection::vec, prelude::*, test_runner::FileFailurePersistence};

use super::models::{BLOCK_TOKENS, FIRST_MS, exhaustive_optimum, forest, pool, sum, tokens, used_later};

fn traces(blocks: usize, requests: usize) -> impl Strategy<Value = Trace> {
    (vec(0..1000_usize, 1..=blocks), vec((0..1000_usize, 0..BLOCK_TOKENS as u32), 1..=requests))
        .prop_map(|(parents, requests)| forest(&parents, &requests))
}

/// Draws whether partial last blocks are references.
fn both() -> impl Strategy<Value = Blocks> {
    prop_oneof![Just(Blocks::All), Just(Blocks::Full)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn lru_is_a_plain_lru_at_every_capacity(trace in traces(24, 24), blocks in both()) {
        let references = References::new(&trace, blocks).unwrap();
        let distances = lru_distances(&references);
        let curve = distances.curve();
        for capacity in 0..references.unique_blocks() + 3 {
            let expected = pool(&references, capacity, |_, _| true);
            let outcome = lru(&references, capacity);
            prop_assert_eq!(outcome.hits(), &expected[..]);
            let point = curve.at(capacity as u64);
            prop_assert_eq!(point, outcome.total());
            prop_assert_eq!((point.block_hits, point.token_hits),
                (sum(&expected), tokens(&references, &expected)));
        }
        prop_assert_eq!(distances.reused(), references.reused() as u64);
        prop_assert_eq!(distances.cold(), references.unique_blocks() as u64);
        let buckets = distances.histogram();
        prop_assert_eq!(buckets.iter().map(|bucket| bucket.references).sum::<u64>(), distances.reused());
        for quantile in [0.0, 0.25, 0.5, 1.0] {
            let reached = distances.quantile(quantile).map(|at| curve.at(at).block_hits as f64);
            prop_assert_eq!(reached.is_none(), distances.reused() == 0);
            prop_assert!(reached.is_none_or(|hits| hits >= quantile * distances.reused() as f64));
        }
    }

    #[test]
    fn optimal_is_what_exhaustive_search_finds(trace in traces(7, 7), blocks in both()) {
        let references = References::new(&trace, blocks).unwrap();
        for capacity in 0..=references.unique_blocks() {
            let outcome = optimal(&references, capacity);
            let best = exhaustive_optimum(&references, capacity as u32);
            prop_assert_eq!(outcome.total().block_hits, u64::from(best));
            prop_assert_eq!(outcome.total().token_hits, tokens(&references, outcome.hits()));
        }
    }

    #[test]
    fn optimal_rises_with_capacity_and_is_never_below_lru(trace in traces(40, 60)) {
        let references = References::new(&trace, Blocks::All).unwrap();
        let curve = lru_distances(&references).into_curve();
        let mut before = 0;
        for capacity in 0..=references.unique_blocks() {
            let hits = optimal(&references, capacity).total().block_hits;
            prop_assert!(hits >= before && hits >= curve.at(capacity as u64).block_hits);
            before = hits;
        }
        prop_assert_eq!(before, references.reused() as u64);
    }

    #[test]
    fn hints_spare_places(trace in traces(24, 24), seed: u64) {
        let references = References::new(&trace, Blocks::All).unwrap();
        for capacity in 1..=references.unique_blocks() {
            let hits = |accuracy| lru_with_hints(&references, capacity, HintConfig { accuracy, seed })
                .unwrap();
            prop_assert_eq!(hits(0.0), lru(&references, capacity));
            let told_all = pool(&references, capacity, |index, block| used_later(&references, index, block));
            // The model stores dead blocks before it gets the hint that they are dead. This may cost
            // hits, but never adds any.
            prop_assert!(hits(1.0).total().block_hits >= sum(&told_all));
            let [low, high] = [hits(0.3), hits(0.7)];
            prop_assert!(hits(0.0).hits().iter().zip(low.hits()).all(|(less, more)| less <= more));
            prop_assert!(low.hits().iter().zip(high.hits()).all(|(less, more)| less <= more));
            prop_assert!(high.hits().iter().zip(hits(1.0).hits()).all(|(less, more)| less <= more));
            prop_assert!(hits(1.0).total().block_hits <= optimal(&references, capacity).total().block_hits);
        }
    }

    #[test]
    fn windows_add_up(trace in traces(24, 24), capacity in 0..24_usize, window_ms in 1.0..5000.0_f64) {
        let references = References::new(&trace, Blocks::All).unwrap();
        let outcome = lru(&references, capacity);
        let windows = over_time(&references, &outcome, window_ms).unwrap();
        prop_assert_eq!(windows.iter().map(|window| window.requests).sum::<u64>(),
            references.requests() as u64);
        prop_assert_eq!(windows.iter().map(|window| window.blocks).sum::<u64>(), references.len() as u64);
        prop_assert_eq!(windows.iter().map(|window| window.block_hits).sum::<u64>(),
            outcome.total().block_hits);
        prop_assert_eq!(windows.iter().map(|window| window.token_hits).sum::<u64>(),
            outcome.total().token_hits);
        prop_assert_eq!(windows.iter().map(|window| window.tokens).sum::<u64>(), references.prompt_tokens());
        for (index, window) in windows.iter().enumerate() {
            prop_assert_eq!(window.start_ms, index as f64 * window_ms);
            let end_ms = window.start_ms + window_ms;
            let inside = references.times_ms().iter().map(|time| time - FIRST_MS);
            let inside = inside.filter(|time| (window.start_ms..end_ms).contains(time)).count() as u64;
            // Because of rounding, a request exactly at the border of two windows may be counted in
            // either.
            prop_assert!(window.requests.abs_diff(inside) <= 1);
        }
    }

    #[test]
    fn every_reuse_is_in_one_run(trace in traces(24, 24), blocks in both()) {
        let references = References::new(&trace, blocks).unwrap();
        let mut from_runs = Vec::new();
        for index in 0..references.requests() {
            let request = references.request(index);
            let mut next = 0;
            for run in references.runs().to(index) {
                prop_assert_eq!((run.start, run.to), (next, index as u32));
                for &block in &request[run.start as usize..run.end() as usize] {
                    let before = (0..index).rev().find(|&before| references.request(before).contains(&block));
                    prop_assert_eq!(before, Some(run.from as usize));
                }
                next = run.end();
                from_runs.push(*run);
            }
            let new = |&block: &u32| (0..index).all(|before| !references.request(before).contains(&block));
            prop_assert!(request[next as usize..].iter().all(new));
            prop_assert!(references.runs().to(index).windows(2).all(|pair| pair[0].from > pair[1].from));
            let live = request.iter().filter(|&&block| used_later(&references, index, block)).count();
            prop_assert_eq!(references.runs().live(index) as usize, live);
        }
        prop_assert_eq!(from_runs.len(), references.runs().len());
        from_runs.sort_by_key(|run| (run.from, run.to));
        let by_from: Vec<_> = (0..references.requests())
            .flat_map(|index| references.runs().from(index)).copied().collect();
        prop_assert_eq!(by_from, from_runs);
    }

    /// If all blocks are in the sample, the result is exact. In these traces, all distances are so
    /// small that each has a bucket of its own.
    #[test]
    fn a_sample_of_everything_is_exact(trace in traces(40, 60), blocks in both(), bounded: bool, seed: u64) {
        let max_blocks = bounded.then_some(40);
        let config = SampleConfig { rate: 1.0, max_blocks, seed, block_tokens: BLOCK_TOKENS, blocks };
        let mut sampled = SampledLru::new(config).unwrap();
        trace.requests().iter().for_each(|request| sampled.push(request));
        let exact = lru_distances(&References::new(&trace, blocks).unwrap());
        prop_assert_eq!(sampled.finish(), exact);
    }

    /// The number of followed blocks never exceeds its limit, and the estimated hits never exceed the
    /// references.
    #[test]
    fn a_bound_is_kept(trace in traces(60, 60), max_blocks in 1..20_usize, seed: u64) {
        let config =
            SampleConfig { rate: 1.0, max_blocks: Some(max_blocks), seed, block_tokens: BLOCK_TOKENS,
                blocks: Blocks::All };
        let mut sampled = SampledLru::new(config).unwrap();
        for request in trace.requests() {
            sampled.push(request);
            prop_assert!(sampled.followed() <= max_blocks && sampled.rate() > 0.0 && sampled.rate() <= 1.0);
        }
        let estimate = sampled.finish();
        let ceiling = estimate.curve().ceiling();
        prop_assert!(ceiling.block_hits <= estimate.curve().references());
        prop_assert!(ceiling.token_hits <= estimate.curve().prompt_tokens());
        let rises = |pair: &[CurvePoint]| {
            pair[0].capacity_blocks < pair[1].capacity_blocks
                && pair[0].block_hits < pair[1].block_hits
                && pair[0].token_hits <= pair[1].token_hits
        };
        prop_assert!(estimate.curve().points().windows(2).all(rises));
    }

    #[test]
    fn the_knee_is_farthest_above_the_diagonal(trace in traces(40, 60), most in 1..50_u64) {
        let references = References::new(&trace, Blocks::All).unwrap();
        let curve = lru_distances(&references).into_curve();
        for most in [None, Some(most)] {
            let ceiling = curve.ceiling().capacity_blocks;
            let end = curve.at(most.map_or(ceiling, |most| most.min(ceiling)));
            let above = |capacity: u64| {
                curve.at(capacity).token_hits as f64 / end.token_hits as f64
                    - capacity as f64 / end.capacity_blocks as f64
            };
            let best = (1..=end.capacity_blocks).map(above).fold(0.0, f64::max);
            let knee = curve.knee(most);
            prop_assert!((knee.map_or(0.0, |knee| knee.prominence) - best).abs() < 1e-12
                || end.token_hits == 0);
            prop_assert!(knee.is_none_or(|knee| curve.at(knee.point.capacity_blocks) == knee.point));
        }
    }
}
