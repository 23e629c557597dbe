//! `LastHit`: the result of the last lookup, which the next lookup reuses.
//!
//! A request that waits at the head of vLLM's queue is looked up at every step. A digest identifies the
//! whole prefix up to its position. Suppose that a lookup found blocks for one request. They are valid
//! for every other request that has the same digest at that position, as long as no key was removed.
//! Only later digests have to be looked up.
//!
//! Costs: O(1) for a lookup whose last result is valid, otherwise O(new blocks); 4 bytes per block of
//! the last hit.

use std::ops::Range;

use crate::key::Key;
use crate::pool::Pool;

/// After the first digest, the numbers of digests that are looked up together: in the first batch, and in
/// each later one. The first batch is small, because most lookups miss early.
const STRETCHES: [usize; 2] = [16, 256];

/// Access to the digests of a request, and to the pool in which they are looked up.
pub trait Digests {
    /// The error of a digest that cannot be read.
    type Error;

    /// Number of digests.
    fn len(&self) -> usize;

    /// Whether the request has no digests.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key for a digest in a group.
    ///
    /// # Errors
    /// [`Self::Error`] if the digest cannot be read.
    fn key(&self, unit: usize, group: u32) -> Result<Key, Self::Error>;

    /// Looks up a range of blocks in a group, and appends the cached blocks up to the first miss
    /// ([`Pool::find_run`]). A block has `scale` digests, and its last digest identifies it.
    ///
    /// # Errors
    /// [`Self::Error`] if a digest cannot be read.
    fn find_run(
        &self,
        blocks: Range<usize>,
        scale: usize,
        group: u32,
        out: &mut Vec<u32>,
    ) -> Result<(), Self::Error>;

    /// Calls `look` with the pool, and returns its result.
    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R;
}

/// The blocks of the last hit, from the first block of a prompt.
///
/// ```
/// use kvpool_vllm::{Key, LastHit};
/// let mut hit = LastHit::default();
/// let key_of = |at: usize| Key::new(&[at as u8; 32], 0);
/// // Blocks 0 to 2 of 5 are cached.
/// let find = |range: std::ops::Range<usize>, out: &mut Vec<u32>| {
///     out.extend(range.filter(|&at| at < 3).map(|at| at as u32));
///     Ok(())
/// };
/// assert!(hit.resume(0, 5, key_of, find)?);
/// assert_eq!(hit.blocks(), [0, 1, 2]);
/// # Ok::<(), kvpool_vllm::VllmError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LastHit {
    /// Value of [`Pool::removals`](crate::Pool::removals) at the time of the lookup.
    removals: u64,
    last: Option<Key>,
    blocks: Vec<u32>,
    changes: u64,
}

impl LastHit {
    /// Returns the blocks of the last hit.
    #[must_use]
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// Number of calls of [`Self::look`] that found different blocks from the call before.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns how many leading blocks of a request are cached in a group, out of its first `blocks`
    /// blocks. A block has `scale` digests.
    ///
    /// # Errors
    /// The errors of the digests.
    pub fn look<D: Digests>(
        &mut self,
        digests: &D,
        group: u32,
        scale: usize,
        blocks: usize,
    ) -> Result<usize, D::Error> {
        let blocks = blocks.min(digests.len() / scale);
        let removals = digests.look(Pool::removals);
        let key_of = |at: usize| digests.key((at + 1) * scale - 1, group);
        let find = |Range { start: mut first, end }: Range<usize>, out: &mut Vec<u32>| {
            // Most misses occur at the first block.
            if first < end {
                let key = key_of(first)?;
                let Some(block) = digests.look(|pool| pool.find(&key)) else { return Ok(()) };
                out.push(block);
                first += 1;
            }
            for stretch in STRETCHES.into_iter().chain(std::iter::repeat(STRETCHES[1])) {
                if first >= end {
                    break;
                }
                let (until, known) = (end.min(first + stretch), out.len());
                digests.find_run(first..until, scale, group, out)?;
                if out.len() - known < until - first {
                    break;
                }
                first = until;
            }
            Ok(())
        };
        self.changes += u64::from(self.resume(removals, blocks, key_of, find)?);
        Ok(self.blocks.len())
    }

    /// Looks up a prompt of `len` blocks. `key_of` returns the key for a position. `find` appends the
    /// blocks for a range of positions, up to the first block that is not cached. `removals` is the
    /// pool's present number of removals. Returns whether the blocks differ from those of the last
    /// lookup.
    ///
    /// # Errors
    /// The errors of `key_of` and `find`.
    pub fn resume<E>(
        &mut self,
        removals: u64,
        len: usize,
        key_of: impl Fn(usize) -> Result<Key, E>,
        find: impl FnOnce(Range<usize>, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<bool, E> {
        let known = self.blocks.len();
        let stands =
            self.removals == removals && (1..=len).contains(&known) && self.last == Some(key_of(known - 1)?);
        if !stands {
            *self = Self { removals, changes: self.changes, ..Self::default() };
        }
        let from = self.blocks.len();
        find(from..len, &mut self.blocks)?;
        if self.blocks.len() > from {
            self.last = Some(key_of(self.blocks.len() - 1)?);
        }
        Ok(!stands || self.blocks.len() > known)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::ops::Range;

    use super::LastHit;
    use crate::Key;

    fn key(n: usize) -> Key {
        Key::new(&[n as u8; 32], 0).unwrap()
    }

    /// Looks up the keys `from..`. Each key below `cached` has the block with the same number. Returns
    /// whether the blocks differ, and the number of lookups.
    fn look(hit: &mut LastHit, removals: u64, from: usize, len: usize, cached: usize) -> (bool, usize) {
        let mut asked = 0;
        let find = |positions: Range<usize>, out: &mut Vec<u32>| {
            for n in positions.map(|at| from + at) {
                asked += 1;
                if n >= cached {
                    break;
                }
                out.push(n as u32);
            }
            Ok(())
        };
        let changed = hit.resume(removals, len, |at| Ok::<_, Infallible>(key(from + at)), find).unwrap();
        (changed, asked)
    }

    #[test]
    fn a_valid_result_needs_only_the_next_lookups() {
        let mut hit = LastHit::default();
        assert_eq!(look(&mut hit, 0, 0, 9, 5), (true, 6));
        assert_eq!(look(&mut hit, 0, 0, 9, 5), (false, 1));
        assert_eq!(look(&mut hit, 0, 0, 9, 7), (true, 3));
        assert_eq!(hit.blocks(), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_removal_or_another_prompt_invalidates_the_result() {
        for (removals, from, len) in [(1, 0, 9), (0, 0, 4), (0, 1, 9)] {
            let mut hit = LastHit::default();
            look(&mut hit, 0, 0, 9, 5);
            let found = 5.min(from + len) - from;
            assert_eq!(look(&mut hit, removals, from, len, 5), (true, found + usize::from(found < len)));
            assert_eq!(hit.blocks().len(), found);
        }
    }
}
