//! Reads the random choices of a run from a sequence of bytes.

/// A sequence of bytes with a reading position. Reads beyond the end return zero.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    /// Creates a reader that starts at the first byte of `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    fn next(&mut self) -> u8 {
        let byte = self.data.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// Reads one byte and returns a number from 0 to `n` - 1. `n` is at most 256; `n` = 0 is treated as
    /// 1.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.next()) % n.max(1)
    }

    /// Reads two bytes and returns a number from 0 to `n` - 1. `n` is at most 65,536; `n` = 0 is
    /// treated as 1.
    pub fn wide(&mut self, n: usize) -> usize {
        usize::from(u16::from_le_bytes([self.next(), self.next()])) % n.max(1)
    }

    /// Reads a byte, and returns true with a probability of one in `n`. A zero byte gives false.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Returns one of several items, or `None` if there are none.
    pub fn pick<'b, T>(&mut self, items: &'b [T]) -> Option<&'b T> {
        items.get(self.below(items.len()))
    }

    /// Returns whether all bytes have been read.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.at >= self.data.len()
    }
}
