//! `SampledStack`: an LRU stack of sampled keys, which returns the stack distance of each use.
//!
//! The stack distance of a use is the size of the smallest LRU cache in which the use hits. The pool's
//! advisor and `SampledLru` of `kvpool-replay` use this estimator.
//!
//! **The method** is SHARDS (Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC Construction with
//! SHARDS", FAST 2015). Only keys with a hash below a threshold are followed. They are a share R of all
//! keys, and each of their uses is recorded. The stack distances (Mattson, Gecsei, Slutz and Traiger
//! 1970) among the followed keys, divided by R, estimate the distances in the whole stream. Each use of
//! a followed key represents 1/R uses.
//!
//! **Prefixes.** A lookup uses a prefix of a hash chain. Its blocks are touched tail first, so that a
//! block is always above its descendants in the stack. The distance of a block is its distance before
//! the lookup, because the blocks of one lookup must not increase each other's distances. So when a
//! block is touched, its distance is the number of blocks above it, minus the blocks that this lookup
//! has already touched. Before the lookup, those were all below it.
//!
//! **Bounds** ([`Bound`]): no bound, a falling sampling rate if the size of the stream is unknown, or a
//! fixed depth if the size of the cache is known. With a fixed depth, the least recently used key is
//! dropped, because it is deeper than any capacity that is evaluated.
//!
//! Costs: a key that is not sampled takes one multiplication and one comparison. A sampled key takes
//! O(log followed), 50 to 200 ns. Each followed key takes 18 bytes for its number, 4 for its position
//! and 16 for the order: 38 bytes, or 54 with [`Bound::LowerRate`]. With [`Bound::Depth`], all memory
//! is allocated at construction. When the positions of the order run out, all keys get new ones. That
//! happens once per as many touches as there are keys: O(1) amortized, 1 to 3 ns per key.

use std::collections::BinaryHeap;

use super::fenwick::Fenwick;
use super::keys::KeyTable;
use kvpool::PoolError;
use kvpool::parts::try_reserve;

/// The number of different hashes, 2^64.
const FULL: f64 = 18_446_744_073_709_551_616.0;
/// The minimum number of positions that an [`Order`] has.
const LEAST_PLACES: usize = 64;

/// How a [`SampledStack`] limits the number of keys that it follows.
///
/// ```
/// use kvpool_observe::advisor::{Bound, SampledStack};
/// let mut stack = SampledStack::new(1.0, 0, Bound::Depth(2))?;
/// for key in [1, 2, 3] {
///     stack.begin();
///     stack.touch(key);
/// }
/// assert_eq!((stack.followed(), stack.contains(1)), (2, false));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// No limit: the memory grows with the number of keys.
    None,
    /// At most this number of keys. If there are more, the keys with the largest hashes are dropped
    /// permanently, which lowers the sampling rate.
    LowerRate(usize),
    /// At most this number of keys. If there are more, the least recently used key is dropped, and its
    /// next use counts as its first. The sampling rate does not change.
    Depth(usize),
}

impl Bound {
    const fn most(self) -> usize {
        match self {
            Self::None => usize::MAX,
            Self::LowerRate(most) | Self::Depth(most) => most,
        }
    }
}

/// The report of a [`SampledStack`] about one use of a sampled key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    /// The number of uses in the whole stream that this use represents: 1 / sampling rate.
    pub weight: f64,
    /// The stack distance: the size in blocks of the smallest cache in which this use hits. `None` if
    /// the key is new or was dropped.
    pub distance: Option<u64>,
}

/// An LRU stack of sampled keys.
///
/// ```
/// use kvpool_observe::advisor::{Bound, SampledStack};
/// let mut stack = SampledStack::new(1.0, 0, Bound::None)?;
/// let mut lookup = |keys: &[u64]| {
///     stack.begin();
///     keys.iter().rev().map(|&key| stack.touch(key).and_then(|touch| touch.distance)).collect::<Vec<_>>()
/// };
/// assert_eq!(lookup(&[1, 2, 3]), [None, None, None]);
/// assert_eq!(lookup(&[7]), [None]);
/// assert_eq!(lookup(&[1, 2]), [Some(3), Some(2)]); // 7 is above both, and 1 is above 2
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SampledStack {
    seed: u64,
    /// Keys with hashes of at most this value are sampled.
    last: u64,
    rate: f64,
    bound: Bound,
    keys: KeyTable,
    /// The position of each key in `order`, indexed by the number of the key.
    places: Vec<u32>,
    order: Order,
    /// The hashes and numbers of the keys, largest hash first. This heap is used only with
    /// [`Bound::LowerRate`].
    largest: BinaryHeap<(u64, u32)>,
    /// The first position that the current lookup has assigned to a key, and the number of keys that
    /// this lookup has used.
    lookup: (u32, u32),
}

impl SampledStack {
    /// Makes an empty stack that follows a share `rate` of the keys. `seed` determines which keys are
    /// followed. All seeds are equally good.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if the rate is not above 0 and at most 1, if the bound is 0 or
    /// above 2^30, or if there is not enough memory.
    pub fn new(rate: f64, seed: u64, bound: Bound) -> Result<Self, PoolError> {
        let invalid = |field, value, expected: &str| PoolError::config(field, value, expected);
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(invalid("rate", rate.to_string(), "above 0, at most 1"));
        }
        if bound != Bound::None && !(1..=1 << 30).contains(&bound.most()) {
            return Err(invalid("bound", bound.most().to_string(), "1 to 1073741824"));
        }
        let mut stack = Self {
            seed,
            last: last_of(rate),
            rate,
            bound,
            keys: KeyTable::new(),
            places: Vec::new(),
            order: Order::default(),
            largest: BinaryHeap::new(),
            lookup: (0, 0),
        };
        if let Bound::Depth(most) = bound {
            stack.keys.grow(most)?;
            try_reserve(&mut stack.places, most + 1)?;
            stack.places.resize(most + 1, 0);
            stack.order.make_room(2 * most)?;
        }
        Ok(stack)
    }

    /// Returns the present sampling rate: the share of all keys that are sampled.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the number of sampled keys in the stack.
    #[must_use]
    pub fn followed(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether `key` belongs to the sample, so that the stack follows it.
    #[inline]
    #[must_use]
    pub fn is_sampled(&self, key: u64) -> bool {
        self.hash(key) <= self.last
    }

    /// Whether `key` is in the stack.
    #[must_use]
    pub fn contains(&self, key: u64) -> bool {
        self.is_sampled(key) && self.keys.find(key).is_some()
    }

    /// Returns the hash of a key. Different keys have different hashes, because each step is a
    /// bijection.
    #[inline]
    fn hash(&self, key: u64) -> u64 {
        (key ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Starts a lookup. Until the next call of `begin`, the calls of [`Self::touch`] pass the keys of
    /// one prefix, from its last block to its first.
    pub fn begin(&mut self) {
        self.lookup = (self.order.next(), 0);
    }

    /// Records a use of `key`. Returns `None` if the key is not in the sample.
    pub fn touch(&mut self, key: u64) -> Option<Touch> {
        let hash = self.hash(key);
        if hash > self.last {
            return None;
        }
        let weight = 1.0 / self.rate;
        let Some(number) = self.keys.find(key) else {
            self.follow(key, hash);
            return Some(Touch { weight, distance: None });
        };
        let place = self.places[number as usize];
        let own = place >= self.lookup.0;
        // The number of followed keys above this one in the stack. These were used later. They
        // represent `above / rate` blocks. If this lookup has already used the key, the number is 0.
        let above = if own { 0 } else { self.order.after(place) - self.lookup.1 };
        let distance = ((f64::from(above) * weight).round() as u64).saturating_add(1);
        self.forget_place(place);
        self.put_on_top(number);
        Some(Touch { weight, distance: Some(distance) })
    }

    /// Starts to follow a new key. If the bound is reached, drops another key, or ignores the new key
    /// if its hash is the largest.
    fn follow(&mut self, key: u64, hash: u64) {
        if self.keys.len() >= self.bound.most() {
            match self.bound {
                Bound::Depth(_) => {
                    let oldest = self.order.oldest();
                    oldest.inspect(|&number| self.give_up(number));
                }
                _ => {
                    let given_up = self.largest.peek().copied().filter(|&(largest, _)| largest > hash);
                    // Drop the key with the largest hash. Different keys have different hashes, so all
                    // remaining hashes are lower.
                    let end = given_up.map_or(hash, |(largest, _)| largest);
                    self.last = end.saturating_sub(1);
                    self.rate = end.max(1) as f64 / FULL;
                    let Some((_, number)) = given_up else { return };
                    self.largest.pop();
                    self.give_up(number);
                }
            }
        } else if self.keys.is_full() && self.grow().is_err() {
            return; // equivalent to dropping the new key
        }
        let Some(number) = self.keys.insert(key) else { return };
        if matches!(self.bound, Bound::LowerRate(_)) {
            self.largest.push((hash, number));
        }
        self.put_on_top(number);
    }

    fn grow(&mut self) -> Result<(), PoolError> {
        let capacity = (2 * self.keys.capacity()).max(LEAST_PLACES).min(self.bound.most());
        self.keys.grow(capacity)?;
        try_reserve(&mut self.places, capacity + 1)?;
        self.places.resize(capacity + 1, 0);
        self.order.make_room(2 * capacity)
    }

    fn give_up(&mut self, number: u32) {
        self.forget_place(self.places[number as usize]);
        self.keys.remove(number);
    }

    fn forget_place(&mut self, place: u32) {
        if self.order.remove(place) && place >= self.lookup.0 {
            self.lookup.1 -= 1;
        }
    }

    fn put_on_top(&mut self, number: u32) {
        if self.order.is_full() {
            self.order.renumber(&mut self.places);
            self.lookup.0 = self.order.next() - self.lookup.1; // this lookup's keys are on top
        }
        self.places[number as usize] = self.order.push(number);
        self.lookup.1 += 1;
    }

    /// Lowers the sampling rate to `rate`. Does nothing if `rate` is not below the current rate.
    /// O(followed).
    pub fn lower_rate(&mut self, rate: f64) {
        if !(rate > 0.0 && rate < self.rate) {
            return;
        }
        self.rate = rate;
        self.last = last_of(rate);
        for place in 0..self.order.next() {
            let Some(number) = self.order.at(place) else { continue };
            if self.hash(self.keys.key(number)) > self.last {
                self.give_up(number);
            }
        }
        self.largest.retain(|&(hash, _)| hash <= self.last);
    }

    /// Removes all keys from the stack. The sampling rate does not change.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.order.clear();
        self.largest.clear();
        self.lookup = (0, 0);
    }

    /// Iterates over the keys in the stack, least recently used first.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.order.next()).filter_map(|place| self.order.at(place)).map(|number| self.keys.key(number))
    }

    /// Returns the size of the stack's heap memory, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let largest = size_of::<(u64, u32)>() * self.largest.capacity();
        self.keys.heap_bytes() + 4 * self.places.capacity() + self.order.heap_bytes() + largest
    }
}

fn last_of(rate: f64) -> u64 {
    ((rate * FULL) as u64).saturating_sub(u64::from(rate < 1.0)) // the conversion saturates at a rate of 1
}

/// The keys in the order of their last use. A key is represented by its number.
#[derive(Clone, Debug)]
struct Order {
    /// The key number at each position, least recently used first. 0 for an empty position: the key has
    /// moved to a later one or was removed.
    numbers: Vec<u32>,
    counts: Fenwick,
    room: usize,
    /// All positions before this one are known to be empty.
    first: usize,
}

impl Default for Order {
    fn default() -> Self {
        Self { numbers: Vec::new(), counts: Fenwick::new(0), room: 0, first: 0 }
    }
}

impl Order {
    fn make_room(&mut self, room: usize) -> Result<(), PoolError> {
        let room = room.max(LEAST_PLACES);
        if room > self.room {
            try_reserve(&mut self.numbers, room)?;
            self.room = room;
            self.counts = Fenwick::new(room);
            for (place, &number) in self.numbers.iter().enumerate() {
                self.counts.add(place as u32, u32::from(number != 0));
            }
        }
        Ok(())
    }

    /// The next position to assign. It fits in 32 bits, because there are at most 2^31 positions.
    fn next(&self) -> u32 {
        self.numbers.len() as u32
    }

    fn at(&self, place: u32) -> Option<u32> {
        self.numbers.get(place as usize).copied().filter(|&number| number != 0)
    }

    fn is_full(&self) -> bool {
        self.numbers.len() == self.room
    }

    /// Adds a key's number as the most recently used. The caller has checked that a position is left.
    fn push(&mut self, number: u32) -> u32 {
        let place = self.next();
        self.numbers.push(number);
        self.counts.add(place, 1);
        place
    }

    /// Empties a position. Returns whether a key had this position.
    fn remove(&mut self, place: u32) -> bool {
        let Some(number) = self.numbers.get_mut(place as usize).filter(|number| **number != 0) else {
            return false;
        };
        *number = 0;
        self.counts.subtract(place, 1);
        true
    }

    /// Returns the number of keys whose last use is later than that of the key at position `place`.
    fn after(&self, place: u32) -> u32 {
        self.counts.after(place)
    }

    fn oldest(&mut self) -> Option<u32> {
        while self.numbers.get(self.first) == Some(&0) {
            self.first += 1;
        }
        self.numbers.get(self.first).copied()
    }

    /// Moves all numbers to the first positions, in the same order, so that positions at the end become
    /// free. The caller ensures that at most half of all positions are occupied.
    fn renumber(&mut self, places: &mut [u32]) {
        self.numbers.retain(|&number| number != 0);
        for (place, &number) in self.numbers.iter().enumerate() {
            places[number as usize] = place as u32;
        }
        self.counts.fill_ones(self.numbers.len());
        self.first = 0;
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.counts.fill_ones(0);
        self.first = 0;
    }

    fn heap_bytes(&self) -> usize {
        4 * self.numbers.capacity() + self.counts.heap_bytes()
    }
}
