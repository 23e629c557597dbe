//! LRU at one capacity, request by request.
//!
//! Owns the simulation behind [`lru`], hit rates [over time](super::over_time()) and
//! [hints](super::hints): which requests hit what, where the [curve](super::stack) says only how much.
//!
//! The state is per request: of the blocks that it was the last to use, those that are cached. They are
//! a run of its prompt, from where later requests have taken a prefix away to where eviction, deepest
//! first, has come. The oldest request with cached blocks is evicted from; it only ever moves on.
//!
//! Costs: O(requests + runs) per capacity, 12 bytes per request.

use super::outcome::Outcome;
use super::references::References;

/// Hits of an LRU cache of `capacity_blocks` blocks: as [`lru_distances`](super::lru_distances) has
/// them in sum.
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru, lru_distances}};
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

/// Cached blocks that one request was the last to use.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// The first, counted from the root, and behind the last: blocks that will be used again.
    start: u32,
    end: u32,
    /// Deeper ones, which nobody will use again; they only take places.
    dead: u32,
}

impl Resident {
    fn blocks(self) -> usize {
        (self.end - self.start) as usize + self.dead as usize
    }

    /// Evicts up to `most` blocks, deepest first.
    fn shrink(&mut self, most: usize) -> usize {
        let dead = most.min(self.dead as usize);
        let live = (most - dead).min((self.end - self.start) as usize);
        // Neither is more than what is there.
        self.dead -= dead as u32;
        self.end -= live as u32;
        dead + live
    }
}

/// LRU where `stored(request, dead)` says how many of the `dead` blocks of a request, which nobody will
/// use again, take a place all the same.
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
            // The run begins where the cached blocks do: what was before was taken by later requests.
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
