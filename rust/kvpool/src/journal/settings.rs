//! What journals write of types that are not theirs: request ids, retention's and the advisor's settings.
//!
//! The order of fields and variants is the format. Policies are names, so that what was written outlives new ones.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::JournalError;
use crate::evictor::EvictionPolicy;
use crate::manager::RequestId;
use crate::retention::{RetentionConfig, TenantId, TenantLimits};

/// A request id: `#[serde(with = "RequestIdRecord")]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "RequestId")]
pub(super) enum RequestIdRecord {
    Int(i64),
    Str(Box<str>),
}

/// Several of them: `#[serde(with = "request_ids")]`.
pub(super) mod request_ids {
    use super::{Deserialize, Deserializer, RequestId, RequestIdRecord, Serialize, Serializer};

    struct Written<'a>(&'a RequestId);

    impl Serialize for Written<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            RequestIdRecord::serialize(self.0, serializer)
        }
    }

    #[derive(Deserialize)]
    struct Read(#[serde(with = "RequestIdRecord")] RequestId);

    pub(crate) fn serialize<S: Serializer>(ids: &[RequestId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(ids.iter().map(Written))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<RequestId>, D::Error> {
        Ok(Vec::<Read>::deserialize(deserializer)?.into_iter().map(|Read(id)| id).collect())
    }
}

/// A [`RetentionConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RetentionSettings {
    pin_budget: usize,
    /// Tenant, floor, ceiling.
    tenants: Vec<(u32, usize, Option<usize>)>,
}

impl From<&RetentionConfig> for RetentionSettings {
    fn from(config: &RetentionConfig) -> Self {
        let limits = |&TenantLimits { tenant, floor, ceiling }| (tenant.0, floor, ceiling);
        Self { pin_budget: config.pin_budget, tenants: config.tenants.iter().map(limits).collect() }
    }
}

impl RetentionSettings {
    pub(super) fn config(&self) -> RetentionConfig {
        let limits = |&(tenant, floor, ceiling)| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
        RetentionConfig { pin_budget: self.pin_budget, tenants: self.tenants.iter().map(limits).collect() }
    }
}

/// An [`AdvisorConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct AdvisorSettings {
    max_sampled_blocks: usize,
    sample_every: u32,
    policies: Vec<String>,
    max_tenants: usize,
    window: Option<u64>,
    seed: u64,
}

/// The setting of a name.
pub(super) fn known<T: std::str::FromStr>(field: &'static str, name: &str) -> Result<T, JournalError> {
    name.parse().map_err(|_| JournalError::UnknownSetting { field, value: name.into() })
}

/// The policy of a name, of those that the reader knows.
pub(super) fn named(
    field: &'static str,
    name: &str,
    policies: &[EvictionPolicy],
) -> Result<EvictionPolicy, JournalError> {
    let found = policies.iter().copied().find(|policy| policy.name() == name);
    found.ok_or_else(|| JournalError::UnknownSetting { field, value: name.into() })
}
