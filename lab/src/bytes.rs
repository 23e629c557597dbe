//! Bytes that decide what is drawn.

/// A position in bytes. Every byte after the last one is zero.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Bytes<'a> {
    /// The first of these bytes is next.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    fn next(&mut self) -> u8 {
        let byte = self.data.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// A number from 0 to `n` - 1, of one byte. `n` is at most 256; 0 counts as 1.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.next()) % n.max(1)
    }

    /// A number from 0 to `n` - 1, of two bytes. `n` is at most 65,536; 0 counts as 1.
    pub fn wide(&mut self, n: usize) -> usize {
        usize::from(u16::from_le_bytes([self.next(), self.next()])) % n.max(1)
    }

    /// Whether a byte is in the share of one in `n`. A zero byte is not.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// One of several; `None` of none.
    pub fn pick<'b, T>(&mut self, items: &'b [T]) -> Option<&'b T> {
        items.get(self.below(items.len()))
    }

    /// Whether all bytes are used.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.at >= self.data.len()
    }
}
