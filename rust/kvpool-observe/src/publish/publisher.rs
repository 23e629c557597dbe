//! `Publisher`: makes numbered batches of changes for several sinks. A sink is a destination of
//! batches, for example a ZMQ socket.
//!
//! The publisher numbers every batch, and determines what each sink needs to become consistent. These
//! rules serve all consumers:
//!
//! - Numbers begin at [`base`] of the start time. So a restarted worker never uses a number of an
//!   earlier incarnation again, or a lower one. Consumers drop batches with a lower number than the
//!   last, some of them silently.
//! - The first batch begins with `AllBlocksCleared`. The existing contents follow as ordinary stores.
//! - A sink that lost a batch gets a full report next. Its number is one higher than usual, so every
//!   consumer notices that a batch is missing. Then `AllBlocksCleared` and all contents follow.
//! - If nothing changes, an empty batch is sent as a heartbeat. When a consumer that joined late
//!   receives a heartbeat, it requests the batches that it missed.
//!
//! The latest batches of each sink are kept for [`Publisher::replay`].
//!
//! Costs: O(changes) per flush and form. A full report costs O(contents).

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
use crate::publish::keys::KeyTranslator;

/// The maximum number of contents in one batch of a full report.
const SNAPSHOT_CONTENTS: usize = 8192;

/// Returns the first batch number for a start time: about a million numbers for each second since 1970.
///
/// ```
/// assert_eq!(kvpool_observe::publish::base(1_700_000_000), 1_700_000_000 << 20);
/// ```
#[must_use]
pub const fn base(unix_seconds: u64) -> u64 {
    // The number has room for 43 bits of seconds, which is enough for 280,000 years.
    (unix_seconds & ((1 << 43) - 1)) << 20
}

/// The description of a KV-cache group that consumers of the events get.
///
/// ```
/// use kvpool_observe::publish::{Group, GroupName};
/// let name = GroupName { index: Some(1), kind: Some("sliding_window".into()), window: Some(1024) };
/// let groups = [Group::full(16), Group { name, block_tokens: 16, chained: false }];
/// assert!(groups[0].chained && !groups[1].chained);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number, the kind and the window of the group.
    pub name: GroupName,
    /// The number of tokens of a block of the group.
    pub block_tokens: usize,
    /// Whether a hit on a block needs the block's parent, as in full attention.
    pub chained: bool,
}

/// The settings of a sink (a destination of batches, such as a socket).
///
/// ```
/// use kvpool_observe::publish::SinkConfig;
/// let config = SinkConfig { form: "sglang".parse()?, ..SinkConfig::default() };
/// assert_eq!(config.replay_batches, 10_000);
/// # Ok::<(), kvpool_observe::publish::UnknownForm>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// The form in which events are encoded for the sink.
    pub form: Form,
    /// The number of the latest batches that the publisher keeps for replays.
    pub replay_batches: usize,
    /// The maximum size of these batches in bytes. The latest batch is always kept.
    pub replay_bytes: usize,
}

impl Default for SinkConfig {
    fn default() -> Self {
        Self { form: Form::default(), replay_batches: 10_000, replay_bytes: 64 << 20 }
    }
}

/// The reason why a call of a publisher failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublisherError {
    /// The list of KV-cache groups is empty.
    #[error("groups is empty: at least one KV-cache group")]
    NoGroups,
    /// The block size of a KV-cache group is 0 tokens.
    #[error("block_tokens of group {group} is 0: must be at least 1")]
    NoTokens {
        /// The group.
        group: usize,
    },
    /// There are more KV-cache groups than are supported.
    #[error("groups are {groups}: at most {most}")]
    TooManyGroups {
        /// The number of groups that the caller passed.
        groups: usize,
        /// The maximum number of groups.
        most: usize,
    },
    /// The publisher has no sink with this number.
    #[error("there is no sink {sink}: there are {sinks}")]
    UnknownSink {
        /// The sink number that the caller passed.
        sink: usize,
        /// The number of sinks that the publisher has.
        sinks: usize,
    },
}

/// An encoded batch of events for one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The sink.
    pub sink: usize,
    /// The number of the batch, in the sink's sequence.
    pub number: u64,
    /// The encoded batch. Sinks with the same form share it.
    pub payload: Arc<[u8]>,
}

/// A snapshot of all contents. A consumer that starts to receive the batches of a sink needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The first batch number of this incarnation of the worker.
    pub epoch: u64,
    /// The number of the last batch of the sink that is included in the snapshot. Apply only batches
    /// with higher numbers to the snapshot. `None` before the first batch.
    pub cut: Option<u64>,
    /// Batches of ordinary stores, in which parents come before their children.
    pub payloads: Vec<Arc<[u8]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The sink has received nothing, and needs a full report.
    Fresh,
    /// The sink lost a batch, and needs a full report whose number leaves out one number, so that
    /// consumers notice the loss.
    Lost,
    Following,
}

#[derive(Clone, Debug)]
struct Sink {
    config: SinkConfig,
    state: State,
    /// Whether the sink is paused. No batches are made for a paused sink.
    held: bool,
    next: u64,
    /// The time at which the last batch was made for this sink, in seconds.
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

/// The publisher of one worker: it collects changes and makes the batches of all sinks.
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
    /// Encoded batches from other sources than the pools, which are sent with the next flush.
    foreign: Vec<Arc<[u8]>>,
}

/// Returns vLLM's name for the kind of a KV-cache group, and the size of its window.
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
    /// Returns the description of the only group of a pool without KV-cache groups: full attention.
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

    /// Returns the groups of a manager.
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
    /// Makes a publisher for pools with these groups. The position of a group in the list is its
    /// number. `rank` is the data-parallel rank. Batch numbers start at `base`.
    ///
    /// # Errors
    /// [`PublisherError`] describes what is wrong with the groups.
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

    /// Adds a sink and returns its number. The next flush sends it a full report.
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

    /// Returns the contents of the worker's pools, and which of them were reported.
    #[must_use]
    pub const fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the first batch number that this publisher uses.
    #[must_use]
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Adds a content to a tier. Its parent must have been added before. If its tokens are not known
    /// yet, [`Self::learned`] can add them later.
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

    /// Sets the parent, tokens and extra keys of a content that a tier has. The parent and the extra
    /// keys do not change after the content was published.
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

    /// Removes a content from a tier of the worker.
    pub fn removed(&mut self, tier: u8, group: u16, digest: Digest) {
        self.contents.removed(tier, &digest, group);
    }

    /// Removes all contents from a tier of the worker.
    pub fn cleared(&mut self, tier: u8) {
        self.contents.cleared(tier);
    }

    /// Applies a batch of the feed of a tier's pool.
    pub fn take_in(&mut self, tier: u8, batch: &FeedBatch) {
        let len = if batch.digest_len == 0 { 32 } else { batch.digest_len };
        let digest = |hash| Digest::new(hash, len);
        for (at, event) in batch.events.iter().enumerate() {
            match *event {
                FeedEvent::Stored { hash, group, depth, tokens, .. } => {
                    let parent = batch.parent(at);
                    // If the parent of a content in the middle of a chain is unknown, leave out the
                    // tokens. Otherwise it would be published as the start of a chain.
                    let placed = depth == 0 || parent.is_some();
                    let tokens = tokens.filter(|_| placed).map(|span| batch.tokens(span));
                    self.stored(tier, group, digest(hash), parent.map(digest), tokens);
                }
                FeedEvent::Removed { hash, group } => self.removed(tier, group, digest(hash)),
                _ => self.cleared(tier),
            }
        }
        let mut keys = KeyTranslator::default();
        for learned in &batch.learned {
            let tokens = batch.tokens(learned.tokens);
            let keys = keys.of(learned, tokens.len());
            let parent = learned.parent.map(digest);
            self.learned(learned.group, digest(learned.hash), parent, Some(tokens), keys.as_ref());
        }
    }

    /// Adds an encoded batch from another source. The next flush sends it to every sink, after the
    /// changes. Snapshots and full reports do not contain its contents.
    pub fn pass_on(&mut self, payload: Vec<u8>) {
        self.foreign.push(payload.into());
    }

    /// Records that a batch did not reach a sink. The next flush sends the sink a full report instead
    /// of the changes.
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

    /// Pauses or resumes a sink. While it is paused, no batches are made for it, and it loses all
    /// changes.
    ///
    /// # Errors
    /// [`PublisherError::UnknownSink`].
    pub fn hold(&mut self, sink: usize, held: bool) -> Result<(), PublisherError> {
        let sinks = self.sinks.len();
        self.sinks.get_mut(sink).ok_or(PublisherError::UnknownSink { sink, sinks })?.held = held;
        Ok(())
    }

    /// Returns the batches of all changes since the last flush, in the order of the sinks and of their
    /// numbers. `now` is the time in seconds. A sink that got no batch for `heartbeat` seconds gets an
    /// empty one. If the clock was set back, a heartbeat is sent at once.
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

    /// Returns the stored batches of a sink from number `from` on, in order. If earlier batches are no
    /// longer stored, the first number is higher than `from`.
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

    /// Returns all contents that the sink knows and that are still valid, in the form of the sink.
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

    /// Encodes all contents that were reported to consumers, split into batches.
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
        let reported: Vec<EventData> =
            changes.iter().filter_map(|change| self.reported(change, &plain)).collect();
        let events: Vec<Event<'_>> = reported.iter().filter_map(|reported| self.event(reported)).collect();
        encode(form, now, self.rank, &events).into()
    }

    /// Copies the data of a change, so that an [`Event`] can borrow them.
    fn reported(&self, change: &Change, plain: &Arc<Label>) -> Option<EventData> {
        match change {
            Change::Cleared => Some(EventData::Cleared),
            Change::Removed { tier, group, digests } => {
                Some(EventData::Removed { tier: *tier, group: *group, digests: digests.clone() })
            }
            Change::Stored { tier, nodes } => {
                let (group, parent) = self.contents.place(*nodes.first()?)?;
                let block_tokens = self.contents.block_tokens(group);
                let mut digests = Vec::with_capacity(nodes.len());
                let mut tokens = Vec::with_capacity(nodes.len() * block_tokens);
                let (mut label, mut extra) = (Arc::clone(plain), Vec::new());
                for (position, &node) in nodes.iter().enumerate() {
                    let (digest, some, keys) = self.contents.reported(node)?;
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
                Some(EventData::Stored { tier: *tier, group, digests, parent, tokens, label, extra })
            }
        }
    }

    fn event<'a>(&'a self, reported: &'a EventData) -> Option<Event<'a>> {
        Some(match reported {
            EventData::Cleared => Event::Cleared,
            EventData::Removed { tier, group, digests } => Event::Removed {
                tier: *tier,
                group: &self.groups.get(usize::from(*group))?.name,
                hashes: digests,
            },
            EventData::Stored { tier, group, digests, parent, tokens, label, extra } => {
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

/// Encoded batches that all sinks with the same form share, if they need the same kind of report.
struct Shared {
    form: Form,
    anew: bool,
    payloads: Vec<Arc<[u8]>>,
}

/// The data of one event, which an [`Event`] borrows.
enum EventData {
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
