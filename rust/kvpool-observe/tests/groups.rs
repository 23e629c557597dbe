//! Everything that watches, on managers with KV-cache groups under random operations: events, the digest, the scrubber, the advisor and
//! explanations, each against what is recounted from scratch after every operation.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use kvpool::groups::{Blocks, GroupSpec, Groups, Tokens};
use kvpool::{BlockHash, BlockId, CacheManager, ManagerConfig, ManagerError};
use kvpool_observe::explain::MissSpan;
use kvpool_observe::{
    AdvisorConfig, BlockEvent, ExplainConfig, Explanation, GroupReach, ManagerWatch, ManagerWatchConfig,
};
use kvpool_testing::groups::{IDS, Operation, World, operation, specs};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// A content: a hash in a group.
type Content = (BlockHash, u16);

fn watched(config: ManagerConfig) -> Result<CacheManager, ManagerError> {
    let watch = ManagerWatchConfig {
        event_capacity: 10_000,
        digest: true,
        advisor: Some(AdvisorConfig::default()),
        explain: Some(ExplainConfig { records: Some(1 << 14), requests: 8 }),
        metrics: true,
        ..ManagerWatchConfig::default()
    };
    CacheManager::new(config)?.watched(&watch)
}

/// What lookups can find, block by block.
fn findable(manager: &CacheManager) -> BTreeSet<Content> {
    let pool = manager.pool();
    let blocks = (1..pool.num_blocks() as u32).map(BlockId::new).filter(|&block| pool.is_computed(block));
    blocks.filter_map(|block| pool.name_of(block).map(|name| (*name.hash, name.group))).collect()
}

/// A world, and what was seen of it.
struct Watched {
    world: World,
    groups: Groups,
    /// By the events; and everything that ever was.
    cached: BTreeSet<Content>,
    ever: BTreeSet<Content>,
    /// Hash units whose tokens were computed.
    written: BTreeSet<BlockHash>,
    /// Hash units that a request hit: a chunk can be hit at its start though nobody computed what is before.
    hit: BTreeMap<i64, usize>,
    /// Hash units that lookups asked for, and found.
    asked: u64,
    found: u64,
}

impl Watched {
    fn apply(&mut self, operation: &Operation) {
        let before = self.cached.clone();
        let ends = |id: i64| self.world.manager.request(id).map(|request| (id, request.external_end));
        let ends: BTreeMap<i64, usize> = IDS.filter_map(|id| ends(id).ok()).collect();
        let (done, result) = self.world.apply(operation);
        if let (&Operation::Load { id, lost }, Ok(())) = (&done, &result) {
            self.loaded(id, ends[&id].saturating_sub(lost));
        }
        if let (Operation::Admit { id, part, .. } | Operation::Resume { id, part }, Ok(())) = (&done, &result)
        {
            if part.compute_all {
                // The request asked for nothing.
                self.hit.insert(*id, 0);
            } else {
                self.explained(*id, &before);
            }
        }
        self.take_events(&done);
        if let (Operation::Fork { parent, child }, Ok(())) = (&done, &result) {
            self.hit.insert(*child, self.hit[parent]);
        }
        let manager = &self.world.manager;
        for (id, &hit) in &self.hit {
            let request = manager.slot_of(*id).and_then(|slot| manager.request_at(slot));
            let Some(request) = request else { continue };
            let hashes = request.cursor.chain().hashes();
            self.written.extend(hashes.iter().take(request.num_published).skip(hit));
        }
        let of_first = self.ever.iter().filter(|(_, group)| *group == 0).map(|(hash, _)| *hash);
        self.written.extend(of_first);
        let manager = &mut self.world.manager;
        assert_eq!(manager.state_digest(), Some(manager.state_digest_from_scratch()), "{done:?}");
        manager.scrub(7).unwrap();
        let advice = manager.advice().unwrap();
        assert_eq!(advice.seen, self.asked, "{done:?}");
        // Nothing is halved before the first window ends.
        let rate = 100.0 * self.found as f64 / self.asked.max(1) as f64;
        assert!((advice.hit_rate * 100.0 - rate).abs() < 1e-6, "{} of {}", self.found, self.asked);
    }

    /// The first external tokens of a request have arrived, even if that was not enough to go on from.
    fn loaded(&mut self, id: i64, tokens: usize) {
        let manager = &self.world.manager;
        let Some(request) = manager.slot_of(id).and_then(|slot| manager.request_at(slot)) else { return };
        let units = tokens / self.groups.unit();
        self.written.extend(request.cursor.chain().hashes().iter().take(units));
    }

    fn take_events(&mut self, done: &Operation) {
        let batch = self.world.manager.take_events();
        assert_eq!(batch.dropped, 0);
        for event in batch.events {
            match event {
                BlockEvent::Stored { hash, group, parent, .. } => {
                    assert!(self.cached.insert((hash, group)), "{done:?}: {hash:?} of {group} twice");
                    self.ever.insert((hash, group));
                    let is_full = self.groups.specs()[usize::from(group)].kind.is_full();
                    assert!(is_full || parent.is_none(), "{done:?}: {hash:?} of {group} hangs on {parent:?}");
                }
                BlockEvent::Removed { hash, group, .. } => {
                    assert!(
                        self.cached.remove(&(hash, group)),
                        "{done:?}: {hash:?} of {group} was not there"
                    );
                }
                BlockEvent::Cleared { .. } => self.cached.clear(),
                _ => panic!("{event:?}"),
            }
        }
        assert_eq!(self.cached, findable(&self.world.manager), "{done:?}");
    }

    /// The hash of a block of a group of some prompt.
    fn content(&self, hashes: &[BlockHash], group: usize, block: usize) -> Content {
        (hashes[self.groups.naming_unit(group, Blocks(block)).unwrap().0], group as u16)
    }

    /// Whether a group had all that a hit needs among these contents.
    fn serves(&self, hashes: &[BlockHash], group: usize, tokens: usize, among: &BTreeSet<Content>) -> bool {
        let spec = self.groups.specs()[group];
        let (Blocks(first), Blocks(end)) = spec.needed(Tokens(tokens));
        let sinks = 0..spec.sink_blocks().min(spec.full_blocks(Tokens(tokens))).0;
        sinks.chain(first..end).all(|block| among.contains(&self.content(hashes, group, block)))
    }

    /// Whether the tokens of a hash unit were ever computed.
    fn is_written(&self, hash: &BlockHash) -> bool {
        self.written.contains(hash)
    }

    /// The explanation of a request that was matched when these contents were cached.
    fn explained(&mut self, id: i64, cached: &BTreeSet<Content>) {
        let explanation = self.world.manager.explain(id).unwrap();
        let Explanation { prompt_tokens: tokens, cached_tokens, block_size: unit, .. } = explanation;
        let slot = self.world.manager.slot_of(id).unwrap();
        let hashes = self.world.manager.request_at(slot).unwrap().cursor.chain().hashes().to_vec();
        self.asked += ((tokens - 1) / unit) as u64;
        self.found += (cached_tokens / unit) as u64;
        self.hit.insert(id, cached_tokens / unit);
        assert_eq!(explanation.groups.len(), self.groups.specs().len());
        for reach in &explanation.groups {
            self.check_reach(reach, tokens - 1, &hashes, cached);
        }
        let ended = explanation.groups.iter().filter(|group| !group.ends.is_empty());
        let least = ended.map(|group| group.reach_tokens).min();
        for group in &explanation.groups {
            let limits = !group.ends.is_empty() && Some(group.reach_tokens) == least;
            assert_eq!(group.limits, limits, "{explanation}");
        }
        let missed: usize = explanation.spans.iter().map(|span| span.tokens.len()).sum();
        assert_eq!(missed, tokens - cached_tokens, "{explanation}");
        self.check_spans(&explanation, cached, &hashes);
    }

    /// What hits of the groups of full attention alone would have been is what is not served.
    fn check_spans(&self, explanation: &Explanation, cached: &BTreeSet<Content>, hashes: &[BlockHash]) {
        let unserved = explanation.spans.iter().filter(|span| span.reason.name() == "unserved");
        let unserved: usize = unserved.map(|span| span.tokens.len()).sum();
        let full: Vec<_> = self
            .groups
            .specs()
            .iter()
            .enumerate()
            .filter(|(_, spec)| spec.kind.is_full() && spec.is_cached())
            .collect();
        if full.is_empty() || full.iter().any(|(_, spec)| spec.margin > 0) {
            return;
        }
        let limit = Tokens(explanation.prompt_tokens - 1);
        let alone = |&(group, spec): &(usize, &GroupSpec)| {
            let blocks = 0..spec.full_blocks(limit).0;
            blocks.take_while(|&block| cached.contains(&self.content(hashes, group, block))).count()
                * spec.block_tokens
        };
        let full_tokens = full.iter().map(alone).min().unwrap();
        assert_eq!(unserved, full_tokens - explanation.cached_tokens, "{explanation}");
    }

    fn check_reach(
        &self,
        reach: &GroupReach,
        limit: usize,
        hashes: &[BlockHash],
        cached: &BTreeSet<Content>,
    ) {
        let (group, spec) = (usize::from(reach.group), reach.spec);
        let step = self.groups.alignment().0;
        let ends = |ends: &[MissSpan]| -> Vec<_> {
            ends.iter().map(|end| (end.tokens.end, end.reason.when().is_some(), end.reason.name())).collect()
        };
        let ends = ends(&reach.ends);
        if !spec.is_cached() {
            assert_eq!((reach.reach_tokens, &ends[..]), (limit - limit % step, &[][..]));
            return;
        }
        let most = spec.ending_before(spec.full_blocks(Tokens(limit))).0;
        let lengths = || (step..=most).step_by(step);
        let longest = lengths().filter(|&tokens| self.serves(hashes, group, tokens, cached)).max();
        assert_eq!(reach.reach_tokens, longest.unwrap_or(0), "{reach}");
        let longer = || lengths().filter(|&tokens| tokens > reach.reach_tokens);
        if longer().next().is_none() {
            assert_eq!(ends, []);
            return;
        }
        if spec.kind.is_full() {
            let block = reach.ends[0].blocks.start;
            let missing = (0..).find(|&block| !cached.contains(&self.content(hashes, group, block))).unwrap();
            let was = self.ever.contains(&self.content(hashes, group, block));
            assert_eq!((ends.len(), block, ends[0].1), (1, missing, was), "{reach}");
            return;
        }
        let once = longer().filter(|&tokens| self.serves(hashes, group, tokens, &self.ever)).max();
        let written =
            longer().filter(|&tokens| self.is_written(&hashes[tokens / self.groups.unit() - 1])).max();
        let expected = [
            once.map(|at| (at, true)),
            written.filter(|&at| once.is_none_or(|once| at > once)).map(|at| (at, false)),
        ];
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        if expected.is_empty() {
            // The first token that was never computed is explained as ever; or only a part of the next length was.
            assert_eq!((ends.len(), ends[0].1), (1, false), "{reach}");
            assert!(ends[0].2 != "not-kept", "{reach}");
            return;
        }
        let found: Vec<_> = ends.iter().map(|&(at, gone, _)| (at, gone)).collect();
        assert_eq!(found, expected, "{reach}");
        for (end, expected) in reach.ends.iter().zip(&expected) {
            let content = self.content(hashes, group, end.blocks.start);
            assert_eq!(end.reason.name() == "not-kept", !expected.1, "{reach}");
            assert_eq!(
                (cached.contains(&content), self.ever.contains(&content)),
                (false, expected.1),
                "{reach}"
            );
        }
    }
}

/// What comes of random draws.
fn drawn<T: Debug>(make: fn(&mut dyn FnMut(u8) -> usize) -> T) -> impl Strategy<Value = T> {
    any::<[u8; 24]>().prop_map(move |bytes| {
        let mut bytes = bytes.into_iter();
        make(&mut |most| usize::from(bytes.next().unwrap_or(0)) % (usize::from(most) + 1))
    })
}

#[test]
fn what_watches_knows_every_group() {
    let config = Config {
        cases: 60,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let histories = (drawn(specs), 8_usize..40, prop::collection::vec(drawn(operation), 1..160));
    TestRunner::new(config)
        .run(&histories, |(mut specs, num_blocks, history)| {
            // What is inside a block is no content of its own to whoever watches: `explain/groups.rs` has cases of it.
            specs.iter_mut().for_each(|spec| spec.partial_hits = false);
            let world = World::new(specs, num_blocks, watched).unwrap();
            let groups = world.manager.groups().unwrap().clone();
            let (cached, ever, written) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
            let mut watched =
                Watched { world, groups, cached, ever, written, hit: BTreeMap::new(), asked: 0, found: 0 };
            history.iter().for_each(|operation| watched.apply(operation));
            Ok(())
        })
        .unwrap();
}
