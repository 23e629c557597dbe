//! Prompts, each given by the contents of its blocks, and the keys of these prompts in journals.
//!
//! Without a hasher no digest is computed, and the key of a content is a simple function of its prompt.
//! A content with a number from [`TWIN`] on has the key of another content but a different fingerprint,
//! so the two collide. With a hasher, prompts have tokens, and their keys come from real digests. A
//! prompt has a salt if the number of its first content is [`SALTED`] or above.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvpool::hash::{BlockHasher, ExtraKeys, HashAlgorithm, HashChain, HashCursor, HasherConfig, Verify};
use kvpool_journal::{ChainRecord, ContentKey, Keys, LinkRecord};

use crate::Failure;

/// A prompt, given by the contents of its blocks.
pub type Path = Vec<u32>;

/// The content `n + TWIN` has the key of the content `n`.
pub const TWIN: u32 = 100;
/// A prompt with a salt begins with the content `n + SALTED`.
pub const SALTED: u32 = 1000;

/// Returns the prompt with the same keys whose contents are all below [`TWIN`].
#[must_use]
pub fn named(path: &[u32]) -> Path {
    path.iter().map(|content| content % TWIN).collect()
}

fn mixed(path: &[u32], seed: u64) -> u64 {
    path.iter().fold(seed, |key: u64, &content| {
        (key.rotate_left(5) ^ u64::from(content + 1)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// The prompts that were randomly generated in a run.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Number of tokens of each block.
    pub block_size: usize,
    /// The hash algorithm of the pool or manager under test, as its position in the list of all
    /// algorithms.
    pub algorithm: u8,
    verify: Verify,
    known: BTreeMap<ContentKey, Path>,
    hasher: Option<Arc<BlockHasher>>,
    /// The keys of the prompts that were hashed, by epoch and prompt.
    keys: BTreeMap<(u64, Path), ContentKey>,
    /// The hash chains of the prompts that were hashed.
    chains: Vec<HashChain>,
}

impl Prompts {
    /// Creates an empty set of prompts. With `hashed`, keys are those of real digests.
    ///
    /// # Errors
    /// The hasher refuses its settings.
    pub fn new(block_size: usize, verify: Verify, hashed: Option<HashAlgorithm>) -> Result<Self, Failure> {
        let algorithm = hashed.unwrap_or(HashAlgorithm::Sha256);
        let config = HasherConfig { algorithm, block_size, verify, ..HasherConfig::default() };
        let hasher = hashed.map(|_| BlockHasher::new(config)).transpose();
        let hasher = hasher.map_err(|error| Failure::new("hasher", error.to_string()))?.map(Arc::new);
        let algorithm = HashAlgorithm::ALL.iter().position(|&known| known == algorithm).unwrap_or(0) as u8;
        let (known, keys, chains) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Ok(Self { block_size, algorithm, verify, known, hasher, keys, chains })
    }

    /// Returns whether prompts are hashed. Otherwise their keys are artificial.
    #[must_use]
    pub const fn are_hashed(&self) -> bool {
        self.hasher.is_some()
    }

    /// Returns the chains of hashed prompts, in the order in which they were drawn.
    #[must_use]
    pub fn chains(&self) -> &[HashChain] {
        &self.chains
    }

    /// Returns the key of the last block of a prompt, for an epoch.
    #[must_use]
    pub fn key(&self, path: &[u32], epoch: u64) -> u64 {
        if self.are_hashed() {
            return self.keys.get(&(epoch, path.to_vec())).map_or(0, |content| content.0);
        }
        mixed(&named(path), 0x51_7c_c1_b7)
    }

    fn content_key(&self, path: &[u32], epoch: u64) -> ContentKey {
        if self.are_hashed() {
            return self.keys.get(&(epoch, path.to_vec())).copied().unwrap_or_default();
        }
        let fingerprint = if self.verify == Verify::None { 0 } else { mixed(path, 0x9e37_79b9) | 1 };
        (self.key(path, epoch), fingerprint)
    }

    /// Hashes a prompt, if digests are computed and the prompt is not hashed yet.
    fn hash(&mut self, path: &[u32], epoch: u64) {
        let Some(hasher) = self.hasher.clone() else { return };
        if path.is_empty() || self.keys.contains_key(&(epoch, path.to_vec())) {
            return;
        }
        let salt =
            path.first().filter(|&&first| first >= SALTED).map(|_| b"salt".to_vec().into_boxed_slice());
        let Ok(mut cursor) = HashCursor::new(hasher, ExtraKeys { salt, epoch, ..ExtraKeys::default() })
        else {
            return;
        };
        for content in path {
            cursor.append(&vec![content % SALTED; self.block_size]);
        }
        let chain = cursor.chain().clone();
        for (at, hash) in chain.hashes().iter().enumerate() {
            let fingerprint = chain.fingerprints().get(at).map_or(0, |&whole| whole as u64);
            self.keys.insert((epoch, path[..=at].to_vec()), (hash.key(), fingerprint));
        }
        self.chains.push(chain);
    }

    fn note(&mut self, path: &[u32], epoch: u64) -> ContentKey {
        let content = self.content_key(path, epoch);
        self.known.entry(content).or_insert_with(|| path.to_vec());
        content
    }

    /// Converts a prompt to the form in which journals record it.
    pub fn chain(&mut self, path: &[u32], epoch: u64) -> ChainRecord {
        self.hash(path, epoch);
        let each = (1..=path.len()).map(|len| self.note(&path[..len], epoch));
        let (keys, fingerprints): (Vec<_>, Vec<_>) = each.unzip();
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

    /// Converts the last block of a prompt to the form in which journals record it.
    pub fn link(&mut self, path: &[u32], epoch: u64) -> LinkRecord {
        self.hash(path, epoch);
        let (key, fingerprint) = self.note(path, epoch);
        let parent = (path.len() > 1).then(|| self.key(&path[..path.len() - 1], epoch));
        let fingerprint = (self.verify > Verify::None).then_some(fingerprint);
        let (algorithm, block_size, depth) = (self.algorithm, self.block_size, path.len() as u32 - 1);
        LinkRecord { algorithm, block_size, epoch, key, fingerprint, parent, depth }
    }

    fn find(&self, key: u64, fingerprint: Option<u64>) -> Path {
        let fingerprints = fingerprint.unwrap_or(0)..=fingerprint.unwrap_or(u64::MAX);
        let range = (key, *fingerprints.start())..=(key, *fingerprints.end());
        self.known.range(range).next().map(|(_, path)| path.clone()).unwrap_or_default()
    }

    /// Returns the prompt that a recorded chain belongs to.
    #[must_use]
    pub fn path(&self, chain: &ChainRecord) -> Path {
        let last = chain.keys.unpack().last();
        last.map_or_else(Path::new, |key| self.find(key, chain.fingerprints.unpack().last()))
    }

    /// Returns the prompt whose last block a recorded link describes.
    #[must_use]
    pub fn path_of_link(&self, link: &LinkRecord) -> Path {
        self.find(link.key, link.fingerprint)
    }

    /// Returns a prompt whose last block has this key.
    #[must_use]
    pub fn by_key(&self, key: u64) -> Path {
        self.find(key, None)
    }

    /// Returns all prompts.
    #[must_use]
    pub fn all(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.known.values()
    }
}
