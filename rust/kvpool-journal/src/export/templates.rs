//! Returns the text at the start of each exported test, and the expression that creates its pool.

use crate::Kind;
use kvpool::ManagerConfig;
use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool::retention::RetentionConfig;

use super::text;

/// Returns the name of the pool's Rust type. The Python class has the same name, except for vLLM's
/// pool.
pub(super) const fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Pool => "BlockPool",
        Kind::Manager => "CacheManager",
        Kind::VllmPool => "Pool",
    }
}

/// Returns a seed if the algorithm is one of vLLM's, because they need one. The journal does not
/// contain the recorded seed, but no answer depends on the seed.
fn seed(config: &ManagerConfig) -> Option<&'static str> {
    config.algorithm.name().starts_with("vllm").then_some("0")
}

fn rust_retention(retention: &RetentionConfig) -> String {
    let tenants = retention.tenants.iter().map(|limits| {
        let (tenant, floor, ceiling) = (limits.tenant.0, limits.floor, limits.ceiling);
        format!("TenantLimits {{ tenant: TenantId({tenant}), floor: {floor}, ceiling: {ceiling:?} }}")
    });
    let (pins, tenants) = (retention.pin_budget, tenants.collect::<Vec<_>>().join(", "));
    format!("RetentionConfig {{ pin_budget: {pins}, tenants: vec![{tenants}] }}")
}

fn python_retention(retention: &RetentionConfig) -> String {
    let tenants = retention.tenants.iter().map(|limits| {
        let ceiling = limits.ceiling.map_or_else(|| "None".into(), |ceiling| ceiling.to_string());
        format!("kvpool.TenantLimits({}, floor={}, ceiling={ceiling})", limits.tenant.0, limits.floor)
    });
    let (pins, tenants) = (retention.pin_budget, tenants.collect::<Vec<_>>().join(", "));
    format!("retention=kvpool.RetentionConfig(pin_budget={pins}, tenants=[{tenants}])")
}

pub(super) fn rust_pool(config: &ManagerConfig, event_capacity: usize, kind: Kind, caching: bool) -> String {
    if kind == Kind::VllmPool {
        let (blocks, eviction) = (config.num_blocks, config.eviction.name());
        let eviction = format!("kvpool_policies::by_name({eviction:?}).unwrap()");
        return match &config.retention {
            None => format!("Pool::with_policy({blocks}, {caching}, {eviction})"),
            Some(retention) => {
                let retention = rust_retention(retention);
                format!("Pool::with_retention({blocks}, {caching}, {eviction}, Some({retention}))")
            }
        };
    }
    let mut fields = vec![
        format!("num_blocks: {}", config.num_blocks),
        format!("block_size: {}", config.block_size),
        format!("duplicates: {:?}.parse().unwrap()", config.duplicates.name()),
        format!("eviction: kvpool_policies::by_name({:?}).unwrap()", config.eviction.name()),
        format!("verify: {:?}.parse().unwrap()", config.verify.name()),
    ];
    if let Some(retention) = &config.retention {
        fields.push(format!("retention: Some({})", rust_retention(retention)));
    }
    let mut config_class = "PoolConfig";
    if kind == Kind::Manager {
        config_class = "ManagerConfig";
        fields.push(format!("algorithm: {:?}.parse().unwrap()", config.algorithm.name()));
        fields.extend(seed(config).map(|seed| format!("seed: Some({seed:?}.into())")));
        fields.push(format!("watermark: {}", text::seconds(config.watermark, true)));
        fields.push(format!("host_blocks: {}", config.host_blocks));
        fields.extend(config.groups.as_ref().map(|groups| format!("groups: {}", rust_groups(groups))));
    }
    let fields: String = fields.iter().map(|field| format!("        {field},\n")).collect();
    let watch_class = if kind == Kind::Manager { "ManagerWatchConfig" } else { "WatchConfig" };
    let class = class(kind);
    let watch = format!("{watch_class} {{ event_capacity: {event_capacity}, ..{watch_class}::default() }}");
    format!(
        "{class}::new({config_class} {{\n{fields}        ..{config_class}::default()\n    }})\n    \
         .and_then(|pool| {{\n        pool.watched(&{watch})\n    }})"
    )
}

pub(super) fn python_pool(
    config: &ManagerConfig,
    event_capacity: usize,
    kind: Kind,
    caching: bool,
) -> String {
    if kind == Kind::VllmPool {
        let caching = if caching { "True" } else { "False" };
        let retention = config.retention.as_ref();
        let more =
            retention.map_or_else(String::new, |retention| format!(", {}", python_retention(retention)));
        return format!("VllmPool({}, {caching}, {:?}{more})", config.num_blocks, config.eviction.name());
    }
    let mut arguments = vec![
        config.num_blocks.to_string(),
        config.block_size.to_string(),
        format!("duplicates={:?}", config.duplicates.name()),
        format!("eviction={:?}", config.eviction.name()),
        format!("verify={:?}", config.verify.name()),
        format!("event_capacity={event_capacity}"),
    ];
    if let Some(retention) = &config.retention {
        arguments.push(python_retention(retention));
    }
    if kind == Kind::Manager {
        arguments.push(format!("algorithm={:?}", config.algorithm.name()));
        arguments.extend(seed(config).map(|seed| format!("seed={seed:?}")));
        arguments.push(format!("watermark={}", text::seconds(config.watermark, false)));
        arguments.push(format!("host_blocks={}", config.host_blocks));
        arguments.extend(config.groups.as_ref().map(|groups| format!("groups=[{}]", python_groups(groups))));
    }
    let arguments: String = arguments.iter().map(|argument| format!("        {argument},\n")).collect();
    format!("kvpool.{}(\n{arguments}    )\n", class(kind))
}

fn rust_groups(groups: &Groups) -> String {
    let group = |&GroupSpec { kind, block_tokens, keep, margin, partial_hits, sink_tokens }: &GroupSpec| {
        let new = format!("GroupSpec::new(GroupKind::{kind:?}, {block_tokens})");
        let partial = if partial_hits { ", partial_hits: true" } else { "" };
        let sink = if sink_tokens > 0 { format!(", sink_tokens: {sink_tokens}") } else { String::new() };
        format!(
            "GroupSpec {{ keep: kvpool::groups::Keep::{keep:?}, margin: {margin}{partial}{sink}, ..{new} }}"
        )
    };
    let specs: Vec<String> = groups.specs().iter().map(group).collect();
    let unit = groups.unit();
    format!("Groups::new(vec![{}], Some({unit})).ok()", specs.join(", "))
}

/// Returns the Python expressions that create the KV-cache groups, separated by commas, without
/// brackets.
fn python_groups(groups: &Groups) -> String {
    let group = |spec: &GroupSpec| {
        let named = if matches!(spec.kind, GroupKind::Sliding { .. }) { "window" } else { "chunk" };
        let span = spec.kind.span().map_or_else(String::new, |span| format!(", {named}={span}"));
        let keep = match spec.keep {
            Keep::Every(tokens) => format!(", keep={tokens}"),
            Keep::Junctions => ", keep=\"junctions\"".into(),
            Keep::Nothing => ", keep=\"none\"".into(),
            _ => String::new(),
        };
        let more = |name: &str, n: usize| if n > 0 { format!(", {name}={n}") } else { String::new() };
        let (sink, margin) = (more("sink", spec.sink_tokens), more("margin", spec.margin));
        let partial = if spec.partial_hits { ", partial_hits=True" } else { "" };
        format!(
            "kvpool.GroupSpec({:?}, {}{span}{sink}{keep}{margin}{partial})",
            spec.kind.name(),
            spec.block_tokens
        )
    };
    groups.specs().iter().map(group).collect::<Vec<_>>().join(", ")
}

/// Returns the text before the first call of a Rust test.
pub(super) const fn rust(kind: Kind) -> &'static str {
    match kind {
        Kind::Pool => RUST_POOL,
        Kind::Manager => RUST_MANAGER,
        Kind::VllmPool => RUST_VLLM,
    }
}

/// Returns the text before the first call of a Python test.
pub(super) const fn python(kind: Kind) -> &'static str {
    match kind {
        Kind::Pool => PYTHON_POOL,
        Kind::Manager => PYTHON_MANAGER,
        Kind::VllmPool => PYTHON_VLLM,
    }
}

macro_rules! rust_test {
    ($rest:literal) => {
        concat!(
            r#"//! A test with the calls of a recorded journal, written by `kvpool journal export`.
#![cfg_attr(rustfmt, rustfmt_skip)]
#![allow(
    clippy::allow_attributes,
    clippy::single_range_in_vec_init,
    clippy::unit_arg,
    clippy::unwrap_used,
    unused,
    reason = "written by a program"
)]

"#,
            $rest,
            r#"
/// Checks that an answer has the expected checksum. A journal stores one checksum per answer.
#[track_caller]
fn same(answer: impl Outcome + std::fmt::Debug, check: u32) {
    assert_eq!(Check::of(&answer), check, "the answer is {answer:?}");
}

"#
        )
    };
}

const RUST_MANAGER: &str = rust_test!(
    r#"use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHasher, BlockId, CacheManager, Computed, Covered, ExtraKeys, HashCursor,
    HasherConfig, Loaded, ManagerConfig, Part, RetentionRange, Rows, SwapId, Until, Verify,
};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

/// Returns one full block per number of a content, and then `tail` zeros.
fn tokens(block_size: usize, contents: &[u32], tail: usize) -> Vec<u32> {
    let block = |&content: &u32| std::iter::repeat_n(0, block_size - 1).chain([content]);
    contents.iter().flat_map(block).chain(std::iter::repeat_n(0, tail)).collect()
}

/// Returns a prompt that is hashed for an epoch.
fn prompt(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let tokens = tokens(manager.pool().block_size(), contents, tail);
    let mut cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
    cursor.rebase(epoch).unwrap();
    cursor
}

/// Returns a prompt that is hashed by another hasher than the manager's.
fn foreign(manager: &CacheManager, contents: &[u32], tail: usize, epoch: u64) -> HashCursor {
    let (algorithm, block_size) = (manager.hasher().algorithm(), manager.pool().block_size());
    let verify = if manager.hasher().has_fingerprints() { Verify::Fingerprint } else { Verify::None };
    let seed = Some("foreign".into());
    let config = HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() };
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys { epoch, ..ExtraKeys::default() }).unwrap();
    cursor.append(&tokens(block_size, contents, tail));
    cursor
}
"#
);

const RUST_POOL: &str = rust_test!(
    r#"use std::sync::Arc;

use kvpool_journal::{Check, Outcome};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHasher, BlockId, BlockPool, ChainLink, ExtraKeys, HashChain, HashCursor, HasherConfig, Match,
    PoolConfig,
};
use kvpool_observe::{PoolWatch, WatchConfig};

fn ids(ids: &[u32]) -> Vec<BlockId> {
    ids.iter().copied().map(BlockId::new).collect()
}

fn hasher(algorithm: &str, verify: &str, block_size: usize) -> Arc<BlockHasher> {
    let (seed, algorithm, verify) = (Some("0".into()), algorithm.parse().unwrap(), verify.parse().unwrap());
    let config = HasherConfig { algorithm, block_size, verify, seed, ..HasherConfig::default() };
    Arc::new(BlockHasher::new(config).unwrap())
}

/// Returns the tokens of a block, given the number of its content.
fn block(block_size: usize, content: u32) -> Vec<u32> {
    std::iter::repeat_n(0, block_size - 1).chain([content]).collect()
}

/// Returns the hash chain of a prompt, given the contents of its blocks.
fn chain(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher(algorithm, verify, block_size), extra).unwrap();
    for &content in contents {
        cursor.append(&block(block_size, content));
    }
    cursor.chain().clone()
}

/// Returns the hash chain of a prompt as digests without tokens, as another process would send it.
fn digests(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> HashChain {
    let whole = chain(algorithm, verify, block_size, contents, epoch);
    let hashes = whole.hashes().to_vec();
    HashChain::from_digests(algorithm.parse().unwrap(), block_size, epoch, hashes).unwrap()
}

/// Returns the link of the last block of a prompt.
fn link(algorithm: &str, verify: &str, block_size: usize, contents: &[u32], epoch: u64) -> ChainLink {
    let hasher = hasher(algorithm, verify, block_size);
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut last = None;
    for &content in contents {
        last = Some(ChainLink::new(&hasher, last.as_ref(), &block(block_size, content), &extra).unwrap());
    }
    last.unwrap()
}
"#
);

const RUST_VLLM: &str = rust_test!(
    r#"use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool_journal::{Check, Outcome};
use kvpool_vllm::{Key, Pool, Start, VllmError};

/// The ids of blocks that a call returns.
#[derive(Debug)]
struct Ids(Vec<u32>);

impl Outcome for Ids {
    fn add_to(&self, check: &mut Check) {
        self.0.iter().for_each(|&block| check.add(block.into()));
    }
}

fn key(digits: &str) -> Key {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    Key::from_bytes(&(0..digits.len()).step_by(2).map(byte).collect::<Vec<u8>>()).unwrap()
}

fn allocate(pool: &mut Pool, blocks: usize) -> Result<Ids, VllmError> {
    let mut ids = Vec::new();
    pool.allocate(blocks, &mut ids, None)?;
    Ok(Ids(ids))
}

fn cache_full(
    pool: &mut Pool, start: Start, blocks: &[u32], keys: &[Option<Key>], block_size: usize,
) -> Result<(), VllmError> {
    pool.cache_full(start, blocks, |at| keys.get(at).copied().flatten(), block_size, &mut Vec::new(), None)
}
"#
);

macro_rules! python_test {
    ($imports:literal, $plain:literal, $rest:literal) => {
        concat!(
            r#""""A test with the calls of a recorded journal, written by ``kvpool journal export``."""

"#,
            $imports,
            r#"

def plain(given):
    """Converts an answer into numbers, strings and lists."""
"#,
            $plain,
            r#"    if isinstance(given, (list, tuple)):
        return [plain(one) for one in given]
    return given


def answer(call, *arguments, **named):
    """Makes a call, and returns its answer. If the call is refused, returns the error's message."""
    try:
        return plain(call(*arguments, **named))
    except kvpool.KvpoolError as error:
        return str(error)


"#,
            $rest
        )
    };
}

const PYTHON_MANAGER: &str = python_test!(
    "import array\n\nimport kvpool\n",
    r#"    if isinstance(given, kvpool.Admission):
        return [given.cached_tokens, *given.tables]
    if isinstance(given, kvpool.HintReport):
        return [given.accepted, given.clipped, given.ignored]
    if isinstance(given, kvpool.TransferPlan):
        return plain(given.transfers)
    if isinstance(given, dict):
        return plain(list(given.items()))
"#,
    r#"def test_journal():
    def tokens(contents, tail):
        """Returns one full block per number of a content, and then ``tail`` zeros."""
        zeros = [0] * (manager.block_size - 1)
        return [token for content in contents for token in [*zeros, content]] + [0] * tail

    def prompt(contents, tail, epoch):
        """Returns a prompt that is hashed for an epoch."""
        cursor = manager.prepare(tokens(contents, tail))
        cursor.rebase(epoch)
        return cursor

    def foreign(contents, tail, epoch):
        """Returns a prompt that is hashed by another hasher than the manager's."""
        hasher = kvpool.BlockHasher(block_size=manager.block_size, seed="foreign")
        return hasher.cursor(tokens(contents, tail), epoch=epoch)

    def append_ragged(*arguments, most=None, **keywords):
        """Returns the changes of the tables. With ``most``, passes a buffer for this number of changes."""
        if most is None:
            return list(zip(*manager.append_ragged(*arguments, **keywords)))
        out = array.array("i", bytes(4 * columns * most))
        length = manager.append_ragged(*arguments, out=out, **keywords)
        return list(zip(*(out[at * most : at * most + length] for at in range(columns))))

"#
);

const PYTHON_POOL: &str = python_test!(
    "import kvpool\n",
    r#"    if isinstance(given, kvpool.Match):
        return given.block_ids
    if isinstance(given, kvpool.HintReport):
        return [given.accepted, given.clipped, given.ignored]
"#,
    r#"def block(block_size, content):
    """Returns the tokens of a block, given the number of its content."""
    return [0] * (block_size - 1) + [content]


def chain(algorithm, verify, block_size, contents, epoch):
    """Returns the hash chain of a prompt, given the contents of its blocks."""
    hasher = kvpool.BlockHasher(algorithm, block_size, verify=verify, seed="0")
    tokens = [token for content in contents for token in block(block_size, content)]
    return hasher.cursor(tokens, epoch=epoch).chain()


def digests(algorithm, verify, block_size, contents, epoch):
    """Returns the hash chain of a prompt as digests without tokens, as another process would send it."""
    whole = chain(algorithm, verify, block_size, contents, epoch).digests()
    return kvpool.hashing.HashChain.from_digests(algorithm, block_size, whole, epoch=epoch)


def link(algorithm, verify, block_size, contents, epoch):
    """Returns the link of the last block of a prompt."""
    hasher = kvpool.BlockHasher(algorithm, block_size, verify=verify, seed="0")
    last = None
    for content in contents:
        last = hasher.link(block(block_size, content), last, epoch=epoch)
    return last


def test_journal():
"#
);

const PYTHON_VLLM: &str = python_test!(
    "import kvpool\nfrom kvpool._core.vllm import VllmBlock, VllmPool\n",
    r#"    if isinstance(given, VllmBlock):
        return given.block_id
    if isinstance(given, kvpool.HintReport):
        return [given.accepted, given.clipped, given.ignored]
"#,
    r#"def table(pool, ids):
    """Returns the blocks with these ids."""
    return [pool.blocks[block] for block in ids]


def allocate(pool, blocks):
    return pool.allocate(blocks)[0]


def claim(pool, ids):
    pool.claim(table(pool, ids))


def cache_full(pool, first, before, ids, digests, block_size, group):
    """Caches blocks at the positions from ``first`` on. Of the earlier blocks, passes only the last."""
    blocks = [None] * first + table(pool, ids)
    if first and before is not None:
        blocks[first - 1] = pool.blocks[before]
    hashes = [b""] * first + [digest or b"" for digest in digests]
    mask = [digest is not None for digest in digests]
    pool.cache_full(blocks, hashes, first, first + len(ids), block_size, group, mask)


def set_ref_count(pool, block, count):
    pool.blocks[block].ref_cnt = count


def set_hash(pool, block, key, num_tokens):
    if pool.blocks[block].block_hash is None:
        pool.blocks[block].set_block_hash(key, num_tokens)
    else:
        pool.blocks[block]._block_hash = key


def test_journal():
"#
);
