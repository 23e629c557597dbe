//! Appends that are as the one before but for what they fill: most steps of a decode.
//!
//! Owns: which append that is, and the bytes that all of them begin with. A record that says no more
//! than [`SteadyAppend`] and [`Filled`] need not be made and encoded again.
//!
//! Invariant: the bytes are those of a record of the batch before, up to what it filled, whose
//! arguments are the ones kept here.

use kvpool::hash::HashCursor;
use kvpool::{Computed, Covered, Rows};
use serde::{Deserialize, Serialize};

use crate::Keys;

/// The keys and fingerprints of the blocks that tokens filled, in order. The record of an append ends with
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// The first eight bytes of their digests.
    pub keys: Keys,
    /// Those of their fingerprints, where hits are verified.
    pub fingerprints: Keys,
}

impl Filled {
    /// All blocks of a prompt.
    pub(crate) fn whole(cursor: &HashCursor) -> Self {
        let mut filled = Self::default();
        filled.add(cursor, 0);
        filled
    }

    /// Adds the blocks that the last `tokens` tokens of a prompt filled.
    #[inline]
    pub(crate) fn add_last(&mut self, cursor: &HashCursor, tokens: usize) {
        let (chain, before) = (cursor.chain(), cursor.num_tokens().saturating_sub(tokens));
        // Most tokens fill no block: they are not worth a division.
        if before < chain.len() * chain.block_size() {
            self.add(cursor, before / chain.block_size());
        }
    }

    /// Adds the blocks of a prompt after the first `before`.
    fn add(&mut self, cursor: &HashCursor, before: usize) {
        let chain = cursor.chain();
        chain.hashes().iter().skip(before).for_each(|hash| self.keys.push(hash.key()));
        chain.fingerprints().iter().skip(before).for_each(|&whole| self.fingerprints.push(whole as u64));
    }
}

/// An append of a token to each row of the batch before: all that its record says, but for what it fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SteadyAppend {
    tokens: usize,
    all_but_last_computed: bool,
    lookahead: Option<usize>,
    most_changes: Option<usize>,
}

impl SteadyAppend {
    /// What is appended, if that is a token to each row, and what is computed and covered is said of
    /// all of them at once.
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

/// The last one, encoded up to what it filled.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    append: Option<SteadyAppend>,
    bytes: Vec<u8>,
}

impl Encoded {
    /// Keeps an append whose record begins with `beginning`.
    pub(crate) fn note(&mut self, append: SteadyAppend, beginning: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(beginning);
        self.append = Some(append);
    }

    /// Whether it is that one.
    #[inline]
    pub(crate) fn is(&self, append: SteadyAppend) -> bool {
        self.append == Some(append)
    }

    /// What its record begins with.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
