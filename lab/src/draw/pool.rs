//! Draws the arguments of a pool's calls, by their kinds.

use kvpool::retention::{Keep, Priority, Retention, Then, Ttl};
use kvpool::{Finish, Signal};
use kvpool_journal::calls::Slot;
use kvpool_journal::{ChainRecord, Keys};

use super::Weights;
use crate::bytes::Bytes;
use crate::world::pool::{PoolWorld, Setting, Table, pack};
use crate::world::prompts::{Path, SALTED, TWIN};

/// Maximum number of blocks of a pool, including blocks that a resize adds.
const MOST_BLOCKS: usize = 15;
/// Maximum number of blocks of a drawn prompt.
const LONGEST: usize = 6;

const USUAL: &[(&str, u8)] = &[
    ("allocate", 16),
    ("match_and_acquire", 16),
    ("register", 20),
    ("mark_computed", 14),
    ("release_table", 14),
    ("release", 6),
    ("reset", 2),
    ("bump_epoch", 1),
    ("resize", 1),
    ("disown", 2),
    ("take_events", 1),
    ("drop_cached", 2),
    ("assign_tenant", 2),
    ("signal", 2),
    ("advance_time", 2),
    ("mark_accessed", 2),
];

/// How often the calls are drawn with which a caller can get into a special state: it holds a later
/// part of a prefix, but not the start of this prefix.
const BREAKING: &[(&str, u8)] = &[
    ("acquire", 0),
    ("release", 0),
    ("register_link", 0),
    ("acquire_registered", 0),
    ("drop_cached", 0),
    ("mark_accessed", 0),
    ("register_table", 0),
    ("disown", 0),
];

/// How often each call is drawn in a run in which the laboratory itself reads the events. The call
/// `take_events` is never drawn there, because it would take events that the laboratory has to check.
const LATE: &[(&str, u8)] = &[("take_events", 0)];

pub(crate) const fn weights(setting: &Setting) -> Weights {
    match (setting.whole, setting.looks > 1) {
        (false, false) => &[USUAL],
        (false, true) => &[LATE, USUAL],
        (true, false) => &[BREAKING, USUAL],
        (true, true) => &[LATE, BREAKING, USUAL],
    }
}

/// Data that the arguments of a call share while the call is drawn, such as the prompt.
#[derive(Debug, Default)]
pub struct Draft {
    /// The prompt that the call uses, and the position in it of the call's first block.
    prompt: Option<(Path, usize)>,
    /// Minimum number of blocks of the prompt that is drawn for the call.
    blocks: usize,
}

impl Draft {
    fn start(&self) -> Option<usize> {
        self.prompt.as_ref().map(|(_, start)| *start)
    }

    /// Returns the prompt to which the call's blocks belong. If they belong to none, draws a new one
    /// that is long enough.
    fn path(&mut self, bytes: &mut Bytes<'_>, world: &PoolWorld) -> Path {
        if let Some((path, _)) = &self.prompt {
            return path.clone();
        }
        let mut path = prompt(bytes, world);
        let start = if world.setting.whole || !bytes.one_in(4) { 0 } else { bytes.below(2) };
        while path.len() < start + self.blocks {
            path.push(content(bytes, world));
        }
        self.prompt = Some((path.clone(), start));
        path
    }
}

fn content(bytes: &mut Bytes<'_>, world: &PoolWorld) -> u32 {
    let content = bytes.below(3) as u32;
    if world.setting.collisions && bytes.one_in(6) { content + TWIN } else { content }
}

/// Draws a prompt of a few contents: a known prompt, a shortened or extended one, or a new one.
fn prompt(bytes: &mut Bytes<'_>, world: &PoolWorld) -> Path {
    let mut path = Path::new();
    let known = world.prompts.all();
    if known.len() > 0 && bytes.below(4) > 0 {
        let at = bytes.below(known.len());
        path = world.prompts.all().nth(at).cloned().unwrap_or_default();
    }
    for _ in 0..bytes.below(4) {
        path.push(content(bytes, world));
    }
    path.truncate(LONGEST);
    if path.is_empty() {
        path.push(content(bytes, world));
    }
    if world.prompts.are_hashed() && bytes.one_in(8) {
        path[0] = path[0] % SALTED + SALTED;
    }
    path
}

fn table(bytes: &mut Bytes<'_>, world: &PoolWorld, fits: impl Fn(&Table) -> bool) -> Option<Table> {
    let fitting: Vec<_> = world.tables.iter().filter(|table| fits(table)).collect();
    bytes.pick(&fitting).map(|&table| table.clone())
}

/// Returns the first blocks of a table that are not registered yet, and the position of the first of
/// them in the table.
fn part(bytes: &mut Bytes<'_>, world: &PoolWorld) -> Option<(Option<Path>, usize, Vec<usize>)> {
    let new = |table: &Table| table.registered < table.blocks.len();
    let Table { blocks, prompt, registered, .. } = table(bytes, world, new)?;
    if world.setting.whole {
        // Use all blocks of the table that are not registered yet, if the prompt is long enough for
        // them.
        let fits = prompt.as_ref().is_none_or(|path| path.len() >= blocks.len());
        return fits.then(|| (prompt, registered, blocks[registered..].to_vec()));
    }
    let start = if bytes.one_in(6) { bytes.below(registered + 1) } else { registered };
    let mut blocks = blocks[start..].to_vec();
    if bytes.one_in(4) {
        blocks.truncate(1 + bytes.below(blocks.len()));
    }
    if let Some(path) = &prompt {
        blocks.truncate(path.len().saturating_sub(start));
    }
    Some((prompt, start, blocks))
}

pub(super) fn signal(bytes: &mut Bytes<'_>) -> Signal {
    let finish = [Finish::Stop, Finish::ToolCalls, Finish::Length, Finish::Aborted, Finish::Unknown];
    let output_tokens = bytes.one_in(2).then(|| bytes.below(100) as u32);
    Signal { finish: finish[bytes.below(finish.len())], output_tokens }
}

pub(super) fn retention(bytes: &mut Bytes<'_>) -> Retention {
    let keep = match bytes.below(8) {
        0 | 1 => Keep::Demoted,
        2 | 3 => Keep::Pinned,
        other => Keep::Priority(Priority::new(12 * other as u8).unwrap_or(Priority::NORMAL)),
    };
    let seconds = bytes.below(4) as f64;
    let ttl = match bytes.below(4) {
        2 => Some(Ttl::Idle(seconds)),
        3 => Some(Ttl::Absolute(seconds)),
        _ => None,
    };
    Retention { keep, ttl, then: if bytes.one_in(2) { Then::Demote } else { Then::Normal } }
}

/// Draws a valid argument for the call. Returns false if none exists, for example because no block is
/// held.
pub(crate) fn fill(slot: Slot<'_>, bytes: &mut Bytes<'_>, world: &mut PoolWorld, draft: &mut Draft) -> bool {
    let whole = world.setting.whole;
    match slot {
        Slot::Count(n) => {
            let held = |id: &u64| world.tables.iter().find(|table| table.id == *id);
            let rest = world.pending.as_ref().map(|(path, table)| {
                let found = table.as_ref().and_then(held).map_or(0, |table| table.blocks.len());
                path.len().saturating_sub(found)
            });
            *n = rest.filter(|_| bytes.below(4) > 0).unwrap_or_else(|| bytes.below(5));
            return *n <= world.model.available();
        }
        Slot::AtMost(n) => *n = if bytes.below(4) > 0 { usize::MAX } else { bytes.below(5) },
        Slot::Start(n) => *n = draft.start().unwrap_or_else(|| if whole { 0 } else { bytes.below(3) }),
        Slot::Size(n) => {
            *n = world.pool().num_blocks() + bytes.below(3);
            return *n <= MOST_BLOCKS;
        }
        Slot::Step(n) => *n = world.step + bytes.below(3) as u64,
        Slot::Ticket(n) | Slot::Until(n) => {
            let open = world.model.open_tickets();
            *n = bytes.pick(&open).copied().unwrap_or(99);
            return !open.is_empty();
        }
        Slot::Seconds(n) => *n = world.now + bytes.below(3) as f64,
        Slot::Tenant(n) => *n = bytes.below(3) as u32,
        Slot::ForTenant(n) => *n = bytes.one_in(8).then_some(1),
        Slot::Block(n) => {
            let Some(table) = table(bytes, world, |table| table.registered < table.blocks.len()) else {
                return false;
            };
            let at = table.registered + bytes.below(table.blocks.len() - table.registered);
            *n = table.blocks[at] as u32;
            let fitting = table.prompt.filter(|path| path.len() > at && bytes.below(4) > 0);
            draft.prompt = fitting.map(|path| (path[..=at].to_vec(), at));
        }
        Slot::Held(ids) => {
            let Some(Table { blocks, .. }) = table(bytes, world, |_| true) else { return false };
            let (from, len) = (bytes.below(blocks.len()), 1 + bytes.below(3));
            let mut blocks: Vec<_> = blocks.into_iter().skip(from).take(len).collect();
            if bytes.one_in(10) {
                blocks.push(blocks[0]);
            }
            *ids = pack(&blocks);
        }
        Slot::Part(ids) => {
            let Some((path, start, blocks)) = part(bytes, world) else { return false };
            draft.blocks = blocks.len();
            draft.prompt = path.map(|path| (path, start));
            *ids = pack(&blocks);
        }
        Slot::Table(ids) => {
            let Some(Table { mut blocks, registered, .. }) = table(bytes, world, |_| true) else {
                return false;
            };
            if !whole && bytes.one_in(4) {
                blocks.truncate(registered.max(1));
            }
            *ids = pack(&blocks);
        }
        Slot::Named(ids) => {
            let all = world.pool().num_blocks() - 1;
            let mut blocks: Vec<_> = (0..1 + bytes.below(3)).map(|_| 1 + bytes.below(all)).collect();
            if bytes.one_in(2) {
                blocks.retain(|&block| world.model.is_registered(block));
            }
            *ids = pack(&blocks);
        }
        Slot::Free(ids) => {
            let free: Vec<_> = world.model.free().iter().rev().take(1 + bytes.below(3)).copied().collect();
            draft.blocks = free.len();
            *ids = pack(&free);
            return !free.is_empty();
        }
        Slot::Chain(chain) => {
            let path = draft.path(bytes, world);
            *chain = world.prompts.chain(&path, world.model.epoch());
        }
        Slot::Link(link) => {
            let path = draft.path(bytes, world);
            *link = world.prompts.link(&path, world.model.epoch());
        }
        Slot::Found(found) => match bytes.pick(&world.found) {
            Some(one) => found.clone_from(one),
            None => return false,
        },
        Slot::Hint(record) => *record = retention(bytes).into(),
        Slot::Ended(record) => *record = signal(bytes).into(),
        _ => return false, // an argument of another subject
    }
    true
}

/// Changes a chain so that it does not fit the pool's settings.
fn spoil_chain(chain: &mut ChainRecord, bytes: &mut Bytes<'_>) {
    match bytes.below(8) {
        0..4 => chain.epoch += 1,
        4 => chain.block_size += 1,
        5 => chain.algorithm = bytes.below(7) as u8,
        6 => chain.has_tokens = false,
        _ => chain.fingerprints = Keys::default(),
    }
}

/// Replaces an argument by one that may be invalid, so that the pool may refuse the call.
pub(crate) fn spoil(slot: Slot<'_>, bytes: &mut Bytes<'_>, world: &PoolWorld) {
    let num_blocks = world.pool().num_blocks();
    match slot {
        Slot::Held(ids) | Slot::Part(ids) | Slot::Table(ids) | Slot::Named(ids) | Slot::Free(ids) => {
            let blocks: Vec<_> = (0..bytes.below(5)).map(|_| bytes.below(num_blocks + 2)).collect();
            *ids = pack(&blocks);
        }
        Slot::Block(n) => *n = bytes.below(num_blocks + 2) as u32,
        Slot::Count(n) | Slot::Start(n) => *n = bytes.below(num_blocks + 3),
        Slot::Size(n) => *n = bytes.below(num_blocks + 2).min(MOST_BLOCKS),
        Slot::Step(n) => *n = bytes.below(world.step as usize + 2) as u64,
        Slot::Ticket(n) | Slot::Until(n) => *n = bytes.below(6) as u64,
        Slot::Seconds(n) => *n = [*n - 3.0, f64::NAN, f64::INFINITY][bytes.below(3)],
        Slot::Chain(chain) => spoil_chain(chain, bytes),
        Slot::Link(link) => match bytes.below(4) {
            0 | 1 => link.epoch += 1,
            2 => link.block_size += 1,
            _ => link.fingerprint = None,
        },
        Slot::Found(found) => match bytes.below(4) {
            0 => found.chain.epoch += 1,
            1 => found.chain.algorithm = bytes.below(7) as u8,
            2 => found.chain.block_size += 1,
            _ => {
                let len = found.blocks.len();
                found.blocks = pack(&(0..len).map(|_| 1 + bytes.below(num_blocks - 1)).collect::<Vec<_>>());
            }
        },
        Slot::Hint(record) => {
            let ttl = Some(Ttl::Idle([-1.0, f64::NAN][bytes.below(2)]));
            *record = Retention { ttl, ..record.retention() }.into();
        }
        Slot::AtMost(n) => *n = bytes.below(3),
        Slot::Tenant(n) => *n = bytes.below(9) as u32,
        Slot::ForTenant(n) => *n = Some(bytes.below(9) as u32),
        Slot::Ended(_) => {}
        _ => {} // an argument of another subject
    }
}
