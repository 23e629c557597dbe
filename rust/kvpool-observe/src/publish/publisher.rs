//! `Publisher`: numbered batches of what changed, for each of several sinks.
//!
//! Owns: the number of every batch, and what a sink has to be told to be right again. One rule serves
//! all consumers:
//!
//! - Numbers begin at [`base`] of the time of the start, so that no incarnation reuses or falls below
//!   those of an earlier one. Consumers drop what is numbered lower than what they know, some of them
//!   without a word.
//! - The first batch begins with `AllBlocksCleared`; what is there already follows as ordinary stores.
//! - A sink that lost a batch gets no more until it is told everything anew: a number is skipped, which
//!   every consumer notices, and `AllBlocksCleared` with all that is there follows.
//! - Where nothing changes, an empty batch keeps the sequence alive: a consumer that came late asks for
//!   what it missed when it sees one.
//!
//! A sink's latest batches are kept for [`Publisher::replay`].
//!
//! Costs: O(changes) per flush and form; a sink that is told anew costs O(contents).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{FeedBatch, FeedEvent};
use kvpool::CacheManager;
use kvpool::groups::GroupKind;
use thiserror::Error;

use crate::publish::contents::{Arrival, Change, Contents, Keys};
use crate::publish::encode::encode;
use crate::publish::event::{Digest, Event, Extra, GroupName, Label};
use crate::publish::form::Form;
use crate::publish::keys::KeysOf;

/// Contents that one batch tells of at most, as far as what is told anew can be cut.
const SNAPSHOT_CONTENTS: usize = 8192;

/// The first number of what starts at this time: a million numbers for each second since 1970.
///
/// ```
/// assert_eq!(kvpool_observe::publish::base(1_700_000_000), 1_700_000_000 << 20);
/// ```
#[must_use]
pub const fn base(unix_seconds: u64) -> u64 {
    // More seconds than 2^43 would not fit: then numbers end before those of the last incarnation
    // begin, in 280,000 years.
    (unix_seconds & ((1 << 43) - 1)) << 20
}

/// A KV-cache group, as consumers are to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub name: GroupName,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Whether a block is of no use without the one before it, as in full attention.
    pub chained: bool,
}

/// A sink's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// The form of its events.
    pub form: Form,
    /// Batches that are kept for replays.
    pub replay_batches: usize,
    /// Bytes that they have at most, but for the latest.
    pub replay_bytes: usize,
}

impl Default for SinkConfig {
    fn default() -> Self {
        Self { form: Form::default(), replay_batches: 10_000, replay_bytes: 64 << 20 }
    }
}

/// What a publisher can't be made with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// Nothing could be told of.
    #[error("groups is empty: at least one KV-cache group")]
    NoGroups,
    /// Blocks of no tokens.
    #[error("block_tokens of group {group} is 0: must be at least 1")]
    NoTokens {
        /// The group.
        group: usize,
    },
    /// Too many groups.
    #[error("groups are {groups}: at most {most}")]
    TooManyGroups {
        /// How many.
        groups: usize,
        /// How many there can be.
        most: usize,
    },
    /// There is no such sink.
    #[error("there is no sink {sink}: there are {sinks}")]
    UnknownSink {
        /// What was asked for.
        sink: usize,
        /// How many there are.
        sinks: usize,
    },
}

/// A batch for a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The sink.
    pub sink: usize,
    /// Its number, in the sink's sequence.
    pub number: u64,
    /// Its bytes; sinks of one form share them.
    pub payload: Arc<[u8]>,
}

/// All that is there, for whoever begins to follow a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The base of the incarnation's numbers.
    pub epoch: u64,
    /// The number of the last batch of the sink that is part of it: what follows has higher ones.
    /// `None` before the first.
    pub cut: Option<u64>,
    /// Batches of ordinary stores, parents first.
    pub payloads: Vec<Arc<[u8]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Is to be told everything.
    Fresh,
    /// Lost a batch: is to be told everything, behind a gap.
    Lost,
    Following,
}

#[derive(Clone, Debug)]
struct Sink {
    config: SinkConfig,
    state: State,
    /// Whether nothing is to be made for it.
    held: bool,
    next: u64,
    /// When it was last sent something.
    sent_at: f64,
    kept: VecDeque<(u64, Arc<[u8]>)>,
    kept_bytes: usize,
}

impl Sink {
    fn keep(&mut self, number: u64, payload: Arc<[u8]>) {
        self.kept_bytes += payload.len();
        self.kept.push_back((number, payload));
        while self.kept.len() > self.config.replay_batches.max(1)
            || (self.kept_bytes > self.config.replay_bytes && self.kept.len() > 1)
        {
            let Some((_, payload)) = self.kept.pop_front() else { break };
            self.kept_bytes -= payload.len();
        }
    }
}

/// What one worker tells.
///
/// ```
/// use kvpool::BlockHash;
/// use kvpool_observe::publish::{Digest, Group, Publisher, SinkConfig, base};
/// let groups = vec![Group { name: Default::default(), block_tokens: 2, chained: true }];
/// let mut publisher = Publisher::new(groups, 0, base(1_700_000_000))?;
/// let sink = publisher.add(SinkConfig::default());
/// let (first, second) = (Digest::of_number(7), Digest::of_number(8));
/// publisher.stored(0, 0, first, None, Some(&[1, 2]));
/// publisher.stored(0, 0, second, Some(first), Some(&[3, 4]));
/// let batches = publisher.flush(1.0, 5.0);
/// assert_eq!((batches.len(), batches[0].sink, batches[0].number), (1, sink, 1_700_000_000 << 20));
/// assert!(publisher.flush(2.0, 5.0).is_empty()); // nothing has changed
/// assert_eq!(publisher.flush(6.0, 5.0).len(), 1); // a heartbeat
/// # Ok::<(), kvpool_observe::publish::PublisherError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publisher {
    groups: Vec<Group>,
    rank: u32,
    base: u64,
    contents: Contents,
    sinks: Vec<Sink>,
    /// Batches of others', which go out with the next flush.
    foreign: Vec<Arc<[u8]>>,
}

/// The words of vLLM for what a KV-cache group is.
fn kind_of(kind: GroupKind) -> (&'static str, Option<usize>) {
    match kind {
        GroupKind::Full => ("full_attention", None),
        GroupKind::Sliding { window } => ("sliding_window", Some(window)),
        GroupKind::Chunked { .. } => ("chunked_local_attention", None),
        GroupKind::State => ("mamba", None),
        GroupKind::Cross => ("cross_attention", None),
        _ => ("other", None),
    }
}

impl Group {
    /// The group of a pool that has one, of full attention.
    #[must_use]
    pub fn full(block_tokens: usize) -> Self {
        Self::of(0, GroupKind::Full, block_tokens)
    }

    fn of(index: u16, kind: GroupKind, block_tokens: usize) -> Self {
        let (chained, (kind, window)) = (kind.is_full(), kind_of(kind));
        let window = window.map(|window| u32::try_from(window).unwrap_or(u32::MAX));
        let name = GroupName { index: Some(index), kind: Some(kind.into()), window };
        Self { name, block_tokens, chained }
    }

    /// The groups of a manager.
    #[must_use]
    pub fn all_of(manager: &CacheManager) -> Vec<Self> {
        match manager.groups() {
            None => vec![Self::full(manager.pool().block_size())],
            Some(groups) => {
                let specs = (0..=u16::MAX).zip(groups.specs());
                specs.map(|(index, spec)| Self::of(index, spec.kind, spec.block_tokens)).collect()
            }
        }
    }
}

impl Publisher {
    /// Of pools with these groups, by number, for a data-parallel rank, with numbers from `base` on.
    ///
    /// # Errors
    /// [`PublisherError`] names what is wrong with the groups.
    pub fn new(groups: Vec<Group>, rank: u32, base: u64) -> Result<Self, PublisherError> {
        let most = usize::from(u16::MAX);
        if groups.is_empty() {
            return Err(PublisherError::NoGroups);
        }
        if groups.len() > most {
            return Err(PublisherError::TooManyGroups { groups: groups.len(), most });
        }
        if let Some(group) = groups.iter().position(|group| group.block_tokens == 0) {
            return Err(PublisherError::NoTokens { group });
        }
        let kinds: Vec<_> = groups.iter().map(|group| (group.block_tokens, group.chained)).collect();
        Ok(Self {
            contents: Contents::new(&kinds),
            groups,
            rank,
            base,
            sinks: Vec::new(),
            foreign: Vec::new(),
        })
    }

    /// Another sink: its number. It is told everything with the next flush.
    pub fn add(&mut self, config: SinkConfig) -> usize {
        self.sinks.push(Sink {
            config,
            state: State::Fresh,
            held: false,
            next: self.base,
            sent_at: f64::NEG_INFINITY,
            kept: VecDeque::new(),
            kept_bytes: 0,
        });
        self.sinks.len() - 1
    }

    /// What is there, and what was told of it.
    #[must_use]
    pub const fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The first number of this incarnation.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// A content can be found in a tier, behind its parent. Its tokens may be known already, or be told
    /// later ([`Self::learned`]).
    pub fn stored(
        &mut self,
        tier: u8,
        group: u16,
        digest: Digest,
        parent: Option<Digest>,
        tokens: Option<&[u32]>,
    ) {
        self.contents.stored(Arrival { tier, digest, group, parent, tokens });
    }

    /// What is before a content that is there, its tokens, and what it was hashed with beside them.
    pub fn learned(
        &mut self,
        group: u16,
        digest: Digest,
        parent: Option<Digest>,
        tokens: Option<&[u32]>,
        keys: Option<&Keys>,
    ) {
        self.contents.learned(&digest, group, parent.as_ref(), tokens, keys);
    }

    /// A content can no longer be found in a tier.
    pub fn removed(&mut self, tier: u8, group: u16, digest: Digest) {
        self.contents.removed(tier, &digest, group);
    }

    /// A tier holds nothing any more.
    pub fn cleared(&mut self, tier: u8) {
        self.contents.cleared(tier);
    }

    /// What a tier's pool has told since the last time.
    pub fn take_in(&mut self, tier: u8, batch: &FeedBatch) {
        let len = if batch.digest_len == 0 { 32 } else { batch.digest_len };
        let digest = |hash| Digest::new(hash, len);
        for (at, event) in batch.events.iter().enumerate() {
            match *event {
                FeedEvent::Stored { hash, group, depth, tokens, .. } => {
                    let parent = batch.parent(at);
                    // What stands somewhere in a chain, behind what nobody knows, is no beginning of one.
                    let placed = depth == 0 || parent.is_some();
                    let tokens = tokens.filter(|_| placed).map(|span| batch.tokens(span));
                    self.stored(tier, group, digest(hash), parent.map(digest), tokens);
                }
                FeedEvent::Removed { hash, group } => self.removed(tier, group, digest(hash)),
                _ => self.cleared(tier),
            }
        }
        let mut keys = KeysOf::default();
        for learned in &batch.learned {
            let tokens = batch.tokens(learned.tokens);
            let keys = keys.of(learned, tokens.len());
            let parent = learned.parent.map(digest);
            self.learned(learned.group, digest(learned.hash), parent, Some(tokens), keys.as_ref());
        }
    }

    /// Sends a batch that somebody else has made to every sink, behind what changed, with the next
    /// flush. What it tells is in no snapshot: whoever is told everything anew is not told of it.
    pub fn pass_on(&mut self, payload: Vec<u8>) {
        self.foreign.push(payload.into());
    }

    /// A batch of a sink did not reach it: it gets the next flush's snapshot instead of what changes
    /// until then.
    ///
    /// # Errors
    /// [`PublisherError::UnknownSink`].
    pub fn lost(&mut self, sink: usize) -> Result<(), PublisherError> {
        let sinks = self.sinks.len();
        let sink = self.sinks.get_mut(sink).ok_or(PublisherError::UnknownSink { sink, sinks })?;
        if sink.state == State::Following {
            sink.state = State::Lost;
        }
        Ok(())
    }

    /// Whether a sink has no room: then nothing is made for it, and what changes meanwhile is lost for it.
    ///
    /// # Errors
    /// [`PublisherError::UnknownSink`].
    pub fn hold(&mut self, sink: usize, held: bool) -> Result<(), PublisherError> {
        let sinks = self.sinks.len();
        self.sinks.get_mut(sink).ok_or(PublisherError::UnknownSink { sink, sinks })?.held = held;
        Ok(())
    }

    /// The batches of what changed since the last flush, in the order of the sinks and of their
    /// numbers. A sink that was sent nothing for `heartbeat` seconds gets an empty one. `now` is the
    /// time in seconds; behind a clock that was set back a heartbeat comes at once.
    pub fn flush(&mut self, now: f64, heartbeat: f64) -> Vec<Batch> {
        let changes = self.contents.settle();
        let foreign = std::mem::take(&mut self.foreign);
        let mut batches = Vec::new();
        let mut shared: Vec<Shared> = Vec::new();
        for at in 0..self.sinks.len() {
            let Some(Sink { config, state, sent_at, held, .. }) = self.sinks.get(at) else { break };
            if *held {
                if !(changes.is_empty() && foreign.is_empty()) {
                    self.lost(at).ok();
                }
                continue;
            }
            let (form, anew) = (config.form, *state != State::Following);
            let payloads = match shared.iter().find(|of| (of.form, of.anew) == (form, anew)) {
                Some(of) => of.payloads.clone(),
                None if anew => {
                    let payloads = self.everything(form, now, true);
                    shared.push(Shared { form, anew, payloads: payloads.clone() });
                    payloads
                }
                None if !changes.is_empty() => {
                    let payloads = vec![self.encoded(form, now, &changes)];
                    shared.push(Shared { form, anew, payloads: payloads.clone() });
                    payloads
                }
                None if (now < *sent_at || now - *sent_at >= heartbeat) && foreign.is_empty() => {
                    vec![self.encoded(form, now, &[])]
                }
                None => Vec::new(),
            };
            let Some(sink) = self.sinks.get_mut(at) else { break };
            if sink.state == State::Lost {
                sink.next += 1;
            }
            sink.state = State::Following;
            for payload in payloads.into_iter().chain(foreign.iter().map(Arc::clone)) {
                sink.sent_at = now;
                sink.keep(sink.next, Arc::clone(&payload));
                batches.push(Batch { sink: at, number: sink.next, payload });
                sink.next += 1;
            }
        }
        batches
    }

    /// The batches of a sink from a number on that are still kept, in order. A consumer that asked for
    /// earlier ones sees that by the first number.
    ///
    /// # Errors
    /// [`PublisherError::UnknownSink`].
    pub fn replay(
        &self,
        sink: usize,
        from: u64,
    ) -> Result<impl Iterator<Item = (u64, &Arc<[u8]>)>, PublisherError> {
        let sinks = self.sinks.len();
        let sink = self.sinks.get(sink).ok_or(PublisherError::UnknownSink { sink, sinks })?;
        let first = sink.kept.partition_point(|&(number, _)| number < from);
        Ok(sink.kept.range(first..).map(|(number, payload)| (*number, payload)))
    }

    /// All that a sink was told and that is still so, in its form.
    ///
    /// # Errors
    /// [`PublisherError::UnknownSink`].
    pub fn snapshot(&self, sink: usize, now: f64) -> Result<Snapshot, PublisherError> {
        let sinks = self.sinks.len();
        let found = self.sinks.get(sink).ok_or(PublisherError::UnknownSink { sink, sinks })?;
        let cut = found.next.checked_sub(1).filter(|&cut| cut >= self.base);
        let payloads =
            if cut.is_none() { Vec::new() } else { self.everything(found.config.form, now, false) };
        Ok(Snapshot { epoch: self.base, cut, payloads })
    }

    /// All that was told and is still so, cut into batches.
    fn everything(&self, form: Form, now: f64, cleared: bool) -> Vec<Arc<[u8]>> {
        let mut batches = Vec::new();
        let mut some = Vec::new();
        if cleared {
            some.push(Change::Cleared);
        }
        let mut count = 0;
        for change in self.contents.snapshot() {
            if let Change::Stored { nodes, .. } = &change {
                count += nodes.len();
            }
            some.push(change);
            if count >= SNAPSHOT_CONTENTS {
                batches.push(self.encoded(form, now, &some));
                (some, count) = (Vec::new(), 0);
            }
        }
        if !some.is_empty() {
            batches.push(self.encoded(form, now, &some));
        }
        batches
    }

    fn encoded(&self, form: Form, now: f64, changes: &[Change]) -> Arc<[u8]> {
        let plain = Arc::new(Label::default());
        let told: Vec<Told> = changes.iter().filter_map(|change| self.told(change, &plain)).collect();
        let events: Vec<Event<'_>> = told.iter().filter_map(|told| self.event(told)).collect();
        encode(form, now, self.rank, &events).into()
    }

    /// A change with all that an event of it needs, in one place.
    fn told(&self, change: &Change, plain: &Arc<Label>) -> Option<Told> {
        match change {
            Change::Cleared => Some(Told::Cleared),
            Change::Removed { tier, group, digests } => {
                Some(Told::Removed { tier: *tier, group: *group, digests: digests.clone() })
            }
            Change::Stored { tier, nodes } => {
                let (group, parent) = self.contents.place(*nodes.first()?)?;
                let block_tokens = self.contents.block_tokens(group);
                let mut digests = Vec::with_capacity(nodes.len());
                let mut tokens = Vec::with_capacity(nodes.len() * block_tokens);
                let (mut label, mut extra) = (Arc::clone(plain), Vec::new());
                for (position, &node) in nodes.iter().enumerate() {
                    let (digest, some, keys) = self.contents.told(node)?;
                    digests.push(digest);
                    tokens.extend_from_slice(some);
                    if let Some(keys) = keys {
                        label = Arc::clone(&keys.label);
                        if let Some(keys) = &keys.extra {
                            extra.resize(position, None);
                            extra.push(Some(Arc::clone(keys)));
                        }
                    }
                }
                if !extra.is_empty() {
                    extra.resize(nodes.len(), None);
                }
                Some(Told::Stored { tier: *tier, group, digests, parent, tokens, label, extra })
            }
        }
    }

    fn event<'a>(&'a self, told: &'a Told) -> Option<Event<'a>> {
        Some(match told {
            Told::Cleared => Event::Cleared,
            Told::Removed { tier, group, digests } => Event::Removed {
                tier: *tier,
                group: &self.groups.get(usize::from(*group))?.name,
                hashes: digests,
            },
            Told::Stored { tier, group, digests, parent, tokens, label, extra } => {
                let group = self.groups.get(usize::from(*group))?;
                Event::Stored {
                    tier: *tier,
                    group: &group.name,
                    hashes: digests,
                    parent: *parent,
                    tokens,
                    block_tokens: group.block_tokens,
                    label,
                    extra,
                }
            }
        })
    }
}

/// Batches that all sinks of a form in one state get.
struct Shared {
    form: Form,
    anew: bool,
    payloads: Vec<Arc<[u8]>>,
}

/// What [`Event`] borrows.
enum Told {
    Cleared,
    Stored {
        tier: u8,
        group: u16,
        digests: Vec<Digest>,
        parent: Option<Digest>,
        tokens: Vec<u32>,
        label: Arc<Label>,
        extra: Vec<Option<Arc<[Extra]>>>,
    },
    Removed {
        tier: u8,
        group: u16,
        digests: Vec<Digest>,
    },
}
