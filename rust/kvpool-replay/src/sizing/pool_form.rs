//! Pool form: runs any evictor at one capacity, with the same calls as a manager.
//!
//! [`pool_form`] and [`pool_form_with_hints`] run the pool's real [`Evictor`]s. Everything around the
//! evictor is reduced to arrays, without hashing and block tables. So a grid of policies and capacities
//! takes seconds, and the results are those of the pool.
//!
//! **The definition.** Requests run one after the other, each as a whole. The longest cached prefix is
//! acquired (`hit`). Blocks for the rest are allocated, first from free blocks, then by eviction. The
//! allocated blocks are registered, first block first. Then all blocks are released, deepest first.
//! Until then, a request's own blocks are in use, so they are never evicted for it. If a prompt is
//! larger than the cache, the part that fits is kept.
//!
//! The hits equal those of [lookup mode](crate::replay) on the whole pool, block by block. The
//! exceptions are policies that distinguish contents by a few bits of their keys, such as `hazard`,
//! because the keys here are not those of digests.
//!
//! Costs: one evictor operation per reference, hit or miss, 20 to 100 ns depending on the policy. 4
//! bytes per unique block and 8 per block of capacity, in addition to the evictor's own.

use kvpool::retention::Retention;
use kvpool::{BlockId, Candidate, Content, Evictor};

use super::error::{SizingError, setting};
use super::hints::{Draws, HintConfig};
use super::outcome::{Outcome, PolicyRun};
use super::references::References;
use super::stream::key_of;
use super::turnover::Turnover;

/// In the list `block_of`, this value means "no block"; in the list `content_of`, "no content".
const NONE: u32 = 0;

/// Returns the hits and evictions of `evictor`. The evictor must be empty, and made for `capacity_blocks + 1`
/// blocks, including the null block. If the trace has fewer blocks than that, an evictor for all blocks of
/// the trace is enough.
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru, pool_form}};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let mut evictor = kvpool_policies::LRU.build(701, None).unwrap();
/// let run = pool_form(&references, 700, evictor.as_mut());
/// assert_eq!(run.outcome(), &lru(&references, 700));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[must_use]
pub fn pool_form(references: &References, capacity_blocks: usize, evictor: &mut dyn Evictor) -> PolicyRun {
    drive(references, capacity_blocks, evictor, |_| usize::MAX)
}

/// Like [`pool_form`], with end-of-life hints for the evictor's own [retention](kvpool::retention).
/// When a request has been released, all of its blocks that no later request uses are demoted with the
/// given probability; otherwise none of them is. Over LRU, the hits are about those of
/// [`lru_with_hints`](super::lru_with_hints), which does not store such blocks at all.
///
/// Hints for single blocks would be worth little in a pool, because a block is evicted only after its
/// cached descendants. So a block without a hint keeps its demoted ancestors in the cache. On the
/// conversation trace with a cache of 5 % and a hint for every second dead block, the hit rate would be
/// 20.1 instead of 25.3 %.
///
/// ```
/// use kvpool::retention::RetentionConfig;
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::sizing::{Blocks, HintConfig, References, lru, pool_form_with_hints};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let mut evictor = kvpool_policies::LRU.build(301, Some(&RetentionConfig::default())).unwrap();
/// let hints = HintConfig { accuracy: 0.5, seed: 0 };
/// let run = pool_form_with_hints(&references, 300, evictor.as_mut(), hints)?;
/// assert!(run.outcome().block_rate() > lru(&references, 300).block_rate());
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
///
/// # Errors
/// [`SizingError::Setting`] for an accuracy out of range, or an evictor without retention.
pub fn pool_form_with_hints(
    references: &References,
    capacity_blocks: usize,
    evictor: &mut dyn Evictor,
    hints: HintConfig,
) -> Result<PolicyRun, SizingError> {
    if evictor.retention().is_none() {
        return Err(setting("evictor", evictor.name(), "one with retention"));
    }
    let draws = Draws::new(hints)?;
    Ok(drive(references, capacity_blocks, evictor, |request| {
        let live = references.runs().live(request) as usize;
        if draws.hints_all(request) { live } else { usize::MAX }
    }))
}

/// Runs the simulation. For a request, `ends_from` returns the position of its first block that is
/// demoted after its release; the blocks after it are demoted as well.
fn drive(
    references: &References,
    capacity_blocks: usize,
    evictor: &mut dyn Evictor,
    ends_from: impl Fn(usize) -> usize,
) -> PolicyRun {
    // A cache for all blocks of the trace evicts nothing, so a larger one gives the same result.
    let blocks = capacity_blocks.min(references.unique_blocks());
    let mut cache = Cache {
        block_of: vec![NONE; references.unique_blocks()],
        content_of: vec![NONE; blocks + 1],
        used: 0,
        evictions: 0,
    };
    let mut turnover = Turnover::new(capacity_blocks, blocks + 1);
    let mut table: Vec<BlockId> = Vec::new();
    let (mut registered, mut released): (Vec<(BlockId, Content)>, Vec<Candidate>) = (Vec::new(), Vec::new());
    let mut hits = Vec::with_capacity(references.requests());
    for index in 0..references.requests() {
        let contents = references.request(index);
        // Ignore the result. The time is invalid only if it goes backward, which it never does in a
        // checked trace.
        let _ = evictor.set_time(references.times_ms()[index] / 1000.0);
        table.clear();
        table.extend(
            contents
                .iter()
                .map(|&content| BlockId::new(cache.block_of[content as usize]))
                .take_while(|block| !block.is_null()),
        );
        evictor.hit_run(&table); // no request holds any of them
        let hit = table.len();
        hits.push(hit as u32);
        while table.len() < contents.len() {
            let Some(block) = cache.take(evictor) else { break };
            table.push(block);
        }
        registered.clear();
        for depth in hit..table.len() {
            let (block, content) = (table[depth], contents[depth]);
            cache.block_of[content as usize] = block.get();
            cache.content_of[block.index()] = content;
            registered.push((block, Content { key: key_of(content), depth: depth as u32 }));
            turnover.insert(block.index(), cache.evictions > 0);
        }
        evictor.registered_run(&registered, hit.checked_sub(1).map(|before| table[before]));
        released.clear();
        released.extend(
            table.iter().enumerate().rev().map(|(depth, &block)| Candidate { block, depth: depth as u32 }),
        );
        evictor.signal(&table, references.signal(index));
        evictor.insert(&mut released);
        if let (Some(ended), Some(retention)) = (table.get(ends_from(index)..), evictor.retention_mut()) {
            for &block in ended {
                // Ignore the result. This call fails only with a time to live, and `END_OF_LIFE` has
                // none.
                let _ = retention.retain(block, Retention::END_OF_LIFE);
            }
        }
        turnover.end_window();
    }
    let outcome = Outcome::new(references, capacity_blocks, hits);
    PolicyRun::new(outcome, cache.evictions, turnover)
}

struct Cache {
    /// For each block number of the trace (a *content*), the block of the cache that contains it, or
    /// `NONE`.
    block_of: Vec<u32>,
    /// For each block of the cache, the block number of the trace that it contains, or `NONE`.
    content_of: Vec<u32>,
    /// Number of blocks of the cache that were ever used. All others are free.
    used: usize,
    evictions: u64,
}

impl Cache {
    /// Returns a block of the cache for a new content. Returns `None` if the current request uses all
    /// of them.
    fn take(&mut self, evictor: &mut dyn Evictor) -> Option<BlockId> {
        if self.used + 1 < self.content_of.len() {
            self.used += 1;
            return Some(BlockId::new(self.used as u32));
        }
        if evictor.is_empty() {
            // The current request uses all blocks of the cache. Do not ask the evictor for a victim, because
            // the question could change its state (it may set blocks in use aside). A pool does not ask
            // either.
            return None;
        }
        let victim = evictor.evict()?;
        self.block_of[self.content_of[victim.index()] as usize] = NONE;
        self.evictions += 1;
        Some(victim)
    }
}
