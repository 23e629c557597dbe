//! Computes the expected answers of a pool's calls that need more than one line of code.

use kvpool::retention::{Keep, Retention, Ttl};
use kvpool_journal::{MatchRecord, Value};

use super::pool::{Expected, Model, STALE, known, list, number, pairs};
use crate::world::pool::unpack;
use crate::world::prompts::{Path, Prompts, named};

/// Returns whether a time to live, if any, is a valid number of seconds.
fn is_time(ttl: Option<Ttl>) -> bool {
    ttl.is_none_or(|(Ttl::Idle(seconds) | Ttl::Absolute(seconds))| (0.0..f64::INFINITY).contains(&seconds))
}

impl Model {
    pub(super) fn retain(&mut self, blocks: &[usize], hint: Retention) -> Expected {
        if !self.setting.retention || !self.are_blocks(blocks) {
            return Expected::Refused;
        }
        let mut report = [0; 3];
        for &block in blocks {
            let (references, fences) = self.pool.references(block);
            let ignored = hint.keep == Keep::Demoted && references - fences > 1;
            let no_clock = hint.ttl.is_some() && self.retained.now().is_none();
            if !ignored && (!is_time(hint.ttl) || no_clock && self.pool.is_registered(block)) {
                return Expected::Refused;
            }
            let idle = self.pool.evictable.contains(&block);
            let one = if ignored { [0, 0, 1] } else { self.retained.retain(block, hint, idle) };
            (0..3).for_each(|at| report[at] += one[at]);
        }
        Expected::Is(list(&report))
    }

    pub(super) fn allocate(&mut self, blocks: usize) -> Expected {
        let free = self.pool.free.len();
        let allocated = self.pool.allocate(blocks);
        if allocated.is_some() {
            self.counted.allocated += blocks as u64;
            self.counted.evicted += blocks.saturating_sub(free) as u64;
        }
        known(allocated.map(|blocks| list(&blocks)))
    }

    pub(super) fn look_up(&mut self, path: &[u32], most: usize) -> Expected {
        let asked = path.len().min(most);
        let found = self.pool.lookup(b"", path, most, false);
        let stopped = found.len() < asked && self.collides(&self.content(path, found.len()));
        self.counted.hits += found.len() as u64;
        self.counted.misses += (asked - found.len()) as u64;
        self.counted.collisions += u64::from(stopped);
        self.hits = self.pool.lookup(b"", path, most, true);
        Expected::Is(list(&self.hits))
    }

    pub(super) fn register(
        &mut self,
        blocks: &[usize],
        path: &[u32],
        start: usize,
        algorithm: u8,
    ) -> Expected {
        let held = |&block: &usize| self.pool.references(block).0 > 0;
        if start + blocks.len() > path.len() || !blocks.iter().all(held) {
            return Expected::Refused;
        }
        let collision = self.first_collision(path, start, blocks.len());
        let end = collision.unwrap_or(blocks.len());
        let stopper = collision.map(|at| blocks[at]);
        if stopper.is_some_and(|block| self.pool.is_registered(block) || blocks[..end].contains(&block)) {
            return Expected::Refused;
        }
        if !self.pool.register(&blocks[..end], b"", path, start) {
            return Expected::Refused;
        }
        self.counted.collisions += u64::from(collision.is_some());
        self.algorithm = algorithm;
        Expected::Is(number(end))
    }

    pub(super) fn register_link(&mut self, block: usize, path: &Path, algorithm: u8) -> Expected {
        let last = path.len().saturating_sub(1);
        if self.collides(&self.content(path, last)) {
            let (references, fences) = self.pool.references(block);
            if references == fences || self.pool.is_registered(block) {
                return Expected::Refused;
            }
            self.counted.misses += 1;
            self.counted.collisions += 1;
            return Expected::Is(number(block));
        }
        let was_registered = !self.copies(path).is_empty();
        let Some(held) = self.pool.promote(block, b"", path, last) else { return Expected::Refused };
        self.hits.extend(was_registered.then_some(held));
        self.counted.hits += u64::from(was_registered);
        self.counted.misses += u64::from(!was_registered);
        self.algorithm = algorithm;
        Expected::Is(number(held))
    }

    /// Returns the blocks with the content of a prompt's last block, in the order in which lookups
    /// return them.
    pub(super) fn copies(&self, path: &[u32]) -> Vec<usize> {
        let content = self.content(path, path.len() - 1);
        let holds = |&block: &usize| self.pool.registered_content(block) == Some(&content);
        let first = (1..self.pool.num_blocks()).find(holds);
        first.map_or_else(Vec::new, |block| self.pool.copies_of(block).to_vec())
    }

    pub(super) fn acquire_registered(&mut self, path: &Path) -> Expected {
        let Some(&block) = self.copies(path).first() else {
            self.counted.misses += 1;
            self.counted.collisions += u64::from(self.collides(&self.content(path, path.len() - 1)));
            return Expected::Is(Value::Nothing);
        };
        self.counted.hits += 1;
        self.hits.push(block);
        // A registered block without references is always computed, so a lookup can take it.
        if !self.pool.acquire(&[block]) {
            let content = self.content(path, path.len() - 1);
            self.pool.acquire_match(&[block], &[content]);
        }
        Expected::Is(number(block))
    }

    pub(super) fn drop_cached(&mut self, blocks: &[usize]) -> Expected {
        if !self.are_blocks(blocks) {
            return Expected::Refused;
        }
        let before = self.pool.registered().0;
        self.pool.drop_cached(blocks);
        Expected::Is(number(before - self.pool.registered().0))
    }

    pub(super) fn acquire_match(&mut self, found: &MatchRecord, prompts: &Prompts) -> Expected {
        let MatchRecord { blocks, chain, start } = found;
        let blocks = unpack(blocks);
        let foreign = chain.epoch != self.epoch
            || self.pool.registered().0 == 0
            || chain.algorithm != self.algorithm
            || chain.block_size != self.setting.block_size;
        if foreign && !blocks.is_empty() {
            return STALE;
        }
        let path = prompts.path(chain);
        let contents: Vec<_> = (0..blocks.len()).map(|at| self.content(&path, start + at)).collect();
        let fine = self.pool.acquire_match(&blocks, &contents);
        if !fine {
            return STALE;
        }
        self.counted.hits += blocks.len() as u64;
        self.hits = blocks;
        Expected::Is(Value::Nothing)
    }

    pub(super) fn register_table(
        &mut self,
        blocks: &[usize],
        path: &[u32],
        start: usize,
        algorithm: u8,
    ) -> Expected {
        if start + blocks.len() > path.len() {
            return Expected::Refused;
        }
        for (at, &block) in blocks.iter().enumerate() {
            let (references, fences) = self.pool.references(block);
            let place = self.content(path, start + at);
            let fits = match self.pool.registered_content(block) {
                None => !blocks[..at].contains(&block),
                Some((_, _, own)) => named(own) == named(&place.2),
            };
            if references <= fences || !fits {
                return Expected::Refused;
            }
        }
        let collision = self.first_collision(path, start, blocks.len());
        let kept = &blocks[..collision.unwrap_or(blocks.len())];
        let Some(changes) = self.pool.register_table(kept, b"", path, start) else {
            return Expected::Refused;
        };
        self.hits.extend(changes.iter().map(|&(_, cached)| cached));
        self.entered(collision.is_some(), algorithm);
        Expected::Is(pairs(&changes))
    }

    pub(super) fn adopt(&mut self, blocks: &[usize], path: &[u32], start: usize, algorithm: u8) -> Expected {
        let free =
            |(at, block): (usize, &usize)| self.pool.free.contains(block) && !blocks[..at].contains(block);
        if start + blocks.len() > path.len() || !blocks.iter().enumerate().all(free) {
            return Expected::Refused;
        }
        let collision = self.first_collision(path, start, blocks.len());
        let kept = &blocks[..collision.unwrap_or(blocks.len())];
        let Some(changes) = self.pool.adopt(kept, b"", path, start) else { return Expected::Refused };
        self.hits.extend(changes.iter().map(|&(_, cached)| cached));
        self.entered(collision.is_some(), algorithm);
        Expected::Is(pairs(&changes))
    }

    pub(super) fn entered(&mut self, collided: bool, algorithm: u8) {
        self.counted.collisions += u64::from(collided);
        if self.pool.registered().0 > 0 {
            self.algorithm = algorithm;
        }
    }
}
