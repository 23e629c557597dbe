//! Makes the arguments of a recorded call smaller, so that the shrinker can try fewer tokens, blocks
//! and requests.

use super::slot::plain;
use super::{Slot, Slots};
use crate::{
    AppendRecord, ChainRecord, EndedRecord, ForksRecord, Ids, Keys, PlanRecord, PromptRecord, Rows,
    TurnRecord, UntilRecord,
};

/// A call whose arguments can be made smaller.
pub trait Simpler: Sized {
    /// Returns the call with one argument made smaller. The possible changes are numbered, and `which`
    /// selects one of them. Returns `None` if `which` is not below their number.
    fn simpler(&self, which: usize) -> Option<Self>;
}

fn fewer_keys(keys: &Keys, most: usize) -> Keys {
    Keys::pack(&keys.unpack().take(most).collect::<Vec<_>>())
}

/// Returns the record of a chain's first `tokens` tokens.
fn with_tokens(chain: &ChainRecord, tokens: usize) -> ChainRecord {
    let blocks = tokens / chain.block_size.max(1);
    let (keys, fingerprints) = (fewer_keys(&chain.keys, blocks), fewer_keys(&chain.fingerprints, blocks));
    ChainRecord { tokens, keys, fingerprints, ..chain.clone() }
}

/// Returns the item with index `which` of the changes that are possible. If `which` is too large,
/// returns `None`, and subtracts the number of possible changes from `which`, so that the caller can
/// continue with the next argument.
fn take<T: Copy>(which: &mut usize, ways: &[T], is_possible: impl Fn(T) -> bool) -> Option<T> {
    let ways: Vec<T> = ways.iter().copied().filter(|&way| is_possible(way)).collect();
    let way = ways.get(*which).copied();
    *which = which.saturating_sub(ways.len());
    way
}

/// Like [`take`], for the change that removes an item from a list: returns the position of the item. An
/// item that is alone in its list is never removed.
fn one_of(items: usize, which: &mut usize) -> Option<usize> {
    take(which, &(0..items).collect::<Vec<_>>(), |_| items > 1)
}

fn one_less<T>(items: &mut Vec<T>, which: &mut usize) -> bool {
    one_of(items.len(), which).map(|at| items.remove(at)).is_some()
}

/// Applies to an argument the change with the number `which`. If the argument has fewer possible
/// changes, returns false, and subtracts their number from `which`.
fn make_smaller(slot: Slot<'_>, which: &mut usize) -> bool {
    let ids = |ids: &mut Ids, which: &mut usize, only_the_last: bool| {
        let mut all = ids.unpack();
        let first = if only_the_last { all.len().saturating_sub(1) } else { 0 };
        let ways: Vec<usize> = (first..all.len()).collect();
        let at = take(which, &ways, |_| all.len() > 1);
        at.map(|at| all.remove(at)).map(|_| *ids = Ids::pack(&all)).is_some()
    };
    let count = |count: &mut usize, which: &mut usize| {
        let way = take(which, &[*count / 2, count.saturating_sub(1)], |way| way < *count);
        way.map(|way| *count = way).is_some()
    };
    match slot {
        Slot::Count(number) | Slot::Length(number) => count(number, which),
        Slot::Held(list) | Slot::Table(list) | Slot::Named(list) => ids(list, which, false),
        // A position in these lists is a position in the chain, so only the last block can be removed.
        Slot::Part(list) | Slot::Free(list) => ids(list, which, true),
        Slot::Numbers(blocks) | Slot::Objects(blocks) | Slot::Freed(blocks) => one_less(blocks, which),
        Slot::Chain(chain) => {
            let mut tokens = chain.tokens;
            let is_shorter = count(&mut tokens, which);
            if is_shorter {
                *chain = with_tokens(chain, tokens);
            }
            is_shorter
        }
        Slot::Prompt(PromptRecord { chain, .. }) => {
            let way = take(which, &[chain.tokens / 2, chain.tokens.saturating_sub(1)], |way| {
                0 < way && way < chain.tokens
            });
            way.map(|tokens| *chain = with_tokens(chain, tokens)).is_some()
        }
        Slot::Append(AppendRecord { rows: Rows::Ids(ids), tokens, offsets, .. }) if offsets.is_empty() => {
            let is_fewer = one_less(ids, which);
            *tokens = (*tokens).min(ids.len());
            is_fewer
        }
        Slot::Turn(TurnRecord { lookahead, tokens, .. }) => {
            let is_shorter = take(which, &[0], |_| *lookahead > 0);
            is_shorter.map(|none| *lookahead = none).is_some() || count(tokens, which)
        }
        Slot::Requests(requests) => one_less(requests, which),
        Slot::Ending(EndedRecord { requests, signals }) => {
            let at = one_of(requests.len().min(signals.len()), which);
            at.map(|at| (requests.remove(at), signals.remove(at))).is_some()
        }
        Slot::Forks(ForksRecord { parents, children }) => {
            let at = one_of(parents.len().min(children.len()), which);
            at.map(|at| (parents.remove(at), children.remove(at))).is_some()
        }
        Slot::Reuse(until) => {
            let now = take(which, &[UntilRecord::Now], |now| *until != now);
            now.map(|now| *until = now).is_some()
        }
        Slot::Plan(PlanRecord { planned, .. }) => one_less(planned, which),
        plain!()
        | Slot::Ticket(_)
        | Slot::Until(_)
        | Slot::Block(_)
        | Slot::Link(_)
        | Slot::Found(_)
        | Slot::Id(_)
        | Slot::Object(_)
        | Slot::At(_)
        | Slot::Claimed(_)
        | Slot::Request(_)
        | Slot::Batch(_)
        | Slot::Append(_)
        | Slot::Swap(_) => false,
    }
}

impl<C: Slots> Simpler for C {
    fn simpler(&self, mut which: usize) -> Option<Self> {
        let mut call = self.clone();
        let is_smaller = call.slots().into_iter().any(|slot| make_smaller(slot, &mut which));
        is_smaller.then_some(call)
    }
}
