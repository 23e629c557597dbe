//! The native encoding: the bytes that kvpool's own algorithms hash. Different inputs always have
//! different bytes.
//!
//! Every message starts with an eight-byte domain tag that includes a version. Every variable-length
//! field is preceded by its length, and every optional field by a byte that shows whether it is
//! present. So two different inputs never have the same bytes, and a root message never equals a block
//! message.
//!
//! ```text
//! root:  "kvproot1" | 01 adapter | 02 salt | 03 tenant | 04 epoch u64 | 05 user
//!        optional bytes = 00, or 01 | u64 length | bytes
//!        adapter = 00, or 01 | u64 length | id | path as optional bytes
//! block: "kvpblok1" | parent digest | u32 token count | u32 tokens | 00, or 01 | u32 item count | items
//!        item = 06 | u64 length | identifier | i64 offset relative to the block | u64 length in tokens
//! ```
//!
//! All numbers are little endian. The parent digest has the digest length of the algorithm, so it needs
//! no length field. A text block of 16 tokens with a 32-byte parent is 109 bytes: two SHA-256
//! compressions. It is written into a buffer on the stack. If one call hashes several blocks, it
//! rewrites only the parent and the tokens for each block.

use super::BlockHash;
use super::extra::{ExtraKeys, MultimodalItem};
use super::sha256::{PADDING, pad, padded_len, sha256_in_place, sha256_padded};

const ROOT_TAG: [u8; 8] = *b"kvproot1";
const BLOCK_TAG: [u8; 8] = *b"kvpblok1";

const ADAPTER: u8 = 1;
const SALT: u8 = 2;
const TENANT: u8 = 3;
const EPOCH: u8 = 4;
const USER: u8 = 5;
const ITEM: u8 = 6;

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

/// The number of bytes of a fingerprint. For fingerprints, the message of a block contains the parent's
/// fingerprint in the place of the parent's digest.
const FINGERPRINT_LEN: usize = 16;

/// Encodes the root message of a request. It contains all extra keys that apply to the whole request.
pub(super) fn root_message(extra: &ExtraKeys) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(&ROOT_TAG);
    out.push(ADAPTER);
    match &extra.adapter {
        None => out.push(ABSENT),
        Some(adapter) => {
            out.push(PRESENT);
            put_bytes(&mut out, &adapter.id);
            put_optional(&mut out, adapter.path.as_deref().map(str::as_bytes));
        }
    }
    out.push(SALT);
    put_optional(&mut out, extra.salt.as_deref());
    out.push(TENANT);
    put_optional(&mut out, extra.tenant.as_deref());
    out.push(EPOCH);
    out.extend_from_slice(&extra.epoch.to_le_bytes());
    out.push(USER);
    put_optional(&mut out, extra.user.as_deref());
    out
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_optional(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => out.push(ABSENT),
        Some(bytes) => {
            out.push(PRESENT);
            put_bytes(out, bytes);
        }
    }
}

/// A buffer for messages. Short messages, such as those of text blocks of up to 116 tokens, are on the
/// stack. Longer ones are on the heap.
pub(super) struct Scratch {
    inline: [u8; Self::INLINE],
    heap: Vec<u8>,
}

impl Scratch {
    pub(super) const INLINE: usize = 512;

    pub(super) fn new() -> Self {
        Self { inline: [0; Self::INLINE], heap: Vec::new() }
    }

    /// Returns a buffer of at least `len` bytes, and at least [`Scratch::INLINE`] bytes. It may contain
    /// bytes of earlier messages. Repeated calls with the same length allocate at most once.
    pub(super) fn get(&mut self, len: usize) -> &mut [u8] {
        if len <= Self::INLINE {
            return &mut self.inline;
        }
        if self.heap.len() < len {
            self.heap.resize(len, 0);
        }
        &mut self.heap
    }

    /// Returns an empty vector for encoders that only append. It keeps the capacity that it had for
    /// earlier blocks.
    #[cfg(feature = "vllm")]
    pub(super) fn vec(&mut self) -> &mut Vec<u8> {
        self.heap.clear();
        &mut self.heap
    }
}

/// The encoded message of one block. `content` is the position at which the part after the parent
/// digest begins.
pub(super) struct BlockMessage<'a> {
    buffer: &'a mut [u8],
    len: usize,
    content: usize,
}

impl<'a> BlockMessage<'a> {
    /// Encodes one block. The first `parent_len` bytes of `parent` are the parent's digest. `items` are
    /// the multimodal items that overlap the block, and `start` is the position of its first token in
    /// the request.
    pub(super) fn encode<'i>(
        scratch: &'a mut Scratch,
        parent: &[u8; 32],
        parent_len: usize,
        tokens: &[u32],
        start: u64,
        items: Option<impl Iterator<Item = &'i MultimodalItem> + Clone>,
    ) -> Self {
        let content = BLOCK_TAG.len() + parent_len;
        let text_end = content + 4 + 4 * tokens.len();
        let (count, item_bytes) = items.clone().map_or((0, 0), |items| {
            items.fold((0u32, 0usize), |(n, bytes), item| (n + 1, bytes + item_len(item)))
        });
        let len = text_end + 1 + if count == 0 { 0 } else { 4 + item_bytes };

        let buffer = scratch.get(len + PADDING);
        buffer[..8].copy_from_slice(&BLOCK_TAG);
        // This copies all 32 bytes, because a copy of fixed length is two instructions. If the digest
        // is shorter, the code below overwrites the bytes after it.
        buffer[8..40].copy_from_slice(parent);
        let message = &mut buffer[..len];
        let (text, section) = message[content..].split_at_mut(text_end - content);
        // The conversion is exact, because `HasherConfig` limits block sizes to 32 bits.
        text[..4].copy_from_slice(&(tokens.len() as u32).to_le_bytes());
        put_tokens(&mut text[4..], tokens);
        match items {
            Some(items) if count > 0 => put_items(section, count, start, items),
            _ => section[0] = ABSENT,
        }
        Self { buffer, len, content }
    }

    pub(super) fn sha256(&mut self) -> BlockHash {
        sha256_in_place(self.buffer, self.len)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the message with the parent's fingerprint in the place of the parent's digest. It
    /// overwrites the end of that digest, so that tokens and items are not encoded twice.
    pub(super) fn with_fingerprint_parent(&mut self, parent: u128) -> &[u8] {
        with_fingerprint_parent(self.buffer, self.content, self.len, parent)
    }
}

/// The message of text blocks that all have the same size. It is reused for each block.
///
/// The tag, the token count, the end and SHA-256's padding are written once. The parent and the tokens
/// of each block are written with wide stores. A hash function reads with wide loads, which would have
/// to wait for several narrow stores.
pub(super) struct TextMessage<'a> {
    buffer: &'a mut [u8],
    len: usize,
    content: usize,
}

impl<'a> TextMessage<'a> {
    /// Prepares a message for blocks of `block_size` tokens. `parent_len` is the length of the parent's
    /// digest, 16 or 32 bytes.
    pub(super) fn new(scratch: &'a mut Scratch, parent_len: usize, block_size: usize) -> Self {
        let content = BLOCK_TAG.len() + parent_len;
        let len = content + 4 + 4 * block_size + 1;
        let padded = padded_len(len);
        let buffer = &mut scratch.get(padded)[..padded];
        buffer.fill(ABSENT);
        buffer[..8].copy_from_slice(&BLOCK_TAG);
        // The conversion is exact, because `HasherConfig` limits block sizes to 32 bits.
        buffer[content..content + 4].copy_from_slice(&(block_size as u32).to_le_bytes());
        pad(buffer, len, len);
        Self { buffer, len, content }
    }

    /// Writes the parent's digest and the tokens of one block into the message.
    #[inline]
    pub(super) fn set(&mut self, parent: &[u8; 32], tokens: &[u32]) {
        // If the parent has 32 bytes, copy this fixed length, because such a copy compiles to vector
        // instructions.
        if self.content == BLOCK_TAG.len() + 32 {
            self.buffer[8..40].copy_from_slice(parent);
        } else {
            self.buffer[8..24].copy_from_slice(&parent[..16]);
        }
        put_tokens(&mut self.buffer[self.content + 4..self.len - 1], tokens);
    }

    #[inline]
    pub(super) fn sha256(&self) -> BlockHash {
        sha256_padded(self.buffer, self.len)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    /// Returns the message with the parent's fingerprint in the place of the parent's digest. It
    /// overwrites the end of that digest, which the next call of [`TextMessage::set`] writes again in
    /// full.
    #[inline]
    pub(super) fn with_fingerprint_parent(&mut self, parent: u128) -> &[u8] {
        with_fingerprint_parent(self.buffer, self.content, self.len, parent)
    }
}

/// Overwrites the end of the parent's digest with the block tag and a fingerprint. Returns the message
/// that begins with this tag.
fn with_fingerprint_parent(buffer: &mut [u8], content: usize, len: usize, parent: u128) -> &[u8] {
    let at = content - FINGERPRINT_LEN;
    buffer[at - 8..at].copy_from_slice(&BLOCK_TAG);
    buffer[at..content].copy_from_slice(&parent.to_le_bytes());
    &buffer[at - 8..len]
}

/// Writes tokens, little endian: each full group of 16 tokens as one vector, and the remaining tokens
/// one by one.
#[inline]
fn put_tokens(out: &mut [u8], tokens: &[u32]) {
    let (vectors, rest) = tokens.as_chunks::<16>();
    let (slots, tail) = out.as_chunks_mut::<64>();
    for (slot, vector) in slots.iter_mut().zip(vectors) {
        slot.copy_from_slice(vector.map(u32::to_le_bytes).as_flattened());
    }
    for (slot, token) in tail.chunks_exact_mut(4).zip(rest) {
        slot.copy_from_slice(&token.to_le_bytes());
    }
}

fn item_len(item: &MultimodalItem) -> usize {
    1 + 8 + item.identifier.len() + 8 + 8
}

#[cold]
fn put_items<'i>(
    section: &mut [u8],
    count: u32,
    start: u64,
    items: impl Iterator<Item = &'i MultimodalItem>,
) {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        section[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&[PRESENT]);
    put(&count.to_le_bytes());
    for item in items {
        put(&[ITEM]);
        put(&(item.identifier.len() as u64).to_le_bytes());
        put(&item.identifier);
        put(&item.relative_offset(start).to_le_bytes());
        put(&item.length.to_le_bytes());
    }
}
