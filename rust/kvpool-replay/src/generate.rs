//! Generates synthetic traces from a seed: chats, agents and one-shot requests over shared system
//! prompts.
//!
//! [`generate`] makes a [`Trace`] from a [`GeneratorConfig`]. The parameters are in `config`, and the
//! random draws in `sample`. The configuration determines every byte of the trace, on every host: the
//! random numbers come from a specified cipher, and no result of the platform's mathematics library is
//! used.
//!
//! **The model.** Requests arrive as a Poisson process. Each is a turn of a chat, a step of an agent or
//! a one-shot call, drawn with the configured fractions. A turn continues the session of its kind that
//! has been ready longest. After each turn, a session pauses until it is ready again. The pause stands
//! for the think time of a user or the run time of a tool. If no session is ready, a new one starts.
//!
//! Therefore the rate and the fractions are exact from the first second, and there is no warm-up phase
//! to remove. The number of live sessions follows from the rate and the pauses. A turn may come later
//! than the end of its session's pause, because it also has to wait for the next arrival of its kind.
//!
//! A session is a text that grows. It starts with a system prompt, which is drawn from a list by
//! popularity (Zipf) and shared with every session that drew the same one. The messages and answers of
//! the turns follow. A turn's prompt is all of the text so far. A session ends after a drawn number of
//! turns, or at the maximum prompt length. A message that would exceed that length is cut to it.
//!
//! **Prefix consistency by construction.** Ids are assigned in order of first use, one per *content*:
//!
//! 1. each full block of a shared prompt has one id for all sessions;
//! 2. each full block after it (including the one in which the shared prompt ends) has one id per
//!    session, which later turns keep;
//! 3. a partial last block has a new id every time, because its text has grown by the next turn.
//!
//! Therefore every id always follows the same id, and the ids are 0, 1, 2, ... in order of appearance.
//!
//! Costs: a few draws per request; 8 bytes and less than 10 ns per block reference.

mod config;
mod sample;

use std::collections::BTreeMap;

pub use self::config::{GeneratorConfig, LogNormal};
use self::sample::{Sampler, zipf_table};
use crate::{
    error::GeneratorError,
    trace::{Trace, TraceRequest},
};

/// Makes the trace that a configuration describes.
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, trace::write_jsonl};
///
/// let trace = generate(&GeneratorConfig { requests: 50, ..GeneratorConfig::default() }).unwrap();
/// let mut file = Vec::new();
/// write_jsonl(&trace, &mut file).unwrap();
/// assert!(file.starts_with(b"{\"timestamp\": "));
/// ```
///
/// # Errors
///
/// [`GeneratorError::Parameter`] for a parameter out of range. There are no other errors.
pub fn generate(config: &GeneratorConfig) -> Result<Trace, GeneratorError> {
    config.validate()?;
    let mut generator = Generator::new(config);
    let requests = (0..config.requests).map(|_| generator.next_request()).collect();
    Ok(Trace::from_checked(requests, config.block_tokens, crate::labels::Labels::default()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Chat,
    Agent,
    OneShot,
}

/// A text that many sessions start with.
#[derive(Debug)]
struct SharedPrompt {
    tokens: u32,
    /// The ids of the prompt's full blocks, as far as a request has already used them.
    ids: Vec<u64>,
}

/// The shared prompts of one kind of session, and the probabilities with which they are drawn.
#[derive(Debug)]
struct Catalogue {
    prompts: Vec<SharedPrompt>,
    weights: Vec<f64>,
}

#[derive(Debug)]
struct Session {
    /// The shared prompt of the session, as an index into the catalogue of the session's kind.
    shared: usize,
    /// The number of tokens of the session's text so far, including the last answer.
    tokens: u32,
    /// The ids of the session's full blocks, as far as a request has already used them.
    ids: Vec<u64>,
    turns_left: u32,
}

/// Sessions of one kind that wait for their next turn. They are sorted by the time (in us) at which
/// they are ready, and sessions with equal times by the number of their last request.
type Waiting = BTreeMap<(u64, u64), Session>;

#[derive(Debug)]
struct Generator<'c> {
    config: &'c GeneratorConfig,
    sampler: Sampler,
    now_s: f64,
    next_id: u64,
    /// The number of requests made so far. It also orders waiting sessions of equal time.
    made: u64,
    system: Catalogue,
    profiles: Catalogue,
    chats: Waiting,
    agents: Waiting,
}

impl<'c> Generator<'c> {
    fn new(config: &'c GeneratorConfig) -> Self {
        let mut sampler = Sampler::new(config.seed);
        let mut catalogue = |count, lengths| Catalogue {
            prompts: (0..count)
                .map(|_| {
                    let tokens = draw_tokens(&mut sampler, lengths, config.max_input_tokens);
                    SharedPrompt { tokens, ids: Vec::new() }
                })
                .collect(),
            weights: zipf_table(count, config.system_prompt_skew),
        };
        let system = catalogue(config.system_prompts, config.system_prompt_tokens);
        let profiles = catalogue(config.agent_profiles, config.agent_prompt_tokens);
        Self {
            config,
            sampler,
            now_s: 0.0,
            next_id: 0,
            made: 0,
            system,
            profiles,
            chats: Waiting::new(),
            agents: Waiting::new(),
        }
    }

    fn next_request(&mut self) -> TraceRequest {
        self.now_s += self.sampler.exponential(1.0 / self.config.rate_per_s);
        let kind = self.draw_kind();
        let mut session = self.take_session(kind);

        let config = self.config;
        let (message, answer, pause) = match kind {
            Kind::Chat => (config.chat_user_tokens, config.chat_output_tokens, config.chat_pause_s),
            Kind::Agent => (config.agent_tool_tokens, config.agent_output_tokens, config.agent_pause_s),
            Kind::OneShot => (config.one_shot_tokens, config.one_shot_output_tokens, config.chat_pause_s),
        };
        let message = draw_tokens(&mut self.sampler, message, config.max_input_tokens);
        let input_length = session.tokens.saturating_add(message).min(config.max_input_tokens);
        let output_length = draw_tokens(&mut self.sampler, answer, config.max_output_tokens);
        let hash_ids = self.block_ids(kind, &mut session, input_length);

        session.tokens = input_length.saturating_add(output_length);
        session.turns_left = session.turns_left.saturating_sub(1);
        self.made += 1;
        // End the session if its next prompt would have no room for one more token. Therefore each
        // prompt of a session is longer than the one before it.
        if session.turns_left > 0 && session.tokens < config.max_input_tokens {
            let ready_s = self.now_s + self.sampler.log_normal(pause.median, pause.sigma);
            let key = ((ready_s * 1e6) as u64, self.made);
            // One-shot requests have only one turn, so the kind here is a chat or an agent.
            let waiting = if kind == Kind::Agent { &mut self.agents } else { &mut self.chats };
            waiting.insert(key, session);
        }
        // Round down to whole milliseconds, as in recorded traces.
        TraceRequest { timestamp_ms: (self.now_s * 1e3).floor(), input_length, output_length, hash_ids }
    }

    fn draw_kind(&mut self) -> Kind {
        let draw = self.sampler.unit();
        if draw < self.config.chat_fraction {
            Kind::Chat
        } else if draw < self.config.chat_fraction + self.config.agent_fraction {
            Kind::Agent
        } else {
            Kind::OneShot
        }
    }

    /// Returns the session that has been ready longest, or a new one.
    fn take_session(&mut self, kind: Kind) -> Session {
        let now_us = (self.now_s * 1e6) as u64;
        let (waiting, turns) = match kind {
            Kind::Chat => (Some(&mut self.chats), self.config.chat_turns),
            Kind::Agent => (Some(&mut self.agents), self.config.agent_turns),
            Kind::OneShot => (None, 1.0),
        };
        if let Some(first) = waiting.and_then(BTreeMap::first_entry)
            && first.key().0 <= now_us
        {
            return first.remove();
        }
        let catalogue = if kind == Kind::Agent { &self.profiles } else { &self.system };
        let shared = self.sampler.index(&catalogue.weights);
        let tokens = catalogue.prompts.get(shared).map_or(0, |prompt| prompt.tokens);
        Session { shared, tokens, ids: Vec::new(), turns_left: self.sampler.geometric(turns) }
    }

    /// Returns the ids of the blocks of a session's first `input_length` tokens. Assigns new ids to
    /// blocks that no request has used before.
    fn block_ids(&mut self, kind: Kind, session: &mut Session, input_length: u32) -> Box<[u64]> {
        let block_tokens = self.config.block_tokens;
        let full = input_length as usize / block_tokens;
        let next_id = &mut self.next_id;
        let mut fresh = || {
            let id = *next_id;
            *next_id += 1;
            id
        };
        let catalogue = if kind == Kind::Agent { &mut self.profiles } else { &mut self.system };
        if let Some(prompt) = catalogue.prompts.get_mut(session.shared) {
            let shared = (prompt.tokens as usize / block_tokens).min(full);
            if session.ids.len() < shared {
                while prompt.ids.len() < shared {
                    prompt.ids.push(fresh());
                }
                session.ids.extend(prompt.ids.get(session.ids.len()..shared).unwrap_or_default());
            }
        }
        while session.ids.len() < full {
            session.ids.push(fresh());
        }
        let partial = (!(input_length as usize).is_multiple_of(block_tokens)).then(fresh);
        session.ids.iter().copied().chain(partial).collect()
    }
}

/// Draws a number of tokens from a log-normal distribution, rounds it, and limits it to 1 to `most`.
fn draw_tokens(sampler: &mut Sampler, lengths: LogNormal, most: u32) -> u32 {
    // The conversion saturates.
    (sampler.log_normal(lengths.median, lengths.sigma).round() as u32).clamp(1, most)
}
