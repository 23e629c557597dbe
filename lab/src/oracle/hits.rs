//! Checks the hits of a hybrid model. To find how many tokens of a prompt each KV-cache group can
//! serve, it tries every length. Also checks that no call fails because of the cache.

use std::collections::BTreeSet;

use kvpool::groups::GroupSpec;
use kvpool::hash::{ExtraKeys, HashCursor};
use kvpool::{AdmissionFit, AdmitOptions, BlockId, CacheManager, ManagerConfig, Part};
use kvpool_journal::{
    Answer, AppendRecord, ChainRecord, ComputedRecord, JournalHeader, ManagerCall as C, ManagerSubject, Name,
    Subject, Value,
};

use super::layers::{Load, reads};
use crate::Failure;
use crate::failure::{holds, same};
use crate::world::World;
use crate::world::manager::ManagerWorld;
use crate::world::prompts::Path;
use crate::world::requests::{id, named, rows, tokens};

/// A content: the key of a block, and its KV-cache group.
pub(crate) type Content = (u64, u16);

pub(crate) fn cached(manager: &CacheManager) -> BTreeSet<Content> {
    let pool = manager.pool();
    let blocks = (1..pool.num_blocks() as u32).map(BlockId::new).filter(|&block| pool.is_computed(block));
    blocks.filter_map(|block| pool.name_of(block).map(|name| (name.hash.key(), name.group))).collect()
}

/// Returns the content of a block of a prompt in a group, or `None` if the prompt does not fill the
/// block.
fn content(world: &ManagerWorld, path: &Path, group: usize, block: usize) -> Option<Content> {
    let units = (block + 1) * world.setting.groups[group].block_tokens / world.setting.block_size;
    let own = path.get(..units)?;
    Some((world.prompts.key(own, world.manager().pool().epoch()), group as u16))
}

/// Returns whether a group has all blocks that a hit of this length needs: those of every token that
/// the next token reads, and the blocks after the hit that the group's setting `margin` requires in
/// addition.
fn serves(world: &ManagerWorld, path: &Path, group: usize, length: usize, has: &BTreeSet<Content>) -> bool {
    let spec = &world.setting.groups[group];
    let size = spec.block_tokens;
    let read = (0..length).filter(|&token| reads(spec, length, token)).map(|token| token / size);
    let margin = length / size..length / size + spec.margin;
    let mut blocks = read.chain(margin);
    !spec.is_cached()
        || length == 0
        || blocks
            .all(|block| content(world, path, group, block).is_some_and(|content| has.contains(&content)))
}

const fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

/// Checks that the pool returns the hash chain of a prompt that [`HashCursor::append`] computes.
///
/// # Errors
/// The chains differ.
pub(crate) fn check_known(manager: &CacheManager, cursor: &HashCursor) -> Result<(), Failure> {
    let wrong = |error: kvpool::hash::HashError| Failure::new("matched by tokens", error.to_string());
    let mut known = HashCursor::new(cursor.hasher().clone(), cursor.extra().clone()).map_err(wrong)?;
    let tokens: Vec<_> = (0..).map_while(|at| cursor.token_at(at)).collect();
    manager.pool().append_known(&mut known, &tokens);
    same("chain matched by tokens", &known.chain(), &cursor.chain())?;
    same("tokens matched", &known.tail(), &cursor.tail())
}

/// Tries every length. Compares the results with the number of tokens that each group reports, and with
/// the hit that the admission reports.
///
/// # Errors
/// The first difference.
pub(crate) fn check(
    world: &ManagerWorld,
    cursor: &HashCursor,
    prompt: &ChainRecord,
    part: Part,
    fit: &AdmissionFit,
) -> Result<(), Failure> {
    let groups = &world.setting.groups;
    if groups.is_empty() {
        return Ok(());
    }
    let (manager, has, path) = (world.manager(), cached(world.manager()), world.prompts.path(prompt));
    let step = groups.iter().filter(|spec| spec.is_cached()).fold(1, |all, spec| lcm(all, spec.block_tokens));
    let limit = prompt.tokens.saturating_sub(1);
    let fits = |spec: &GroupSpec, length: usize| {
        length == 0
            || !spec.is_cached()
            || length / spec.block_tokens + spec.margin <= limit / spec.block_tokens
    };
    let longest = |group: usize| {
        let spec = &groups[group];
        (0..=limit)
            .step_by(step)
            .filter(|&length| fits(spec, length) && serves(world, &path, group, length, &has))
            .max()
            .unwrap_or(0)
    };
    let all = |length: &usize| {
        (0..groups.len())
            .all(|group| fits(&groups[group], *length) && serves(world, &path, group, *length, &has))
    };
    // If a hit may end inside a block, the part of the block has no digest of its own, so this function
    // cannot look it up.
    let is_exact = groups.iter().all(|spec| !spec.partial_hits);
    let reach = manager.fit_groups(cursor, part);
    let reach = reach.map_err(|error| Failure::new("reach of groups", error.to_string()))?;
    let reach: Vec<usize> = reach.iter().map(|group| group.reach_tokens).collect();
    let expected: Vec<usize> = (0..groups.len()).map(longest).collect();
    let caches = groups.iter().any(GroupSpec::is_cached) && !part.compute_all;
    let best = if !caches { 0 } else { (0..=limit).step_by(step).filter(all).max().unwrap_or(0) };
    if is_exact {
        same("reach of groups", &reach, &expected)?;
        holds("length of a hit", all(&fit.cached_tokens) && fit.cached_tokens <= best, || {
            format!("a hit of {}, at best {best}", fit.cached_tokens)
        })?;
    } else {
        let reaches = reach.iter().zip(&expected).all(|(found, least)| found >= least);
        holds("reach of groups", reaches, || format!("found {reach:?}, expected at least {expected:?}"))?;
    }
    let most = groups.iter().map(|spec| prompt.tokens.div_ceil(spec.block_tokens) + 2).sum::<usize>();
    let reserve = (manager.pool().num_blocks() as f64 * world.setting.share()) as usize;
    let has_room = manager.pool().num_available() >= most + reserve;
    holds("length of a hit where there is room", !has_room || fit.cached_tokens >= best, || {
        format!("a hit of {}, at best {best}", fit.cached_tokens)
    })
}

/// Checks that the tables of a request allow the state that it has after its load.
///
/// # Errors
/// The request is in another state.
pub(crate) fn check_load(world: &ManagerWorld, call: &C, load: Option<Load>) -> Result<(), Failure> {
    let (C::ExternalDone { request, .. }, Some(Load { state, .. })) = (call, load) else { return Ok(()) };
    same("state after a load", &world.info(named(request)).map(|info| info.state), &Some(state))
}

/// Checks that cached content never makes a call fail: a call that fails for lack of blocks must also
/// fail with an empty cache.
///
/// # Errors
/// The call succeeds with an empty cache.
pub(crate) fn check_refusal(world: &ManagerWorld, call: &C, answer: &Answer) -> Result<(), Failure> {
    let lacks = matches!(&answer.value, Value::Text(text) if text.starts_with("out of blocks"));
    if world.layers.is_none() || !lacks {
        return Ok(());
    }
    match call {
        C::Admit { prompt, options, .. } => {
            check_admission(world, &tokens(&prompt.chain, &world.prompts), options.options().part)
        }
        C::Resume { request, part, .. } => {
            let tokens = world.requests.tokens.get(&named(request)).cloned().unwrap_or_default();
            check_admission(world, &tokens, part.part())
        }
        C::Append { append } => {
            check_growth(world, call)?;
            check_two_calls(world, append)
        }
        C::AppendTokens { .. } | C::Extend { .. } | C::ExtendEncoder { .. } => check_growth(world, call),
        _ => Ok(()),
    }
}

/// Checks a refused admission: an empty pool with the same number of available blocks must refuse it,
/// too.
fn check_admission(world: &ManagerWorld, tokens: &[u32], part: Part) -> Result<(), Failure> {
    let available = world.manager().pool().num_available();
    if available == 0 || world.setting.watermark {
        return Ok(());
    }
    let wrong = |error: &dyn std::fmt::Display| Failure::new("an empty pool", error.to_string());
    let config = ManagerConfig { num_blocks: 1 + available, retention: None, ..world.setting.config() };
    let mut empty = CacheManager::new(config).map_err(|error| wrong(&error))?;
    let prompt = empty.prepare(tokens, ExtraKeys::default()).map_err(|error| wrong(&error))?;
    let options = AdmitOptions { part, ..AdmitOptions::default() };
    let admitted = empty.admit_with(0, prompt, &options);
    holds("a refused admission", admitted.is_err(), || {
        format!("an empty pool with {available} blocks admits {} tokens, {part:?}", tokens.len())
    })
}

/// Returns a new manager after the same calls as the world's manager.
fn again(world: &ManagerWorld) -> Result<ManagerSubject, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::new("replay", error.to_string());
    let header: JournalHeader = ManagerWorld::header(&world.setting)?;
    let mut subject = ManagerSubject::verified_in_full(&header).map_err(|error| wrong(&error))?;
    for call in &world.history {
        subject.run(call).map_err(|error| wrong(&error))?;
    }
    Ok(subject)
}

/// On average, one in this number of refused calls is repeated with an empty cache.
const REPEATED: usize = 4;

fn is_refused(subject: &mut ManagerSubject, call: &C) -> Result<bool, Failure> {
    let answer = subject.run(call).map_err(|error| Failure::new("replay", error.to_string()))?;
    Ok(answer.refused)
}

/// Checks a refused append: it must also be refused after all cached contents are dropped.
fn check_growth(world: &ManagerWorld, call: &C) -> Result<(), Failure> {
    if !world.calls.is_multiple_of(REPEATED) {
        return Ok(());
    }
    let mut subject = again(world)?;
    let blocks: Vec<_> = (1..subject.manager().pool().num_blocks() as u32).map(BlockId::new).collect();
    let dropped = subject.unrecorded(|manager| manager.drop_cached(&blocks));
    dropped.map_err(|error| Failure::new("replay", error.to_string()))?;
    let refused = is_refused(&mut subject, call)?;
    holds("a refused growth", refused, || "it fits with nothing cached".into())
}

/// Checks a refused append that also commits: it must also be refused if the commit is a separate call
/// before it.
fn check_two_calls(world: &ManagerWorld, append: &AppendRecord) -> Result<(), Failure> {
    let ComputedRecord::Counts(counts) = &append.computed else { return Ok(()) };
    let mut subject = again(world)?;
    for (number, &computed) in rows(&append.rows).iter().zip(counts) {
        let commit = C::Commit { request: Name::Id(id(*number)), computed_tokens: computed };
        if is_refused(&mut subject, &commit)? {
            return Ok(()); // accepted drafts, or a request that does not run
        }
    }
    let alone = AppendRecord { computed: ComputedRecord::Nothing, ..append.clone() };
    let refused = is_refused(&mut subject, &C::Append { append: alone })?;
    holds("a refused append", refused, || "it fits as a commit and an append".into())
}
