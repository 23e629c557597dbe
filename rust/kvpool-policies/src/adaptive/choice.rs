//! `Choice`: chooses the active mode of the `adaptive` policy from the number of hits that each mode
//! would have had.
//!
//! References (lookups of blocks) are counted in *chunks*. Over one capacity (as many references as the
//! pool has blocks), there are 64 chunks. After each chunk, this type adds up the hits of each mode
//! minus those of mode 0, and the squared difference of each pair of modes. Each sum is kept twice,
//! with older chunks counting less: a short sum over about 4 capacities of references, and a long sum
//! over about 32.
//!
//! ```text
//! worth of a mode  = short gain + long gain / 4
//!                    + for mode 0 only, an edge: 1/1000 of the references, over the short horizon
//! lead of a over b = worth(a) - worth(b)
//! its variance     = short squares(a, b) + long squares(a, b) / 16
//! The best mode becomes active if its lead over the active one is
//! more than half a standard deviation and more than a quarter of the edge.
//! ```
//!
//! Only differences between modes count, because hits that all modes have do not distinguish them. A
//! lead of half a standard deviation is a low threshold. It is sufficient, because a change of mode
//! moves no block and can be undone at once.
//!
//! All arithmetic is in integers with 8 fractional bits, and squares are compared instead of roots. So
//! the choice is the same on any host.
//!
//! Cost: O(1) per chunk, for 36 pairs of modes.

use super::mode::Mode;
use kvpool::InvariantViolation;
use kvpool::parts::ensure;

pub(super) const MODES: usize = Mode::ALL.len();
const BITS: u32 = 8;
/// The short and the long horizon, in chunks of references. They are 4 and 32 times as many references
/// as the pool has blocks.
const SHORT: i64 = 4 * Choice::CHUNKS;
const LONG: i64 = 32 * Choice::CHUNKS;

#[derive(Clone, Debug)]
struct Sums {
    /// The sum of the hits of each mode minus those of mode 0.
    gain: [i64; MODES],
    square: [[i128; MODES]; MODES],
    /// Number of chunks after which a recorded hit has lost about two thirds of its weight in the sums.
    horizon: i64,
}

impl Sums {
    const fn new(horizon: i64) -> Self {
        Self { gain: [0; MODES], square: [[0; MODES]; MODES], horizon }
    }

    fn add(&mut self, hits: &[i64; MODES]) {
        for (a, (gain, squares)) in self.gain.iter_mut().zip(&mut self.square).enumerate() {
            *gain += (hits[a] - hits[0]) << BITS;
            for (square, &other) in squares.iter_mut().zip(hits) {
                let difference = i128::from(hits[a] - other);
                *square += (difference * difference) << BITS;
            }
        }
    }

    fn forget(&mut self) {
        let horizon = self.horizon;
        self.gain.iter_mut().for_each(|gain| *gain -= *gain / horizon);
        self.square.iter_mut().flatten().for_each(|square| *square -= *square / i128::from(horizon));
    }
}

/// Chooses the active mode, one of [`Mode::ALL`].
///
/// ```
/// use kvpool_policies::adaptive::Choice;
/// let mut choice = Choice::default();
/// assert_eq!(choice.mode(), 0);
/// // Of every 16 references, mode 2 hits one more than LRU.
/// for _ in 0..8 {
///     choice.record(16, &[5, 5, 6, 5, 5, 5]);
/// }
/// assert_eq!(choice.mode(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct Choice {
    mode: usize,
    short: Sums,
    long: Sums,
    /// Number of references that the short sum now counts, with 8 fractional bits.
    references: i64,
}

impl Default for Choice {
    fn default() -> Self {
        Self { mode: 0, short: Sums::new(SHORT), long: Sums::new(LONG), references: 0 }
    }
}

impl Choice {
    /// Number of chunks in as many references as the pool has blocks.
    pub const CHUNKS: i64 = 64;
    /// Largest number of references, and largest number of hits, that one chunk can have. Higher
    /// numbers are reduced to it.
    const MOST: u64 = 1 << 32;

    /// Returns the active mode, as an index into [`Mode::ALL`].
    #[must_use]
    pub const fn mode(&self) -> usize {
        self.mode
    }

    /// Records one chunk of references: their number, and the number of hits that each mode would have
    /// had. Returns the active mode.
    pub fn record(&mut self, references: u64, hits: &[u64; MODES]) -> usize {
        let bounded = |count: u64| count.min(Self::MOST) as i64;
        self.references += bounded(references) << BITS;
        let hits = hits.map(bounded);
        self.short.add(&hits);
        self.long.add(&hits);
        let edge = self.references / 1000;
        let worth =
            |mode: usize| self.short.gain[mode] + self.long.gain[mode] / 4 + if mode == 0 { edge } else { 0 };
        let best = (1..MODES).fold(0, |best, mode| if worth(mode) > worth(best) { mode } else { best });
        if best != self.mode {
            let lead = worth(best) - worth(self.mode);
            let variance = self.short.square[best][self.mode] + self.long.square[best][self.mode] / 16;
            // The condition is `lead > deviation / 2`, which means `4 lead^2 > variance`. The variance
            // is shifted, because `lead^2` has twice as many fractional bits.
            let lead_is_seen = 4 * i128::from(lead) * i128::from(lead) > variance << BITS;
            if lead_is_seen && lead > edge / 4 {
                self.mode = best;
            }
        }
        self.short.forget();
        self.long.forget();
        self.references -= self.references / SHORT;
        self.mode
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD4 (sums of pairs of modes are symmetric, and 0 for a mode with itself)";
        for sums in [&self.short, &self.long] {
            let mirrored = (0..MODES).all(|a| {
                (0..MODES).all(|b| sums.square[a][b] == sums.square[b][a] && sums.square[a][b] >= 0)
            });
            let sound = mirrored && sums.gain[0] == 0 && (0..MODES).all(|mode| sums.square[mode][mode] == 0);
            ensure(sound && self.mode < MODES && self.references >= 0, NAME, || format!("{self:?}"))?;
        }
        Ok(())
    }
}
