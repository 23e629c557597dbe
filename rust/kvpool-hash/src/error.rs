//! What can be wrong with a hashing request.
//!
//! Every message names the value that was refused and the limit or the alternatives, so that it can be shown
//! to an operator as it is. No message contains a key, a seed, a salt or a token: errors end up in logs.

use super::HashAlgorithm;

/// Why a hashing call was refused. Nothing has changed when one of these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The block size is 0, or its token count does not fit the 32 bits of the encodings.
    #[error("block_size is {block_size}, must be 1..={max}")]
    BlockSize {
        /// The refused size, in tokens.
        block_size: usize,
        /// The largest accepted size, in tokens.
        max: usize,
    },
    /// A key was given where nothing uses it: the algorithm has no keyed mode, and hits are not verified.
    #[error("algorithm {algorithm} takes no key: {supported} does, and the fingerprints that verify hits do")]
    KeyNotSupported {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The algorithm that takes one.
        supported: HashAlgorithm,
    },
    /// vLLM draws a random seed for this algorithm, so there is no default to share.
    #[error(
        "algorithm {algorithm} needs a seed: vLLM draws a random one at each start unless PYTHONHASHSEED is set; give both sides the same string"
    )]
    SeedRequired {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
    },
    /// The algorithm is known, and is not part of this build.
    #[error("{algorithm} is not compiled in: build kvpool-hash (or kvpool) with --features {}", algorithm.features())]
    NotCompiledIn {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
    },
    /// No algorithm has this name.
    #[error("unknown hash algorithm {name:?}, known: {}", HashAlgorithm::known_names())]
    UnknownAlgorithm {
        /// The name that was looked up.
        name: String,
    },
    /// No way to verify a hit has this name.
    #[error("unknown verify mode {name:?}, known: none, fingerprint, tokens")]
    UnknownVerify {
        /// The name that was looked up.
        name: String,
    },
    /// A digest of another length than its algorithm gives.
    #[error("digest of {len} bytes, those of {algorithm} have {expected}")]
    DigestLength {
        /// Its length in bytes.
        len: usize,
        /// Bytes that the algorithm gives.
        expected: usize,
        /// The algorithm.
        algorithm: HashAlgorithm,
    },
    /// A digest has bytes set past the digest length of its algorithm.
    #[error("digest {index} has non-zero bytes after the {digest_len} bytes of {algorithm}")]
    DigestPadding {
        /// Position in the list that was passed.
        index: usize,
        /// Bytes that the algorithm produces.
        digest_len: usize,
        /// The algorithm named by the caller.
        algorithm: HashAlgorithm,
    },
    /// Only whole blocks can be hashed.
    #[error("{tokens} tokens are not a whole number of blocks of {block_size}")]
    NotBlockAligned {
        /// Tokens passed.
        tokens: usize,
        /// Tokens of a block.
        block_size: usize,
    },
    /// A call that hashes one block got more or fewer tokens than that.
    #[error("{tokens} tokens passed as one block of {block_size}")]
    NotOneBlock {
        /// Tokens passed.
        tokens: usize,
        /// Tokens of a block.
        block_size: usize,
    },
    /// A block does not start at a multiple of the block size.
    #[error("block starts at token {start}, not at a multiple of {block_size}")]
    BlockStart {
        /// The position passed.
        start: u64,
        /// Tokens of a block.
        block_size: usize,
    },
    /// More tokens are to be kept than there are.
    #[error("cannot truncate to {requested} tokens: there are {len}")]
    TruncateBeyondEnd {
        /// Tokens to keep.
        requested: usize,
        /// Tokens there are.
        len: usize,
    },
    /// The encoding has no place for this extra key. Dropping it would let two principals share blocks.
    #[error("{algorithm} cannot represent {field}; use one of the algorithms sha256, blake3, xxh3")]
    ExtraNotRepresentable {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The extra key, in words.
        field: &'static str,
    },
    /// vLLM's extra keys are Python strings, so only UTF-8 can be represented.
    #[error("{algorithm} needs UTF-8, and {field} has a bad byte at {valid_up_to}")]
    ExtraNotUtf8 {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The extra key, in words.
        field: &'static str,
        /// Bytes before the first bad one.
        valid_up_to: usize,
    },
    /// A multimodal item of a later turn begins among the tokens that are there: the digests of their
    /// blocks say that it is not.
    #[error(
        "multimodal item {index} begins at token {offset}, must begin at or behind token {len}: those before are appended"
    )]
    ItemAppended {
        /// Position in the list that was passed.
        index: usize,
        /// Its first token position.
        offset: u64,
        /// Tokens there are.
        len: usize,
    },
    /// A multimodal item lies past the last position a signed relative offset can name.
    #[error("multimodal item {index} ends at {offset} + {length}, must end at or before token {max}")]
    ItemRange {
        /// Position in the list that was passed.
        index: usize,
        /// Its first token position.
        offset: u64,
        /// Its length in tokens.
        length: u64,
        /// The largest accepted end.
        max: u64,
    },
    /// More multimodal items than the 32-bit count of the encoding.
    #[error("{count} multimodal items, at most {max}")]
    TooManyItems {
        /// Items passed, and those that were there.
        count: usize,
        /// The largest accepted count.
        max: usize,
    },
    /// A chain belongs to another hasher or another request.
    #[error("the chain has {what} {chain}, the call has {expected}")]
    ChainMismatch {
        /// What differs.
        what: &'static str,
        /// The chain's value.
        chain: String,
        /// The value of the hasher or of the extra keys.
        expected: String,
    },
    /// A chain whose digests were computed elsewhere has no tokens and no fingerprints to go on from.
    #[error("a chain of {blocks} blocks without their tokens or fingerprints cannot be extended")]
    ChainNotExtendable {
        /// Blocks in the chain.
        blocks: usize,
    },
    /// The call is about vLLM's encodings only.
    #[error("{algorithm} is not one of vLLM's algorithms")]
    NotVllm {
        /// The algorithm passed.
        algorithm: HashAlgorithm,
    },
}
