//! What a replay measured, with its definitions.

use std::collections::BTreeMap;

use kvpool::PoolStats;
use serde::Serialize;

use super::{Mode, ReplayConfig};

/// Hits of a set of requests. Each request counts once, at its first admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitCounts {
    /// Requests counted.
    pub requests: u64,
    /// Blocks of their prompts, partial last ones included.
    pub blocks: u64,
    /// Of those, blocks found cached. A block counts only if every block before it in its prompt was found.
    pub block_hits: u64,
    /// Blocks that the prompt fills.
    pub full_blocks: u64,
    /// Of those, blocks found cached.
    pub full_block_hits: u64,
    /// Tokens of their prompts.
    pub tokens: u64,
    /// Of those, tokens in blocks found cached.
    pub token_hits: u64,
}

impl HitCounts {
    /// Adds a request of `tokens` tokens, `indexed` of which are in blocks that the trace names, with
    /// `hit_blocks` found.
    pub(super) fn add(&mut self, tokens: u64, indexed: u64, hit_blocks: u64, block_size: u64) {
        self.requests += 1;
        self.tokens += tokens;
        self.blocks += indexed.div_ceil(block_size);
        self.block_hits += hit_blocks;
        self.full_blocks += indexed / block_size;
        self.full_block_hits += hit_blocks.min(indexed / block_size);
        self.token_hits += (hit_blocks * block_size).min(indexed);
    }
}

pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Figures of engine mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineReport {
    /// Virtual seconds from the first arrival to the last finish.
    pub virtual_seconds: f64,
    /// Steps of the virtual engine.
    pub steps: u64,
    /// Output tokens appended.
    pub decode_appends: u64,
    /// Requests given up: their prompt, or what they had grown to, is larger than the pool.
    pub rejected: u64,
    /// Preemptions by recompute.
    pub preemptions: u64,
    /// Tokens of resumed requests, and of those the ones still cached: kept apart from the hits of
    /// first admissions.
    pub resumed_tokens: u64,
    /// See `resumed_tokens`.
    pub resumed_token_hits: u64,
    /// Most requests running at once.
    pub peak_running: usize,
    /// Most requests waiting during a step: for a place, for blocks, or again after a preemption.
    pub peak_waiting: usize,
    /// Requests that arrive per second, from the first arrival to the last, the rejected ones left out.
    /// `None` if all arrive at once, or not all have arrived yet.
    pub arrivals_per_s: Option<f64>,
    /// Requests finished per virtual second of the steps in which others waited: the most that this
    /// server serves of this trace. `None` if nobody ever waited.
    pub served_per_s: Option<f64>,
    /// Requests that waited when the last one had arrived.
    pub waiting_at_last_arrival: usize,
    /// Whether more arrive than are served, and the last one still finds a queue: it grew for as long
    /// as the trace went on, and the times to the first token with it.
    pub overloaded: bool,
    /// Mean time from arrival to the end of prefill, in virtual milliseconds.
    pub mean_time_to_first_token_ms: f64,
}

/// What one KV-cache group of a hybrid model would have served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// `full`, `sliding`, `chunked`, `state` or `cross`.
    pub kind: &'static str,
    /// Tokens of the window or chunk.
    pub span: Option<usize>,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Prompt tokens that the group alone would have served, of requests at their first admission. A
    /// hit needs all groups.
    pub reach_tokens: u64,
    /// Share of the tokens.
    pub reach_rate: f64,
    /// Tokens that hits were short for the sake of this group, though full attention had them; only if
    /// reasons were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unserved_tokens: Option<u64>,
}

/// What a tier beneath the device served, behind what the device and the tiers above it had.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// Blocks that it holds.
    pub blocks: usize,
    /// Blocks of prompts that came from it.
    pub block_hits: u64,
    /// Tokens in them.
    pub token_hits: u64,
    /// Their share of the prompts' tokens.
    pub token_hit_rate: f64,
    /// Virtual seconds in which its link moved something, what came from the tiers beneath it included.
    pub busy_seconds: f64,
}

/// The result of a replay. Rates are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `lookup` or `engine`.
    pub mode: &'static str,
    /// Tokens per block.
    pub block_size: usize,
    /// Tokens that one id of the trace stands for.
    pub trace_block_tokens: usize,
    /// Usable blocks.
    pub capacity_blocks: usize,
    /// Hash algorithm.
    pub algorithm: &'static str,
    /// Verification of hits.
    pub verify: &'static str,
    /// Eviction policy.
    pub eviction: &'static str,
    /// Counts over all requests.
    pub hits: HitCounts,
    /// Hit share of the blocks.
    pub block_hit_rate: f64,
    /// Hit share of the blocks that prompts fill.
    pub full_block_hit_rate: f64,
    /// Hit share of the tokens.
    pub token_hit_rate: f64,
    /// Counts over the last half of the requests: the cache is warm by then.
    pub last_half: HitCounts,
    /// Hit share of the tokens of the last half.
    pub last_half_token_hit_rate: f64,
    /// Blocks handed out.
    pub allocated: u64,
    /// Of those, blocks that held cached content.
    pub evicted: u64,
    /// Refused hits.
    pub collisions: u64,
    /// Tokens that were computed at first admissions, by reason; only if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<BTreeMap<&'static str, u64>>,
    /// Of a hybrid model: what each group alone would have served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// Of a hybrid model: states that were copied to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<u64>,
    /// Of a hybrid model in lookup mode: prompts that the pool could not hold to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<u64>,
    /// Of tiers beneath the device, from the device down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierReport>,
    /// Engine mode only.
    pub engine: Option<EngineReport>,
}

impl Report {
    pub(super) fn new(
        config: &ReplayConfig,
        trace_block_tokens: usize,
        hits: HitCounts,
        last_half: HitCounts,
        pool: PoolStats,
        engine: Option<EngineReport>,
    ) -> Self {
        Self {
            mode: match config.mode {
                Mode::Lookup => "lookup",
                Mode::Engine => "engine",
            },
            block_size: config.block_size,
            trace_block_tokens,
            capacity_blocks: config.capacity_blocks,
            algorithm: config.algorithm.name(),
            verify: config.verify.name(),
            eviction: config.eviction.name(),
            hits,
            block_hit_rate: share(hits.block_hits, hits.blocks),
            full_block_hit_rate: share(hits.full_block_hits, hits.full_blocks),
            token_hit_rate: share(hits.token_hits, hits.tokens),
            last_half,
            last_half_token_hit_rate: share(last_half.token_hits, last_half.tokens),
            allocated: pool.allocated,
            evicted: pool.evicted,
            collisions: pool.collisions,
            misses: None,
            groups: Vec::new(),
            checkpoints: None,
            cut_short: None,
            tiers: Vec::new(),
            engine,
        }
    }
}
