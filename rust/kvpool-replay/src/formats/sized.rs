//! Requests that each say their block size, made into requests of one block size.
//!
//! Owns [`SizedRequests`], for the formats whose records name a size. The rule: the trace's size is
//! what the caller asked for, else the largest that occurs, and every size must divide it or be divided
//! by it. Ids of different sizes never match: equal text has other ids in other blocks, and a trace
//! does not say which belong together.
//!
//! Whether partial last blocks have ids is one property of the whole trace; the first request that
//! shows it decides.

use std::collections::{HashMap, hash_map::Entry};

use super::{Output, Ready};
use crate::{
    blocks::{Chains, MOST_REFERENCES, can_regroup, regroup},
    error::TraceError,
    validate::RequestChecker,
};

/// Requests with a block size each; their ids are chained already.
#[derive(Debug, Default)]
pub(crate) struct SizedRequests {
    requests: Vec<(Ready, usize)>,
}

impl SizedRequests {
    pub(crate) fn push(&mut self, ready: Ready, block_tokens: usize) {
        self.requests.push((ready, block_tokens));
    }

    /// Gives all requests in blocks of one size, and that size; `wanted` is the caller's.
    pub(crate) fn finish(&mut self, wanted: Option<usize>, out: &mut Output) -> Result<(), TraceError> {
        let requests = std::mem::take(&mut self.requests);
        let largest = requests.iter().map(|(_, size)| *size).max().unwrap_or(1);
        let target = wanted.unwrap_or(largest);
        out.block_tokens = target;
        let mut checkers: HashMap<usize, RequestChecker> = HashMap::new();
        let mut mixed = false;
        for (ready, size) in &requests {
            if !can_regroup(*size, target) {
                return Err(TraceError::BlockSizes { line: Some(ready.line), from: *size, to: target });
            }
            mixed |= *size != target;
        }
        if !mixed {
            out.ready.extend(requests.into_iter().map(|(ready, _)| ready));
            return Ok(());
        }
        let mut references = 0_u64;
        for (ready, size) in &requests {
            let checker = match checkers.entry(*size) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(RequestChecker::new(*size, false)?),
            };
            checker.check_lengths(&ready.request, ready.line)?;
            references += u64::from(ready.request.input_length).div_ceil(target as u64);
            if references > MOST_REFERENCES {
                return Err(TraceError::TooManyBlocks { to: target, limit: MOST_REFERENCES });
            }
        }
        let listed = checkers.values().find_map(RequestChecker::lists_partial_blocks).unwrap_or(true);
        let mut chains = Chains::default();
        for (mut ready, size) in requests {
            let request = &mut ready.request;
            request.hash_ids =
                regroup(&mut chains, &request.hash_ids, request.input_length, size, target, listed)?;
            out.notes.regrouped += u64::from(size != target);
            out.ready.push_back(ready);
        }
        Ok(())
    }
}
