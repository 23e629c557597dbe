//! `hazard`: evicts what is least likely to come back soon, as it has learned from what did.
//!
//! A block that waits belongs to a *class*: how often it was used and how far apart, how much of its request's prompt was known before,
//! how long the answer was, and how the request ended, if anybody says so (`class`). Of every class it is counted at which ages
//! blocks came back and how many lived through these ages without (`age`, `table`); what was evicted is remembered for a while,
//! with its class, so that early eviction hides nothing (`memory`). From these follows what a block of the class is worth at any age:
//! expected hits per second from now on. The victim is what is worth least of the oldest and the newest block of each class (`ends`,
//! `tails`): what comes back after a long time is worth more the nearer that is, and of a loop that does not fit the newest goes.
//!
//! *Chains.* Whoever uses a block uses those before it: a parent that went first would break what is behind it, and the newest of a class
//! is the head of a chain. So it belongs behind what keeps chains closed: [`crate::Closed`] in a pool, [`crate::Chained`] in stream form.
//!
//! *Time* is the caller's clock, if it is told; else admitted blocks (`clock`). Signals at a release, its finish reason and the length
//! of the answer, refine the classes; where they are wrong or noise, classes learn that they do not matter.
//!
//! After LHD (Beckmann, Chen, Cidon: "LHD: Improving Cache Hit Rate by Maximizing Hit Density", NSDI 2018), which ranks by hit density by class
//! of age and use; Gittins, "Bandit Processes and Dynamic Allocation Indices", 1979, for the choice of the horizon. That tool calls and
//! ends of turns tell when a session returns: Continuum, arXiv 2511.02230; that re-use has its distribution by category of request:
//! "`KVCache` Cache in the Wild", ATC 2025.
//!
//! Parameters: none. Integers only; the same calls give the same order on any host. How the constants were chosen, figures and limits:
//! `docs/eviction-study.md`.
//!
//! Cost: O(1) per block, amortized where the newest goes: the head of a chain is put aside until its end is gone. O(classes) for the
//! first victim of a moment; worths are learned anew every 8,192 releases, or every quarter of a capacity, which is O(classes seen).
//! 25 bytes per block, 16 more than LRU; and 0.35 MB whatever the size: small pools pay that, too, and up to 0.11 MB for a memory that
//! reaches farther.
//!
//! When not to use it: where evictions must cost as little as LRU's; where the cache holds a large part of the working set, and LRU
//! hits the same.

mod age;
mod class;
mod clock;
mod ends;
mod memory;
mod table;
mod tails;

use crate::block_lists::BlockLists;
use class::{CLASSES, History};
use clock::Clock;
use ends::Ends;
use kvpool_core::parts::{ensure, try_reserve};
use kvpool_core::{
    BlockId, Candidate, Content, InvariantViolation, NULL_BLOCK, Outlook, Policy, PoolError, Release, Signal,
};
use memory::{EVERY, Ghost, Memory};
use table::Table;
use tails::{Run, Tails};

/// Releases between two times that worths are learned, at least, and per capacity.
const LEARN: u64 = 8192;
const LEARN_PER_CAPACITY: u64 = 4;
/// Blocks, and ghosts, that are asked for their age each time.
const SAMPLE: usize = 2048;
/// Releases after which what was learned counts half: so many capacities, at least, and at most.
const HALF_LIFE: u64 = 64;
const HALF_LIFE_LIMITS: (u64, u64) = (1 << 17, 1 << 26);

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Its last release, or its last use while it is held.
    stamp: u32,
    /// At its last release; in use, what was said of the request that will release it.
    class: u16,
    history: History,
}

/// Two are compared as one number: runs of blocks are found by it.
impl PartialEq for State {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let whole = |state: &Self| {
            let History { uses, gap } = state.history;
            u64::from(state.stamp)
                | u64::from(state.class) << 32
                | u64::from(uses) << 48
                | u64::from(gap) << 56
        };
        whole(self) == whole(other)
    }
}

const NOBODY: (BlockId, u16, u32) = (NULL_BLOCK, 0, 0);

const UNKNOWN: State = State { stamp: 0, class: class::UNSAID, history: History::NEW };

/// What one block was, and became. Most of a request are alike: what was worked out for one holds for the next.
#[derive(Clone, Copy, Debug)]
struct Alike {
    before: State,
    after: State,
    /// Of a hit: that of its age.
    bin: usize,
}

/// No block is like that.
const NONE_ALIKE: Alike =
    Alike { before: State { class: class::NOBODYS, ..UNKNOWN }, after: UNKNOWN, bin: 0 };

/// The keys of those contents of which there may be a ghost.
fn remembered(run: &[(BlockId, Content)]) -> impl Iterator<Item = u64> {
    run.iter().filter(|(_, content)| content.depth.is_multiple_of(EVERY)).map(|(_, content)| content.key)
}

/// By when content of the same class came back.
#[derive(Clone, Debug)]
pub struct Hazard {
    /// By class in which blocks wait: oldest first.
    lists: BlockLists<u16>,
    states: Vec<State>,
    clock: Clock,
    table: Table,
    tails: Tails,
    memory: Memory,
    /// The time that the tails were ranked at.
    ranked: u32,
    /// Of the release that goes on: how much of its prompt was known.
    share: u16,
    /// The last victim, its class and its age, until a content comes in: for explanations.
    gone: (BlockId, u16, u32),
    /// The depth of the last block of which a ghost was looked for, and what it was.
    found: Option<(u32, Ghost)>,
    /// The last block that was hit, and the last of the release that goes on.
    hit: Alike,
    returned: Alike,
    released: u64,
    learned: u64,
    /// So many releases, and worths are learned anew.
    learns: u64,
    decayed: u64,
}

impl Hazard {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut policy = Self {
            lists: BlockLists::new(CLASSES, 0)?,
            states: Vec::new(),
            clock: Clock::default(),
            table: Table::new()?,
            tails: Tails::new(),
            memory: Memory::default(),
            ranked: 0,
            share: 0,
            gone: NOBODY,
            found: None,
            hit: NONE_ALIKE,
            returned: NONE_ALIKE,
            released: 0,
            learned: 0,
            learns: 0,
            decayed: 0,
        };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    fn capacity(&self) -> usize {
        self.states.len().saturating_sub(1)
    }

    /// Ticks are of another length: what was learned and remembered means nothing any more.
    fn restart(&mut self) {
        self.table.clear();
        self.memory.clear();
        self.found = None;
        let now = self.clock.now();
        self.states.iter_mut().for_each(|state| state.stamp = now);
        self.tails.change_all();
    }

    /// Takes `block` off its list, if it is on one. Most are not.
    #[inline]
    fn unlist(&mut self, block: BlockId) -> bool {
        self.lists.list_of(block).is_some() && self.take_off(block)
    }

    /// Another block may be the oldest of its class, or the newest.
    fn take_off(&mut self, block: BlockId) -> bool {
        let list = self.lists.remove(block);
        list.inspect(|&list| self.tails.change(list as u16)).is_some()
    }

    #[inline]
    fn list(&mut self, class: u16, block: BlockId, first: bool) {
        let list = usize::from(class);
        self.tails.change(class);
        if first {
            self.lists.push_front(list, block);
        } else {
            self.lists.push_back(list, block);
        }
    }

    /// Puts down what was evicted.
    #[inline]
    fn settle(&mut self) {
        let Self { memory, table, clock, .. } = self;
        memory.settle(clock.now(), |lost| {
            table.lose(lost.class(), age::bin(clock.age(lost.stamp)), EVERY);
        });
    }

    /// Of a content that comes in: what is remembered of it, or of its neighbour in the chain.
    fn remembered(&mut self, content: Content) -> Option<Ghost> {
        if !content.depth.is_multiple_of(EVERY) {
            let holds = |&(depth, ghost): &(u32, Ghost)| ghost.holds_for(depth, content);
            return self.found.filter(holds).map(|(_, ghost)| ghost);
        }
        let ghost = self.memory.take(content.key);
        self.found = ghost.map(|ghost| (content.depth, ghost));
        if let Some(ghost) = ghost {
            self.table.event(ghost.class(), age::bin(self.clock.age(ghost.stamp)), EVERY);
        }
        ghost
    }

    /// Counts who is waiting, by a sample, and works out what everybody is worth.
    fn learn(&mut self) {
        self.settle();
        self.table.nobody_waits();
        let turn = (self.released / LEARN) as usize;
        let step = (self.states.len() / SAMPLE).max(1);
        for block in (turn % step..self.states.len()).step_by(step) {
            // What was put aside, for a block hangs on it, waits like those on the lists.
            let State { class, stamp, .. } = self.states[block];
            if class::waits(class) {
                self.table.wait(class, age::bin(self.clock.age(stamp)), step as u32);
            }
        }
        let step = (self.memory.len() / SAMPLE).max(1);
        for ghost in (turn % step..self.memory.len()).step_by(step).filter_map(|place| self.memory.at(place))
        {
            self.table.wait(ghost.class(), age::bin(self.clock.age(ghost.stamp)), step as u32 * EVERY);
        }
        self.table.learn();
        self.tails.change_all();
    }

    /// That of the last victim, if the block at that end of its class is as old, and nothing else has changed: what ranked lowest then
    /// does now.
    #[inline]
    fn alike(&self) -> Option<Run> {
        let run = self.tails.run()?;
        let class = run.class.into();
        let next = if run.oldest { self.lists.front(class) } else { self.lists.back(class) }?;
        self.states.get(next.index()).is_some_and(|state| state.stamp == run.stamp).then_some(run)
    }

    /// That of what ranks lowest.
    fn least(&mut self) -> Option<Run> {
        let ends = Ends { lists: &self.lists, states: &self.states, clock: self.clock, table: &self.table };
        self.tails.next(|class| ends.least(class))
    }

    /// What becomes of a waiting block that is hit now; its bin is in `self.hit`.
    #[inline]
    fn hit_of(&mut self, before: State) -> State {
        let stamp = self.clock.now();
        if self.hit.before != before || self.hit.after.stamp != stamp {
            let age = self.clock.age(before.stamp);
            let after = State { stamp, class: class::UNSAID, history: before.history.again(age) };
            self.hit = Alike { before, after, bin: age::bin(age) };
        }
        self.hit.after
    }

    /// What becomes of a block that is released now.
    #[inline]
    fn released_as(&mut self, before: State) -> State {
        let stamp = self.clock.now();
        if self.returned.before != before || self.returned.after.stamp != stamp {
            let class = class::of(self.share, class::said(before.class), before.history);
            self.returned = Alike { before, after: State { stamp, class, ..before }, bin: 0 };
        }
        self.returned.after
    }

    /// Replaces the states of blocks, from the first on, as long as they are the same. How many were.
    #[inline]
    fn replace(&mut self, blocks: impl Iterator<Item = BlockId>, before: State, after: State) -> usize {
        let mut is_replaced = |block: &BlockId| {
            let state = self.states.get_mut(block.index()).filter(|state| **state == before);
            state.filter(|_| !block.is_null()).map(|state| *state = after).is_some()
        };
        blocks.take_while(|block| is_replaced(block)).count()
    }

    /// So many more blocks were released.
    #[inline]
    fn count_released(&mut self, blocks: u64) {
        self.released += blocks;
        if self.released >= self.learns {
            self.tick();
        }
    }

    /// When worths are learned anew.
    fn set_learns(&mut self) {
        self.learns = self.learned + (self.capacity() as u64 / LEARN_PER_CAPACITY).max(LEARN);
    }

    /// It is time to learn, and perhaps to forget.
    #[cold]
    fn tick(&mut self) {
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
        // What waits keeps its class.
        if self.lists.list_of(block).is_none()
            && let Some(state) = self.states.get_mut(block.index())
        {
            state.class = class::say(signal);
        }
    }

    fn keeps_time(&self) -> bool {
        true
    }

    fn set_time(&mut self, now: f64) {
        self.settle(); // at the time that they went
        if self.clock.tell(now) {
            self.restart();
        }
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.admit_all(&[(block, content)]);
    }

    fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        self.gone = NOBODY;
        self.settle();
        self.memory.ask_for(remembered(run));
        let capacity = self.capacity();
        for &(block, content) in run {
            self.unlist(block);
            if self.clock.admit(capacity) {
                self.restart();
            }
            let history = self.remembered(content).map_or(History::NEW, |ghost| {
                History::of_class(ghost.class()).again(self.clock.age(ghost.stamp))
            });
            if let Some(state) = self.states.get_mut(block.index()) {
                *state = State { stamp: self.clock.now(), class: class::UNSAID, history };
            }
        }
    }

    fn hit(&mut self, block: BlockId) {
        self.unlist(block);
        // The head of another prompt: what was found for the one before says nothing of what comes in behind it.
        self.found = None;
        // What is in use is hit by those who use it together: that is no coming back.
        if let Some(state) = self.states.get(block.index()).filter(|state| class::waits(state.class)) {
            let before = *state;
            self.states[block.index()] = self.hit_of(before);
            self.table.event(before.class, self.hit.bin, 1);
        }
    }

    fn hit_all(&mut self, blocks: &[BlockId]) {
        let mut rest = blocks;
        while !rest.is_empty() {
            let run = self.lists.remove_run(rest);
            run.inspect(|&(list, _)| self.tails.change(list as u16));
            rest = &rest[run.map_or(1, |(_, blocks)| blocks)..];
        }
        self.found = None;
        let mut rest = blocks;
        while let [first, ..] = rest {
            let before = self.states.get(first.index()).copied().unwrap_or(UNKNOWN);
            if class::waits(before.class) {
                let after = self.hit_of(before);
                let alike = self.replace(rest.iter().copied(), before, after);
                self.table.event(before.class, self.hit.bin, alike as u32);
                rest = &rest[alike.max(1)..];
            } else {
                rest = &rest[1..];
            }
        }
    }

    fn begin_release(&mut self, release: &Release<'_>) {
        let (mut length, mut known) = (release.length, release.known);
        if !release.blocks.is_empty() {
            let used =
                |block: BlockId| self.states.get(block.index()).is_some_and(|state| state.history.uses > 1);
            length = release.blocks.len() as u32;
            known = release.blocks.iter().filter(|candidate| used(candidate.block)).count() as u32;
        }
        self.share = class::share(length, known);
        self.returned = NONE_ALIKE;
    }

    fn release_all(&mut self, blocks: &[Candidate]) {
        let mut rest = blocks;
        while let [first, ..] = rest {
            let state = self.states.get(first.block.index());
            let Some(&before) = state.filter(|_| !first.block.is_null()) else {
                rest = &rest[1..];
                continue;
            };
            let after = self.released_as(before);
            let until_learned = self.learns.saturating_sub(self.released).max(1);
            let run = &rest[..rest.len().min(until_learned.try_into().unwrap_or(usize::MAX))];
            let alike = self.replace(run.iter().map(|candidate| candidate.block), before, after);
            self.tails.change(after.class);
            let mut put = 0;
            while put < alike {
                let rest = &run[put..alike];
                put += self.lists.push_back_run(after.class.into(), rest.len(), |at| rest[at].block);
                // One that waits already moves to the end.
                if let Some(next) = run[..alike].get(put) {
                    self.unlist(next.block);
                    self.list(after.class, next.block, false);
                    put += 1;
                }
            }
            self.count_released(alike as u64);
            rest = &rest[alike..];
        }
    }

    fn release(&mut self, block: BlockId) {
        self.unlist(block);
        let Some(&before) = self.states.get(block.index()).filter(|_| !block.is_null()) else { return };
        let after = self.released_as(before);
        self.states[block.index()] = after;
        self.list(after.class, block, false);
        self.count_released(1);
    }

    fn pop(&mut self) -> Option<BlockId> {
        if self.ranked != self.clock.now() {
            self.ranked = self.clock.now();
            self.tails.change_all();
        }
        if let Some(run) = self.alike() {
            return self.lists.pop(run.class.into(), run.oldest); // nothing else changes
        }
        let run = self.least()?;
        let victim = self.lists.pop(run.class.into(), run.oldest)?;
        self.tails.went(run);
        Some(victim)
    }

    fn take(&mut self, block: BlockId) {
        self.unlist(block);
        // Somebody else keeps it, for reasons of their own: how long it waits teaches nothing.
        if let Some(state) = self.states.get_mut(block.index()).filter(|state| class::waits(state.class)) {
            state.class = class::UNSAID;
        }
    }

    fn unpop(&mut self, block: BlockId) {
        if self.lists.list_of(block).is_none()
            && !block.is_null()
            && let Some(state) = self.states.get(block.index())
        {
            self.list(class::learned(state.class), block, true);
        }
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        self.unlist(block);
        let now = self.clock.now();
        let Some(state) = self.states.get_mut(block.index()) else { return };
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
        let worth = self.table.worth_at(class, age);
        let kept = (worth > 0).then(|| self.clock.kept(table::WORTH / f64::from(worth)));
        Some(Outlook::new(class::numbered(class, self.clock.is_told()), kept, class::words))
    }

    fn forget(&mut self, block: BlockId) {
        self.unlist(block);
        if let Some(state) = self.states.get_mut(block.index()) {
            *state = State { stamp: self.clock.now(), ..UNKNOWN };
        }
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.states.fill(UNKNOWN);
        self.clock = Clock::default();
        self.table.clear();
        self.tails.clear();
        self.memory.clear();
        (self.ranked, self.released, self.learned, self.decayed) = (0, 0, 0, 0);
        (self.share, self.gone, self.found) = (0, NOBODY, None);
        (self.hit, self.returned) = (NONE_ALIKE, NONE_ALIKE);
        self.set_learns();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.max(self.states.len());
        try_reserve(&mut self.states, num_blocks)?;
        self.memory.reserve(num_blocks.saturating_sub(1))?;
        self.lists.grow(num_blocks)?; // last: it accepts blocks as soon as it has grown
        self.states.resize(num_blocks, State { stamp: self.clock.now(), ..UNKNOWN });
        self.memory.grow(num_blocks.saturating_sub(1));
        self.set_learns();
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        let state = self.states.get(block.index()).copied().unwrap_or(UNKNOWN);
        ensure(class::is_sound(state.class) && state.history.uses > 0, "HZ1 (a block has a class)", || {
            format!("{block:?}: {state:?}")
        })
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.lists.check_invariants()?;
        (0..self.states.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))?;
        (0..CLASSES).try_for_each(|class| {
            let (has, ranked) = (!self.lists.is_empty(class), self.tails.knows(class as u16));
            ensure(!has || ranked, "HZ2 (a class with blocks is ranked, or will be)", || {
                format!("class {class}")
            })
        })
    }
}
