//! Smaller arguments of an operation: fewer tokens, blocks and requests.

use crate::{ChainRecord, Ids, Keys, ManagerOperation, PoolOperation, Rows, UntilRecord, VllmOperation};

/// What can be made smaller.
pub(crate) trait Simpler: Sized {
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
    let tokens = less(chain.tokens, which)?;
    let blocks = tokens / chain.block_size.max(1);
    let (keys, fingerprints) = (fewer_keys(&chain.keys, blocks), fewer_keys(&chain.fingerprints, blocks));
    Some(ChainRecord { tokens, keys, fingerprints, ..chain.clone() })
}

/// The list without one item.
fn without<T: Clone>(items: &[T], which: usize) -> Option<Vec<T>> {
    (items.len() > 1 && which < items.len()).then(|| [&items[..which], &items[which + 1..]].concat())
}

fn fewer(blocks: &Ids, which: usize) -> Option<Ids> {
    without(&blocks.unpack(), which).map(|blocks| Ids::pack(&blocks))
}

/// The list without its end: what has a place in a chain keeps it.
fn fewer_behind(blocks: &Ids, which: usize) -> Option<Ids> {
    let all = blocks.unpack();
    all.get(..less(all.len(), which)?).filter(|blocks| !blocks.is_empty()).map(Ids::pack)
}

impl Simpler for PoolOperation {
    fn simpler(&self, which: usize) -> Option<Self> {
        Some(match self.clone() {
            Self::Allocate { blocks } => Self::Allocate { blocks: less(blocks, which)? },
            Self::Acquire { blocks } => Self::Acquire { blocks: fewer(&blocks, which)? },
            Self::Release { blocks } => Self::Release { blocks: fewer(&blocks, which)? },
            Self::ReleaseTable { blocks } => Self::ReleaseTable { blocks: fewer(&blocks, which)? },
            Self::ReleaseAfter { blocks, step } => {
                Self::ReleaseAfter { blocks: fewer(&blocks, which)?, step }
            }
            Self::Match { chain, max_blocks, tenant } => {
                Self::Match { chain: shorter(&chain, which)?, max_blocks, tenant }
            }
            Self::LookupRefreshing { chain, start, max_blocks } => {
                Self::LookupRefreshing { chain: shorter(&chain, which)?, start, max_blocks }
            }
            Self::Register { blocks, chain, start } => {
                Self::Register { blocks: fewer_behind(&blocks, which)?, chain, start }
            }
            Self::RegisterTable { blocks, chain, start } => {
                Self::RegisterTable { blocks: fewer_behind(&blocks, which)?, chain, start }
            }
            Self::Adopt { blocks, chain, start } => {
                Self::Adopt { blocks: fewer_behind(&blocks, which)?, chain, start }
            }
            Self::Disown { blocks } => Self::Disown { blocks: fewer(&blocks, which)? },
            Self::MarkComputed { blocks } => Self::MarkComputed { blocks: fewer(&blocks, which)? },
            Self::Evict { blocks } => Self::Evict { blocks: fewer(&blocks, which)? },
            Self::EvictNext { blocks } => Self::EvictNext { blocks: less(blocks, which)? },
            _ => return None,
        })
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

impl Simpler for VllmOperation {
    fn simpler(&self, which: usize) -> Option<Self> {
        Some(match self.clone() {
            Self::Allocate { blocks } => Self::Allocate { blocks: less(blocks, which)? },
            Self::Touch { blocks } => Self::Touch { blocks: without(&blocks, which)? },
            Self::Free { blocks } => Self::Free { blocks: without(&blocks, which)? },
            _ => return None,
        })
    }
}
