//! A second implementation of `hazard`, written from its documentation and as simply as possible. For
//! every victim, it searches all blocks, and it counts ghosts and waiting blocks one by one. It
//! computes the worths of a class only when it needs them, from the counts of all classes at the last
//! learning.

use std::collections::{BTreeSet, HashMap};

use kvpool::evictor::{Candidate, Content};
use kvpool::{BlockId, Finish, Signal};

const STARTS: [u32; 28] = [
    0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 16_384, 32_768, 65_536,
];
const TICKS: u32 = 16;
/// One of four consecutive victims of a chain gets a ghost (a record of its eviction).
const EVERY: u32 = 4;

type Counts = HashMap<(u16, usize), u64>;

fn bin(age: u32) -> usize {
    STARTS.iter().rposition(|&start| age >= start * TICKS).unwrap()
}

fn width(bin: usize) -> u64 {
    let end = STARTS.get(bin + 1).copied().unwrap_or(2 * STARTS[bin]);
    u64::from((end - STARTS[bin]) * TICKS)
}

/// Returns the binary logarithm of an age, times 8. It is linear between two powers of 2.
fn log(age: u32) -> u32 {
    let (age, octave) = (u64::from(age.max(1)), age.max(1).ilog2());
    octave * 8 + (((age << 3) >> octave) & 7) as u32
}

#[derive(Clone, Copy, Debug)]
struct Known {
    stamp: u32,
    /// The class of the block at its last release.
    class: u16,
    /// The part of a class that comes from the signal (output and finish) since the last use of the
    /// block.
    said: u16,
    uses: u32,
    gap: Option<u32>,
    /// Whether the block is idle: released, and neither used nor evicted since then.
    waits: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ghost {
    bucket: usize,
    mark: u16,
    class: u16,
    stamp: u32,
    /// The keys, modulo 3, of the blocks that are one, two and three positions deeper in the chain.
    /// `None` for a block that was not evicted directly before.
    behind: [Option<u64>; 3],
}

#[derive(Clone, Debug, Default)]
struct Seen {
    events: Counts,
    lost: Counts,
    waiting: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    known: Vec<Known>,
    /// The idle blocks with their classes, oldest first.
    waiting: Vec<(u16, BlockId)>,
    /// The ghosts (records of evicted blocks), by bucket and slot.
    ghosts: Vec<Option<Ghost>>,
    seen: Seen,
    /// The number of times that the idle blocks were counted.
    samples: usize,
    /// The counts as they were when worths were last learned.
    learned: Seen,
    /// The hazards (rates of reuse) of all classes together, as they were last computed.
    all: Option<[u64; 28]>,
    worths: HashMap<u16, [u64; 28]>,
    now: u32,
    told: Option<u64>,
    distrusted: bool,
    parts: u64,
    found: Option<(u32, Ghost)>,
    /// The victims since the last one that got a ghost, in the order of their eviction.
    passed: Vec<Content>,
    share: u16,
    releases: u64,
    learned_at: u64,
    decayed_at: u64,
    gone: Option<(BlockId, u16, u32)>,
}

fn mixed(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// Returns the part of a class that depends on the block's number of uses and the time between them
/// (gap).
fn history(uses: u32, gap: Option<u32>) -> u16 {
    let group = match uses {
        0 | 1 => return 0,
        2 => 0,
        3..=7 => 1,
        _ => 2,
    };
    gap.map_or(0, |gap| 1 + group * 6 + (gap.saturating_sub(36) / 16).min(5) as u16)
}

/// Returns the hazard (rate of reuse) in each bin of ages, from the counts of several classes. `more`
/// additional blocks have the hazards `prior`.
fn hazards(seen: &Seen, classes: &[u16], more: u64, prior: &[u64; 28]) -> [u64; 28] {
    let sums = |counts: &Counts| -> [u64; 28] {
        let sum = |bin| classes.iter().filter_map(|&class| counts.get(&(class, bin))).sum();
        std::array::from_fn(sum)
    };
    let (events, lost, waiting) = (sums(&seen.events), sums(&seen.lost), sums(&seen.waiting));
    std::array::from_fn(|bin| {
        let behind: u64 = (bin + 1..28).map(|later| events[later] + lost[later] + waiting[later]).sum();
        let lived = behind + events[bin] + (lost[bin] + waiting[bin]) / 2;
        ratio((events[bin] << 24) + more * prior[bin], lived + more)
    })
}

/// Returns all classes with at least one count.
fn classes(seen: &Seen) -> BTreeSet<u16> {
    let counts = [&seen.events, &seen.lost, &seen.waiting].into_iter().flatten();
    counts.filter(|&(_, &count)| count > 0).map(|(&(class, _), _)| class).collect()
}

/// Returns whether two classes differ only in their output and finish features. There are 684 classes:
/// 3 shares of a prompt, times 12 combinations of output and finish, times 19 histories.
fn are_related(one: u16, other: u16) -> bool {
    (one / 228, one % 19) == (other / 228, other % 19)
}

fn ratio(events: u64, lived: u64) -> u64 {
    (events / lived.max(1)).min(1 << 24)
}

impl Model {
    pub(crate) fn new(num_blocks: usize) -> Self {
        let mut model = Self::default();
        model.grow(num_blocks);
        model
    }

    fn age(&self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp)
    }

    fn capacity(&self) -> usize {
        self.known.len() - 1
    }

    fn of(&mut self, block: BlockId) -> &mut Known {
        &mut self.known[block.index()]
    }

    fn unlist(&mut self, block: BlockId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|&(_, waits)| waits != block);
        self.waiting.len() < before
    }

    fn unknown(&self) -> Known {
        Known { stamp: self.now, class: 0, said: 0, uses: 1, gap: None, waits: false }
    }

    fn restart(&mut self) {
        self.ghosts.fill(None);
        self.passed.clear();
        (self.seen, self.learned, self.found) = (Seen::default(), Seen::default(), None);
        (self.all, self.worths, self.samples) = (None, HashMap::new(), 0);
        let now = self.now;
        self.known.iter_mut().for_each(|known| known.stamp = now);
    }

    /// Returns the worth of a block of a class in each bin, in hits per 2^32 ticks. It is the maximum
    /// over all durations for which the block could be kept.
    fn worths(&mut self, class: u16) -> [u64; 28] {
        let learned = classes(&self.learned);
        let all = *self.all.get_or_insert_with(|| {
            let classes: Vec<_> = learned.iter().copied().collect();
            hazards(&self.learned, &classes, 200, &[(1 << 24) / 100; 28])
        });
        let family: Vec<_> = learned.into_iter().filter(|&other| are_related(class, other)).collect();
        let mut of_class = hazards(&self.learned, &family, 1600, &all);
        if family.len() > 1 {
            of_class = hazards(&self.seen, &[class], 1600, &of_class);
        }
        let (mut comes, mut held, mut lives) = ([0; 28], [0; 28], 1_u64 << 30);
        for bin in 0..28 {
            comes[bin] = (lives * of_class[bin]) >> 24;
            held[bin] = (((lives - comes[bin] / 2) * width(bin)) >> 18).max(1);
            lives -= comes[bin];
        }
        std::array::from_fn(|from| {
            let horizons = (from..28)
                .map(|to| (comes[from..=to].iter().sum::<u64>(), held[from..=to].iter().sum::<u64>()));
            // If two durations are equally good, the first one counts.
            let better = |best: (u64, u64), one: (u64, u64)| {
                if u128::from(one.0) * u128::from(best.1) > u128::from(best.0) * u128::from(one.1) {
                    one
                } else {
                    best
                }
            };
            let (hits, time) = horizons.fold((0, 1), better);
            ((hits << 14) / time).min(u64::from(u32::MAX))
        })
    }

    /// Returns the worth (expected hits per tick) at an age between the starts of two bins, from the
    /// worths at these starts. The second worth counts as at least half of the first.
    fn worth_at(worths: &[u64; 28], age: u32) -> u64 {
        let bin = bin(age);
        let (from, to) = (worths[bin], worths[(bin + 1).min(27)]);
        let to = to.max(from / 2);
        let past = u64::from(age - STARTS[bin] * TICKS).min(width(bin));
        (from * (width(bin) - past) + to * past) / width(bin)
    }

    fn count(counts: &mut Counts, class: u16, bin: usize, blocks: u32) {
        *counts.entry((class, bin)).or_default() += u64::from(16 * blocks);
    }

    pub(crate) fn grow(&mut self, num_blocks: usize) {
        let unknown = self.unknown();
        self.known.resize(num_blocks.max(self.known.len()), unknown);
        let ghosts = self.capacity() / 8 * 7;
        let mean = (ghosts as f64 * 57_344.0).sqrt() as usize;
        let ghosts = if ghosts < 57_344 { (4 * ghosts).min(mean) } else { ghosts };
        let buckets = ghosts.div_ceil(8).max(1);
        if 8 * buckets > self.ghosts.len() {
            self.ghosts = vec![None; 8 * buckets];
            self.passed.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.known.len());
    }

    pub(crate) fn set_time(&mut self, seconds: f64) {
        let ticks = (seconds * 16.0) as u64;
        if self.distrusted || self.told.is_some_and(|told| ticks <= told) {
            return;
        }
        match self.told.replace(ticks) {
            Some(before) => self.now = self.now.wrapping_add((ticks - before) as u32),
            None => self.restart(),
        }
        self.parts = 0;
    }

    pub(crate) fn admit(&mut self, block: BlockId, content: Content) {
        self.gone = None;
        self.unlist(block);
        let capacity = self.capacity() as u64;
        if self.told.is_some() {
            self.parts += 1;
            if self.parts > 8 * capacity {
                (self.told, self.distrusted, self.parts) = (None, true, 0);
                self.restart();
            }
        } else {
            self.parts += 256;
            self.now = self.now.wrapping_add((self.parts / capacity) as u32);
            self.parts %= capacity;
        }
        let ghost = if content.depth.is_multiple_of(EVERY) {
            let place = self.place(content.key);
            let at =
                self.ghosts.iter().position(|ghost| ghost.is_some_and(|one| (one.bucket, one.mark) == place));
            let ghost = at.and_then(|at| self.ghosts[at].take());
            if let Some(ghost) = ghost {
                let bin = bin(self.age(ghost.stamp));
                Self::count(&mut self.seen.events, ghost.class, bin, EVERY);
            }
            self.found = ghost.map(|ghost| (content.depth, ghost));
            ghost
        } else {
            let holds = |&(depth, ghost): &(u32, Ghost)| match content.depth.checked_sub(depth) {
                None => depth - content.depth < EVERY,
                Some(behind) => behind < EVERY && ghost.behind[behind as usize - 1] == Some(content.key % 3),
            };
            self.found.filter(holds).map(|(_, ghost)| ghost)
        };
        let mut known = self.unknown();
        if let Some(ghost) = ghost {
            // A ghost contains only a class, and a class only ranges of uses and gaps. The model
            // assumes the smallest number of uses and the middle of the range of gaps.
            if let Some(number) = (ghost.class % 19).checked_sub(1) {
                known.uses = [2, 3, 8][usize::from(number / 6)];
                known.gap = Some(36 + 16 * u32::from(number % 6) + 8);
            }
            Self::again(&mut known, self.age(ghost.stamp));
        }
        *self.of(block) = known;
    }

    fn again(known: &mut Known, age: u32) {
        let last = log(age).min(254);
        known.gap = Some(known.gap.map_or(last, |gap| (gap * 11 + last * 5) / 16));
        known.uses = (known.uses + 1).min(255);
    }

    pub(crate) fn hit(&mut self, block: BlockId) {
        self.unlist(block);
        self.found = None;
        if self.of(block).waits {
            let known = *self.of(block);
            let age = self.age(known.stamp);
            Self::count(&mut self.seen.events, known.class, bin(age), 1);
            let now = self.now;
            let known = self.of(block);
            Self::again(known, age);
            (known.stamp, known.said, known.class, known.waits) = (now, 0, 0, false);
        }
    }

    pub(crate) fn signal(&mut self, block: BlockId, signal: Signal) {
        if self.waiting.iter().any(|&(_, waits)| waits == block) {
            return;
        }
        let tokens = signal.output_tokens.unwrap_or(0);
        let output = [32, 200, 600].into_iter().filter(|&least| tokens >= least).count() as u16;
        let finish = match signal.finish {
            Finish::Stop => 1,
            Finish::ToolCalls => 2,
            _ => 0,
        };
        self.of(block).said = output * 3 + finish;
    }

    pub(crate) fn begin_release(&mut self, blocks: &[Candidate], length: u32, known: u32) {
        let used = blocks.iter().filter(|one| self.known[one.block.index()].uses > 1).count() as u32;
        let (length, known) = if blocks.is_empty() { (length, known) } else { (blocks.len() as u32, used) };
        self.share = match known {
            0 | 1 => 0,
            _ if f64::from(known) / f64::from(length) < 0.9 => 1,
            _ => 2,
        };
    }

    pub(crate) fn release(&mut self, block: BlockId) {
        self.unlist(block);
        let (now, share) = (self.now, self.share);
        let known = self.of(block);
        known.stamp = now;
        known.class = (share * 12 + known.said) * 19 + history(known.uses, known.gap);
        (known.said, known.waits) = (0, true);
        let class = known.class;
        self.waiting.push((class, block));
        self.releases += 1;
        let capacity = self.capacity() as u64;
        if self.releases - self.learned_at >= (capacity / 8).max(4096) {
            self.learned_at = self.releases;
            if self.releases - self.decayed_at >= (64 * capacity).clamp(1 << 17, 1 << 26) {
                self.decayed_at = self.releases;
                let counts = self.seen.events.values_mut().chain(self.seen.lost.values_mut());
                counts.for_each(|count| *count /= 2);
            }
            self.learn();
        }
    }

    fn learn(&mut self) {
        let waits = self.known.iter().filter(|known| known.waits);
        let blocks = waits.map(|known| (known.class, known.stamp, 1));
        let ghosts = self.ghosts.iter().flatten().map(|ghost| (ghost.class, ghost.stamp, EVERY));
        // The count is a mean over samples: over two at first, then four, and then eight.
        let of = [1, 2, 4, 4, 8][self.samples];
        let mut waiting = std::mem::take(&mut self.seen.waiting);
        waiting.values_mut().for_each(|count| *count = *count * (of - 1) / of);
        for (class, stamp, blocks) in blocks.chain(ghosts) {
            *waiting.entry((class, bin(self.age(stamp)))).or_default() += u64::from(blocks) * 16 / of;
        }
        self.samples = (self.samples + 1).min(4);
        self.seen.waiting = waiting;
        self.learned = self.seen.clone();
        (self.all, self.worths) = (None, HashMap::new());
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        let mut ends: Vec<(u16, u8, BlockId)> = Vec::new();
        for &(class, block) in &self.waiting {
            if ends.iter().all(|&(known, ..)| known != class) {
                ends.push((class, 0, block));
            }
        }
        let newest: HashMap<u16, BlockId> = self.waiting.iter().copied().collect();
        ends.extend(newest.into_iter().map(|(class, block)| (class, 1, block)));
        for &(class, ..) in &ends {
            if !self.worths.contains_key(&class) {
                let worths = self.worths(class);
                self.worths.insert(class, worths);
            }
        }
        let ranked = ends.into_iter().map(|(class, end, block)| {
            let age = self.age(self.known[block.index()].stamp);
            let worth = Self::worth_at(&self.worths[&class], age);
            // The newest block of a class is evicted only if its worth (expected hits per tick) is
            // lower by a quarter than that of the oldest.
            let worth = if end == 1 { (worth + worth / 4).min(u64::from(u32::MAX)) } else { worth };
            ((worth, u32::MAX - age, class, end), block)
        });
        let (_, victim) = ranked.min()?;
        self.unlist(victim);
        Some(victim)
    }

    pub(crate) fn take(&mut self, block: BlockId) {
        self.unlist(block);
        let known = self.of(block);
        if known.waits {
            (known.waits, known.said, known.class) = (false, 0, 0);
        }
    }

    pub(crate) fn unpop(&mut self, block: BlockId) {
        if self.waiting.iter().all(|&(_, waits)| waits != block) {
            let class = self.of(block).class;
            self.waiting.insert(0, (class, block));
        }
    }

    fn place(&self, key: u64) -> (usize, u16) {
        let (mixed, buckets) = (mixed(key), self.ghosts.len() as u64 / 8);
        ((((mixed >> 32) * buckets) >> 32) as usize, mixed as u16)
    }

    pub(crate) fn evicted(&mut self, block: BlockId, content: Content) {
        let Known { class, stamp, .. } = *self.of(block);
        if self.passed.last().is_some_and(|last| last.depth != content.depth + 1) {
            self.passed.clear();
        }
        if content.depth.is_multiple_of(EVERY) {
            let (bucket, mark) = self.place(content.key);
            let mut behind = [None; 3];
            let keys = self.passed.drain(..).rev().map(|one| Some(one.key % 3));
            behind.iter_mut().zip(keys).for_each(|(behind, key)| *behind = key);
            let now = self.now;
            let places = &mut self.ghosts[8 * bucket..8 * bucket + 8];
            let same = places.iter().position(|ghost| ghost.is_some_and(|ghost| ghost.mark == mark));
            let free = places.iter().position(Option::is_none);
            let oldest = places.iter().flatten().map(|ghost| now.wrapping_sub(ghost.stamp)).max();
            let oldest =
                places.iter().position(|ghost| ghost.map(|ghost| now.wrapping_sub(ghost.stamp)) == oldest);
            let at = same.or(free).or(oldest).unwrap();
            let lost = places[at].replace(Ghost { bucket, mark, class, stamp, behind });
            if let Some(lost) = lost.filter(|_| same.is_none()) {
                let bin = bin(self.age(lost.stamp));
                Self::count(&mut self.seen.lost, lost.class, bin, EVERY);
            }
        }
        if !content.depth.is_multiple_of(EVERY) {
            self.passed.push(content);
        }
        let gone = (block, class, self.age(stamp));
        self.forget(block);
        self.gone = Some(gone);
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        self.unlist(block);
        *self.of(block) = self.unknown();
    }

    /// Returns the class of the latest victim, and the time after which one hit of it was expected.
    pub(crate) fn outlook(&mut self, block: BlockId) -> Option<(u16, Option<f32>)> {
        let (_, class, age) = self.gone.filter(|&(gone, ..)| gone == block)?;
        let worths = self.worths.get(&class).copied().unwrap_or_else(|| self.worths(class));
        let (worth, ticks) = (Self::worth_at(&worths, age), if self.told.is_some() { 16.0 } else { 256.0 });
        let kept = (worth > 0).then(|| (4_294_967_296.0 / worth as f64 / ticks) as f32);
        Some((if self.told.is_some() { class } else { class + 0x8000 }, kept))
    }
}
