//! Saves and restores the cached content of a manager's device pool.
//!
//! Requests are not part of an image. After a restart, the engine admits them again, and they hit the
//! restored content. The host tier is not part of an image either, because it only contains swapped
//! requests.

use super::{CacheManager, ManagerError};
use crate::groups::Groups;
use crate::hash::{BlockHasher, ExtraKeys, HashCursor};
use crate::{PoolError, PoolImage, Restored, SavedBlock};

/// # Images: cached content over a restart
///
/// An image contains the cached content of the device's pool, so that a restarted engine can hit it.
impl CacheManager {
    /// Returns an image of the cached content of the device, including registered blocks of running
    /// requests: see [`crate::BlockPool::image`].
    ///
    /// # Errors
    /// As [`crate::BlockPool::image`].
    pub fn image(&self) -> Result<PoolImage, ManagerError> {
        let algorithm = Some(self.hasher().algorithm());
        Ok(PoolImage { settings: self.image_settings()?, algorithm, ..self.pool().image()? })
    }

    /// Returns, as text, the settings that the hashes and blocks of an image depend on: how tokens are
    /// hashed, and the KV-cache groups. The text does not contain the key. Instead, it contains the
    /// hash of a block of zeros, which differs for another key or seed.
    fn image_settings(&self) -> Result<String, ManagerError> {
        let hasher = BlockHasher::new(self.hasher().config().clone())?;
        let zeros = vec![0; hasher.block_size()];
        let mut cursor = HashCursor::new(hasher.into(), ExtraKeys::default())?;
        cursor.append(&zeros);
        let algorithm = self.hasher().algorithm().name();
        let mut settings = format!("{algorithm}, zeros hash to ");
        let digest = cursor.chain().hashes().first().map_or([0; 32], |hash| *hash.as_bytes());
        digest[..8].iter().for_each(|byte| settings += &format!("{byte:02x}"));
        for spec in self.groups().map_or(&[][..], Groups::specs) {
            settings += &format!(", {} group of {} tokens", spec.kind.name(), spec.block_tokens);
            spec.kind.span().into_iter().for_each(|span| settings += &format!(" over {span}"));
        }
        Ok(settings)
    }

    /// Restores an image into the device's pool of a new manager: see [`crate::BlockPool::restore`].
    /// The manager compares the settings of the image with its own settings, and refuses an image with
    /// different settings.
    ///
    /// # Errors
    /// [`crate::PoolError::InvalidConfig`] if the image has other hashes or KV-cache groups, and the
    /// errors of [`crate::BlockPool::restore`]. Nothing has changed then.
    pub fn restore(
        &mut self,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool,
    ) -> Result<Restored, ManagerError> {
        self.check_poison()?;
        let (own, algorithm) = (self.image_settings()?, self.hasher().algorithm());
        let refused = |field, saved: &str, own: &str| PoolError::config(field, saved, own);
        if let Some(saved) = image.algorithm.filter(|&saved| saved != algorithm) {
            return Err(refused("algorithm", saved.name(), algorithm.name()).into());
        }
        // The settings contain the hash of one block of zeros, so they differ with the block size. The
        // pool checks the block size and returns a more precise error, so images with another block
        // size are not compared here.
        let is_comparable = image.block_size == self.pool().block_size() && !image.settings.is_empty();
        if is_comparable && image.settings != own {
            return Err(refused("settings", &image.settings, &own).into());
        }
        let restored = self.tiers.device_mut().restore(image, elapsed, agrees)?;
        self.version += 1;
        self.notify_changed(None);
        Ok(restored)
    }
}
