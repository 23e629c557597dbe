//! Reference implementations for sizing, written as simply as possible.

use std::collections::HashMap;

use kvpool_replay::{
    sizing::References,
    trace::{Trace, TraceRequest},
};

pub(crate) const BLOCK_TOKENS: usize = 4;
/// The arrival of the first request in ms. The others follow at intervals of 100 ms.
pub(crate) const FIRST_MS: f64 = 1250.0;

/// Returns a trace whose blocks form a forest. Each pair in `requests` is a block and a number of
/// tokens: the prompt is the path from a root to this block, without that number of tokens at its end.
pub(crate) fn forest(parents: &[usize], requests: &[(usize, u32)]) -> Trace {
    let requests = requests.iter().enumerate().map(|(index, &(leaf, cut))| {
        let mut path = Vec::new();
        let mut next = Some(leaf % parents.len());
        while let Some(block) = next {
            path.push(block as u64 * 7919 + 13);
            // The parent of a block is one of the blocks with a lower number, or it has none.
            next = (parents[block] % (block + 1)).checked_sub(1);
        }
        path.reverse();
        TraceRequest {
            timestamp_ms: FIRST_MS + index as f64 * 100.0,
            input_length: (path.len() * BLOCK_TOKENS) as u32 - cut,
            output_length: 1,
            hash_ids: path.into(),
        }
    });
    Trace::new(requests.collect(), BLOCK_TOKENS).unwrap()
}

/// A plain LRU pool: blocks that hit are pinned, as many of the missing blocks as possible are
/// allocated, and all blocks are released last block first. `stored` returns which blocks of a request
/// remain cached. Returns the hits of each request.
pub(crate) fn pool(
    references: &References,
    capacity: usize,
    stored: impl Fn(usize, u32) -> bool,
) -> Vec<u32> {
    let mut cached: Vec<u32> = Vec::new(); // oldest first
    let mut hits = Vec::new();
    for index in 0..references.requests() {
        let request = references.request(index);
        let hit = request.iter().take_while(|block| cached.contains(block)).count();
        let mut pinned = request[..hit].to_vec();
        cached.retain(|block| !pinned.contains(block));
        for &block in &request[hit..] {
            assert!(!cached.contains(&block), "a hole in a prefix");
            if pinned.len() == capacity {
                break;
            }
            if pinned.len() + cached.len() == capacity {
                cached.remove(0);
            }
            pinned.push(block);
        }
        cached.extend(pinned.into_iter().rev().filter(|&block| stored(index, block)));
        hits.push(hit as u32);
    }
    hits
}

pub(crate) fn tokens(references: &References, hits: &[u32]) -> u64 {
    let of = |(index, &blocks): (usize, &u32)| {
        (u64::from(blocks) * BLOCK_TOKENS as u64).min(u64::from(references.input_tokens(index)))
    };
    hits.iter().enumerate().map(of).sum()
}

pub(crate) fn sum(hits: &[u32]) -> u64 {
    hits.iter().map(|&blocks| u64::from(blocks)).sum()
}

/// Returns the maximum number of hits over all choices of at most `capacity` cached blocks after each
/// request. It tries every choice.
pub(crate) fn exhaustive_optimum(references: &References, capacity: u32) -> u32 {
    let mut best: HashMap<u32, u32> = HashMap::from([(0, 0)]);
    for index in 0..references.requests() {
        let request = references.request(index);
        let mut next: HashMap<u32, u32> = HashMap::new();
        for (&cached, &hits) in &best {
            let hit = request.iter().take_while(|&&block| cached & (1 << block) != 0).count() as u32;
            let all = request.iter().fold(cached, |all, &block| all | (1 << block));
            // Try every subset of the available blocks.
            let mut choice = all;
            loop {
                if choice.count_ones() <= capacity {
                    let entry = next.entry(choice).or_insert(0);
                    *entry = (*entry).max(hits + hit);
                }
                if choice == 0 {
                    break;
                }
                choice = (choice - 1) & all;
            }
        }
        best = next;
    }
    best.into_values().max().unwrap_or(0)
}

/// Returns whether some request after `index` uses `block`.
pub(crate) fn used_later(references: &References, index: usize, block: u32) -> bool {
    (index + 1..references.requests()).any(|later| references.request(later).contains(&block))
}
