//! Ages of blocks: their unit, and the ranges (bins) for which reuse is counted.
//!
//! The unit of ages is a *tick*. With the caller's clock, a tick is 1/16 of a second. Without it, a
//! tick passes when 1/256 of a capacity (the pool's number of blocks) was admitted. Bins are half
//! octaves from 8 seconds to two hours, and octaves before and after. Coarser bins cost up to three
//! percentage points of hits on a loop that returns after ten minutes.
//!
//! A time has 32 bits and wraps around. An age is the difference of two times. It is correct for 8
//! years, or 16 million capacities of admitted blocks.

pub(super) const BINS: usize = 28;
pub(super) const SECOND: u32 = 16;
/// Without the caller's clock: the number of ticks (units of age) that pass while as many blocks are
/// admitted as the pool has.
pub(super) const CAPACITY: u64 = 256;

/// The age at which each bin (range of ages) starts, in seconds.
const SECONDS: [u32; BINS] = [
    0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 16_384, 32_768, 65_536,
];

pub(super) const fn start(bin: usize) -> u32 {
    SECONDS[bin] * SECOND
}

/// Returns the length of a bin (range of ages), in ticks. The last bin has no end. As its length, this
/// function returns its start.
pub(super) const fn width(bin: usize) -> u32 {
    if bin + 1 < BINS { start(bin + 1) - start(bin) } else { start(bin) }
}

/// The binary logarithm of the length of each bin (range of ages). All lengths are powers of 2.
pub(super) const LOG_WIDTHS: [u8; BINS] = {
    let mut logs = [0; BINS];
    let mut bin = 0;
    while bin < BINS {
        assert!(width(bin).is_power_of_two());
        logs[bin] = width(bin).trailing_zeros() as u8;
        bin += 1;
    }
    logs
};

/// The first bin (range of ages) of each octave of seconds. The octaves are 0 to 1 s, 1 to 2 s, 2 to 4
/// s, and so on.
const FIRST: [u8; 18] = {
    let mut first = [0; 18];
    let mut octave = 1;
    while octave < 18 {
        let mut bin = 0;
        while bin + 1 < BINS && SECONDS[bin + 1] <= 1 << (octave - 1) {
            bin += 1;
        }
        first[octave] = bin as u8;
        octave += 1;
    }
    first
};

#[inline]
pub(super) fn bin(age: u32) -> usize {
    let seconds = age / SECOND;
    let octave = (32 - seconds.leading_zeros()).min(17) as usize;
    let first = usize::from(FIRST[octave]);
    // Choose between the first and the second bin of the octave, because an octave has at most two
    // bins.
    if first + 1 < BINS && age >= start(first + 1) { first + 1 } else { first }
}

/// Returns the binary logarithm of an age in ticks, times 8. It is 0 for at most one tick, and at most
/// 255.
#[inline]
pub(super) fn eighths(age: u32) -> u8 {
    let age = age.max(1);
    let octave = age.ilog2();
    let part = if octave >= 3 { age >> (octave - 3) } else { age << (3 - octave) } & 7;
    (octave * 8 + part) as u8 // at most 31 * 8 + 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_age_is_in_the_bin_that_it_falls_in() {
        let ages = (0..40_000).chain((1..=u32::MAX / SECOND / 1024).map(|age| age * SECOND * 1024 - 1));
        for age in ages {
            let found = bin(age);
            assert!(start(found) <= age && (found + 1 == BINS || age < start(found + 1)), "{age} in {found}");
        }
        assert_eq!((bin(u32::MAX), width(BINS - 1)), (BINS - 1, start(BINS - 1)));
    }

    #[test]
    fn logarithms_rise() {
        assert_eq!(
            (eighths(0), eighths(1), eighths(16), eighths(24), eighths(u32::MAX)),
            (0, 0, 32, 36, 255)
        );
        assert!((1..100_000).all(|age| eighths(age) <= eighths(age + 1)));
    }
}
