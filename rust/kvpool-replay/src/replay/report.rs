//! The results of a replay, with their definitions.

use std::collections::BTreeMap;

use kvpool::PoolStats;
use serde::Serialize;

use super::{Mode, ReplayConfig};

/// The hits of a set of requests. Each request is counted once, at its first admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HitCounts {
    /// The number of counted requests.
    pub requests: u64,
    /// The number of blocks of all prompts, including partial last blocks.
    pub blocks: u64,
    /// The number of prompt blocks that were found cached. A block counts only if every block before it
    /// in its prompt was found.
    pub block_hits: u64,
    /// The number of blocks that prompt tokens fill completely.
    pub full_blocks: u64,
    /// The number of full blocks that were found cached.
    pub full_block_hits: u64,
    /// The number of tokens of all prompts.
    pub tokens: u64,
    /// The number of prompt tokens in blocks that were found cached.
    pub token_hits: u64,
}

impl HitCounts {
    /// Adds a request of `tokens` tokens. `indexed` of them are in blocks with an id, and `hit_blocks`
    /// blocks were found.
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

/// The measurements of engine mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineReport {
    /// Virtual seconds from the first arrival to the last finish.
    pub virtual_seconds: f64,
    /// The number of steps that the simulated server ran.
    pub steps: u64,
    /// The number of output tokens that the server appended to requests.
    pub decode_appends: u64,
    /// The number of rejected requests. The prompt of such a request, or its text after some output
    /// tokens, is larger than the pool.
    pub rejected: u64,
    /// The number of preemptions: a running request lost its blocks because the pool was full, and was
    /// computed again later.
    pub preemptions: u64,
    /// The total number of tokens of preempted requests at the time when they were resumed. The counts
    /// of first admissions do not include these tokens.
    pub resumed_tokens: u64,
    /// The number of `resumed_tokens` that were still cached.
    pub resumed_token_hits: u64,
    /// The maximum number of requests that ran at the same time.
    pub peak_running: usize,
    /// The maximum number of requests that waited during a step, either for blocks, or because of the
    /// limit of running requests, or after a preemption.
    pub peak_waiting: usize,
    /// The number of requests that arrive per second, from the first arrival to the last, without
    /// rejected requests. `None` if all arrive at once, or if not all have arrived yet.
    pub arrivals_per_s: Option<f64>,
    /// The number of requests that finished per virtual second, counted only in steps in which others
    /// waited. It is the service rate of this server on this trace. `None` if no request ever waited.
    pub served_per_s: Option<f64>,
    /// The number of requests that waited when the last one had arrived.
    pub waiting_at_last_arrival: usize,
    /// Whether requests arrive faster than they are served, and requests still wait when the last one
    /// arrives. If so, the queue, and with it the times to the first token, grew during the whole
    /// trace.
    pub overloaded: bool,
    /// The mean time from arrival to the end of prefill, in virtual milliseconds.
    pub mean_time_to_first_token_ms: f64,
}

/// The tokens that one KV-cache group of a hybrid model could have served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupReport {
    /// The kind of the group: `full`, `sliding`, `chunked`, `state` or `cross`.
    pub kind: &'static str,
    /// The size of the window or chunk, in tokens.
    pub span: Option<usize>,
    /// The block size, in tokens.
    pub block_tokens: usize,
    /// The number of prompt tokens that the group alone could have served, over all requests at their
    /// first admission. A hit needs all groups.
    pub reach_tokens: u64,
    /// `reach_tokens` as a share of the prompt tokens.
    pub reach_rate: f64,
    /// The number of tokens that were cached for full attention, but not served, because this group
    /// limited the hit. Present only if explanations are enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unserved_tokens: Option<u64>,
}

/// The blocks that a tier beneath the device served. They come after the blocks that the device and the
/// tiers above served.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// The capacity of the tier, in blocks.
    pub blocks: usize,
    /// The number of prompt blocks that the tier served.
    pub block_hits: u64,
    /// The number of tokens in the prompt blocks that the tier served.
    pub token_hits: u64,
    /// `token_hits` as a share of the prompt tokens.
    pub token_hit_rate: f64,
    /// The virtual seconds in which the link of the tier moved blocks, including blocks from the tiers
    /// beneath it.
    pub busy_seconds: f64,
}

/// The result of a replay. Rates are shares, 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `lookup` or `engine`.
    pub mode: &'static str,
    /// The block size, in tokens.
    pub block_size: usize,
    /// The number of tokens per block id of the trace.
    pub trace_block_tokens: usize,
    /// The number of usable blocks of the pool, without the null block.
    pub capacity_blocks: usize,
    /// The hash algorithm.
    pub algorithm: &'static str,
    /// How the pool verified its hits.
    pub verify: &'static str,
    /// The eviction policy.
    pub eviction: &'static str,
    /// The hits of all requests of the trace.
    pub hits: HitCounts,
    /// The share of the prompt blocks that hit.
    pub block_hit_rate: f64,
    /// The share of the full prompt blocks that hit.
    pub full_block_hit_rate: f64,
    /// The share of the prompt tokens that hit.
    pub token_hit_rate: f64,
    /// The hits of the last half of the requests, in which the cache is warm.
    pub last_half: HitCounts,
    /// The share of the prompt tokens that hit, over the last half of the requests.
    pub last_half_token_hit_rate: f64,
    /// The number of blocks that the pool allocated during the replay.
    pub allocated: u64,
    /// The number of allocated blocks whose cached content the pool evicted for the allocation.
    pub evicted: u64,
    /// The number of hits that the pool refused because of a hash collision.
    pub collisions: u64,
    /// The number of tokens computed at first admissions, by reason. Present only if explanations are
    /// enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<BTreeMap<&'static str, u64>>,
    /// For a hybrid model: the number of prompt tokens that each group could have served alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// For a hybrid model: the number of states that were copied, so that later requests can continue
    /// from them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<u64>,
    /// For a hybrid model in lookup mode: the number of prompts that did not completely fit into the
    /// pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_short: Option<u64>,
    /// The tiers beneath the device, from the top down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierReport>,
    /// The measurements of engine mode; `None` in lookup mode.
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
