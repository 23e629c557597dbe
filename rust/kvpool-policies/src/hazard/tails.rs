//! `Tails`: which class has the next victim.
//!
//! Owns: for each class a rank, that of its oldest block, and the lowest of each group of 32 classes. A lowest rank is found by
//! looking at the groups, and changed by looking at one group.
//!
//! Costs: [`Tails::set`] 32 comparisons at most, [`Tails::lowest`] 22; 8 bytes per class.

use super::class::CLASSES;

/// Classes of a group.
const GROUP: usize = 32;
const GROUPS: usize = CLASSES.div_ceil(GROUP);

/// Of a class without blocks.
pub(super) const EMPTY: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(super) struct Tails {
    ranks: Box<[[u64; GROUP]; GROUPS]>,
    lowest: [u64; GROUPS],
    /// Bit by class: its oldest block, or whether it has one, has changed.
    changed: [u32; GROUPS],
}

impl Tails {
    pub(super) fn new() -> Self {
        Self { ranks: Box::new([[EMPTY; GROUP]; GROUPS]), lowest: [EMPTY; GROUPS], changed: [0; GROUPS] }
    }

    /// The oldest block of a class is another one.
    #[inline]
    pub(super) const fn change(&mut self, class: u16) {
        self.changed[class as usize / GROUP] |= 1 << (class as usize % GROUP);
    }

    /// Every class that has a rank has to be ranked anew.
    pub(super) fn change_all(&mut self) {
        for (changed, ranks) in self.changed.iter_mut().zip(self.ranks.iter()) {
            for (class, &rank) in ranks.iter().enumerate() {
                *changed |= u32::from(rank != EMPTY) << class;
            }
        }
    }

    /// Ranks the classes that have changed.
    pub(super) fn rank(&mut self, rank_of: impl Fn(u16) -> u64) {
        for group in 0..GROUPS {
            let mut changed = std::mem::take(&mut self.changed[group]);
            if changed == 0 {
                continue;
            }
            while changed != 0 {
                let class = changed.trailing_zeros() as usize;
                changed &= changed - 1;
                self.ranks[group][class] = rank_of((group * GROUP + class) as u16);
            }
            self.lowest[group] = self.ranks[group].iter().copied().fold(EMPTY, u64::min);
        }
    }

    /// The class of the lowest rank; of equals the first.
    pub(super) fn lowest(&self) -> Option<u16> {
        let lowest = self.lowest.iter().copied().fold(EMPTY, u64::min);
        let group = self.lowest.iter().position(|&rank| rank == lowest && rank != EMPTY)?;
        let class = self.ranks[group].iter().position(|&rank| rank == lowest)?;
        Some((group * GROUP + class) as u16)
    }

    /// Whether a class has a rank, or gets one before the next victim.
    pub(super) fn knows(&self, class: u16) -> bool {
        let (group, class) = (usize::from(class) / GROUP, usize::from(class) % GROUP);
        self.ranks[group][class] != EMPTY || self.changed[group] >> class & 1 == 1
    }

    /// No class has a block.
    pub(super) fn clear(&mut self) {
        *self.ranks = [[EMPTY; GROUP]; GROUPS];
        self.lowest = [EMPTY; GROUPS];
        self.changed = [0; GROUPS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_found_in_whatever_group() {
        let mut tails = Tails::new();
        assert_eq!(tails.lowest(), None);
        let mut ranks = [EMPTY; CLASSES];
        let mut random = 1_u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let class = (random >> 33) as usize % CLASSES;
            ranks[class] = if random & 7 == 0 { EMPTY } else { random >> 50 };
            tails.change(class as u16);
            tails.rank(|class| ranks[usize::from(class)]);
            let least =
                ranks.iter().enumerate().filter(|&(_, &rank)| rank != EMPTY).min_by_key(|&(_, &rank)| rank);
            assert_eq!(tails.lowest().map(usize::from), least.map(|(class, _)| class));
        }
        ranks.iter_mut().filter(|rank| **rank != EMPTY).for_each(|rank| *rank += 1);
        tails.change_all();
        tails.rank(|class| ranks[usize::from(class)]);
        let least = ranks.iter().min();
        assert_eq!(tails.lowest().map(|class| ranks[usize::from(class)]).as_ref(), least);
        tails.clear();
        assert_eq!(tails.lowest(), None);
    }
}
