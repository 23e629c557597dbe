//! Prompts by the contents of their blocks, and the keys that a journal holds of them.
//!
//! No digest is computed: the key of a content is a function of its prompt. Contents from [`TWIN`] on have the key of
//! another content, and another fingerprint: they collide with it.

use std::collections::BTreeMap;

use kvpool::hash::{HashAlgorithm, Verify};
use kvpool_journal::{ChainRecord, ContentKey, Keys, LinkRecord};

/// The contents of a prompt's blocks.
pub type Path = Vec<u32>;

/// The content `n + TWIN` has the key of the content `n`.
pub const TWIN: u32 = 100;

/// The prompt whose keys another prompt has, too: the one without twins.
#[must_use]
pub fn named(path: &[u32]) -> Path {
    path.iter().map(|content| content % TWIN).collect()
}

fn mixed(path: &[u32], seed: u64) -> u64 {
    path.iter().fold(seed, |key: u64, &content| {
        (key.rotate_left(5) ^ u64::from(content + 1)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// The prompts that were drawn.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Tokens of a block.
    pub block_size: usize,
    /// The algorithm of the subject, by its position in the list of all.
    pub algorithm: u8,
    verify: Verify,
    known: BTreeMap<ContentKey, Path>,
}

impl Prompts {
    /// No prompts.
    #[must_use]
    pub fn new(block_size: usize, verify: Verify) -> Self {
        let algorithm = HashAlgorithm::ALL.iter().position(|&known| known == HashAlgorithm::Sha256);
        Self { block_size, algorithm: algorithm.unwrap_or(0) as u8, verify, known: BTreeMap::new() }
    }

    /// The key of a prompt's last block.
    #[must_use]
    pub fn key(path: &[u32]) -> u64 {
        mixed(&named(path), 0x51_7c_c1_b7)
    }

    fn fingerprint(&self, path: &[u32]) -> u64 {
        if self.verify == Verify::None { 0 } else { mixed(path, 0x9e37_79b9) | 1 }
    }

    fn note(&mut self, path: &[u32]) -> ContentKey {
        let content = (Self::key(path), self.fingerprint(path));
        self.known.entry(content).or_insert_with(|| path.to_vec());
        content
    }

    /// A prompt as a journal has it.
    pub fn chain(&mut self, path: &[u32], epoch: u64) -> ChainRecord {
        let (keys, fingerprints): (Vec<_>, Vec<_>) =
            (1..=path.len()).map(|len| self.note(&path[..len])).unzip();
        let fingerprints = if self.verify == Verify::None { Vec::new() } else { fingerprints };
        ChainRecord {
            tokens: path.len() * self.block_size,
            epoch,
            algorithm: self.algorithm,
            block_size: self.block_size,
            known: None,
            keys: Keys::pack(&keys),
            fingerprints: Keys::pack(&fingerprints),
            has_tokens: true,
        }
    }

    /// The last block of a prompt as a journal has it.
    pub fn link(&mut self, path: &[u32], epoch: u64) -> LinkRecord {
        let (key, fingerprint) = self.note(path);
        let parent = (path.len() > 1).then(|| Self::key(&path[..path.len() - 1]));
        let fingerprint = (self.verify > Verify::None).then_some(fingerprint);
        let (algorithm, block_size, depth) = (self.algorithm, self.block_size, path.len() as u32 - 1);
        LinkRecord { algorithm, block_size, epoch, key, fingerprint, parent, depth }
    }

    fn find(&self, key: u64, fingerprint: Option<u64>) -> Path {
        let fingerprints = fingerprint.unwrap_or(0)..=fingerprint.unwrap_or(u64::MAX);
        let range = (key, *fingerprints.start())..=(key, *fingerprints.end());
        self.known.range(range).next().map(|(_, path)| path.clone()).unwrap_or_default()
    }

    /// The prompt of a chain.
    #[must_use]
    pub fn path(&self, chain: &ChainRecord) -> Path {
        let last = chain.keys.unpack().last();
        last.map_or_else(Path::new, |key| self.find(key, chain.fingerprints.unpack().last()))
    }

    /// The prompt whose last block a link is.
    #[must_use]
    pub fn path_of_link(&self, link: &LinkRecord) -> Path {
        self.find(link.key, link.fingerprint)
    }

    /// A prompt whose last block has this key.
    #[must_use]
    pub fn by_key(&self, key: u64) -> Path {
        self.find(key, None)
    }

    /// All prompts.
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.known.values()
    }
}
