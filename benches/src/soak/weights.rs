//! Changes of weights: a new epoch, which requests outlive with what they hold, and a reset, for which nobody may hold anything.
//!
//! Whichever it was, what any tier cached before is KV of other weights, and whoever reads it fails.

use kvpool::{BlockPool, ManagerError, PoolError, PoolStats, RequestState, TierError};

use super::content::extra_keys;
use super::driver::Driver;
use super::meter::{Meter, Operation};
use super::{Sabotage, Wrong, ensure};

impl Driver {
    pub(super) fn pool_stats(&self) -> Result<Vec<PoolStats>, Wrong> {
        let tiers = self.manager.tiers();
        (0..tiers.len()).map(|tier| Ok(tiers.pool(tier).map(BlockPool::stats)?)).collect()
    }

    fn nothing_is_cached(&self, after: &str) -> Result<(), Wrong> {
        let pools = self.pool_stats()?;
        let empty = pools.iter().all(|stats| stats.registered == 0 && stats.cached_free == 0);
        ensure(empty, || format!("after {after} there are cached blocks: {pools:?}"))
    }

    pub(super) fn bump_epoch(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        self.library.draw(&mut self.chance, &mut self.tokens);
        self.stale = Some(self.manager.prepare(&self.tokens, extra_keys(0))?);
        let epoch = meter.time(Operation::BumpEpoch, || self.manager.bump_epoch())?;
        ensure(epoch == self.pool().epoch(), || format!("epoch {epoch} was begun, {}", self.pool().epoch()))?;
        self.weights += 1;
        self.nothing_is_cached("a new epoch")
    }

    /// A reset: refused exactly if somebody holds a block of a tier. Returns whether it was not.
    pub(super) fn try_reset(&mut self, meter: &mut Meter) -> Result<bool, Wrong> {
        let before = self.observe(false);
        let pools = self.pool_stats()?;
        let held = |&(_, stats): &(usize, &PoolStats)| stats.active + stats.fenced > 0;
        let holding = pools.iter().enumerate().find(held);
        let result = meter.time(Operation::Reset, || self.manager.reset());
        let (tier, active, fenced) = match (&result, holding) {
            (Ok(forgotten), None) => {
                let registered: usize = pools.iter().map(|stats| stats.registered).sum();
                ensure(*forgotten == registered, || {
                    format!("a reset forgot {forgotten} blocks of {pools:?}")
                })?;
                self.nothing_is_cached("a reset")?;
                self.resets += 1;
                self.change_weights();
                return Ok(true);
            }
            (&Err(ManagerError::Pool(PoolError::InUse { active, fenced })), _) => (0, active, fenced),
            (&Err(ManagerError::Tier(TierError::InUse { tier, active, fenced })), _) => {
                (tier, active, fenced)
            }
            _ => return Err(Wrong(format!("a reset of {pools:?} gave {result:?}"))),
        };
        let named =
            holding.is_some_and(|(at, stats)| (at, stats.active, stats.fenced) == (tier, active, fenced));
        ensure(named, || format!("a reset of {pools:?} gave {result:?}"))?;
        self.unchanged(&before, "a refused reset")?;
        Ok(false)
    }

    /// Nobody holds a block: whatever is computed from now on is computed with other weights.
    fn change_weights(&mut self) {
        self.weights += 1;
        self.books.forget_weights(self.weights);
    }

    /// Everybody gives up his blocks, those in the host tier last, and everything is forgotten.
    pub(super) fn reset_all(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        while !self.swaps.is_empty() {
            self.end_swap(meter)?;
        }
        self.take_plan(meter)?;
        for state in [RequestState::Running, RequestState::Swapped] {
            while let Some(key) = self.pick(state) {
                self.preempt_one(key, meter)?;
            }
            self.end_steps(self.step, meter)?;
            if self.sabotaged(Sabotage::ForgottenReset) {
                continue;
            }
            let waiting = !self.books.in_state(RequestState::Swapped).is_empty();
            let done = self.try_reset(meter)?;
            ensure(done != waiting, || {
                format!("a reset after everybody left: {done}, in the host: {waiting}")
            })?;
        }
        if self.sabotaged(Sabotage::ForgottenReset) {
            self.change_weights();
        }
        Ok(())
    }
}
