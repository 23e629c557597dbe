//! Records which blocks the callers of a pool hold after each call, and which bytes those blocks
//! contain.

use crate::model::reference::indices;
use kvpool_journal::{Answer, Keys, MatchRecord, PoolCall as C, Value};

use crate::Failure;
use crate::world::pool::{PoolWorld, Table, changes, pack, unpack};
use crate::world::prompts::Path;

/// Records the blocks that the caller holds after a call that succeeded, and the bytes in them.
///
/// # Errors
/// A block that a lookup returned contains the bytes of another prompt.
pub(crate) fn after(world: &mut PoolWorld, call: &C, answer: &Answer) -> Result<(), Failure> {
    let handed = indices(&answer.blocks);
    match call {
        C::Allocate { .. } => {
            world.written.lose(&handed);
            allocated(world, handed);
        }
        C::Match { chain, .. } => {
            let path = world.prompts.path(chain);
            world.written.expect(&handed, &path, 0)?;
            let found = handed.len();
            let table = world.hold(handed, Some(path.clone()), found);
            world.pending = Some((path, table));
        }
        C::Acquire { blocks } => {
            let blocks = unpack(blocks);
            let same = world.tables.iter().find(|table| table.blocks == blocks);
            let (prompt, registered) =
                same.map_or((None, blocks.len()), |table| (table.prompt.clone(), table.registered));
            world.hold(blocks, prompt, registered);
        }
        C::AcquireRegistered { .. } => drop(world.hold(handed.clone(), None, handed.len())),
        C::AcquireMatch { found } => {
            let (blocks, path) = (unpack(&found.blocks), world.prompts.path(&found.chain));
            world.written.expect(&blocks, &path, found.start)?;
            let (prompt, all) = ((found.start == 0).then_some(path), blocks.len());
            world.hold(blocks, prompt, all);
        }
        C::Release { blocks }
        | C::ReleaseTable { blocks }
        | C::ReleaseAfter { blocks, .. }
        | C::ReleaseUntil { blocks, .. }
        | C::Disown { blocks } => world.let_go(&unpack(blocks)),
        C::Register { blocks, chain, start } => {
            let Value::Number(registered) = answer.value else { return Ok(()) };
            let (blocks, path) = (unpack(blocks), world.prompts.path(chain));
            world.written.write(&blocks[..registered as usize], &path, *start);
            placed(world, &blocks, &path, *start, registered as usize);
        }
        C::RegisterLink { block, link } => {
            let (path, block) = (world.prompts.path_of_link(link), *block as usize);
            let now = handed.first().copied().unwrap_or(block);
            if now == block {
                world.written.write(&[block], &path, path.len() - 1);
            }
            let held = world.tables.iter_mut().find(|table| table.blocks.contains(&block));
            if let Some(table) = held
                && let Some(at) = table.blocks.iter().position(|&held| held == block)
            {
                table.blocks[at] = now;
                table.registered += usize::from(table.registered == at);
                table.prompt = table.prompt.take().filter(|own| own.starts_with(&path));
            }
        }
        C::RegisterTable { blocks, chain, start } | C::Adopt { blocks, chain, start } => {
            let (old, path) = (unpack(blocks), world.prompts.path(chain));
            let changes = changes(&answer.value);
            entered(world, matches!(call, C::Adopt { .. }), &old, &path, *start, &changes);
            for &(at, block) in &changes {
                world.written.expect(&[block], &path, start + at)?;
            }
        }
        C::LookupRefreshing { chain, start, .. } => {
            let path = world.prompts.path(chain);
            world.written.expect(&handed, &path, *start)?;
            let mut part = world.prompts.chain(&path[..(start + handed.len()).min(path.len())], chain.epoch);
            let keys: Vec<u64> = part.keys.unpack().skip(*start).collect();
            let fingerprints: Vec<u64> = part.fingerprints.unpack().skip(*start).collect();
            part.tokens = keys.len() * part.block_size;
            (part.keys, part.fingerprints) = (Keys::pack(&keys), Keys::pack(&fingerprints));
            world.found.truncate(7);
            world.found.insert(0, MatchRecord { blocks: pack(&handed), chain: part, start: *start });
        }
        C::CompleteStep { step } => world.step = world.step.max(*step),
        C::AdvanceTime { now } => world.now = *now,
        C::MarkComputed { .. }
        | C::MarkAccessed { .. }
        | C::Evict { .. }
        | C::Reset {}
        | C::BumpEpoch {}
        | C::Resize { .. }
        | C::Retain { .. }
        | C::AssignTenant { .. }
        | C::TakeEvents {}
        | C::Fence {}
        | C::EndFence { .. }
        | C::EvictNext { .. }
        | C::Signal { .. } => {}
    }
    Ok(())
}

/// Records allocated blocks. If the call before the allocation was a lookup, the blocks are for the
/// rest of the prompt that it looked up.
fn allocated(world: &mut PoolWorld, blocks: Vec<usize>) {
    let Some((path, table)) = world.pending.take() else {
        world.hold(blocks, None, 0);
        return;
    };
    match table {
        None => drop(world.hold(blocks, Some(path), 0)),
        Some(id) => match world.tables.iter_mut().find(|table| table.id == id && table.prompt.is_some()) {
            Some(table) => table.blocks.extend(blocks),
            None => drop(world.hold(blocks, None, 0)),
        },
    }
}

/// Records that the call has registered blocks of a table.
fn placed(world: &mut PoolWorld, blocks: &[usize], path: &Path, start: usize, registered: usize) {
    let of = |table: &&mut Table| {
        table.registered == start && table.blocks.get(start..).is_some_and(|rest| rest.starts_with(blocks))
    };
    let Some(table) = world.tables.iter_mut().find(of) else { return };
    table.registered += registered;
    if start == 0 {
        table.prompt = Some(path.clone());
    }
    if registered < blocks.len() {
        table.prompt = None; // the others are not registered because of a collision
        table.registered = table.blocks.len();
    }
}

/// Records that a call has registered blocks of a prompt, has marked them as computed, or has replaced
/// them by cached blocks with the same content.
fn entered(
    world: &mut PoolWorld,
    adopted: bool,
    old: &[usize],
    path: &Path,
    start: usize,
    changes: &[(usize, usize)],
) {
    let mut now = old.to_vec();
    changes.iter().for_each(|&(at, block)| now[at] = block);
    // A call stops at the first block whose key collides with that of another content. The blocks from
    // there on are unchanged, and may be registered with another content.
    let is_placed = |(at, block): &(usize, &usize)| {
        let content = world.model.content(path, start + at);
        world.model.pool().registered_content(**block) == Some(&content)
    };
    let kept: Vec<_> = now.iter().enumerate().take_while(is_placed).map(|(_, &block)| block).collect();
    for (at, &block) in kept.iter().enumerate() {
        if block == old[at] {
            world.written.write(&[block], path, start + at);
        }
    }
    if adopted {
        let prompt = (start == 0).then(|| path.clone());
        let all = kept.len();
        world.hold(kept, prompt, all);
        return;
    }
    let table =
        world.tables.iter_mut().find(|table| table.blocks.windows(old.len().max(1)).any(|part| part == old));
    if let Some(table) = table
        && let Some(at) = table.blocks.windows(old.len().max(1)).position(|part| part == old)
    {
        table.blocks[at..at + old.len()].copy_from_slice(&now);
        if at <= table.registered {
            table.registered = table.registered.max(at + old.len());
        }
        if at == 0 && start == 0 {
            table.prompt = Some(path.clone());
        }
    }
}
