//! `Writer`: writes the subset of `MessagePack` that events need.
//!
//! Each value gets the shortest encoding, as in every packer. The exception is the header of a map
//! whose size is reserved in advance. Events need only six kinds of values. Most bytes are arrays of
//! tokens and of hashes. This writer encodes many of these values at a time and without branches, while
//! a general `MessagePack` crate would be called once for each number.
//!
//! Costs: about 1 ns per token.

/// The number of tokens that are encoded in a buffer before they are appended.
const AT_ONCE: usize = 64;

/// Appends values in `MessagePack` format to a list of bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(0xcb);
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.bytes.extend_from_slice(&[0xcc, value as u8]),
            0x100..=0xffff => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
    }

    pub(crate) fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value.unsigned_abs()),
            -32..=-1 => self.bytes.push(value as u8),
            -0x80..=-33 => self.tagged(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..=-0x81 => self.tagged(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..=-0x8001 => self.tagged(0xd2, &(value as i32).to_be_bytes()),
            _ => self.tagged(0xd3, &value.to_be_bytes()),
        }
    }

    pub(crate) fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ 32..=0xff => self.bytes.extend_from_slice(&[0xd9, len as u8]),
            len @ 0x100..=0xffff => self.tagged(0xda, &(len as u16).to_be_bytes()),
            len => self.tagged(0xdb, &(len as u32).to_be_bytes()),
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn binary(&mut self, binary: &[u8]) {
        match binary.len() {
            len @ 0..=0xff => self.bytes.extend_from_slice(&[0xc4, len as u8]),
            len @ 0x100..=0xffff => self.tagged(0xc5, &(len as u16).to_be_bytes()),
            len => self.tagged(0xc6, &(len as u32).to_be_bytes()),
        }
        self.bytes.extend_from_slice(binary);
    }

    /// Writes the header of an array of `len` values, which the caller writes next.
    pub(crate) fn array(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x90 | len as u8),
            16..=0xffff => self.tagged(0xdc, &(len as u16).to_be_bytes()),
            _ => self.tagged(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    /// Writes the header of a map of `len` entries, fewer than 16. The caller writes the keys and
    /// values next.
    pub(crate) fn map(&mut self, len: u8) {
        self.bytes.push(0x80 | len);
    }

    /// Like the method `map`, with the longer header. Encoders that write the header before they have
    /// counted the entries use it.
    pub(crate) fn reserved_map(&mut self, len: u8) {
        self.bytes.extend_from_slice(&[0xde, 0, len]);
    }

    pub(crate) fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        let mut scratch = [0_u8; AT_ONCE * 5 + 8];
        for some in tokens.chunks(AT_ONCE) {
            let mut end = 0;
            for &token in some {
                // `word` has the encoded bytes at its most significant end, and `len` is their number.
                let value = u64::from(token);
                let (word, len) = match token {
                    0..=0x7f => (value << 56, 1),
                    0x80..=0xff => (0xcc << 56 | value << 48, 2),
                    0x100..=0xffff => (0xcd << 56 | value << 40, 3),
                    _ => (0xce << 56 | value << 24, 5),
                };
                if let Some(place) = scratch.get_mut(end..end + 8) {
                    place.copy_from_slice(&u64::to_be_bytes(word));
                }
                end += len;
            }
            self.bytes.extend_from_slice(&scratch[..end]);
        }
    }

    fn tagged(&mut self, tag: u8, value: &[u8]) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::Writer;

    fn written(write: impl Fn(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer);
        writer.into_bytes()
    }

    #[test]
    fn numbers_take_the_shortest_form_at_each_edge() {
        for (value, bytes) in [
            (0, vec![0]),
            (0x7f, vec![0x7f]),
            (0x80, vec![0xcc, 0x80]),
            (0xff, vec![0xcc, 0xff]),
            (0x100, vec![0xcd, 1, 0]),
            (0xffff, vec![0xcd, 0xff, 0xff]),
            (0x1_0000, vec![0xce, 0, 1, 0, 0]),
            (0xffff_ffff, vec![0xce, 0xff, 0xff, 0xff, 0xff]),
        ] {
            assert_eq!(written(|writer| writer.uint(value)), bytes);
            let mut array = vec![0x91];
            array.extend(&bytes);
            assert_eq!(written(|writer| writer.tokens(&[value as u32])), array);
        }
        assert_eq!(written(|writer| writer.uint(1 << 32)), [0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        for (value, bytes) in [
            (-1, vec![0xff]),
            (-32, vec![0xe0]),
            (-33, vec![0xd0, 0xdf]),
            (-128, vec![0xd0, 0x80]),
            (-129, vec![0xd1, 0xff, 0x7f]),
            (-32769, vec![0xd2, 0xff, 0xff, 0x7f, 0xff]),
            (i64::MIN, vec![0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        ] {
            assert_eq!(written(|writer| writer.int(value)), bytes);
        }
    }

    #[test]
    fn lengths_take_the_shortest_form_at_each_edge() {
        for (len, head) in [(15, vec![0x9f]), (16, vec![0xdc, 0, 16]), (0x1_0000, vec![0xdd, 0, 1, 0, 0])] {
            assert_eq!(written(|writer| writer.array(len)), head);
            let array = written(|writer| writer.tokens(&vec![300; len]));
            assert_eq!(array.len(), head.len() + 3 * len);
            assert!(array[head.len()..].chunks(3).all(|token| token == [0xcd, 1, 44]));
        }
        for (len, head) in [(31, vec![0xbf]), (32, vec![0xd9, 32]), (256, vec![0xda, 1, 0])] {
            assert_eq!(written(|writer| writer.text(&"x".repeat(len)))[..head.len()], head);
        }
        for (len, head) in [(255, vec![0xc4, 255]), (256, vec![0xc5, 1, 0])] {
            assert_eq!(written(|writer| writer.binary(&vec![1; len]))[..head.len()], head);
        }
    }
}
