//! [`Map`] is a manager that finds each block by a chained 64-bit hash and verifies nothing.

use std::collections::hash_map::Entry;

use super::{Batch, Manager, NumberMap};

/// A yardstick with chained 64-bit hashes in a hash map. It has a reference count for each block, and
/// an LRU list of the cached blocks without references.
///
/// If two different prefixes have the same hash, this manager treats them as the same content. The
/// second request then reads the KV of the first. So this yardstick shows the cost of a lookup without
/// verification. It is not a design to use in production.
#[derive(Debug)]
pub struct Map<const BLOCK_SIZE: usize> {
    blocks_by_hash: NumberMap<u64, u32>,
    /// One record per block. The record of block 0 is the start and the end of the LRU list.
    records: Vec<Record>,
    /// The free blocks, which have no content. The last block is allocated first.
    free: Vec<u32>,
    /// Number of cached blocks without references, which are in the LRU list.
    idle: usize,
    requests: NumberMap<i64, Request>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// The hash under which the map contains the block, or 0 if the block is not registered.
    hash: u64,
    references: u32,
    /// The previous and the next block in the LRU list.
    older: u32,
    newer: u32,
}

#[derive(Debug)]
struct Request {
    table: Vec<u32>,
    hashes: Vec<u64>,
    /// Number of leading blocks that are registered or came from a hit.
    registered: usize,
    /// The request's tokens after the last block that has a hash.
    tail: Vec<u32>,
}

/// The hash of the empty prefix, which is the parent of every first block.
const ROOT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Multiplies two numbers, and folds the 128 bits of the product into 64 bits.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Returns the hash of a block after a prefix. Each multiplication mixes in four tokens. The last
/// tokens of a block whose size is not a multiple of four are mixed in one by one.
#[inline]
fn next_hash(parent: u64, block: &[u32]) -> u64 {
    const KEY: u64 = 0x1656_67b1_9e37_79f9;
    let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (fours, rest) = block.as_chunks::<4>();
    let hash = fold(parent, 0xc2b2_ae3d_27d4_eb4f);
    let hash =
        fours.iter().fold(hash, |hash, &[a, b, c, d]| hash ^ fold(word(a, b) ^ KEY, word(c, d) ^ hash));
    let hash = rest.iter().fold(hash, |hash, &token| hash ^ fold(u64::from(token) ^ KEY, hash));
    hash.max(1) // 0 marks blocks that are not registered
}

impl<const BLOCK_SIZE: usize> Map<BLOCK_SIZE> {
    /// Creates a manager of `num_blocks` blocks, including the null block.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        let mut map = Self {
            blocks_by_hash: NumberMap::default(),
            records: vec![Record::default(); num_blocks],
            free: (1..num_blocks as u32).rev().collect(),
            idle: 0,
            requests: NumberMap::default(),
        };
        map.blocks_by_hash.reserve(num_blocks);
        map
    }

    /// Hashes the full blocks of a prompt.
    #[must_use]
    pub fn hash(prompt: &[u32]) -> Vec<u64> {
        let mut hash = ROOT;
        let next = |block: &[u32; BLOCK_SIZE]| {
            hash = next_hash(hash, block);
            hash
        };
        prompt.as_chunks().0.iter().map(next).collect()
    }

    /// Admits a request whose full blocks are already hashed. `tail` contains the tokens after them.
    /// See [`Manager::admit`].
    pub fn admit_hashed(&mut self, id: i64, hashes: Vec<u64>, tail: &[u32]) -> Option<usize> {
        let blocks = hashes.len() + usize::from(!tail.is_empty());
        let mut table = Vec::with_capacity(blocks);
        for hash in &hashes[..blocks.saturating_sub(1)] {
            let Some(&block) = self.blocks_by_hash.get(hash) else { break };
            if self.records[block as usize].references == 0 {
                self.unlink(block);
            }
            self.records[block as usize].references += 1;
            table.push(block);
        }
        let hit = table.len();
        if blocks - hit > self.available() {
            self.drop_references(&table);
            return None;
        }
        for _ in hit..blocks {
            table.extend(self.allocate());
        }
        let tail = tail.to_vec();
        self.requests.insert(id, Request { table, hashes, registered: hit, tail });
        Some(hit)
    }

    /// Takes a free block, or otherwise the least recently used cached block.
    fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| self.evict())?;
        self.records[block as usize].references = 1;
        Some(block)
    }

    fn evict(&mut self) -> Option<u32> {
        let block = self.records[0].newer;
        if block == 0 {
            return None;
        }
        self.unlink(block);
        let hash = std::mem::take(&mut self.records[block as usize].hash);
        self.blocks_by_hash.remove(&hash);
        Some(block)
    }

    fn unlink(&mut self, block: u32) {
        let Record { older, newer, .. } = self.records[block as usize];
        self.records[older as usize].newer = newer;
        self.records[newer as usize].older = older;
        self.idle -= 1;
    }

    /// Appends a block to the end of the LRU list, so that it is evicted last.
    fn link(&mut self, block: u32) {
        let newest = std::mem::replace(&mut self.records[0].older, block);
        self.records[newest as usize].newer = block;
        let record = &mut self.records[block as usize];
        (record.older, record.newer) = (newest, 0);
        self.idle += 1;
    }

    /// Removes one reference from each block, starting with the last block, so that a prefix is evicted
    /// from its end.
    fn drop_references(&mut self, table: &[u32]) {
        for &block in table.iter().rev() {
            let record = &mut self.records[block as usize];
            record.references -= 1;
            if record.references > 0 {
                continue;
            }
            if record.hash == 0 {
                self.free.push(block);
            } else {
                self.link(block);
            }
        }
    }

    /// Registers the first `blocks` full blocks of a request. If another block already has the content,
    /// the request keeps its duplicate unregistered.
    fn register(&mut self, id: i64, blocks: usize) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.tail.len() == BLOCK_SIZE && blocks > request.hashes.len() {
            let parent = request.hashes.last().copied().unwrap_or(ROOT);
            request.hashes.push(next_hash(parent, &request.tail));
            request.tail.clear();
        }
        let from = request.registered;
        request.registered = blocks.min(request.hashes.len()).max(from);
        let named = request.table.iter().zip(&request.hashes);
        for (&block, &hash) in named.take(request.registered).skip(from) {
            if let Entry::Vacant(vacant) = self.blocks_by_hash.entry(hash) {
                vacant.insert(block);
                self.records[block as usize].hash = hash;
            }
        }
    }

    fn append(&mut self, id: i64, token: u32) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let full = request.table.len() * BLOCK_SIZE == request.hashes.len() * BLOCK_SIZE + request.tail.len();
        let new_block = if full { self.allocate() } else { None };
        if full && new_block.is_none() {
            return false;
        }
        let Some(request) = self.requests.get_mut(&id) else { return false };
        if full || request.registered < request.hashes.len() {
            self.register(id, usize::MAX);
        }
        let Some(request) = self.requests.get_mut(&id) else { return false };
        request.table.extend(new_block);
        request.tail.push(token);
        true
    }
}

impl<const BLOCK_SIZE: usize> Manager for Map<BLOCK_SIZE> {
    fn admit(&mut self, id: i64, prompt: &[u32]) -> Option<usize> {
        self.admit_hashed(id, Self::hash(prompt), prompt.as_chunks::<BLOCK_SIZE>().1)
    }

    fn commit(&mut self, id: i64, computed: usize) {
        self.register(id, computed / BLOCK_SIZE);
    }

    fn decode(&mut self, batch: &Batch, tokens: &[u32]) -> bool {
        batch.ids.iter().zip(tokens).all(|(&id, &token)| self.append(id, token))
    }

    fn release(&mut self, id: i64) {
        if let Some(request) = self.requests.remove(&id) {
            self.drop_references(&request.table);
        }
    }

    fn table(&self, id: i64) -> Vec<u32> {
        self.requests.get(&id).map_or_else(Vec::new, |request| request.table.clone())
    }

    fn available(&self) -> usize {
        self.free.len() + self.idle
    }

    fn reset(&mut self) {
        while let Some(block) = self.evict() {
            self.free.push(block);
        }
    }
}
