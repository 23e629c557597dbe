//! Finds the end of a JSON value, and the keys of its outermost object, without parsing it.
//!
//! [`Scanner`] tracks only strings, escapes and nesting. So it works on incomplete values, and accepts
//! much that is not JSON; the parser reports such errors later. Memory: at most [`MAX_KEYS`] keys of at
//! most [`MAX_TEXT`] bytes.

/// The maximum number of keys that are stored.
const MAX_KEYS: usize = 64;
/// The maximum number of bytes that are stored of a key or a string.
const MAX_TEXT: usize = 64;

#[derive(Clone, Debug, Default)]
pub(crate) struct Scanner {
    first: Option<u8>,
    depth: usize,
    /// `Some` while the scanner is inside a string. The value is true after a backslash.
    string: Option<bool>,
    /// The last string at the outermost level of the value, as far as it was scanned.
    text: Vec<u8>,
    keys: Vec<Vec<u8>>,
    kind: Vec<u8>,
    done: bool,
}

impl Scanner {
    /// Scans `bytes`, and returns how many of them belong to the value. Blanks before it count as well.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> usize {
        for (at, &byte) in bytes.iter().enumerate() {
            if self.done {
                return at;
            }
            self.step(byte);
        }
        bytes.len()
    }

    fn step(&mut self, byte: u8) {
        if let Some(escaped) = self.string {
            match byte {
                _ if escaped => self.string = Some(false),
                b'\\' => self.string = Some(true),
                b'"' => self.end_string(),
                _ if self.depth == 1 && self.text.len() < MAX_TEXT => self.text.push(byte),
                _ => {}
            }
            return;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' => {
                self.first.get_or_insert(byte);
                self.string = Some(false);
                if self.depth == 1 {
                    self.text.clear();
                }
            }
            b'{' | b'[' => {
                self.first.get_or_insert(byte);
                self.depth += 1;
            }
            b'}' | b']' => {
                self.first.get_or_insert(byte);
                self.depth = self.depth.saturating_sub(1);
                self.done = self.depth == 0;
            }
            b':' if self.depth == 1 && self.first == Some(b'{') && self.keys.len() < MAX_KEYS => {
                self.keys.push(std::mem::take(&mut self.text));
            }
            _ => {
                self.first.get_or_insert(byte);
                // The value is no object, array or string. It ends here, and the parser reports the
                // error later.
                self.done = self.depth == 0;
            }
        }
    }

    fn end_string(&mut self) {
        self.string = None;
        self.done = self.depth == 0;
        if self.depth == 1 && self.kind.is_empty() && self.keys.last().is_some_and(|key| key == b"type") {
            self.kind.clone_from(&self.text);
        }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    pub(crate) fn is_array(&self) -> bool {
        self.first == Some(b'[')
    }

    /// Whether the outermost object has this key, in the part scanned so far.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|one| one == key.as_bytes())
    }

    /// The string value of the key `type`. It is empty if there is no such key.
    pub(crate) fn kind(&self) -> &[u8] {
        &self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> (Scanner, usize) {
        let mut scanner = Scanner::default();
        let taken = scanner.feed(text.as_bytes());
        (scanner, taken)
    }

    #[test]
    fn keys_of_the_outermost_object_only() {
        let value = r#"  {"a": {"b": [1, {"c": 2}]}, "d\"e": "x:{y}", "type": "BlockStored", "f": "type"}"#;
        let (scanner, taken) = scan(&format!("{value} {{\"g\": 1}}"));
        assert!(scanner.is_done() && !scanner.is_array());
        assert_eq!(taken, value.len());
        assert!(scanner.has("a") && scanner.has("f") && scanner.has("type"));
        assert!(!scanner.has("b") && !scanner.has("c") && !scanner.has("g") && !scanner.has("x"));
        assert_eq!(scanner.kind(), b"BlockStored");
    }

    #[test]
    fn values_in_pieces_scan_like_whole_values() {
        let text = r#"{"requests": [{"in": "}]\\\""}], "id": "]"}"#;
        for cut in 0..text.len() {
            let mut scanner = Scanner::default();
            assert_eq!(scanner.feed(&text.as_bytes()[..cut]), cut);
            assert!(!scanner.is_done());
            assert_eq!(scanner.feed(&text.as_bytes()[cut..]), text.len() - cut);
            assert!(scanner.is_done() && scanner.has("requests") && scanner.has("id"));
        }
        let (scanner, taken) = scan("[1, 2] [3]");
        assert!(scanner.is_array() && scanner.is_done());
        assert_eq!(taken, 6);
        assert!(!scan("   \n").0.is_begun());
        assert!(scan("nonsense").0.is_done());
    }
}
