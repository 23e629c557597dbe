//! `Tails`: which class has the next victim.
//!
//! Owns: for each class a rank, that of the block that it would give up, and the lowest of each group
//! of 32 classes. As long as nothing but the class of the last victim has changed, its next block is
//! compared with the lowest rank of all others, and with nothing else. As long as nothing has changed
//! but that the one at an end of that class went, and the next there is as old, it goes without a look
//! at any rank.
//!
//! Costs: [`Tails::next`] of the class of the last victim one comparison; else 32 per group with a
//! class that has changed, 64 and one per group in all. 8 bytes per class.

use super::class::CLASSES;

/// Classes of a group.
const GROUP: usize = 32;
const GROUPS: usize = CLASSES.div_ceil(GROUP);
const _: () = assert!(GROUPS <= 32, "a bit for each");

/// Of a class without blocks.
const EMPTY: u64 = u64::MAX;

/// Victims that follow one another without a look at any rank: of a class those at one end that were
/// used last at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) class: u16,
    pub(super) stamp: u32,
    /// Whether they are the oldest of the class, or the newest.
    pub(super) oldest: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Tails {
    ranks: Box<[[u64; GROUP]; GROUPS]>,
    lowest: [u64; GROUPS],
    /// Bit by class: it has a rank.
    ranked: [u32; GROUPS],
    /// Bit by class: its blocks have changed, and its rank may have.
    changed: [u32; GROUPS],
    /// Bit by group: one of its classes has changed.
    groups: u32,
    /// The class of the last victim.
    first: usize,
    /// The lowest rank of all other classes, but for those that have changed.
    second: u64,
    /// What the last victim was one of, if only that it went has changed.
    run: Option<Run>,
}

/// The lowest rank, where it is, and the lowest of the others; of equals the first.
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

    /// The blocks of a class have changed.
    #[inline]
    pub(super) const fn change(&mut self, class: u16) {
        let (group, class) = (class as usize / GROUP, class as usize % GROUP);
        self.changed[group] |= 1 << class;
        self.groups |= 1 << group;
        self.run = None;
    }

    /// The victim, one of those, has gone.
    #[inline]
    pub(super) const fn went(&mut self, run: Run) {
        self.change(run.class);
        self.run = Some(run);
    }

    /// Of whom the next victim is one, if there is another.
    #[inline]
    pub(super) const fn run(&self) -> Option<Run> {
        self.run
    }

    /// Every class that has a rank has to be ranked anew.
    pub(super) fn change_all(&mut self) {
        for group in 0..GROUPS {
            self.changed[group] |= self.ranked[group];
            self.groups |= u32::from(self.changed[group] != 0) << group;
        }
        self.run = None;
    }

    /// The victim of the lowest rank, of equals that of the first class. `least` says of a class what
    /// it would give up, and its rank.
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

    /// Ranks the classes that have changed, and finds the first.
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

    /// Whether a class has a rank, or gets one before the next victim.
    pub(super) fn knows(&self, class: u16) -> bool {
        let (group, class) = (usize::from(class) / GROUP, usize::from(class) % GROUP);
        (self.ranked[group] | self.changed[group]) >> class & 1 == 1
    }

    /// No class has a block.
    pub(super) fn clear(&mut self) {
        *self.ranks = [[EMPTY; GROUP]; GROUPS];
        (self.lowest, self.ranked, self.changed) = ([EMPTY; GROUPS], [0; GROUPS], [0; GROUPS]);
        (self.groups, self.first, self.second, self.run) = (0, 0, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a search of all classes: one changes at a time, that of the victim for the most part, or
    /// all of them.
    #[test]
    fn the_lowest_is_found_in_whatever_group() {
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
