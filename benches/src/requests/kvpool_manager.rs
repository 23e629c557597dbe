//! [`Kvpool`] runs the requests of a benchmark through [`CacheManager`]. It uses only the public API.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use kvpool::{
    CacheManager, Computed, ExtraKeys, HashAlgorithm, ManagerConfig, ManagerError, NewBlock, Refused, Rows,
    Until, Verify,
};

use super::{Batch, Manager};

/// A [`CacheManager`], and the buffer for the new blocks of a decode step.
#[derive(Debug)]
pub struct Kvpool {
    manager: CacheManager,
    new_blocks: Vec<NewBlock>,
}

impl Kvpool {
    /// Creates a manager with default settings: blocks are identified by SHA-256.
    ///
    /// # Panics
    /// If `num_blocks` or `block_size` is out of range.
    #[must_use]
    pub fn sha256(num_blocks: usize, block_size: usize) -> Self {
        Self::new(ManagerConfig { num_blocks, block_size, ..ManagerConfig::default() })
    }

    /// Creates a manager with default settings, except that it keeps no tokens of cached blocks and so
    /// hashes every prompt.
    ///
    /// # Panics
    /// If `num_blocks` or `block_size` is out of range.
    #[must_use]
    pub fn without_tokens(num_blocks: usize, block_size: usize) -> Self {
        Self::new(ManagerConfig { num_blocks, block_size, keep_tokens: false, ..ManagerConfig::default() })
    }

    /// Creates a manager that finds blocks by XXH3, and verifies each hit by its tokens.
    ///
    /// # Panics
    /// If `num_blocks` or `block_size` is out of range.
    #[must_use]
    pub fn verified(num_blocks: usize, block_size: usize) -> Self {
        Self::new(ManagerConfig {
            num_blocks,
            block_size,
            algorithm: HashAlgorithm::Xxh3,
            verify: Verify::Tokens,
            seed: Some("a seed that only this bench has, of any length".into()),
            ..ManagerConfig::default()
        })
    }

    fn new(config: ManagerConfig) -> Self {
        Self { manager: CacheManager::new(config).unwrap(), new_blocks: Vec::new() }
    }

    /// The manager itself.
    #[must_use]
    pub fn manager(&self) -> &CacheManager {
        &self.manager
    }
}

impl Manager for Kvpool {
    fn admit(&mut self, id: i64, prompt: &[u32]) -> Option<usize> {
        let cursor = self.manager.prepare(prompt, ExtraKeys::default()).unwrap();
        match self.manager.admit(id, cursor) {
            Ok(admission) => Some(admission.cached_blocks),
            Err(Refused { error: ManagerError::OutOfBlocks(_), .. }) => None,
            refused => Some(refused.unwrap().cached_blocks),
        }
    }

    fn commit(&mut self, id: i64, computed: usize) {
        self.manager.commit(id, computed).unwrap();
    }

    fn decode(&mut self, batch: &Batch, tokens: &[u32]) -> bool {
        let requests = &batch.requests;
        let rows = Rows { requests, tokens, computed: Computed::AllButLast, ..Rows::default() };
        match self.manager.append_into(&rows, &mut self.new_blocks) {
            Err(ManagerError::OutOfBlocks(_)) => return false,
            appended => appended.unwrap(),
        }
        true
    }

    fn release(&mut self, id: i64) {
        self.manager.release(id, Until::Now).unwrap();
    }

    fn table(&self, id: i64) -> Vec<u32> {
        self.manager.block_table(id).unwrap().iter().map(|block| block.get()).collect()
    }

    fn available(&self) -> usize {
        self.manager.pool().stats().available()
    }

    fn reset(&mut self) {
        self.manager.reset().unwrap();
    }
}
