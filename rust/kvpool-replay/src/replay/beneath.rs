//! `Beneath`: tiers beneath the device in engine mode: host memory, a disk.
//!
//! Owns: what each tier holds, and when its link is free. A prompt's full blocks are in every tier once
//! they are computed, as a write-through offload has it; each tier forgets what was used least of late,
//! the deepest block of a prompt first. Behind what the device has, a block comes from the first tier
//! that holds it. It passes the tiers above, and a link moves one load at a time, in the order of
//! admissions; a request runs when all of its load is there.
//!
//! Writing takes no time and no room of a link. A resumed request computes again what the device has
//! forgotten.
//!
//! Cost: amortised O(1) per block and tier.

use std::collections::{HashMap, VecDeque};

use kvpool::BlockHash;

use super::config::TierConfig;
use super::report::{TierReport, share};

/// What is used last goes last.
#[derive(Debug, Default)]
struct Lru {
    used: HashMap<BlockHash, u64>,
    /// In order of use; what was used again since has another number there.
    order: VecDeque<(u64, BlockHash)>,
    uses: u64,
}

impl Lru {
    fn touch(&mut self, block: BlockHash) {
        self.uses += 1;
        self.used.insert(block, self.uses);
        self.order.push_back((self.uses, block));
        if self.order.len() > 2 * self.used.len() + 64 {
            self.order.retain(|(number, block)| self.used.get(block) == Some(number));
        }
    }

    fn shrink_to(&mut self, blocks: usize) {
        while self.used.len() > blocks
            && let Some((number, block)) = self.order.pop_front()
        {
            if self.used.get(&block) == Some(&number) {
                self.used.remove(&block);
            }
        }
    }
}

#[derive(Debug)]
struct Tier {
    config: TierConfig,
    holds: Lru,
    free_at_ms: f64,
    block_hits: u64,
    busy_ms: f64,
}

/// Blocks that each tier serves of a prompt, behind what the device has.
pub(super) type Served = Vec<usize>;

#[derive(Debug)]
pub(super) struct Beneath {
    tiers: Vec<Tier>,
    /// Full blocks of prompts that are not computed yet, by request.
    coming: HashMap<usize, Box<[BlockHash]>>,
}

impl Beneath {
    pub(super) fn new(tiers: &[TierConfig]) -> Self {
        let tier =
            |&config| Tier { config, holds: Lru::default(), free_at_ms: 0.0, block_hits: 0, busy_ms: 0.0 };
        Self { tiers: tiers.iter().map(tier).collect(), coming: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// What would be served of these blocks, one behind the other.
    pub(super) fn served(&self, blocks: &[BlockHash]) -> Served {
        let mut served = vec![0; self.tiers.len()];
        for block in blocks {
            let Some(first) = self.tiers.iter().position(|tier| tier.holds.used.contains_key(block)) else {
                break;
            };
            served[first] += 1;
        }
        served
    }

    /// A request is admitted: what it asked for was used, and is loaded. Returns when all of it is there.
    pub(super) fn admitted(
        &mut self,
        request: usize,
        blocks: Box<[BlockHash]>,
        served: &Served,
        now_ms: f64,
    ) -> f64 {
        for tier in &mut self.tiers {
            for &block in blocks.iter().rev() {
                if tier.holds.used.contains_key(&block) {
                    tier.holds.touch(block);
                }
            }
        }
        self.coming.insert(request, blocks);
        let (mut there_ms, mut moved) = (now_ms, 0);
        for (tier, &blocks) in self.tiers.iter_mut().zip(served).rev() {
            tier.block_hits += blocks as u64;
            moved += blocks;
            if moved > 0 {
                let takes_ms = moved as f64 * tier.config.load_ms_per_block;
                there_ms = there_ms.max(tier.free_at_ms) + takes_ms;
                tier.free_at_ms = there_ms;
                tier.busy_ms += takes_ms;
            }
        }
        there_ms
    }

    /// A prompt is computed: its full blocks are in every tier.
    pub(super) fn computed(&mut self, request: usize) {
        let Some(blocks) = self.coming.remove(&request) else { return };
        for tier in &mut self.tiers {
            blocks.iter().rev().for_each(|&block| tier.holds.touch(block));
            tier.holds.shrink_to(tier.config.blocks);
        }
    }

    /// A request is given up.
    pub(super) fn forget(&mut self, request: usize) {
        self.coming.remove(&request);
    }

    pub(super) fn report(&self, block_size: u64, tokens: u64) -> Vec<TierReport> {
        let report = |tier: &Tier| {
            let token_hits = tier.block_hits * block_size;
            TierReport {
                blocks: tier.config.blocks,
                block_hits: tier.block_hits,
                token_hits,
                token_hit_rate: share(token_hits, tokens),
                busy_seconds: tier.busy_ms / 1000.0,
            }
        };
        self.tiers.iter().map(report).collect()
    }
}
