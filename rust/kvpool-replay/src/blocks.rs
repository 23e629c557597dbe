//! Ids of blocks: made into prefix ids, and from one block size into another.
//!
//! Owns [`Chains`], which gives every (prefix, id) its own new id, and [`regroup`], which turns the ids
//! of a request from one block size into another.
//!
//! **Why chaining is exact.** A prefix cache finds a block only behind the same prefix. Where ids name
//! contents, the new ids tell equal contents behind different prefixes apart, which a cache does, too.
//! Where ids name prefixes already, an id has one parent, so old and new ids correspond one to one and
//! nothing changes but the names.
//!
//! **Larger blocks.** `k` blocks become one, named by its last block: a prefix id names everything
//! before it. What is left over at the end is a partial block if the trace names partial blocks, and is
//! dropped if not.
//!
//! **Smaller blocks.** A block becomes `k`, numbered one after the other, as far as the prompt reaches:
//! one entry of the table stands for all of them, so the table grows with the ids of the input and not
//! with those that are made of them. Of a partial block without an id the text is unknown: the small
//! blocks in it get ids that nothing else has.
//!
//! Costs: one hash-map step per old id where ids have one parent, two for those that have not; 64 bytes
//! per different old id, and 8 bytes per new reference, which are asked for before they are filled:
//! where memory is short, that is an error.

use std::collections::{HashMap, hash_map::Entry};

use crate::{error::TraceError, id_hash::IdHasherBuilder};

/// References that one trace may get by being regrouped: 8 GiB of them.
pub(crate) const MOST_REFERENCES: u64 = 1 << 30;

/// New ids for (prefix, id), counted from 0 in the order of first use.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    /// By space and id: the parent with which it was seen first, and the new id for the two.
    first: HashMap<(u64, u64), (u64, u64), IdHasherBuilder>,
    /// By space, id and parent: the new ids of those that were seen with further parents.
    further: HashMap<(u64, u64, u64), u64, IdHasherBuilder>,
    next: u64,
}

/// The parent of a first block. No id: there are fewer.
pub(crate) const ROOT: u64 = u64::MAX;

impl Chains {
    /// The new id for `id` behind `parent`, which is a new id or [`ROOT`]. Ids of different spaces are
    /// different.
    pub(crate) fn link(&mut self, parent: u64, space: u64, id: u64) -> u64 {
        self.link_run(parent, space, id, 1)
    }

    /// As [`link`](Self::link), for a block that becomes `width` blocks: the first of their ids, which
    /// follow one another.
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

    /// The new ids of a request's blocks.
    pub(crate) fn chain(&mut self, space: u64, ids: &[u64]) -> Box<[u64]> {
        let mut parent = ROOT;
        ids.iter()
            .map(|&id| {
                parent = self.link(parent, space, id);
                parent
            })
            .collect()
    }

    /// An id that nothing else has.
    fn alone(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// How many (prefix, id) had an id that was seen behind another prefix before: 0 if ids name prefixes.
    pub(crate) fn unchained(&self) -> u64 {
        self.further.len() as u64
    }
}

/// Whether blocks of one size can be made into blocks of the other: one must divide the other, and
/// neither may be 0.
pub(crate) fn can_regroup(from: usize, to: usize) -> bool {
    from > 0 && to > 0 && (from.is_multiple_of(to) || to.is_multiple_of(from))
}

/// The ids of a prompt of `tokens` tokens in blocks of `to` tokens, from those in blocks of `from`.
/// `listed`: whether the trace gives an id to a partial last block.
///
/// Sizes must pass [`can_regroup`], and the ids cover the prompt, but for a partial last block. Where
/// one `chains` serves several sizes, their ids must differ already.
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
    let mut new = room_for(wanted, to)?;
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
                None => new.extend((0..reached).map(|_| chains.alone())),
            }
        }
    }
    Ok(new.into_boxed_slice())
}

/// An empty list with room for the ids of a request in blocks of `to` tokens. A short input can stand
/// for many ids: what they take is asked for, and not taken for granted.
pub(crate) fn room_for(references: usize, to: usize) -> Result<Vec<u64>, TraceError> {
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
        // 7 behind nothing is another block than 7 behind 9, and so is all that follows; repeats are no
        // trouble.
        assert_eq!(chains.chain(0, &[7, 5, 5])[..], [4, 5, 6]);
        assert_eq!(chains.chain(0, &[7, 5, 5])[..], [4, 5, 6]);
        assert_eq!(chains.unchained(), 3);
        // Another space has other ids.
        assert_eq!(chains.chain(1, &[9, 7])[..], [7, 8]);
    }

    #[test]
    fn larger_blocks_are_named_by_their_last() {
        let mut chains = Chains::default();
        let mut of =
            |ids: &[u64], tokens, listed| regroup(&mut chains, ids, tokens, 16, 64, listed).unwrap().to_vec();
        assert_eq!(of(&[1, 2, 3, 4, 5], 66, true), [0, 1]);
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8], 128, true), [0, 2]);
        // The partial block that was 5 is not the full one, and left out it has no id.
        assert_eq!(of(&[1, 2, 3, 4], 66, false), [0]);
        assert_eq!(of(&[1, 2, 3, 9], 64, true), [3]);
        assert!(of(&[], 9, false).is_empty());
    }

    #[test]
    fn ids_that_no_memory_holds_are_an_error() {
        let error = room_for(usize::MAX / 8, 16).unwrap_err();
        let TraceError::NoMemory { references, to: 16 } = error else { panic!("{error}") };
        assert_eq!(references, (usize::MAX / 8) as u64);
    }

    #[test]
    fn smaller_blocks_are_parts_and_unknown_text_is_nobodys() {
        let mut chains = Chains::default();
        let mut of =
            |ids: &[u64], tokens, listed| regroup(&mut chains, ids, tokens, 64, 16, listed).unwrap().to_vec();
        assert_eq!(of(&[1, 2], 100, true), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(of(&[1, 2], 128, true), [0, 1, 2, 3, 4, 5, 6, 7]);
        // 36 tokens without an id are two full blocks of unknown text, each time others.
        assert_eq!(of(&[1], 100, false), [0, 1, 2, 3, 8, 9]);
        assert_eq!(of(&[1], 100, false), [0, 1, 2, 3, 10, 11]);
    }
}
