//! `Region`: the address of one piece of every block, and the conversion of tensors into regions.
//!
//! The bytes of a block are rarely contiguous: an engine has one tensor per layer, and often separate
//! tensors for keys and values. A region describes one such piece of every block by an address, a
//! stride from block to block, and a length. All layouts (NHD, HND, per layer, cross-layer, MLA, padded
//! pages) are described in this way. A block copy then moves opaque bytes between two equal lists of
//! regions.
//!
//! Invariants: the blocks of a region do not overlap (`stride >= nbytes` if there are several). All
//! addresses are within the address space, so `base + block * stride` needs no further check.

use crate::error::TransferError;

/// One piece of every block.
///
/// ```
/// use kvpool_transfer::Region;
/// // Blocks of 64 bytes, one after the other.
/// let region = Region { base: 4096, stride: 64, nbytes: 64 };
/// assert_eq!((region.at(2), region.end(10)), (4224, 4736));
/// assert!(region.is_dense());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Address of the piece of block 0.
    pub base: u64,
    /// Number of bytes from one block to the next.
    pub stride: u64,
    /// Number of bytes in the piece.
    pub nbytes: u64,
}

impl Region {
    /// Returns the address of a block's piece.
    #[must_use]
    pub const fn at(&self, block: u64) -> u64 {
        self.base + block * self.stride
    }

    /// Returns the first address after the last of `num_blocks` pieces.
    #[must_use]
    pub const fn end(&self, num_blocks: u64) -> u64 {
        self.at(num_blocks - 1) + self.nbytes
    }

    /// Whether consecutive blocks are adjacent in memory.
    #[must_use]
    pub const fn is_dense(&self) -> bool {
        self.stride == self.nbytes
    }
}

/// Describes a tensor: address, shape, strides in elements, and size of an element in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Address of the first element.
    pub address: u64,
    /// Number of elements per dimension.
    pub shape: Vec<u64>,
    /// Stride per dimension: the distance, in elements, between two consecutive indices.
    pub strides: Vec<i64>,
    /// Number of bytes in an element.
    pub item_bytes: u64,
}

/// Largest number of regions for a single tensor. A tensor with more regions has scattered inner
/// dimensions, which is probably a mistake of the caller.
const MAX_REGIONS: u64 = 1 << 16;

impl Array {
    /// Returns the regions of a tensor, and its number of blocks. The dimension `block_dim` counts the
    /// blocks. Contiguous inner dimensions form the piece of a region, and each combination of indices
    /// of the other dimensions is one region. O(dimensions + regions).
    ///
    /// # Errors
    /// [`TransferError::Layout`] for a missing dimension, an empty tensor, inner dimensions that are
    /// not contiguous, elements or blocks that overlap, or an extent beyond the address space.
    ///
    /// ```
    /// use kvpool_transfer::Array;
    /// // Keys and values of 10 blocks of 16 tokens, 8 heads, 128 elements of 2 bytes: [2, 10, 16, 8, 128].
    /// let strides = vec![163_840, 16_384, 1024, 128, 1];
    /// let tensor = Array { address: 4096, shape: vec![2, 10, 16, 8, 128], strides, item_bytes: 2 };
    /// let (regions, blocks) = tensor.regions(1)?;
    /// assert_eq!((regions.len(), regions[1].nbytes, blocks), (2, 32_768, 10));
    /// # Ok::<(), kvpool_transfer::TransferError>(())
    /// ```
    pub fn regions(&self, block_dim: usize) -> Result<(Vec<Region>, u64), TransferError> {
        let refuse = |reason: String| {
            Err(TransferError::Layout(format!(
                "shape {:?}, strides {:?}: {reason}",
                self.shape, self.strides
            )))
        };
        if self.shape.len() != self.strides.len() || block_dim >= self.shape.len() {
            return refuse(format!("there is no dimension {block_dim}"));
        }
        if self.item_bytes == 0 || self.shape.contains(&0) {
            return refuse("the tensor is empty".into());
        }
        if self
            .strides
            .iter()
            .zip(&self.shape)
            .any(|(&stride, &size)| stride < 0 || (stride == 0 && size > 1))
        {
            return refuse("elements share memory, or strides are negative".into());
        }
        if !self.fits_address_space() {
            return refuse(format!("the tensor at {:#x} ends beyond the address space", self.address));
        }
        // Dimensions of size 1 do not affect addresses. Sort the other dimensions by stride, smallest
        // first.
        let mut inner: Vec<usize> =
            (0..self.shape.len()).filter(|&dim| dim != block_dim && self.shape[dim] > 1).collect();
        inner.sort_by_key(|&dim| self.strides[dim]);
        // If there is only one block, its stride affects no address, but shows which dimensions are
        // outside of a block: those with the same or a larger stride. Therefore a store with one block
        // has the same regions as a store with many, and blocks can be copied between the two. If no
        // dimension has a smaller stride than the blocks, this is unknown.
        let block_stride = self.strides[block_dim];
        let stride_is_known =
            self.shape[block_dim] == 1 && inner.iter().any(|&dim| self.strides[dim] < block_stride);
        let outside = |dim: usize| stride_is_known && self.strides[dim] >= block_stride;
        let mut piece = 1_u64;
        let mut scattered = Vec::new();
        for dim in inner {
            if self.strides[dim].unsigned_abs() == piece && scattered.is_empty() && !outside(dim) {
                piece *= self.shape[dim];
            } else {
                scattered.push(dim);
            }
        }
        let inside = |dim: &usize| self.strides[*dim] < self.strides[block_dim] && self.shape[block_dim] > 1;
        if piece == 1 && scattered.iter().any(inside) {
            return refuse("no inner dimension is contiguous: call contiguous() on the tensor".into());
        }
        scattered.sort_unstable();
        let count = scattered.iter().try_fold(1_u64, |count, &dim| count.checked_mul(self.shape[dim]));
        let Some(count) = count.filter(|&count| count <= MAX_REGIONS) else {
            return refuse(format!("its inner dimensions are scattered over more than {MAX_REGIONS} pieces"));
        };
        let nbytes = piece * self.item_bytes;
        let blocks = self.shape[block_dim];
        let stride =
            if blocks > 1 { self.strides[block_dim].unsigned_abs() * self.item_bytes } else { nbytes };
        if stride < nbytes {
            return refuse(format!(
                "blocks overlap: {stride} bytes from one to the next, {nbytes} bytes each"
            ));
        }
        let regions = (0..count).map(|index| {
            let mut rest = index;
            let mut offset = 0;
            for &dim in scattered.iter().rev() {
                offset += rest % self.shape[dim] * self.strides[dim].unsigned_abs();
                rest /= self.shape[dim];
            }
            Region { base: self.address + offset * self.item_bytes, stride, nbytes }
        });
        Ok((regions.collect(), blocks))
    }

    /// Whether the addresses of all elements are within the address space.
    fn fits_address_space(&self) -> bool {
        let mut last = Some(0_u64);
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            let span = (size - 1).checked_mul(stride.unsigned_abs());
            last = last.zip(span).and_then(|(last, span)| last.checked_add(span));
        }
        let bytes = last.and_then(|last| last.checked_add(1)?.checked_mul(self.item_bytes));
        bytes.and_then(|bytes| self.address.checked_add(bytes)).is_some()
    }
}

/// Checks the regions that a caller passed. No two of them may overlap.
///
/// # Errors
/// [`TransferError::Layout`].
pub(crate) fn check(regions: &[Region], num_blocks: u64) -> Result<(), TransferError> {
    let refuse = |reason: String| Err(TransferError::Layout(reason));
    if regions.is_empty() {
        return refuse("a store has at least one region".into());
    }
    if num_blocks == 0 || num_blocks > i32::MAX as u64 {
        return refuse(format!("a store of {num_blocks} blocks: it has 1 to {}", i32::MAX));
    }
    for (index, region) in regions.iter().enumerate() {
        if region.nbytes == 0 {
            return refuse(format!("region {index} has no bytes"));
        }
        if num_blocks > 1 && region.stride < region.nbytes {
            return refuse(format!(
                "blocks of region {index} overlap: {} bytes from one to the next, {} bytes each",
                region.stride, region.nbytes
            ));
        }
        let span =
            (num_blocks - 1).checked_mul(region.stride).and_then(|span| span.checked_add(region.nbytes));
        if span.and_then(|span| region.base.checked_add(span)).is_none() {
            return refuse(format!("region {index} at {:#x} ends beyond the address space", region.base));
        }
    }
    let mut order: Vec<usize> = (0..regions.len()).collect();
    order.sort_unstable_by_key(|&index| regions[index].base);
    // Regions whose extents overlap must be interleaved regularly: their strides are equal, and their
    // pieces are side by side within one stride.
    let mut cluster: Vec<usize> = Vec::new();
    let mut end = 0;
    for index in order {
        let region = regions[index];
        if region.base >= end {
            cluster.clear();
        }
        if let Some(&first) = cluster.first() {
            let (head, last) = (regions[first], regions[cluster[cluster.len() - 1]]);
            let regular = region.stride == head.stride
                && region.base >= last.base + last.nbytes
                && region.base + region.nbytes <= head.base + head.stride;
            if !regular {
                return refuse(format!(
                    "regions {first} and {index} overlap, or interleave at different strides"
                ));
            }
        }
        cluster.push(index);
        end = end.max(region.end(num_blocks));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[u64], strides: &[i64]) -> Array {
        Array { address: 1 << 20, shape: shape.to_vec(), strides: strides.to_vec(), item_bytes: 2 }
    }

    #[test]
    fn layouts_of_engines_become_regions() {
        /// A tensor: its name, shape, strides, and block dimension. Then the expected number of
        /// regions, and the expected number of bytes in a piece.
        type Case = (&'static str, Vec<u64>, Vec<i64>, usize, usize, u64);
        let cases: [Case; 7] = [
            (
                "per layer, K and V apart",
                vec![2, 9, 16, 8, 128],
                vec![147_456, 16_384, 1024, 128, 1],
                1,
                2,
                32_768,
            ),
            (
                "per layer, block first",
                vec![9, 2, 16, 8, 128],
                vec![32_768, 16_384, 1024, 128, 1],
                0,
                1,
                65_536,
            ),
            ("HND seen as NHD", vec![9, 16, 8, 128], vec![16_384, 128, 2048, 1], 0, 1, 32_768),
            ("heads outside of blocks", vec![8, 9, 16, 128], vec![18_432, 2048, 128, 1], 1, 8, 4096),
            ("cross-layer", vec![9, 4, 2, 16, 64], vec![8192, 2048, 1024, 64, 1], 0, 1, 16_384),
            ("MLA", vec![9, 16, 576], vec![9216, 576, 1], 0, 1, 18_432),
            ("padded pages", vec![9, 16, 576], vec![9728, 576, 1], 0, 1, 18_432),
        ];
        for (name, shape, strides, block_dim, count, nbytes) in cases {
            let (regions, blocks) = array(&shape, &strides).regions(block_dim).expect(name);
            assert_eq!((regions.len(), regions[0].nbytes, blocks), (count, nbytes, 9), "{name}");
            check(&regions, blocks).expect(name);
        }
    }

    /// A store with one block has the same regions as a store with many, so that blocks can be copied
    /// between the two.
    #[test]
    fn one_block_is_cut_as_many_are() {
        let shapes: [(&str, &[u64], usize); 6] = [
            ("K and V apart", &[2, 9, 16, 8, 128], 1),
            ("block first", &[9, 2, 16, 8, 128], 0),
            ("heads outside of blocks", &[8, 9, 16, 128], 1),
            ("layers, K and V outside", &[4, 2, 9, 16, 64], 2),
            ("K, V and blocks of one element", &[2, 9, 1], 1),
            ("MLA", &[9, 16, 576], 0),
        ];
        for (name, shape, block_dim) in shapes {
            let of = |blocks: u64| {
                let mut shape = shape.to_vec();
                shape[block_dim] = blocks;
                let mut strides = vec![1_i64; shape.len()];
                for dim in (1..shape.len()).rev() {
                    strides[dim - 1] = strides[dim] * shape[dim] as i64;
                }
                array(&shape, &strides).regions(block_dim).expect(name).0
            };
            let pieces = |regions: Vec<Region>| regions.iter().map(|one| one.nbytes).collect::<Vec<_>>();
            let (one, many) = (pieces(of(1)), pieces(of(9)));
            if name.ends_with("one element") {
                assert_eq!((one, many), (vec![4], vec![2, 2]), "its strides show nothing");
            } else {
                assert_eq!(one, many, "{name}");
            }
        }
        // A dimension that was added to a tensor has a stride of 0. Such a stride does not show which
        // dimensions are outside of a block.
        let added = array(&[2, 1, 16], &[16, 0, 1]).regions(1).expect("contiguous").0;
        assert_eq!((added.len(), added[0].nbytes), (1, 64));
    }

    #[test]
    fn layouts_that_cannot_be_copied_are_refused() {
        let cases: [(&str, Vec<u64>, Vec<i64>, usize); 7] = [
            ("there is no dimension", vec![9, 4], vec![4, 1], 2),
            ("empty", vec![9, 0], vec![4, 1], 0),
            ("share memory", vec![9, 4], vec![0, 1], 0),
            ("share memory", vec![9, 4], vec![4, 0], 0),
            ("no inner dimension is contiguous", vec![9, 4], vec![8, 2], 0),
            ("overlap", vec![9, 4], vec![2, 1], 0),
            ("address space", vec![1 << 62, 4], vec![1 << 61, 1], 0),
        ];
        for (reason, shape, strides, block_dim) in cases {
            let error = array(&shape, &strides).regions(block_dim).expect_err(reason).to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn regions_interleave_or_are_refused() {
        let region = |base, stride, nbytes| Region { base, stride, nbytes };
        check(&[region(0, 64, 32), region(32, 64, 32)], 8).expect("K and V side by side");
        check(&[region(512, 64, 64), region(0, 64, 64)], 8).expect("one behind the other");
        for pair in [
            [region(0, 64, 32), region(0, 64, 32)],
            [region(0, 64, 32), region(16, 64, 32)],
            [region(0, 64, 32), region(48, 64, 32)],
            [region(0, 64, 32), region(32, 128, 32)],
        ] {
            assert!(check(&pair, 8).is_err(), "{pair:?}");
        }
        assert!(check(&[region(u64::MAX - 100, 64, 32)], 8).is_err());
        assert!(check(&[region(0, 64, 32)], 0).is_err());
        assert!(check(&[region(0, 64, 32)], 1 << 31).is_err());
    }
}
