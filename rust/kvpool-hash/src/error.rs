//! The errors of hashing.
//!
//! Every message contains the refused value and the limit or the alternatives, so that it can be shown
//! to an operator. No message contains a key, a seed, a salt or a token, because errors are logged.

use super::HashAlgorithm;

/// Why a hashing call was refused. A call that returns an error has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The block size is 0, or exceeds the 32 bits of the encodings.
    #[error("block_size is {block_size}, must be 1..={max}")]
    BlockSize {
        /// The refused size, in tokens.
        block_size: usize,
        /// The largest accepted size, in tokens.
        max: usize,
    },
    /// A key was configured that is not used: the algorithm has no keyed mode, and hits are not
    /// verified.
    #[error("algorithm {algorithm} takes no key: {supported} does, and the fingerprints that verify hits do")]
    KeyNotSupported {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The algorithm that supports a key.
        supported: HashAlgorithm,
    },
    /// The algorithm needs a seed. vLLM draws a random seed for it, so there is no default that several
    /// processes share.
    #[error(
        "algorithm {algorithm} needs a seed: vLLM draws a random one at each start unless PYTHONHASHSEED is \
         set; give both sides the same string"
    )]
    SeedRequired {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
    },
    /// The algorithm exists, but is not part of this build.
    #[error(
        "{algorithm} is not compiled in: build kvpool-hash (or kvpool) with --features {}",
        algorithm.features()
    )]
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
    /// No verify mode has this name.
    #[error("unknown verify mode {name:?}, known: none, fingerprint, tokens")]
    UnknownVerify {
        /// The name that was looked up.
        name: String,
    },
    /// The length of a digest differs from the length that its algorithm produces.
    #[error("digest of {len} bytes, those of {algorithm} have {expected}")]
    DigestLength {
        /// The length of the digest, in bytes.
        len: usize,
        /// The number of bytes that the algorithm produces.
        expected: usize,
        /// The algorithm.
        algorithm: HashAlgorithm,
    },
    /// A digest has bytes set past the digest length of its algorithm.
    #[error("digest {index} has non-zero bytes after the {digest_len} bytes of {algorithm}")]
    DigestPadding {
        /// The position in the list that was passed.
        index: usize,
        /// The number of bytes that the algorithm produces.
        digest_len: usize,
        /// The algorithm that the caller passed.
        algorithm: HashAlgorithm,
    },
    /// Only whole blocks can be hashed.
    #[error("{tokens} tokens are not a whole number of blocks of {block_size}")]
    NotBlockAligned {
        /// The number of tokens passed.
        tokens: usize,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// A call that hashes one block got more or fewer tokens than one block.
    #[error("{tokens} tokens passed as one block of {block_size}")]
    NotOneBlock {
        /// The number of tokens passed.
        tokens: usize,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// A block does not start at a multiple of the block size.
    #[error("block starts at token {start}, not at a multiple of {block_size}")]
    BlockStart {
        /// The position that was passed, in tokens.
        start: u64,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// A truncation to more tokens than the sequence has.
    #[error("cannot truncate to {requested} tokens: there are {len}")]
    TruncateBeyondEnd {
        /// The number of tokens to keep.
        requested: usize,
        /// The number of tokens of the sequence.
        len: usize,
    },
    /// The encoding cannot represent this extra key. If the key were ignored, users or tenants that
    /// must be separate could share blocks.
    #[error("{algorithm} cannot represent {field}; use one of the algorithms sha256, blake3, xxh3")]
    ExtraNotRepresentable {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// A description of the extra key.
        field: &'static str,
    },
    /// vLLM's extra keys are Python strings, so only UTF-8 can be represented.
    #[error("{algorithm} needs UTF-8, and {field} has a bad byte at {valid_up_to}")]
    ExtraNotUtf8 {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// A description of the extra key.
        field: &'static str,
        /// The number of bytes before the first invalid one.
        valid_up_to: usize,
    },
    /// A multimodal item of a later turn begins before the end of the existing tokens. The digests of
    /// those tokens were computed without the item.
    #[error(
        "multimodal item {index} begins at token {offset}, must begin at token {len} or later: \
         earlier tokens are already appended"
    )]
    ItemAppended {
        /// The position in the list that was passed.
        index: usize,
        /// The position of its first token.
        offset: u64,
        /// The number of existing tokens.
        len: usize,
    },
    /// A multimodal item ends after the last position that a signed relative offset can represent.
    #[error("multimodal item {index} ends at {offset} + {length}, must end at or before token {max}")]
    ItemRange {
        /// The position in the list that was passed.
        index: usize,
        /// The position of its first token.
        offset: u64,
        /// Its length in tokens.
        length: u64,
        /// The largest accepted end position, in tokens.
        max: u64,
    },
    /// There are more multimodal items than the encoding's 32-bit count allows.
    #[error("{count} multimodal items, at most {max}")]
    TooManyItems {
        /// The number of items, passed and existing.
        count: usize,
        /// The largest accepted count.
        max: usize,
    },
    /// A chain belongs to another hasher or another request.
    #[error("the chain has {what} {chain}, the call has {expected}")]
    ChainMismatch {
        /// The property that differs.
        what: &'static str,
        /// The chain's value.
        chain: String,
        /// The value of the hasher or of the extra keys.
        expected: String,
    },
    /// A chain whose digests were computed elsewhere has no tokens and no fingerprints, so it cannot be
    /// extended.
    #[error("a chain of {blocks} blocks without their tokens or fingerprints cannot be extended")]
    ChainNotExtendable {
        /// The number of blocks in the chain.
        blocks: usize,
    },
    /// The call supports only vLLM's encodings.
    #[error("{algorithm} is not one of vLLM's algorithms")]
    NotVllm {
        /// The algorithm passed.
        algorithm: HashAlgorithm,
    },
}
