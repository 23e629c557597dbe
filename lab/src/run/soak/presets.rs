//! The configurations of a soak: one for each eviction policy. Together they use every way to verify
//! hits and every policy for duplicates. Some have retention, an advisor, a watermark (reserved blocks)
//! or a host tier.

use kvpool::hash::Verify;
use kvpool::{DuplicatePolicy, EvictionPolicy};

use crate::world::manager::{Scale, Setting};

/// The settings that differ between the configurations of a soak.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The eviction policy. Its name is also the name of the configuration.
    pub policy: EvictionPolicy,
    /// How the manager verifies hits.
    pub verify: Verify,
    /// Whether a block stays cached after its release if another block has the same content.
    pub duplicates: DuplicatePolicy,
    /// Whether the manager accepts retention hints and tenants.
    pub retention: bool,
    /// Whether an advisor (which estimates hit rates of other pool sizes) samples lookups.
    pub advisor: bool,
    /// Whether a fifth of the pool is reserved for running requests.
    pub watermark: bool,
    /// Number of blocks of the host in percent of those of the device, or 0 for no host.
    pub host_share: usize,
}

const PLAIN: Preset = Preset {
    policy: kvpool_policies::LRU,
    verify: Verify::None,
    duplicates: DuplicatePolicy::Keep,
    retention: false,
    advisor: false,
    watermark: false,
    host_share: 25,
};

/// All configurations.
pub const PRESETS: &[Preset] = &[
    PLAIN,
    Preset { policy: kvpool_policies::LAST_ACCESS, verify: Verify::Fingerprint, ..PLAIN },
    Preset {
        policy: kvpool_policies::S3_FIFO,
        verify: Verify::Tokens,
        retention: true,
        host_share: 60,
        ..PLAIN
    },
    Preset {
        policy: kvpool_policies::ARC,
        verify: Verify::Fingerprint,
        duplicates: DuplicatePolicy::DropOnRelease,
        host_share: 10,
        ..PLAIN
    },
    Preset {
        policy: kvpool_policies::ADAPTIVE,
        duplicates: DuplicatePolicy::DropOnRelease,
        retention: true,
        advisor: true,
        ..PLAIN
    },
    Preset {
        policy: kvpool_policies::HAZARD,
        retention: true,
        advisor: true,
        watermark: true,
        host_share: 0,
        ..PLAIN
    },
];

impl Preset {
    /// Returns the name of the configuration, which is the name of its policy.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.policy.name()
    }

    /// Returns a short description of the configuration's settings.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut words = vec![format!("verify {}", self.verify.name()), self.duplicates.name().to_owned()];
        words.extend(self.retention.then(|| "retention".to_owned()));
        words.extend(self.advisor.then(|| "advisor".to_owned()));
        words.extend(self.watermark.then(|| "watermark".to_owned()));
        words.push(match self.host_share {
            0 => "no host".to_owned(),
            share => format!("host {share} %"),
        });
        words.join(", ")
    }

    /// Returns the settings of a [`ManagerWorld`](crate::world::manager::ManagerWorld) for this
    /// configuration.
    pub(super) fn setting(&self, blocks: usize, block_size: usize, check_every: u64) -> Setting {
        let Self { policy, verify, duplicates, retention, watermark, host_share, .. } = *self;
        // The maximum length of a prompt is computed from this number so that the pool is too small: if
        // every request has a prompt of half that length, together they need twice the blocks of the
        // pool.
        let requests = (blocks / 4).clamp(8, 200);
        Setting {
            num_blocks: blocks,
            host_blocks: if host_share == 0 { 0 } else { (blocks * host_share / 100).max(2) },
            block_size,
            watermark,
            verify,
            duplicates,
            policy,
            retention,
            scribbles: true,
            looks: 2,
            scale: Scale {
                requests: requests as i64,
                blocks: blocks + 64,
                prompt: (4 * blocks / requests).clamp(4, 64),
                // The log must have room for the events between two reads, because the oracle reads it
                // at every second check.
                events: 128 * check_every as usize,
            },
            groups: Vec::new(),
            ahead: 0,
            explains: false,
        }
    }
}
