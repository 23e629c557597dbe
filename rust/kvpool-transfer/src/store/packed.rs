//! Blocks that are contiguous, so that the copy engine can move them whole.

use crate::region::Region;

/// Which part of a block-first layout each region has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Address of block 0.
    pub(crate) base: u64,
    /// Bytes from block to block.
    pub(crate) stride: u64,
    /// Bytes of a block.
    pub(crate) nbytes: u64,
    /// Where each region begins within a block.
    pub(crate) offsets: Vec<u64>,
    /// Whether the holes between regions and blocks are nobody's, and may be overwritten.
    pub(crate) owned: bool,
}

/// Whether regions make up contiguous blocks; only the owner of the memory may have holes in them,
/// which staging overwrites.
pub(super) fn packed(regions: &[Region], owned: bool) -> Option<Packed> {
    let stride = regions.first()?.stride;
    let base = regions.iter().map(|region| region.base).min()?;
    let end = regions.iter().map(|region| region.base + region.nbytes).max()?;
    let bytes: u64 = regions.iter().map(|region| region.nbytes).sum();
    let nbytes = end - base;
    let whole = owned || nbytes == bytes;
    (whole && nbytes <= stride && regions.iter().all(|region| region.stride == stride)).then(|| Packed {
        base,
        stride,
        nbytes,
        offsets: regions.iter().map(|region| region.base - base).collect(),
        owned,
    })
}
