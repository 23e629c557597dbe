//! `Watch`: the observer of a pool, which consists of parts such as events, metrics and the advisor.
//! `PoolWatch`: the methods that a pool gets from them.
//!
//! `Watch` stores which parts a pool has, and passes each notification of the pool to the parts that
//! need it. Each part has a module of its own.
//!
//! Costs: a call and a branch per part for each notification of the pool.

use kvpool::observe::{
    Blocks, ClearCause, Computed, ContentView, Lookup, NewContents, PoolObserver, Removed,
};
use kvpool::{BlockId, BlockPool, InvariantViolation, PoolError};

use crate::advisor::{Advice, Advisor, AdvisorConfig};
use crate::changes::ChangeLog;
use crate::digest::{self, StateDigest, group_key};
use crate::events::{BlockEvent, EventBatch, EventLog};
use crate::feed::{Feed, FeedBatch, held};
use crate::metrics::{Meter, PoolMetrics};
use crate::payloads::{Evicted, Payload, PayloadError, Payloads};

/// Selects the observers of a pool.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_observe::{PoolWatch, WatchConfig};
/// let watch = WatchConfig { event_capacity: 10_000, digest: true, ..WatchConfig::default() };
/// let mut pool = BlockPool::new(PoolConfig::default())?.watched(&watch)?;
/// assert!(pool.state_digest().is_some() && pool.take_events().events.is_empty());
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchConfig {
    /// The number of events that are stored until [`PoolWatch::take_events`] is called, at most 2^32; 0
    /// records no events. Events take 32 more bytes per block, in every tier, unless the policy already
    /// tracks the parents of blocks.
    pub event_capacity: usize,
    /// Whether the pool has a digest of its state: see [`PoolWatch::state_digest`]. With a digest,
    /// [`crate::Scrubber`] detects more faults. A digest takes 24 bytes per block.
    pub digest: bool,
    /// Settings of an advisor: see [`crate::advisor`]. `None`: no advisor.
    pub advisor: Option<AdvisorConfig>,
    /// Whether contents can have payloads: see [`PoolWatch::set_payloads`].
    pub payloads: bool,
    /// Whether the pool has metrics: see [`crate::metrics`]. Metrics take 24 bytes per block.
    pub metrics: bool,
    /// Later versions may add fields, so end struct literals with `..Default::default()`.
    #[doc(hidden)]
    pub more: (),
}

impl WatchConfig {
    /// Returns whether the configuration enables nothing, so that no observer is needed.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.event_capacity == 0 && !self.digest && self.advisor.is_none() && !self.payloads && !self.metrics
    }
}

/// The observers of one pool.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_observe::{PoolWatch, Watch, WatchConfig};
/// let mut pool = BlockPool::new(PoolConfig::default())?;
/// let watch = Watch::new(&WatchConfig { digest: true, ..WatchConfig::default() }, &pool)?;
/// pool.observe(Box::new(watch))?;
/// assert!(pool.state_digest().is_some());
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Debug, Default)]
pub struct Watch {
    events: EventLog,
    feed: Option<Box<Feed>>,
    digest: Option<StateDigest>,
    advisor: Option<Box<Advisor>>,
    payloads: Option<Payloads>,
    meter: Option<Box<Meter>>,
    /// The log of changes for the explainer of misses.
    pub(crate) changes: Option<ChangeLog>,
}

impl Watch {
    /// Makes the observers of `pool`, for [`BlockPool::observe`]. O(blocks) with a digest.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] names the setting and the allowed values.
    pub fn new(config: &WatchConfig, pool: &BlockPool) -> Result<Self, PoolError> {
        Self::with_units(config, pool, 1)
    }

    /// Makes the observers of `pool`, whose blocks contain `units_per_block` hash units each.
    pub(crate) fn with_units(
        config: &WatchConfig,
        pool: &BlockPool,
        units_per_block: usize,
    ) -> Result<Self, PoolError> {
        let new = |advisor| Advisor::new(advisor, pool.num_usable(), units_per_block);
        let advisor = config.advisor.as_ref().map(new);
        Ok(Self {
            events: EventLog::new(config.event_capacity)?,
            feed: None,
            digest: config.digest.then(|| StateDigest::new(pool.blocks(), true)).transpose()?,
            advisor: advisor.transpose()?.map(Box::new),
            payloads: config.payloads.then(Payloads::default),
            meter: config.metrics.then(|| Meter::new(pool)).transpose()?.map(Box::new),
            changes: None,
        })
    }

    /// Makes an observer that contains only a digest of `pool`. O(blocks).
    pub(crate) fn of_digest(pool: &BlockPool) -> Result<Box<Self>, PoolError> {
        let mut watch = Box::new(Self::new(&WatchConfig::default(), pool)?);
        watch.keep_digest(pool.blocks())?;
        Ok(watch)
    }

    pub(crate) const fn digest(&self) -> Option<&StateDigest> {
        self.digest.as_ref()
    }

    pub(crate) fn settle(&mut self, blocks: Blocks<'_>) {
        if let Some(digest) = &mut self.digest {
            digest.settle(blocks);
        }
    }

    pub(crate) fn take_events(&mut self) -> EventBatch {
        self.events.take()
    }

    /// Whether the next [`Self::take_feed`] has to report all contents of the pool, because changes
    /// were lost.
    pub(crate) fn is_feed_lost(&self) -> bool {
        self.feed.as_ref().is_some_and(|feed| feed.is_lost())
    }

    pub(crate) fn feed_mut(&mut self) -> Option<&mut Feed> {
        self.feed.as_deref_mut()
    }

    pub(crate) fn advice(&self) -> Option<Advice> {
        self.advisor.as_ref().map(|advisor| advisor.advice())
    }

    pub(crate) fn metrics(&self) -> Option<PoolMetrics> {
        self.meter.as_ref().map(|meter| meter.metrics())
    }

    /// Checks that the metrics can set their time to `now`, which must not be before the current time.
    pub(crate) fn check_time(&self, now: f64) -> Result<(), PoolError> {
        self.meter.as_ref().map_or(Ok(()), |meter| meter.check_time(now))
    }

    /// Adds a digest if the pool has none. It does not sum checksums of contents. O(blocks).
    pub(crate) fn keep_digest(&mut self, blocks: Blocks<'_>) -> Result<(), PoolError> {
        if self.digest.is_none() {
            self.digest = Some(StateDigest::new(blocks, false)?);
        }
        Ok(())
    }
}

impl PoolObserver for Watch {
    fn wants_parents(&self) -> bool {
        self.events.is_enabled() || self.feed.is_some()
    }

    fn wants_contents(&self) -> bool {
        let counted = self.digest.as_ref().is_some_and(StateDigest::counts_contents);
        let told = self.events.is_enabled() || self.feed.is_some() || self.meter.is_some();
        counted || self.changes.is_some() || self.payloads.is_some() || told
    }

    fn changed(&mut self, blocks: &[BlockId]) {
        if let Some(digest) = &mut self.digest {
            digest.note_changed(blocks);
        }
    }

    fn looked_up(&mut self, lookup: &Lookup<'_>) {
        if let Some(advisor) = &mut self.advisor {
            advisor.looked_up(lookup);
        }
        if let Some(meter) = &mut self.meter {
            meter.looked_up(lookup);
        }
    }

    fn registered(&mut self, new: &NewContents<'_>, blocks: Blocks<'_>) {
        if let Some(digest) = &mut self.digest {
            digest.note_contents(new.blocks, blocks);
        }
        if let Some(feed) = &mut self.feed {
            feed.registered(new);
        }
        if let (Some(advisor), Some((chain, start))) = (&mut self.advisor, new.chain) {
            advisor.registered(chain.hashes(), start, start + new.blocks.len());
        }
    }

    fn computed(&mut self, computed: &Computed) {
        if let Some(meter) = &mut self.meter {
            meter.computed(computed);
        }
        if let Some(digest) = &mut self.digest {
            digest.note_computed(&computed.content);
        }
        if !computed.first {
            return;
        }
        if let Some(feed) = &mut self.feed {
            feed.computed(computed);
        }
        if let Some(changes) = &self.changes {
            changes.appeared(group_key(computed.content.hash.key(), computed.content.group));
        }
        if self.events.is_enabled() {
            let &Computed { block, content, parent, algorithm, .. } = computed;
            let ContentView { hash, group, depth, .. } = content;
            let event = BlockEvent::Stored { hash, group, parent, depth, block };
            self.events.push(event, algorithm);
        }
    }

    fn removed(&mut self, removed: &Removed) {
        let &Removed { block, ref content, algorithm, last, cause, outlook, .. } = removed;
        if let Some(digest) = &mut self.digest {
            digest.note_removed(content);
        }
        if let Some(payloads) = &mut self.payloads {
            payloads.removed(block);
        }
        if let Some(meter) = &mut self.meter {
            meter.removed(removed);
        }
        if !last {
            return;
        }
        if let Some(feed) = &mut self.feed {
            feed.removed(removed);
        }
        if let Some(changes) = &self.changes {
            changes.departed(group_key(content.hash.key(), content.group), cause, outlook);
        }
        if self.events.is_enabled() {
            let ContentView { hash, group, .. } = *content;
            self.events.push(BlockEvent::Removed { hash, group, block }, algorithm);
        }
    }

    fn cleared(&mut self, cause: ClearCause, epoch: u64) {
        if let Some(digest) = &mut self.digest {
            digest.note_cleared();
        }
        if let Some(advisor) = &mut self.advisor {
            advisor.forget();
        }
        if let Some(payloads) = &mut self.payloads {
            payloads.cleared();
        }
        if let Some(meter) = &mut self.meter {
            meter.cleared();
        }
        if let Some(changes) = &self.changes {
            changes.cleared(cause);
        }
        if let Some(feed) = &mut self.feed {
            feed.cleared();
        }
        self.events.push(BlockEvent::Cleared { epoch }, None);
    }

    fn time_passed(&mut self, now: f64) {
        if let Some(meter) = &mut self.meter {
            meter.time_passed(now);
        }
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let advisor = self.advisor.as_ref().map(|advisor| advisor.prepare_resize(num_blocks - 1));
        let resized = advisor.transpose()?;
        // If a later allocation fails, the metrics keep this memory unused.
        self.meter.as_mut().map_or(Ok(()), |meter| meter.grow(num_blocks))?;
        self.digest.as_mut().map_or(Ok(()), |digest| digest.grow(num_blocks))?;
        self.feed.as_mut().map_or(Ok(()), |feed| feed.grow(num_blocks))?;
        if let (Some(advisor), Some(resized)) = (&mut self.advisor, resized) {
            advisor.resize(resized);
        }
        Ok(())
    }

    fn check(&self, pool: &BlockPool) -> Result<(), InvariantViolation> {
        self.advisor.as_ref().map_or(Ok(()), |advisor| advisor.check_invariants())?;
        self.payloads.as_ref().map_or(Ok(()), |payloads| payloads.check(pool.blocks()))?;
        self.meter.as_ref().map_or(Ok(()), |meter| meter.check(pool.blocks()))?;
        self.digest.as_ref().map_or(Ok(()), |digest| digest.check(pool.blocks()))
    }
}

/// An observer without any effect, except that the pool must track the parents of blocks for it. It is
/// installed before the real one, so that a lack of memory is reported before anything has changed.
#[derive(Debug)]
struct Parents;

impl PoolObserver for Parents {
    fn wants_parents(&self) -> bool {
        true
    }

    fn wants_contents(&self) -> bool {
        false
    }
}

/// Adds a feed to the observers of a pool. `take` removes the current observers, and `put` restores
/// them if `observe` fails.
pub(crate) fn insert_feed<O, E>(
    owner: &mut O,
    feed: Feed,
    take: impl FnOnce(&mut O) -> Option<Watch>,
    put: impl FnOnce(&mut O, Watch),
    observe: impl Fn(&mut O, Box<dyn PoolObserver>) -> Result<(), E>,
) -> Result<(), E> {
    let watch = take(owner);
    if let Err(error) = observe(owner, Box::new(Parents)) {
        if let Some(watch) = watch {
            put(owner, watch);
        }
        return Err(error);
    }
    let mut watch = watch.unwrap_or_default();
    watch.feed = Some(Box::new(feed));
    observe(owner, Box::new(watch))
}

/// The methods of a pool for its observers ([`Watch`]).
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_observe::{PoolWatch, WatchConfig};
/// let config = PoolConfig { num_blocks: 100, ..PoolConfig::default() };
/// let digest = WatchConfig { digest: true, ..WatchConfig::default() };
/// let mut one = BlockPool::new(config.clone())?.watched(&digest)?;
/// let mut other = BlockPool::new(config)?.watched(&digest)?;
/// let table = one.allocate(3)?;
/// assert_ne!(one.state_digest(), other.state_digest());
/// other.allocate(3)?;
/// assert_eq!(one.state_digest(), other.state_digest());
/// assert_eq!(one.state_digest(), Some(one.state_digest_from_scratch()));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
pub trait PoolWatch: Sized {
    /// Watches the pool from now on. Replaces earlier observers. If the configuration enables nothing,
    /// nothing changes.
    ///
    /// # Errors
    /// The errors of [`Watch::new`].
    fn watch(&mut self, config: &WatchConfig) -> Result<(), PoolError>;

    /// Like [`Self::watch`], but takes the pool and returns it, so that the call can follow the
    /// constructor.
    ///
    /// # Errors
    /// The errors of [`Watch::new`].
    fn watched(mut self, config: &WatchConfig) -> Result<Self, PoolError> {
        self.watch(config)?;
        Ok(self)
    }

    /// Adds a digest, which is updated from now on, to the other observers. It does not sum checksums
    /// of contents as [`WatchConfig::digest`] does. So it is cheaper, and sufficient for a journal.
    /// O(blocks).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory.
    fn keep_digest(&mut self) -> Result<(), PoolError>;

    /// Returns the events since the last call. The batch is empty if [`WatchConfig::event_capacity`] is
    /// 0.
    fn take_events(&mut self) -> EventBatch;

    /// Adds a feed of up to `capacity` changes to the other observers: a log of events with tokens, for
    /// a publisher. Contents that are already registered are reported without tokens. A feed takes 4
    /// bytes per token slot and 33 bytes per block. O(blocks).
    ///
    /// ```
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// use kvpool_observe::{FeedBatch, FeedEvent, PoolWatch};
    /// let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    /// pool.keep_feed(1 << 20)?;
    /// let blocks = pool.allocate(2)?;
    /// pool.register_table(&blocks, prompt.chain(), 0)?;
    /// let mut batch = FeedBatch::default();
    /// pool.take_feed(&mut batch);
    /// let Some(&FeedEvent::Stored { tokens: Some(tokens), .. }) = batch.events.last() else { panic!() };
    /// assert_eq!(batch.tokens(tokens), [3, 4]);
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a capacity of 0 or above 2^32, and if there is not enough
    /// memory. Nothing has changed then.
    fn keep_feed(&mut self, capacity: usize) -> Result<(), PoolError>;

    /// Replaces the contents of `batch` by the changes since the last call. The batch is empty without
    /// [`Self::keep_feed`]. Its memory is reused, so pass the same batch each time. O(1), O(blocks)
    /// after a loss.
    fn take_feed(&mut self, batch: &mut FeedBatch);

    /// Attaches a payload to the content of each block. The blocks may be held or cached-free. The pool
    /// keeps a payload until the content leaves the block. A new payload replaces an existing one,
    /// which is dropped. O(blocks).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// use kvpool_observe::{Payload, PoolWatch, WatchConfig};
    /// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?);
    /// let mut prompt = HashCursor::new(hasher, ExtraKeys::default())?;
    /// prompt.append(&[1, 2]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?
    ///     .watched(&WatchConfig { payloads: true, ..Default::default() })?;
    /// let blocks = pool.allocate(1)?;
    /// pool.register_table(&blocks, prompt.chain(), 0)?;
    /// pool.set_payloads(&blocks, vec![Payload::Number(77)])?;
    /// pool.release(&blocks)?;
    ///
    /// pool.evict(1)?;
    /// let gone = pool.take_evicted();
    /// assert_eq!((gone[0].block, gone[0].hash), (blocks[0], prompt.chain().hashes()[0]));
    /// assert_eq!(gone[0].payload, Payload::Number(77));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PayloadError`]; no payload is set then.
    fn set_payloads(&mut self, blocks: &[BlockId], payloads: Vec<Payload>) -> Result<(), PayloadError>;

    /// Returns the payloads of contents that have left their blocks since the last call, for any
    /// reason, in the order in which they left. If all contents left at once, the payloads are sorted
    /// by block. The list is empty without [`WatchConfig::payloads`]. If the number of waiting payloads
    /// reaches the number of blocks of the pool, no more payloads can be set.
    fn take_evicted(&mut self) -> Vec<Evicted>;

    /// Returns a digest of the state of the pool; `None` without [`WatchConfig::digest`]. It may be
    /// called after any operation. Equal sequences of calls give equal digests, on any host. O(blocks
    /// that changed since the last call).
    fn state_digest(&mut self) -> Option<u64>;

    /// Computes the value of [`Self::state_digest`] from scratch, from every block. The pool need not
    /// keep a digest for this. O(blocks).
    fn state_digest_from_scratch(&self) -> u64;

    /// Returns the advisor's estimates of hit rates: at other sizes, with other policies, and by
    /// tenant. The estimates use the pool's own traffic. `None` without an advisor. The call takes
    /// about 50 us.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// use kvpool_observe::{AdvisorConfig, PoolWatch, WatchConfig};
    /// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..Default::default() })?);
    /// let advisor = Some(AdvisorConfig::default());
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 1, ..Default::default() })?
    ///     .watched(&WatchConfig { advisor, ..Default::default() })?;
    /// // Three prompts of four blocks take turns. Eight blocks are too few: LRU never hits here.
    /// for turn in [0, 100, 200].repeat(50) {
    ///     let mut prompt = HashCursor::new(hasher.clone(), ExtraKeys::default())?;
    ///     prompt.append(&[turn, turn + 1, turn + 2, turn + 3]);
    ///     let mut table = pool.match_and_acquire(prompt.chain(), usize::MAX)?;
    ///     let hits = table.len();
    ///     pool.allocate_into(4 - hits, &mut table)?;
    ///     pool.register(&table[hits..], prompt.chain(), hits)?;
    ///     pool.mark_computed(&table[hits..])?;
    ///     pool.release_table(&table)?;
    /// }
    /// let advice = pool.advice().unwrap();
    /// assert!(advice.hit_rate == 0.0);
    /// let twelve = advice.curve.iter().find(|point| point.blocks == 12).unwrap();
    /// assert!(twelve.block_hit_rate == 0.98); // all but the first 12 of 600
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    fn advice(&self) -> Option<Advice>;

    /// Returns the metrics since the start of the watch; `None` without [`WatchConfig::metrics`].
    /// O(buckets): a microsecond.
    ///
    /// ```
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// use kvpool_observe::{PoolWatch, WatchConfig};
    /// let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?
    ///     .watched(&WatchConfig { metrics: true, ..Default::default() })?;
    /// pool.observe_time(100.0)?;
    /// let blocks = pool.allocate(1)?;
    /// pool.register(&blocks, prompt.chain(), 0)?;
    /// pool.mark_computed(&blocks)?;
    /// pool.release(&blocks)?;
    /// pool.observe_time(104.0)?;
    /// let hit = pool.match_and_acquire(prompt.chain(), 1)?;
    /// pool.release(&hit)?;
    /// pool.observe_time(110.0)?;
    /// pool.evict(1)?;
    ///
    /// let metrics = pool.metrics().unwrap();
    /// assert_eq!((metrics.age_at_hit.count(), metrics.age_at_hit.sum()), (1, 4.0));
    /// assert_eq!((metrics.lifetime.sum(), metrics.idle_before_eviction.sum()), (10.0, 6.0));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    fn metrics(&self) -> Option<PoolMetrics>;

    /// Sets the time for [`Self::metrics`], in seconds on the caller's clock. Does nothing without
    /// metrics. A pool with retention does not need this call: [`BlockPool::advance_time`] is enough,
    /// on the same clock. O(1).
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if `now` is not finite.
    fn observe_time(&mut self, now: f64) -> Result<(), PoolError>;
}

impl PoolWatch for BlockPool {
    fn watch(&mut self, config: &WatchConfig) -> Result<(), PoolError> {
        if config.is_idle() && self.observer::<Watch>().is_none() {
            return Ok(());
        }
        self.observe(Box::new(Watch::new(config, self)?)).map(|_before| ())
    }

    fn keep_digest(&mut self) -> Result<(), PoolError> {
        if let Some((watch, blocks)) = self.observer_mut::<Watch>() {
            return watch.keep_digest(blocks);
        }
        self.observe(Watch::of_digest(self)?).map(|_before| ())
    }

    fn take_events(&mut self) -> EventBatch {
        self.observer_mut::<Watch>().map_or_else(EventBatch::default, |(watch, _)| watch.take_events())
    }

    fn keep_feed(&mut self, capacity: usize) -> Result<(), PoolError> {
        let feed = Feed::new(capacity, self)?;
        let watch = |pool: &mut Self| pool.observer_mut::<Watch>().map(|(watch, _)| std::mem::take(watch));
        let put = |pool: &mut Self, watch| {
            if let Some((place, _)) = pool.observer_mut::<Watch>() {
                *place = watch;
            }
        };
        insert_feed(self, feed, watch, put, |pool, observer| pool.observe(observer).map(|_before| ()))
    }

    fn take_feed(&mut self, batch: &mut FeedBatch) {
        let lost = self.observer::<Watch>().is_some_and(Watch::is_feed_lost);
        let held = if lost { held(self) } else { Vec::new() };
        let algorithm = self.algorithm();
        match self.observer_mut::<Watch>().and_then(|(watch, _)| watch.feed_mut()) {
            Some(feed) => feed.take(held, algorithm, batch),
            None => *batch = FeedBatch::default(),
        }
    }

    fn set_payloads(&mut self, blocks: &[BlockId], payloads: Vec<Payload>) -> Result<(), PayloadError> {
        self.check_poison()?;
        let algorithm = self.algorithm();
        let (watch, view) = self.observer_mut::<Watch>().ok_or(PayloadError::NotKept)?;
        watch.payloads.as_mut().ok_or(PayloadError::NotKept)?.set(blocks, payloads, algorithm, view)
    }

    fn take_evicted(&mut self) -> Vec<Evicted> {
        let watch = self.observer_mut::<Watch>();
        watch.and_then(|(watch, _)| watch.payloads.as_mut()).map(Payloads::take).unwrap_or_default()
    }

    fn state_digest(&mut self) -> Option<u64> {
        let (watch, blocks) = self.observer_mut::<Watch>()?;
        watch.settle(blocks);
        self.observer::<Watch>()?.digest().map(|digest| digest.value(self))
    }

    fn state_digest_from_scratch(&self) -> u64 {
        digest::from_scratch(self)
    }

    fn advice(&self) -> Option<Advice> {
        self.observer::<Watch>()?.advice()
    }

    fn metrics(&self) -> Option<PoolMetrics> {
        self.observer::<Watch>()?.metrics()
    }

    fn observe_time(&mut self, now: f64) -> Result<(), PoolError> {
        let Some((watch, _)) = self.observer_mut::<Watch>() else { return Ok(()) };
        watch.check_time(now)?;
        watch.time_passed(now);
        Ok(())
    }
}
