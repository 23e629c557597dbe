//! Collects requests with individual block sizes, and converts them to one block size.
//!
//! [`SizedRequests`] is for formats with a block size in each record. The trace gets the size that the
//! caller requested, or otherwise the largest size that occurs. Every size must divide that size or be
//! a multiple of it.
//!
//! Ids of different sizes never match. Equal text has other ids in blocks of another size, and a trace
//! does not show which of them correspond.
//!
//! Either all partial last blocks of a trace have ids, or none has. For each size, the first request
//! with a partial block determines which, and all other requests must agree with it.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{Output, Ready};
use crate::{
    blocks::{Chains, MOST_REFERENCES, can_regroup, regroup},
    error::TraceError,
    validate::RequestChecker,
};

/// Requests with individual block sizes. Their ids already identify prefixes.
#[derive(Debug, Default)]
pub(crate) struct SizedRequests {
    requests: Vec<(Ready, usize)>,
}

impl SizedRequests {
    pub(crate) fn push(&mut self, ready: Ready, block_tokens: usize) {
        self.requests.push((ready, block_tokens));
    }

    /// Converts all requests to blocks of one size, and moves them to `out`. This size is `wanted` (the
    /// caller's), or the largest size that occurs.
    pub(crate) fn finish(&mut self, wanted: Option<usize>, out: &mut Output) -> Result<(), TraceError> {
        let requests = std::mem::take(&mut self.requests);
        let largest = requests.iter().map(|(_, size)| *size).max().unwrap_or(1);
        let target = wanted.unwrap_or(largest);
        out.block_tokens = target;
        let mut checkers: BTreeMap<usize, RequestChecker> = BTreeMap::new();
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
