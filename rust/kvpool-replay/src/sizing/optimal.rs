//! The clairvoyant optimum: what no policy can beat at a given capacity.
//!
//! Owns [`optimal`].
//!
//! **The rule** (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, with
//! bypass as in Mattson et al. 1970, section on OPT): after each request keep, of what was cached and
//! what the request has computed, the C blocks that are used again soonest. Blocks of the request
//! itself need not be kept: a prompt passes by the cache where it is not worth a place. Of blocks with
//! the same next use, which are blocks of one prompt, the deeper go first.
//!
//! **Why the cache stays closed.** Whoever uses a block uses its ancestors as well, so an ancestor's
//! next use is never later than its descendant's, and on a tie the deeper goes first. Hence what is
//! kept is closed under "parent of": all of it can be found, and hits of a request are a prefix.
//!
//! **Why it is optimal.** Each reuse is an interval, from a use to the next, that takes one place while
//! it lasts and is worth one hit. To keep as many intervals as possible, never more than C at a time,
//! dropping the one that ends last whenever there are too many is optimal (a classic exchange
//! argument), even among caches that are not closed. It is optimal in *blocks*: token hits are those of
//! the same choice, and partial last blocks, which alone weigh less, could make another choice better
//! by a fraction of a block each.
//!
//! **Why it is fast.** All intervals of a [`Run`](super::Run) end in the same request. The blocks kept
//! for a request `to` are a prefix of its prompt, so one number per request is the whole state: how
//! many blocks are kept that it will be the next to use. When it comes, that number is its hits. Too
//! many blocks are taken from the latest such request.
//!
//! Costs: O((requests + runs) * log(requests)) per capacity, 5 bytes per request and 4 per run that is
//! waited for.

use std::collections::BinaryHeap;

use super::outcome::Outcome;
use super::references::References;

/// Hits of the clairvoyant optimum with `capacity_blocks` blocks.
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::sizing::{Blocks, References, lru_distances, optimal};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let best = optimal(&references, 500);
/// assert!(best.total().block_hits > lru_distances(&references).curve().at(500).block_hits);
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[must_use]
pub fn optimal(references: &References, capacity_blocks: usize) -> Outcome {
    let requests = references.requests();
    // Of each request, the cached blocks that it will be the next to use.
    let mut kept = vec![0_u32; requests];
    let mut waiting = vec![false; requests];
    // Requests for which blocks are kept, the latest on top; those for which none is left are passed over.
    let mut latest: BinaryHeap<u32> = BinaryHeap::new();
    let mut cached = 0_usize;
    let mut hits = Vec::with_capacity(requests);
    for index in 0..requests {
        let hit = std::mem::take(&mut kept[index]);
        cached -= hit as usize;
        hits.push(hit);
        for run in references.runs().from(index) {
            let to = run.to as usize;
            kept[to] += run.count;
            cached += run.count as usize;
            if !std::mem::replace(&mut waiting[to], true) {
                latest.push(run.to);
            }
        }
        while cached > capacity_blocks
            && let Some(&last) = latest.peek()
        {
            let blocks = &mut kept[last as usize];
            let excess = (cached - capacity_blocks).min(*blocks as usize);
            *blocks -= excess as u32; // at most what was there
            cached -= excess;
            if *blocks == 0 {
                waiting[last as usize] = false;
                latest.pop();
            }
        }
    }
    Outcome::new(references, capacity_blocks, hits)
}
