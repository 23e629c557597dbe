//! Hit rates over time.
//!
//! [`over_time`] returns the hit rate in each window of a trace. Unlike a mean, it shows how long the
//! cache takes to warm up, and bursts that flush the cache. It also shows whether the hit rate falls
//! later, as with a policy that keeps old favourites.
//!
//! Costs: one pass over the requests.

use super::curve::share;
use super::error::{SizingError, setting};
use super::outcome::Outcome;
use super::references::References;

/// The maximum number of windows of a trace.
pub const MAX_WINDOWS: usize = 1_000_000;

/// The hits of the requests that arrive in one window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// The start of the window, in ms from the first arrival. The window ends at the start of the next
    /// one.
    pub start_ms: f64,
    /// The number of requests that arrive in the window.
    pub requests: u64,
    /// The number of block references of these requests.
    pub blocks: u64,
    /// The number of block references of these requests that hit.
    pub block_hits: u64,
    /// The number of prompt tokens of these requests.
    pub tokens: u64,
    /// The number of prompt tokens of these requests in blocks that hit.
    pub token_hits: u64,
}

impl Window {
    /// The hits as a share of the block references, 0 to 1; 0 if no request arrives.
    #[must_use]
    pub fn block_rate(&self) -> f64 {
        share(self.block_hits, self.blocks)
    }

    /// The hit tokens as a share of the prompt tokens, 0 to 1; 0 if no request arrives.
    #[must_use]
    pub fn token_rate(&self) -> f64 {
        share(self.token_hits, self.tokens)
    }
}

/// Splits an outcome into windows of `window_ms`, from the first arrival to the last, including empty
/// windows. `outcome` must have been computed from the same `references`. It may be of any capacity and
/// policy, and usually comes from [`lru`](super::lru()).
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru, over_time}};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let windows = over_time(&references, &lru(&references, 700), 10_000.0)?;
/// assert!(windows[0].token_rate() < windows[5].token_rate()); // a cold start
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
///
/// # Errors
///
/// [`SizingError::Setting`] if the window is not above 0, or if there would be more than
/// [`MAX_WINDOWS`].
pub fn over_time(
    references: &References,
    outcome: &Outcome,
    window_ms: f64,
) -> Result<Vec<Window>, SizingError> {
    let times = references.times_ms();
    let first = times.first().copied().unwrap_or(0.0);
    let last = times.last().copied().unwrap_or(first);
    if !(window_ms > 0.0 && (last - first) / window_ms < MAX_WINDOWS as f64) {
        return Err(setting("window_ms", window_ms, "above 0, and at least a millionth of the trace's time"));
    }
    let place = |time: f64| ((time - first) / window_ms) as usize; // below MAX_WINDOWS
    let mut windows: Vec<Window> = (0..=place(last))
        .map(|index| Window { start_ms: index as f64 * window_ms, ..Window::default() })
        .collect();
    for (index, (&time, &hits)) in times.iter().zip(outcome.hits()).enumerate() {
        if let Some(window) = windows.get_mut(place(time)) {
            window.requests += 1;
            window.blocks += u64::from(references.request_len(index));
            window.block_hits += u64::from(hits);
            window.tokens += u64::from(references.input_tokens(index));
            window.token_hits += references.tokens_of(index, hits);
        }
    }
    Ok(windows)
}
