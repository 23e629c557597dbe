//! Tests of `explain`: scripted cases check the reason for each kind of miss, and random operations are
//! compared with a model that remembers everything.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod groups;
mod model;
mod properties;
mod reasons;

use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
use kvpool_observe::{ExplainConfig, ManagerWatch, ManagerWatchConfig, MissReason};

/// The block size of all these tests, in tokens.
const BLOCK: usize = 4;

/// Settings of an explainer with a record that is large enough to remember everything.
const ALL: ExplainConfig = ExplainConfig { records: Some(1 << 12), requests: 1 << 10 };

/// Returns a manager with an explainer and no other observer.
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

fn run(manager: &mut CacheManager, id: &str, tokens: &[u32]) {
    run_with(manager, id, tokens, ExtraKeys::default());
}

fn run_with(manager: &mut CacheManager, id: &str, tokens: &[u32], extra: ExtraKeys) {
    admit_with(manager, id, tokens, extra);
    manager.commit(id, tokens.len()).unwrap();
    manager.release(id, None).unwrap();
}

/// Returns the tokens of `blocks` blocks. The tokens count up from `first`.
fn tokens(first: u32, blocks: usize) -> Vec<u32> {
    (first..).take(blocks * BLOCK).collect()
}

/// Returns the first and last missed block of each span, and the reason.
fn spans(manager: &CacheManager, id: &str) -> Vec<(usize, usize, MissReason)> {
    manager.check_invariants().unwrap();
    let explanation = manager.explain(id).unwrap();
    explanation.spans.into_iter().map(|span| (span.blocks.start, span.blocks.end - 1, span.reason)).collect()
}

fn names(manager: &CacheManager, id: &str) -> Vec<(usize, usize, &'static str)> {
    spans(manager, id).into_iter().map(|(first, last, reason)| (first, last, reason.name())).collect()
}
