//! The block keys that the drawn calls of vLLM's pool use.

use kvpool::Name;
use kvpool_vllm::Key;

/// The prompts, each given by the contents of its blocks. Some begin with the same contents.
pub const PROMPTS: [[u8; 4]; 3] = [[1, 2, 3, 4], [1, 2, 9, 9], [8, 8, 8, 8]];
/// The KV-cache groups of the prompts. Only the first one may be declared as chained, which means that
/// a block depends on the previous one.
pub const PROMPT_GROUPS: [u32; 2] = [0, 1];
/// The KV-cache groups of all keys: small groups, the largest one that the core supports, and larger
/// ones.
pub const GROUPS: [u32; 5] = [0, 1, Name::MAX_GROUP as u32, Name::MAX_GROUP as u32 + 1, u32::MAX];

/// The block keys that the calls of a run use.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Number of bytes of the digests of prompts.
    digest_len: usize,
    all: Vec<Key>,
    /// Number of keys at the start of the list that most calls use. They differ only in their digest or
    /// only in their group.
    plain: usize,
}

/// Creates a key. The digest must have at most 35 bytes.
fn new(digest: &[u8], group: u32) -> Option<Key> {
    Key::new(digest, group).ok()
}

impl Keys {
    /// Creates the keys. Most of their digests have `digest_len` bytes.
    #[must_use]
    pub fn new(digest_len: usize) -> Self {
        let mut keys = Self { digest_len, all: Vec::new(), plain: 0 };
        let plain = (0..3).flat_map(|n| PROMPT_GROUPS.map(|group| new(&vec![n; digest_len], group)));
        keys.extend(plain);
        keys.plain = keys.all.len();
        // Add unusual keys: digests of other lengths that begin with the same bytes (the core accepts
        // one of these lengths), other groups, an empty digest, and keys shorter than a group.
        keys.extend([(0, 16), (1, 16), (0, 32), (0, 35), (0, 0)].map(|(n, len)| new(&vec![n; len], 0)));
        keys.extend(GROUPS.map(|group| new(&vec![0; digest_len], group)));
        keys.extend([Key::from_bytes(&[0; 3]).ok()]);
        for group in PROMPT_GROUPS {
            for prompt in &PROMPTS {
                keys.extend(
                    (0..prompt.len()).map(|len| keys.half(&prompt[..len], group)).collect::<Vec<_>>(),
                );
                keys.extend(
                    (1..=prompt.len()).map(|len| keys.full(&prompt[..len], group)).collect::<Vec<_>>(),
                );
            }
        }
        keys
    }

    fn extend(&mut self, keys: impl IntoIterator<Item = Option<Key>>) {
        for key in keys.into_iter().flatten() {
            if !self.all.contains(&key) {
                self.all.push(key);
            }
        }
    }

    /// Returns all keys.
    #[must_use]
    pub fn all(&self) -> &[Key] {
        &self.all
    }

    /// Returns the few keys that most drawn calls use.
    #[must_use]
    pub fn plain(&self) -> &[Key] {
        &self.all[..self.plain]
    }

    /// Returns the key of the last block of a prompt.
    #[must_use]
    pub fn full(&self, prompt: &[u8], group: u32) -> Option<Key> {
        self.of(0, prompt, group)
    }

    /// Returns the key of a block that is half filled and follows a prompt.
    #[must_use]
    pub fn half(&self, prompt: &[u8], group: u32) -> Option<Key> {
        self.of(0xff, prompt, group)
    }

    fn of(&self, filling: u8, prompt: &[u8], group: u32) -> Option<Key> {
        let mut digest = vec![filling; self.digest_len];
        digest[..prompt.len()].copy_from_slice(prompt);
        digest[self.digest_len - 1] = prompt.len() as u8 + 3;
        new(&digest, group)
    }
}
