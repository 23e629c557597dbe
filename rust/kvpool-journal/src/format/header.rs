//! The header: the kind of the recorded subject, and the settings that a replay needs.
//!
//! Settings with named values are stored as text, so that old journals can still be read when values
//! are added. Keys and seeds of hashes are omitted, because a replay computes no digests. The header
//! contains the name of a policy, and the reader uses its own policy with that name. A caller's own
//! evictor has no name, so a pool with such an evictor cannot have a journal.

use kvpool::groups::Groups;
use kvpool::hash::Verify;
use kvpool::retention::RetentionConfig;
use kvpool::{EvictionPolicy, ManagerConfig, PoolConfig, PoolError};
use kvpool_observe::{ManagerWatchConfig, WatchConfig};
use serde::{Deserialize, Serialize};

use super::frame;
use super::settings::{AdvisorSettings, GroupSettings, RetentionSettings, known, named};
use crate::{JournalConfig, JournalError, MAGIC, MAGIC_OF_GROUPS};

/// The kind of subject (pool, manager or vLLM's pool) that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A [`kvpool::BlockPool`].
    Pool,
    /// A [`kvpool::CacheManager`].
    Manager,
    /// A [`kvpool_vllm::Pool`].
    VllmPool,
}

/// The settings of the recorded pool or manager, and of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalHeader {
    /// Whether a pool, a manager or vLLM's pool was recorded.
    pub subject: Kind,
    /// Version of the crate that wrote the journal.
    pub crate_version: String,
    /// Number of operations between two digests; 0 if there are no digests.
    pub digest_every: u32,
    num_blocks: usize,
    block_size: usize,
    verify: String,
    duplicates: String,
    eviction: String,
    retention: Option<RetentionSettings>,
    advisor: Option<AdvisorSettings>,
    event_capacity: usize,
    algorithm: String,
    watermark: f64,
    host_blocks: usize,
    block_bytes: u64,
    /// Whether blocks of vLLM's pool keep their hashes, as with prefix caching. The value is true for
    /// other pools and managers.
    pub caching: bool,
    /// The KV-cache groups of a hybrid model. If there are any, they are written after the header.
    #[serde(skip)]
    groups: Vec<GroupSettings>,
}

impl JournalHeader {
    /// Makes the header of a pool's journal.
    #[must_use]
    pub fn of_pool(config: &PoolConfig, watch: &WatchConfig, journal: JournalConfig) -> Self {
        let manager = ManagerConfig {
            num_blocks: config.num_blocks,
            block_size: config.block_size,
            verify: config.verify,
            duplicates: config.duplicates,
            eviction: config.eviction,
            retention: config.retention.clone(),
            ..ManagerConfig::default()
        };
        let watch = ManagerWatchConfig {
            event_capacity: watch.event_capacity,
            advisor: watch.advisor.clone(),
            ..ManagerWatchConfig::default()
        };
        Self { subject: Kind::Pool, ..Self::of_manager(&manager, &watch, journal) }
    }

    /// Makes the header of a manager's journal.
    #[must_use]
    pub fn of_manager(config: &ManagerConfig, watch: &ManagerWatchConfig, journal: JournalConfig) -> Self {
        Self {
            subject: Kind::Manager,
            crate_version: env!("CARGO_PKG_VERSION").into(),
            digest_every: journal.digest_every,
            num_blocks: config.num_blocks,
            block_size: config.block_size,
            verify: config.verify.name().into(),
            duplicates: config.duplicates.name().into(),
            eviction: config.eviction.name().into(),
            retention: config.retention.as_ref().map(RetentionSettings::from),
            advisor: watch.advisor.as_ref().map(AdvisorSettings::from),
            event_capacity: watch.event_capacity,
            algorithm: config.algorithm.name().into(),
            watermark: config.watermark,
            host_blocks: config.host_blocks,
            block_bytes: config.block_bytes,
            caching: true,
            groups: config.groups.iter().flat_map(Groups::specs).map(GroupSettings::from).collect(),
        }
    }

    /// Makes the header of a [`kvpool_vllm::Pool`]. vLLM itself computes the keys of this pool.
    #[must_use]
    pub fn of_vllm_pool(
        num_blocks: usize,
        eviction: EvictionPolicy,
        retention: Option<RetentionConfig>,
        caching: bool,
        journal: JournalConfig,
    ) -> Self {
        let manager = ManagerConfig { num_blocks, eviction, retention, ..ManagerConfig::default() };
        let watch = ManagerWatchConfig::default();
        Self { subject: Kind::VllmPool, caching, ..Self::of_manager(&manager, &watch, journal) }
    }

    /// Returns the first bytes of the journal, which depend on whether it has KV-cache groups.
    pub(crate) const fn magic(&self) -> [u8; 8] {
        if self.groups.is_empty() { MAGIC } else { MAGIC_OF_GROUPS }
    }

    /// Writes the header, followed by its groups if there are any.
    pub(crate) fn write(&self, frame: &mut Vec<u8>) {
        frame::push(frame, self);
        if !self.groups.is_empty() {
            frame::push(frame, &self.groups);
        }
    }

    pub(crate) fn read(bytes: &[u8], grouped: bool) -> Result<Self, JournalError> {
        let (header, groups): (Self, _) =
            postcard::take_from_bytes(bytes).map_err(|_| JournalError::NoHeader)?;
        if !grouped {
            // No checksum covers the version, so a flipped bit could make a journal with groups look
            // like one without groups. Refuse such a journal.
            return if groups.is_empty() { Ok(header) } else { Err(JournalError::NoHeader) };
        }
        let groups = postcard::from_bytes(groups).map_err(|_| JournalError::NoHeader)?;
        Ok(Self { groups, ..header })
    }

    /// Returns the KV-cache groups. One digest covers `block_size` tokens.
    fn groups(&self) -> Result<Option<Groups>, JournalError> {
        if self.groups.is_empty() {
            return Ok(None);
        }
        let specs = self.groups.iter().map(GroupSettings::spec).collect::<Result<_, _>>()?;
        let refused =
            |error: PoolError| JournalError::UnknownSetting { field: "groups", value: error.to_string() };
        Groups::new(specs, Some(self.block_size)).map(Some).map_err(refused)
    }

    /// Whether the recorded pool verified its hits, by tokens or by fingerprints.
    pub(crate) fn verified(&self) -> bool {
        self.verify != Verify::None.name()
    }

    /// Returns the settings of the recorded observers. The header contains only the settings that
    /// affect recorded answers.
    ///
    /// # Errors
    /// [`JournalError::UnknownSetting`].
    pub fn watch_config(&self, policies: &[EvictionPolicy]) -> Result<ManagerWatchConfig, JournalError> {
        Ok(ManagerWatchConfig {
            event_capacity: self.event_capacity,
            advisor: self.advisor.as_ref().map(|advisor| advisor.config(policies)).transpose()?,
            ..ManagerWatchConfig::default()
        })
    }

    /// Returns the settings of the pool. `policies` are the policies that the reader knows. For a
    /// manager, returns the settings of its device pool.
    ///
    /// # Errors
    /// [`JournalError::UnknownSetting`].
    pub fn pool_config(&self, policies: &[EvictionPolicy]) -> Result<PoolConfig, JournalError> {
        Ok(self.manager_config(policies)?.pool())
    }

    /// Returns the settings of the manager, without key and seed of the hasher. `policies` are the
    /// policies that the reader knows.
    ///
    /// # Errors
    /// [`JournalError::UnknownSetting`].
    pub fn manager_config(&self, policies: &[EvictionPolicy]) -> Result<ManagerConfig, JournalError> {
        Ok(ManagerConfig {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            algorithm: known("algorithm", &self.algorithm)?,
            verify: known("verify", &self.verify)?,
            duplicates: known("duplicates", &self.duplicates)?,
            eviction: named("eviction", &self.eviction, policies)?,
            retention: self.retention.as_ref().map(RetentionSettings::config),
            watermark: self.watermark,
            host_blocks: self.host_blocks,
            groups: self.groups()?,
            block_bytes: self.block_bytes,
            ..ManagerConfig::default()
        })
    }
}
