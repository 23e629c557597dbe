//! Steady appends: appends that differ from the previous append only in the blocks that they fill, like
//! most decode steps.
//!
//! Owns: the arguments of the last steady append, and the first bytes of its record, which are the same
//! for the next steady append. If a record contains only a [`SteadyAppend`] and [`Filled`], it need not
//! be made and encoded again.
//!
//! Invariant: the bytes are those of a record of the previous batch with the stored arguments, up to
//! its filled blocks.

use kvpool::hash::HashCursor;
use kvpool::{Computed, Covered, Rows};
use serde::{Deserialize, Serialize};

use crate::Keys;

/// The keys and fingerprints of the blocks that tokens have filled, in order. The record of an append
/// ends with them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// The first eight bytes of the blocks' digests.
    pub keys: Keys,
    /// The first eight bytes of the blocks' fingerprints, if hits are verified.
    pub fingerprints: Keys,
}

impl Filled {
    /// Returns the keys and fingerprints of all blocks of a prompt.
    pub(crate) fn whole(cursor: &HashCursor) -> Self {
        let mut filled = Self::default();
        filled.add(cursor, 0);
        filled
    }

    /// Adds the blocks that the last `tokens` tokens of a prompt filled.
    #[inline]
    pub(crate) fn add_last(&mut self, cursor: &HashCursor, tokens: usize) {
        let (chain, before) = (cursor.chain(), cursor.num_tokens().saturating_sub(tokens));
        // Most tokens fill no block. This check avoids a division for them.
        if before < chain.len() * chain.block_size() {
            self.add(cursor, before / chain.block_size());
        }
    }

    /// Adds the blocks of a prompt, without the first `before` blocks.
    fn add(&mut self, cursor: &HashCursor, before: usize) {
        let chain = cursor.chain();
        chain.hashes().iter().skip(before).for_each(|hash| self.keys.push(hash.key()));
        chain.fingerprints().iter().skip(before).for_each(|&whole| self.fingerprints.push(whole as u64));
    }
}

/// An append of one token to each row of the previous batch. Contains all arguments, but not the filled
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SteadyAppend {
    tokens: usize,
    all_but_last_computed: bool,
    lookahead: Option<usize>,
    most_changes: Option<usize>,
}

impl SteadyAppend {
    /// Returns the steady append, if each row has one token, and the computed and covered tokens are
    /// the same for all rows.
    #[must_use]
    pub(crate) const fn of(rows: &Rows<'_>) -> Option<Self> {
        let all_but_last_computed = match rows.computed {
            Computed::Nothing => false,
            Computed::AllButLast => true,
            Computed::Counts(_) => return None,
        };
        let lookahead = match rows.covered {
            Covered::All => None,
            Covered::Lookahead(slots) => Some(slots),
            Covered::Each(_) => return None,
        };
        if !rows.offsets.is_empty() {
            return None;
        }
        let (tokens, most_changes) = (rows.tokens.len(), rows.most_changes);
        Some(Self { tokens, all_but_last_computed, lookahead, most_changes })
    }
}

/// The last steady append, with the encoded bytes of its record up to its filled blocks.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    append: Option<SteadyAppend>,
    bytes: Vec<u8>,
}

impl Encoded {
    /// Stores an append and the first bytes of its record.
    pub(crate) fn note(&mut self, append: SteadyAppend, beginning: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(beginning);
        self.append = Some(append);
    }

    /// Whether the stored append equals this one.
    #[inline]
    pub(crate) fn is(&self, append: SteadyAppend) -> bool {
        self.append == Some(append)
    }

    /// Returns the first bytes of the stored append's record.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
