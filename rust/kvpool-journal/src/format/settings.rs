//! The form in which journals store types of other crates: request ids, and settings of retention, of
//! the advisor, and of KV-cache groups.
//!
//! The order of fields and variants is part of the format. Policies are stored by name, so that old
//! journals can still be read when policies are added.

use kvpool::groups::{GroupKind, GroupSpec, Keep};
use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{EvictionPolicy, RequestId};
use kvpool_observe::AdvisorConfig;
use serde::{Deserialize, Serialize};

use crate::JournalError;

/// The encoding of a request id. Use it with `#[serde(with = "RequestIdRecord")]`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "RequestId")]
pub(crate) enum RequestIdRecord {
    Int(i64),
    Str(Box<str>),
    Uint(u64),
}

/// The stored form of a [`RetentionConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RetentionSettings {
    pin_budget: usize,
    /// For each tenant: its id, and its smallest and largest number of blocks.
    tenants: Vec<(u32, usize, Option<usize>)>,
}

impl From<&RetentionConfig> for RetentionSettings {
    fn from(config: &RetentionConfig) -> Self {
        let limits = |&TenantLimits { tenant, floor, ceiling }| (tenant.0, floor, ceiling);
        Self { pin_budget: config.pin_budget, tenants: config.tenants.iter().map(limits).collect() }
    }
}

impl RetentionSettings {
    pub(crate) fn config(&self) -> RetentionConfig {
        let limits = |&(tenant, floor, ceiling)| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
        RetentionConfig { pin_budget: self.pin_budget, tenants: self.tenants.iter().map(limits).collect() }
    }
}

/// The stored form of an [`AdvisorConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct AdvisorSettings {
    max_sampled_blocks: usize,
    sample_every: u32,
    policies: Vec<String>,
    max_tenants: usize,
    window: Option<u64>,
    seed: u64,
}

impl From<&AdvisorConfig> for AdvisorSettings {
    fn from(config: &AdvisorConfig) -> Self {
        Self {
            max_sampled_blocks: config.max_sampled_blocks,
            sample_every: config.sample_every,
            policies: config.policies.iter().map(|policy| policy.name().to_owned()).collect(),
            max_tenants: config.max_tenants,
            window: config.window,
            seed: config.seed,
        }
    }
}

impl AdvisorSettings {
    pub(crate) fn config(&self, policies: &[EvictionPolicy]) -> Result<AdvisorConfig, JournalError> {
        Ok(AdvisorConfig {
            max_sampled_blocks: self.max_sampled_blocks,
            sample_every: self.sample_every,
            policies: self
                .policies
                .iter()
                .map(|name| named("advisor", name, policies))
                .collect::<Result<_, _>>()?,
            max_tenants: self.max_tenants,
            window: self.window,
            seed: self.seed,
        })
    }
}

/// The stored form of a [`GroupSpec`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct GroupSettings {
    /// Name of the kind, and the size in tokens if the kind has one.
    kind: (String, usize),
    block_tokens: usize,
    /// Name of the rule that determines which blocks the group caches, and the interval of the rule if
    /// it has one.
    keep: (String, usize),
    margin: usize,
    partial_hits: bool,
    sink_tokens: usize,
}

impl From<&GroupSpec> for GroupSettings {
    fn from(spec: &GroupSpec) -> Self {
        let (keep, every) = match spec.keep {
            Keep::All => ("all", 0),
            Keep::Every(tokens) => ("every", tokens),
            Keep::Junctions => ("junctions", 0),
            Keep::Nothing => ("none", 0),
            _ => ("unknown", 0),
        };
        let (kind, keep) = ((spec.kind.name().into(), spec.kind.span().unwrap_or(0)), (keep.into(), every));
        let GroupSpec { block_tokens, margin, partial_hits, sink_tokens, .. } = *spec;
        Self { kind, block_tokens, keep, margin, partial_hits, sink_tokens }
    }
}

impl GroupSettings {
    pub(crate) fn spec(&self) -> Result<GroupSpec, JournalError> {
        let unknown = |field, value: &str| JournalError::UnknownSetting { field, value: value.into() };
        let (name, span) = (&self.kind.0, self.kind.1);
        let kind = GroupKind::named(name, span).ok_or_else(|| unknown("groups", name))?;
        let keep = match (self.keep.0.as_str(), self.keep.1) {
            ("all", _) => Keep::All,
            ("every", tokens) => Keep::Every(tokens),
            ("junctions", _) => Keep::Junctions,
            ("none", _) => Keep::Nothing,
            (other, _) => return Err(unknown("keep", other)),
        };
        let Self { block_tokens, margin, partial_hits, sink_tokens, .. } = *self;
        Ok(GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) })
    }
}

/// Parses the named value of a setting. An unknown name is an error.
pub(crate) fn known<T: std::str::FromStr>(field: &'static str, name: &str) -> Result<T, JournalError> {
    name.parse().map_err(|_| JournalError::UnknownSetting { field, value: name.into() })
}

pub(crate) fn named(
    field: &'static str,
    name: &str,
    policies: &[EvictionPolicy],
) -> Result<EvictionPolicy, JournalError> {
    let found = policies.iter().copied().find(|policy| policy.name() == name);
    found.ok_or_else(|| match kvpool_policies::replacement(name) {
        None => JournalError::UnknownSetting { field, value: name.into() },
        Some(instead) => JournalError::RemovedPolicy {
            field,
            policy: name.into(),
            known: policies.iter().map(|policy| policy.name()).collect::<Vec<_>>().join(", "),
            instead: instead.name(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IdRecord, Name, Rows};

    fn assert_written<T: Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        value: &T,
        bytes: &[u8],
    ) {
        assert_eq!(postcard::to_stdvec(value).unwrap(), bytes);
        assert_eq!(&postcard::from_bytes::<T>(bytes).unwrap(), value);
    }

    /// Journals contain the bytes that this test expects, so these bytes must never change.
    #[test]
    fn the_format_is_unchanged() {
        assert_written(&Name::Id(RequestId::Int(-1)), &[1, 0, 1]);
        assert_written(
            &Rows::Ids(vec![IdRecord(RequestId::Str("a".into())), IdRecord(RequestId::Int(2))]),
            &[2, 2, 1, 1, b'a', 0, 4],
        );
        assert_written(
            &Name::Id(RequestId::from(1u64 << 63)),
            &[1, 2, 128, 128, 128, 128, 128, 128, 128, 128, 128, 1],
        );
        let limits = TenantLimits { tenant: TenantId(7), floor: 3, ceiling: Some(9) };
        let config = RetentionConfig { pin_budget: 5, tenants: vec![limits] };
        let settings = RetentionSettings::from(&config);
        assert_written(&settings, &[5, 1, 7, 3, 1, 9]);
        assert_eq!(settings.config(), config);
        let config = AdvisorConfig {
            max_sampled_blocks: 64,
            sample_every: 1,
            policies: vec![EvictionPolicy::LRU],
            max_tenants: 8,
            window: None,
            seed: 2,
        };
        let settings = AdvisorSettings::from(&config);
        assert_written(&settings, &[64, 1, 1, 3, b'l', b'r', b'u', 8, 0, 2]);
        let policies = [EvictionPolicy::LRU];
        assert_eq!(settings.config(&policies), Ok(config));
        let window = GroupSpec {
            keep: Keep::Every(9),
            margin: 1,
            sink_tokens: 4,
            ..GroupSpec::new(GroupKind::Sliding { window: 5 }, 2)
        };
        let group = GroupSettings::from(&window);
        let bytes = [&[7][..], b"sliding", &[5, 2, 5], b"every", &[9, 1, 0, 4]].concat();
        assert_written(&group, &bytes);
        assert_eq!(group.spec(), Ok(window));
        let unknown = AdvisorSettings { policies: vec!["clock".into()], ..settings };
        let refused = JournalError::UnknownSetting { field: "advisor", value: "clock".into() };
        assert_eq!(unknown.config(&policies), Err(refused));
    }
}
