//! Steady appends: appends that differ from the previous append only in the blocks that they fill, like
//! most decode steps.
//!
//! Owns: the arguments of the latest steady append, and the encoded bytes of its record up to the filled
//! blocks. If the next append has the same arguments, the journal copies these bytes and encodes only
//! the filled blocks.
//!
//! Invariant: the stored bytes are the record of an append to the previous batch with the stored
//! arguments.

use kvpool::hash::HashCursor;
use kvpool::{Computed, Covered, Rows};
use serde::{Deserialize, Serialize};

use crate::Keys;

/// The keys and fingerprints of the blocks that the appended tokens have filled, in order. The record
/// of an append ends with this list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// The first eight bytes of each block's digest.
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

    /// Adds the blocks of a prompt, except for its first `before` blocks.
    fn add(&mut self, cursor: &HashCursor, before: usize) {
        let chain = cursor.chain();
        chain.hashes().iter().skip(before).for_each(|hash| self.keys.push(hash.key()));
        chain.fingerprints().iter().skip(before).for_each(|&whole| self.fingerprints.push(whole as u64));
    }
}

/// An append of one token to each request of the previous batch: all arguments of the call, but not the
/// blocks that it filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SteadyAppend {
    tokens: usize,
    all_but_last_computed: bool,
    lookahead: Option<usize>,
    most_changes: Option<usize>,
}

impl SteadyAppend {
    /// Converts an append to a steady append. Returns `None` unless each request gets one token, and
    /// the rules for computed and covered tokens are the same for all requests.
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

/// The latest steady append, with the encoded bytes of its record up to its filled blocks.
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

    #[inline]
    pub(crate) fn is(&self, append: SteadyAppend) -> bool {
        self.append == Some(append)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
