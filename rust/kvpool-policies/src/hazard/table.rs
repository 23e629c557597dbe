//! `Table`: what each class has taught about when content comes back, and what a block of it is therefore worth at any age.
//!
//! Owns: by class and bin of age, how many blocks came back at that age (*events*), how many were lost from sight then (*lost*: a
//! ghost made room), and how many are of that age now (*waiting*, counted anew by a sample before each [`Table::learn`]). Events and
//! losses count half after so many releases.
//!
//! ```text
//!   exposure of a bin  = events in it and behind it + waiting and lost behind it + half of those in it
//!   hazard of a family = (events + PRIOR x hazard of all classes) / (exposure + PRIOR)
//!   hazard of a class  = (events + PRIOR x hazard of its family) / (exposure + PRIOR)
//!   worth at an age    = the largest, over horizons, of P(comes back by then) / E(time held until then or until it comes back)
//! ```
//!
//! The exposure is the actuary's; blocks that were evicted early stay in it as long as they are remembered, for else early eviction
//! would hide long gaps. The worth is Gittins' index of a block that is held until a horizon of its own choice: expected hits per tick.
//! Before anything is learned it falls with age, the same for all classes: LRU.
//!
//! Costs: an event one addition. [`Table::learn`] O(classes seen x bins). 16 bytes per class and bin.

use super::age::{BINS, LOG_WIDTHS, bin, start, width};
use super::class::{CLASSES, FAMILIES, family};
use kvpool_core::PoolError;
use kvpool_core::parts::try_reserve;

/// What one block counts.
const ONE: u32 = 16;
/// Blocks that the hazard of all classes counts for in each family, and that of a family in each of its classes.
const PRIOR: u64 = 100;
/// Of the hazard of all classes before anything is learned: events and exposure.
const START: Counted = Counted { events: [2; BINS], exposed: [200; BINS] };
const NOTHING: Bins<u64> = [0; BINS];
/// Fractional bits of a hazard, and of a probability.
const HAZARD: u32 = 24;
const CERTAIN: u32 = 30;
/// What times are divided by, as powers of 2, so that products fit 64 bits: 2^30 x 2^21 ticks / 2^18.
const SHORTER: u32 = 18;

/// A newest block counts as worth more by this part: what few blocks have taught does not turn an order.
const NEWER: u32 = 4;

/// A worth of so much is a hit per tick.
pub(super) const WORTH: f64 = (1_u64 << 32) as f64;

type Bins<T> = [T; BINS];

/// What was counted of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    events: Bins<u32>,
    lost: Bins<u32>,
    waiting: Bins<u32>,
}

const NONE: Counts = Counts { events: [0; BINS], lost: [0; BINS], waiting: [0; BINS] };

/// What blocks are worth, by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worths {
    worths: Bins<u32>,
    /// Bit by bin: a younger block may be worth less by a [`NEWER`]th.
    rises: u32,
}

impl Counts {
    /// Nothing was counted, or it is forgotten.
    fn is_none(&self) -> bool {
        let counts = self.events.iter().chain(&self.lost).chain(&self.waiting);
        counts.fold(0, |all, count| all | count) == 0
    }

    fn counted(&self) -> Counted {
        Counted { events: self.events.map(u64::from), exposed: self.exposure() }
    }

    /// Blocks that lived into each bin.
    fn exposure(&self) -> Bins<u64> {
        let (mut exposure, mut behind) = ([0; BINS], 0);
        for bin in (0..BINS).rev() {
            let (events, censored) =
                (u64::from(self.events[bin]), u64::from(self.lost[bin]) + u64::from(self.waiting[bin]));
            exposure[bin] = behind + events + censored / 2;
            behind += events + censored;
        }
        exposure
    }
}

#[derive(Clone, Debug)]
pub(super) struct Table {
    /// By class.
    counts: Vec<Counts>,
    /// Bit by class: something may have been counted.
    seen: [u64; CLASSES.div_ceil(64)],
    /// By family, and behind these by class: of a class that is not seen what its family's are.
    worths: Vec<Worths>,
    /// By class: where in `worths` its are.
    places: [u16; CLASSES],
}

impl Table {
    /// That has learned nothing, with all its memory taken.
    pub(super) fn new() -> Result<Self, PoolError> {
        let (mut counts, mut worths) = (Vec::new(), Vec::new());
        try_reserve(&mut counts, CLASSES)?;
        try_reserve(&mut worths, FAMILIES + CLASSES)?;
        counts.resize(CLASSES, NONE);
        worths.resize(FAMILIES + CLASSES, Worths { worths: [0; BINS], rises: 0 });
        let places = std::array::from_fn(|class| family(class) as u16);
        let mut table = Self { counts, seen: [0; _], worths, places };
        table.learn();
        Ok(table)
    }

    #[inline]
    fn see(&mut self, class: u16) -> &mut Counts {
        let class = usize::from(class);
        self.seen[class / 64] |= 1 << (class % 64);
        &mut self.counts[class]
    }

    /// Classes of which something may have been counted.
    fn seen(&self) -> impl Iterator<Item = usize> + use<> {
        self.seen.into_iter().enumerate().flat_map(|(at, mut bits)| {
            std::iter::from_fn(move || {
                let bit = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// So many blocks of a class came back at an age in that bin.
    #[inline]
    pub(super) fn event(&mut self, class: u16, bin: usize, blocks: u32) {
        let count = &mut self.see(class).events[bin];
        *count = count.saturating_add(ONE * blocks);
    }

    /// So many were lost from sight.
    pub(super) fn lose(&mut self, class: u16, bin: usize, blocks: u32) {
        let count = &mut self.see(class).lost[bin];
        *count = count.saturating_add(ONE * blocks);
    }

    /// Nobody is waiting, until [`Self::wait`] says so.
    pub(super) fn nobody_waits(&mut self) {
        self.seen().for_each(|class| self.counts[class].waiting = [0; BINS]);
    }

    /// So many are of that age now.
    pub(super) fn wait(&mut self, class: u16, bin: usize, blocks: u32) {
        let count = &mut self.see(class).waiting[bin];
        *count = count.saturating_add(ONE.saturating_mul(blocks));
    }

    /// Half of what was counted is forgotten.
    pub(super) fn decay(&mut self) {
        for class in self.seen() {
            let Counts { events, lost, .. } = &mut self.counts[class];
            events.iter_mut().chain(lost).for_each(|count| *count /= 2);
        }
    }

    #[inline]
    fn worths(&self, class: u16) -> &Worths {
        &self.worths[usize::from(self.places[usize::from(class)])]
    }

    /// What a block of a class is worth at an age, in expected hits per 2^32 ticks: between the beginnings of two bins in proportion,
    /// so that worths of two classes cross where they should and not at the edge of a bin. No less than half of what it was: behind a
    /// bin in which all come back worths fall to nothing, but not in it.
    #[inline]
    pub(super) fn worth_at(&self, class: u16, age: u32) -> u32 {
        let bin = bin(age);
        let worths = &self.worths(class).worths;
        let (from, to) = (worths[bin], worths[(bin + 1).min(BINS - 1)]);
        let more = i64::from(to.max(from / 2)) - i64::from(from);
        // Below 2^52, but for the last bin, where it is 0.
        (i64::from(from) + ((more * i64::from(age - start(bin))) >> LOG_WIDTHS[bin])) as u32
    }

    /// Whether a younger block of the class may be worth less by a [`NEWER`]th than one of that age.
    #[inline]
    pub(super) fn may_rise(&self, class: u16, age: u32) -> bool {
        // Between two bins a worth is at most the larger one.
        self.worths(class).rises >> bin(age) & 3 != 0
    }

    /// Works out all worths from what was counted.
    pub(super) fn learn(&mut self) {
        let (mut all, mut families) = (START, [Counted::default(); FAMILIES]);
        for class in self.seen() {
            let counted = self.counts[class].counted();
            all.add(&counted);
            families[family(class)].add(&counted);
        }
        let all = all.hazards(&NOTHING, 0);
        let unseen = Worths::of(&all);
        let mut of_families = [all; FAMILIES];
        for ((counted, hazards), worths) in families.iter().zip(&mut of_families).zip(&mut self.worths) {
            *worths = unseen;
            if !counted.is_nothing() {
                *hazards = counted.hazards(&all, PRIOR);
                *worths = Worths::of(hazards);
            }
        }
        for class in self.seen() {
            let (family, counts) = (family(class), &self.counts[class]);
            let counted = counts.counted();
            // Where nobody said anything else, the class is its family.
            let is_family = counts.is_none() || counted == families[family];
            self.places[class] = if is_family { family } else { FAMILIES + class } as u16;
            if counts.is_none() {
                self.seen[class / 64] &= !(1 << (class % 64));
            } else if !is_family {
                self.worths[FAMILIES + class] = Worths::of(&counted.hazards(&of_families[family], PRIOR));
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        for class in self.seen() {
            self.counts[class] = NONE;
        }
        self.learn();
    }
}

/// Sums of counts, by bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    events: Bins<u64>,
    exposed: Bins<u64>,
}

impl Counted {
    fn is_nothing(&self) -> bool {
        self.exposed[0] == 0
    }

    fn add(&mut self, other: &Self) {
        for bin in 0..BINS {
            self.events[bin] += other.events[bin];
            self.exposed[bin] += other.exposed[bin];
        }
    }

    /// The hazards, if so many blocks more are counted that have these.
    fn hazards(&self, prior: &Bins<u64>, blocks: u64) -> Bins<u64> {
        let blocks = blocks * u64::from(ONE);
        std::array::from_fn(|bin| {
            // Sums have 42 bits; as many as fit beside the fraction decide.
            let (events, exposed) = (self.events[bin], self.exposed[bin] + blocks);
            let less = (64 - exposed.leading_zeros()).saturating_sub(63 - HAZARD);
            hazard(((events >> less) << HAZARD) + (blocks >> less) * prior[bin], exposed >> less)
        })
    }
}

/// A probability with [`HAZARD`] fractional bits. Both are below 2^64: counts have 32 bits, and classes are below 2^10.
const fn hazard(events: u64, exposure: u64) -> u64 {
    let hazard = events / if exposure == 0 { 1 } else { exposure };
    if hazard < 1 << HAZARD { hazard } else { 1 << HAZARD }
}

impl Worths {
    /// What a block is worth in each bin, if these are the hazards.
    fn of(hazards: &Bins<u64>) -> Self {
        let (mut comes, mut held) = ([0_u64; BINS], [0_u64; BINS]);
        let mut lives = 1_u64 << CERTAIN;
        for bin in 0..BINS {
            comes[bin] = (lives * hazards[bin]) >> HAZARD;
            held[bin] = (((lives - comes[bin] / 2) * u64::from(width(bin))) >> SHORTER).max(1);
            lives -= comes[bin];
        }
        // From the last bin on: those behind that bring more in less time are worth waiting for, and the horizon lies behind them.
        let (mut stretches, mut count) = ([(0, 1); BINS], 0);
        let mut worths = [0; BINS];
        for bin in (0..BINS).rev() {
            let (mut hits, mut time) = (comes[bin], held[bin]);
            while count > 0 {
                let (more, longer) = stretches[count - 1];
                // More per tick: below 2^30 and 2^34.
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
}

/// What the newest block of a class counts as worth, if it is worth so much.
#[inline]
pub(super) const fn newer(worth: u32) -> u32 {
    worth.saturating_add(worth / NEWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worth(table: &Table, class: usize, bin: usize) -> u32 {
        table.worths(class as u16).worths[bin]
    }

    #[test]
    fn before_anything_is_learned_it_is_lru() {
        let table = Table::new().unwrap();
        let first = table.worths(0).worths;
        assert!((0..CLASSES as u16).all(|class| table.worths(class).worths == first));
        // But for rounding.
        assert!(first.windows(2).all(|two| two[0] + two[0] / 64 >= two[1]), "{first:?}");
    }

    #[test]
    fn what_comes_back_soon_is_worth_more_than_what_comes_back_late_or_never() {
        let mut table = Table::new().unwrap();
        table.event(1, 2, 1000);
        table.event(2, 9, 1000);
        table.lose(3, 12, 1000);
        table.learn();
        assert!(worth(&table, 1, 0) > worth(&table, 2, 0) && worth(&table, 2, 0) > worth(&table, 3, 0));
        assert!(worth(&table, 2, 8) > worth(&table, 2, 0), "it rises towards the age at which all come back");
        assert!(worth(&table, 2, 12) < worth(&table, 2, 0), "and falls behind it");
    }

    /// Where it says that no younger block is worth less by a quarter, none is.
    #[test]
    fn what_may_rise_is_known() {
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
                let worth = |age: u32| table.worth_at(class, age);
                let falls = ages[..at].iter().all(|&younger| newer(worth(younger)) >= worth(age));
                assert!(falls || table.may_rise(class, age), "{class} at {age}");
                rising += u32::from(table.may_rise(class, age));
            }
        }
        assert!((4..100).contains(&rising), "{rising} of 224");
    }

    #[test]
    fn what_waits_counts_as_long_as_it_does() {
        let mut table = Table::new().unwrap();
        table.event(1, 2, 1000);
        table.learn();
        let before = worth(&table, 1, 0);
        table.wait(1, 15, 3000);
        table.learn();
        assert!(worth(&table, 1, 0) < before, "three of four did not come back");
        table.nobody_waits();
        table.learn();
        assert_eq!(worth(&table, 1, 0), before);
    }

    #[test]
    fn the_largest_counts_are_borne() {
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
        table.nobody_waits();
        table.learn();
        let new = Table::new().unwrap();
        assert!(
            (0..CLASSES as u16).all(|class| table.worths(class) == new.worths(class)),
            "all is forgotten"
        );
        assert_eq!((table.counts, table.seen), (new.counts, new.seen));
    }
}
