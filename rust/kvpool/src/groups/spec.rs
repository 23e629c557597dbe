//! Defines [`GroupSpec`]: which blocks of a request the layers of one kind need, and for how long.

use super::units::{Blocks, Tokens};
use crate::error::PoolError;
use crate::hash::MAX_BLOCK_SIZE;

/// Which tokens the layers of a group read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupKind {
    /// Each token reads all tokens before it. Multi-head latent attention is also of this kind.
    Full,
    /// Each token reads itself and the `window - 1` tokens before it.
    Sliding {
        /// Number of tokens that a token reads, including itself.
        window: usize,
    },
    /// Each token reads the tokens before it in the same chunk, as in Llama 4's local attention.
    Chunked {
        /// Number of tokens in a chunk.
        chunk: usize,
    },
    /// The layers have a recurrent state, such as Mamba's. A block contains the state after its last
    /// token, and each token reads the state after the token before it.
    State,
    /// The layers read the output of an encoder, which is not part of the prompt. None of it is cached.
    Cross,
}

impl GroupKind {
    /// Returns the kind with this name. `span` is the number of tokens in a window or chunk; other
    /// kinds ignore it. `None` if no kind has this name.
    #[must_use]
    pub fn named(name: &str, span: usize) -> Option<Self> {
        Some(match name {
            "full" => Self::Full,
            "sliding" => Self::Sliding { window: span },
            "chunked" => Self::Chunked { chunk: span },
            "state" => Self::State,
            "cross" => Self::Cross,
            _ => return None,
        })
    }

    /// Returns the name of the kind: full, sliding, chunked, state or cross.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sliding { .. } => "sliding",
            Self::Chunked { .. } => "chunked",
            Self::State => "state",
            Self::Cross => "cross",
        }
    }

    /// Number of tokens in the window or chunk. `None` for other kinds.
    #[must_use]
    pub const fn span(self) -> Option<usize> {
        match self {
            Self::Sliding { window: span } | Self::Chunked { chunk: span } => Some(span),
            Self::Full | Self::State | Self::Cross => None,
        }
    }

    /// Returns the first token that the token at position `at` reads, or `at` itself if it reads none.
    /// A larger `at` never gives a smaller result, so the KV of the tokens before the result can be
    /// released.
    #[must_use]
    pub const fn reach(self, at: Tokens) -> Tokens {
        match self {
            Self::Full => Tokens::ZERO,
            Self::Sliding { window } => at.minus(Tokens(window.saturating_sub(1))),
            Self::Chunked { chunk } => Tokens(if chunk == 0 { at.0 } else { at.0 - at.0 % chunk }),
            Self::State => at.minus(Tokens(1)),
            Self::Cross => at,
        }
    }

    /// Returns the smallest position such that no token at it or after it reads a token before `from`.
    /// A request that has released the tokens before `from` cannot be truncated to fewer tokens. Full
    /// attention releases no tokens.
    #[must_use]
    pub const fn rewind(self, from: Tokens) -> Tokens {
        match self {
            Self::Full => Tokens::ZERO,
            Self::Sliding { window } => from.plus(Tokens(window.saturating_sub(1))),
            Self::Chunked { chunk } => match from.0.checked_next_multiple_of(chunk) {
                Some(next) => Tokens(next),
                None => from,
            },
            Self::State => from.plus(Tokens(1)),
            Self::Cross => from,
        }
    }

    /// Whether a hit of any length needs all blocks from the first one on.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether the blocks contain KV or states of the prompt, which other requests can hit.
    #[must_use]
    pub const fn is_cached(self) -> bool {
        !matches!(self, Self::Cross)
    }
}

/// Which blocks of a group remain cached after the request no longer needs them. A hit can only end at
/// a position if every group has kept the blocks that the hit needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// All blocks.
    #[default]
    All,
    /// Blocks for hits that end at the end of the prompt, at a junction, or at a multiple of this
    /// number of tokens. The number is rounded up to [`super::Groups::alignment`].
    Every(usize),
    /// Blocks for hits that end at the end of the prompt or at a junction. A junction is a position
    /// from which on an earlier request differs from this one.
    Junctions,
    /// No blocks. Hits do not include this group, so it never limits them. Use it for layers whose KV
    /// other requests cannot use, such as the heads of a draft model.
    Nothing,
}

/// Describes a KV-cache group: layers that need the KV of the same tokens, in blocks of the same size.
///
/// ```
/// use kvpool::groups::{Blocks, GroupKind, GroupSpec, Tokens};
/// // A window of 64 tokens after 4 attention sinks, in blocks of 16 tokens.
/// let spec = GroupSpec { sink_tokens: 4, ..GroupSpec::new(GroupKind::Sliding { window: 64 }, 16) };
/// assert_eq!(spec.sink_blocks(), Blocks(1));
/// // A hit of 160 tokens needs the sinks, and the blocks of tokens 97 to 159.
/// assert_eq!(spec.needed(Tokens(160)), (Blocks(6), Blocks(10)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// Which tokens the layers read.
    pub kind: GroupKind,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Which blocks remain cached. A group of full attention keeps all blocks unless this is
    /// [`Keep::Nothing`].
    pub keep: Keep,
    /// Margin: the number of blocks at the end of a cached prefix that are left out of a hit, because
    /// speculation has to compute them again. 1 for a group that EAGLE or MTP heads read, else 0.
    pub margin: usize,
    /// Whether a hit may end inside a block, after any hash unit. The request then gets a copy of that
    /// block. This is only allowed for full attention, because there the first tokens of a block can be
    /// used alone, and only without a margin.
    pub partial_hits: bool,
    /// Number of attention sinks: leading tokens of the sequence that every token reads in addition to
    /// its window. Only for [`GroupKind::Sliding`]. 0 if there are none.
    pub sink_tokens: usize,
}

impl GroupSpec {
    /// Makes a group that keeps all blocks and has no margin. Its hits end only at the ends of blocks.
    #[must_use]
    pub const fn new(kind: GroupKind, block_tokens: usize) -> Self {
        Self { kind, block_tokens, keep: Keep::All, margin: 0, partial_hits: false, sink_tokens: 0 }
    }

    /// Whether other requests can hit the blocks of the group.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        self.kind.is_cached() && !matches!(self.keep, Keep::Nothing)
    }

    /// Returns the number of tokens of which every hit of the group is a multiple. Prompts are hashed
    /// in units of `unit` tokens.
    pub(super) const fn granularity(&self, unit: usize) -> usize {
        if self.partial_hits { unit } else { self.block_tokens }
    }

    /// Returns the number of blocks that `tokens` tokens fill completely.
    #[must_use]
    pub const fn full_blocks(&self, tokens: Tokens) -> Blocks {
        Blocks(tokens.0 / self.block_tokens)
    }

    /// Returns the number of blocks that `tokens` tokens need, the last of which may be partly filled.
    #[must_use]
    pub const fn covering(&self, tokens: Tokens) -> Blocks {
        Blocks(tokens.0.div_ceil(self.block_tokens))
    }

    /// Returns the number of tokens in `blocks` blocks.
    #[must_use]
    pub const fn tokens(&self, blocks: Blocks) -> Tokens {
        Tokens(blocks.0.saturating_mul(self.block_tokens))
    }

    /// Returns the number of leading blocks of a table that contain [`Self::sink_tokens`]. Every token
    /// reads them, even if the blocks after them are released.
    #[must_use]
    pub const fn sink_blocks(&self) -> Blocks {
        self.covering(Tokens(self.sink_tokens))
    }

    /// Returns the number of leading blocks of a table that no token from position `settled` on reads.
    /// Blocks with attention sinks are counted although they are read. The first `settled` tokens must
    /// be computed, and the request must not be truncated to fewer tokens later.
    #[must_use]
    pub const fn dead(&self, settled: Tokens) -> Blocks {
        self.full_blocks(self.kind.reach(settled))
    }

    /// Returns the blocks `first..end` that a hit of `length` tokens needs in addition to
    /// [`Self::sink_blocks`]. The margin is included. `length` is a multiple of the block size.
    #[must_use]
    pub const fn needed(&self, length: Tokens) -> (Blocks, Blocks) {
        if length.0 == 0 || !self.is_cached() {
            return (Blocks::ZERO, Blocks::ZERO);
        }
        (self.dead(length), self.full_blocks(length).plus(Blocks(self.margin)))
    }

    /// Returns the length, in tokens, of the longest hit that needs no block at position `end` or
    /// later. The length is a multiple of the block size.
    #[must_use]
    pub const fn ending_before(&self, end: Blocks) -> Tokens {
        self.tokens(end.minus(Blocks(self.margin)))
    }

    /// Returns the length, in tokens, of the longest hit that is possible within `limit` tokens, if all
    /// blocks are cached.
    #[must_use]
    pub const fn ending_within(&self, limit: Tokens) -> Tokens {
        if self.partial_hits { limit } else { self.ending_before(self.full_blocks(limit)) }
    }

    pub(super) fn check(&self) -> Result<(), PoolError> {
        let least = |field, value: usize, most: usize| {
            let allowed = || format!("from 1 to {most} tokens");
            if (1..=most).contains(&value) { Ok(()) } else { Err(PoolError::config(field, value, allowed())) }
        };
        least("block_tokens", self.block_tokens, MAX_BLOCK_SIZE)?;
        match self.kind {
            GroupKind::Sliding { window } => least("window", window, usize::MAX)?,
            GroupKind::Chunked { chunk } => least("chunk", chunk, usize::MAX)?,
            GroupKind::Full | GroupKind::State | GroupKind::Cross => {}
        }
        if let Keep::Every(interval) = self.keep {
            least("keep", interval, usize::MAX)?;
        }
        if self.margin > MAX_MARGIN {
            return Err(PoolError::config("margin", self.margin, format!("at most {MAX_MARGIN} blocks")));
        }
        if self.sink_tokens > 0 && !matches!(self.kind, GroupKind::Sliding { .. }) {
            return Err(PoolError::config("sink_tokens", self.sink_tokens, "0 except for a sliding window"));
        }
        if self.partial_hits && (!self.kind.is_full() || self.margin > 0 || !self.is_cached()) {
            let allowed = "false except for full attention that keeps its blocks and has no margin";
            return Err(PoolError::config("partial_hits", true, allowed));
        }
        Ok(())
    }
}

/// The largest allowed margin. It is far above the number of tokens that any speculation uses, and
/// small enough that sums of blocks cannot overflow.
const MAX_MARGIN: usize = 1 << 16;
