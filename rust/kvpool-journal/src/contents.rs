//! Generates prompts whose blocks have the keys that a journal contains.
//!
//! A content is a block together with everything before it in the prompt. The first eight bytes of its
//! digest identify it. The generated block consists of zeros and ends with a token that only this
//! content has. Therefore a generated prompt has the digests of the recorded prompt, and no other
//! prompt has them.
//!
//! Costs: 40 bytes per distinct content of a journal, or 60 if hits are verified. With the unused
//! capacity of lists and a table, up to 130 bytes (measured as the growth of a process per additional
//! content).

use std::sync::Arc;

use crate::{ChainRecord, ContentKey, Filled, Keys, LinkRecord};
use hashbrown::HashMap;
use kvpool::hash::{
    BlockHash, BlockHasher, ChainLink, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashCursor,
    HasherConfig, LinkRef, RecordedHashes, Verify,
};
use kvpool::{BlockId, Match};

use crate::error::{ReplayError, zeros};
use crate::numbers::Numbers;

/// The base of keys for contents that occur in no journal. Recorded keys are eight bytes of a digest,
/// so they are no more likely to equal this constant than any other.
const MADE_UP_KEYS: u64 = 0x9e37_79b9_7f4a_7c15;

/// A known content.
#[derive(Clone, Copy, Debug)]
struct Content {
    key: u64,
    fingerprint: u64,
    /// The token that represents the content of the previous block. `None` for a first block, or if no
    /// record contains the previous block.
    parent: Option<u32>,
}

/// The contents that have occurred in a journal so far.
#[derive(Debug)]
pub struct Contents {
    hashes: RecordedHashes,
    hasher: Arc<BlockHasher>,
    /// A second hasher, for prompts that were hashed with a different hasher from the manager's.
    foreign: Arc<BlockHasher>,
    block_size: usize,
    /// Whether the pool compares tokens to verify hits. False in replays, whose matches therefore
    /// contain no tokens.
    compares_tokens: bool,
    tokens: HashMap<ContentKey, u32>,
    contents: Vec<Content>,
    /// Chains that were hashed from real tokens, passed to [`Self::teach`]. Maps the key of each block
    /// to its chain and its position.
    hashed: HashMap<u64, (Arc<HashChain>, usize)>,
    /// The latest matches that a pool returned, newest first.
    matches: Vec<Match>,
    /// Pairs of tokens that represent the same content. A pair is added when a prompt is hashed again
    /// and another prompt already has the new content.
    same: Vec<(u32, u32)>,
}

impl Contents {
    pub(crate) fn new(
        algorithm: HashAlgorithm,
        block_size: usize,
        verify: Verify,
    ) -> Result<Self, ReplayError> {
        let hashes = RecordedHashes::default();
        let config = HasherConfig { algorithm, block_size, verify, ..HasherConfig::default() };
        let hasher = Arc::new(BlockHasher::recorded(config.clone(), hashes.clone())?);
        let foreign = HasherConfig { seed: Some("foreign".into()), ..config };
        let foreign = Arc::new(BlockHasher::recorded(foreign, hashes.clone())?);
        Ok(Self {
            hashes,
            hasher,
            foreign,
            block_size,
            compares_tokens: verify == Verify::Tokens,
            tokens: HashMap::new(),
            contents: Vec::new(),
            hashed: HashMap::new(),
            matches: Vec::new(),
            same: Vec::new(),
        })
    }

    /// Removes all contents. Prompts that were generated before must not be used any more.
    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
        (self.tokens, self.contents) = (HashMap::new(), Vec::new());
        (self.hashed, self.matches, self.same) = (HashMap::new(), Vec::new(), Vec::new());
    }

    pub(crate) const fn hasher(&self) -> &Arc<BlockHasher> {
        &self.hasher
    }

    /// Returns the token of a content. Makes a new token if the content is unknown.
    ///
    /// Some records contain a key without a fingerprint: a link has only the key of the previous block,
    /// and a chain may have no fingerprints. A key alone also finds a content with a fingerprint. If
    /// the content has no fingerprint yet, a later record can add it.
    fn token(&mut self, key: u64, fingerprint: u64, parent: Option<u32>) -> Result<u32, ReplayError> {
        let by_key = self.tokens.get(&(key, 0)).copied();
        let without_fingerprint =
            |token: &u32| self.contents.get(*token as usize).is_some_and(|one| one.fingerprint == 0);
        let known = self.tokens.get(&(key, fingerprint)).copied().or(by_key.filter(without_fingerprint));
        if let Some(token) = known {
            if let Some(content) = self.contents.get_mut(token as usize) {
                content.parent = content.parent.or(parent);
                if content.fingerprint == 0
                    && fingerprint != 0
                    && self.hashes.replace(token, key, fingerprint)
                {
                    content.fingerprint = fingerprint;
                    self.tokens.insert((key, fingerprint), token);
                }
            }
            return Ok(token);
        }
        let token = self.hashes.push(key, fingerprint).ok_or(ReplayError::TooManyContents)?;
        self.tokens.insert((key, fingerprint), token);
        self.tokens.insert((key, 0), token);
        self.contents.push(Content { key, fingerprint, parent });
        Ok(token)
    }

    /// Returns a key and a fingerprint for a new content, which no journal contains.
    fn made_up_key(&self) -> ContentKey {
        let key = MADE_UP_KEYS ^ self.contents.len() as u64;
        (key, if self.hasher.has_fingerprints() { key } else { 0 })
    }

    /// Returns the token of each block's content in a recorded chain. The blocks that the record omits
    /// are found from the last of them, block by block back to the first.
    fn path(&mut self, record: &ChainRecord) -> Result<Vec<u32>, ReplayError> {
        let mut path = Vec::new();
        if let Some((blocks, last)) = record.known {
            let mut at = self.tokens.get(&last).copied();
            while let Some(token) = at.filter(|_| path.len() < blocks) {
                path.push(token);
                at = self.contents.get(token as usize).and_then(|content| content.parent);
            }
            if path.len() != blocks || at.is_some() {
                return Err(ReplayError::UnknownContent { key: last.0 });
            }
            path.reverse();
        }
        let fingerprints = record.fingerprints.unpack().map(Some).chain(std::iter::repeat(None));
        for (key, fingerprint) in record.keys.unpack().zip(fingerprints) {
            let parent = path.last().copied();
            let token = self.token(key, fingerprint.unwrap_or(0), parent)?;
            // An earlier link may have recorded a parent of another epoch. Replace it by the parent in
            // this chain, which is correct. Do not do so if the chain lacks fingerprints although
            // contents are distinguished by them.
            let knows = fingerprint.is_some() || !self.hasher.has_fingerprints();
            if let Some(content) = self.contents.get_mut(token as usize).filter(|_| knows) {
                content.parent = parent;
            }
            path.push(token);
        }
        Ok(path)
    }

    /// Returns the record of a chain with the keys of all its blocks, including those that the record
    /// omits because earlier records contain them.
    pub(crate) fn whole(&mut self, record: &ChainRecord) -> Result<ChainRecord, ReplayError> {
        let path = self.path(record)?;
        let contents = path.iter().filter_map(|&token| self.contents.get(token as usize));
        let (keys, fingerprints): (Vec<_>, Vec<_>) =
            contents.map(|content| (content.key, content.fingerprint)).unzip();
        let verified = self.has_fingerprints(record);
        Ok(ChainRecord {
            known: None,
            keys: Keys::pack(&keys),
            fingerprints: if verified { Keys::pack(&fingerprints) } else { Keys::default() },
            ..record.clone()
        })
    }

    /// Returns the made-up tokens of full blocks. Each block consists of zeros and ends with the token
    /// of its content.
    fn spell(&self, path: &[u32]) -> Result<Vec<u32>, ReplayError> {
        let mut tokens = zeros(path.len().saturating_mul(self.block_size))?;
        let ends = tokens.iter_mut().skip(self.block_size - 1).step_by(self.block_size);
        for (end, &token) in ends.zip(path) {
            *end = token;
        }
        Ok(tokens)
    }

    /// Adds a chain that was hashed from real tokens. Blocks of later records that have a key of this
    /// chain get its digests, fingerprints and tokens.
    pub(crate) fn teach(&mut self, chain: HashChain) {
        let chain = Arc::new(chain);
        for (position, hash) in chain.hashes().iter().enumerate() {
            self.hashed.insert(hash.key(), (Arc::clone(&chain), position));
        }
    }

    /// Adds a match that a pool returned. [`Self::found`] returns it for an equal record, while it is
    /// one of the latest 16 matches.
    pub(crate) fn teach_match(&mut self, found: Match) {
        const KEPT: usize = 16;
        self.matches.truncate(KEPT - 1);
        self.matches.insert(0, found);
    }

    /// Returns the block with this key, if a chain that was added with [`Self::teach`] contains it.
    fn hashed(&self, key: u64) -> Option<LinkRef<'_>> {
        let (chain, position) = self.hashed.get(&key)?;
        chain.link(*position)
    }

    fn hash(&self, key: u64) -> BlockHash {
        self.hashed(key).map_or_else(|| BlockHash::from_key(key), |block| block.hash)
    }

    fn compared(&self, key: u64, fingerprint: u64) -> Fingerprint {
        self.hashed(key).and_then(|block| block.fingerprint).unwrap_or_else(|| fingerprint.into())
    }

    /// Returns the tokens of the blocks with these keys: the real tokens where they are known, made-up
    /// tokens otherwise.
    fn spell_all(&self, path: &[u32], keys: impl Iterator<Item = u64>) -> Result<Vec<u32>, ReplayError> {
        let mut tokens = self.spell(path)?;
        for (block, key) in tokens.chunks_exact_mut(self.block_size).zip(keys) {
            if let Some(real) = self.hashed(key).and_then(|block| block.tokens) {
                block.copy_from_slice(real);
            }
        }
        Ok(tokens)
    }

    /// Builds a hashed prompt of made-up tokens whose blocks have the recorded keys.
    pub(crate) fn cursor(&mut self, record: &ChainRecord, foreign: bool) -> Result<HashCursor, ReplayError> {
        let path = self.path(record)?;
        let hasher = if foreign { &self.foreign } else { &self.hasher };
        let extra = ExtraKeys { epoch: record.epoch, ..ExtraKeys::default() };
        let mut cursor = HashCursor::new(Arc::clone(hasher), extra)?;
        let mut tokens = self.spell(&path)?;
        let tail = record.tokens.checked_sub(tokens.len()).filter(|&tail| tail < self.block_size);
        tokens.resize(tokens.len() + tail.ok_or(ReplayError::BadLength { tokens: record.tokens })?, 0);
        cursor.append(&tokens);
        Ok(cursor)
    }

    /// Builds a hash chain whose blocks have the recorded keys. The algorithm and the block size are
    /// those of the record, not those of the hasher.
    pub(crate) fn chain(&mut self, record: &ChainRecord) -> Result<HashChain, ReplayError> {
        let path = self.path(record)?;
        let algorithm = algorithm(record.algorithm)?;
        let contents: Vec<_> =
            path.iter().filter_map(|&token| self.contents.get(token as usize).copied()).collect();
        let hashes = contents.iter().map(|content| self.hash(content.key)).collect();
        let has_fingerprints = self.has_fingerprints(record);
        let compared = contents.iter().map(|one| self.compared(one.key, one.fingerprint));
        let fingerprints = if has_fingerprints { compared.collect() } else { Vec::new() };
        let spelled = record.has_tokens && record.block_size == self.block_size;
        let keys = contents.iter().map(|content| content.key);
        let tokens = if spelled { self.spell_all(&path, keys)? } else { Vec::new() };
        Ok(HashChain::forged(algorithm, record.block_size, record.epoch, hashes, fingerprints, tokens))
    }

    /// Builds a match (the result of a lookup) whose blocks have the recorded keys. The record contains
    /// only the part of the chain that the match covers.
    pub(crate) fn found(
        &mut self,
        record: &ChainRecord,
        start: usize,
        blocks: Vec<BlockId>,
    ) -> Result<Match, ReplayError> {
        let fingerprints = record.fingerprints.unpack().map(Some).chain(std::iter::repeat(None));
        let (mut hashes, mut compared, mut path) = (Vec::new(), Vec::new(), Vec::new());
        for (key, fingerprint) in record.keys.unpack().zip(fingerprints) {
            path.push(self.token(key, fingerprint.unwrap_or(0), path.last().copied())?);
            hashes.push(self.hash(key));
            compared.extend(fingerprint.map(|fingerprint| self.compared(key, fingerprint)));
        }
        if hashes.len() != blocks.len() {
            return Err(ReplayError::BadLength { tokens: record.tokens });
        }
        let (algorithm, size) = (algorithm(record.algorithm)?, record.block_size);
        let spelled = self.compares_tokens && record.has_tokens && size == self.block_size;
        let tokens = if spelled { self.spell_all(&path, record.keys.unpack())? } else { Vec::new() };
        let part = HashChain::forged(algorithm, size, record.epoch, hashes, compared, tokens);
        let forged = Match::forged(start, blocks, &part);
        let is_known = |known: &&Match| {
            **known == forged
                && known.blocks() == forged.blocks()
                && known.hashes() == forged.hashes()
                && (known.epoch(), known.algorithm(), known.block_size()) == (record.epoch, algorithm, size)
        };
        Ok(self.matches.iter().find(is_known).cloned().unwrap_or(forged))
    }

    /// Builds a link (the position of a block in a chain) that has the recorded key.
    pub(crate) fn link(&mut self, record: &LinkRecord) -> Result<ChainLink, ReplayError> {
        let parent = match record.parent {
            None => None,
            Some(key) => Some(self.token(key, 0, None)?),
        };
        let token = self.token(record.key, record.fingerprint.unwrap_or(0), parent)?;
        let mut tokens = vec![0; record.block_size.min(1 << 20)];
        if let Some(last) = tokens.last_mut() {
            *last = token;
        }
        if let Some(real) = self.hashed(record.key).and_then(|block| block.tokens)
            && real.len() == tokens.len()
        {
            tokens.copy_from_slice(real);
        }
        Ok(ChainLink::forged(
            algorithm(record.algorithm)?,
            record.epoch,
            self.hash(record.key),
            record.fingerprint.map(|fingerprint| self.compared(record.key, fingerprint)),
            record.parent.map(|parent| self.hash(parent)),
            record.depth,
            tokens.into(),
        ))
    }

    /// Generates `count` tokens to append to a prompt. The blocks that become full get the recorded
    /// contents, from `keys`.
    pub(crate) fn appended(
        &mut self,
        cursor: &HashCursor,
        count: usize,
        keys: &mut impl Iterator<Item = u64>,
        fingerprints: &mut impl Iterator<Item = u64>,
    ) -> Result<Vec<u32>, ReplayError> {
        let mut parent = cursor.chain().tokens().last().copied();
        let mut tokens = zeros(count)?;
        let first = self.block_size - 1 - cursor.tail().len();
        for last in tokens.iter_mut().skip(first).step_by(self.block_size) {
            // `keys` is too short in two cases: the recorded append was refused and filled no blocks,
            // or a shrinker shortened the prompt, so other blocks become full. Each of these blocks
            // gets a new content that no prompt of the journal has.
            let (key, fingerprint) = match keys.next() {
                Some(key) => (key, fingerprints.next().unwrap_or(0)),
                None => self.made_up_key(),
            };
            *last = self.token(key, fingerprint, parent)?;
            parent = Some(*last);
        }
        Ok(tokens)
    }

    /// Replaces the digests of a prompt's blocks by those of another epoch, in which the prompt was
    /// hashed again.
    pub(crate) fn rehash(&mut self, cursor: &HashCursor, Filled { keys, fingerprints }: &Filled) {
        let fingerprints = fingerprints.unpack().map(Some).chain(std::iter::repeat(None));
        let blocks = cursor.chain().tokens().chunks_exact(self.block_size);
        let mut before = None;
        for (block, (key, fingerprint)) in blocks.zip(keys.unpack().zip(fingerprints)) {
            let Some(&token) = block.last() else { continue };
            let parent = before.replace(token);
            let fingerprint = fingerprint.unwrap_or(0);
            if self.hashes.replace(token, key, fingerprint)
                && let Some(content) = self.contents.get_mut(token as usize)
            {
                (content.key, content.fingerprint) = (key, fingerprint);
                // Another prompt may already have this content, with another token. The digests of that
                // prompt do not change.
                content.parent = parent;
                let before = self.tokens.insert((key, fingerprint), token);
                self.same.extend(before.filter(|&before| before != token).map(|before| (before, token)));
            }
        }
    }

    /// Numbers the contents. An exported test writes a prompt as a list of these numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        Numbers::new(&self.tokens, &self.same, |token| self.contents.get(token as usize)?.parent)
    }

    /// Whether a recorded chain has fingerprints. The result is always false if the pool does not
    /// compare fingerprints.
    fn has_fingerprints(&self, record: &ChainRecord) -> bool {
        let known = record.known.is_none_or(|(_, (_, fingerprint))| fingerprint != 0);
        self.hasher.has_fingerprints() && (!record.fingerprints.is_empty() || record.keys.is_empty() && known)
    }
}

fn algorithm(number: u8) -> Result<HashAlgorithm, ReplayError> {
    let known = HashAlgorithm::ALL.get(usize::from(number));
    known.copied().ok_or(ReplayError::UnknownAlgorithm { number })
}
