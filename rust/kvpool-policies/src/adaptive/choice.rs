//! `Choice`: chooses the active mode from the number of hits that each mode would have had.
//!
//! References are counted in *chunks* of 1/64 of a capacity. This type sums, over the chunks, the hits
//! of each mode minus those of mode 0, and the squared difference of each pair of modes. Each sum
//! exists twice: a short one that decays over 4 capacities of references, and a long one that decays
//! over 32.
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
//! Only differences between modes count, because hits that all modes have show nothing. Half a standard
//! deviation is a low threshold. It is sufficient, because a change moves no block and can be undone at
//! once.
//!
//! All arithmetic is in integers with 8 fractional bits, and squares are compared instead of roots. So
//! the choice is the same on any host.
//!
//! Cost: O(1), with 36 pairs of modes per chunk and 64 chunks per capacity.

use super::mode::Mode;
use kvpool::InvariantViolation;
use kvpool::parts::ensure;

/// The number of modes.
pub(super) const MODES: usize = Mode::ALL.len();
/// Fractional bits.
const BITS: u32 = 8;
/// The horizons, in chunks: 4 capacities and 32 capacities.
const SHORT: i64 = 4 * Choice::CHUNKS;
const LONG: i64 = 32 * Choice::CHUNKS;

#[derive(Clone, Debug)]
struct Sums {
    /// The number of hits of each mode minus that of mode 0.
    gain: [i64; MODES],
    square: [[i128; MODES]; MODES],
    /// The time constant of the decay of both sums, in chunks.
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

/// Chooses one of [`Mode::ALL`].
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
    /// The number of references over the short horizon, with fractional bits.
    references: i64,
}

impl Default for Choice {
    fn default() -> Self {
        Self { mode: 0, short: Sums::new(SHORT), long: Sums::new(LONG), references: 0 }
    }
}

impl Choice {
    /// The number of chunks per capacity of references.
    pub const CHUNKS: i64 = 64;
    /// The maximum number of references that a chunk counts.
    const MOST: u64 = 1 << 32;

    /// The active mode, as an index into [`Mode::ALL`].
    #[must_use]
    pub const fn mode(&self) -> usize {
        self.mode
    }

    /// Records a chunk of `references`, with the number of hits that each mode would have had. Returns
    /// the active mode.
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
            // Lead and variance both have fractional bits. `lead > deviation / 2` is
            // `4 lead^2 > variance`.
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
