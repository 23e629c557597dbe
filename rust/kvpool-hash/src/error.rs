//! The errors of hashing.
//!
//! Every message contains the refused value and the limit or the alternatives, so that it can be shown
//! to an operator. No message contains a key, a seed, a salt or a token, because errors are logged.

use super::HashAlgorithm;

/// Why a hashing call was refused. A call that returns an error has changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// The block size is 0, or does not fit into the 32 bits that the encodings have for it.
    #[error("block_size is {block_size}, must be 1..={max}")]
    BlockSize {
        /// The block size that was refused, in tokens.
        block_size: usize,
        /// The largest block size that is accepted, in tokens.
        max: usize,
    },
    /// A key was configured that nothing uses: the algorithm has no keyed mode, and hits are not
    /// verified by fingerprints.
    #[error("algorithm {algorithm} takes no key: {supported} does, and the fingerprints that verify hits do")]
    KeyNotSupported {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The algorithm that supports a key, for the message.
        supported: HashAlgorithm,
    },
    /// The algorithm needs a seed. Without one, vLLM draws a random seed in each process, so there is
    /// no default that several processes share.
    #[error(
        "algorithm {algorithm} needs a seed: vLLM draws a random one at each start unless PYTHONHASHSEED is \
         set; give both sides the same string"
    )]
    SeedRequired {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
    },
    /// The algorithm is known, but this build cannot compute it.
    #[error(
        "{algorithm} is not compiled in: build kvpool-hash (or kvpool) with --features {}",
        algorithm.features()
    )]
    NotCompiledIn {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
    },
    /// The algorithm name is unknown.
    #[error("unknown hash algorithm {name:?}, known: {}", HashAlgorithm::known_names())]
    UnknownAlgorithm {
        /// The algorithm name that was looked up.
        name: String,
    },
    /// The name of a way to verify hits is unknown.
    #[error("unknown verify mode {name:?}, known: none, fingerprint, tokens")]
    UnknownVerify {
        /// The name of a way to verify hits that was looked up.
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
    /// A digest has non-zero bytes after the digest length of its algorithm.
    #[error("digest {index} has non-zero bytes after the {digest_len} bytes of {algorithm}")]
    DigestPadding {
        /// The position of the digest in the list that was passed.
        index: usize,
        /// The number of bytes that the algorithm's digests have.
        digest_len: usize,
        /// The algorithm that the caller passed.
        algorithm: HashAlgorithm,
    },
    /// The number of tokens is not a multiple of the block size. Only whole blocks can be hashed.
    #[error("{tokens} tokens are not a whole number of blocks of {block_size}")]
    NotBlockAligned {
        /// The number of tokens that the caller passed.
        tokens: usize,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// A call that hashes exactly one block got another number of tokens.
    #[error("{tokens} tokens passed as one block of {block_size}")]
    NotOneBlock {
        /// The number of tokens that the caller passed.
        tokens: usize,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// The start of a block is not a multiple of the block size.
    #[error("block starts at token {start}, not at a multiple of {block_size}")]
    BlockStart {
        /// The position that the caller passed, in tokens.
        start: u64,
        /// The block size, in tokens.
        block_size: usize,
    },
    /// A truncation would keep more tokens than the sequence has.
    #[error("cannot truncate to {requested} tokens: there are {len}")]
    TruncateBeyondEnd {
        /// The number of tokens that the truncation should keep.
        requested: usize,
        /// The number of tokens that the sequence has.
        len: usize,
    },
    /// The encoding cannot represent this extra key. Leaving the key out could let users or tenants
    /// share blocks although they must be separate.
    #[error("{algorithm} cannot represent {field}; use one of the algorithms sha256, blake3, xxh3")]
    ExtraNotRepresentable {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The name of the extra key, as part of the message.
        field: &'static str,
    },
    /// An extra key is not valid UTF-8. vLLM's extra keys are Python strings, so its encodings can
    /// represent only UTF-8.
    #[error("{algorithm} needs UTF-8, and {field} has a bad byte at {valid_up_to}")]
    ExtraNotUtf8 {
        /// The configured algorithm.
        algorithm: HashAlgorithm,
        /// The name of the extra key, as part of the message.
        field: &'static str,
        /// The number of bytes of the extra key before the first invalid byte.
        valid_up_to: usize,
    },
    /// A multimodal item of a later turn begins before the end of the existing tokens. The digests of
    /// those tokens were computed without the item.
    #[error(
        "multimodal item {index} begins at token {offset}, must begin at token {len} or later: \
         earlier tokens are already appended"
    )]
    ItemAppended {
        /// The position of the item in the list that was passed.
        index: usize,
        /// The position of the item's first token in the sequence.
        offset: u64,
        /// The number of tokens in the sequence before the call.
        len: usize,
    },
    /// A multimodal item ends too late in the sequence: encodings store an item's offset from a block
    /// as a signed 64-bit number.
    #[error("multimodal item {index} ends at {offset} + {length}, must end at or before token {max}")]
    ItemRange {
        /// The position of the item in the list that was passed.
        index: usize,
        /// The position of the item's first token in the sequence.
        offset: u64,
        /// The length of the item, in tokens.
        length: u64,
        /// The largest token position at which an item may end.
        max: u64,
    },
    /// A sequence has more multimodal items than the 32-bit count of the encoding allows.
    #[error("{count} multimodal items, at most {max}")]
    TooManyItems {
        /// The number of items: those of the sequence and those of the call.
        count: usize,
        /// The largest number of items that the encoding can represent.
        max: usize,
    },
    /// A chain cannot be extended with this hasher and these extra keys, because it was made with
    /// others.
    #[error("the chain has {what} {chain}, the call has {expected}")]
    ChainMismatch {
        /// The property that differs, such as `block size`.
        what: &'static str,
        /// The chain's value.
        chain: String,
        /// The value of the property in the hasher or in the extra keys of the call.
        expected: String,
    },
    /// A chain without tokens or fingerprints cannot be extended. This is the case if its digests were
    /// computed elsewhere.
    #[error("a chain of {blocks} blocks without their tokens or fingerprints cannot be extended")]
    ChainNotExtendable {
        /// The number of blocks that the chain has.
        blocks: usize,
    },
    /// The call supports only vLLM's algorithms.
    #[error("{algorithm} is not one of vLLM's algorithms")]
    NotVllm {
        /// The algorithm passed.
        algorithm: HashAlgorithm,
    },
}
