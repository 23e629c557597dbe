//! The configurations: one per eviction policy, and among them every kind of verification, duplicates, hashing, retention,
//! advisor, events, watermark and tiers.

use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{DuplicatePolicy, EvictionPolicy, HashAlgorithm, ManagerConfig, Verify};
use kvpool_observe::{AdvisorConfig, ManagerWatchConfig};

use super::Settings;

/// What differs between configurations.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The policy of the device's cached blocks; it names the configuration.
    pub eviction: EvictionPolicy,
    /// How blocks are hashed.
    pub algorithm: HashAlgorithm,
    /// How hits are verified.
    pub verify: Verify,
    /// What happens to duplicates.
    pub duplicates: DuplicatePolicy,
    /// Whether there are priorities, times to live, pins and tenants.
    pub retention: bool,
    /// Whether an advisor samples.
    pub advisor: bool,
    /// Events that are kept; 0 records none.
    pub events: usize,
    /// Share of the pool that admissions leave.
    pub watermark: f64,
    /// Blocks of the host tier, in percent of the device's; 0 for none.
    pub host_share: usize,
}

const PLAIN: Preset = Preset {
    eviction: kvpool_policies::LRU,
    algorithm: HashAlgorithm::Sha256,
    verify: Verify::None,
    duplicates: DuplicatePolicy::Keep,
    retention: false,
    advisor: false,
    events: 0,
    watermark: 0.0,
    host_share: 25,
};

/// Every configuration.
pub const PRESETS: &[Preset] = &[
    Preset { events: 1 << 16, ..PLAIN },
    Preset {
        eviction: kvpool_policies::LAST_ACCESS,
        algorithm: HashAlgorithm::Xxh3,
        verify: Verify::Fingerprint,
        ..PLAIN
    },
    Preset {
        eviction: kvpool_policies::S3_FIFO,
        algorithm: HashAlgorithm::Blake3,
        verify: Verify::Tokens,
        retention: true,
        events: 64,
        host_share: 60,
        ..PLAIN
    },
    Preset {
        eviction: kvpool_policies::ARC,
        verify: Verify::Fingerprint,
        duplicates: DuplicatePolicy::DropOnRelease,
        events: 1 << 12,
        host_share: 10,
        ..PLAIN
    },
    Preset {
        eviction: kvpool_policies::ADAPTIVE,
        verify: Verify::Fingerprint,
        duplicates: DuplicatePolicy::DropOnRelease,
        retention: true,
        advisor: true,
        events: 1 << 14,
        watermark: 0.01,
        ..PLAIN
    },
    Preset {
        eviction: kvpool_policies::HAZARD,
        retention: true,
        advisor: true,
        watermark: 0.05,
        host_share: 0,
        ..PLAIN
    },
];

impl Preset {
    /// The configuration's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.eviction.name()
    }

    /// Everything about it, in a few words.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut said = vec![self.algorithm.name().to_owned(), format!("verify {}", self.verify.name())];
        said.push(self.duplicates.name().to_owned());
        said.extend(self.retention.then(|| "retention".to_owned()));
        said.extend(self.advisor.then(|| "advisor".to_owned()));
        said.extend((self.events > 0).then(|| format!("{} events", self.events)));
        said.extend((self.watermark > 0.0).then(|| format!("watermark {}", self.watermark)));
        said.push(if self.host_share > 0 {
            format!("host {} %", self.host_share)
        } else {
            "no host".to_owned()
        });
        said.join(", ")
    }

    /// The manager's settings.
    pub(crate) fn config(&self, settings: &Settings) -> ManagerConfig {
        let usable = settings.blocks - 1;
        let limits = |tenant| TenantLimits {
            tenant: TenantId(tenant),
            floor: usable / 16,
            ceiling: (tenant % 2 == 0).then_some(usable / 4),
        };
        let retention = RetentionConfig { pin_budget: usable / 16, tenants: (1..=4).map(limits).collect() };
        let host_blocks =
            if self.host_share == 0 { 0 } else { (settings.blocks * self.host_share / 100).max(2) };
        ManagerConfig {
            num_blocks: settings.blocks,
            block_size: settings.block_size,
            algorithm: self.algorithm,
            verify: self.verify,
            duplicates: self.duplicates,
            eviction: self.eviction,
            retention: self.retention.then_some(retention),
            watermark: self.watermark,
            host_blocks,
            ..ManagerConfig::default()
        }
    }

    /// What watches the manager.
    pub(crate) fn watch(&self) -> ManagerWatchConfig {
        ManagerWatchConfig {
            event_capacity: self.events,
            advisor: self.advisor.then(AdvisorConfig::default),
            ..ManagerWatchConfig::default()
        }
    }
}
