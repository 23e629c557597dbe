//! `GroupSpec`: what layers of one kind keep of a request, and for how long.

use super::units::{Blocks, Tokens};
use crate::error::PoolError;
use crate::hash::MAX_BLOCK_SIZE;

/// How the layers of a group read what they have kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupKind {
    /// Each token reads all before it. Multi-head latent attention, too.
    Full,
    /// Each token reads itself and the `window - 1` tokens before it.
    Sliding {
        /// Tokens that a token reads, itself included.
        window: usize,
    },
    /// Each token reads those before it in its own chunk: Llama 4's local attention.
    Chunked {
        /// Tokens of a chunk.
        chunk: usize,
    },
    /// A recurrent state, as of Mamba: a block is the state behind its last token, and each token reads
    /// the one before it.
    State,
    /// What the layers read is no part of the prompt: an encoder's output. Nothing of it is cached.
    Cross,
}

impl GroupKind {
    /// The kind of this name, with a window or chunk of `span` tokens; others have none and do not look
    /// at it. `None` if no kind is called so.
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

    /// Its name: full, sliding, chunked, state or cross.
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

    /// Tokens of its window or chunk.
    #[must_use]
    pub const fn span(self) -> Option<usize> {
        match self {
            Self::Sliding { window: span } | Self::Chunked { chunk: span } => Some(span),
            Self::Full | Self::State | Self::Cross => None,
        }
    }

    /// The first token of which the token at position `at` needs what the group keeps: `at` itself if
    /// it needs nothing. It never goes back as `at` goes on, so what lies before it can be given up.
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

    /// The first position from which on no token reads anything before `from`: how far a request can go
    /// back that has given up what is before. Full attention gives nothing up.
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

    /// Whether a hit of any length needs all before it.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self, Self::Full)
    }

    /// Whether its blocks hold content of the prompt, which others can hit.
    #[must_use]
    pub const fn is_cached(self) -> bool {
        !matches!(self, Self::Cross)
    }
}

/// Which blocks of a group stay cached when the request has gone on. A hit can only end where every
/// group has kept what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Keep {
    /// All.
    #[default]
    All,
    /// What hits need that end at multiples of so many tokens, rounded up to
    /// [`super::Groups::alignment`], at the end of the prompt, or at a junction.
    Every(usize),
    /// What hits need that end at the end of the prompt or at a junction: where an earlier request
    /// turned off from this one.
    Junctions,
    /// None: hits neither need nor bring anything of this group, so it never limits them. For layers
    /// whose KV is of no use to other requests, such as the heads of a draft model.
    Nothing,
}

/// A KV-cache group: layers that keep the same of a request, in blocks of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// What its layers read.
    pub kind: GroupKind,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Which blocks stay cached. Full attention keeps all, or [`Keep::Nothing`].
    pub keep: Keep,
    /// Blocks behind a hit that speculation computes again: 1 for a group that EAGLE or MTP heads read,
    /// else 0.
    pub margin: usize,
    /// Whether a hit may end inside a block, behind any hash unit: the request gets a copy of that
    /// block. Full attention alone, for which any part of a prefix is one; without a margin.
    pub partial_hits: bool,
    /// The first tokens of the sequence that every token reads besides its window: attention sinks. Of
    /// [`GroupKind::Sliding`] alone; 0 for none.
    pub sink_tokens: usize,
}

impl GroupSpec {
    /// A group that keeps all blocks, has no margin, and is hit in whole blocks.
    #[must_use]
    pub const fn new(kind: GroupKind, block_tokens: usize) -> Self {
        Self { kind, block_tokens, keep: Keep::All, margin: 0, partial_hits: false, sink_tokens: 0 }
    }

    /// Whether other requests can hit its blocks.
    #[must_use]
    pub const fn is_cached(&self) -> bool {
        self.kind.is_cached() && !matches!(self.keep, Keep::Nothing)
    }

    /// What the length of a hit is a multiple of, if prompts are hashed in units of so many tokens.
    pub(super) const fn granularity(&self, unit: usize) -> usize {
        if self.partial_hits { unit } else { self.block_tokens }
    }

    /// Blocks that so many tokens fill.
    #[must_use]
    pub const fn full_blocks(&self, tokens: Tokens) -> Blocks {
        Blocks(tokens.0 / self.block_tokens)
    }

    /// Blocks that so many tokens take.
    #[must_use]
    pub const fn covering(&self, tokens: Tokens) -> Blocks {
        Blocks(tokens.0.div_ceil(self.block_tokens))
    }

    /// Tokens that so many blocks hold.
    #[must_use]
    pub const fn tokens(&self, blocks: Blocks) -> Tokens {
        Tokens(blocks.0.saturating_mul(self.block_tokens))
    }

    /// Leading blocks of a table that every token reads, whatever is given up behind them: those of
    /// [`Self::sink_tokens`].
    #[must_use]
    pub const fn sink_blocks(&self) -> Blocks {
        self.covering(Tokens(self.sink_tokens))
    }

    /// Leading blocks of a table that no token from `settled` on reads, but for [`Self::sink_blocks`].
    /// Settled are tokens that are computed and will not be taken back.
    #[must_use]
    pub const fn dead(&self, settled: Tokens) -> Blocks {
        self.full_blocks(self.kind.reach(settled))
    }

    /// The blocks `first..end` that a hit of `length` tokens needs, its margin included, besides
    /// [`Self::sink_blocks`]. `length` is a multiple of the block size.
    #[must_use]
    pub const fn needed(&self, length: Tokens) -> (Blocks, Blocks) {
        if length.0 == 0 || !self.is_cached() {
            return (Blocks::ZERO, Blocks::ZERO);
        }
        (self.dead(length), self.full_blocks(length).plus(Blocks(self.margin)))
    }

    /// The most tokens of a hit for which the blocks before `end` are enough on the right. A multiple
    /// of the block size.
    #[must_use]
    pub const fn ending_before(&self, end: Blocks) -> Tokens {
        self.tokens(end.minus(Blocks(self.margin)))
    }

    /// The most tokens of a hit of at most `limit` tokens, whatever is cached.
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
            return Err(PoolError::config("sink_tokens", self.sink_tokens, "0 but for a sliding window"));
        }
        if self.partial_hits && (!self.kind.is_full() || self.margin > 0 || !self.is_cached()) {
            let allowed = "false but for full attention that keeps its blocks, without a margin";
            return Err(PoolError::config("partial_hits", true, allowed));
        }
        Ok(())
    }
}

/// No speculation looks further ahead; it keeps sums of blocks within their type.
const MAX_MARGIN: usize = 1 << 16;
