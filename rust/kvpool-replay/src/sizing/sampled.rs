//! LRU at every capacity from a sample, for traces too large to hold.
//!
//! Owns [`SampledLru`], which takes a stream of requests, and its settings.
//!
//! **The method** is SHARDS (Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC Construction with
//! SHARDS", 2015), as [`SampledStack`] of the core has it, which the advisor of a live pool uses too:
//! look only at the blocks whose hashed id is below a threshold, a share R of all; their stack
//! distances among each other, divided by R, estimate distances in the whole trace, and each counts for
//! 1/R references.
//!
//! - *Fixed rate*: R stays; memory grows with the number of different blocks times R.
//! - *Fixed size*: when more than [`max_blocks`](SampleConfig::max_blocks) blocks are followed, those
//!   with the largest hash are given up and the threshold sinks to it, so R is only ever as large as
//!   memory allows. What was counted before keeps its weight, the 1/R of its time; so does the paper,
//!   in other units.
//! - What the references counted lack to the references seen goes to distance 1 (the paper's
//!   SHARDS-adj): the difference comes from the few very hot blocks, such as the first block of
//!   everybody's system prompt, which happen to be in the sample or not, and whose distances are short.
//!
//! A sampled trace is a trace: what two of its requests share is still a prefix, so the semantics are
//! those of [`stack`](super::stack), request by request and root first.
//!
//! Distances are kept in buckets of at most 0.4 % width and each bucket counts at its upper end, so
//! memory is bounded and the curve errs to the careful side.
//!
//! **The error** falls with the number of blocks followed, not with the rate, so a bound is the better
//! choice: then the rate is as large as can be. Mean absolute error of the block hit rate, in points,
//! over 20 seeds and five capacities from 1 to 20 % of the unique blocks (the smallest capacity is the
//! worst):
//!
//! | follow | conversation, 182,790 blocks | agents, 67,188 blocks |
//! |---|---|---|
//! | 8,192 blocks at most | 0.5 to 0.8 | 0.0 to 0.5 |
//! | 1,024 blocks at most | 1.2 to 2.5 | 0.1 to 1.7 |
//! | 10 % | 0.5 to 1.0 | 0.1 to 1.4 |
//! | 1 % | 1.4 to 2.8 | 0.1 to 3.6 |
//!
//! Without the correction at distance 1 the first row is 5 points off, as block 0 is in every request.
//!
//! Costs: a hash per reference (1 to 3 ns) and 100 to 400 ns per sampled one; 54 to 110 bytes per block
//! followed, and 0.25 MB for the buckets. Sampling saves memory, not time: what fits is faster exactly.

use kvpool_observe::advisor::{Bound, DistanceHistogram, SampledStack};

use super::curve::{CurvePoint, HitCurve};
use super::error::{SizingError, setting};
use super::hints::mix;
use super::references::Blocks;
use super::stack::ReuseDistances;
use crate::trace::{DEFAULT_BLOCK_TOKENS, TraceRequest};

/// What to sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleConfig {
    /// Share of the blocks to follow, above 0, at most 1. With [`max_blocks`](Self::max_blocks), the
    /// share to begin with. Default 1.
    pub rate: f64,
    /// Blocks to follow at most, 1 to 2^30; `None` keeps the rate. Default 65,536: 10 MB.
    pub max_blocks: Option<usize>,
    /// Picks the sample; all values are equally good. Default 0.
    pub seed: u64,
    /// Tokens that one id of the trace stands for, 1 or more. Default 512.
    pub block_tokens: usize,
    /// Which blocks of a prompt are references.
    pub blocks: Blocks,
}

/// Exact up to 65,536 different blocks, and a sample of 65,536 blocks beyond.
impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            rate: 1.0,
            max_blocks: Some(65_536),
            seed: 0,
            block_tokens: DEFAULT_BLOCK_TOKENS,
            blocks: Blocks::All,
        }
    }
}

const MOST_FOLLOWED: usize = 1 << 30;
/// Distances up to 512 have a bucket each.
const FINE_BITS: u32 = 9;

/// Stack distances from a sample of the blocks.
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::sizing::{Blocks, References, SampleConfig, SampledLru, lru_distances};
///
/// let trace = generate(&GeneratorConfig { requests: 2_000, ..GeneratorConfig::default() }).unwrap();
/// let config =
///     SampleConfig { rate: 0.3, max_blocks: None, seed: 0, block_tokens: 512, blocks: Blocks::All };
/// let mut sampled = SampledLru::new(config)?;
/// for request in trace.requests() {
///     sampled.push(request);
/// }
/// let estimate = sampled.finish();
/// let exact = lru_distances(&References::new(&trace, Blocks::All)?);
/// let rates = [estimate.curve(), exact.curve()].map(|curve| curve.block_rate(curve.at(2_000)));
/// assert!((rates[0] - rates[1]).abs() < 0.03);
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[derive(Debug)]
pub struct SampledLru {
    config: SampleConfig,
    stack: SampledStack,
    /// References counted, and tokens in them, by distance.
    blocks: DistanceHistogram,
    tokens: DistanceHistogram,
    references: u64,
    prompt_tokens: u64,
    /// Weight of the references that were sampled, new blocks included.
    counted: f64,
}

impl SampledLru {
    /// An empty sample.
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] for a setting out of range.
    pub fn new(config: SampleConfig) -> Result<Self, SizingError> {
        let SampleConfig { rate, max_blocks, block_tokens, .. } = config;
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(setting("rate", rate, "above 0, at most 1"));
        }
        if let Some(most) = max_blocks.filter(|most| !(1..=MOST_FOLLOWED).contains(most)) {
            return Err(setting("max_blocks", most, "1 to 1073741824"));
        }
        if block_tokens == 0 {
            return Err(setting("block_tokens", 0, "1 or more"));
        }
        let bound = max_blocks.map_or(Bound::None, Bound::LowerRate);
        let no_memory = |_| setting("rate", rate, "few enough blocks to fit in memory");
        let buckets = || DistanceHistogram::new(FINE_BITS, u64::MAX).map_err(no_memory);
        Ok(Self {
            config,
            stack: SampledStack::new(rate, mix(config.seed), bound).map_err(no_memory)?,
            blocks: buckets()?,
            tokens: buckets()?,
            references: 0,
            prompt_tokens: 0,
            counted: 0.0,
        })
    }

    /// Takes in the next request, in order of arrival.
    pub fn push(&mut self, request: &TraceRequest) {
        let block_tokens = self.config.block_tokens;
        let ids = match self.config.blocks {
            Blocks::All => &*request.hash_ids,
            Blocks::Full => request.full_blocks(block_tokens),
        };
        self.references += ids.len() as u64;
        self.prompt_tokens += u64::from(request.input_length);
        self.stack.begin();
        for (depth, &id) in ids.iter().enumerate().rev() {
            // Ids are dense, the stack wants keys that are spread: different ones for different ids.
            let Some(touch) = self.stack.touch(mix(id)) else { continue };
            self.counted += touch.weight;
            if let Some(distance) = touch.distance {
                let tokens_before = (depth as u64).saturating_mul(block_tokens as u64);
                let tokens =
                    u64::from(request.input_length).saturating_sub(tokens_before).min(block_tokens as u64);
                self.blocks.add(distance, touch.weight);
                self.tokens.add(distance, touch.weight * tokens as f64);
            }
        }
    }

    /// Blocks that are followed now.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.stack.followed()
    }

    /// The share of blocks that are followed now.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.stack.rate()
    }

    /// The estimate. Its references and prompt tokens are exact, its hits are rounded, and never more
    /// than those.
    #[must_use]
    pub fn finish(mut self) -> ReuseDistances {
        // All of them were hits if anything was sampled at all; nothing is missing at a rate of 1.
        if self.rate() < 1.0 && self.followed() > 0 {
            let missing = self.references as f64 - self.counted;
            self.blocks.add(1, missing);
            self.tokens.add(1, missing * self.config.block_tokens as f64);
        }
        let mut points: Vec<CurvePoint> = Vec::new();
        let (mut hits, mut tokens) = (0.0, 0.0);
        for ((capacity_blocks, blocks), (_, block_tokens)) in self.blocks.buckets().zip(self.tokens.buckets())
        {
            hits += blocks;
            tokens += block_tokens;
            // Negative while the first bucket owes more than was found: nothing is hit then. The
            // conversions saturate.
            let point = CurvePoint {
                capacity_blocks,
                block_hits: (hits.round() as u64).min(self.references),
                token_hits: (tokens.round() as u64).min(self.prompt_tokens),
            };
            let before = points.last().copied().unwrap_or_default();
            if point.block_hits > before.block_hits {
                points.push(CurvePoint { token_hits: point.token_hits.max(before.token_hits), ..point });
            }
        }
        let totals = (self.references, self.prompt_tokens, self.config.block_tokens);
        ReuseDistances::new(HitCurve::with_totals(points, totals.0, totals.1, totals.2))
    }
}
