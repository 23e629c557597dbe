//! Block ids: converts ids of block contents to ids of prefixes, and ids of one block size to another.
//!
//! A *prefix id* identifies a block together with everything before it. [`Chains`] assigns a prefix id
//! to each id of a trace after each different prefix. [`regroup`] converts the ids of a request from
//! one block size to another.
//!
//! **Why chaining is exact.** A prefix cache finds a block only after the same prefix. If the ids of a
//! trace identify contents, the new ids distinguish equal contents after different prefixes, as a cache
//! does. If the ids already identify prefixes, every id always follows the same id (its parent). Then
//! old and new ids correspond one to one, and only the numbers change.
//!
//! **Larger blocks.** `k` blocks become one block. Its id is computed from the last of the `k` ids,
//! because a prefix id identifies everything before it. The remaining blocks at the end of a prompt
//! form a partial block if the trace has ids for partial blocks, and are dropped otherwise.
//!
//! **Smaller blocks.** A block becomes up to `k` blocks with consecutive ids, as far as the prompt has
//! tokens. One entry of the table represents all of them, so the table grows with the ids of the input,
//! not with the new ids. The text of a partial block without an id is unknown, so its small blocks get
//! unique ids.
//!
//! Costs: one hash-map step per old id if every id has one parent, and two otherwise. Each distinct old
//! id takes 64 bytes, and each new id in a request takes 8 bytes. The memory for a request's new ids is
//! reserved before they are written, so a lack of memory is returned as an error.

use std::collections::{HashMap, hash_map::Entry};

use crate::{error::TraceError, id_hash::IdHasherBuilder};

/// Largest number of ids in all requests of a trace that was converted to another block size. These ids
/// take 8 GiB.
pub(crate) const MOST_REFERENCES: u64 = 1 << 30;

/// Assigns a prefix id to each combination of an id and the prefix before it. Prefix ids count from 0
/// in the order of first use.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// For each id, its first parent, and its prefix id after this parent. The first number of the key
    /// is the id space: equal ids in different spaces are different.
    first: HashMap<(u64, u64), (u64, u64), IdHasherBuilder>,
    /// The prefix ids of ids that follow further parents. The key is the id space, the id and the
    /// parent.
    further: HashMap<(u64, u64, u64), u64, IdHasherBuilder>,
    next: u64,
}

/// Stands for the parent of a prompt's first block. It differs from all prefix ids, because they count
/// from 0.
pub(crate) const ROOT: u64 = u64::MAX;

impl Chains {
    /// Returns the prefix id of `id` after `parent`, which is a prefix id or [`ROOT`]. `space` is the
    /// id space: equal ids in different spaces get different prefix ids.
    pub(crate) fn link(&mut self, parent: u64, space: u64, id: u64) -> u64 {
        self.link_run(parent, space, id, 1)
    }

    /// Like [`link`](Self::link), but the block becomes `width` blocks. Returns the first of their
    /// consecutive ids.
    fn link_run(&mut self, parent: u64, space: u64, id: u64, width: u64) -> u64 {
        let next = self.next;
        let new = match self.first.entry((space, id)) {
            Entry::Vacant(entry) => entry.insert((parent, next)).1,
            Entry::Occupied(entry) => {
                let (first_parent, new) = *entry.get();
                if first_parent == parent {
                    new
                } else {
                    *self.further.entry((space, id, parent)).or_insert(next)
                }
            }
        };
        if new == next {
            self.next += width;
        }
        new
    }

    pub(crate) fn chain(&mut self, space: u64, ids: &[u64]) -> Box<[u64]> {
        let mut parent = ROOT;
        ids.iter()
            .map(|&id| {
                parent = self.link(parent, space, id);
                parent
            })
            .collect()
    }

    /// Returns a new id that no other block has.
    fn unique_id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The number of prefix ids for ids that had already been seen after another prefix. It is 0 if the
    /// ids of the trace already identify prefixes.
    pub(crate) fn unchained(&self) -> u64 {
        self.further.len() as u64
    }
}

/// Whether blocks of one size can be converted to the other size: one must divide the other, and
/// neither may be 0.
pub(crate) fn can_regroup(from: usize, to: usize) -> bool {
    from > 0 && to > 0 && (from.is_multiple_of(to) || to.is_multiple_of(from))
}

/// Converts the ids of a prompt of `tokens` tokens from blocks of `from` tokens to blocks of `to`
/// tokens. `listed` says whether the trace has an id for a prompt's partial last block.
///
/// The sizes must pass [`can_regroup`]. There must be an id for each block of the prompt, except for a
/// partial last block. If the same `chains` are used for several sizes, no id may occur in two sizes.
///
/// # Errors
///
/// [`TraceError::NoMemory`] for the new ids.
pub(crate) fn regroup(
    chains: &mut Chains,
    ids: &[u64],
    tokens: u32,
    from: usize,
    to: usize,
    listed: bool,
) -> Result<Box<[u64]>, TraceError> {
    let tokens = tokens as usize;
    let wanted = if listed { tokens.div_ceil(to) } else { tokens / to };
    let mut new = reserve_ids(wanted, to)?;
    let mut parent = ROOT;
    if to >= from {
        for group in ids.chunks((to / from).max(1)).take(wanted) {
            let Some(&last) = group.last() else { break };
            parent = chains.link(parent, 0, last);
            new.push(parent);
        }
    } else {
        let pieces = from / to;
        let mut known = ids.iter();
        while new.len() < wanted {
            let reached = pieces.min(wanted - new.len());
            match known.next() {
                Some(&id) => {
                    let first = chains.link_run(parent, 0, id, pieces as u64);
                    new.extend((0..reached as u64).map(|place| first + place));
                    parent = first;
                }
                None => new.extend((0..reached).map(|_| chains.unique_id())),
            }
        }
    }
    Ok(new.into_boxed_slice())
}

/// Returns an empty list with room for the `references` ids of a request in blocks of `to` tokens. A
/// short input line can stand for many ids, so a lack of memory is returned as an error.
pub(crate) fn reserve_ids(references: usize, to: usize) -> Result<Vec<u64>, TraceError> {
    let mut ids = Vec::new();
    ids.try_reserve_exact(references)
        .map_err(|_| TraceError::NoMemory { references: references as u64, to })?;
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chained_ids_are_renamed_and_others_are_chained() {
        let mut chains = Chains::default();
        assert_eq!(chains.chain(0, &[9, 7, 5])[..], [0, 1, 2]);
        assert_eq!(chains.chain(0, &[9, 7, 6])[..], [0, 1, 3]);
        assert_eq!(chains.unchained(), 0);
        // Id 7 gets one prefix id at the start of a prompt and another after id 9. The blocks after it
        // then also get different ones. An id may repeat within a prompt.
        assert_eq!(chains.chain(0, &[7, 5, 5])[..], [4, 5, 6]);
        assert_eq!(chains.chain(0, &[7, 5, 5])[..], [4, 5, 6]);
        assert_eq!(chains.unchained(), 3);
        // Equal ids in another id space get other prefix ids.
        assert_eq!(chains.chain(1, &[9, 7])[..], [7, 8]);
    }

    #[test]
    fn larger_blocks_are_identified_by_their_last_part() {
        let mut chains = Chains::default();
        let mut of =
            |ids: &[u64], tokens, listed| regroup(&mut chains, ids, tokens, 16, 64, listed).unwrap().to_vec();
        assert_eq!(of(&[1, 2, 3, 4, 5], 66, true), [0, 1]);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8], 128, true), [0, 2]);
        // A partial last block with the id 5 gets another new id than a full block there. If the trace
        // has no ids for partial blocks, it gets none.
        assert_eq!(of(&[1, 2, 3, 4], 66, false), [0]);
        assert_eq!(of(&[1, 2, 3, 9], 64, true), [3]);
        assert!(of(&[], 9, false).is_empty());
    }

    #[test]
    fn too_many_ids_for_memory_are_an_error() {
        let error = reserve_ids(usize::MAX / 8, 16).unwrap_err();
        let TraceError::NoMemory { references, to: 16 } = error else { panic!("{error}") };
        assert_eq!(references, (usize::MAX / 8) as u64);
    }

    #[test]
    fn smaller_blocks_are_parts_and_unknown_text_is_unique() {
        let mut chains = Chains::default();
        let mut of =
            |ids: &[u64], tokens, listed| regroup(&mut chains, ids, tokens, 64, 16, listed).unwrap().to_vec();
        assert_eq!(of(&[1, 2], 100, true), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&[1, 2], 128, true), [0, 1, 2, 3, 4, 5, 6, 7]);
        // The last 36 tokens have no id. They form two full blocks of 16 tokens whose text is unknown,
        // so these blocks get new ids each time.
        assert_eq!(of(&[1], 100, false), [0, 1, 2, 3, 8, 9]);
        assert_eq!(of(&[1], 100, false), [0, 1, 2, 3, 10, 11]);
    }
}
