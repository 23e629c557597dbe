//! The rules of a trace, checked request by request.
//!
//! [`RequestChecker`] checks all rules, and [`PrefixChecker`] checks the rule on ids. Both get each
//! request once, in order, and store the state that the next check needs. The reader,
//! [`Trace::new`](crate::trace::Trace::new) and the tests use the same code.
//!
//! **Why one map is enough.** Ids are consistent if "equal ids at equal positions mean equal prefixes".
//! The checker stores the parent of each id: the id that precedes it at its first use. It requires the
//! same parent at every later use. Then, by induction along the chain:
//!
//! 1. an id always has the same whole prefix, because its parent has;
//! 2. an id is always at the same position, because its parent is;
//! 3. an id that repeats within a request is detected without a set: at the first repeat, the id before
//!    it is not a repeat, so it differs from the parent in the map.
//!
//! Costs: one hash-map step per block reference, and 40 to 80 bytes per distinct id.

use std::collections::{HashMap, hash_map::Entry};

use crate::{error::TraceError, id_hash::IdHasherBuilder, request::TraceRequest};

/// Common block sizes, most likely first. If the number of ids is wrong, the error suggests the first
/// size that fits.
const USUAL_BLOCK_TOKENS: [usize; 9] = [16, 512, 64, 32, 128, 256, 1024, 2048, 4096];

/// Checks every rule on requests, in order of arrival.
///
/// ```
/// use kvpool_replay::{error::TraceError, trace::TraceRequest, validate::RequestChecker};
///
/// let mut checker = RequestChecker::new(512, true).unwrap();
/// let request = |timestamp_ms| TraceRequest {
///     timestamp_ms,
///     input_length: 20,
///     output_length: 1,
///     hash_ids: [7].into(),
/// };
/// assert!(checker.check(&request(30.0), 1).is_ok());
/// assert!(matches!(checker.check(&request(29.5), 2), Err(TraceError::TimeBackwards { .. })));
/// ```
#[derive(Debug)]
pub struct RequestChecker {
    block_tokens: usize,
    /// The line and the time of the previous request.
    previous: Option<(u64, f64)>,
    /// Whether partial last blocks have ids, and the line of the first request that shows it. `None`
    /// until a prompt has a partial block.
    convention: Option<(Partial, u64)>,
    /// The checker of ids; `None` if the caller has disabled it.
    prefixes: Option<PrefixChecker>,
}

/// Whether the partial last block of a prompt has an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partial {
    Listed,
    LeftOut,
}

impl RequestChecker {
    /// Makes a checker for ids of `block_tokens` tokens. `check_prefixes` enables the rule on ids. It
    /// is the only rule that needs memory.
    ///
    /// # Errors
    ///
    /// [`TraceError::BadOption`] if `block_tokens` is 0.
    pub fn new(block_tokens: usize, check_prefixes: bool) -> Result<Self, TraceError> {
        if block_tokens == 0 {
            return Err(TraceError::BadOption {
                option: "block_tokens",
                value: 0,
                allowed: "1 or more tokens",
            });
        }
        Ok(Self {
            block_tokens,
            previous: None,
            convention: None,
            prefixes: check_prefixes.then(PrefixChecker::new),
        })
    }

    /// Checks the next request. `line` is used only in errors.
    ///
    /// # Errors
    ///
    /// [`TraceError::BadNumber`] for a prompt of 0 tokens or a time that is negative or not finite,
    /// [`TraceError::BlockCount`], [`TraceError::TimeBackwards`], and the errors of
    /// [`PrefixChecker::check`]. The checker cannot be used after an error, because it may have stored
    /// a part of the request.
    pub fn check(&mut self, request: &TraceRequest, line: u64) -> Result<(), TraceError> {
        let TraceRequest { timestamp_ms, ref hash_ids, .. } = *request;
        if !(timestamp_ms.is_finite() && timestamp_ms >= 0.0) {
            return Err(TraceError::BadNumber {
                line,
                field: "timestamp".to_owned(),
                value: timestamp_ms.to_string(),
                allowed: "ms, 0 or more",
            });
        }
        self.check_lengths(request, line)?;
        if let Some((previous_line, previous_ms)) = self.previous
            && timestamp_ms < previous_ms
        {
            return Err(TraceError::TimeBackwards { line, timestamp_ms, previous_line, previous_ms });
        }
        if let Some(prefixes) = &mut self.prefixes {
            prefixes.check(hash_ids, line)?;
        }
        self.previous = Some((line, timestamp_ms));
        Ok(())
    }

    /// Checks only the length of the prompt and the number of its ids. These rules do not depend on the
    /// order of the requests.
    pub(crate) fn check_lengths(&mut self, request: &TraceRequest, line: u64) -> Result<(), TraceError> {
        if request.input_length == 0 {
            return Err(TraceError::BadNumber {
                line,
                field: "input_length".to_owned(),
                value: "0".to_owned(),
                allowed: "a whole number from 1 to 4294967295",
            });
        }
        self.check_count(request.input_length, request.hash_ids.len(), line)
    }

    /// Whether partial last blocks have ids; `None` if no request has shown it yet.
    pub(crate) fn lists_partial_blocks(&self) -> Option<bool> {
        self.convention.map(|(partial, _)| partial == Partial::Listed)
    }

    /// Checks the number of ids: either all partial blocks have an id, or none has.
    fn check_count(&mut self, input_length: u32, found: usize, line: u64) -> Result<(), TraceError> {
        let full = input_length as usize / self.block_tokens;
        let all = (input_length as usize).div_ceil(self.block_tokens);
        let this = if found == all { Partial::Listed } else { Partial::LeftOut };
        let (convention, since) = self.convention.unwrap_or((this, line));
        let expected = if convention == Partial::Listed { all } else { full };
        if found == expected {
            if full != all {
                self.convention = Some((convention, since));
            }
            return Ok(());
        }
        Err(TraceError::BlockCount {
            line,
            input_length,
            found,
            // If no earlier request shows whether partial blocks have ids, expect an id for the partial
            // block.
            expected: if self.convention.is_none() { all } else { expected },
            block_tokens: self.block_tokens,
            convention_line: self.convention.map(|_| since),
            likely_block_tokens: likely_block_tokens(input_length, found),
        })
    }
}

/// Returns the common block size at which a prompt of `input_length` tokens has `count` blocks.
fn likely_block_tokens(input_length: u32, count: usize) -> Option<usize> {
    USUAL_BLOCK_TOKENS.into_iter().find(|&tokens| (input_length as usize).div_ceil(tokens) == count)
}

/// Checks that an id has one parent in all requests. The module documentation explains why this rule is
/// sufficient.
///
/// ```
/// use kvpool_replay::{error::TraceError, validate::PrefixChecker};
///
/// let mut checker = PrefixChecker::new();
/// checker.check(&[1, 2, 3], 1).unwrap();
/// checker.check(&[1, 2, 4], 2).unwrap();
/// assert_eq!(checker.unique_blocks(), 4);
/// let error = checker.check(&[1, 4], 3).unwrap_err();
/// assert!(matches!(
///     error,
///     TraceError::ParentConflict { id: 4, parent: Some(1), first_line: 2, first_parent: Some(2), .. }
/// ));
/// ```
#[derive(Debug, Default)]
pub struct PrefixChecker {
    seen: HashMap<u64, Origin, IdHasherBuilder>,
}

/// The id before an id at its first use (its parent), and the line of this use.
#[derive(Clone, Copy, Debug)]
struct Origin {
    parent: Option<u64>,
    line: u64,
}

impl PrefixChecker {
    /// Makes a checker that has not seen any id.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of distinct ids seen so far.
    #[must_use]
    pub fn unique_blocks(&self) -> usize {
        self.seen.len()
    }

    /// Checks the ids of the next request. `line` is used only in errors.
    ///
    /// # Errors
    ///
    /// [`TraceError::DuplicateId`] or [`TraceError::ParentConflict`] for the first invalid id. The ids
    /// before it are stored.
    pub fn check(&mut self, hash_ids: &[u64], line: u64) -> Result<(), TraceError> {
        let mut parent = None;
        for (position, &id) in hash_ids.iter().enumerate() {
            match self.seen.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(Origin { parent, line });
                }
                Entry::Occupied(entry) if entry.get().parent == parent => {}
                Entry::Occupied(entry) => {
                    let origin = *entry.get();
                    return Err(conflict(hash_ids, position, id, parent, line, origin));
                }
            }
            parent = Some(id);
        }
        Ok(())
    }
}

/// Makes the error for an id whose parent differs from the one at its first use. Either the id occurs
/// twice in this request, or it follows another prefix.
#[cold]
fn conflict(
    hash_ids: &[u64],
    second: usize,
    id: u64,
    parent: Option<u64>,
    line: u64,
    origin: Origin,
) -> TraceError {
    match hash_ids.iter().take(second).position(|&other| other == id) {
        Some(first) => TraceError::DuplicateId { line, id, first, second },
        None => TraceError::ParentConflict {
            line,
            id,
            parent,
            first_line: origin.line,
            first_parent: origin.parent,
        },
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::{
        ChaCha8Rng,
        rand_core::{Rng, SeedableRng},
    };

    use super::*;
    use crate::trace::Trace;

    fn request(timestamp_ms: f64, input_length: u32, ids: &[u64]) -> TraceRequest {
        TraceRequest { timestamp_ms, input_length, output_length: 1, hash_ids: ids.into() }
    }

    #[test]
    fn all_requests_may_omit_partial_blocks() {
        let full = vec![request(0.0, 1024, &[0, 1]), request(1.0, 1500, &[0, 1]), request(2.0, 20, &[])];
        let trace = Trace::new(full.clone(), 512).unwrap();
        assert_eq!((trace.summary().partial_blocks, trace.summary().block_references), (0, 4));
        let mixed = [full, vec![request(3.0, 600, &[0, 3])]].concat();
        let error = Trace::new(mixed, 512).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 4: 2 hash_ids for input_length 600; expected 1 at 512 tokens a block, as line 2 \
             gives no id to its partial last block"
        );
    }

    /// Checks the rule directly: equal ids at equal positions mean equal prefixes, no id repeats in a
    /// request, and each id occurs at only one position.
    fn consistent(requests: &[Vec<u64>]) -> bool {
        let mut prefixes = HashMap::new();
        requests.iter().all(|ids| {
            (0..ids.len()).all(|at| {
                !ids[..at].contains(&ids[at]) && *prefixes.entry(ids[at]).or_insert(&ids[..at]) == &ids[..at]
            })
        })
    }

    #[test]
    fn prefix_checker_agrees_with_the_rule() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut outcomes = [0; 2];
        for _ in 0..20_000 {
            let requests: Vec<Vec<u64>> = (0..3)
                .map(|_| (0..rng.next_u32() % 4).map(|at| u64::from(at * 2 + rng.next_u32() % 3)).collect())
                .collect();
            let mut checker = PrefixChecker::new();
            let passed = requests.iter().zip(1..).all(|(ids, line)| checker.check(ids, line).is_ok());
            assert_eq!(passed, consistent(&requests), "{requests:?}");
            outcomes[usize::from(passed)] += 1;
        }
        assert!(outcomes.iter().all(|&count| count > 1000), "{outcomes:?}");
    }
}
