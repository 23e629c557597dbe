//! Smaller arguments of an operation: fewer tokens, blocks and requests.

use super::{Slot, Slots};
use crate::{ChainRecord, Ids, Keys, ManagerOperation, Rows, UntilRecord};

/// A call whose arguments can be made smaller.
pub trait Simpler: Sized {
    /// The operation with one argument made smaller: in the `which`-th way of all there are.
    fn simpler(&self, which: usize) -> Option<Self>;
}

/// Half of a count, and one less.
fn less(count: usize, which: usize) -> Option<usize> {
    match which {
        0 if count > 1 => Some(count / 2),
        0 | 1 if count > 0 => Some(count - 1),
        _ => None,
    }
}

fn fewer_keys(keys: &Keys, most: usize) -> Keys {
    Keys::pack(&keys.unpack().take(most).collect::<Vec<_>>())
}

fn shorter(chain: &ChainRecord, which: usize) -> Option<ChainRecord> {
    Some(with_tokens(chain, less(chain.tokens, which)?))
}

/// The start of a prompt.
fn with_tokens(chain: &ChainRecord, tokens: usize) -> ChainRecord {
    let blocks = tokens / chain.block_size.max(1);
    let (keys, fingerprints) = (fewer_keys(&chain.keys, blocks), fewer_keys(&chain.fingerprints, blocks));
    ChainRecord { tokens, keys, fingerprints, ..chain.clone() }
}

/// The list without one item.
fn without<T: Clone>(items: &[T], which: usize) -> Option<Vec<T>> {
    (items.len() > 1 && which < items.len()).then(|| [&items[..which], &items[which + 1..]].concat())
}

/// Does the `which`-th of those ways that are possible, or takes their number from `which`.
fn take<T: Copy>(which: &mut usize, ways: &[T], is_possible: impl Fn(T) -> bool) -> Option<T> {
    let ways: Vec<T> = ways.iter().copied().filter(|&way| is_possible(way)).collect();
    let way = ways.get(*which).copied();
    *which = which.saturating_sub(ways.len());
    way
}

/// Makes an argument smaller, in the `which`-th way; takes the number of its ways from `which` if there are
/// fewer.
fn make_smaller(slot: Slot<'_>, which: &mut usize) -> bool {
    let ids = |ids: &mut Ids, which: &mut usize, only_the_last: bool| {
        let all = ids.unpack();
        let first = if only_the_last { all.len().saturating_sub(1) } else { 0 };
        let ways: Vec<usize> = (first..all.len()).collect();
        let at = take(which, &ways, |_| all.len() > 1);
        at.and_then(|at| without(&all, at)).map(|fewer| *ids = Ids::pack(&fewer)).is_some()
    };
    let count = |count: &mut usize, which: &mut usize| {
        let way = take(which, &[*count / 2, count.saturating_sub(1)], |way| way < *count);
        way.map(|way| *count = way).is_some()
    };
    match slot {
        Slot::Count(blocks) => count(blocks, which),
        Slot::Held(list) | Slot::Table(list) | Slot::Named(list) => ids(list, which, false),
        // A block that has a place in a chain keeps it.
        Slot::Part(list) | Slot::Free(list) => ids(list, which, true),
        Slot::Numbers(blocks) | Slot::Objects(blocks) | Slot::Freed(blocks) => {
            let ways: Vec<usize> = (0..blocks.len()).collect();
            let at = take(which, &ways, |_| blocks.len() > 1);
            at.map(|at| blocks.remove(at)).is_some()
        }
        Slot::Chain(chain) => {
            let mut tokens = chain.tokens;
            let is_shorter = count(&mut tokens, which);
            if is_shorter {
                *chain = with_tokens(chain, tokens);
            }
            is_shorter
        }
        Slot::AtMost(_)
        | Slot::Start(_)
        | Slot::Size(_)
        | Slot::Step(_)
        | Slot::Ticket(_)
        | Slot::Until(_)
        | Slot::Seconds(_)
        | Slot::Tenant(_)
        | Slot::ForTenant(_)
        | Slot::Block(_)
        | Slot::Link(_)
        | Slot::Found(_)
        | Slot::Hint(_)
        | Slot::Ended(_)
        | Slot::Id(_)
        | Slot::Object(_)
        | Slot::At(_)
        | Slot::Hash(_)
        | Slot::Parent(_)
        | Slot::Tokens(_)
        | Slot::Depth(_)
        | Slot::Group(_)
        | Slot::References(_)
        | Slot::Flag(_)
        | Slot::QueueEnd(_)
        | Slot::Claimed(_)
        | Slot::Hashes(_) => false,
    }
}

impl<C: Slots> Simpler for C {
    fn simpler(&self, mut which: usize) -> Option<Self> {
        let mut call = self.clone();
        let is_smaller = call.slots().into_iter().any(|slot| make_smaller(slot, &mut which));
        is_smaller.then_some(call)
    }
}

impl Simpler for ManagerOperation {
    fn simpler(&self, which: usize) -> Option<Self> {
        Some(match self.clone() {
            Self::Admit { request, prompt, foreign, options } => {
                let prompt = shorter(&prompt, which).filter(|prompt| prompt.tokens > 0)?;
                Self::Admit { request, prompt, foreign, options }
            }
            // One token for each row.
            Self::Append {
                rows: Rows::Ids(ids),
                tokens,
                offsets,
                computed,
                covered,
                most_changes,
                filled,
                fingerprints,
            } if offsets.is_empty() => {
                let rows = Rows::Ids(without(&ids, which)?);
                let tokens = tokens.min(ids.len() - 1);
                Self::Append { rows, tokens, offsets, computed, covered, most_changes, filled, fingerprints }
            }
            Self::AppendTokens { request, tokens, lookahead, filled, fingerprints } => match which {
                0 if lookahead > 0 => {
                    Self::AppendTokens { request, tokens, lookahead: 0, filled, fingerprints }
                }
                _ => {
                    let tokens = less(tokens, which)?;
                    Self::AppendTokens { request, tokens, lookahead, filled, fingerprints }
                }
            },
            Self::Commit { request, computed_tokens } => {
                Self::Commit { request, computed_tokens: less(computed_tokens, which)? }
            }
            Self::ExtendEncoder { request, tokens } => {
                Self::ExtendEncoder { request, tokens: less(tokens, which)? }
            }
            Self::EvictNext { blocks } => Self::EvictNext { blocks: less(blocks, which)? },
            Self::BeginSwapOut { requests } => Self::BeginSwapOut { requests: without(&requests, which)? },
            Self::BeginSwapIn { requests } => Self::BeginSwapIn { requests: without(&requests, which)? },
            Self::Release { request, until } if which == 0 && until != UntilRecord::Now => {
                Self::Release { request, until: UntilRecord::Now }
            }
            Self::Preempt { request, until } if which == 0 && until != UntilRecord::Now => {
                Self::Preempt { request, until: UntilRecord::Now }
            }
            Self::CommitStep { planned, stale } => {
                Self::CommitStep { planned: without(&planned, which)?, stale }
            }
            _ => return None,
        })
    }
}
