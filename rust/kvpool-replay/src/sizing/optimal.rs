//! The clairvoyant optimum: the maximum number of hits of any policy at a given capacity, if the policy
//! knew the future.
//!
//! The function is [`optimal`].
//!
//! **The rule** (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966, with
//! bypass as in Mattson et al. 1970, section on OPT): after each request, consider the blocks that were
//! cached and those that the request has computed. Keep the C blocks that are used again soonest.
//! Blocks of the request itself need not be kept: a prompt bypasses the cache if it is not worth the
//! space. Blocks with the same next use belong to one prompt; the deeper ones are evicted first.
//!
//! **Why every kept block can be found.** Each use of a block is a use of its ancestors, so an
//! ancestor's next use is never later than its descendant's. On a tie, the deeper block is evicted
//! first. So with every kept block, all of its ancestors are kept, and the hits of a request are a
//! prefix of its prompt.
//!
//! **Why it is optimal.** Each reuse of a block is an interval from one use to the next. While it
//! lasts, the interval takes one slot of the cache, and it is worth one hit. The task is to keep as
//! many intervals as possible, at most C at a time. If there are too many, dropping the interval that
//! ends last is optimal (a classic exchange argument), even compared with caches that keep a block
//! without its ancestors. It is optimal in *blocks*; token hits are those of the same choice of blocks.
//! Partial last blocks have fewer tokens, so another choice could have more token hits, by less than a
//! block per partial block.
//!
//! **Why it is fast.** All intervals of a [`Run`](super::Run) end in the same request. The blocks kept
//! for a request `to` are a prefix of its prompt. So the whole state is one number per request: the
//! number of kept blocks for which it is the next user. When the request runs, that number is its
//! number of hits. If there are too many kept blocks, blocks of the latest such request are dropped.
//!
//! Costs: O((requests + runs) * log(requests)) per capacity. Memory: 5 bytes per request, and 4 in the
//! heap per request for which blocks are kept.

use std::collections::BinaryHeap;

use super::outcome::Outcome;
use super::references::References;

/// Returns the hits of the clairvoyant optimum with `capacity_blocks` blocks.
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
    // For each request, the number of cached blocks for which it is the next user.
    let mut kept = vec![0_u32; requests];
    let mut waiting = vec![false; requests];
    // The requests for which blocks are kept, the latest on top. An entry whose blocks were all dropped
    // is skipped when it is taken.
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
            *blocks -= excess as u32; // at most `*blocks`
            cached -= excess;
            if *blocks == 0 {
                waiting[last as usize] = false;
                latest.pop();
            }
        }
    }
    Outcome::new(references, capacity_blocks, hits)
}
