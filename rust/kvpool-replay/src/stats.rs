//! Statistics of a trace, and the highest hit rate that any cache could reach.
//!
//! [`TraceStats`] are computed in one pass. The definitions are those of [lookup mode](crate::replay)
//! with a cache that never evicts. Requests run one after the other. A block is a hit only if all
//! blocks before it in its prompt are hits. The weight of a reference is its number of prompt tokens.
//!
//! The "ideal hit rate" of a trace depends on the definition, so there are four: by blocks, by tokens,
//! by full blocks only (because an engine finds no partial blocks), and by tokens in the last half of
//! the requests (because the cache is warm then).
//!
//! Costs: one hash-map step per block reference, 10 to 45 ns, and 48 bytes per distinct id.

use std::collections::{HashMap, hash_map::Entry};

use serde::Serialize;

use crate::{id_hash::IdHasherBuilder, trace::Trace};

/// Counts, percentiles and ideal hit rates of a trace. Rates are shares, 0 to 1.
///
/// ```
/// use kvpool_replay::{stats::TraceStats, trace::{Trace, TraceRequest}};
///
/// let turn = |timestamp_ms, input_length, ids: &[u64]| TraceRequest {
///     timestamp_ms,
///     input_length,
///     output_length: 10,
///     hash_ids: ids.into(),
/// };
/// let trace = Trace::new(vec![turn(0.0, 1000, &[0, 1]), turn(2000.0, 1300, &[0, 2, 3])], 512).unwrap();
/// let stats = TraceStats::new(&trace);
/// assert_eq!((stats.block_references, stats.unique_blocks, stats.blocks_used_once), (5, 4, 3));
/// assert_eq!(stats.ideal_block_hit_rate, 0.2);
/// assert_eq!(stats.ideal_token_hit_rate, 512.0 / 2300.0);
/// assert_eq!(stats.reuse_time_s.p50, Some(2.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TraceStats {
    /// The number of requests of the trace.
    pub requests: u64,
    /// The number of tokens per block id.
    pub block_tokens: u64,
    /// The time from the first arrival to the last, in s.
    pub span_s: f64,
    /// The number of distinct arrival times.
    pub distinct_arrivals: u64,
    /// The number of requests per second from the first arrival to the last; `None` if all arrive at
    /// once.
    pub arrivals_per_s: Option<f64>,
    /// The maximum number of requests that arrive within one second. Seconds are counted from the first
    /// arrival.
    pub most_arrivals_in_1_s: u64,
    /// The number of prompt tokens of all requests.
    pub input_tokens: u64,
    /// The number of output tokens of all requests.
    pub output_tokens: u64,
    /// Prompt tokens per request.
    pub input_length: Percentiles,
    /// Output tokens per request.
    pub output_length: Percentiles,
    /// The number of block ids in all requests, including repeated ones.
    pub block_references: u64,
    /// The number of block ids that identify a partial last block.
    pub partial_blocks: u64,
    /// The number of distinct block ids.
    pub unique_blocks: u64,
    /// Block references per distinct block id; `None` if the trace has no ids.
    pub reuse_ratio: Option<f64>,
    /// The number of block ids that occur only once in the trace.
    pub blocks_used_once: u64,
    /// The share of the block references that an infinite cache hits.
    pub ideal_block_hit_rate: f64,
    /// The share of the prompt tokens that an infinite cache hits.
    pub ideal_token_hit_rate: f64,
    /// The share of the block references that hit, if a cache looks up and stores only full blocks.
    pub ideal_full_block_hit_rate: f64,
    /// The share of the prompt tokens that hit in the last half of the requests.
    pub ideal_last_half_token_hit_rate: f64,
    /// For each request, the share of its prompt that an infinite cache hits.
    pub request_hit_rate: Percentiles,
    /// The number of requests that hit at most one block.
    pub requests_with_at_most_1_hit: u64,
    /// The time from one use of a block to its next use, in s.
    pub reuse_time_s: Percentiles,
    /// The number of references to an id that follow another id than at its first use, or that repeat
    /// the id in one request. It is 0 for a trace with checked prefixes.
    pub prefix_violations: u64,
    /// The number of sessions, if the trace has sessions.
    pub sessions: Option<u64>,
    /// The number of requests by kind, largest first, if the trace has kinds.
    pub kinds: Vec<(String, u64)>,
}

/// Percentiles of a set of values, interpolated between the two nearest values. All are `None` if the
/// set is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The mean.
    pub mean: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
}

impl Percentiles {
    /// Computes the percentiles of these values, none of which may be NaN.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let at = |fraction: f64| {
            let place = fraction * values.len().checked_sub(1)? as f64;
            let (lower, share) = (place as usize, place.fract());
            let low = values.get(lower)?;
            Some(values.get(lower + 1).map_or(*low, |high| low + (high - low) * share))
        };
        let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
        Self { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99), max: values.last().copied() }
    }
}

/// The uses of an id so far.
#[derive(Clone, Copy)]
struct Seen {
    parent: Option<u64>,
    last_ms: f64,
    uses: u64,
    /// Whether a request has used the id for a full block.
    full: bool,
    /// The last request that used the id.
    request: usize,
}

/// A count, and the total of which it is a share.
#[derive(Clone, Copy, Default)]
struct Share {
    part: u64,
    whole: u64,
}

impl Share {
    fn rate(self) -> f64 {
        if self.whole == 0 { 0.0 } else { self.part as f64 / self.whole as f64 }
    }
}

impl TraceStats {
    /// Computes the statistics of a trace.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let requests = trace.requests();
        let block_tokens = trace.block_tokens();
        let mut stats = Self {
            requests: requests.len() as u64,
            block_tokens: block_tokens as u64,
            input_tokens: requests.iter().map(|request| u64::from(request.input_length)).sum(),
            output_tokens: requests.iter().map(|request| u64::from(request.output_length)).sum(),
            input_length: Percentiles::of(requests.iter().map(|one| f64::from(one.input_length)).collect()),
            output_length: Percentiles::of(requests.iter().map(|one| f64::from(one.output_length)).collect()),
            ..Self::default()
        };
        let mut seen: HashMap<u64, Seen, IdHasherBuilder> = HashMap::default();
        let [mut blocks, mut tokens, mut full_blocks, mut last_half] = [Share::default(); 4];
        let (mut reuse_times, mut request_rates) = (Vec::new(), Vec::with_capacity(requests.len()));
        for (index, request) in requests.iter().enumerate() {
            let full = request.full_blocks(block_tokens).len();
            // Numbers of blocks at the start of the prompt that hit: of all blocks, and of full blocks
            // only. The third value is the id of the previous block.
            let (mut reach, mut full_reach, mut parent) = (0, 0, None);
            for (place, &id) in request.hash_ids.iter().enumerate() {
                let is_full = place < full;
                match seen.entry(id) {
                    Entry::Vacant(entry) => {
                        let last_ms = request.timestamp_ms;
                        entry.insert(Seen { parent, last_ms, uses: 1, full: is_full, request: index });
                    }
                    Entry::Occupied(entry) => {
                        let known = entry.into_mut();
                        let repeats = known.request == index;
                        stats.prefix_violations += u64::from(repeats || known.parent != parent);
                        reach += usize::from(reach == place && !repeats);
                        full_reach += usize::from(full_reach == place && !repeats && is_full && known.full);
                        reuse_times.push((request.timestamp_ms - known.last_ms) / 1e3);
                        known.full |= is_full;
                        (known.last_ms, known.request) = (request.timestamp_ms, index);
                        known.uses += 1;
                    }
                }
                parent = Some(id);
            }
            let whole = u64::from(request.input_length);
            let hit_tokens = (reach as u64).saturating_mul(block_tokens as u64).min(whole);
            add(&mut blocks, reach as u64, request.hash_ids.len() as u64);
            add(&mut full_blocks, full_reach as u64, full as u64);
            add(&mut tokens, hit_tokens, whole);
            if index >= requests.len() / 2 {
                add(&mut last_half, hit_tokens, whole);
            }
            stats.partial_blocks += (request.hash_ids.len() - full) as u64;
            stats.requests_with_at_most_1_hit += u64::from(reach <= 1);
            request_rates.push(Share { part: hit_tokens, whole }.rate());
        }
        stats.block_references = blocks.whole;
        stats.unique_blocks = seen.len() as u64;
        stats.reuse_ratio = (!seen.is_empty()).then(|| blocks.whole as f64 / seen.len() as f64);
        stats.blocks_used_once = seen.values().filter(|known| known.uses == 1).count() as u64;
        stats.ideal_block_hit_rate = blocks.rate();
        stats.ideal_token_hit_rate = tokens.rate();
        stats.ideal_full_block_hit_rate = full_blocks.rate();
        stats.ideal_last_half_token_hit_rate = last_half.rate();
        stats.request_hit_rate = Percentiles::of(request_rates);
        stats.reuse_time_s = Percentiles::of(reuse_times);
        stats.count_arrivals(trace);
        stats.count_labels(trace);
        stats
    }

    fn count_arrivals(&mut self, trace: &Trace) {
        let times = || trace.requests().iter().map(|request| request.timestamp_ms);
        let (Some(first), Some(last)) = (times().next(), times().next_back()) else { return };
        self.span_s = (last - first) / 1e3;
        self.arrivals_per_s = (last > first).then(|| self.requests as f64 / self.span_s);
        let (mut second, mut count, mut before) = (-1.0, 0, None);
        for time in times() {
            self.distinct_arrivals += u64::from(before != Some(time));
            before = Some(time);
            let this = ((time - first) / 1e3).floor();
            count = if this == second { count + 1 } else { 1 };
            second = this;
            self.most_arrivals_in_1_s = self.most_arrivals_in_1_s.max(count);
        }
    }

    fn count_labels(&mut self, trace: &Trace) {
        let labels = trace.labels();
        self.sessions = (!labels.sessions().is_empty()).then(|| labels.sessions().len() as u64);
        let mut counts = vec![0_u64; labels.kinds().len()];
        for index in 0..labels.len() {
            if let Some(count) = labels.kind_number(index).and_then(|kind| counts.get_mut(kind as usize)) {
                *count += 1;
            }
        }
        self.kinds = labels.kinds().iter().cloned().zip(counts).collect();
        // The sort is stable: among equal counts, the kind that occurs first stays first.
        self.kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    }
}

fn add(share: &mut Share, part: u64, whole: u64) {
    share.part += part;
    share.whole += whole;
}
