//! Writes canonical CBOR (RFC 7049, section 3.9) for the Python types that vLLM hashes. Every number
//! and length has its shortest form.
//!
//! Unlike in pickle, the identity of Python objects has no effect: equal values have equal bytes. So
//! choose this vLLM encoding if several programs, or several versions of one program, have to compute
//! equal digests.
//!
//! [`text_block`] handles the common case, with one 8-byte store per token. [`Cbor`] handles everything
//! else and appends to a vector.

use super::encoder::{Encoder, ObjectId};

const UNSIGNED: u8 = 0x00;
const NEGATIVE: u8 = 0x20;
const BYTES: u8 = 0x40;
const TEXT: u8 = 0x60;
const ARRAY: u8 = 0x80;
const NULL: u8 = 0xf6;

/// The number of bytes that the buffer of [`text_block`] needs for `tokens` tokens. It includes room
/// for the last 8-byte store.
pub(super) const fn text_block_capacity(tokens: usize) -> usize {
    // The parts, in the order of the bytes: outer array, parent, array header, tokens, null, and room
    // for the last 8-byte store.
    1 + 34 + 9 + 5 * tokens + 1 + 8
}

/// Writes the CBOR form of `(parent, tuple(tokens), None)` into a buffer, and returns the number of
/// bytes written.
///
/// `parent` has at most 32 bytes, and the buffer has at least [`text_block_capacity`] bytes.
pub(super) fn text_block(buffer: &mut [u8], parent: &[u8], tokens: &[u32]) -> usize {
    // Each head is copied with all of its 9 bytes. The next write overwrites the bytes that the head
    // does not use.
    buffer[0] = ARRAY | 3;
    let (bytes, len) = head(BYTES, parent.len() as u64);
    buffer[1..10].copy_from_slice(&bytes);
    let mut at = 1 + len;
    buffer[at..at + parent.len()].copy_from_slice(parent);
    at += parent.len();
    let (bytes, len) = head(ARRAY, tokens.len() as u64);
    buffer[at..at + 9].copy_from_slice(&bytes);
    at += len;
    for &token in tokens {
        let (word, len) = token_word(token);
        buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += len;
    }
    buffer[at] = NULL;
    at + 1
}

/// Returns the CBOR form of a token in the low bytes of a 64-bit number, and how many bytes it takes.
#[inline]
fn token_word(token: u32) -> (u64, usize) {
    if token > 0xffff {
        (u64::from(token.swap_bytes()) << 8 | 0x1a, 5)
    } else if token > 0xff {
        (u64::from(token.swap_bytes() >> 16) << 8 | 0x19, 3)
    } else if token > 23 {
        (u64::from(token) << 8 | 0x18, 2)
    } else {
        (u64::from(token), 1)
    }
}

/// Returns the head of a CBOR data item, and its number of bytes. A head contains the major type, and
/// the argument in its shortest form.
fn head(major: u8, argument: u64) -> ([u8; 9], usize) {
    let mut bytes = [0; 9];
    bytes[1..].copy_from_slice(&argument.to_be_bytes());
    let (info, width) = match argument {
        0..=23 => return ([major | argument as u8, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        24..=0xff => (24, 1),
        0x100..=0xffff => (25, 2),
        0x1_0000..=0xffff_ffff => (26, 4),
        _ => (27, 8),
    };
    bytes.copy_within(9 - width.., 1);
    bytes[0] = major | info;
    (bytes, 1 + width)
}

/// An encoder that writes Python values as CBOR. Values can be nested.
pub(super) struct Cbor<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Cbor<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    fn head(&mut self, major: u8, argument: u64) {
        let (bytes, len) = head(major, argument);
        self.out.extend_from_slice(&bytes[..len]);
    }
}

impl Encoder for Cbor<'_> {
    fn begin_tuple(&mut self, len: usize) {
        self.head(ARRAY, len as u64);
    }

    fn end_tuple(&mut self, _len: usize) {}

    fn none(&mut self) {
        self.out.push(NULL);
    }

    fn int(&mut self, value: i64) {
        let major = if value < 0 { NEGATIVE } else { UNSIGNED };
        // CBOR encodes a negative number n as -1 - n, which is its bitwise complement.
        self.head(major, (if value < 0 { !value } else { value }).cast_unsigned());
    }

    fn bytes(&mut self, bytes: &[u8], _object: Option<ObjectId>) {
        self.head(BYTES, bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn str(&mut self, text: &str, _object: Option<ObjectId>) {
        self.head(TEXT, text.len() as u64);
        self.out.extend_from_slice(text.as_bytes());
    }
}
