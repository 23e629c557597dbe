//! Checks that each block contains the bytes that were written to it, and that a hit has the bytes of
//! its prefix.

use std::collections::BTreeMap;

use kvpool::{BlockId, BlockPool};

use crate::Failure;
use crate::failure::{holds, same};
use crate::world::prompts::{Path, Prompts};

/// Records, for each block, the prompt whose KV an engine wrote to it.
#[derive(Clone, Debug, Default)]
pub struct Written {
    bytes: BTreeMap<usize, Path>,
}

impl Written {
    /// Removes the records of blocks that were allocated, because their holder may overwrite the bytes
    /// at any time.
    pub(crate) fn lose(&mut self, blocks: &[usize]) {
        for block in blocks {
            self.bytes.remove(block);
        }
    }

    /// Records that an engine wrote the blocks of a prompt, beginning at block `start`.
    pub(crate) fn write(&mut self, blocks: &[usize], path: &[u32], start: usize) {
        for (at, &block) in blocks.iter().enumerate() {
            self.bytes.insert(block, path[..=start + at].to_vec());
        }
    }

    /// Checks the bytes of blocks that a lookup returned for a prompt, beginning at block `start` of
    /// the prompt.
    pub(crate) fn expect(&self, blocks: &[usize], path: &[u32], start: usize) -> Result<(), Failure> {
        for (at, block) in blocks.iter().enumerate() {
            same("bytes of a hit", &self.bytes.get(block).map(Vec::as_slice), &path.get(..=start + at))?;
        }
        Ok(())
    }

    /// Checks that every block that a lookup may return contains the bytes of its content.
    pub(crate) fn check(&self, pool: &BlockPool, prompts: &Prompts) -> Result<(), Failure> {
        for block in 1..pool.num_blocks() {
            let id = BlockId::new(block as u32);
            let Some(hash) = pool.hash_of(id).filter(|_| pool.is_computed(id)) else { continue };
            let key = self.bytes.get(&block).map(|path| prompts.key(path, pool.epoch()));
            holds("bytes of a cached block", key == Some(hash.key()), || {
                let path = prompts.by_key(hash.key());
                format!("block {block} is cached for {path:?} and carries {:?}", self.bytes.get(&block))
            })?;
        }
        Ok(())
    }
}
