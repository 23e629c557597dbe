//! `TierWatch`: watches the pools of [`Tiers`], tier by tier.

use kvpool::{PoolError, TierError, Tiers};

use crate::events::EventBatch;
use crate::watch::{PoolWatch, Watch, WatchConfig};

/// The methods of [`Tiers`] for the observers of their pools.
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
    /// Watches the pool of a tier from now on: see [`PoolWatch::watch`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`], and the errors of [`Watch::new`].
    fn watch_tier(&mut self, tier: usize, config: &WatchConfig) -> Result<(), TierError>;

    /// Returns the events of a tier since the last call: see [`PoolWatch::take_events`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`].
    fn take_events(&mut self, tier: usize) -> Result<EventBatch, TierError>;
}

impl TierWatch for Tiers {
    fn watch_tier(&mut self, tier: usize, config: &WatchConfig) -> Result<(), TierError> {
        let pool = self.pool(tier)?;
        if config.is_idle() && pool.observer::<Watch>().is_none() {
            return Ok(());
        }
        let watch: Result<_, PoolError> = Watch::new(config, pool);
        self.observe(tier, Box::new(watch?))
    }

    fn take_events(&mut self, tier: usize) -> Result<EventBatch, TierError> {
        Ok(self.pool_mut(tier)?.take_events())
    }
}
