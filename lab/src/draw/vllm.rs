//! Draws the arguments of the calls of vLLM's pool, by their kinds.

use kvpool::retention::{Retention, Ttl};
use kvpool_journal::calls::Slot;
use kvpool_vllm::Key;

use super::{Weights, pool};
use crate::bytes::Bytes;
use crate::world::vllm::{ByHand, Table, VllmWorld};
use crate::world::vllm_keys::{GROUPS, PROMPT_GROUPS, PROMPTS};

const BLOCK_SIZE: usize = 4;
/// A block size so large that numbers of tokens fit into 32 bits but not into 31.
const LARGE: usize = 1 << 29;
/// Numbers of tokens: unknown, small, and around the largest number that the pool records.
const TOKENS: [Option<u32>; 8] =
    [None, Some(4), Some(8), Some(12), Some(3), Some((1 << 31) - 2), Some((1 << 31) - 1), Some(u32::MAX)];
/// Reference counts that a caller writes directly. Some are plausible, and some are not.
const COUNTS: [i32; 8] = [0, 1, 2, 3, -1, 65, 66, -70];

const USUAL: &[(&str, u8)] = &[
    ("allocate", 16),
    ("touch", 14),
    ("free", 20),
    ("unpin", 3),
    ("cache_full", 24),
    ("insert_hash", 12),
    ("reset", 2),
    ("retain", 4),
    ("assign_tenant", 2),
    ("advance_time", 2),
    ("signal", 2),
    ("chain_group", 1),
    ("clear_index", 1),
    ("set_ref_count", 2),
];
const NO_QUEUE: &[(&str, u8)] = &[
    ("claim", 0),
    ("set_ref_count", 0),
    ("pop_from_queue", 0),
    ("remove_from_queue", 0),
    ("push_to_queue", 0),
];
const NO_HASHES: &[(&str, u8)] = &[
    ("insert_in_index", 0),
    ("remove_from_index", 0),
    ("clear_index", 0),
    ("set_hash", 0),
    ("reset_hash", 0),
];
/// How often each call is drawn in a run in which no KV-cache group is declared to be chained (each of
/// its blocks depends on the one before it). In most runs, one group is chained.
const UNCHAINED: &[(&str, u8)] = &[("chain_group", 16)];

/// Returns how often each call is drawn. Some of them write a pool's data directly, as vLLM's tests do;
/// the settings determine which of these calls are drawn.
pub(crate) const fn weights(by_hand: ByHand, is_chained: bool) -> Weights {
    match (by_hand, is_chained) {
        (ByHand::Nothing, false) => &[UNCHAINED, NO_HASHES, NO_QUEUE, USUAL],
        (ByHand::Nothing, true) => &[NO_HASHES, NO_QUEUE, USUAL],
        (ByHand::Hashes, false) => &[UNCHAINED, NO_QUEUE, USUAL],
        (ByHand::Hashes, true) => &[NO_QUEUE, USUAL],
        (ByHand::All, false) => &[UNCHAINED, USUAL],
        (ByHand::All, true) => &[USUAL],
    }
}

/// Data that the arguments of a call share while the call is drawn, such as the key.
#[derive(Debug, Default)]
pub struct Draft {
    /// The blocks that this call caches, with the key of each.
    part: Option<(Vec<u32>, Vec<Option<Key>>)>,
    /// The number of blocks for which keys must be drawn.
    blocks: usize,
    /// The partly filled block that this call caches.
    half: Option<Half>,
    key: Option<Key>,
    /// Whether a block was already drawn for an earlier argument of this call.
    has_id: bool,
}

#[derive(Clone, Copy, Debug)]
struct Half {
    block: u32,
    tokens: u32,
    depth: u32,
    parent: Option<Key>,
}

fn id(bytes: &mut Bytes<'_>, world: &VllmWorld) -> u32 {
    bytes.below(world.setting.num_blocks) as u32
}

/// Draws a key, mostly one of only a few, so that several blocks have the same key.
fn key(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Option<Key> {
    let keys = if bytes.one_in(3) { world.keys.all() } else { world.keys.plain() };
    bytes.pick(keys).copied()
}

/// Draws one of the keys that the pool's index contains.
fn leading(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Option<Key> {
    let leading: Vec<Key> = world.model.leading().copied().collect();
    bytes.pick(&leading).copied()
}

fn few(bytes: &mut Bytes<'_>, blocks: &[u32]) -> Vec<u32> {
    let (from, len) = (bytes.below(blocks.len()), 1 + bytes.below(3));
    blocks.iter().copied().skip(from).take(len).collect()
}

/// Draws a table of which some blocks are not cached yet.
fn uncached<'a>(bytes: &mut Bytes<'_>, world: &'a VllmWorld) -> Option<&'a Table> {
    let is_new = |table: &&Table| table.cached < table.blocks.len().min(PROMPTS[table.prompt].len());
    let tables: Vec<&Table> = world.tables.iter().filter(is_new).collect();
    bytes.pick(&tables).copied()
}

/// Returns the next blocks of a table to be cached, with their keys. The key is `None` for a block that
/// the call has to skip.
fn part(bytes: &mut Bytes<'_>, world: &VllmWorld, table: &Table) -> (Vec<u32>, Vec<Option<Key>>) {
    let prompt = &PROMPTS[table.prompt];
    let end = table.blocks.len().min(prompt.len()).min(table.cached + 1 + bytes.below(4));
    let has_room = |at: usize, block: u32| {
        let hash = world.model.blocks.get(block as usize).and_then(|block| block.hash);
        hash.is_none_or(|(_, tokens)| tokens.is_some_and(|tokens| (tokens as usize) < (at + 1) * BLOCK_SIZE))
    };
    let one = |at: usize| {
        let block = table.blocks[at];
        let is_cached = block != 0 && has_room(at, block) && !bytes.one_in(8);
        (block, world.keys.full(&prompt[..=at], table.group).filter(|_| is_cached))
    };
    (table.cached..end).map(one).unzip()
}

fn half(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Option<(Option<Key>, Half)> {
    let table = uncached(bytes, world)?;
    let (prompt, at) = (&PROMPTS[table.prompt][..table.cached], table.cached);
    let parent = world.keys.full(prompt, table.group).filter(|_| at > 0);
    let tokens = (at * BLOCK_SIZE + BLOCK_SIZE / 2) as u32;
    let half = Half { block: table.blocks[at], tokens, depth: at as u32, parent };
    Some((world.keys.half(prompt, table.group), half))
}

/// Draws blocks: the blocks of a hit, held blocks, held blocks without a hash, blocks that are in no
/// list, or any blocks.
fn objects(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Vec<u32> {
    let model = &world.model;
    match bytes.below(18) {
        0..6 => {
            let mut hit = world.hit(bytes.below(PROMPTS.len()), PROMPT_GROUPS[bytes.below(2)]);
            hit.truncate(1 + bytes.below(4));
            hit
        }
        6..10 => few(bytes, &model.held()),
        10..13 => few(bytes, &model.blocks_that(|_, block| block.refs > 0 && block.hash.is_none())),
        13..16 => few(bytes, &model.blocks_that(|id, block| block.refs == 0 && !model.queue.contains(&id))),
        _ => (0..bytes.below(4)).map(|_| id(bytes, world)).collect(),
    }
}

/// Draws blocks to release: a whole table from its end, the start of a table, or some references.
fn freed(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Vec<u32> {
    let Some(table) = bytes.pick(&world.tables) else { return few(bytes, &world.model.held()) };
    match bytes.below(8) {
        0..5 => table.blocks.iter().rev().copied().collect(),
        5 => table.blocks.clone(),
        6 => table.blocks[..table.cached / 2].iter().rev().copied().collect(),
        _ => few(bytes, &world.model.held()),
    }
}

fn numbers(bytes: &mut Bytes<'_>, world: &VllmWorld) -> Vec<u32> {
    let hashed = world.model.blocks_that(|_, block| block.hash.is_some());
    if bytes.one_in(2) && !hashed.is_empty() {
        return few(bytes, &hashed);
    }
    (0..1 + bytes.below(3)).map(|_| id(bytes, world)).collect()
}

/// Draws one block: the partly filled block that this call caches, a block that has the drawn key, or
/// any block. If a call takes two blocks, the first has a hash and the second has none.
fn block(bytes: &mut Bytes<'_>, world: &VllmWorld, draft: &mut Draft) -> u32 {
    if let Some(half) = draft.half {
        return half.block;
    }
    let is_first = !std::mem::replace(&mut draft.has_id, true);
    let model = &world.model;
    let blocks = match draft.key {
        Some(key) if bytes.one_in(2) => model.entry(&key).copies.clone(),
        Some(_) => model.blocks_that(|_, block| block.refs > 0 && block.hash.is_none()),
        None => model.blocks_that(|_, block| block.hash.is_some() == is_first),
    };
    let wanted = bytes.pick(&blocks).copied().filter(|_| bytes.below(4) > 0);
    wanted.unwrap_or_else(|| id(bytes, world))
}

/// Draws a valid argument for the call. Returns false if none exists.
pub(crate) fn fill(slot: Slot<'_>, bytes: &mut Bytes<'_>, world: &mut VllmWorld, draft: &mut Draft) -> bool {
    let world = &*world;
    match slot {
        Slot::Count(n) => {
            *n = bytes.below(6);
            return *n <= world.model.num_free();
        }
        Slot::At(start) => {
            let table = uncached(bytes, world).filter(|_| bytes.below(4) > 0);
            if let Some(table) = table {
                (start.first, start.before) =
                    (table.cached, table.cached.checked_sub(1).map(|at| table.blocks[at]));
                draft.part = Some(part(bytes, world, table));
            } else {
                start.first = bytes.below(3);
                start.before = if bytes.one_in(4) { None } else { Some(id(bytes, world)) };
            }
        }
        Slot::Claimed(blocks) => {
            let part = draft.part.as_ref().map(|(blocks, _)| blocks.clone());
            *blocks = part.unwrap_or_else(|| objects(bytes, world));
            draft.blocks = blocks.len();
        }
        Slot::Hashes(keys) => {
            let some = |bytes: &mut Bytes<'_>| key(bytes, world).filter(|_| bytes.below(8) > 0);
            *keys = match draft.part.take() {
                Some((_, keys)) => keys,
                None => (0..draft.blocks).map(|_| some(bytes)).collect(),
            };
        }
        Slot::Size(n) => *n = if bytes.one_in(16) { LARGE } else { BLOCK_SIZE },
        Slot::Objects(blocks) => *blocks = objects(bytes, world),
        Slot::Freed(blocks) => *blocks = freed(bytes, world),
        Slot::Numbers(blocks) => *blocks = numbers(bytes, world),
        Slot::Hash(hash) => {
            let drawn = match bytes.below(8) {
                0..4 => half(bytes, world).and_then(|(key, half)| {
                    draft.half = Some(half);
                    key
                }),
                4 | 5 => leading(bytes, world),
                _ => None,
            };
            draft.key = drawn.or_else(|| key(bytes, world));
            let Some(key) = draft.key else { return false };
            *hash = key;
        }
        Slot::Id(n) | Slot::Object(n) => *n = block(bytes, world, draft),
        Slot::Tokens(tokens) => {
            let drawn = TOKENS[bytes.below(TOKENS.len())];
            *tokens = draft.half.map_or(drawn, |half| Some(half.tokens));
        }
        Slot::Depth(depth) => *depth = draft.half.map_or_else(|| bytes.below(4) as u32, |half| half.depth),
        Slot::Parent(parent) => {
            *parent = match draft.half {
                Some(half) => half.parent,
                None if bytes.one_in(4) => None,
                None => leading(bytes, world),
            };
        }
        Slot::Group(group) => *group = if bytes.one_in(8) { GROUPS[bytes.below(GROUPS.len())] } else { 0 },
        Slot::References(n) => *n = COUNTS[bytes.below(COUNTS.len())],
        Slot::Flag(is) | Slot::QueueEnd(is) => *is = bytes.one_in(2),
        Slot::Hint(record) => *record = pool::retention(bytes).into(),
        Slot::Tenant(n) => *n = bytes.below(3) as u32,
        Slot::Seconds(n) => {
            *n = world.now + bytes.below(3) as f64;
            return world.model.keeps_time();
        }
        Slot::Ended(record) => *record = pool::signal(bytes).into(),
        _ => return false, // an argument of another subject
    }
    true
}

/// Replaces an argument by one that may be invalid, so that the pool may refuse the call.
pub(crate) fn spoil(slot: Slot<'_>, bytes: &mut Bytes<'_>, world: &VllmWorld) {
    let ids = world.setting.num_blocks + 3;
    match slot {
        Slot::Claimed(blocks) | Slot::Objects(blocks) | Slot::Freed(blocks) | Slot::Numbers(blocks) => {
            *blocks = (0..bytes.below(5)).map(|_| bytes.below(ids) as u32).collect();
        }
        Slot::Id(n) | Slot::Object(n) => *n = bytes.below(ids) as u32,
        Slot::Count(n) => *n = bytes.below(ids),
        Slot::At(start) => {
            (start.first, start.before) = (bytes.below(3), Some(bytes.below(ids) as u32));
        }
        Slot::Size(n) => *n = [0, 1, LARGE][bytes.below(3)],
        Slot::Hash(hash) => {
            if let Some(key) = bytes.pick(world.keys.all()) {
                *hash = *key;
            }
        }
        Slot::Parent(parent) => *parent = bytes.pick(world.keys.all()).copied(),
        Slot::Tokens(tokens) => *tokens = TOKENS[bytes.below(TOKENS.len())],
        Slot::Depth(depth) => *depth = [9, u32::MAX][bytes.below(2)],
        Slot::Group(group) => *group = GROUPS[bytes.below(GROUPS.len())],
        Slot::Hint(record) => {
            let ttl = Some(Ttl::Idle([-1.0, f64::NAN][bytes.below(2)]));
            *record = Retention { ttl, ..record.retention() }.into();
        }
        Slot::Seconds(n) => *n = [*n - 3.0, f64::NAN, f64::INFINITY][bytes.below(3)],
        Slot::Tenant(n) => *n = bytes.below(9) as u32,
        _ => {} // each value is possible
    }
}
