//! Writes the Python types that vLLM hashes in pickle protocol 5, byte for byte like `CPython`'s C
//! pickler.
//!
//! Two features of that pickler affect the bytes, and so the digest:
//!
//! * **Memo.** A string, a bytes object or a tuple gets a memo number when it is written. If the same
//!   string or bytes *object* occurs again, the pickler writes only this number. It writes an equal but
//!   distinct object in full again. So the identities of objects are an input of the digest
//!   ([`ObjectId`]).
//! * **Frames.** The output is divided into frames. Before each object, the pickler ends a frame that
//!   has reached 64 KiB. A string of 64 KiB or more is outside of all frames. A frame of fewer than 4
//!   bytes has no header.
//!
//! [`text_block`] writes the common case, a block without extra keys, into a flat buffer, with one
//! 8-byte store per token. [`Pickler`] handles everything else and appends to a vector.

use hashbrown::HashMap;

use super::encoder::{Encoder, ObjectId};

const FRAME: u8 = 0x95;
const FRAME_HEADER: usize = 9;
const FRAME_MIN: usize = 4;
const FRAME_TARGET: usize = 64 * 1024;

const PROTO_5: [u8; 2] = [0x80, 5];
const MARK: u8 = b'(';
const TUPLE: u8 = b't';
const TUPLE_1_TO_3: [u8; 3] = [0x85, 0x86, 0x87];
const EMPTY_TUPLE: u8 = b')';
const MEMOIZE: u8 = 0x94;
const NONE: u8 = b'N';
const STOP: u8 = b'.';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;
const SHORT_BINBYTES: u8 = b'C';
const BINBYTES: u8 = b'B';
const BINBYTES8: u8 = 0x8e;
const SHORT_BINUNICODE: u8 = 0x8c;
const BINUNICODE: u8 = b'X';
const BINUNICODE8: u8 = 0x8d;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

const MAX_TOKEN: usize = 7;

/// The largest number of tokens that [`text_block`] accepts. With a parent of at most 32 bytes, such a
/// block always fits into one frame.
pub(super) const ONE_FRAME_TOKENS: usize = 8192;

/// The number of bytes that the buffer of [`text_block`] needs for `tokens` tokens. It includes room
/// for the last 8-byte store.
pub(super) const fn text_block_capacity(tokens: usize) -> usize {
    // The parts, in the order of the bytes: PROTO and frame header, parent, MARK, tokens, end, and room
    // for the last 8-byte store.
    11 + 35 + 1 + MAX_TOKEN * tokens + 6 + 8
}

/// Writes the pickle of `(parent, tuple(tokens), None)` into a buffer, and returns the number of bytes
/// written.
///
/// `parent` has 1 to 32 bytes, and there are 1 to [`ONE_FRAME_TOKENS`] tokens. The buffer has at least
/// [`text_block_capacity`] bytes.
pub(super) fn text_block(buffer: &mut [u8], parent: &[u8], tokens: &[u32]) -> usize {
    buffer[..3].copy_from_slice(&[PROTO_5[0], PROTO_5[1], FRAME]);
    buffer[11] = SHORT_BINBYTES;
    buffer[12] = parent.len() as u8;
    let mut at = 13 + parent.len();
    buffer[13..at].copy_from_slice(parent);
    buffer[at] = MEMOIZE;
    at += 1;
    if tokens.len() > TUPLE_1_TO_3.len() {
        buffer[at] = MARK;
        at += 1;
    }
    for &token in tokens {
        let (word, len) = token_word(token);
        buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        at += len;
    }
    let close = TUPLE_1_TO_3.get(tokens.len() - 1).copied().unwrap_or(TUPLE);
    let end = [close, MEMOIZE, NONE, TUPLE_1_TO_3[2], MEMOIZE, STOP];
    buffer[at..at + end.len()].copy_from_slice(&end);
    at += end.len();
    buffer[3..11].copy_from_slice(&((at - 11) as u64).to_le_bytes());
    at
}

/// Returns the pickle of a token (its opcode and its value) in the low bytes of a 64-bit number, and
/// how many bytes it takes.
#[inline]
fn token_word(token: u32) -> (u64, usize) {
    let value = u64::from(token);
    if token > 0xffff {
        if token <= 0x7fff_ffff {
            (value << 8 | u64::from(BININT), 5)
        } else {
            // The value takes five bytes instead of four: pickle's integers are signed, and four bytes
            // would be read as a negative number.
            (value << 16 | 5 << 8 | u64::from(LONG1), 7)
        }
    } else if token > 0xff {
        (value << 8 | u64::from(BININT2), 3)
    } else {
        (value << 8 | u64::from(BININT1), 2)
    }
}

/// An encoder that writes Python values as pickle. Tuples can be nested.
pub(super) struct Pickler<'a> {
    out: &'a mut Vec<u8>,
    /// The position of the header of the frame that is being written. `None` if no frame has begun.
    frame: Option<usize>,
    framing: bool,
    /// The number of memo numbers that have been assigned. Numbers are assigned in ascending order.
    memo_len: u32,
    memo: HashMap<ObjectId, u32>,
}

impl<'a> Pickler<'a> {
    /// Starts a pickle in `out`, which has to be empty.
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(&PROTO_5);
        Self { out, frame: None, framing: true, memo_len: 0, memo: HashMap::new() }
    }

    pub(super) fn finish(mut self) {
        self.write(&[STOP]);
        self.commit_frame();
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.framing && self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEADER]);
        }
        self.out.extend_from_slice(bytes);
    }

    /// Ends the current frame if it has reached 64 KiB. This is called before each object.
    fn boundary(&mut self) {
        if self.frame.is_some_and(|start| self.out.len() - start - FRAME_HEADER >= FRAME_TARGET) {
            self.commit_frame();
        }
    }

    fn commit_frame(&mut self) {
        let Some(start) = self.frame.take() else { return };
        let body = start + FRAME_HEADER;
        let len = self.out.len() - body;
        if len >= FRAME_MIN {
            self.out[start] = FRAME;
            self.out[start + 1..body].copy_from_slice(&(len as u64).to_le_bytes());
        } else {
            self.out.drain(start..body);
        }
    }

    fn memoize(&mut self, object: Option<ObjectId>) {
        if let Some(object) = object {
            self.memo.insert(object, self.memo_len);
        }
        self.memo_len += 1;
        self.write(&[MEMOIZE]);
    }

    /// If the object already has a memo number, writes a reference to it. Returns whether it has one.
    fn get(&mut self, object: Option<ObjectId>) -> bool {
        let Some(&index) = object.and_then(|object| self.memo.get(&object)) else { return false };
        match u8::try_from(index) {
            Ok(index) => self.write(&[BINGET, index]),
            Err(_) => self.write_sized(LONG_BINGET, &index.to_le_bytes()),
        }
        true
    }

    fn write_sized(&mut self, opcode: u8, bytes: &[u8]) {
        let mut all = [0; 9];
        all[0] = opcode;
        all[1..=bytes.len()].copy_from_slice(bytes);
        self.write(&all[..=bytes.len()]);
    }

    /// Writes a string or bytes object. The last argument contains the three opcodes for objects whose
    /// length fits into 1, 4 or 8 bytes.
    fn data(&mut self, data: &[u8], object: Option<ObjectId>, [short, medium, long]: [u8; 3]) {
        self.boundary();
        if self.get(object) {
            return;
        }
        let large = data.len() >= FRAME_TARGET;
        if large {
            self.commit_frame();
            self.framing = false;
        }
        let len = data.len();
        match (u8::try_from(len), u32::try_from(len)) {
            (Ok(len), _) => self.write_sized(short, &len.to_le_bytes()),
            (_, Ok(len)) => self.write_sized(medium, &len.to_le_bytes()),
            _ => self.write_sized(long, &(len as u64).to_le_bytes()),
        }
        self.write(data);
        self.framing = true;
        self.memoize(object);
    }
}

impl Encoder for Pickler<'_> {
    fn begin_tuple(&mut self, len: usize) {
        self.boundary();
        if len > TUPLE_1_TO_3.len() {
            self.write(&[MARK]);
        }
    }

    fn end_tuple(&mut self, len: usize) {
        match len {
            // CPython has only one empty tuple object, which never gets a memo number.
            0 => return self.write(&[EMPTY_TUPLE]),
            1..=3 => self.write(&[TUPLE_1_TO_3[len - 1]]),
            _ => self.write(&[TUPLE]),
        }
        self.memoize(None);
    }

    fn none(&mut self) {
        self.boundary();
        self.write(&[NONE]);
    }

    fn int(&mut self, value: i64) {
        self.boundary();
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.write(&[BININT1, bytes[0]]),
            0x100..=0xffff => self.write(&[BININT2, bytes[0], bytes[1]]),
            -0x8000_0000..=0x7fff_ffff => self.write_sized(BININT, &bytes[..4]),
            _ => {
                // Pickle stores such an integer in as few bytes as possible, in two's complement with
                // its sign bit.
                let magnitude = if value < 0 { !value } else { value };
                let len = (64 - magnitude.leading_zeros() as usize) / 8 + 1;
                let mut all = [0; 10];
                all[0] = LONG1;
                all[1] = len as u8;
                all[2..].copy_from_slice(&bytes);
                self.write(&all[..2 + len]);
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8], object: Option<ObjectId>) {
        self.data(bytes, object, [SHORT_BINBYTES, BINBYTES, BINBYTES8]);
    }

    fn str(&mut self, text: &str, object: Option<ObjectId>) {
        self.data(text.as_bytes(), object, [SHORT_BINUNICODE, BINUNICODE, BINUNICODE8]);
    }
}
