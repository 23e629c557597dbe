//! `Table`: counts the reuse of each class, and computes from it the worth of a block of the class at
//! any age.
//!
//! There are three counts for each class and range of ages (bin):
//!
//! - *Events* are blocks that were used again at an age in this range.
//! - *Lost* are ghosts (records of evicted blocks) of this age that were replaced.
//! - *Waiting* are the blocks that now have this age, as a mean over samples in which recent samples
//!   have the largest weight.
//!
//! Events and losses are halved periodically.
//!
//! ```text
//! exposure of a bin  = events in it and later + waiting and lost later + half of those in it
//! hazard of a family = (events + PRIOR x hazard of all classes) / (exposure + PRIOR)
//! hazard of a class  = (events + PRIOR x hazard of its family) / (exposure + PRIOR)
//! worth at an age    = the maximum, over horizons, of
//!                      P(used again by then) / E(time held until then or until the use)
//! ```
//!
//! The exposure is computed as in actuarial tables. It includes blocks that were evicted early, as long
//! as they are remembered, because otherwise early eviction would hide long gaps. The worth is the
//! Gittins index of a block: the expected hits per tick if it is kept for the best duration. Before
//! anything is learned, the worth falls with age in the same way for all classes, so the order is LRU.
//!
//! [`Table::learn`] computes the hazards of all classes together and of families. The worths of a class
//! are computed when they are first needed after that, because most classes have no block to evict.
//!
//! Costs: an event is one addition. [`Table::learn`] takes O(classes with counts x bins). Computing the
//! worths of a class takes O(bins). 16 bytes per class and bin.

use super::age::{BINS, LOG_WIDTHS, bin, start};
use super::class::{CLASSES, FAMILIES, family};
use kvpool::PoolError;
use kvpool::parts::try_reserve;

/// The amount by which one block raises a count: counts are in sixteenths of a block.
const ONE: u32 = 16;
/// Weight of the prior hazards (rates of reuse): those of all classes for each family, and those of a
/// family for each of its classes. The weight equals a hundred blocks.
const PRIOR: u64 = 100 * ONE as u64;
/// The hazard (rate of reuse) of all classes before anything is learned, and its weight as a prior.
const START: (Bins<u32>, u64) = ([(1 << HAZARD) / 100; BINS], 200);
/// The number of fractional bits of a hazard (rate of reuse). `CERTAIN` is that of a probability.
const HAZARD: u32 = 24;
const CERTAIN: u32 = 30;
/// The binary logarithm of the number by which times are divided, so that products fit into 64 bits:
/// 2^30 x 2^21 ticks / 2^18.
const SHORTER: u32 = 18;

/// For the choice of a victim, the worth (expected hits per tick) of the newest block of a class is
/// raised by one part in this number. So few observations do not reverse the order of a class.
const NEWER: u32 = 4;

/// The latest sample of waiting blocks has a weight of one part in this number, except for the first
/// samples. A single sample has few blocks of most classes and ages.
const LATEST: u32 = 8;

/// The unit of a block's worth: this value means one expected hit per tick.
pub(super) const WORTH: f64 = (1_u64 << 32) as f64;

type Bins<T> = [T; BINS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    events: Bins<u32>,
    lost: Bins<u32>,
    waiting: Bins<u32>,
}

const NONE: Counts = Counts { events: [0; BINS], lost: [0; BINS], waiting: [0; BINS] };

/// The worth (expected hits per tick) of a block of a class, for each bin (range of ages).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worths {
    worths: Bins<u32>,
    /// One bit per bin (range of ages). It is set if a younger block may be worth less, by more than
    /// one part in [`NEWER`].
    rises: u32,
}

impl Counts {
    /// Returns whether all counts of the class are 0.
    fn is_none(&self) -> bool {
        let counts = self.events.iter().chain(&self.lost).chain(&self.waiting);
        counts.fold(0, |all, count| all | count) == 0
    }

    fn counted(&self) -> Counted {
        let mut counted = Counted::default();
        counted.add(self);
        counted
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    counts: Vec<Counts>,
    /// One bit per class, which is set if the class may have counts.
    seen: Classes,
    /// The number of samples of waiting blocks, at most [`LATEST`].
    samples: u32,
    hazards: Vec<Bins<u32>>,
    /// One bit per family (classes that differ only in the output and the finish of the request), which
    /// is set if more than one of its classes has counts.
    divided: u64,
    /// The worths (expected hits per tick) of each class. They are not valid if the class is `stale`.
    worths: Vec<Worths>,
    /// One bit per class. It is set if the worths of the class have to be computed again.
    stale: Classes,
}

type Classes = [u64; CLASSES.div_ceil(64)];
const _: () = assert!(FAMILIES <= 64, "one bit per family");

impl Table {
    /// Makes a table without counts, and allocates all memory that it will need.
    pub(super) fn new() -> Result<Self, PoolError> {
        let (mut counts, mut hazards, mut worths) = (Vec::new(), Vec::new(), Vec::new());
        try_reserve(&mut counts, CLASSES)?;
        try_reserve(&mut hazards, FAMILIES)?;
        try_reserve(&mut worths, CLASSES)?;
        counts.resize(CLASSES, NONE);
        hazards.resize(FAMILIES, [0; BINS]);
        worths.resize(CLASSES, Worths { worths: [0; BINS], rises: 0 });
        let mut table = Self { counts, seen: [0; _], samples: 0, hazards, divided: 0, worths, stale: [0; _] };
        table.learn();
        Ok(table)
    }

    #[inline]
    fn see(&mut self, class: u16) -> &mut Counts {
        let class = usize::from(class);
        self.seen[class / 64] |= 1 << (class % 64);
        &mut self.counts[class]
    }

    /// Iterates over the classes that may have counts above 0.
    fn seen(&self) -> impl Iterator<Item = usize> + use<> {
        self.seen.into_iter().enumerate().flat_map(|(at, mut bits)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// Counts `blocks` blocks of a class that were used again at an age in this bin (range of ages).
    #[inline]
    pub(super) fn event(&mut self, class: u16, bin: usize, blocks: u32) {
        let count = &mut self.see(class).events[bin];
        *count = count.saturating_add(ONE * blocks);
    }

    /// Counts `blocks` blocks of a class whose ghosts (records of eviction) were replaced at an age in
    /// this bin.
    pub(super) fn lose(&mut self, class: u16, bin: usize, blocks: u32) {
        let count = &mut self.see(class).lost[bin];
        *count = count.saturating_add(ONE * blocks);
    }

    /// Starts a new sample of the blocks that wait for a use. The caller adds them with [`Self::wait`].
    pub(super) fn begin_sample(&mut self) {
        self.samples = LATEST.min(self.samples + 1);
        let latest = self.latest();
        for class in self.seen() {
            self.counts[class].waiting.iter_mut().for_each(|count| *count -= count.div_ceil(latest));
        }
    }

    /// Returns the divisor for the weight of the latest sample: 1 for the first sample, 2 for the
    /// second, 4 for the next two, and then 8.
    #[inline]
    const fn latest(&self) -> u32 {
        self.samples.next_power_of_two()
    }

    /// Adds `blocks` blocks of a class to the sample. Their age is in this bin (range of ages).
    pub(super) fn wait(&mut self, class: u16, bin: usize, blocks: u32) {
        let one = ONE / self.latest();
        let count = &mut self.see(class).waiting[bin];
        *count = count.saturating_add(one.saturating_mul(blocks));
    }

    pub(super) fn decay(&mut self) {
        for class in self.seen() {
            let Counts { events, lost, .. } = &mut self.counts[class];
            events.iter_mut().chain(lost).for_each(|count| *count /= 2);
        }
    }

    #[inline]
    const fn is_stale(&self, class: usize) -> bool {
        self.stale[class / 64] >> (class % 64) & 1 != 0
    }

    /// Returns the worths (expected hits per tick) of the blocks of a class. Computes them if they are
    /// not valid.
    #[inline]
    pub(super) fn worths(&mut self, class: u16) -> &Worths {
        let class = usize::from(class);
        if self.is_stale(class) {
            self.stale[class / 64] &= !(1 << (class % 64));
            self.worths[class] = self.worked_out(class);
        }
        &self.worths[class]
    }

    /// Like [`Self::worths`], but does not store the result.
    pub(super) fn worths_now(&self, class: u16) -> Worths {
        let class = usize::from(class);
        if self.is_stale(class) { self.worked_out(class) } else { self.worths[class] }
    }

    #[cold]
    fn worked_out(&self, class: usize) -> Worths {
        let hazards = &self.hazards[family(class)];
        // If no other class of the family has counts, the hazards (rates of reuse) of the class are
        // those of the family.
        if self.divided >> family(class) & 1 == 0 {
            return Worths::of(hazards);
        }
        Worths::of(&self.counts[class].counted().hazards(hazards, PRIOR))
    }

    /// Computes new hazards (rates of reuse) from the counts. The worths of all classes have to be
    /// computed again.
    pub(super) fn learn(&mut self) {
        let mut families = [Counted::default(); FAMILIES];
        let mut found = 0;
        self.divided = 0;
        for class in self.seen() {
            let (family, counts) = (family(class), &self.counts[class]);
            if counts.is_none() {
                self.seen[class / 64] &= !(1 << (class % 64));
                continue;
            }
            families[family].add(counts);
            self.divided |= found & 1 << family;
            found |= 1_u64 << family;
        }
        let mut all = Counted::default();
        families.iter().for_each(|family| all.add_all(family));
        let all = all.hazards(&START.0, START.1);
        for (at, (counted, hazards)) in families.iter().zip(&mut self.hazards).enumerate() {
            *hazards = if found >> at & 1 == 0 { all } else { counted.hazards(&all, PRIOR) };
        }
        self.stale = [u64::MAX; _];
    }

    pub(super) fn clear(&mut self) {
        for class in self.seen() {
            self.counts[class] = NONE;
        }
        self.samples = 0;
        self.learn();
    }
}

/// Sums of the counts of several classes, for each bin (range of ages).
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    events: Bins<u64>,
    /// The blocks that were lost or wait for a use.
    censored: Bins<u64>,
}

impl Counted {
    fn add(&mut self, counts: &Counts) {
        for bin in 0..BINS {
            self.events[bin] += u64::from(counts.events[bin]);
            self.censored[bin] += u64::from(counts.lost[bin]) + u64::from(counts.waiting[bin]);
        }
    }

    fn add_all(&mut self, other: &Self) {
        for bin in 0..BINS {
            self.events[bin] += other.events[bin];
            self.censored[bin] += other.censored[bin];
        }
    }

    /// Returns the hazard (rate of reuse) in each bin (range of ages) that follows from these counts.
    /// `more` additional blocks have the hazards `prior`.
    fn hazards(&self, prior: &Bins<u32>, more: u64) -> Bins<u32> {
        let (mut hazards, mut behind) = ([0; BINS], 0);
        for bin in (0..BINS).rev() {
            let (events, censored) = (self.events[bin], self.censored[bin]);
            // The sums have up to 42 bits. Their low bits are dropped so that they can be multiplied.
            let exposed = behind + events + censored / 2 + more;
            let less = (64 - exposed.leading_zeros()).saturating_sub(63 - HAZARD);
            hazards[bin] = hazard(
                ((events >> less) << HAZARD) + (more >> less) * u64::from(prior[bin]),
                exposed >> less,
            );
            behind += events + censored;
        }
        hazards
    }
}

/// Returns `events / exposure` as a probability with [`HAZARD`] fractional bits. The arguments are
/// below 2^64, because counts have 32 bits, and there are fewer than 2^10 classes.
fn hazard(events: u64, exposure: u64) -> u32 {
    (events / exposure.max(1)).min(1 << HAZARD) as u32
}

impl Worths {
    /// Computes the worth (expected hits per tick) of a block in each bin of ages, from the hazards
    /// (rates of reuse) of its class.
    fn of(hazards: &Bins<u32>) -> Self {
        let (mut comes, mut held) = ([0_u64; BINS], [0_u64; BINS]);
        let mut lives = 1_u64 << CERTAIN;
        for bin in 0..BINS {
            comes[bin] = (lives * u64::from(hazards[bin])) >> HAZARD;
            held[bin] = (((lives - comes[bin] / 2) << LOG_WIDTHS[bin]) >> SHORTER).max(1);
            lives -= comes[bin];
        }
        // From the last bin to the first: if later bins bring more hits per tick, the cache should keep
        // the block for them too, so the duration includes them.
        let (mut stretches, mut count) = ([(0, 1); BINS], 0);
        let mut worths = [0; BINS];
        for bin in (0..BINS).rev() {
            let (mut hits, mut time) = (comes[bin], held[bin]);
            while count > 0 {
                let (more, longer) = stretches[count - 1];
                // The products compare two rates of hits per tick without a division. The factors are
                // below 2^30 and 2^34.
                if more * time <= hits * longer {
                    break;
                }
                (hits, time, count) = (hits + more, time + longer, count - 1);
            }
            stretches[count] = (hits, time);
            count += 1;
            worths[bin] = u32::try_from((hits << (32 - SHORTER)) / time).unwrap_or(u32::MAX);
        }
        let mut least = u32::MAX;
        let rises = worths.iter().enumerate().fold(0, |rises, (bin, &worth)| {
            let one = u32::from(newer(least) < worth);
            least = least.min(worth);
            rises | one << bin
        });
        Self { worths, rises }
    }

    /// Returns the worth of a block at an age, in expected hits per 2^32 ticks. It is interpolated
    /// between the starts of two bins, so that the worths of two classes can cross at any age. If all
    /// blocks of a bin are used again, the worth after the bin is 0. Within the bin, the interpolated
    /// worth does not fall below half of the value at its start.
    #[inline]
    pub(super) fn at(&self, age: u32) -> u32 {
        let bin = bin(age);
        let (from, to) = (self.worths[bin], self.worths[(bin + 1).min(BINS - 1)]);
        let more = i64::from(to.max(from / 2)) - i64::from(from);
        // The product is below 2^52, except in the last bin, where the factor is 0.
        (i64::from(from) + ((more * i64::from(age - start(bin))) >> LOG_WIDTHS[bin])) as u32
    }

    /// Whether a block younger than `age` may be worth less, by more than one part in [`NEWER`].
    #[inline]
    pub(super) fn may_rise(&self, age: u32) -> bool {
        // At an age between the starts of two bins, the worth is at most the larger of the worths at
        // these starts.
        self.rises >> bin(age) & 3 != 0
    }
}

/// Returns the worth with which the newest block of a class is compared: its own worth, raised by one
/// part in [`NEWER`].
#[inline]
pub(super) const fn newer(worth: u32) -> u32 {
    worth.saturating_add(worth / NEWER)
}

#[cfg(test)]
mod tests {
    use super::super::age::width;
    use super::*;

    fn worth(table: &mut Table, class: usize, bin: usize) -> u32 {
        table.worths(class as u16).worths[bin]
    }

    #[test]
    fn an_empty_table_orders_like_lru() {
        let mut table = Table::new().unwrap();
        let first = table.worths(0).worths;
        assert!((0..CLASSES as u16).all(|class| table.worths(class).worths == first));
        // The factor 1/64 allows for rounding errors.
        assert!(first.windows(2).all(|two| two[0] + two[0] / 64 >= two[1]), "{first:?}");
    }

    #[test]
    fn blocks_reused_soon_are_worth_more_than_late_or_never() {
        let mut table = Table::new().unwrap();
        table.event(1, 2, 1000);
        table.event(2, 9, 1000);
        table.lose(3, 12, 1000);
        table.learn();
        assert!(
            worth(&mut table, 1, 0) > worth(&mut table, 2, 0)
                && worth(&mut table, 2, 0) > worth(&mut table, 3, 0)
        );
        assert!(
            worth(&mut table, 2, 8) > worth(&mut table, 2, 0),
            "the worth rises towards the age at which all blocks are used again"
        );
        assert!(worth(&mut table, 2, 12) < worth(&mut table, 2, 0), "the worth falls after that age");
    }

    /// If `may_rise` is false for an age, no younger block is worth less by a quarter.
    #[test]
    fn may_rise_is_true_wherever_a_younger_block_is_worth_less() {
        let mut table = Table::new().unwrap();
        table.event(1, 9, 1000);
        table.event(2, 5, 90);
        table.lose(2, 14, 1000);
        table.event(3, 20, 7);
        table.learn();
        let ages: Vec<u32> =
            (0..BINS).flat_map(|bin| [start(bin), start(bin) + width(bin) * 3 / 4]).collect();
        let mut rising = 0;
        for class in 0..4 {
            for (at, &age) in ages.iter().enumerate() {
                let worths = *table.worths(class);
                let worth = |age: u32| worths.at(age);
                let falls = ages[..at].iter().all(|&younger| newer(worth(younger)) >= worth(age));
                assert!(falls || worths.may_rise(age), "{class} at {age}");
                rising += u32::from(worths.may_rise(age));
            }
        }
        assert!((4..100).contains(&rising), "{rising} of 224");
    }

    #[test]
    fn waiting_blocks_lower_the_worth_and_are_forgotten_gradually() {
        let mut table = Table::new().unwrap();
        table.event(1, 2, 1000);
        table.learn();
        let before = worth(&mut table, 1, 0);
        let samples = |table: &mut Table, blocks: u32| -> Vec<u32> {
            let sample = |_| {
                table.begin_sample();
                table.wait(1, 15, blocks);
                table.learn();
                worth(table, 1, 0)
            };
            (0..100).map(sample).collect()
        };
        let falling = samples(&mut table, 3000);
        assert!(falling[0] < before && falling.is_sorted_by(|a, b| a >= b), "{falling:?}");
        assert!(falling[99] < before / 3, "three of four blocks were not used again");
        let rising = samples(&mut table, 0);
        assert!(rising.is_sorted() && rising[99] == before, "{before} after {rising:?}");
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        let mut table = Table::new().unwrap();
        for class in 0..CLASSES as u16 {
            for bin in 0..BINS {
                (0..40).for_each(|_| table.event(class, bin, u32::MAX / ONE));
                table.wait(class, bin, u32::MAX);
                table.lose(class, bin, u32::MAX / ONE);
            }
        }
        table.learn();
        (0..40).for_each(|_| table.decay());
        (0..200).for_each(|_| table.begin_sample());
        table.learn();
        let mut new = Table::new().unwrap();
        assert!(
            (0..CLASSES as u16).all(|class| table.worths(class) == new.worths(class)),
            "all is forgotten"
        );
        assert_eq!((table.counts, table.seen), (new.counts, new.seen));
    }
}
