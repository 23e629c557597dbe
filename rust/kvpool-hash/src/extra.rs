//! Extra keys: everything besides the tokens that decides what a block's KV is, or who may use it.
//!
//! Each kind of key has a field of its own and a tag of its own in the native encoding, so that no adapter
//! can be mistaken for a salt, however the strings are chosen. Fields are opaque bytes made by the engine or
//! its gateway, never by the user of the service.
//!
//! Request-level keys enter the root digest and reach every block through the chain. Multimodal items
//! enter the blocks that they overlap, and come with the prompt or with the tokens of a later turn.
//! [`ItemIndex`] finds those in `O(log items)` per block; it is empty, and costs a compare, for text.

use std::fmt;

use super::HashError;
use super::config::hidden;

/// The last token position at which an item may end: relative offsets are signed 64-bit numbers.
const MAX_ITEM_END: u64 = i64::MAX as u64;

/// The extra keys of one request. Two requests share a block only if all of these are equal, as far as they
/// reach that block.
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
    /// The adapter (`LoRA`) that computes the KV.
    pub adapter: Option<Adapter>,
    /// Cache salt: requests with different salts never share. Must come from a trusted gateway.
    pub salt: Option<Box<[u8]>>,
    /// The principal that owns the blocks.
    pub tenant: Option<Box<[u8]>>,
    /// Version of the weights: raised when the model changes, so that nothing computed before matches.
    pub epoch: u64,
    /// The end user, where sharing has to stop at one person.
    pub user: Option<Box<[u8]>>,
    /// Images, audio and other items whose embeddings stand at token positions. In any order: the hasher
    /// sorts by position.
    pub multimodal: Vec<MultimodalItem>,
}

/// An adapter on top of the base weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    /// Immutable *content* id, such as the digest of the adapter's weights. A name that can be pointed at
    /// other weights is not one: blocks computed with the old weights would match.
    pub id: Box<[u8]>,
    /// Where it was loaded from, for encodings that include it (vLLM's do).
    pub path: Option<Box<str>>,
}

/// One multimodal item of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultimodalItem {
    /// Content id, such as the digest of the image.
    pub identifier: Box<[u8]>,
    /// Position of the item's first placeholder token, counted from the start of the sequence, in
    /// whichever turn it comes.
    pub offset: u64,
    /// Placeholder tokens; an item of none overlaps no block and changes nothing.
    pub length: u64,
}

/// Salt, tenant and user do not belong in logs.
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
    /// Checks what every encoding needs: item ends that fit, and a countable number of items, those
    /// `before` them included.
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

    /// The item's start relative to the block's start; negative when the item began in an earlier block.
    ///
    /// Both positions are below 2^63: items by [`MultimodalItem::check`], blocks because their tokens are in
    /// memory.
    pub(crate) fn relative_offset(&self, block_start: u64) -> i64 {
        self.offset.wrapping_sub(block_start).cast_signed()
    }

    /// One past the last token of the item.
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// The items in prompt order, with what is needed to find those of a block.
#[derive(Debug, Clone, Default)]
pub(crate) struct ItemIndex {
    /// Positions in [`ExtraKeys::multimodal`], sorted by offset, then length, then identifier: the order the
    /// engine listed them in makes no difference.
    order: Box<[u32]>,
    /// For each of `order`, the largest end up to and including it. Never decreasing, hence searchable, also
    /// when items overlap.
    max_end: Box<[u64]>,
}

impl ItemIndex {
    /// Sorts the items. `O(n log n)`; allocates nothing for text.
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
        // The count was checked to fit, so no position is changed by this.
        Self { order: order.into_iter().map(|i| i as u32).collect(), max_end }
    }

    /// Whether the prompt is all text.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether an item begins at token `start` or behind. `items` has to be what [`ItemIndex::new`] got.
    pub(crate) fn reaches(&self, items: &[MultimodalItem], start: u64) -> bool {
        self.order.last().and_then(|&i| items.get(i as usize)).is_some_and(|item| item.offset >= start)
    }

    /// The items that overlap the token positions `start..end`, in prompt order. `items` has to be what
    /// [`ItemIndex::new`] got.
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
