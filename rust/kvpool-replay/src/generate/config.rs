//! The parameters of the trace generator, their defaults and their ranges.
//!
//! The parameters are [`GeneratorConfig`] and [`LogNormal`]. The defaults give a trace of a
//! general-purpose assistant with some coding agents. Their orders of magnitude are those of public
//! traces: prompts of thousands of tokens, answers of hundreds of tokens, and agents with contexts that
//! grow to a hundred thousand tokens. They are not fitted to any one trace.
//!
//! Invariant: the generator accepts only a configuration that passes [`GeneratorConfig::validate`], and
//! cannot fail with such a configuration.

use crate::{error::GeneratorError, trace::DEFAULT_BLOCK_TOKENS};

/// A log-normal distribution: `median * e^(sigma * z)` with z standard normal.
///
/// Half of the draws are below the median, and one in six is above `median * e^sigma`.
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, LogNormal};
/// let config = GeneratorConfig { chat_pause_s: LogNormal::new(30.0, 0.5), ..Default::default() };
/// assert!(config.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    /// The median, in the unit of the parameter; above 0, at most 1e9.
    pub median: f64,
    /// The spread, without a unit: from 0 (all draws equal the median) to 5.
    pub sigma: f64,
}

impl LogNormal {
    /// Makes the distribution with this median and spread.
    #[must_use]
    pub const fn new(median: f64, sigma: f64) -> Self {
        Self { median, sigma }
    }
}

/// The parameters of a synthetic trace.
///
/// Each request is one of three kinds: a turn of a chat, a step of an agent, or a one-shot call. The
/// fractions are shares of all requests, not of sessions.
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, generate};
///
/// let config =
///     GeneratorConfig { seed: 7, requests: 100, agent_fraction: 0.0, ..GeneratorConfig::default() };
/// let trace = generate(&config).unwrap();
/// assert_eq!(trace.requests().len(), 100);
/// assert_eq!(trace, generate(&config).unwrap());
///
/// let error = GeneratorConfig { rate_per_s: 0.0, ..config }.validate().unwrap_err();
/// assert_eq!(error.to_string(), "rate_per_s is 0; allowed: above 0, at most 1e6");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratorConfig {
    /// The seed of the random draws. Another seed gives another trace; all seeds are equally good.
    /// Default 0.
    pub seed: u64,
    /// The number of requests, 1 to 100,000,000. Default 10,000.
    pub requests: usize,
    /// The number of tokens per block id, 1 or more. It affects only the ids, not times and lengths. Default
    /// 512.
    pub block_tokens: usize,
    /// Requests per second over all kinds, above 0; arrivals are a Poisson process. Default 4.
    pub rate_per_s: f64,
    /// Share of requests that are turns of a chat, 0 to 1. Default 0.5.
    pub chat_fraction: f64,
    /// Share of requests that are steps of an agent, 0 to 1; the rest are one-shot. Default 0.3.
    pub agent_fraction: f64,
    /// The length of the longest prompt, in tokens, 1 or more. A longer prompt is cut to this length,
    /// and its session ends. Default 131,072.
    pub max_input_tokens: u32,
    /// The length of the longest answer, in tokens, 1 or more. Default 4,096.
    pub max_output_tokens: u32,

    /// The number of different system prompts of chats and one-shot requests, 1 to 1,000,000. Default
    /// 64.
    pub system_prompts: usize,
    /// The skew of the popularity of system prompts, also for agents. The prompt of rank r is drawn in
    /// proportion to `r^-skew` (Zipf). From 0 (all equally popular) to 10. Default 1.1.
    pub system_prompt_skew: f64,
    /// Tokens of a system prompt. Default median 1,000, sigma 0.8.
    pub system_prompt_tokens: LogNormal,

    /// The number of turns of a chat: the mean of a geometric distribution, 1 to 1e6. Default 4.
    pub chat_turns: f64,
    /// Tokens of a user's message. Default median 200, sigma 1.4: the tail represents pasted documents.
    pub chat_user_tokens: LogNormal,
    /// Tokens of an answer in a chat. Default median 350, sigma 0.7.
    pub chat_output_tokens: LogNormal,
    /// Seconds from a turn to the earliest arrival of the next one, answer included. Default median 45, sigma
    /// 1.
    pub chat_pause_s: LogNormal,

    /// The number of different agents (instructions and tool definitions), 1 to 1,000,000. Default 4.
    pub agent_profiles: usize,
    /// Tokens of an agent's instructions and tools. Default median 12,000, sigma 0.4.
    pub agent_prompt_tokens: LogNormal,
    /// The number of steps of an agent session: the mean of a geometric distribution, 1 to 1e6. Default
    /// 40.
    pub agent_turns: f64,
    /// Tokens of the task at the start, and of each tool result after it. Default median 600, sigma 1.3.
    pub agent_tool_tokens: LogNormal,
    /// Tokens of an agent's answer: mostly a tool call. Default median 180, sigma 0.9.
    pub agent_output_tokens: LogNormal,
    /// Seconds from a step to the earliest arrival of the next one, answer included. Default median 6, sigma
    /// 0.8.
    pub agent_pause_s: LogNormal,

    /// Tokens of a one-shot request after its system prompt. Default median 3,000, sigma 1.2.
    pub one_shot_tokens: LogNormal,
    /// Tokens of the answer to a one-shot request. Default median 150, sigma 1.
    pub one_shot_output_tokens: LogNormal,
}

impl Default for GeneratorConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            requests: 10_000,
            block_tokens: DEFAULT_BLOCK_TOKENS,
            rate_per_s: 4.0,
            chat_fraction: 0.5,
            agent_fraction: 0.3,
            max_input_tokens: 131_072,
            max_output_tokens: 4_096,
            system_prompts: 64,
            system_prompt_skew: 1.1,
            system_prompt_tokens: LogNormal::new(1_000.0, 0.8),
            chat_turns: 4.0,
            chat_user_tokens: LogNormal::new(200.0, 1.4),
            chat_output_tokens: LogNormal::new(350.0, 0.7),
            chat_pause_s: LogNormal::new(45.0, 1.0),
            agent_profiles: 4,
            agent_prompt_tokens: LogNormal::new(12_000.0, 0.4),
            agent_turns: 40.0,
            agent_tool_tokens: LogNormal::new(600.0, 1.3),
            agent_output_tokens: LogNormal::new(180.0, 0.9),
            agent_pause_s: LogNormal::new(6.0, 0.8),
            one_shot_tokens: LogNormal::new(3_000.0, 1.2),
            one_shot_output_tokens: LogNormal::new(150.0, 1.0),
        }
    }
}

impl GeneratorConfig {
    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// [`GeneratorError::Parameter`] for the first one out of range.
    pub fn validate(&self) -> Result<(), GeneratorError> {
        const FRACTION: &str = "0 to 1";
        const MANY: &str = "1 to 1000000";

        whole("requests", self.requests, 1..=100_000_000, "1 to 100000000")?;
        whole("block_tokens", self.block_tokens, 1..=usize::MAX, "1 or more")?;
        number("rate_per_s", self.rate_per_s, self.rate_per_s > 0.0 && self.rate_per_s <= 1e6, RATE)?;
        number("chat_fraction", self.chat_fraction, within(self.chat_fraction, 0.0, 1.0), FRACTION)?;
        number("agent_fraction", self.agent_fraction, within(self.agent_fraction, 0.0, 1.0), FRACTION)?;
        let sum = self.chat_fraction + self.agent_fraction;
        // Allow for rounding errors: 0.7 + 0.3 is slightly less than 1, and other such sums are
        // slightly more.
        number("chat_fraction + agent_fraction", sum, sum <= 1.0 + 1e-9, "at most 1")?;
        whole("max_input_tokens", self.max_input_tokens as usize, 1..=usize::MAX, "1 or more")?;
        whole("max_output_tokens", self.max_output_tokens as usize, 1..=usize::MAX, "1 or more")?;
        whole("system_prompts", self.system_prompts, 1..=1_000_000, MANY)?;
        whole("agent_profiles", self.agent_profiles, 1..=1_000_000, MANY)?;
        let skew = self.system_prompt_skew;
        number("system_prompt_skew", skew, within(skew, 0.0, 10.0), "0 to 10")?;
        number("chat_turns", self.chat_turns, within(self.chat_turns, 1.0, 1e6), MANY)?;
        number("agent_turns", self.agent_turns, within(self.agent_turns, 1.0, 1e6), MANY)?;
        for (name, LogNormal { median, sigma }) in [
            ("system_prompt_tokens", self.system_prompt_tokens),
            ("chat_user_tokens", self.chat_user_tokens),
            ("chat_output_tokens", self.chat_output_tokens),
            ("chat_pause_s", self.chat_pause_s),
            ("agent_prompt_tokens", self.agent_prompt_tokens),
            ("agent_tool_tokens", self.agent_tool_tokens),
            ("agent_output_tokens", self.agent_output_tokens),
            ("agent_pause_s", self.agent_pause_s),
            ("one_shot_tokens", self.one_shot_tokens),
            ("one_shot_output_tokens", self.one_shot_output_tokens),
        ] {
            number(name, median, median > 0.0 && median <= 1e9, "a median above 0, at most 1e9")?;
            number(name, sigma, within(sigma, 0.0, 5.0), "a sigma from 0 to 5")?;
        }
        Ok(())
    }
}

const RATE: &str = "above 0, at most 1e6";

/// Whether a value is within a range. False for NaN.
fn within(value: f64, least: f64, most: f64) -> bool {
    value >= least && value <= most
}

fn number(name: &'static str, value: f64, valid: bool, allowed: &'static str) -> Result<(), GeneratorError> {
    if valid { Ok(()) } else { Err(GeneratorError::Parameter { name, value: value.to_string(), allowed }) }
}

fn whole(
    name: &'static str,
    value: usize,
    range: std::ops::RangeInclusive<usize>,
    allowed: &'static str,
) -> Result<(), GeneratorError> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(GeneratorError::Parameter { name, value: value.to_string(), allowed })
    }
}
