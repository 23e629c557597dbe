//! `hazard`: evicts the blocks that are least likely to be used again soon, as learned from earlier
//! blocks.
//!
//! An idle block belongs to a *class* (`class`). The class depends on the number of uses of the block
//! and the time between them. It also depends on the block's request: which part of the prompt was
//! cached before, and, if the caller passes signals, how long the answer was and how the request
//! finished.
//!
//! For every class, the policy counts at which ages blocks were used again, and how many blocks passed
//! these ages without a use (`age`, `table`). Evicted blocks are remembered for a while, with their
//! class, so that a reuse after an early eviction is counted too (`memory`). From these counts, the
//! policy computes the *worth* of a block of the class at any age: expected hits per second from now
//! on.
//!
//! The candidates for eviction are the oldest or the newest block of each class. The victim is the
//! candidate with the lowest worth (`ends`, `tails`). If the content of a class is used again after a
//! long time, its worth rises as that time approaches. In a loop that is larger than the cache, the
//! newest block is evicted.
//!
//! *Chains.* Each use of a block is a use of the blocks before it. So evicting a parent first would
//! make its descendants useless, and the newest block of a class is the head of a chain. This policy
//! therefore needs a wrapper that evicts descendants first: [`crate::Closed`] in a pool,
//! [`crate::Chained`] in stream form.
//!
//! *Time* is the caller's clock if there is one, otherwise a count of admitted blocks (`clock`).
//! Signals at a release, the finish reason and the length of the answer, refine the classes. If signals
//! are wrong or random, the classes learn that they have no influence.
//!
//! Sources:
//! - LHD ranks by hit density, with classes of age and use (Beckmann, Chen, Cidon: "LHD: Improving
//!   Cache Hit Rate by Maximizing Hit Density", NSDI 2018).
//! - The choice of the horizon is that of Gittins, "Bandit Processes and Dynamic Allocation Indices",
//!   1979.
//! - Tool calls and ends of turns indicate when a session returns: Continuum, arXiv 2511.02230.
//! - The distribution of reuse depends on the category of the request: "`KVCache` Cache in the Wild",
//!   ATC 2025.
//!
//! There are no parameters. All arithmetic is in integers. So the order depends only on the calls, not
//! on the host. For the choice of the constants, figures and limits see
//! `benches/results/2026-11-28-eviction-study.md`.
//!
//! Cost: O(1) per block. It is amortized where the newest block is evicted, because the head of a chain
//! is set aside until its descendants are evicted. The first eviction at a new time takes O(classes).
//! Worths are learned again every 4,096 releases, or every eighth of a capacity if that is more, in
//! O(classes seen). Memory: 23 bytes per block (LRU takes 9), and 0.35 MB for any size. Small pools
//! take up to 0.11 MB more, because they remember evictions for longer.
//!
//! Do not use it where evictions must be as cheap as in LRU. It has no advantage if the cache holds a
//! large part of the working set, because then LRU has the same hits.

mod age;
mod class;
mod clock;
mod ends;
mod memory;
mod states;
mod table;
mod tails;

use crate::block_lists::BlockLists;
use class::{CLASSES, History};
use clock::Clock;
use ends::Ends;
use kvpool::parts::{Link, ensure};
use kvpool::{
    BlockId, Candidate, Content, InvariantViolation, NULL_BLOCK, Outlook, Policy, PoolError, Release, Signal,
};
use memory::{EVERY, Ghost, Memory};
use states::{Entry, State, States, UNKNOWN};
use table::Table;
use tails::{Run, Tails};

/// Worths are computed again from new counts after `LEARN` releases, or after the pool's number of
/// blocks divided by `LEARN_PER_CAPACITY` if that is more.
const LEARN: u64 = 4096;
const LEARN_PER_CAPACITY: u64 = 8;
/// About this number of idle blocks, and of ghosts (records of evicted blocks), are sampled each time
/// that worths are computed again.
const SAMPLE: usize = 1024;
/// The counts are halved after a number of releases: this number times the pool's number of blocks, but
/// within `HALF_LIFE_LIMITS`.
const HALF_LIFE: u64 = 64;
const HALF_LIFE_LIMITS: (u64, u64) = (1 << 17, 1 << 26);

/// Returns the step between sampled positions, if there are `len` positions. The step is odd, because
/// ghosts fill their buckets from the front, requests have typical lengths, and these lengths are often
/// powers of two. If the step had a factor in common with them, the sample would always see the same
/// positions, and so count some classes many times and others never.
const fn sample_step(len: usize) -> usize {
    (len / SAMPLE) | 1
}

const NO_VICTIM: (BlockId, u16, u32) = (NULL_BLOCK, 0, 0);

/// The states of a block before and after a hit or a release. Most blocks of a request have the same
/// state, so the result for one block is reused for the next.
#[derive(Clone, Copy, Debug)]
struct CachedStep {
    before: State,
    after: State,
    /// For a hit: the range of ages (bin) that contains the age of the block.
    bin: usize,
}

/// A pair of states that belongs to no block, so the first comparison fails.
const NO_CACHED_STEP: CachedStep =
    CachedStep { before: State { class: class::NO_CLASS, ..UNKNOWN }, after: UNKNOWN, bin: 0 };

/// The `hazard` policy: evicts the block that is least likely to be used again soon, according to
/// earlier reuse in its class.
///
/// ```
/// use kvpool::Policy;
/// use kvpool_policies::{Chained, Hazard};
/// let order = Chained::new(Hazard::new(8)?, 8)?;
/// assert!(order.keeps_time() && order.wants_signals());
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hazard {
    /// The state of each block. For each class, its idle blocks are on one list, oldest first.
    lists: BlockLists<States>,
    clock: Clock,
    table: Table,
    tails: Tails,
    memory: Memory,
    /// The time for which the field `tails` has computed the ranks of the classes (the worths of the
    /// blocks that each class would evict).
    ranked: u32,
    /// The share feature of the request whose blocks are now released: the range of the part of its
    /// prompt that was cached before.
    share: u16,
    /// The latest victim, its class and its age, until the next admission. Explanations show them.
    gone: (BlockId, u16, u32),
    /// The depth and the ghost (record of its eviction) of the last content for which a ghost was
    /// looked up. `None` if it had none.
    found: Option<(u32, Ghost)>,
    /// The states before and after the hit of the block that was hit last.
    hit: CachedStep,
    returned: CachedStep,
    released: u64,
    learned: u64,
    /// The number of releases after which worths are next computed again.
    learns: u64,
    decayed: u64,
}

impl Hazard {
    /// Makes an empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut policy = Self {
            lists: BlockLists::new(CLASSES, 0)?,
            clock: Clock::default(),
            table: Table::new()?,
            tails: Tails::new(),
            memory: Memory::default(),
            ranked: 0,
            share: 0,
            gone: NO_VICTIM,
            found: None,
            hit: NO_CACHED_STEP,
            returned: NO_CACHED_STEP,
            released: 0,
            learned: 0,
            learns: 0,
            decayed: 0,
        };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    fn capacity(&self) -> usize {
        self.lists.members.len().saturating_sub(1)
    }

    #[inline]
    fn state(&self, block: BlockId) -> Option<State> {
        self.lists.members.get(block).copied()
    }

    #[inline]
    fn set(&mut self, block: BlockId, state: State) {
        if let Some(before) = self.lists.members.get_mut(block) {
            *before = state;
        }
    }

    /// Restarts the learning, because the meaning of a tick has changed: removes all counts and all
    /// records of evicted blocks.
    fn restart(&mut self) {
        self.table.clear();
        self.memory.clear();
        self.found = None;
        let now = self.clock.now();
        self.lists.members.iter_mut().for_each(|state| state.stamp = now);
        self.tails.change_all();
    }

    /// Removes `block` from the list of its class. A quick check comes first, because most blocks are
    /// on no list. Returns whether it was on one.
    #[inline]
    fn unlist(&mut self, block: BlockId) -> bool {
        self.lists.list_of(block).is_some() && self.take_off(block)
    }

    /// Removes `block` from the list of its class. The class may need a new rank, because the block may
    /// have been its oldest or newest one.
    fn take_off(&mut self, block: BlockId) -> bool {
        let list = self.lists.remove(block);
        list.inspect(|&list| self.tails.change(list as u16)).is_some()
    }

    /// Makes `block` the newest block of the class in `state`.
    fn put_last(&mut self, block: BlockId, state: State) {
        self.unlist(block);
        self.set(block, state);
        self.tails.change(state.class);
        self.lists.push_back(state.class.into(), block);
    }

    fn settle(&mut self) {
        let Self { memory, table, clock, .. } = self;
        memory.settle(clock.now(), |lost| {
            table.lose(lost.class(), age::bin(clock.age(lost.stamp)), EVERY);
        });
    }

    /// Returns the ghost of a content (the record of its eviction), or the ghost that represents it
    /// because it is a neighbour in the chain. A reuse is counted for the ghost of the content itself.
    fn remembered(&mut self, content: Content) -> Option<Ghost> {
        if !content.depth.is_multiple_of(EVERY) {
            let holds = |&(depth, ghost): &(u32, Ghost)| ghost.represents(depth, content);
            return self.found.filter(holds).map(|(_, ghost)| ghost);
        }
        let ghost = self.memory.take(content.key);
        self.found = ghost.map(|ghost| (content.depth, ghost));
        if let Some(ghost) = ghost {
            self.table.event(ghost.class(), age::bin(self.clock.age(ghost.stamp)), EVERY);
        }
        ghost
    }

    /// Counts the idle blocks and the ghosts in a sample, and computes new worths (expected hits per
    /// tick) from all counts.
    fn learn(&mut self) {
        self.table.begin_sample();
        let turn = (self.released / LEARN) as usize;
        let states = &self.lists.members;
        let step = sample_step(states.len());
        let blocks = (turn % step..states.len()).step_by(step).map(|block| BlockId::new(block as u32));
        // The sample includes blocks that were set aside because they have children.
        for state in blocks.filter_map(|block| states.get(block)).filter(|state| class::is_class(state.class))
        {
            self.table.wait(state.class, age::bin(self.clock.age(state.stamp)), step as u32);
        }
        let step = sample_step(self.memory.len());
        for ghost in self.memory.sample(turn, step) {
            self.table.wait(ghost.class(), age::bin(self.clock.age(ghost.stamp)), step as u32 * EVERY);
        }
        self.table.learn();
        self.tails.change_all();
    }

    /// Removes and returns the next block of the class of the latest victim, at the same end of the list,
    /// if both were last released at the same time. If nothing else has changed, this block has the
    /// lowest rank.
    #[inline]
    fn pop_same_run(&mut self) -> Option<BlockId> {
        let Run { class, stamp, oldest } = self.tails.run()?;
        let has_state =
            |states: &States, block: BlockId| states.get(block).is_some_and(|state| state.stamp == stamp);
        self.lists.pop_if(class.into(), oldest, has_state)
    }

    /// Returns which end of a class (oldest or newest block) has the lower rank.
    fn least(&mut self, class: u16) -> Option<Run> {
        let mut ends = Ends { lists: &self.lists, clock: self.clock, table: &mut self.table };
        ends.least(class).map(|(_, run)| run)
    }

    #[inline(never)]
    fn pop_least(&mut self) -> Option<BlockId> {
        if self.ranked != self.clock.now() {
            self.ranked = self.clock.now();
            self.tails.change_all();
        }
        let mut ends = Ends { lists: &self.lists, clock: self.clock, table: &mut self.table };
        let run = self.tails.next(|class| ends.least(class))?;
        let victim = self.lists.pop(run.class.into(), run.oldest)?;
        self.tails.record_eviction(run);
        Some(victim)
    }

    /// Returns the state of an idle block after a hit, and stores the bin (range of ages) of its age in
    /// `self.hit`.
    #[inline]
    fn hit_of(&mut self, before: State) -> State {
        let stamp = self.clock.now();
        if self.hit.before != before || self.hit.after.stamp != stamp {
            let age = self.clock.age(before.stamp);
            let after = State { stamp, class: class::NO_SIGNAL, history: before.history.again(age) };
            self.hit = CachedStep { before, after, bin: age::bin(age) };
        }
        self.hit.after
    }

    /// Returns the state of a block after its release.
    #[inline]
    fn released_as(&mut self, before: State) -> State {
        let stamp = self.clock.now();
        if self.returned.before != before || self.returned.after.stamp != stamp {
            let class = class::of(self.share, class::signal_part(before.class), before.history);
            self.returned = CachedStep { before, after: State { stamp, class, ..before }, bin: 0 };
        }
        self.returned.after
    }

    /// Counts released blocks. If enough blocks were released since the last time, computes new worths
    /// (expected hits per tick) for all classes.
    #[inline]
    fn count_released(&mut self, blocks: u64) {
        self.released += blocks;
        if self.released >= self.learns {
            self.tick();
        }
    }

    /// Sets the number of releases after which worths are next computed again.
    fn set_learns(&mut self) {
        self.learns = self.learned + (self.capacity() as u64 / LEARN_PER_CAPACITY).max(LEARN);
    }

    /// Computes new worths (expected hits per tick) for all classes. If a half-life has passed, halves
    /// the counts first.
    #[cold]
    fn tick(&mut self) {
        self.settle();
        self.learned = self.released;
        self.set_learns();
        let (least, most) = HALF_LIFE_LIMITS;
        let half_life = (self.capacity() as u64).saturating_mul(HALF_LIFE).clamp(least, most);
        if self.released - self.decayed >= half_life {
            self.decayed = self.released;
            self.table.decay();
        }
        self.learn();
    }
}

impl Policy for Hazard {
    fn name(&self) -> &'static str {
        "hazard"
    }

    fn wants_signals(&self) -> bool {
        true
    }

    fn signal(&mut self, block: BlockId, signal: Signal) {
        // A signal does not change an idle block, which keeps its class.
        if self.lists.list_of(block).is_none()
            && let Some(state) = self.lists.members.get_mut(block)
        {
            state.class = class::encode_signal(signal);
        }
    }

    fn keeps_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now: f64) {
        self.settle(); // with the time of their eviction
        if self.clock.set_callers_time(now) {
            self.restart();
        }
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.admit_all(&[(block, content)]);
    }

    fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        if run.is_empty() {
            return;
        }
        self.gone = NO_VICTIM;
        self.settle();
        self.memory.prefetch(run.iter().map(|&(_, content)| content));
        let capacity = self.capacity();
        for &(block, content) in run {
            self.unlist(block);
            if self.clock.admit(capacity) {
                self.restart();
            }
            let history = self.remembered(content).map_or(History::NEW, |ghost| {
                History::of_class(ghost.class()).again(self.clock.age(ghost.stamp))
            });
            self.set(block, State { stamp: self.clock.now(), class: class::NO_SIGNAL, history });
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.unlist(block);
        // A hit begins another prompt. A ghost that was found for an earlier prompt does not represent
        // its blocks.
        self.found = None;
        // A block without a class is in use: several requests use it at the same time. That is not a
        // reuse.
        if let Some(before) = self.state(block).filter(|state| class::is_class(state.class)) {
            let after = self.hit_of(before);
            self.set(block, after);
            self.table.event(before.class, self.hit.bin, 1);
        }
    }

    fn hit_all(&mut self, blocks: &[BlockId]) {
        if !blocks.is_empty() {
            self.found = None;
        }
        let mut rest = blocks;
        while let [first, ..] = rest {
            let Some(before) = self.state(*first).filter(|state| class::is_class(state.class)) else {
                rest = &rest[1..];
                continue;
            };
            let after = self.hit_of(before);
            let taken = self.lists.remove_run(before.class.into(), rest, |states, block| {
                let has_state = |entry: &&mut Entry| entry.state == before && entry.link.is_linked();
                let entry = states.entry_mut(block).filter(has_state)?;
                Some(std::mem::replace(entry, Entry { link: Link::LOOSE, state: after }).link)
            });
            if taken > 0 {
                self.tails.change(before.class);
            } else {
                self.set(*first, after); // the block was set aside
            }
            self.table.event(before.class, self.hit.bin, taken.max(1) as u32);
            rest = &rest[taken.max(1)..];
        }
    }

    fn begin_release(&mut self, release: &Release<'_>) {
        let (mut length, mut known) = (release.length, release.known);
        if !release.blocks.is_empty() {
            let states = &self.lists.members;
            let used = |block: BlockId| states.get(block).is_some_and(|state| state.history.uses > 1);
            length = release.blocks.len() as u32;
            known = release.blocks.iter().filter(|candidate| used(candidate.block)).count() as u32;
        }
        self.share = class::share(length, known);
        self.returned = NO_CACHED_STEP;
    }

    fn release_all(&mut self, blocks: &[Candidate]) {
        let mut rest = blocks;
        while let [first, ..] = rest {
            let Some(before) = self.state(first.block) else {
                rest = &rest[1..];
                continue;
            };
            let after = self.released_as(before);
            let until_learned = self.learns.saturating_sub(self.released).max(1);
            let run = &rest[..rest.len().min(until_learned.try_into().unwrap_or(usize::MAX))];
            let put = |states: &mut States, id: u32, link: Link| {
                let has_state = |entry: &&mut Entry| entry.state == before && !entry.link.is_linked();
                let entry = states.entry_mut(BlockId::new(id)).filter(has_state);
                entry.map(|entry| *entry = Entry { link, state: after }).is_some()
            };
            let put = self.lists.push_back_run(after.class.into(), run.len(), |at| run[at].block, put);
            if put > 0 {
                self.tails.change(after.class);
            } else {
                self.put_last(first.block, after); // the block is idle already
            }
            self.count_released(put.max(1) as u64);
            rest = &rest[put.max(1)..];
        }
    }

    fn release(&mut self, block: BlockId) {
        let Some(before) = self.state(block) else { return };
        let after = self.released_as(before);
        self.put_last(block, after);
        self.count_released(1);
    }

    #[inline]
    fn pop(&mut self) -> Option<BlockId> {
        let is_ranked = self.ranked == self.clock.now();
        let alike = if is_ranked { self.pop_same_run() } else { None };
        alike.or_else(|| self.pop_least())
    }

    fn take(&mut self, block: BlockId) {
        self.unlist(block);
        // A tenant's limit or a wrapper removes the block, not this policy. So the time for which the
        // block was idle is not counted.
        if let Some(state) = self.state(block).filter(|state| class::is_class(state.class)) {
            self.set(block, State { class: class::NO_SIGNAL, ..state });
        }
    }

    fn unpop(&mut self, block: BlockId) {
        if self.lists.list_of(block).is_none()
            && let Some(state) = self.state(block)
        {
            let class = class::learned(state.class);
            self.lists.push_front(class.into(), block);
            // The latest victim was a child of this block, with the same class and the same time of last
            // release. So the block that is put back now has no higher rank, and the class still has
            // the lowest rank.
            let alike = self.tails.run().filter(|run| (run.class, run.stamp) == (class, state.stamp));
            let next = if alike.is_some_and(|run| !run.oldest) { self.least(class) } else { alike };
            match next {
                Some(run) => self.tails.record_eviction(run),
                None => self.tails.change(class),
            }
        }
    }

    #[inline]
    fn evicted(&mut self, block: BlockId, content: Content) {
        self.unlist(block);
        let now = self.clock.now();
        let Some(state) = self.lists.members.get_mut(block) else { return };
        let State { class, stamp, .. } = std::mem::replace(state, State { stamp: now, ..UNKNOWN });
        let class = class::learned(class);
        self.gone = (block, class, self.clock.age(stamp));
        if self.memory.push(content, class, stamp) {
            self.settle();
        }
    }

    fn outlook(&self, block: BlockId) -> Option<Outlook> {
        let (gone, class, age) = self.gone;
        if block.is_null() || gone != block {
            return None;
        }
        let worth = self.table.worths_now(class).at(age);
        let kept = (worth > 0).then(|| self.clock.kept(table::WORTH / f64::from(worth)));
        Some(Outlook::new(class::numbered(class, self.clock.uses_callers_clock()), kept, class::describe))
    }

    fn forget(&mut self, block: BlockId) {
        self.unlist(block);
        self.set(block, State { stamp: self.clock.now(), ..UNKNOWN });
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.clock = Clock::default();
        self.table.clear();
        self.tails.clear();
        self.memory.clear();
        (self.ranked, self.released, self.learned, self.decayed) = (0, 0, 0, 0);
        (self.share, self.gone, self.found) = (0, NO_VICTIM, None);
        (self.hit, self.returned) = (NO_CACHED_STEP, NO_CACHED_STEP);
        self.set_learns();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let before = self.lists.members.len();
        let num_blocks = num_blocks.max(before);
        self.memory.reserve(num_blocks.saturating_sub(1))?;
        self.lists.grow(num_blocks)?; // last, because it accepts blocks as soon as it has grown
        let now = self.clock.now();
        self.lists.members.iter_mut().skip(before).for_each(|state| state.stamp = now);
        self.memory.grow(num_blocks.saturating_sub(1));
        self.set_learns();
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let state = self.state(block).unwrap_or(UNKNOWN);
        ensure(
            class::is_sound(state.class) && state.history.uses > 0,
            "HZ1 (a block has a valid class and at least one use)",
            || format!("{block:?}: {state:?}"),
        )
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.lists.check_invariants()?;
        (0..self.lists.members.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))?;
        (0..CLASSES).try_for_each(|class| {
            let (has, ranked) = (!self.lists.is_empty(class), self.tails.knows(class as u16));
            ensure(!has || ranked, "HZ2 (a class with blocks is ranked, or will be)", || {
                format!("class {class}")
            })
        })
    }
}
