//! `LastHit`: the blocks that the latest lookup found. The next lookup reuses them.
//!
//! The request at the head of vLLM's queue is looked up at every step while it waits. A digest
//! identifies the whole prefix up to its position. So the blocks that a lookup found are also valid for
//! another request with the same digest at their end, as long as the pool has removed no key. Only
//! later digests have to be looked up.
//!
//! Costs: O(1) if the last result is valid and complete, otherwise O(new blocks). Takes 4 bytes per
//! block of the last hit.

use std::ops::Range;

use crate::key::Key;
use crate::pool::Pool;

/// The first digest is looked up alone. These are the numbers of digests that are looked up together
/// after it: in the next batch, and in each later one. Early batches are small, because most lookups
/// miss early.
const STRETCHES: [usize; 2] = [16, 256];

/// Access to the digests of one request, and to the pool in which they are looked up.
pub trait Digests {
    /// The error that is returned if a digest cannot be read.
    type Error;

    /// Returns the number of digests that the request has.
    fn len(&self) -> usize;

    /// Whether the request has no digests.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key of the request's digest number `unit` in a group.
    ///
    /// # Errors
    /// [`Self::Error`] if the digest cannot be read.
    fn key(&self, unit: usize, group: u32) -> Result<Key, Self::Error>;

    /// Looks up consecutive blocks of the request in a group. Appends the cached blocks to `out`, up to
    /// the first block that is not cached ([`Pool::find_run`]). A block has `scale` digests, and its
    /// last digest identifies it.
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

    /// Calls the function `look` with the pool, and returns its result.
    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R;
}

/// The blocks of the last hit in one group, from the first block of a prompt on.
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

    /// Number of calls of [`Self::look`] whose result differed from that of the call before.
    #[must_use]
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns how many of the request's first `blocks` blocks are cached in a group without a gap. A
    /// block has `scale` digests.
    ///
    /// # Errors
    /// The errors of `digests`.
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
            // Most lookups miss at the first block, so it is looked up alone.
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

    /// Looks up a prompt of `len` blocks. `key_of` returns the key of the block at a position. `find`
    /// appends the cached blocks in a range of positions, up to the first that is not cached.
    /// `removals` is the present value of [`Pool::removals`]. Returns whether the blocks differ from
    /// those of the latest lookup.
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

    /// Looks up a prompt whose first key is number `from`. Keys below `cached` are cached, each in the
    /// block with its number. Returns whether the hit differs from the last one, and the number of keys
    /// that were looked up.
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
