//! Requests that are identified by small numbers, with their tokens.
//!
//! A record of tokens contains only the keys of full blocks. So every token here is 0, except the last
//! token of each block, which is the content of the block plus 1. A replay creates tokens in the same
//! way.

use std::collections::BTreeMap;
use std::ops::Range;

use kvpool::RequestId;
use kvpool_journal::{AppendRecord, ChainRecord, Filled, IdRecord, Keys, Name, Planned, Rows, TurnRecord};

use super::prompts::{Path, Prompts};

/// The range of numbers that drawn requests can have.
pub const NUMBERS: Range<i64> = 0..6;
/// Requests from this number on have strings as ids.
const FIRST_STRING: i64 = 4;

/// Returns the id of the request with this number.
#[must_use]
pub fn id(number: i64) -> RequestId {
    if number < FIRST_STRING { number.into() } else { RequestId::Str(format!("r{number}").into()) }
}

/// Returns the number of a request, or -1 for an id that is not drawn.
#[must_use]
pub fn number(id: &RequestId) -> i64 {
    match id {
        RequestId::Int(number) => *number,
        RequestId::Str(text) => text.strip_prefix('r').and_then(|n| n.parse().ok()).unwrap_or(-1),
        RequestId::Uint(_) => -1,
    }
}

/// Returns the number of the request that a record refers to, or -1.
#[must_use]
pub fn named(name: &Name) -> i64 {
    if let Name::Id(id) = name { number(id) } else { -1 }
}

/// Returns the numbers of the requests in the record of a batch.
#[must_use]
pub fn rows(rows: &Rows) -> Vec<i64> {
    let Rows::Ids(ids) = rows else { return Vec::new() };
    ids.iter().map(|IdRecord(id)| number(id)).collect()
}

/// Returns the record of a batch that consists of these requests.
#[must_use]
pub fn batch(numbers: &[i64]) -> Rows {
    Rows::Ids(numbers.iter().map(|&number| IdRecord(id(number))).collect())
}

/// Returns the content of each full block in a list of tokens.
#[must_use]
pub fn path(tokens: &[u32], block_size: usize) -> Path {
    tokens
        .chunks_exact(block_size)
        .filter_map(|block| block.last())
        .map(|last| last.saturating_sub(1))
        .collect()
}

/// Returns `count` tokens to append after given tokens. The blocks that they fill get the given
/// contents.
pub(crate) fn after(
    tokens: &[u32],
    count: usize,
    block_size: usize,
    mut contents: impl FnMut() -> u32,
) -> Vec<u32> {
    let positions = tokens.len()..tokens.len() + count;
    positions.map(|at| if (at + 1).is_multiple_of(block_size) { contents() + 1 } else { 0 }).collect()
}

/// The requests that a manager knows, with their tokens.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The tokens of each request, by the number of the request.
    pub tokens: BTreeMap<i64, Vec<u32>>,
}

impl Requests {
    /// Returns the record of the blocks that `rows` fill. A row is a request and its number of new
    /// tokens. A request that the manager does not know fills no block.
    pub(crate) fn filled(
        &self,
        rows: &[(i64, usize)],
        prompts: &mut Prompts,
        epoch: u64,
        mut contents: impl FnMut() -> u32,
    ) -> Filled {
        let (mut keys, mut fingerprints) = (Vec::new(), Vec::new());
        for &(number, count) in rows {
            let Some(known) = self.tokens.get(&number) else { continue };
            let new = after(known, count, prompts.block_size, &mut contents);
            let before = known.len() / prompts.block_size;
            let all = [known.as_slice(), &new].concat();
            let chain = prompts.chain(&path(&all, prompts.block_size), epoch);
            keys.extend(chain.keys.unpack().skip(before));
            fingerprints.extend(chain.fingerprints.unpack().skip(before));
        }
        Filled { keys: Keys::pack(&keys), fingerprints: Keys::pack(&fingerprints) }
    }

    /// Changes the record of filled blocks so that it fits the tokens of these requests. A call that
    /// was drawn in another run may have been recorded with the contents of other prompts.
    fn fit(&self, filled: &mut Filled, rows: &[(i64, usize)], prompts: &mut Prompts, epoch: u64) {
        let mut contents = contents(filled, prompts).into_iter();
        *filled = self.filled(rows, prompts, epoch, || contents.next().unwrap_or(0));
    }

    pub(crate) fn fit_append(&self, append: &mut AppendRecord, prompts: &mut Prompts, epoch: u64) {
        let rows = counted(append);
        self.fit(&mut append.filled, &rows, prompts, epoch);
    }

    pub(crate) fn fit_turn(&self, turn: &mut TurnRecord, prompts: &mut Prompts, epoch: u64) {
        let row = (named(&turn.request), turn.tokens);
        self.fit(&mut turn.filled, &[row], prompts, epoch);
    }

    pub(crate) fn fit_planned(&self, planned: &mut Planned, prompts: &mut Prompts, epoch: u64) {
        if let Planned::Append { request, tokens, filled, .. } = planned {
            let row = (named(request), *tokens);
            self.fit(filled, &[row], prompts, epoch);
        }
    }

    /// Returns the new tokens of a request. The contents of the record determine them.
    pub(crate) fn new_tokens(
        &self,
        number: i64,
        count: usize,
        block_size: usize,
        contents: &mut impl Iterator<Item = u32>,
    ) -> Vec<u32> {
        let known = self.tokens.get(&number).map_or(&[][..], Vec::as_slice);
        after(known, count, block_size, || contents.next().unwrap_or(0))
    }
}

/// Returns the requests of an append, with the number of tokens of each.
pub(crate) fn counted(append: &AppendRecord) -> Vec<(i64, usize)> {
    let count = |row| append.ends(row).end.min(append.tokens).saturating_sub(append.ends(row).start);
    rows(&append.rows).into_iter().enumerate().map(|(row, number)| (number, count(row))).collect()
}

/// Returns the contents of the blocks in a record of filled blocks.
pub(crate) fn contents(filled: &Filled, prompts: &Prompts) -> Vec<u32> {
    filled.keys.unpack().map(|key| prompts.by_key(key).last().copied().unwrap_or(0)).collect()
}

/// Returns the tokens of the prompt that a recorded chain belongs to.
#[must_use]
pub fn tokens(chain: &ChainRecord, prompts: &Prompts) -> Vec<u32> {
    let mut contents = prompts.path(chain).into_iter();
    after(&[], chain.tokens, prompts.block_size, || contents.next().unwrap_or(0))
}
