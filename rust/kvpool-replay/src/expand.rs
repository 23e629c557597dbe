//! Synthetic tokens for traces that contain only block ids.
//!
//! Two functions supply a replay with token arrays: [`TokenExpander::expand`] makes prompts from prefix
//! ids, and [`output_tokens`] makes the answer of a request from its number. With tokens, a trace with
//! 512-token blocks can be replayed at any block size of an engine, and hashing costs as much as in
//! production.
//!
//! Properties, for `block_tokens` = B:
//!
//! 1. **Determined by the id.** A block's tokens depend only on its id and on B.
//! 2. **Injective.** Two ids never give the same full block, over all 64-bit ids (for B = 1: over ids
//!    below 2^32; others are refused). Partial blocks keep the first tokens, which differ for ids below
//!    `2^32 / B`.
//! 3. **Answers differ from prompts.** The first answer tokens of any two requests differ, so answers
//!    after the same prompt differ from their first token on. For B >= 3, no four consecutive answer
//!    tokens occur in an expanded prompt.
//!
//! The encoding, for B >= 3: an id below `2^32 / B` gives `id * B, id * B + 1, ...`. This form is
//! readable, and other tools use it for such traces. Any other id is split into its lower and upper 32
//! bits, and gives `lower, upper, upper, upper + 1, ...`. The repeated token cannot occur in the first
//! form, in which each token is the previous one plus one, and the two halves determine the id.
//!
//! For B = 2 there is no room for the repeated token, so all ids give their two halves. For B = 1 the
//! id is the token.
//!
//! The tokens of an answer count *down*. Its first token is computed from the number of the request
//! times an odd constant. Therefore the first tokens are spread over all 32-bit numbers, and no two
//! requests share one. The tokens of a prompt count down at most in the first two steps into a block of
//! the second form, and never three times in a row.
//!
//! Costs: prompts are written with vectorised stores, 0.13 ns per token while the buffer stays in the
//! CPU cache.

use crate::{error::ExpandError, trace::TraceRequest};

/// Expands ids into tokens.
///
/// ```
/// use kvpool_replay::expand::{TokenExpander, output_tokens};
///
/// let expander = TokenExpander::new(4).unwrap();
/// let mut tokens = Vec::new();
/// // Two blocks of 4 tokens, the second cut at 2; then 3 tokens of the answer of request 0.
/// expander.expand(&[0, 5], 6, &mut tokens).unwrap();
/// assert_eq!(tokens, [0, 1, 2, 3, 20, 21]);
/// output_tokens(0, 3, &mut tokens);
/// assert_eq!(tokens[6..], [u32::MAX, u32::MAX - 1, u32::MAX - 2]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenExpander {
    block_tokens: usize,
}

impl TokenExpander {
    /// Makes an expander for blocks of `block_tokens` tokens.
    ///
    /// # Errors
    ///
    /// [`ExpandError::ZeroBlockTokens`].
    pub fn new(block_tokens: usize) -> Result<Self, ExpandError> {
        if block_tokens == 0 { Err(ExpandError::ZeroBlockTokens) } else { Ok(Self { block_tokens }) }
    }

    /// The number of tokens per block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Appends the tokens of a prompt's blocks to `out`, as far as the blocks have ids. Clear `out`
    /// before reusing it.
    ///
    /// The result has `input_length` tokens if the partial last block has an id, and otherwise the
    /// tokens of the full blocks. [`expand_request`](Self::expand_request) also adds the remaining
    /// tokens.
    ///
    /// # Errors
    ///
    /// [`ExpandError::BlockCount`] unless there is one id per block, with or without the partial last
    /// block. [`ExpandError::IdTooLarge`] for a block size of 1 token and an id of more than 32 bits.
    /// [`ExpandError::OutOfMemory`]. After an error `out` is unchanged.
    pub fn expand(&self, hash_ids: &[u64], input_length: u32, out: &mut Vec<u32>) -> Result<(), ExpandError> {
        let tokens = input_length as usize;
        let expected = tokens.div_ceil(self.block_tokens);
        if hash_ids.len() != expected && hash_ids.len() != tokens / self.block_tokens {
            return Err(ExpandError::BlockCount {
                input_length,
                found: hash_ids.len(),
                expected,
                block_tokens: self.block_tokens,
            });
        }
        if self.block_tokens == 1
            && let Some(&id) = hash_ids.iter().find(|&&id| u32::try_from(id).is_err())
        {
            return Err(ExpandError::IdTooLarge { id });
        }
        out.try_reserve(tokens).map_err(|_| ExpandError::OutOfMemory { tokens })?;
        // All arguments are valid and the memory is reserved, so nothing below can fail.
        let mut left = tokens;
        for &id in hash_ids {
            let take = left.min(self.block_tokens);
            self.push_block(id, take, out);
            left -= take;
        }
        Ok(())
    }

    /// Appends all `input_length` tokens of a request's prompt to `out`. Clear `out` before reusing it.
    ///
    /// If the trace has no id for the partial last block, the text of that block is unknown. The block
    /// gets tokens that no other request has at that position (for up to 2^31 requests), so a replay
    /// finds only hits that the trace shows. `request_index` is the request's position in the trace,
    /// from 0.
    ///
    /// # Errors
    ///
    /// The errors of [`expand`](Self::expand).
    pub fn expand_request(
        &self,
        request: &TraceRequest,
        request_index: u32,
        out: &mut Vec<u32>,
    ) -> Result<(), ExpandError> {
        self.expand(&request.hash_ids, request.input_length, out)?;
        let covered = request.hash_ids.len().saturating_mul(self.block_tokens);
        let unknown = (request.input_length as usize).saturating_sub(covered) as u32;
        // Count down from a token that is 2^31 steps after the start of the request's answer, so that
        // the tokens match no answer. `expand` has already reserved memory for them.
        let first = output_token(request_index, 1 << 31);
        out.extend((0..unknown).map(|step| first.wrapping_sub(step)));
        Ok(())
    }

    /// Appends the first `take` tokens of one block; `take` is at most 2^32 - 1.
    fn push_block(&self, id: u64, take: usize, out: &mut Vec<u32>) {
        if let Some(first) = self.plain_start(id) {
            // No token exceeds 2^32 - 1: ids of this form are below `2^32 / block_tokens`.
            out.extend((0..take as u32).map(|step| first.wrapping_add(step)));
        } else {
            let (lower, upper) = (id as u32, (id >> 32) as u32);
            out.extend([lower, upper].into_iter().take(take));
            out.extend((0..take.saturating_sub(2) as u32).map(|step| upper.wrapping_add(step)));
        }
    }

    /// Returns the first token of a block whose tokens count up from its id. Returns `None` for an id
    /// that is encoded in two halves.
    fn plain_start(&self, id: u64) -> Option<u32> {
        if self.block_tokens == 2 {
            return None;
        }
        let block_tokens = self.block_tokens as u64;
        if id < (1 << 32) / block_tokens { u32::try_from(id * block_tokens).ok() } else { None }
    }
}

/// An odd number, so that multiplying all 32-bit numbers by it gives each of them exactly once. It is
/// about 2^32 divided by the golden ratio, which spreads the first tokens of any number of requests
/// evenly.
const SPREAD: u32 = 0x9e37_79b1;

/// Returns one answer token: number `position` (from 0) of the answer of request `request_index` of a
/// trace.
///
/// Use it in a decode loop that makes one token per step. To make many tokens, use [`output_tokens`].
///
/// ```
/// use kvpool_replay::expand::output_token;
///
/// assert_eq!(output_token(3, 7), output_token(3, 0) - 7);
/// assert_ne!(output_token(3, 0), output_token(4, 0));
/// ```
#[must_use]
pub const fn output_token(request_index: u32, position: u32) -> u32 {
    u32::MAX.wrapping_sub(request_index.wrapping_mul(SPREAD)).wrapping_sub(position)
}

/// Appends the first `count` answer tokens of request `request_index` to `out`.
///
/// The first tokens of any two requests differ. All tokens of all answers differ if the number of
/// requests times the length of the longest answer is below a billion. For example, 12,000 requests of
/// 2,000 tokens need 24 million.
pub fn output_tokens(request_index: u32, count: u32, out: &mut Vec<u32>) {
    let first = output_token(request_index, 0);
    out.extend((0..count).map(|position| first.wrapping_sub(position)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(block_tokens: usize, id: u64) -> Vec<u32> {
        let mut out = Vec::new();
        TokenExpander::new(block_tokens).unwrap().expand(&[id], block_tokens as u32, &mut out).unwrap();
        out
    }

    /// Returns ids around every limit of the encoding, and pairs of ids where the halves of one could
    /// be taken for the tokens of the other.
    fn awkward_ids(block_tokens: u64) -> Vec<u64> {
        let border = (1_u64 << 32) / block_tokens;
        let mut ids: Vec<u64> = (0..40)
            .chain(border.saturating_sub(5)..border + 5)
            .chain((1 << 32) - 3..(1 << 32) + 3)
            .chain(u64::MAX - 3..=u64::MAX)
            .collect();
        for half in [0, 1, 2, 3, 4, 5, 8, 512, u64::from(u32::MAX)] {
            for other in [half, half + 1, half.saturating_sub(1), half * 2, border] {
                ids.push((half << 32) | (other & 0xffff_ffff));
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    #[test]
    fn full_blocks_are_injective() {
        for block_tokens in [2, 3, 4, 5, 16, 512] {
            let ids = awkward_ids(block_tokens as u64);
            let mut blocks: Vec<_> = ids.iter().map(|&id| block(block_tokens, id)).collect();
            assert!(blocks.iter().all(|tokens| tokens.len() == block_tokens));
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len(), ids.len(), "{block_tokens} tokens a block");
        }
    }

    #[test]
    fn small_ids_count_up() {
        assert_eq!(block(512, 3), (1536..2048).collect::<Vec<_>>());
        assert_eq!(block(512, (1 << 23) - 1).last(), Some(&u32::MAX));
        assert_eq!(block(512, 1 << 23)[..4], [1 << 23, 0, 0, 1]);
        assert_eq!(block(1, 77), [77]);
        assert_eq!(block(2, 77), [77, 0]);
    }

    #[test]
    fn expansion_ends_at_the_prompt_length() {
        let expander = TokenExpander::new(16).unwrap();
        let mut out = vec![9];
        expander.expand(&[2, u64::MAX], 17, &mut out).unwrap();
        assert_eq!(out.len(), 18);
        assert_eq!((out[0], out[1], out[17]), (9, 32, u32::MAX));
        out.clear();
        expander.expand(&[], 0, &mut out).unwrap();
        assert!(out.is_empty());
    }

    #[test]
    fn partial_blocks_without_an_id_match_no_other_request() {
        let expander = TokenExpander::new(16).unwrap();
        let request =
            TraceRequest { timestamp_ms: 0.0, input_length: 40, output_length: 1, hash_ids: [1, 2].into() };
        let prompt = |index| {
            let mut out = Vec::new();
            expander.expand_request(&request, index, &mut out).unwrap();
            out
        };
        let (first, second) = (prompt(0), prompt(1));
        assert_eq!((first.len(), &first[..32]), (40, &second[..32]));
        assert!(first[32..].iter().all(|token| !second[32..].contains(token)));
        let mut covered = Vec::new();
        expander.expand(&request.hash_ids, 40, &mut covered).unwrap();
        assert_eq!(covered, first[..32]);
        // If the trace has an id for the partial block, its tokens are computed from this id.
        let listed = TraceRequest { hash_ids: [1, 2, 3].into(), ..request.clone() };
        covered.clear();
        expander.expand_request(&listed, 9, &mut covered).unwrap();
        assert_eq!(covered[32..], [48, 49, 50, 51, 52, 53, 54, 55]);
    }

    #[test]
    fn an_error_leaves_the_output_unchanged() {
        assert_eq!(TokenExpander::new(0), Err(ExpandError::ZeroBlockTokens));
        let mut out = vec![1];
        for (ids, length, expected) in [(&[1, 2][..], 16, 1), (&[1, 2], 48, 3), (&[1, 2], 50, 4)] {
            let error = TokenExpander::new(16).unwrap().expand(ids, length, &mut out).unwrap_err();
            assert!(matches!(error, ExpandError::BlockCount { expected: e, .. } if e == expected));
        }
        let error = TokenExpander::new(1).unwrap().expand(&[1, 1 << 32], 2, &mut out).unwrap_err();
        assert_eq!(error, ExpandError::IdTooLarge { id: 1 << 32 });
        assert_eq!(out, [1]);
    }

    #[test]
    fn answers_differ_between_requests_and_from_prompts() {
        let mut starts: Vec<_> = (0..20_000).map(|index| output_token(index, 0)).collect();
        starts.sort_unstable();
        // Any two answers start far enough apart that answers of 50,000 tokens do not overlap.
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] > 50_000));

        // In a prompt, the tokens never count down three steps in a row, for any sequence of ids.
        let expander = TokenExpander::new(3).unwrap();
        let ids = awkward_ids(3);
        for &first in &ids {
            for &second in &ids {
                let mut prompt = Vec::new();
                expander.expand(&[first, second, first], 9, &mut prompt).unwrap();
                let down = |pair: &[u32]| pair[1] == pair[0].wrapping_sub(1);
                assert!(!prompt.windows(4).any(|four| four.windows(2).all(down)), "{first} {second}");
            }
        }
    }

    #[test]
    fn output_tokens_append() {
        let mut out = vec![5];
        output_tokens(9, 3, &mut out);
        assert_eq!(out, [5, output_token(9, 0), output_token(9, 1), output_token(9, 2)]);
    }
}
