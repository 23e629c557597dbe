//! Tests capacity: whether a call succeeds depends only on the number of available blocks, and never on
//! the cached content.
//!
//! [`lone`] runs every prompt alone, in chunks, to find out whether it can ever be computed in a pool.
//! [`cached`] makes each call twice, with and without cached content. [`named`] and [`hybrid`] contain
//! one test per fault that was found. `KVPOOL_MODEL_OPERATIONS` sets the number of random cases
//! (default 100,000: one case per 50).
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first error"
)]

mod cached;
mod hybrid;
mod lone;
mod named;

use crate::numbers::Numbers;
use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool::{
    Admission, AdmitOptions, BlockId, CacheManager, Computed, Covered, ExtraKeys, Loaded, ManagerConfig,
    ManagerError, NewBlock, Part, RequestRef, RequestState, Rows, Until,
};

const FULL: GroupSpec = GroupSpec::new(GroupKind::Full, 4);
const STATE: GroupSpec = GroupSpec::new(GroupKind::State, 4);

const fn sliding(block_tokens: usize, window: usize) -> GroupSpec {
    GroupSpec::new(GroupKind::Sliding { window }, block_tokens)
}

fn cases() -> u64 {
    let operations = std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok());
    operations.unwrap_or(100_000) / 50
}

/// Draws one to three random groups of a model, in any order.
fn drawn(numbers: &mut Numbers) -> Vec<GroupSpec> {
    (0..=numbers.below(3)).map(|_| spec(numbers)).collect()
}

fn spec(numbers: &mut Numbers) -> GroupSpec {
    let kind = match numbers.below(11) {
        0 | 1 => GroupKind::Full,
        2..5 => GroupKind::Sliding { window: 1 + numbers.below(8) },
        5 | 6 => GroupKind::Chunked { chunk: 1 + numbers.below(6) },
        7..10 => GroupKind::State,
        _ => GroupKind::Cross,
    };
    let block_tokens = [2, 2, 2, 4, 8][numbers.below(5)];
    let keep = match numbers.below(10) {
        0..3 => Keep::All,
        3..6 => Keep::Every(2 + numbers.below(7)),
        6..9 => Keep::Junctions,
        _ => Keep::Nothing,
    };
    let margin = usize::from(numbers.below(5) == 4);
    // A group of full attention keeps all blocks or none. If another value was drawn for it, its hits
    // may end inside of blocks.
    let is_full = kind == GroupKind::Full && matches!(keep, Keep::Every(_) | Keep::Junctions);
    let is_sliding = matches!(kind, GroupKind::Sliding { .. });
    let sink_tokens = if is_sliding && numbers.below(3) == 2 { 1 + numbers.below(4) } else { 0 };
    let partial_hits = is_full && margin == 0;
    GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) }
}

/// Returns a manager with `usable` blocks and the null block.
fn manager(specs: &[GroupSpec], usable: usize) -> CacheManager {
    let groups = Groups::new(specs.to_vec(), None).unwrap();
    manager_of(groups, usable)
}

fn manager_of(groups: Groups, usable: usize) -> CacheManager {
    let (num_blocks, block_size) = (usable + 1, groups.unit());
    let config = ManagerConfig { num_blocks, block_size, groups: Some(groups), ..ManagerConfig::default() };
    CacheManager::new(config).unwrap()
}

fn chunk(tokens: usize) -> Part {
    Part { allocate_tokens: Some(tokens), ..Part::WHOLE }
}

fn admit(manager: &mut CacheManager, id: i64, tokens: &[u32], part: Part) -> Result<Admission, ManagerError> {
    let prompt = manager.prepare(tokens, ExtraKeys::default())?;
    let options = AdmitOptions { part, ..AdmitOptions::default() };
    manager.admit_with(id, prompt, &options).map_err(|refused| refused.error)
}

/// Appends tokens to a request, commits computed tokens and allocates slots for drafts, all in one
/// call.
fn step(
    manager: &mut CacheManager,
    id: i64,
    tokens: &[u32],
    computed: Option<usize>,
    lookahead: usize,
) -> Result<Vec<NewBlock>, ManagerError> {
    let (requests, offsets, computed) = ([RequestRef::Int(id)], [0, tokens.len()], computed.as_slice());
    let computed = if computed.is_empty() { Computed::Nothing } else { Computed::Counts(computed) };
    let covered = Covered::Lookahead(lookahead);
    let rows = Rows { requests: &requests, tokens, offsets: &offsets, computed, covered, ..Rows::default() };
    manager.append_ragged(&rows)
}

/// Commits a chunk of a prompt and allocates blocks for the next chunk, in one call.
fn next_chunk(
    manager: &mut CacheManager,
    id: i64,
    computed: usize,
    covered: usize,
) -> Result<(), ManagerError> {
    let (requests, computed, covered) = ([RequestRef::Int(id)], [computed], [covered]);
    let (computed, covered) = (Computed::Counts(&computed), Covered::Each(&covered));
    let rows = Rows { requests: &requests, offsets: &[0, 0], computed, covered, ..Rows::default() };
    manager.append_ragged(&rows).map(drop)
}

fn held(manager: &CacheManager) -> usize {
    manager.pool().num_usable() - manager.pool().num_available()
}

/// Number of blocks in a table, without null entries.
fn in_table(manager: &CacheManager, id: i64, group: usize) -> usize {
    manager.group_table(id, group).unwrap().iter().filter(|block| !block.is_null()).count()
}

fn cached(manager: &CacheManager, tokens: &[u32]) -> usize {
    let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
    manager.fit(&prompt, Part::WHOLE).unwrap().cached_tokens
}

fn all_blocks(manager: &CacheManager) -> Vec<BlockId> {
    (1..manager.pool().num_blocks() as u32).map(BlockId::new).collect()
}

/// Computes an admitted request to its end. As in engines, each chunk ends at the latest at the next
/// position at which a state is kept.
fn compute(manager: &mut CacheManager, id: i64, chunk: usize) -> Result<(), ManagerError> {
    loop {
        drop(manager.take_plan()?);
        let request = manager.request(id)?;
        if request.computed_tokens == request.tokens {
            return Ok(());
        }
        let checkpoint = manager.next_checkpoint(id)?.unwrap_or(usize::MAX);
        let end = request.tokens.min(request.computed_tokens.saturating_add(chunk)).min(checkpoint);
        manager.extend(id, end)?;
        drop(manager.take_plan()?);
        manager.commit(id, end)?;
    }
}

/// Admits, computes and releases a prompt, so that its blocks are cached.
fn serve(manager: &mut CacheManager, id: i64, tokens: &[u32], chunk: usize) -> Result<(), ManagerError> {
    admit(manager, id, tokens, self::chunk(0))?;
    let computed = compute(manager, id, chunk);
    manager.release(id, Until::Now)?;
    computed
}
