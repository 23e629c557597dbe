//! The memory of a simulated engine, which executes every plan, writes the committed tokens, and loads
//! external tokens. After each call every request must read its own tokens in its tier. Every cached
//! block must have its content, computed with the current weights.
//!
//! Blocks are not cleared when they are released. So a lost copy, a block that is allocated too early,
//! or wrong sharing is noticed, because a request reads cells of another prefix. While a fence protects
//! blocks, the engine's step keeps writing to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::model::reference::Kv;
use kvpool::{BlockId, BlockPool, CacheManager, Place, RequestState, Transfer, TransferPlan, Until, runs};

use crate::Failure;
use crate::failure::{holds, same};
use crate::world::prompts::Prompts;
use crate::world::requests::{self, Requests, id};

/// The simulated memory of all tiers. A cell contains the KV of one token.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    block_size: usize,
    /// Whether the engine overwrites each block as soon as it is free, so that a later read of the
    /// block is noticed.
    scribbles: bool,
    cells: BTreeMap<Place, Vec<Option<Kv>>>,
    /// Number of times that the weights changed. Each reset and each new epoch changes them.
    weights: u64,
    /// The version of the weights at the admission of each request. A request may keep KV that it
    /// computed with these weights.
    since: BTreeMap<i64, u64>,
    /// Whether the engine wrote to the destination of a planned copy before it took the plan. An engine
    /// must not do that, so nothing is checked afterwards.
    is_lost: bool,
    /// The blocks that only a fence holds, each with the fence or step that releases it.
    late: Vec<(Until, Place)>,
}

fn pools(manager: &CacheManager) -> impl Iterator<Item = (usize, &BlockPool)> {
    let tiers = manager.tiers();
    (0..tiers.len()).filter_map(move |tier| Some((tier, tiers.pool(tier).ok()?)))
}

pub(crate) fn blocks(manager: &CacheManager) -> impl Iterator<Item = (Place, &BlockPool)> {
    pools(manager).flat_map(|(tier, pool)| {
        (1..pool.num_blocks() as u32).map(move |block| (Place { tier, block: BlockId::new(block) }, pool))
    })
}

/// Returns the blocks that have no references, or only one of a fence.
pub(crate) fn fenced(manager: &CacheManager) -> BTreeSet<Place> {
    let is_fenced = |(at, pool): &(Place, &BlockPool)| {
        pool.fence_references(at.block) == 1
            && pool.ref_count(at.block) == Some(1)
            && !pool.is_registered(at.block)
    };
    blocks(manager).filter(is_fenced).map(|(at, _)| at).collect()
}

impl Memory {
    pub(crate) fn new(block_size: usize, scribbles: bool) -> Self {
        Self { block_size, scribbles, ..Self::default() }
    }

    pub(crate) fn cell(&self, at: Place, slot: usize) -> Option<Kv> {
        self.cells.get(&at)?.get(slot).copied().flatten()
    }

    pub(crate) fn set(&mut self, at: Place, slot: usize, kv: Option<Kv>) {
        let cells = self.cells.entry(at).or_default();
        cells.resize(cells.len().max(slot + 1), None);
        cells[slot] = kv;
    }

    /// Lets the engine make the copies of a transfer plan.
    pub(crate) fn execute(&mut self, transfers: Vec<Transfer>) -> Result<(), Failure> {
        let all = transfers.len();
        let bad = |error: &dyn std::fmt::Display| Failure::new("plan", error.to_string());
        let plan = TransferPlan::new(transfers).map_err(|error| bad(&error))?;
        let rounds = plan.rounds(&[]).map_err(|error| bad(&error))?;
        let count = rounds.iter().flat_map(|round| runs(round)).map(|run| run.len).sum::<usize>();
        same("copies in the rounds of a plan", &count, &all)?;
        for round in rounds {
            let before = self.cells.clone();
            for Transfer { src, dst } in round {
                self.cells.insert(dst, before.get(&src).cloned().unwrap_or_default());
            }
        }
        Ok(())
    }

    /// Lets the engine or a connector write tokens of a request before the tokens are committed.
    pub(crate) fn write(
        &mut self,
        manager: &CacheManager,
        number: i64,
        (tokens, known): (&[u32], usize),
        range: Range<usize>,
    ) {
        let Ok(info) = manager.request(&id(number)) else { return };
        let Ok(table) = manager.block_table(&id(number)) else { return };
        let planned: BTreeSet<Place> = manager.tiers().pending_copies().map(|copy| copy.dst).collect();
        for at in range.start..range.end.min(tokens.len()).min(table.len() * self.block_size) {
            let place = Place { tier: info.tier, block: table[at / self.block_size] };
            let pool = manager.pool();
            // Drafts are written only to blocks that no other request holds.
            let is_own = pool.num_holders(place.block) == 1 && !pool.is_registered(place.block);
            if place.block.is_null() || at >= known && !is_own {
                continue;
            }
            self.is_lost |= planned.contains(&place);
            let kv = Kv::of(self.weights, &[], &tokens[..=at]);
            self.set(place, at % self.block_size, Some(kv));
        }
    }

    pub(crate) const fn weights(&self) -> u64 {
        self.weights
    }

    /// Changes the weights.
    pub(crate) fn change_weights(&mut self) {
        self.weights += 1;
    }

    /// Records the version of the weights at the admission or resumption of a request.
    pub(crate) fn admitted(&mut self, number: i64) {
        self.since.insert(number, self.weights);
    }

    /// Records that a request is a fork, which shares the blocks of its parent.
    pub(crate) fn forked(&mut self, parent: i64, child: i64) {
        let weights = self.since.get(&parent).copied().unwrap_or(self.weights);
        self.since.insert(child, weights);
    }

    /// Records the blocks that a call has released to a fence or step.
    pub(crate) fn fence(&mut self, before: &BTreeSet<Place>, manager: &CacheManager, until: Until) {
        let new = fenced(manager).into_iter().filter(|at| until != Until::Now && !before.contains(at));
        self.late.extend(new.map(|at| (until, at)));
    }

    /// Ends fences. First lets the engine's steps write to the blocks that the fences protected.
    pub(crate) fn ended(&mut self, is_over: impl Fn(Until) -> bool) {
        let (over, late) = std::mem::take(&mut self.late).into_iter().partition(|&(until, _)| is_over(until));
        self.late = late;
        over.into_iter().for_each(|(_, at): (Until, Place)| drop(self.cells.remove(&at)));
    }

    /// Overwrites free blocks, if the setting `scribbles` is on.
    pub(crate) fn scribble(&mut self, manager: &CacheManager) {
        for (tier, pool) in pools(manager).filter(|_| self.scribbles) {
            for block in pool.free_order() {
                self.cells.remove(&Place { tier, block });
            }
        }
    }

    /// Checks that every request reads the KV of its own tokens, and that every cached block contains
    /// the KV of its content.
    pub(crate) fn check(
        &self,
        manager: &CacheManager,
        requests: &Requests,
        prompts: &Prompts,
    ) -> Result<(), Failure> {
        let pending: BTreeMap<Place, Place> =
            manager.tiers().pending_copies().map(|copy| (copy.dst, copy.src)).collect();
        if self.is_lost {
            return Ok(());
        }
        for (&number, tokens) in &requests.tokens {
            self.read(manager, number, tokens, &pending)?;
        }
        blocks(manager).try_for_each(|(at, pool)| self.check_cached(at, pool, prompts))
    }

    fn read(
        &self,
        manager: &CacheManager,
        number: i64,
        tokens: &[u32],
        pending: &BTreeMap<Place, Place>,
    ) -> Result<(), Failure> {
        let Ok(info) = manager.request(&id(number)) else { return Ok(()) };
        let Ok(table) = manager.block_table(&id(number)) else { return Ok(()) };
        if matches!(info.state, RequestState::Moving | RequestState::Releasing) {
            return Ok(());
        }
        let keeps = self.since.get(&number) != Some(&self.weights);
        for at in 0..info.computed_tokens {
            let Some(&block) = table.get(at / self.block_size) else {
                return Err(Failure::new("memory", format!("request {number} has no block for token {at}")));
            };
            if block.is_null() {
                continue; // trimmed
            }
            let place = Place { tier: info.tier, block };
            // While a copy is planned, the destination has no content yet, so check the source.
            let place = pending.get(&place).copied().unwrap_or(place);
            let found = self.cell(place, at % self.block_size);
            let expected = Kv::of(self.weights, &[], tokens.get(..=at).unwrap_or(tokens));
            let is_right = found.is_some_and(|kv| kv == expected || keeps && kv.prefix == expected.prefix);
            holds("memory of a request", is_right, || {
                format!("request {number} reads {found:?} at {place:?} for token {at}, not {expected:?}")
            })?;
        }
        Ok(())
    }

    fn check_cached(&self, at: Place, pool: &BlockPool, prompts: &Prompts) -> Result<(), Failure> {
        let Some(hash) = pool.hash_of(at.block).filter(|_| pool.is_computed(at.block)) else { return Ok(()) };
        let path = prompts.by_key(hash.key());
        let mut contents = path.iter().copied();
        let size = self.block_size;
        let tokens = requests::after(&[], path.len() * size, size, || contents.next().unwrap_or(0));
        for slot in 0..size.min(tokens.len()) {
            let end = tokens.len() - size + slot;
            let (found, expected) = (self.cell(at, slot), Kv::of(self.weights, &[], &tokens[..=end]));
            same("memory of a cached block", &(at, found), &(at, Some(expected)))?;
        }
        Ok(())
    }
}
