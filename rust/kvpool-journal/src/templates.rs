//! What exported tests begin with.

use kvpool::ManagerConfig;

pub(crate) fn rust_settings(config: &ManagerConfig, manager: bool) -> String {
    let mut lines = vec![
        format!("num_blocks: {}", config.num_blocks),
        format!("block_size: {}", config.block_size),
        format!("duplicates: {:?}.parse().unwrap()", config.duplicates.name()),
        format!("eviction: {:?}.parse().unwrap()", config.eviction.name()),
        format!("verify: {:?}.parse().unwrap()", config.verify.name()),
        format!("event_capacity: {}", config.event_capacity),
    ];
    if let Some(retention) = &config.retention {
        let tenants: Vec<String> = retention
            .tenants
            .iter()
            .map(|limits| {
                let (tenant, floor, ceiling) = (limits.tenant.0, limits.floor, limits.ceiling);
                format!("TenantLimits {{ tenant: TenantId({tenant}), floor: {floor}, ceiling: {ceiling:?} }}")
            })
            .collect();
        let (pins, tenants) = (retention.pin_budget, tenants.join(", "));
        lines.push(format!(
            "retention: Some(RetentionConfig {{ pin_budget: {pins}, tenants: vec![{tenants}] }})"
        ));
    }
    if manager {
        lines.push(format!("watermark: {:?}", config.watermark));
        lines.push(format!("host_blocks: {}", config.host_blocks));
    }
    lines.iter().map(|line| format!("        {line},\n")).collect()
}

pub(crate) fn python_settings(config: &ManagerConfig, manager: bool) -> String {
    let mut lines = vec![
        format!("{}", config.num_blocks),
        format!("{}", config.block_size),
        format!("duplicates={:?}", config.duplicates.name()),
        format!("eviction={:?}", config.eviction.name()),
        format!("verify={:?}", config.verify.name()),
        format!("event_capacity={}", config.event_capacity),
    ];
    if let Some(retention) = &config.retention {
        let tenants: Vec<String> = retention
            .tenants
            .iter()
            .map(|limits| {
                let ceiling = limits.ceiling.map_or_else(|| "None".into(), |ceiling| ceiling.to_string());
                format!("{}: kvpool.TenantLimits({}, {ceiling})", limits.tenant.0, limits.floor)
            })
            .collect();
        let (pins, tenants) = (retention.pin_budget, tenants.join(", "));
        lines.push(format!("retention=kvpool.RetentionConfig(pin_budget={pins}, tenants={{{tenants}}})"));
    }
    if manager {
        lines.push(format!("watermark={:?}", config.watermark));
        lines.push(format!("host_blocks={}", config.host_blocks));
    }
    lines.iter().map(|line| format!("        {line},\n")).collect()
}

pub(crate) const RUST_MANAGER: &str = r#"//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, unused_imports, unused_variables, unused_mut, dead_code, reason = "made by a program")]

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockId, CacheManager, ExtraKeys, ManagerConfig, RequestHints, RetentionRange, SwapId};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

#[test]
fn journal() {
    let mut manager = CacheManager::new(ManagerConfig {
SETTINGS        ..ManagerConfig::default()
    })
    .unwrap();
    let block_size = manager.pool().block_size();
    // Full blocks by the number of their content, and a tail of zeros.
    let tokens = |contents: &[u32], tail: usize| -> Vec<u32> {
        let block = |&content: &u32| std::iter::repeat_n(0, block_size - 1).chain([content]);
        contents.iter().flat_map(block).chain(std::iter::repeat_n(0, tail)).collect()
    };

"#;

pub(crate) const RUST_POOL: &str = r#"//! A journal as a test: made by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(clippy::allow_attributes, unused_imports, unused_variables, unused_mut, dead_code, reason = "made by a program")]

use std::sync::Arc;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, PoolConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

#[test]
fn journal() {
    let config = PoolConfig {
SETTINGS        ..PoolConfig::default()
    };
    let (block_size, verify) = (config.block_size, config.verify);
    let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size, verify, ..HasherConfig::default() }).unwrap());
    let mut pool = BlockPool::new(config).unwrap();
    // A block by the number of its content.
    let block = |content: u32| -> Vec<u32> { std::iter::repeat_n(0, block_size - 1).chain([content]).collect() };
    let chain = |contents: &[u32], epoch: u64| -> HashChain {
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
        for &content in contents {
            cursor.append(&block(content));
        }
        cursor.chain().clone()
    };
    let link = |contents: &[u32], epoch: u64| -> ChainLink {
        let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
        let mut last = None;
        for &content in contents {
            last = Some(ChainLink::new(&hasher, last.as_ref(), &block(content), &extra).unwrap());
        }
        last.unwrap()
    };

"#;

pub(crate) const PYTHON_MANAGER: &str = r#""""A journal as a test: made by ``kvpool journal export``."""

import kvpool


def attempt(call, *arguments, **named):
    """Calls; a refusal is part of what was recorded."""
    try:
        return call(*arguments, **named)
    except kvpool.KvpoolError:
        return None


def test_journal():
    manager = kvpool.CacheManager(
SETTINGS    )

    def tokens(contents, tail):
        """Full blocks by the number of their content, and a tail of zeros."""
        blocks = [token for content in contents for token in [0] * (manager.block_size - 1) + [content]]
        return blocks + [0] * tail

"#;

pub(crate) const PYTHON_POOL: &str = r#""""A journal as a test: made by ``kvpool journal export``."""

import kvpool


def attempt(call, *arguments, **named):
    """Calls; a refusal is part of what was recorded."""
    try:
        return call(*arguments, **named)
    except kvpool.KvpoolError:
        return None


def test_journal():
    pool = kvpool.BlockPool(
SETTINGS    )
    hasher = kvpool.BlockHasher(block_size=pool.block_size)

    def block(content):
        return [0] * (pool.block_size - 1) + [content]

    def chain(contents, epoch):
        """A hash chain of blocks by the number of their content."""
        cursor = kvpool.HashCursor(hasher, kvpool.ExtraKeys(epoch=epoch))
        for content in contents:
            cursor.append(block(content))
        return cursor.chain

    def link(contents, epoch):
        last = None
        for content in contents:
            last = kvpool.ChainLink(hasher, last, block(content), kvpool.ExtraKeys(epoch=epoch))
        return last

"#;
