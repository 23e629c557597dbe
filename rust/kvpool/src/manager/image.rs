//! What a manager has cached, saved and restored: its device's pool.
//!
//! Requests are none of it: after a restart they come again, and hit. Neither is the host tier, where only swapped requests are.

use super::{CacheManager, ManagerError};
use kvpool_core::{PoolImage, Restored, SavedBlock};

impl CacheManager {
    /// What the device has cached, blocks of running requests included as far as they are registered: see [`crate::BlockPool::image`].
    ///
    /// # Errors
    /// As [`crate::BlockPool::image`].
    pub fn image(&self) -> Result<PoolImage, ManagerError> {
        Ok(self.pool().image()?)
    }

    /// Makes the device's pool of a manager that has done nothing yet what an image says: see [`crate::BlockPool::restore`].
    ///
    /// # Errors
    /// As [`crate::BlockPool::restore`].
    pub fn restore(
        &mut self,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool,
    ) -> Result<Restored, ManagerError> {
        self.check_poison()?;
        let restored = self.tiers.device_mut().restore(image, elapsed, agrees)?;
        self.version += 1;
        self.tell_changed(None);
        Ok(restored)
    }
}
