//! What is asked: prompts with shared prefixes, drawn with skew, and what their KV is.
//!
//! A text is a *stream*: token `p` of stream `s` is a function of both, so no text is kept anywhere. A prompt is a system
//! prompt's stream, then that of a session, a document or nobody else; a session's next turn is a longer piece of its stream,
//! and what requests append goes on with it, so that an answer is part of the next prompt.
//!
//! The KV of a token is a function of everything before it, of the request's extra keys and of the weights, which every epoch and
//! every reset change: its [`Tag`], and the [`cell`] made of it. Whoever reads a cell that belongs to other tokens, another tenant or older weights reads another number.
//!
//! Draws: integers from `ChaCha8`, and a table of cumulative weights made with divisions alone, so that a seed means the same
//! prompts on every host.

use kvpool::{Adapter, ExtraKeys};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// What identifies a prefix: a function of its tokens and its extra keys.
pub(crate) type Tag = u64;

/// Ways in which the extra keys of requests differ.
pub(crate) const IDENTITIES: u64 = 4;

/// The finalizer of `SplitMix64`: close numbers come out unrelated.
pub(crate) const fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Token `position` of a stream.
pub(crate) const fn token(stream: u64, position: usize) -> u32 {
    (mix(stream ^ (position as u64).wrapping_mul(0xd6e8_feb8_6659_fd93)) % 50_000) as u32
}

/// The tag before any token.
pub(crate) const fn root_tag(identity: u64) -> Tag {
    mix(identity ^ 0x6964)
}

/// The tag of a prefix with one token more.
pub(crate) const fn next_tag(before: Tag, token: u32) -> Tag {
    mix(before ^ (token as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f))
}

/// The KV of a prefix's last token, computed with some weights; never [`super::store::NOTHING`].
pub(crate) const fn cell(tag: Tag, weights: u64) -> u64 {
    mix(tag ^ mix(weights)) | 1
}

/// The extra keys of an identity.
pub(crate) fn extra_keys(identity: u64) -> ExtraKeys {
    match identity {
        0 => ExtraKeys::default(),
        1 => ExtraKeys { salt: Some((*b"soak").into()), ..ExtraKeys::default() },
        2 => ExtraKeys { tenant: Some((*b"soak").into()), ..ExtraKeys::default() },
        _ => {
            ExtraKeys { adapter: Some(Adapter { id: (*b"soak").into(), path: None }), ..ExtraKeys::default() }
        }
    }
}

/// Seeded choices.
#[derive(Debug)]
pub(crate) struct Chance(ChaCha8Rng);

impl Chance {
    /// The choices of a seed, for the `nth` of several.
    pub(crate) fn new(seed: u64, nth: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&nth.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// 0 to `end - 1`, 0 for an end of 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.0.next_u64()) * end as u128) >> 64) as usize
    }

    /// `from` to `to`, both included.
    pub(crate) fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, times: usize) -> bool {
        self.below(100) < times
    }

    /// A rank by weight.
    fn rank(&mut self, zipf: &Zipf) -> usize {
        let target = self.below(zipf.0.last().map_or(0, |&sum| sum as usize)) as u64;
        zipf.0.partition_point(|&sum| sum <= target)
    }
}

/// Cumulative weights of ranks: rank r weighs 1 / r.
#[derive(Debug)]
struct Zipf(Vec<u64>);

impl Zipf {
    fn new(ranks: u64) -> Self {
        let weights = (1..=ranks).scan(0, |sum, rank| {
            *sum += (1 << 32) / rank;
            Some(*sum)
        });
        Self(weights.collect())
    }
}

/// A conversation that is still going on.
#[derive(Debug)]
struct Session {
    stream: u64,
    system: usize,
    length: usize,
    identity: u64,
}

/// A prompt, but for its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) identity: u64,
    /// What the request goes on with when it appends.
    pub(crate) stream: u64,
    /// Tokens of the system prompt in front.
    pub(crate) system: usize,
    /// Whether nobody will ask for it again.
    pub(crate) scan: bool,
}

/// All that can be asked. Its size is fixed.
#[derive(Debug)]
pub(crate) struct Library {
    /// Lengths of the system prompts, by rank.
    systems: Vec<usize>,
    system_ranks: Zipf,
    document_ranks: Zipf,
    session_ranks: Zipf,
    sessions: Vec<Session>,
    longest: usize,
    next_stream: u64,
}

impl Library {
    /// Texts for a pool of so many tokens: some six times as many.
    pub(crate) fn new(chance: &mut Chance, pool_tokens: usize) -> Self {
        let longest = (pool_tokens / 32).clamp(64, 2048);
        let systems: Vec<_> = (0..64).map(|_| chance.between(8, longest / 4)).collect();
        let documents = (6 * pool_tokens / longest).max(64) as u64;
        let mut library = Self {
            system_ranks: Zipf::new(systems.len() as u64),
            document_ranks: Zipf::new(documents),
            session_ranks: Zipf::new((2 * pool_tokens / longest).clamp(16, 4096) as u64),
            systems,
            sessions: Vec::new(),
            longest,
            next_stream: 1 << 40,
        };
        for _ in 0..library.session_ranks.0.len() {
            let session = library.new_session(chance);
            library.sessions.push(session);
        }
        library
    }

    /// Tokens of the longest prompt; requests end at twice that.
    pub(crate) const fn longest(&self) -> usize {
        self.longest
    }

    /// A stream that nobody has seen.
    pub(crate) const fn fresh_stream(&mut self) -> u64 {
        self.next_stream += 1;
        self.next_stream
    }

    fn new_session(&mut self, chance: &mut Chance) -> Session {
        let system = chance.rank(&self.system_ranks);
        Session {
            stream: self.fresh_stream(),
            system,
            length: self.systems[system],
            identity: identity(chance),
        }
    }

    /// Draws a prompt; its tokens replace those in `out`.
    pub(crate) fn draw(&mut self, chance: &mut Chance, out: &mut Vec<u32>) -> Drawn {
        out.clear();
        match chance.below(100) {
            0..45 => self.draw_turn(chance, out),
            45..80 => {
                let document = chance.rank(&self.document_ranks) as u64;
                let system = chance.rank(&self.system_ranks);
                let stream = (1 << 32) | document;
                let length = self.longest / 8 + mix(stream) as usize % (self.longest * 3 / 4);
                self.start(system, out);
                extend(out, stream, self.systems[system] + length);
                let question = self.fresh_stream();
                extend(out, question, out.len() + chance.between(1, 48));
                let identity = identity(chance);
                Drawn { identity, stream: question, system: self.systems[system], scan: false }
            }
            80..95 => {
                let stream = self.fresh_stream();
                extend(out, stream, chance.between(1, self.longest));
                Drawn { identity: identity(chance), stream, system: 0, scan: true }
            }
            _ => {
                let stream = self.fresh_stream();
                extend(out, stream, chance.between(1, 40));
                Drawn { identity: 0, stream, system: 0, scan: false }
            }
        }
    }

    /// The next turn of a session; one that has become too long starts anew.
    fn draw_turn(&mut self, chance: &mut Chance, out: &mut Vec<u32>) -> Drawn {
        let nth = chance.rank(&self.session_ranks);
        self.sessions[nth].length += chance.between(8, self.longest / 6);
        if self.sessions[nth].length > self.longest {
            let mut session = self.new_session(chance);
            session.length += chance.between(8, self.longest / 6);
            self.sessions[nth] = session;
        }
        let Session { stream, system, length, identity } = self.sessions[nth];
        self.start(system, out);
        extend(out, stream, length);
        Drawn { identity, stream, system: self.systems[system], scan: false }
    }

    fn start(&self, system: usize, out: &mut Vec<u32>) {
        extend(out, (1 << 36) | system as u64, self.systems[system]);
    }
}

/// Most requests have no extra keys.
fn identity(chance: &mut Chance) -> u64 {
    if chance.percent(85) { 0 } else { chance.below(IDENTITIES as usize) as u64 }
}

/// Goes on with a stream up to `end` tokens.
fn extend(out: &mut Vec<u32>, stream: u64, end: usize) {
    let start = out.len();
    out.extend((start..end.max(start)).map(|position| token(stream, position)));
}
