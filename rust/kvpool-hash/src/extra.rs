//! Extra keys: everything besides the tokens that determines a block's KV, or who may use it.
//!
//! Each kind of key has its own field, and its own tag in the native encoding, so that an adapter is
//! never mistaken for a salt, even if both strings are equal. The fields are opaque bytes made by the
//! engine or its gateway, never by the user of the service.
//!
//! Keys of a request are part of the root digest, which every block includes through the chain of
//! digests. A multimodal item is part of the blocks that it overlaps. It is added with the prompt, or
//! with the tokens of a later turn. [`ItemIndex`] finds the items of a block in `O(log items)`. A
//! request without items costs one comparison.

use std::fmt;

use super::HashError;
use super::config::hidden;

/// The largest token position at which an item may end, because encodings store offsets as signed
/// 64-bit numbers.
const MAX_ITEM_END: u64 = i64::MAX as u64;

/// The extra keys of one request. Two requests share a block only if their tokens and all extra keys
/// that apply to the block are equal.
///
/// ```
/// use kvpool_hash::{Adapter, ExtraKeys};
/// let extra = ExtraKeys {
///     adapter: Some(Adapter { id: (*b"sha256:93b1").into(), path: None }),
///     tenant: Some((*b"team-a").into()),
///     ..ExtraKeys::default()
/// };
/// assert_ne!(extra, ExtraKeys::default());
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ExtraKeys {
    /// The adapter (`LoRA`) with which the model computes the KV.
    pub adapter: Option<Adapter>,
    /// The cache salt: requests with different salts never share blocks. It must come from a trusted
    /// gateway.
    pub salt: Option<Box<[u8]>>,
    /// The tenant: the account or team that owns the blocks.
    pub tenant: Option<Box<[u8]>>,
    /// The version of the weights. Raise it when the model changes, so that no earlier block matches.
    pub epoch: u64,
    /// The end user. Set it only if users must not share blocks with each other.
    pub user: Option<Box<[u8]>>,
    /// Images, audio and other items whose embeddings take the place of tokens. The order of the list
    /// has no effect, because the hasher sorts items by position.
    pub multimodal: Vec<MultimodalItem>,
}

/// An adapter (`LoRA`), which changes the weights of the base model.
///
/// ```
/// use kvpool_hash::{Adapter, BlockHasher, ExtraKeys, HasherConfig};
/// let adapter = Adapter { id: (*b"sha256:93b1").into(), path: None };
/// let extra = ExtraKeys { adapter: Some(adapter), ..ExtraKeys::default() };
/// let hasher = BlockHasher::new(HasherConfig::default())?;
/// assert_ne!(hasher.root(&extra)?, hasher.root(&ExtraKeys::default())?);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// An immutable *content* id, such as the digest of the adapter's weights. Do not use a name that
    /// may refer to other weights later, because blocks computed with the old weights would match.
    pub id: Box<[u8]>,
    /// The path from which the adapter was loaded. vLLM's encodings include it.
    pub path: Option<Box<str>>,
}

/// One multimodal item (such as an image) in a sequence.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_hash::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, MultimodalItem};
/// let image = MultimodalItem { identifier: (*b"digest of the image").into(), offset: 5, length: 3 };
/// let extra = ExtraKeys { multimodal: vec![image], ..ExtraKeys::default() };
/// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..HasherConfig::default() })?);
/// let mut image = HashCursor::new(Arc::clone(&hasher), extra)?;
/// let mut text = HashCursor::new(hasher, ExtraKeys::default())?;
/// image.append(&[1, 2, 3, 4, 5, 0, 0, 0]);
/// text.append(&[1, 2, 3, 4, 5, 0, 0, 0]);
/// // The image overlaps only the second block.
/// assert_eq!(image.chain().hashes()[0], text.chain().hashes()[0]);
/// assert_ne!(image.chain().hashes()[1], text.chain().hashes()[1]);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultimodalItem {
    /// A content id, such as the digest of the image.
    pub identifier: Box<[u8]>,
    /// The position of the item's first placeholder token, counted from the start of the sequence. This
    /// also holds for items that a later turn adds.
    pub offset: u64,
    /// The number of placeholder tokens. An item of length 0 counts only inside of a block: at the
    /// first position of a block it has no effect.
    pub length: u64,
}

/// Prints the extra keys without salt, tenant and user, which must not appear in logs.
impl fmt::Debug for ExtraKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtraKeys")
            .field("adapter", &self.adapter)
            .field("salt", &hidden(self.salt.as_ref()))
            .field("tenant", &hidden(self.tenant.as_ref()))
            .field("epoch", &self.epoch)
            .field("user", &hidden(self.user.as_ref()))
            .field("multimodal", &self.multimodal.len())
            .finish()
    }
}

impl MultimodalItem {
    /// Checks that the ends and the number of items fit into every encoding. `before` is the number of
    /// items that the sequence already has.
    pub(crate) fn check(items: &[Self], before: usize) -> Result<(), HashError> {
        let (count, max) = (before.saturating_add(items.len()), u32::MAX as usize);
        if count > max {
            return Err(HashError::TooManyItems { count, max });
        }
        let bad = |item: &&Self| item.offset.checked_add(item.length).is_none_or(|end| end > MAX_ITEM_END);
        match items.iter().enumerate().find(|(_, item)| bad(item)) {
            None => Ok(()),
            Some((index, &Self { offset, length, .. })) => {
                Err(HashError::ItemRange { index, offset, length, max: MAX_ITEM_END })
            }
        }
    }

    /// The position of the item's first token relative to that of the block. It is negative if the item
    /// begins in an earlier block.
    ///
    /// The subtraction cannot overflow, because both positions are below 2^63:
    /// [`MultimodalItem::check`] limits those of items, and a block's tokens are in memory.
    pub(crate) fn relative_offset(&self, block_start: u64) -> i64 {
        self.offset.wrapping_sub(block_start).cast_signed()
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The items of a sequence, sorted by position, with an index that finds the items of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct ItemIndex {
    /// Indices into [`ExtraKeys::multimodal`], sorted by the item's offset, then length, then
    /// identifier. So the order in which the engine listed the items has no effect.
    order: Box<[u32]>,
    /// For each entry of `order`, the largest end of this item and all earlier ones. These numbers
    /// never decrease, so a binary search works even if items overlap.
    max_end: Box<[u64]>,
}

impl ItemIndex {
    /// Sorts the items in `O(n log n)`. Does not allocate for a sequence without items.
    pub(crate) fn new(items: &[MultimodalItem]) -> Self {
        if items.is_empty() {
            return Self::default();
        }
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&items[a], &items[b]);
            (a.offset, a.length, &a.identifier).cmp(&(b.offset, b.length, &b.identifier))
        });
        let mut end = 0;
        let max_end = order
            .iter()
            .map(|&i| {
                end = end.max(items[i].end());
                end
            })
            .collect();
        // The number of items was checked to fit 32 bits, so the conversion is exact.
        Self { order: order.into_iter().map(|i| i as u32).collect(), max_end }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether any item begins at token position `start` or later. `items` must be the list that was
    /// passed to [`ItemIndex::new`].
    pub(crate) fn reaches(&self, items: &[MultimodalItem], start: u64) -> bool {
        self.order.last().and_then(|&i| items.get(i as usize)).is_some_and(|item| item.offset >= start)
    }

    /// The number of tokens from `start` on that no item overlaps; at most `most`. `items` must be the
    /// list passed to [`ItemIndex::new`].
    pub(crate) fn plain_tokens(&self, items: &[MultimodalItem], start: u64, most: usize) -> usize {
        let end = start.saturating_add(most as u64);
        let first = self.overlapping(items, start, end).next();
        first.map_or(most, |item| item.offset.saturating_sub(start) as usize)
    }

    /// Returns the items that overlap the token positions `start..end`, sorted by position. `items`
    /// must be the list that was passed to [`ItemIndex::new`].
    pub(crate) fn overlapping<'a>(
        &'a self,
        items: &'a [MultimodalItem],
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = &'a MultimodalItem> + Clone + 'a {
        let first = self.max_end.partition_point(|&e| e <= start);
        self.order[first..]
            .iter()
            .filter_map(|&i| items.get(i as usize))
            .take_while(move |item| item.offset < end)
            .filter(move |item| start < item.end())
    }
}
