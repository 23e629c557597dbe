//! Compares a publisher with a model: the bytes that consumers receive describe exactly the contents
//! that are reachable in the pools. Contents are stored, removed, moved between tiers, and dropped in
//! the middle of a chain. Their tokens may become known late, and batches are lost.

mod decode;

use std::collections::{BTreeMap, BTreeSet};

use decode::{Value, events};
use kvpool::BlockHash;
use kvpool_observe::publish::{Digest, Group, GroupName, Publisher, SinkConfig, base};
use proptest::prelude::*;

/// Number of different contents. They form a tree, which exists once in each of two groups.
const CONTENTS: u64 = 24;
const TIERS: [&str; 3] = ["GPU", "CPU", "STORAGE"];

fn parent_of(content: u64) -> Option<u64> {
    content.checked_sub(2).map(|above| above - above % 3 % 2)
}

fn number_of(content: u64) -> u64 {
    (content + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn digest(content: u64) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(content + 77).to_le_bytes());
    bytes[24..].copy_from_slice(&number_of(content).to_be_bytes());
    Digest::new(BlockHash::from_bytes(bytes), 32)
}

fn tokens_of(content: u64) -> [u32; 2] {
    [content as u32, content as u32 * 1000 + 70_000]
}

#[derive(Clone, Debug)]
enum Operation {
    Stored { tier: u8, group: u16, content: u64, with_tokens: bool },
    Learned { group: u16, content: u64 },
    Removed { tier: u8, group: u16, content: u64 },
    Cleared { tier: u8 },
    Flush,
    Lose { sink: usize },
    Join,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let (tier, group, content) = (0..3_u8, 0..2_u16, 0..CONTENTS);
    let stored = (tier.clone(), group.clone(), content.clone(), prop::bool::weighted(0.9)).prop_map(
        |(tier, group, content, with_tokens)| Operation::Stored { tier, group, content, with_tokens },
    );
    let learned =
        (group.clone(), content.clone()).prop_map(|(group, content)| Operation::Learned { group, content });
    let removed = (tier.clone(), group, content).prop_map(|(tier, group, content)| Operation::Removed {
        tier,
        group,
        content,
    });
    let one = prop_oneof![
        12 => stored,
        2 => learned,
        8 => removed,
        1 => tier.prop_map(|tier| Operation::Cleared { tier }),
        6 => Just(Operation::Flush),
        1 => (0..3_usize).prop_map(|sink| Operation::Lose { sink }),
        1 => Just(Operation::Join),
    ];
    prop::collection::vec(one, 0..120)
}

/// The expected contents of the worker's pools.
#[derive(Default)]
struct Pools {
    held: BTreeSet<(u8, u16, u64)>,
    /// Contents whose tokens the publisher knows.
    known: BTreeSet<(u16, u64)>,
}

impl Pools {
    fn is_held(&self, group: u16, content: u64) -> bool {
        (0..3).any(|tier| self.held.contains(&(tier, group, content)))
    }

    /// The fastest tier in which a content of the first group can be reached: each block has to be in
    /// the same tier as its parent, or in a slower one.
    fn fastest(&self, content: u64) -> Option<u8> {
        let least = match parent_of(content) {
            None => 0,
            Some(before) => self.fastest(before)?,
        };
        let known = self.known.contains(&(0, content));
        (least..3).find(|&tier| known && self.held.contains(&(tier, 0, content)))
    }

    fn forget(&mut self) {
        let Self { held, known } = self;
        known.retain(|&(group, content)| (0..3).any(|tier| held.contains(&(tier, group, content))));
    }

    /// Returns the contents that a lookup from the first block can reach.
    fn reachable(&self) -> BTreeSet<(String, i128, i128)> {
        let reached = self.held.iter().filter(|&&(tier, group, content)| {
            // A block of the second group can be used without its parents.
            let before = parent_of(content).filter(|_| group == 0);
            let tokens = self.known.contains(&(group, content));
            tokens && before.is_none_or(|before| self.fastest(before).is_some_and(|fastest| fastest <= tier))
        });
        reached
            .map(|&(tier, group, content)| {
                (TIERS[usize::from(tier)].to_owned(), group.into(), number_of(content).into())
            })
            .collect()
    }
}

/// A strict consumer. It refuses every event that contradicts earlier events.
#[derive(Default)]
struct Consumer {
    last: Option<u64>,
    known: BTreeSet<(String, i128, i128)>,
}

impl Consumer {
    fn take(&mut self, number: u64, payload: &[u8]) {
        let events = events(payload);
        let is_new = events.first().is_some_and(|event| event.map()["type"].text() == "AllBlocksCleared");
        match self.last {
            Some(last) if !is_new => assert_eq!(number, last + 1, "a gap"),
            Some(last) => assert!(number > last),
            None => assert!(is_new, "the first words are not Cleared"),
        }
        self.last = Some(number);
        events.iter().for_each(|event| self.take_event(event.map()));
    }

    fn take_event(&mut self, event: &BTreeMap<String, Value>) {
        match event["type"].text() {
            "AllBlocksCleared" => self.known.clear(),
            "BlockRemoved" => {
                for hash in event["block_hashes"].array() {
                    let content =
                        (event["medium"].text().to_owned(), event["group_idx"].number(), hash.number());
                    assert!(self.known.remove(&content), "{content:?} goes and never came");
                }
            }
            "BlockStored" => {
                let (medium, group) = (event["medium"].text(), event["group_idx"].number());
                let hashes = event["block_hashes"].array();
                let tokens = event["token_ids"].array();
                assert_eq!(tokens.len() as i128, hashes.len() as i128 * event["block_size"].number());
                let mut parent = event["parent_block_hash"].clone();
                for (hash, tokens) in hashes.iter().zip(tokens.chunks(2)) {
                    let content = (0..CONTENTS)
                        .find(|&content| i128::from(number_of(content)) == hash.number())
                        .unwrap();
                    let told: Vec<_> = tokens.iter().map(Value::number).collect();
                    assert_eq!(told, tokens_of(content).map(i128::from));
                    match parent_of(content) {
                        None => assert_eq!(parent, Value::Nil),
                        Some(before) => {
                            assert_eq!(parent.number(), number_of(before).into());
                            let is_known = group == 1
                                || TIERS.iter().take_while(|&&faster| faster != medium).chain([&medium]).any(
                                    |&medium| {
                                        self.known.contains(&(medium.to_owned(), group, parent.number()))
                                    },
                                );
                            assert!(is_known, "what is before {content} is not known");
                        }
                    }
                    assert!(self.known.insert((medium.to_owned(), group, hash.number())), "stored twice");
                    parent = hash.clone();
                }
            }
            other => panic!("no event is a {other}"),
        }
    }
}

struct Run {
    publisher: Publisher,
    pools: Pools,
    consumers: Vec<Consumer>,
    now: f64,
}

impl Run {
    fn new() -> Self {
        let group = |index| Group {
            name: GroupName { index: Some(index), kind: Some("full_attention".into()), window: None },
            block_tokens: 2,
            chained: index == 0,
        };
        let publisher = Publisher::new(vec![group(0), group(1)], 0, base(1_700_000_000)).unwrap();
        let mut run = Self { publisher, pools: Pools::default(), consumers: Vec::new(), now: 0.0 };
        run.join();
        run
    }

    fn join(&mut self) {
        if self.consumers.len() < 3 {
            assert_eq!(self.publisher.add(SinkConfig::default()), self.consumers.len());
            self.consumers.push(Consumer::default());
        }
    }

    fn take(&mut self, operation: &Operation) {
        match *operation {
            Operation::Stored { tier, group, content, with_tokens } => {
                let tokens = tokens_of(content);
                let tokens = with_tokens.then_some(tokens.as_slice());
                let parent = parent_of(content).map(digest);
                self.publisher.stored(tier, group, digest(content), parent, tokens);
                self.pools.held.insert((tier, group, content));
                if with_tokens {
                    self.pools.known.insert((group, content));
                }
            }
            Operation::Learned { group, content } => {
                let parent = parent_of(content).map(digest);
                self.publisher.learned(group, digest(content), parent, Some(&tokens_of(content)), None);
                if self.pools.is_held(group, content) {
                    self.pools.known.insert((group, content));
                }
            }
            Operation::Removed { tier, group, content } => {
                self.publisher.removed(tier, group, digest(content));
                self.pools.held.remove(&(tier, group, content));
            }
            Operation::Cleared { tier } => {
                self.publisher.cleared(tier);
                self.pools.held.retain(|&(of, _, _)| of != tier);
            }
            Operation::Flush => self.flush(),
            Operation::Lose { sink } => {
                // The batch that was lost has already used a number of the sink's sequence.
                if sink < self.consumers.len() {
                    self.publisher.lost(sink).unwrap();
                } else {
                    assert!(self.publisher.lost(sink).is_err());
                }
            }
            Operation::Join => self.join(),
        }
        self.publisher.contents().check().unwrap();
    }

    fn flush(&mut self) {
        self.now += 1.0;
        for batch in self.publisher.flush(self.now, f64::INFINITY) {
            self.consumers[batch.sink].take(batch.number, &batch.payload);
        }
        // If no tier has a content, the publisher removes it with its tokens.
        self.pools.forget();
        let reachable = self.pools.reachable();
        for (sink, consumer) in self.consumers.iter().enumerate() {
            assert_eq!(consumer.known, reachable, "sink {sink}");
            let snapshot = self.publisher.snapshot(sink, self.now).unwrap();
            assert_eq!(snapshot.cut, consumer.last);
            let mut fresh = Consumer { last: Some(0), ..Consumer::default() };
            for payload in &snapshot.payloads {
                events(payload).iter().for_each(|event| fresh.take_event(event.map()));
            }
            assert_eq!(fresh.known, reachable, "the snapshot of sink {sink}");
        }
        self.publisher.contents().check().unwrap();
    }
}

proptest! {
    #[test]
    fn consumers_have_exactly_the_reachable_contents(operations in operations()) {
        let mut run = Run::new();
        operations.iter().for_each(|operation| run.take(operation));
        run.flush();
        // After all tiers are cleared, the publisher has no contents, and uses no memory for them.
        for tier in 0..3 {
            run.take(&Operation::Cleared { tier });
        }
        run.flush();
        prop_assert!(run.publisher.contents().is_empty());
        prop_assert_eq!(run.publisher.contents().untold(), 0);
        prop_assert!(run.consumers.iter().all(|consumer| consumer.known.is_empty()));
    }
}
