//! `TierWatch`: the pools of [`Tiers`] and [`Sequences`], watched tier by tier.

use kvpool::{PoolError, SequenceError, Sequences, TierError, Tiers};

use crate::events::EventBatch;
use crate::watch::{PoolWatch, Watch, WatchConfig};

/// What can be asked of pools in tiers.
///
/// ```
/// use kvpool::{PoolConfig, Tiers};
/// use kvpool_observe::{TierWatch, WatchConfig};
/// let mut tiers = Tiers::new(vec![PoolConfig::default(), PoolConfig::default()])?;
/// tiers.watch_tier(1, &WatchConfig { event_capacity: 100, ..WatchConfig::default() })?;
/// assert!(tiers.take_events(1)?.events.is_empty());
/// assert!(tiers.take_events(2).is_err());
/// # Ok::<(), kvpool::TierError>(())
/// ```
pub trait TierWatch {
    /// What they refuse with.
    type Error;

    /// Watches the pool of a tier from now on: see [`PoolWatch::watch`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`]; as [`Watch::new`].
    fn watch_tier(&mut self, tier: usize, config: &WatchConfig) -> Result<(), Self::Error>;

    /// Events of a tier since the last call: see [`PoolWatch::take_events`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`].
    fn take_events(&mut self, tier: usize) -> Result<EventBatch, Self::Error>;
}

/// What is to observe a tier's pool; `None` if nothing need.
fn watch_of(tiers: &Tiers, tier: usize, config: &WatchConfig) -> Result<Option<Box<Watch>>, TierError> {
    let pool = tiers.pool(tier)?;
    if config.is_idle() && pool.observer::<Watch>().is_none() {
        return Ok(None);
    }
    let watch: Result<_, PoolError> = Watch::new(config, pool);
    Ok(Some(Box::new(watch?)))
}

impl TierWatch for Tiers {
    type Error = TierError;

    fn watch_tier(&mut self, tier: usize, config: &WatchConfig) -> Result<(), TierError> {
        watch_of(self, tier, config)?.map_or(Ok(()), |watch| self.observe(tier, watch))
    }

    fn take_events(&mut self, tier: usize) -> Result<EventBatch, TierError> {
        Ok(self.pool_mut(tier)?.take_events())
    }
}

impl TierWatch for Sequences {
    type Error = SequenceError;

    fn watch_tier(&mut self, tier: usize, config: &WatchConfig) -> Result<(), SequenceError> {
        watch_of(self.tiers(), tier, config)?.map_or(Ok(()), |watch| self.observe_tier(tier, watch))
    }

    fn take_events(&mut self, tier: usize) -> Result<EventBatch, SequenceError> {
        self.tiers().pool(tier)?;
        let watch = self.tier_observer_mut::<Watch>(tier);
        Ok(watch.map_or_else(EventBatch::default, |(watch, _)| watch.take_events()))
    }
}
