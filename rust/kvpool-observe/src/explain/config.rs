//! `ExplainConfig`: how many contents and requests are remembered to explain misses.

use kvpool::{MAX_BLOCKS, PoolError};

/// Settings of the explainer: see [`ManagerWatch::explain`](crate::ManagerWatch::explain).
///
/// ```
/// use kvpool_observe::ExplainConfig;
/// let config = ExplainConfig { records: Some(100_000), ..ExplainConfig::default() };
/// config.check()?;
/// assert!(ExplainConfig { records: Some(1), ..config }.check().is_err());
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainConfig {
    /// The number of contents that are remembered, including cached ones: 16 to 2^24. A content is a
    /// hash unit of a prompt: a block, or the part of a block that is hashed at a time. `None` means
    /// twice the hash units that fit into the pool, at least 1,024 and at most 2^20. Each content takes
    /// 95 bytes plus its tokens.
    pub records: Option<usize>,
    /// The number of released requests that can still be explained: at most 2^20, by default 1,024.
    /// Each takes about 200 bytes, and at most 7 kB.
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

    /// Checks the settings. Constructing a manager checks them too.
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

    pub(super) fn num_records(&self, units: usize) -> usize {
        let twice = units.min(MAX_BLOCKS).saturating_mul(2).clamp(1 << 10, 1 << 20);
        self.records.unwrap_or(twice)
    }
}
