//! LRU at one capacity, with the hits of each request.
//!
//! [`lru`], hit rates [over time](super::over_time()) and [hints](super::hints) use this simulation. It
//! shows which requests hit which blocks, while the [curve](super::stack) has only totals.
//!
//! The state is one entry per request. It contains the cached blocks of which the request was the last
//! user. These blocks are a run (neighbouring blocks) of its prompt. Later requests remove blocks from
//! the start of the run, and eviction removes blocks from its end, deepest first. The next victim is
//! always a block of the oldest request with cached blocks, and the position of that request only moves
//! forward.
//!
//! Costs: O(requests + runs) per capacity, and 12 bytes per request.

use super::outcome::Outcome;
use super::references::References;

/// Returns the hits of an LRU cache of `capacity_blocks` blocks. The total is the same as that of
/// [`lru_distances`](super::lru_distances).
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::sizing::{Blocks, References, lru, lru_distances};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// assert_eq!(lru(&references, 700).total(), lru_distances(&references).curve().at(700));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[must_use]
pub fn lru(references: &References, capacity_blocks: usize) -> Outcome {
    simulate(references, capacity_blocks, |_, dead| dead)
}

/// The cached blocks of which one request was the last user.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// Position in the prompt of the first cached block that will be used again. `end` is the position
    /// after the last one.
    start: u32,
    end: u32,
    /// Number of cached blocks after these that no request will use again. They only occupy space.
    dead: u32,
}

impl Resident {
    fn blocks(self) -> usize {
        (self.end - self.start) as usize + self.dead as usize
    }

    /// Evicts up to `most` blocks of this request, last block first. Returns their number.
    fn shrink(&mut self, most: usize) -> usize {
        let dead = most.min(self.dead as usize);
        let live = (most - dead).min((self.end - self.start) as usize);
        // `dead` and `live` are at most as large as these fields, so the subtractions cannot wrap.
        self.dead -= dead as u32;
        self.end -= live as u32;
        dead + live
    }
}

/// Simulates LRU. The dead blocks of a request are those that no later request uses.
/// `stored(request, dead)` returns how many of a request's `dead` blocks the cache stores.
pub(super) fn simulate(
    references: &References,
    capacity_blocks: usize,
    mut stored: impl FnMut(usize, u32) -> u32,
) -> Outcome {
    let requests = references.requests();
    let mut resident = vec![Resident::default(); requests];
    let mut hits = Vec::with_capacity(requests);
    let (mut cached, mut oldest) = (0_usize, 0);
    for index in 0..requests {
        let mut hit = 0;
        for run in references.runs_to(index) {
            let from = &mut resident[run.from as usize];
            // Earlier blocks of that request now belong to later requests, so its cached blocks begin
            // at `run.start`.
            let found = from.end.min(run.end()).saturating_sub(run.start);
            from.start = run.end();
            from.end = from.end.max(from.start);
            cached -= found as usize;
            hit += found;
        }
        hits.push(hit);
        let live = references.runs().live(index);
        let dead = references.request_len(index) - live;
        let stored = stored(index, dead).min(dead);
        resident[index] = Resident { start: 0, end: live, dead: stored };
        cached += live as usize + stored as usize;
        while cached > capacity_blocks && oldest <= index {
            cached -= resident[oldest].shrink(cached - capacity_blocks);
            if resident[oldest].blocks() == 0 {
                oldest += 1;
            }
        }
    }
    Outcome::new(references, capacity_blocks, hits)
}
