//! Stream form: runs any policy at one capacity, block by block.
//!
//! [`stream`] runs an eviction [`Policy`] of the core over a trace, without a pool.
//!
//! **The definition** is that of the published figures (`design/sizing.md`). Requests run one after the
//! other. First the hits of a request are counted: the longest prefix of its blocks that is in the
//! cache. Then every block of the request is used, *last block first*. A block that is in the cache is
//! hit and released, even if a block before it is missing. A missing block is admitted, which looks up
//! its ghost; if the cache is full, a victim is evicted; then the block is released.
//!
//! No block is held during this, so a request may evict its own blocks. The cache may also contain
//! blocks without the blocks before them. A policy that evicts such earlier blocks loses hits in the
//! next prefix.
//!
//! Papers simulate in this form, and it is cheap. Use it to compare policies with the literature and to
//! size many capacities. The real pool holds the blocks of running requests, and evicts no parent
//! before its children; use [`replay`](crate::replay) to run it.
//!
//! A block is admitted before another one is evicted, so the simulation needs one more block id than
//! the cache has blocks. Therefore the policy is grown to `capacity + 1` blocks, and the shares that it
//! computes from its capacity are slightly larger.
//!
//! Costs: O(references) calls of the policy. Memory: 16 bytes per cached block, 4 per unique block, 4
//! per request, and that of the policy.

use kvpool::{
    BlockId, MAX_BLOCKS,
    evictor::{Content, Policy, Release},
};

use super::error::{SizingError, too_many};
use super::hints::mix;
use super::outcome::{Outcome, PolicyRun};
use super::references::References;
use super::turnover::Turnover;

/// The blocks of the simulated cache and their contents. A content is a block number of the trace.
struct Resident {
    /// For each block number of the trace (a *content*), the block of the cache that contains it; 0 if
    /// none does.
    block_of: Vec<u32>,
    /// For each block of the cache, the block number of the trace that it contains. `depths` is the
    /// position of this block in its prompt.
    contents: Vec<u32>,
    depths: Vec<u32>,
    /// The block of the cache that gets the next new content.
    spare: BlockId,
    blocks: usize,
}

/// Returns the key under which a policy knows a content. It is a hash of the content's number, because
/// the numbers are dense.
pub(super) fn key_of(content: u32) -> u64 {
    mix(u64::from(content))
}

/// Runs `policy` over a trace, starting with an empty cache of `capacity_blocks` blocks.
///
/// ```
/// use kvpool_policies::{Recency, S3Fifo};
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru, stream}};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let streamed = stream(&references, 700, &mut Recency::new(702)?)?;
/// assert_eq!(streamed.outcome(), &lru(&references, 700));
/// assert_eq!(streamed.evictions(), streamed.insertions() - 700);
/// let other = stream(&references, 700, &mut S3Fifo::new(702)?)?;
/// assert!(other.outcome().block_rate() > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`SizingError::Setting`] for a capacity that the policy does not support or that needs too much
/// memory.
pub fn stream<P: Policy + ?Sized>(
    references: &References,
    capacity_blocks: usize,
    policy: &mut P,
) -> Result<PolicyRun, SizingError> {
    if capacity_blocks > MAX_BLOCKS - 2 {
        return Err(too_many(capacity_blocks));
    }
    if capacity_blocks == 0 {
        let outcome = Outcome::new(references, 0, vec![0; references.requests()]);
        return Ok(PolicyRun::new(outcome, 0, Turnover::new(0, 0)));
    }
    let mut hits = Vec::with_capacity(references.requests());
    // A cache for all blocks of the trace evicts nothing, so a larger one gives the same result.
    let blocks = capacity_blocks.min(references.unique_blocks());
    policy.clear();
    policy.grow(capacity_blocks + 2).map_err(|_| too_many(capacity_blocks))?;
    let mut resident = Resident {
        block_of: vec![0; references.unique_blocks()],
        contents: vec![0; blocks + 2],
        depths: vec![0; blocks + 2],
        spare: BlockId::new(1),
        blocks: 0,
    };
    let mut turnover = Turnover::new(capacity_blocks, blocks + 2);
    let mut evictions = 0;
    for index in 0..references.requests() {
        let request = references.request(index);
        let hit = request.iter().take_while(|&&content| resident.block_of[content as usize] != 0).count();
        hits.push(hit as u32);
        policy.set_time(references.times_ms()[index] / 1000.0);
        let signal = references.signal(index);
        let (length, known) = (request.len() as u32, hit as u32);
        policy.begin_release(&Release { length, known, ..Release::default() });
        for (depth, &content) in request.iter().enumerate().rev() {
            let block = resident.block_of[content as usize];
            if block != 0 {
                policy.hit(BlockId::new(block));
                policy.signal(BlockId::new(block), signal);
                policy.release(BlockId::new(block));
                continue;
            }
            let full = resident.blocks == capacity_blocks;
            turnover.insert(resident.spare.index(), full);
            let block = resident.insert(policy, content, depth as u32);
            policy.signal(block, signal);
            if full {
                turnover.evict(resident.evict(policy));
                evictions += 1;
                policy.release(block);
                turnover.end_window();
            } else {
                resident.spare = BlockId::new(resident.blocks as u32 + 1);
                policy.release(block);
            }
        }
    }
    let outcome = Outcome::new(references, capacity_blocks, hits);
    Ok(PolicyRun::new(outcome, evictions, turnover))
}

impl Resident {
    /// Puts a new content into the spare block, and returns this block.
    fn insert<P: Policy + ?Sized>(&mut self, policy: &mut P, content: u32, depth: u32) -> BlockId {
        let (block, at) = (self.spare, self.spare.index());
        policy.admit(block, Content { key: key_of(content), depth });
        self.block_of[content as usize] = block.get();
        self.contents[at] = content;
        self.depths[at] = depth;
        self.blocks += 1;
        block
    }

    /// Evicts a block, which becomes the spare one, and returns its index. The policy orders all blocks
    /// except for the one that was just inserted, so there is always a victim.
    fn evict<P: Policy + ?Sized>(&mut self, policy: &mut P) -> usize {
        let Some(victim) = policy.pop() else { return 0 };
        let at = victim.index();
        policy.evicted(victim, Content { key: key_of(self.contents[at]), depth: self.depths[at] });
        self.block_of[self.contents[at] as usize] = 0;
        self.blocks -= 1;
        self.spare = victim;
        at
    }
}
