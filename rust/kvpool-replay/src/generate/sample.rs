//! Random draws that give the same numbers on every host.
//!
//! [`Sampler`] contains `ChaCha8` and the distributions that the trace generator needs. `ChaCha8` is a
//! specified stream cipher, so its output does not change with the version of a library.
//!
//! **Why own logarithms.** `f64::ln`, `exp` and `powf` come from the platform's mathematics library and
//! may differ in the last bit between hosts. Here every floating-point operation is one of `+ - * /`,
//! `sqrt`, a comparison or a conversion. IEEE 754 specifies the result of each to the last bit, and
//! Rust neither fuses nor reorders them. [`ln`] and [`exp`] are short series of such operations, with a
//! relative error of about 1e-14. That is far better than lengths of whole tokens need. (One exception:
//! 32-bit x86 without SSE2 rounds differently, and no engine runs there.)
//!
//! Draws consume the random stream in the order of the calls, and some of them consume a variable
//! amount, because they reject values. So a change in the order of calls changes everything after it.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// A seeded source of random draws.
#[derive(Debug)]
pub(crate) struct Sampler {
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Makes the random stream of a seed. The `ChaCha8` key is the seed in little-endian bytes,
    /// followed by zeros.
    pub(crate) fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self { rng: ChaCha8Rng::from_seed(key) }
    }

    /// Draws uniformly from [0, 1): the upper 53 bits of a draw, divided by 2^53.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws from the exponential distribution with the given mean, by inversion: `-mean * ln(1 - u)`.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(1.0 - self.unit())
    }

    /// Draws from the standard normal distribution, by Marsaglia's polar method. The method gives two
    /// numbers. The second one is discarded, so that no draw depends on an earlier one.
    pub(crate) fn normal(&mut self) -> f64 {
        loop {
            let x = 2.0 * self.unit() - 1.0;
            let y = 2.0 * self.unit() - 1.0;
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return x * (-2.0 * ln(square) / square).sqrt();
            }
        }
    }

    /// Draws from the log-normal distribution: `median * exp(sigma * z)`.
    pub(crate) fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        median * exp(sigma * self.normal())
    }

    /// Draws from the geometric distribution over 1, 2, ... with the given mean (at least 1), by
    /// inversion.
    pub(crate) fn geometric(&mut self, mean: f64) -> u32 {
        if mean <= 1.0 {
            return 1;
        }
        // The number of failures before the first success, if each trial succeeds with probability 1 /
        // mean.
        let failures = ln(1.0 - self.unit()) / ln(1.0 - 1.0 / mean);
        // The conversion saturates.
        (failures as u32).saturating_add(1)
    }

    /// Draws an index into `cumulative`, a table of cumulative weights. The probability of an index is
    /// proportional to its weight. Returns 0 for an empty table.
    pub(crate) fn index(&mut self, cumulative: &[f64]) -> usize {
        let total = cumulative.last().copied().unwrap_or(0.0);
        let target = self.unit() * total;
        cumulative.partition_point(|&sum| sum <= target).min(cumulative.len().saturating_sub(1))
    }
}

/// Returns the cumulative weights of a Zipf distribution over `count` ranks. Rank r has the weight
/// `r^-skew`, computed as `exp(-skew * ln r)`.
pub(crate) fn zipf_table(count: usize, skew: f64) -> Vec<f64> {
    let mut sum = 0.0;
    (1..=count)
        .map(|rank| {
            sum += exp(-skew * ln(rank as f64));
            sum
        })
        .collect()
}

/// ln 2, split so that the product of the upper part and a whole number of up to 11 bits is exact.
const LN2_UPPER: f64 = 0.693_147_180_369_123_8;
const LN2_LOWER: f64 = 1.908_214_929_270_587_7e-10;

/// The natural logarithm of a positive, normal, finite number; 0 for anything else.
///
/// `x = m * 2^e` with m in [sqrt(1/2), sqrt(2)). Then `ln m = 2 atanh(s)`, with
/// `s = (m - 1) / (m + 1)`, by its power series. |s| < 0.172, so 11 terms leave an error below 1e-17.
pub(crate) fn ln(x: f64) -> f64 {
    if !(x.is_normal() && x > 0.0) {
        return 0.0;
    }
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in (1..=21).rev().step_by(2) {
        sum = sum * square + 1.0 / f64::from(odd);
    }
    let exponent = f64::from(exponent);
    exponent * LN2_UPPER + (2.0 * s * sum + exponent * LN2_LOWER)
}

/// `e^x`, with x clamped to [-700, 700].
///
/// `x = k ln 2 + r` with |r| <= 0.35. The result is the Taylor series of `e^r` to 15 terms (error below
/// 1e-18), times `2^k`, which is made from its bits.
pub(crate) fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let doublings = (x / std::f64::consts::LN_2).round();
    let r = (x - doublings * LN2_UPPER) - doublings * LN2_LOWER;
    let mut sum = 1.0;
    for term in (1..=15).rev() {
        sum = 1.0 + sum * r / f64::from(term);
    }
    let exponent = (1023.0 + doublings) as u64;
    sum * f64::from_bits(exponent << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_and_exp_are_accurate() {
        let mut sampler = Sampler::new(1);
        for _ in 0..10_000 {
            let x = (sampler.unit() - 0.5) * 1200.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp({x})");
            let positive = x.exp();
            assert!((ln(positive) - x).abs() <= 1e-13 * x.abs().max(1.0), "ln({positive})");
            let near_one = 1.0 + x * 1e-6;
            assert!((ln(near_one) - near_one.ln()).abs() < 1e-16 + 1e-14 * near_one.ln().abs());
        }
        assert_eq!((ln(1.0), exp(0.0), ln(0.0), ln(-1.0)), (0.0, 1.0, 0.0, 0.0));
        assert!(exp(f64::MAX).is_finite() && exp(f64::MIN) > 0.0);
    }

    /// This test compares the bits of the draws, because they must be the same on every host.
    #[test]
    fn draws_have_fixed_bits() {
        assert_eq!(ln(10.0).to_bits(), 0x4002_6bb1_bbb5_5516);
        assert_eq!(exp(1.0).to_bits(), 0x4005_bf0a_8b14_576a);
        let mut sampler = Sampler::new(42);
        assert_eq!(sampler.unit().to_bits(), 0x3fd6_49cd_1c46_63ea);
        assert_eq!(sampler.normal().to_bits(), 0xbffd_6ec0_7b84_c0e1);
    }

    #[test]
    fn distributions_have_their_means() {
        let mut sampler = Sampler::new(7);
        let n = 100_000;
        let mut mean = |draw: &mut dyn FnMut(&mut Sampler) -> f64| {
            (0..n).map(|_| draw(&mut sampler)).sum::<f64>() / f64::from(n)
        };
        assert!((mean(&mut |s| s.unit()) - 0.5).abs() < 0.01);
        assert!((mean(&mut |s| s.exponential(3.0)) - 3.0).abs() < 0.1);
        assert!(mean(&mut Sampler::normal).abs() < 0.02);
        assert!((mean(&mut |s| s.normal().powi(2)) - 1.0).abs() < 0.03);
        assert!((mean(&mut |s| f64::from(s.geometric(5.0))) - 5.0).abs() < 0.1);
        assert!((mean(&mut |s| f64::from(s.geometric(1.0))) - 1.0).abs() < 1e-9);
        // Half of the draws of a log-normal distribution are below its median.
        let below = mean(&mut |s| f64::from(s.log_normal(100.0, 1.0) < 100.0));
        assert!((below - 0.5).abs() < 0.01);
        // With a skew of 1, the weights of three ranks are 1, 1/2 and 1/3.
        let table = zipf_table(3, 1.0);
        let first = mean(&mut |s| f64::from(s.index(&table) == 0));
        assert!((first - 6.0 / 11.0).abs() < 0.01);
        assert_eq!(Sampler::new(0).index(&[]), 0);
    }
}
