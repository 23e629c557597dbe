//! `explain`: the right reason for each kind of miss, scripted; and under random operations, against a
//! model that remembers everything.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod groups;
mod model;
mod properties;
mod reasons;

use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
use kvpool_observe::{ExplainConfig, ManagerWatch, ManagerWatchConfig, MissReason};

/// Tokens per block of all these tests.
const BLOCK: usize = 4;

/// Made to explain, with everything remembered.
const ALL: ExplainConfig = ExplainConfig { records: Some(1 << 12), requests: 1 << 10 };

/// A manager that explains, and that nothing else watches.
fn explaining(config: ManagerConfig, explain: ExplainConfig) -> CacheManager {
    let watch = ManagerWatchConfig { explain: Some(explain), ..ManagerWatchConfig::default() };
    CacheManager::new(config).unwrap().watched(&watch).unwrap()
}

fn admit(manager: &mut CacheManager, id: &str, tokens: &[u32]) -> usize {
    admit_with(manager, id, tokens, ExtraKeys::default())
}

fn admit_with(manager: &mut CacheManager, id: &str, tokens: &[u32], extra: ExtraKeys) -> usize {
    let cursor = manager.prepare(tokens, extra).unwrap();
    manager.admit(id, cursor).unwrap().cached_tokens
}

/// Admitted, computed and released.
fn run(manager: &mut CacheManager, id: &str, tokens: &[u32]) {
    run_with(manager, id, tokens, ExtraKeys::default());
}

fn run_with(manager: &mut CacheManager, id: &str, tokens: &[u32], extra: ExtraKeys) {
    admit_with(manager, id, tokens, extra);
    manager.commit(id, tokens.len()).unwrap();
    manager.release(id, None).unwrap();
}

/// `blocks` blocks of tokens that count up from `first`.
fn tokens(first: u32, blocks: usize) -> Vec<u32> {
    (first..).take(blocks * BLOCK).collect()
}

/// First and last missed block of each span, and why.
fn spans(manager: &CacheManager, id: &str) -> Vec<(usize, usize, MissReason)> {
    manager.check_invariants().unwrap();
    let explanation = manager.explain(id).unwrap();
    explanation.spans.into_iter().map(|span| (span.blocks.start, span.blocks.end - 1, span.reason)).collect()
}

/// The same, of reasons the names alone.
fn names(manager: &CacheManager, id: &str) -> Vec<(usize, usize, &'static str)> {
    spans(manager, id).into_iter().map(|(first, last, reason)| (first, last, reason.name())).collect()
}
