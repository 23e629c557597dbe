//! What is remembered in order to explain misses.

use kvpool::{MAX_BLOCKS, PoolError};

/// Settings of the record that [`ManagerWatch::explain`](crate::ManagerWatch::explain) answers from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainConfig {
    /// Contents that are remembered, cached ones included. A content is a hash unit of a prompt: a block, or
    /// the part of a block that is hashed at a time. 16 to 2^24. `None` is twice the hash units that the pool
    /// holds, at least 1,024 and at most 2^20. Each content takes 95 bytes and its tokens.
    pub records: Option<usize>,
    /// Released requests that can still be explained, at most 2^20. Default 1,024. Each takes some 200
    /// bytes, 7 kB at most.
    pub requests: usize,
}

impl Default for ExplainConfig {
    fn default() -> Self {
        Self { records: None, requests: 1024 }
    }
}

impl ExplainConfig {
    const RECORDS: std::ops::RangeInclusive<usize> = 16..=1 << 24;
    const MAX_REQUESTS: usize = 1 << 20;

    /// Says whether a manager can be made with these settings; one that is made checks it too.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a setting out of range.
    pub fn check(&self) -> Result<(), PoolError> {
        let invalid = |field, value: usize, expected: String| Err(PoolError::config(field, value, expected));
        if let Some(records) = self.records.filter(|records| !Self::RECORDS.contains(records)) {
            let (least, most) = (Self::RECORDS.start(), Self::RECORDS.end());
            return invalid("records", records, format!("{least} to {most} contents of blocks"));
        }
        if self.requests > Self::MAX_REQUESTS {
            return invalid("requests", self.requests, format!("at most {}", Self::MAX_REQUESTS));
        }
        Ok(())
    }

    /// Contents that are remembered with a pool that holds `units` hash units.
    pub(super) fn num_records(&self, units: usize) -> usize {
        let twice = units.min(MAX_BLOCKS).saturating_mul(2).clamp(1 << 10, 1 << 20);
        self.records.unwrap_or(twice)
    }
}
