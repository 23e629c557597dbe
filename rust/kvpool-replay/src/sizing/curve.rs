//! Hit curves: the number of hits at each capacity, and the value of each GiB for a given model.
//!
//! [`HitCurve`] is the result of all estimators, and [`KvBytes`] the size of a model's KV.
//! [`HitCurve::knee`] finds the point from which on more capacity helps less, and [`HitCurve::worth`]
//! computes the value of each further GiB.
//!
//! Definitions. A curve is a step function: its points are the capacities at which hits rise, and
//! between two points the lower point applies. A GiB is 2^30 bytes of KV over all layers and all ranks.
//! Seconds saved are hit tokens divided by a prefill rate that the caller passes. They are saved
//! compute time, and no promise about latency.
//!
//! Costs: a query is a binary search. The knee takes one pass over the points, which take 24 bytes
//! each.

use super::error::{SizingError, setting};
use super::references::References;

const GIB: f64 = (1_u64 << 30) as f64;

/// One point of a hit curve: the hits of a cache of one capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurvePoint {
    /// The capacity of the cache, in blocks.
    pub capacity_blocks: u64,
    /// The number of block references that hit in a cache of this capacity.
    pub block_hits: u64,
    /// The number of prompt tokens in the block references that hit.
    pub token_hits: u64,
}

/// Hits as a function of capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCurve {
    /// The points, sorted by capacity. All capacities differ, and hits never fall.
    points: Vec<CurvePoint>,
    references: u64,
    prompt_tokens: u64,
    block_tokens: usize,
}

impl HitCurve {
    /// Makes a curve through `points`. Both their capacities and their hits must rise.
    pub(super) fn of(points: Vec<CurvePoint>, references: &References) -> Self {
        Self::with_totals(
            points,
            references.len() as u64,
            references.prompt_tokens(),
            references.block_tokens(),
        )
    }

    pub(super) fn with_totals(
        points: Vec<CurvePoint>,
        references: u64,
        prompt_tokens: u64,
        block_tokens: usize,
    ) -> Self {
        Self { points, references, prompt_tokens, block_tokens }
    }

    /// The points at which hits rise, sorted by capacity. Empty if there is never a hit.
    #[must_use]
    pub fn points(&self) -> &[CurvePoint] {
        &self.points
    }

    /// The number of block references, which is the number of hits and misses together.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.references
    }

    /// The number of tokens of all prompts of the trace.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The block size, in tokens.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Returns the hits of a cache of `capacity_blocks` blocks.
    #[must_use]
    pub fn at(&self, capacity_blocks: u64) -> CurvePoint {
        let below = self.points.partition_point(|point| point.capacity_blocks <= capacity_blocks);
        let point = below.checked_sub(1).and_then(|index| self.points.get(index)).copied();
        CurvePoint { capacity_blocks, ..point.unwrap_or_default() }
    }

    /// Returns at most `most` points, evenly spread over the logarithm of the capacity, including the
    /// first and the last. They are enough to draw the curve. O(`most` log points).
    #[must_use]
    pub fn spread(&self, most: usize) -> Vec<CurvePoint> {
        let (Some(&first), Some(&last)) = (self.points.first(), self.points.last()) else {
            return Vec::new();
        };
        if self.points.len() <= most {
            return self.points.clone();
        }
        let ratio = last.capacity_blocks as f64 / first.capacity_blocks.max(1) as f64;
        let steps = most.saturating_sub(1).max(1);
        let mut spread: Vec<CurvePoint> = (0..most)
            .map(|step| first.capacity_blocks as f64 * ratio.powf(step as f64 / steps as f64))
            .map(|capacity| if most == 1 { last } else { self.at(capacity.round() as u64) })
            .collect();
        if let (true, Some(end)) = (most > 1, spread.last_mut()) {
            *end = last;
        }
        spread.dedup_by_key(|point| point.capacity_blocks);
        spread
    }

    /// Returns the maximum of the curve, at the smallest capacity that reaches it.
    #[must_use]
    pub fn ceiling(&self) -> CurvePoint {
        self.points.last().copied().unwrap_or_default()
    }

    /// The hits of a point as a share of all block references, 0 to 1.
    #[must_use]
    pub fn block_rate(&self, point: CurvePoint) -> f64 {
        share(point.block_hits, self.references)
    }

    /// The hit tokens of a point as a share of all prompt tokens, 0 to 1.
    #[must_use]
    pub fn token_rate(&self, point: CurvePoint) -> f64 {
        share(point.token_hits, self.prompt_tokens)
    }

    /// Returns the smallest capacity with at least `share` (0 to 1) of the maximum number of hit tokens
    /// of the curve. `None` for a share out of range, or if there is never a hit.
    #[must_use]
    pub fn capacity_for(&self, share: f64) -> Option<CurvePoint> {
        if !(0.0..=1.0).contains(&share) {
            return None;
        }
        let least = (share * self.ceiling().token_hits as f64).ceil() as u64;
        self.points.get(self.points.partition_point(|point| point.token_hits < least)).copied()
    }

    /// Returns the knee: the point after which another block adds fewer hit tokens than a block does on
    /// average.
    ///
    /// The knee is found by the rule of Kneedle (Satopää, Albrecht, Irwin and Raghavan, "Finding a
    /// 'Kneedle' in a Haystack", 2011). Capacity and hit tokens are scaled to the range from 0
    /// (nothing) to 1 (the maximum). The knee is the point farthest above the diagonal.
    ///
    /// There are two differences to Kneedle. There is no smoothing, because the curve is not noisy. The
    /// largest distance is used instead of the first one that passes a sensitivity, because the whole
    /// curve is known. Among equal points, the smallest capacity is returned.
    ///
    /// Pass the size in blocks of the largest cache that you can buy as `most_blocks`. The curve then
    /// ends there, which matters because a long flat end moves the knee up slightly. `None` uses the
    /// whole curve.
    ///
    /// Returns `None` if no point is above the diagonal. Then every additional block is worth at least
    /// as much as the blocks before it, and the largest cache is the best.
    #[must_use]
    pub fn knee(&self, most_blocks: Option<u64>) -> Option<Knee> {
        let end = most_blocks
            .map_or_else(|| self.ceiling(), |most| self.at(most.min(self.ceiling().capacity_blocks)));
        if end.token_hits == 0 {
            return None;
        }
        let mut best: Option<Knee> = None;
        for &point in self.points.iter().take_while(|point| point.capacity_blocks <= end.capacity_blocks) {
            let across = point.capacity_blocks as f64 / end.capacity_blocks as f64;
            let prominence = share(point.token_hits, end.token_hits) - across;
            if prominence > best.map_or(0.0, |knee| knee.prominence) {
                best = Some(Knee { point, prominence });
            }
        }
        best
    }

    /// Returns what caches of the given sizes save, in the order of the sizes. Each result is a row of
    /// a table of GiB, hit rate, tokens and seconds saved.
    ///
    /// ```
    /// use kvpool_replay::generate::{GeneratorConfig, generate};
    /// use kvpool_replay::sizing::{Blocks, KvBytes, References, lru_distances};
    ///
    /// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
    /// let curve = lru_distances(&References::new(&trace, Blocks::All)?).into_curve();
    /// let llama_8b = KvBytes::attention(32, 8, 128, 2)?;
    /// let rows = curve.worth(llama_8b, &[16.0, 64.0], 10_000.0)?;
    /// assert_eq!(rows[1].point.capacity_blocks, 1024); // blocks of 512 tokens, 64 MiB each
    /// assert!(rows[1].tokens_per_gib > 0.0 && rows[1].seconds_saved > rows[0].seconds_saved);
    /// # Ok::<(), kvpool_replay::sizing::SizingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] if a size is negative or not finite, or if sizes do not rise. Also if
    /// the rate is not above 0 or not finite, or if a block has more than 2^64 - 1 bytes.
    pub fn worth(
        &self,
        kv: KvBytes,
        gib: &[f64],
        prefill_tokens_per_s: f64,
    ) -> Result<Vec<Worth>, SizingError> {
        if !(prefill_tokens_per_s > 0.0 && prefill_tokens_per_s.is_finite()) {
            return Err(setting("prefill_tokens_per_s", prefill_tokens_per_s, "above 0 and finite"));
        }
        let mut rows: Vec<Worth> = Vec::with_capacity(gib.len());
        let (mut size_before, mut tokens_before) = (0.0, 0);
        for &size in gib {
            if !(size.is_finite() && size >= 0.0 && (rows.is_empty() || size > size_before)) {
                return Err(setting("gib", size, "0 or more, each larger than the one before"));
            }
            let point = self.at(kv.blocks_in(size, self.block_tokens)?);
            let added = point.token_hits - tokens_before;
            rows.push(Worth {
                gib: size,
                point,
                block_rate: self.block_rate(point),
                token_rate: self.token_rate(point),
                seconds_saved: point.token_hits as f64 / prefill_tokens_per_s,
                tokens_per_gib: if size > size_before { added as f64 / (size - size_before) } else { 0.0 },
                seconds_per_gib: if size > size_before {
                    added as f64 / (size - size_before) / prefill_tokens_per_s
                } else {
                    0.0
                },
            });
            (size_before, tokens_before) = (size, point.token_hits);
        }
        Ok(rows)
    }
}

/// The knee of a curve: the point at which it bends most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knee {
    /// The point.
    pub point: CurvePoint,
    /// The distance of the point above the diagonal, 0 to 1. A knee with less than about 0.1 is not
    /// significant.
    pub prominence: f64,
}

/// The savings of a cache of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// The size, in GiB.
    pub gib: f64,
    /// The capacity in blocks, and the hits.
    pub point: CurvePoint,
    /// The hits as a share of all block references, 0 to 1.
    pub block_rate: f64,
    /// The hit tokens as a share of all prompt tokens, 0 to 1.
    pub token_rate: f64,
    /// Seconds of prefill saved over the whole trace.
    pub seconds_saved: f64,
    /// Tokens saved over the whole trace by each GiB that was added since the previous size. In the
    /// first row, the previous size is 0.
    pub tokens_per_gib: f64,
    /// Seconds of prefill saved by each GiB that was added since the previous size.
    pub seconds_per_gib: f64,
}

/// The number of bytes that one token takes in the KV cache of a model, over all layers.
///
/// ```
/// use kvpool_replay::sizing::KvBytes;
/// let llama_8b = KvBytes::attention(32, 8, 128, 2)?; // bf16
/// assert_eq!(llama_8b.bytes_per_block(16)?, 2 << 20);
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvBytes {
    per_token: u64,
}

impl KvBytes {
    /// Makes the size of a model with `bytes` bytes of KV per token.
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] for 0.
    pub fn per_token(bytes: u64) -> Result<Self, SizingError> {
        if bytes == 0 {
            Err(setting("bytes_per_token", 0, "1 or more"))
        } else {
            Ok(Self { per_token: bytes })
        }
    }

    /// Makes the size for ordinary attention, which stores a key and a value per KV head and layer.
    ///
    /// ```
    /// # use kvpool_replay::sizing::KvBytes;
    /// assert_eq!(KvBytes::attention(32, 8, 128, 2)?.bytes_per_token(), 131_072); // Llama-3.1-8B, bf16
    /// # Ok::<(), kvpool_replay::sizing::SizingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] if an argument is 0.
    pub fn attention(
        layers: u16,
        kv_heads: u16,
        head_dim: u16,
        dtype_bytes: u16,
    ) -> Result<Self, SizingError> {
        let parts = [
            ("layers", layers),
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
            ("dtype_bytes", dtype_bytes),
        ];
        Self::product(2, &parts)
    }

    /// Makes the size for multi-head latent attention, which stores one latent vector per layer,
    /// including its positional part.
    ///
    /// ```
    /// # use kvpool_replay::sizing::KvBytes;
    /// assert_eq!(KvBytes::latent(61, 512 + 64, 2)?.bytes_per_token(), 70_272); // DeepSeek-V3, bf16
    /// # Ok::<(), kvpool_replay::sizing::SizingError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] if an argument is 0.
    pub fn latent(layers: u16, latent_dim: u16, dtype_bytes: u16) -> Result<Self, SizingError> {
        Self::product(1, &[("layers", layers), ("latent_dim", latent_dim), ("dtype_bytes", dtype_bytes)])
    }

    /// Multiplies `factor` by all parts. The product of 2 and four 16-bit numbers can need 65 bits. It
    /// is then limited to the largest 64-bit number.
    fn product(factor: u64, parts: &[(&'static str, u16)]) -> Result<Self, SizingError> {
        let mut per_token = factor;
        for &(name, value) in parts {
            if value == 0 {
                return Err(setting(name, 0, "1 or more"));
            }
            per_token = per_token.saturating_mul(u64::from(value));
        }
        Ok(Self { per_token })
    }

    /// The number of bytes that one token takes in the KV cache.
    #[must_use]
    pub fn bytes_per_token(self) -> u64 {
        self.per_token
    }

    /// The number of bytes of a block of `block_tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] if the result is 0 or does not fit 64 bits.
    pub fn bytes_per_block(self, block_tokens: usize) -> Result<u64, SizingError> {
        let bytes = self.per_token.checked_mul(block_tokens as u64).filter(|&bytes| bytes > 0);
        bytes.ok_or_else(|| {
            setting("block_tokens", block_tokens, "1 or more, of a size that 64 bits can count")
        })
    }

    /// The number of whole blocks in `gib` GiB.
    ///
    /// # Errors
    ///
    /// [`SizingError::Setting`] for a size below 0 or not finite, and the errors of
    /// [`bytes_per_block`](Self::bytes_per_block).
    pub fn blocks_in(self, gib: f64, block_tokens: usize) -> Result<u64, SizingError> {
        if !(gib.is_finite() && gib >= 0.0) {
            return Err(setting("gib", gib, "0 or more and finite"));
        }
        // The conversion saturates.
        Ok((gib * GIB) as u64 / self.bytes_per_block(block_tokens)?)
    }

    /// The size of `blocks` blocks, in GiB.
    ///
    /// # Errors
    ///
    /// The errors of [`bytes_per_block`](Self::bytes_per_block).
    pub fn gib_of(self, blocks: u64, block_tokens: usize) -> Result<f64, SizingError> {
        Ok(self.bytes_per_block(block_tokens)? as f64 * blocks as f64 / GIB)
    }
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
