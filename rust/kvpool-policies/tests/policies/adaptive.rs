//! Tests of `adaptive`: the order of each mode, its hits on workloads, its choice of a mode from given
//! numbers of hits, and the whole policy against a model.

use std::collections::{BTreeMap, HashMap};

use kvpool::evictor::{Content, Policy, Release};
use kvpool::{BlockId, InvariantViolation, PoolError};
use kvpool_policies::adaptive::{Choice, Mode};
use kvpool_policies::{Adaptive, Recency};
use proptest::prelude::*;

use crate::{id, random};

/// A model of the order of blocks: recency, with a bonus for frequency. A number stands for a block, or
/// for an entry of a simulated cache (shadow).
#[derive(Debug, Default)]
struct OrderModel {
    mode: usize,
    capacity: u64,
    clock: u64,
    /// For each block, its count of uses, its stamp, and whether it is proven.
    blocks: BTreeMap<u64, (u64, u64, bool)>,
    lists: Vec<Vec<u64>>,
    evictions: u64,
    /// For each evicted key, the time of its eviction, and its count of uses.
    ghosts: BTreeMap<u64, (u64, u64)>,
}

const TICK: u64 = 65_536;

impl OrderModel {
    fn new(mode: usize, capacity: u64) -> Self {
        Self { mode, capacity, lists: vec![Vec::new(); 16], ..Self::default() }
    }

    fn bonus(&self, list: usize) -> u64 {
        let mode = Mode::ALL[self.mode];
        let class = list as u64 % 8;
        let uses = if class == 0 { 0 } else { mode.used_again + (class - 1) * mode.doubling };
        (uses + if list >= 8 { mode.proven } else { 0 }) * self.capacity * TICK
    }

    fn list_of(&self, block: u64) -> usize {
        let (count, _, proven) = self.blocks[&block];
        (0..8).rev().find(|&class| count >= 1 << class).unwrap() + if proven { 8 } else { 0 }
    }

    fn leave(&mut self, block: u64) {
        self.lists.iter_mut().for_each(|list| list.retain(|&member| member != block));
    }

    fn admit(&mut self, block: u64, key: u64) {
        self.clock += TICK;
        let alive = self.ghosts.remove(&key).filter(|&(at, _)| self.evictions - at <= 2 * self.capacity);
        let count = alive.map_or(1, |(_, count)| (count + 1).min(255));
        self.blocks.insert(block, (count, self.clock, false));
    }

    fn hit(&mut self, block: u64) {
        self.leave(block);
        let (count, stamp, _) = self.blocks[&block];
        let halvings = ((self.clock - stamp) / (16 * self.capacity * TICK)).min(7);
        let count = ((count >> halvings) + 1).min(255);
        self.blocks.insert(block, (count, self.clock, true));
    }

    fn release(&mut self, block: u64) {
        self.leave(block);
        let clock = self.clock;
        let privileged = (clock / (self.capacity * TICK / 8).max(1)).is_multiple_of(4);
        let state = self.blocks.get_mut(&block).unwrap();
        state.1 = clock;
        state.2 |= privileged;
        let list = self.list_of(block);
        self.lists[list].push(block);
    }

    fn pop(&mut self) -> Option<u64> {
        let fronts = (0..16).filter_map(|list| {
            let &front = self.lists[list].first()?;
            Some((self.blocks[&front].1 + self.bonus(list), list, front))
        });
        let (_, _, victim) = fronts.min()?;
        self.leave(victim);
        Some(victim)
    }

    fn evicted(&mut self, block: u64, key: u64) {
        let (count, ..) = self.blocks.remove(&block).unwrap();
        self.ghosts.insert(key, (self.evictions, count));
        self.evictions += 1;
    }

    fn grow(&mut self, capacity: u64) {
        // Before the memory of evictions grows, the model forgets those that are too old, because
        // growing does not restore them.
        let (evictions, most) = (self.evictions, 2 * self.capacity);
        self.ghosts.retain(|_, (at, _)| evictions - *at <= most);
        self.capacity = capacity;
    }
}

/// A model of the whole policy: the order of blocks, six shadows, and the sums of their hits.
#[derive(Debug, Default)]
struct Model {
    order: OrderModel,
    contents: HashMap<BlockId, Content>,
    /// The shadows (simulated caches), one per mode. In the model, an entry of a shadow is a key.
    shadows: Vec<OrderModel>,
    runs: [i128; 6],
    waiting: Vec<(u64, bool)>,
    ended: bool,
    depth: u32,
    begins: bool,
    rate: u64,
    entries: u64,
    references: i128,
    hits: [i128; 6],
    all: i128,
    gains: [[i128; 6]; 2],
    squares: [[[i128; 6]; 6]; 2],
    /// For each mode, whether the policy ever chose it.
    taken: [bool; 6],
}

fn sample_bits(key: u64) -> u64 {
    let mut bits = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Model {
    fn new(num_blocks: usize) -> Self {
        let mut model = Self::default();
        model.grow(num_blocks).unwrap();
        model
    }

    fn serve(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return;
        }
        for (mode, shadow) in self.shadows.iter_mut().enumerate() {
            let held: Vec<bool> = waiting.iter().map(|(key, _)| shadow.blocks.contains_key(key)).collect();
            for (&(key, begins), &held) in waiting.iter().zip(&held) {
                if begins {
                    self.hits[mode] += self.runs[mode];
                    self.runs[mode] = 0;
                }
                self.runs[mode] = if held { self.runs[mode] + 1 } else { 0 };
                if held {
                    shadow.hit(key);
                }
            }
            for &(key, _) in waiting.iter().rev() {
                if shadow.blocks.contains_key(&key) {
                    continue;
                }
                if shadow.blocks.len() as u64 == self.entries {
                    let Some(victim) = shadow.pop() else { break };
                    shadow.evicted(victim, victim);
                }
                shadow.admit(key, key);
            }
            shadow.clock += 1;
            for (key, _) in &waiting {
                if shadow.blocks.contains_key(key) {
                    shadow.release(*key);
                }
            }
        }
        self.references += waiting.len() as i128;
        if self.references >= i128::from((self.entries / 64).max(1)) {
            self.choose();
        }
    }

    fn choose(&mut self) {
        self.all += self.references * 256;
        for sums in 0..2 {
            for a in 0..6 {
                self.gains[sums][a] += (self.hits[a] - self.hits[0]) * 256;
                for b in 0..6 {
                    self.squares[sums][a][b] += (self.hits[a] - self.hits[b]).pow(2) * 256;
                }
            }
        }
        (self.references, self.hits) = (0, [0; 6]);
        let edge = self.all / 1000;
        let worth: Vec<i128> = (0..6)
            .map(|mode| self.gains[0][mode] + self.gains[1][mode] / 4 + if mode == 0 { edge } else { 0 })
            .collect();
        let most = *worth.iter().max().unwrap();
        let best = worth.iter().position(|&each| each == most).unwrap();
        let now = self.order.mode;
        let lead = most - worth[now];
        let variance = self.squares[0][best][now] + self.squares[1][best][now] / 16;
        if best != now && lead * lead * 4 > variance * 256 && lead > edge / 4 {
            self.order.mode = best;
            self.taken[best] = true;
        }
        for (sums, horizon) in [256, 2048].into_iter().enumerate() {
            self.gains[sums].iter_mut().for_each(|gain| *gain -= *gain / horizon);
            self.squares[sums].iter_mut().flatten().for_each(|square| *square -= *square / horizon);
        }
        self.all -= self.all / 256;
    }
}

impl Policy for Model {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.ended = true;
        self.contents.insert(block, content);
        self.order.admit(block.get().into(), content.key);
    }

    fn hit(&mut self, block: BlockId) {
        self.ended = true;
        self.order.hit(block.get().into());
    }

    fn begin_release(&mut self, _release: &Release<'_>) {
        self.ended = true;
    }

    fn release(&mut self, block: BlockId) {
        if std::mem::take(&mut self.ended) {
            self.order.clock += 1;
            self.serve();
        }
        self.order.release(block.get().into());
        let Content { key, depth } = self.contents[&block];
        self.begins |= depth >= self.depth;
        self.depth = depth;
        if sample_bits(key).is_multiple_of(self.rate) {
            if self.waiting.len() as u64 == self.entries {
                self.serve();
            }
            self.waiting.push((key, std::mem::take(&mut self.begins)));
        }
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.order.pop().map(|block| id(block as u32))
    }

    fn take(&mut self, block: BlockId) {
        self.order.leave(block.get().into());
    }

    fn unpop(&mut self, block: BlockId) {
        let list = self.order.list_of(block.get().into());
        self.order.lists[list].insert(0, block.get().into());
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        self.order.leave(block.get().into());
        self.order.evicted(block.get().into(), content.key);
    }

    fn forget(&mut self, block: BlockId) {
        self.order.leave(block.get().into());
        self.order.blocks.remove(&block.get().into());
    }

    fn clear(&mut self) {
        *self = Self::new(self.order.capacity as usize + 1);
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let capacity = num_blocks as u64 - 1;
        if self.shadows.is_empty() {
            self.order = OrderModel::new(0, capacity);
            self.ended = true;
        } else if capacity <= self.order.capacity {
            return Ok(());
        }
        self.order.grow(capacity);
        let rate = [8, 4, 2].into_iter().find(|rate| capacity / rate >= 1024).unwrap_or(1);
        self.entries = (capacity / rate).max(1);
        if self.rate != rate {
            self.rate = rate;
            self.shadows = (0..6).map(|mode| OrderModel::new(mode, self.entries)).collect();
            (self.runs, self.hits, self.references) = ([0; 6], [0; 6], 0);
            (self.waiting, self.depth, self.begins) = (Vec::new(), 0, true);
        }
        let entries = self.entries;
        self.shadows.iter_mut().for_each(|shadow| shadow.grow(entries));
        Ok(())
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn equals_its_model(blocks in 2_u32..14, steps in prop::collection::vec(random::step(), 1..160)) {
        let n = blocks as usize;
        random::agree(&mut Adaptive::new(n).unwrap(), &mut Model::new(n), blocks, &steps);
    }
}

fn random_of(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(1);
    sample_bits(*seed ^ 0x5bd1_e995)
}

/// A manager that serves one request after the other, and makes the same calls of several policies. The
/// first policy chooses the victims.
struct Manager<'a> {
    policies: Vec<&'a mut dyn Policy>,
    blocks: HashMap<u64, u32>,
    contents: Vec<Content>,
    capacity: usize,
    hits: usize,
    asked: usize,
}

impl<'a> Manager<'a> {
    fn new(capacity: usize, policies: Vec<&'a mut dyn Policy>) -> Self {
        let contents = vec![Content::default()];
        Self { policies, blocks: HashMap::new(), contents, capacity, hits: 0, asked: 0 }
    }

    fn all(&mut self, mut call: impl FnMut(&mut dyn Policy)) {
        self.policies.iter_mut().for_each(|policy| call(*policy));
    }

    fn free_block(&mut self) -> Option<u32> {
        if self.contents.len() <= self.capacity {
            self.contents.push(Content::default());
            return Some(self.contents.len() as u32 - 1);
        }
        let victims: Vec<_> = self.policies.iter_mut().map(|policy| policy.pop()).collect();
        assert!(victims.iter().all(|&victim| victim == victims[0]), "{victims:?}");
        let victim = victims[0]?;
        let content = self.contents[victim.index()];
        self.all(|policy| policy.evicted(victim, content));
        self.blocks.remove(&content.key);
        Some(victim.get())
    }

    /// Serves a prompt. The numbers are the contents of its blocks, from the first block on.
    fn serve(&mut self, prompt: impl IntoIterator<Item = u64>) {
        let prompt: Vec<u64> = prompt.into_iter().collect();
        let mut table: Vec<u32> = prompt.iter().map_while(|key| self.blocks.get(key).copied()).collect();
        self.hits += table.len();
        self.asked += prompt.len();
        for &block in &table {
            self.all(|policy| policy.hit(id(block)));
        }
        for (depth, &key) in prompt.iter().enumerate().skip(table.len()) {
            // A block after the end of the cached prefix may still be cached. In this case the request
            // does not keep a second block for the content.
            if self.blocks.contains_key(&key) {
                break;
            }
            let Some(block) = self.free_block() else { break };
            let content = Content { key, depth: depth as u32 };
            self.contents[block as usize] = content;
            self.blocks.insert(key, block);
            self.all(|policy| policy.admit(id(block), content));
            table.push(block);
        }
        self.all(|policy| policy.begin_release(&Release::default()));
        for &block in table.iter().rev() {
            self.all(|policy| policy.release(id(block)));
        }
    }

    fn rate(&self) -> f64 {
        100.0 * self.hits as f64 / self.asked.max(1) as f64
    }
}

/// Returns the contents of the blocks of a document.
fn document(number: u64, blocks: u64) -> impl Iterator<Item = u64> {
    (0..blocks).map(move |block| sample_bits(number << 16 | block))
}

/// In pools of these sizes, the policy samples one key of 1, 2 or 8, and each pool grows over a size at
/// which this rate changes. The traffic consists of scans with some popular contents, a loop, and
/// sessions, so that different modes become active.
#[test]
fn equals_its_model_in_larger_pools() {
    let mut seen = [false; 6];
    for (capacity, grown, requests) in [(160, 190, 3_000), (1_900, 2_100, 450), (8_200, 8_300, 160)] {
        let mut policy = Adaptive::new(capacity + 1).unwrap();
        let mut model = Model::new(capacity + 1);
        let mut seed = capacity as u64;
        let length = capacity as u64 / 40;
        for phase in 0..2 {
            let mut manager = Manager::new(capacity, vec![&mut policy, &mut model]);
            for request in 0..requests {
                let scanned = 1_000_000 * phase + 1000 + request;
                let (number, blocks) = match request * 4 / requests {
                    0 | 2 if request % 3 != 0 => (scanned, length),
                    0 => (random_of(&mut seed) % 40, length),
                    1 => (request % 80, length),
                    2 => (random_of(&mut seed) % (30 + request % 30), length),
                    _ => (500 + request / 40 + random_of(&mut seed) % 9, length * (1 + request % 40 / 8)),
                };
                manager.serve(document(number, blocks));
            }
            policy.check_invariants().unwrap();
            assert_eq!(policy.mode(), Mode::ALL[model.order.mode]);
            if phase == 0 {
                policy.grow(grown + 1).unwrap();
                model.grow(grown + 1).unwrap();
                policy.check_invariants().unwrap();
                assert_eq!(policy.mode(), Mode::ALL[model.order.mode], "growing changes no mode");
                // The policy evicts all blocks in the model's order.
                while let Some(victim) = model.pop() {
                    assert_eq!(policy.pop(), Some(victim));
                    policy.forget(victim);
                    model.forget(victim);
                }
            }
        }
        assert!(model.taken.contains(&true), "{capacity} blocks: no change of mode is no test");
        (0..6).filter(|&mode| model.taken[mode]).for_each(|mode| seen[mode] = true);
    }
    assert!(seen.iter().filter(|&&seen| seen).count() > 3, "{seen:?}");
}

/// If more blocks are released at once than a simulated cache has entries, they are served in parts. So
/// the memory for blocks that wait never grows.
#[test]
fn a_release_may_be_longer_than_a_shadow() {
    let mut policy = Adaptive::new(5).unwrap();
    let mut model = Model::new(5);
    let both: [&mut dyn Policy; 2] = [&mut policy, &mut model];
    for policy in both {
        (1..5).for_each(|block| policy.admit(id(block), Content { key: block.into(), depth: block }));
        for block in [4, 3, 2, 1, 4, 2, 3, 1, 2] {
            policy.release(id(block));
            policy.check_invariants().unwrap();
        }
    }
    while let Some(victim) = model.pop() {
        assert_eq!(policy.pop(), Some(victim));
    }
    assert_eq!(policy.pop(), None);
}

const SMALL: usize = 64;

/// Returns the number of new contents that are admitted until a block is evicted. The block was used
/// `uses` times in a row at the start, and is proven.
fn stays(mode: Mode, uses: usize) -> usize {
    let mut policy = Adaptive::fixed(SMALL + 1, mode).unwrap();
    let add = |policy: &mut Adaptive, block: BlockId, key: u64| {
        policy.admit(block, Content { key, depth: 0 });
        policy.release(block);
    };
    // Other blocks are admitted first, because blocks in the first window, which is privileged, would
    // be proven.
    (2..=20).for_each(|block| add(&mut policy, id(block), block.into()));
    add(&mut policy, id(1), 1);
    for _ in 1..uses {
        policy.hit(id(1));
        policy.release(id(1));
    }
    (21..=SMALL as u32).for_each(|block| add(&mut policy, id(block), block.into()));
    let stayed = (SMALL - 20..).find(|&age| {
        let victim = policy.pop().unwrap();
        policy.evicted(victim, Content { key: 1 << 40, depth: 0 });
        add(&mut policy, victim, 1000 + age as u64);
        policy.check_invariants().unwrap();
        victim == id(1) || age > 100 * SMALL
    });
    stayed.unwrap()
}

/// Returns how long a block stays after 1, 2, 3, 4 and 128 uses. The unit is the admission of as many
/// contents as the pool has blocks.
fn lives(mode: usize) -> [usize; 5] {
    [1, 2, 3, 4, 128].map(|uses| (stays(Mode::ALL[mode], uses) + SMALL / 2) / SMALL)
}

#[test]
fn mode_0_is_lru() {
    assert_eq!(lives(0), [1, 1, 1, 1, 1]);
    let mut lru = Recency::new(101).unwrap();
    let mut policy = Adaptive::fixed(101, Mode::ALL[0]).unwrap();
    let mut manager = Manager::new(100, vec![&mut policy, &mut lru]);
    let mut seed = 1;
    for _ in 0..2000 {
        manager.serve(document(random_of(&mut seed) % 30, 9));
    }
    assert!(manager.hits > 0);
}

#[test]
fn mode_1_makes_reused_content_younger_by_one_capacity() {
    assert_eq!(lives(1), [1, 2, 2, 2, 2]);
}

#[test]
fn mode_2_makes_reused_content_younger_by_two_capacities() {
    assert_eq!(lives(2), [1, 3, 3, 3, 3]);
}

#[test]
fn mode_3_makes_it_four_capacities_younger() {
    assert_eq!(lives(3), [1, 5, 5, 5, 5]);
}

#[test]
fn mode_4_adds_eight_capacities_per_doubling() {
    assert_eq!(lives(4), [1, 9, 9, 17, 57]);
}

/// A proven block stays for four capacities of admissions longer than another block. The result is
/// higher, because most new contents are not proven and are evicted at once, so they need only a
/// quarter of the space.
#[test]
fn mode_5_keeps_reused_content() {
    let [once, proven @ ..] = lives(5);
    assert!(once <= 1 && proven.iter().all(|lives| (4..=5).contains(lives)), "{once} {proven:?}");
}

#[test]
fn a_returning_content_keeps_its_number_of_uses() {
    let content = |key| Content { key, depth: 0 };
    let mut policy = Adaptive::fixed(5, Mode::ALL[4]).unwrap();
    let mut cycle = |evictions: u64| {
        policy.clear();
        policy.admit(id(1), content(1));
        (0..3).for_each(|_| policy.hit(id(1)));
        policy.evicted(id(1), content(1));
        for key in 0..evictions {
            policy.admit(id(2), content(100 + key));
            policy.evicted(id(2), content(100 + key));
        }
        for (block, key) in [(1, 1), (2, 2)] {
            policy.admit(id(block), content(key));
            policy.release(id(block));
        }
        policy.pop()
    };
    assert_eq!(cycle(0), Some(id(2)), "1 had 4 uses and has 5");
    assert_eq!(cycle(7), Some(id(2)), "8 evictions are remembered in a pool of 4");
    assert_eq!(cycle(8), Some(id(1)), "not 9");
}

#[test]
fn uses_count_half_after_16_capacities() {
    let mut policy = Adaptive::fixed(5, Mode::ALL[4]).unwrap();
    let mut second_use_after = |capacities: u64, others: usize| {
        policy.clear();
        // A block with 8 uses is in class 3. After the uses are halved and one is added, it has 5 uses
        // and is in class 2.
        policy.admit(id(1), Content { key: 1, depth: 0 });
        (1..8).for_each(|_| policy.hit(id(1)));
        policy.release(id(1));
        for key in 0..4 * capacities {
            policy.admit(id(2), Content { key: 100 + key, depth: 0 });
        }
        // Block 3 gets `others` uses at the same time. It is last used a moment after block 1.
        policy.admit(id(3), Content { key: 3, depth: 0 });
        (1..others).for_each(|_| policy.hit(id(3)));
        policy.hit(id(1));
        [1, 3].into_iter().for_each(|block| policy.release(id(block)));
        [policy.pop(), policy.pop()]
    };
    assert_eq!(second_use_after(15, 4), [Some(id(3)), Some(id(1))], "class 3 outlives class 2");
    assert_eq!(second_use_after(16, 4), [Some(id(1)), Some(id(3))], "both of class 2: the older first");
    assert_eq!(second_use_after(16 * 9, 2), [Some(id(1)), Some(id(3))], "nothing is left of 8 uses");
}

fn hits(capacity: usize, policy: &mut dyn Policy, requests: &[(u64, u64)]) -> f64 {
    let mut manager = Manager::new(capacity, vec![policy]);
    requests.iter().for_each(|&(number, blocks)| manager.serve(document(number, blocks)));
    manager.rate()
}

/// In a loop over twice as many blocks as the pool has, LRU never hits. The policy has nearly as many
/// hits as the best order, which keeps half of the loop.
#[test]
fn a_loop_is_won() {
    let requests: Vec<_> = (0..6000).map(|request| (request % 100, 20)).collect();
    let lru = hits(1000, &mut Recency::new(1001).unwrap(), &requests);
    let mut policy = Adaptive::new(1001).unwrap();
    let adaptive = hits(1000, &mut policy, &requests);
    assert!(lru < 0.01 && adaptive > 30.0, "LRU {lru:.1} %, adaptive {adaptive:.1} %");
    assert_eq!(policy.mode(), Mode::ALL[5]);
}

/// Each session grows by a turn at a time, and at some point never returns. Only recency predicts that,
/// so LRU is the best order.
#[test]
fn sessions_that_end_are_left_to_lru() {
    let (mut seed, mut turns, mut next) = (7, [(0, 0); 12], 0);
    let mut requests = Vec::new();
    for _ in 0..6000 {
        let slot = (random_of(&mut seed) % 12) as usize;
        let (session, turn) = &mut turns[slot];
        if *turn % 20 == 0 {
            next += 1;
            (*session, *turn) = (next, 0);
        }
        *turn += 1;
        requests.push((*session, 5 + 4 * *turn));
    }
    let lru = hits(600, &mut Recency::new(601).unwrap(), &requests);
    let mut policy = Adaptive::new(601).unwrap();
    let adaptive = hits(600, &mut policy, &requests);
    assert!(adaptive > lru - 0.5 && lru > 50.0, "LRU {lru:.1} %, adaptive {adaptive:.1} %");
    assert_eq!(policy.mode(), Mode::ALL[0]);
}

/// Popular documents alternate with twice as many documents that are requested only once. So contents
/// that were used before are worth keeping.
#[test]
fn scans_do_not_evict_popular_content() {
    let mut seed = 3;
    let popular = |seed: &mut u64| random_of(seed) % 40;
    let requests: Vec<_> = (0..8000_u64)
        .map(|request| (if request % 3 == 0 { popular(&mut seed) } else { 1000 + request }, 10))
        .collect();
    let lru = hits(400, &mut Recency::new(401).unwrap(), &requests);
    let adaptive = hits(400, &mut Adaptive::new(401).unwrap(), &requests);
    assert!(adaptive > lru + 5.0, "LRU {lru:.1} %, adaptive {adaptive:.1} %");
}

/// The hash tables of each instance have a secret random number. The order of evictions depends neither
/// on this number nor on whether the instance is a clone.
#[test]
fn the_same_calls_give_the_same_order() {
    let (mut policy, mut twin) = (Adaptive::new(301).unwrap(), Adaptive::new(301).unwrap());
    let mut seed = 5;
    let mut requests = |count: u64| -> Vec<u64> {
        (0..count)
            .map(|request| if request % 2 == 0 { request % 50 } else { random_of(&mut seed) % 300 })
            .collect()
    };
    let mut manager = Manager::new(300, vec![&mut policy, &mut twin]);
    requests(1500).into_iter().for_each(|number| manager.serve(document(number, 12)));
    let mut copy = policy.clone();
    assert_eq!(
        std::iter::from_fn(|| copy.pop()).collect::<Vec<_>>(),
        std::iter::from_fn(|| policy.pop()).collect::<Vec<_>>()
    );
}

/// Growth keeps contents, uses and the current mode, even if the policy then samples a smaller part of
/// the keys. Afterwards, all lengths of time are computed from the new capacity.
#[test]
fn growing_keeps_contents_uses_and_mode() {
    let mut policy = Adaptive::new(1001).unwrap();
    let requests: Vec<_> = (0..4000).map(|request| (request % 100, 20)).collect();
    hits(1000, &mut policy, &requests);
    assert_eq!(policy.mode(), Mode::ALL[5]);
    let mut before = policy.clone();
    for blocks in [1500, 2048, 2049, 5000, 9000] {
        policy.grow(blocks).unwrap();
        policy.check_invariants().unwrap();
        assert_eq!(policy.mode(), Mode::ALL[5]);
    }
    let mut kept: Vec<_> = std::iter::from_fn(|| policy.pop()).collect();
    let mut expected: Vec<_> = std::iter::from_fn(|| before.pop()).collect();
    assert_eq!(kept.len(), 1000);
    kept.sort_unstable();
    expected.sort_unstable();
    assert_eq!(kept, expected);
}

/// Returns the index of the first chunk of references after which `mode` is active. For each chunk, the
/// argument contains the number of references, and the hits of each mode.
fn first_in(mode: usize, chunks: impl IntoIterator<Item = (u64, [u64; 6])>) -> Option<usize> {
    let mut choice = Choice::default();
    chunks.into_iter().position(|(references, hits)| choice.record(references, &hits) == mode)
}

fn over_lru(mode: usize, points: i64) -> [u64; 6] {
    let mut hits = [5000; 6];
    hits[mode] = 5000_u64.saturating_add_signed(points);
    hits
}

#[test]
fn references_that_all_modes_hit_change_no_mode() {
    let mut choice = Choice::default();
    for hits in [0, 17, 10_000, 3] {
        for _ in 0..500 {
            assert_eq!(choice.record(10_000, &[hits; 6]), 0);
        }
    }
}

/// Mode 0 gets a bonus of 10 hits in 10,000 references, and another mode must lead by a quarter more
/// than that to become active. A lead of 1 counts 1.25 at first, because the long sums include it too.
/// It counts more when the sums contain more chunks.
#[test]
fn a_gain_below_the_edge_is_not_followed() {
    assert_eq!(first_in(1, vec![(10_000, over_lru(1, 5)); 200]), None);
    assert_eq!(
        first_in(1, vec![(10_000, over_lru(1, 9)); 4]),
        None,
        "9 x 1.25 is more than 10, and less than 12.5"
    );
    assert_eq!(first_in(1, vec![(10_000, over_lru(1, 11)); 4]), Some(2), "56 n^2 against 128 n");
}

#[test]
fn one_clear_chunk_is_enough() {
    for mode in 1..6 {
        assert_eq!(first_in(mode, [(10_000, over_lru(mode, 100))]), Some(0));
    }
}

#[test]
fn of_equal_modes_the_first_is_taken() {
    assert_eq!(first_in(2, [(10_000, [5000, 5000, 5200, 5200, 5100, 5200])]), Some(0));
}

/// Leads that alternate between modes are noise and change nothing. A steady lead of the same sum
/// changes the mode as soon as it exceeds half a standard deviation.
#[test]
fn noise_is_not_followed() {
    let chunk =
        |n: u64, gain: i64| (10_000, over_lru(3, gain + if n.is_multiple_of(2) { -300 } else { 300 }));
    assert_eq!(first_in(3, (0..400).map(|n| chunk(n, 0))), None);
    let at = first_in(3, (0..400).map(|n| chunk(n, 30))).unwrap();
    assert!((2..150).contains(&at), "{at}");
}

/// If two modes gain and lose hits together, only the difference between them counts.
#[test]
fn pairs_are_compared_with_each_other() {
    let mut choice = Choice::default();
    choice.record(10_000, &[5000, 6000, 6000, 0, 0, 0]);
    assert_eq!(choice.mode(), 1);
    for n in 0..40_u64 {
        let common = 5500 + n % 2 * 500;
        choice.record(10_000, &[5000, common, common + 8, 0, 0, 0]);
    }
    assert_eq!(choice.mode(), 2);
}

/// The shorter the time for which a mode was the best, the earlier it is replaced after it became worse
/// than LRU. 64 chunks have as many references as the pool has blocks.
#[test]
fn a_mode_that_turns_wrong_is_left() {
    let chunks_back = |right: usize| {
        let mut choice = Choice::default();
        (0..right).for_each(|_| assert_eq!(choice.record(10_000, &over_lru(4, 200)), 4));
        (0..1000).find(|_| choice.record(10_000, &over_lru(4, -200)) == 0).unwrap()
    };
    let (after_one, after_many) = (chunks_back(64), chunks_back(4000));
    assert!((32..96).contains(&after_one) && (256..1000).contains(&after_many), "{after_one}, {after_many}");
}

#[test]
fn unbounded_numbers_are_accepted() {
    let mut choice = Choice::default();
    for n in 0..5000 {
        let mode = choice.record(u64::MAX, &[0, u64::MAX, u64::MAX / 2, 0, n, u64::MAX]);
        assert!(mode < 6);
    }
    assert_eq!(choice.mode(), 1);
}
