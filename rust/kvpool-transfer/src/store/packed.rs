//! Detects contiguous blocks, which the copy engine can move as one piece.

use crate::region::Region;

/// Layout of contiguous blocks: the address of the first block, and the offset of each region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// Address of block 0.
    pub(crate) base: u64,
    /// Number of bytes from one block to the next.
    pub(crate) stride: u64,
    pub(crate) nbytes: u64,
    /// Offset of each region within a block.
    pub(crate) offsets: Vec<u64>,
    /// Whether the store owns the gaps between its regions and blocks, so that a copy may overwrite
    /// them.
    pub(crate) owned: bool,
}

/// Returns the layout of the blocks if each block is contiguous in memory. Staged copies overwrite gaps
/// within and between blocks, so gaps are allowed only if the store owns the memory.
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
