//! Checks the explanations of a hybrid model's misses, and the advisor's counts. Compares each with the
//! contents that are cached now and the contents that were cached at any time.
//!
//! A content inside a block has no digest of its own, so this module does not explain hits that end
//! inside blocks.

use std::collections::{BTreeMap, BTreeSet};

use kvpool::groups::{Blocks, GroupSpec, Groups, Tokens};
use kvpool::{BlockHash, CacheManager};
use kvpool_observe::explain::MissSpan;
use kvpool_observe::{
    AdvisorConfig, ExplainConfig, Explanation, GroupReach, ManagerWatch, ManagerWatchConfig,
};

use super::hits::Content;
use crate::Failure;
use crate::failure::{holds, same};
use crate::world::requests::id;

/// Records which contents were cached and computed so far, and counts lookups.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    groups: Groups,
    /// The contents that were cached at some time of the run.
    ever: BTreeSet<Content>,
    /// The hash units (the parts of prompts that have a digest each) whose tokens were computed.
    written: BTreeSet<u64>,
    /// Number of hash units that each request hit. A hit may begin in the middle of a prompt if
    /// attention is chunked, even if the units before it were never computed.
    hit: BTreeMap<i64, usize>,
    /// Number of hash units that lookups requested, and number of those that they found.
    asked: u64,
    found: u64,
}

fn key(hashes: &[BlockHash], unit: usize) -> Option<u64> {
    hashes.get(unit).map(BlockHash::key)
}

impl Explained {
    pub(crate) fn new(groups: Groups) -> Self {
        let (ever, written, hit) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        Self { groups, ever, written, hit, asked: 0, found: 0 }
    }

    /// Returns the settings of the observers that the manager needs for these checks.
    pub(crate) fn watch(event_capacity: usize) -> ManagerWatchConfig {
        ManagerWatchConfig {
            event_capacity,
            digest: true,
            advisor: Some(AdvisorConfig::default()),
            explain: Some(ExplainConfig { records: Some(1 << 14), requests: 8 }),
            metrics: true,
            ..ManagerWatchConfig::default()
        }
    }

    /// Records that the first external tokens of a request were loaded, even if the load failed and the
    /// request therefore cannot continue.
    pub(crate) fn loaded(&mut self, manager: &CacheManager, number: i64, tokens: usize) {
        if let Ok(cursor) = manager.cursor(&id(number)) {
            let units = tokens / self.groups.unit();
            let hit = self.hit.get(&number).copied().unwrap_or(0);
            self.written.extend(cursor.chain().hashes().iter().take(units).skip(hit).map(BlockHash::key));
        }
    }

    /// Records that a request is a fork, which shares the blocks of its parent.
    pub(crate) fn forked(&mut self, parent: i64, child: i64) {
        if let Some(&hit) = self.hit.get(&parent) {
            self.hit.insert(child, hit);
        }
    }

    /// Records the contents that events report as stored, even if they are already removed.
    pub(crate) fn stored(&mut self, contents: impl IntoIterator<Item = Content>) {
        self.ever.extend(contents);
    }

    /// Records the computed units after a call, and checks the advisor's counts.
    pub(crate) fn note(&mut self, manager: &CacheManager) -> Result<(), Failure> {
        self.hit.retain(|&number, _| manager.contains(&id(number)));
        for (&number, &hit) in &self.hit {
            let request = manager.slot_of(&id(number)).and_then(|slot| manager.request_at(slot));
            let Some(request) = request else { continue };
            let hashes = request.cursor.chain().hashes();
            self.written.extend(hashes.iter().take(request.num_published).skip(hit).map(BlockHash::key));
        }
        self.written.extend(self.ever.iter().filter(|(_, group)| *group == 0).map(|(key, _)| *key));
        let Some(advice) = manager.advice() else { return Err(Failure::new("advice", "none")) };
        same("what the advisor has seen", &advice.seen, &self.asked)?;
        // Compare the advisor's counts exactly while it has not yet halved them, which it does at the
        // end of each window.
        let rate = 100.0 * self.found as f64 / self.asked.max(1) as f64;
        holds("the advisor's hit rate", (advice.hit_rate * 100.0 - rate).abs() < 1e-6, || {
            format!("{} of {}: {}", self.found, self.asked, advice.hit_rate)
        })
    }

    fn content(&self, hashes: &[BlockHash], group: usize, block: usize) -> Option<Content> {
        Some((key(hashes, self.groups.naming_unit(group, Blocks(block))?.0)?, group as u16))
    }

    /// Returns whether the set `among` contains every content that a group needs for a hit of this
    /// length.
    fn serves(&self, hashes: &[BlockHash], group: usize, tokens: usize, among: &BTreeSet<Content>) -> bool {
        let spec = self.groups.specs()[group];
        let (Blocks(first), Blocks(end)) = spec.needed(Tokens(tokens));
        let sinks = 0..spec.sink_blocks().min(spec.full_blocks(Tokens(tokens))).0;
        let is_there = |block| self.content(hashes, group, block).is_some_and(|one| among.contains(&one));
        sinks.chain(first..end).all(is_there)
    }

    /// Checks the explanation of a request. `cached` are the contents that were cached at its match, if
    /// known. A request that computes all its tokens did not look up anything.
    pub(crate) fn admitted(
        &mut self,
        manager: &CacheManager,
        number: i64,
        cached: Option<&BTreeSet<Content>>,
        computes_all: bool,
    ) -> Result<(), Failure> {
        if computes_all {
            self.hit.insert(number, 0);
            return Ok(());
        }
        let Ok(explanation) = manager.explain(&id(number)) else {
            return Err(Failure::new("explanation", format!("none of request {number}")));
        };
        let Explanation { prompt_tokens: tokens, cached_tokens, block_size: unit, .. } = explanation;
        let hashes = manager.cursor(&id(number)).map(|cursor| cursor.chain().hashes().to_vec());
        let hashes = hashes.unwrap_or_default();
        self.asked += ((tokens - 1) / unit) as u64;
        self.found += (cached_tokens / unit) as u64;
        self.hit.insert(number, cached_tokens / unit);
        same("groups of an explanation", &explanation.groups.len(), &self.groups.specs().len())?;
        if let Some(cached) = cached {
            let mut groups = explanation.groups.iter();
            groups.try_for_each(|reach| self.check_reach(reach, tokens - 1, &hashes, cached))?;
        }
        let ended = explanation.groups.iter().filter(|group| !group.ends.is_empty());
        let least = ended.map(|group| group.reach_tokens).min();
        for group in &explanation.groups {
            let limits = !group.ends.is_empty() && Some(group.reach_tokens) == least;
            holds("the group that limits a hit", group.limits == limits, || explanation.to_string())?;
        }
        let missed: usize = explanation.spans.iter().map(|span| span.tokens.len()).sum();
        holds("tokens that are explained", missed == tokens - cached_tokens, || explanation.to_string())?;
        cached.map_or(Ok(()), |cached| self.check_spans(&explanation, cached, &hashes))
    }

    /// Without the other groups, the hit would be longer by the tokens whose miss has the reason
    /// `unserved`.
    fn check_spans(
        &self,
        explanation: &Explanation,
        cached: &BTreeSet<Content>,
        hashes: &[BlockHash],
    ) -> Result<(), Failure> {
        let unserved = explanation.spans.iter().filter(|span| span.reason.name() == "unserved");
        let unserved: usize = unserved.map(|span| span.tokens.len()).sum();
        let all = self.groups.specs().iter().enumerate();
        let full: Vec<_> = all.filter(|(_, spec)| spec.kind.is_full() && spec.is_cached()).collect();
        if full.is_empty() || full.iter().any(|(_, spec)| spec.margin > 0) {
            return Ok(());
        }
        let limit = Tokens(explanation.prompt_tokens - 1);
        let alone = |&(group, spec): &(usize, &GroupSpec)| {
            let is_there =
                |&block: &usize| self.content(hashes, group, block).is_some_and(|one| cached.contains(&one));
            (0..spec.full_blocks(limit).0).take_while(is_there).count() * spec.block_tokens
        };
        let full_tokens = full.iter().map(alone).min().unwrap_or(0);
        holds("tokens that are not served", unserved + explanation.cached_tokens == full_tokens, || {
            format!("{full_tokens} of full attention: {explanation}")
        })
    }

    fn check_reach(
        &self,
        reach: &GroupReach,
        limit: usize,
        hashes: &[BlockHash],
        cached: &BTreeSet<Content>,
    ) -> Result<(), Failure> {
        let (group, spec) = (usize::from(reach.group), reach.spec);
        let step = self.groups.alignment().0;
        let end = |end: &MissSpan| (end.tokens.end, end.reason.when().is_some(), end.reason.name());
        let ends: Vec<_> = reach.ends.iter().map(end).collect();
        let check = |fine: bool| holds("explanation of a group", fine, || reach.to_string());
        if !spec.is_cached() {
            return check((reach.reach_tokens, ends.len()) == (limit - limit % step, 0));
        }
        let most = spec.ending_before(spec.full_blocks(Tokens(limit))).0;
        let lengths = || (step..=most).step_by(step);
        let longest = lengths().filter(|&tokens| self.serves(hashes, group, tokens, cached)).max();
        check(reach.reach_tokens == longest.unwrap_or(0))?;
        let longer = || lengths().filter(|&tokens| tokens > reach.reach_tokens);
        if longer().next().is_none() {
            return check(ends.is_empty());
        }
        let Some(first) = reach.ends.first() else { return check(false) };
        if spec.kind.is_full() {
            let content = |block| self.content(hashes, group, block);
            let is_missing = |&block: &usize| content(block).is_none_or(|one| !cached.contains(&one));
            let missing = (0..hashes.len() + 1).find(is_missing);
            let was = content(first.blocks.start).is_some_and(|one| self.ever.contains(&one));
            return check((ends.len(), Some(first.blocks.start), ends[0].1) == (1, missing, was));
        }
        let once = longer().filter(|&tokens| self.serves(hashes, group, tokens, &self.ever)).max();
        let is_written = |&tokens: &usize| {
            key(hashes, tokens / self.groups.unit() - 1).is_some_and(|key| self.written.contains(&key))
        };
        let written = longer().filter(is_written).max();
        let expected = [
            once.map(|at| (at, true)),
            written.filter(|&at| once.is_none_or(|once| at > once)).map(|at| (at, false)),
        ];
        let expected: Vec<_> = expected.into_iter().flatten().collect();
        if expected.is_empty() {
            // A token that was never computed gets the usual reason, unless only a part of the tokens
            // up to the next possible length of a hit is missing.
            return check((ends.len(), ends[0].1) == (1, false) && ends[0].2 != "not-kept");
        }
        check(ends.iter().map(|&(at, gone, _)| (at, gone)).eq(expected.iter().copied()))?;
        reach.ends.iter().zip(&expected).try_for_each(|(end, expected)| {
            let content = self.content(hashes, group, end.blocks.start);
            let is_in = |all: &BTreeSet<Content>| content.is_some_and(|one| all.contains(&one));
            check((end.reason.name() == "not-kept") != expected.1)?;
            check((is_in(cached), is_in(&self.ever)) == (false, expected.1))
        })
    }
}
