//! `Tails`: finds the class whose block is evicted next.
//!
//! The rank of a class is the rank of the block that it would evict. This type stores the rank of each
//! class, and the lowest rank of each group of 32 classes. If only the class of the latest victim has
//! changed, its new rank is compared with the lowest rank of all other classes. If nothing has changed
//! except that this victim was evicted, the next block at the same end of its class is considered
//! first. If it has the same stamp, it is evicted without any comparison.
//!
//! Costs: [`Tails::next`] makes one comparison if only the class of the latest victim has changed.
//! Otherwise it makes 32 per group with a changed class, plus 64 and one per group. 8 bytes per class.

use super::class::CLASSES;

const GROUP: usize = 32;
const GROUPS: usize = CLASSES.div_ceil(GROUP);
const _: () = assert!(GROUPS <= 32, "one bit per group");

const EMPTY: u64 = u64::MAX;

/// The blocks at one end of a class that have the same stamp (time of last release). After the first of
/// them, the others are evicted without a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) class: u16,
    pub(super) stamp: u32,
    /// Whether the blocks are the oldest of the class, or the newest.
    pub(super) oldest: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Tails {
    ranks: Box<[[u64; GROUP]; GROUPS]>,
    lowest: [u64; GROUPS],
    /// One bit per class, which is set if the rank of the class (that of its next victim) is stored.
    ranked: [u32; GROUPS],
    /// One bit per class. It is set if blocks of the class have changed, so that its rank may have
    /// changed.
    changed: [u32; GROUPS],
    /// One bit per group of 32 classes, which is set if blocks of one of its classes have changed.
    groups: u32,
    /// The class that had the lowest rank at the latest eviction.
    first: usize,
    /// The lowest rank among all other classes whose blocks have not changed.
    second: u64,
    /// The blocks with equal class, end and stamp to which the latest victim belonged. `None` if anything
    /// but its eviction has changed.
    run: Option<Run>,
}

/// Returns the lowest rank, its index, and the lowest of the other ranks. Of equal ranks, the first one
/// counts.
fn two_lowest(ranks: &[u64]) -> (u64, usize, u64) {
    ranks.iter().enumerate().fold((EMPTY, 0, EMPTY), |(lowest, at, second), (place, &rank)| {
        if rank < lowest { (rank, place, lowest) } else { (lowest, at, second.min(rank)) }
    })
}

impl Tails {
    pub(super) fn new() -> Self {
        Self {
            ranks: Box::new([[EMPTY; GROUP]; GROUPS]),
            lowest: [EMPTY; GROUPS],
            ranked: [0; GROUPS],
            changed: [0; GROUPS],
            groups: 0,
            first: 0,
            second: 0,
            run: None,
        }
    }

    /// Records that the rank of a class may have changed.
    #[inline]
    pub(super) const fn change(&mut self, class: u16) {
        let (group, class) = (class as usize / GROUP, class as usize % GROUP);
        self.changed[group] |= 1 << class;
        self.groups |= 1 << group;
        self.run = None;
    }

    /// Records that the victim was one of these blocks.
    #[inline]
    pub(super) const fn record_eviction(&mut self, run: Run) {
        self.change(run.class);
        self.run = Some(run);
    }

    /// Returns the blocks to which the next victim may belong without a comparison.
    #[inline]
    pub(super) const fn run(&self) -> Option<Run> {
        self.run
    }

    /// Records that the rank of every class may have changed.
    pub(super) fn change_all(&mut self) {
        for group in 0..GROUPS {
            self.changed[group] |= self.ranked[group];
            self.groups |= u32::from(self.changed[group] != 0) << group;
        }
        self.run = None;
    }

    /// Returns which end of which class (its oldest or its newest block) has the lowest rank. Of equal
    /// ranks, that of the first class counts. `least` returns the rank of a class, and the end that has
    /// this rank.
    #[inline]
    pub(super) fn next<B>(&mut self, mut least: impl FnMut(u16) -> Option<(u64, B)>) -> Option<B> {
        let (group, class) = (self.first / GROUP, self.first % GROUP);
        if self.groups == 1 << group
            && self.changed[group] == 1 << class
            && let Some((rank, victim)) = least(self.first as u16)
            && rank < self.second
        {
            return Some(victim);
        }
        self.rank(&mut least);
        least(self.first as u16).map(|(_, victim)| victim)
    }

    /// Computes the ranks of the classes that have changed, and finds the lowest rank.
    fn rank<B>(&mut self, mut least: impl FnMut(u16) -> Option<(u64, B)>) {
        while self.groups != 0 {
            let group = self.groups.trailing_zeros() as usize;
            self.groups &= self.groups - 1;
            let mut changed = std::mem::take(&mut self.changed[group]);
            while changed != 0 {
                let class = changed.trailing_zeros() as usize;
                changed &= changed - 1;
                let rank = least((group * GROUP + class) as u16).map_or(EMPTY, |(rank, _)| rank);
                self.ranks[group][class] = rank;
                self.ranked[group] = self.ranked[group] & !(1 << class) | u32::from(rank != EMPTY) << class;
            }
            self.lowest[group] = self.ranks[group].iter().copied().fold(EMPTY, u64::min);
        }
        let (_, group, other) = two_lowest(&self.lowest);
        let (_, class, second) = two_lowest(&self.ranks[group]);
        (self.first, self.second) = (group * GROUP + class, second.min(other));
    }

    /// Whether a class has a stored rank, or will get one before the next eviction.
    pub(super) fn knows(&self, class: u16) -> bool {
        let (group, class) = (usize::from(class) / GROUP, usize::from(class) % GROUP);
        (self.ranked[group] | self.changed[group]) >> class & 1 == 1
    }

    pub(super) fn clear(&mut self) {
        *self.ranks = [[EMPTY; GROUP]; GROUPS];
        (self.lowest, self.ranked, self.changed) = ([EMPTY; GROUPS], [0; GROUPS], [0; GROUPS]);
        (self.groups, self.first, self.second, self.run) = (0, 0, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the result with a search over all classes. Each turn changes one class (mostly that of
    /// the latest victim), or all classes.
    #[test]
    fn the_lowest_rank_is_found_in_any_group() {
        let mut tails = Tails::new();
        let mut ranks = [EMPTY; CLASSES];
        let mut random = 1_u64;
        let mut last = 0;
        let mut runs = 0;
        for turn in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let class = if random >> 60 < 12 { last } else { (random >> 33) as usize % CLASSES };
            ranks[class] = if random >> 20 & 7 == 0 { EMPTY } else { random >> 50 };
            tails.change(class as u16);
            if random >> 28 & 31 == 0 {
                ranks.iter_mut().filter(|rank| **rank != EMPTY).for_each(|rank| *rank += 1);
                tails.change_all();
            }
            if turn == 10_000 {
                ranks = [EMPTY; CLASSES];
                tails.clear();
            }
            let least = |class: u16| {
                let rank = ranks[usize::from(class)];
                (rank != EMPTY).then_some((rank, class))
            };
            let lowest =
                (0..CLASSES).filter(|&class| ranks[class] != EMPTY).min_by_key(|&class| ranks[class]);
            let next = tails.next(least).map(usize::from);
            assert_eq!(next, lowest, "{turn}");
            assert!((0..CLASSES).all(|class| ranks[class] == EMPTY || tails.knows(class as u16)));
            runs += u32::from(next.is_some_and(|next| next == last));
            last = next.unwrap_or(last);
        }
        assert!(runs > 1000, "{runs} victims are of the class of the one before");
    }
}
