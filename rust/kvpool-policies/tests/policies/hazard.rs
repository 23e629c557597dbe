//! Makes the same calls of `hazard` and of its model, and compares the results. The calls serve
//! requests for chains of blocks, with or without a clock, with signals, as a pool does or in stream
//! form. There are enough calls for the policy to learn several times.

use kvpool::evictor::{Candidate, Content, Policy, Release};
use kvpool::{BlockId, CacheTime, Finish, Signal};
use kvpool_policies::Hazard;
use proptest::prelude::*;

use crate::hazard_model::Model;
use crate::id;

/// A workload.
#[derive(Clone, Copy, Debug)]
struct Workload {
    seed: u64,
    blocks: u32,
    /// Number of chains (prompts) that the calls request.
    chains: u64,
    length: u32,
    /// Seconds between two requests. 0 means a clock that does not advance, and `None` means that the
    /// caller passes no time.
    pace: Option<f64>,
    stream: bool,
    releases: usize,
}

fn workload() -> impl Strategy<Value = Workload> {
    let pace = prop_oneof![Just(None), Just(Some(0.0)), Just(Some(0.3)), Just(Some(40.0))];
    (any::<u64>(), 4_u32..80, 2_u64..90, 1_u32..10, pace, any::<bool>()).prop_map(
        |(seed, blocks, chains, length, pace, stream)| Workload {
            seed,
            blocks: blocks.max(length + 1),
            chains,
            length,
            pace,
            stream,
            releases: 20_000,
        },
    )
}

/// The policy and its model, and the content of each block.
struct Pair {
    shipped: Hazard,
    model: Model,
    contents: Vec<Option<Content>>,
    random: u64,
}

impl Pair {
    fn draw(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn find(&self, key: u64) -> Option<BlockId> {
        let at =
            self.contents.iter().position(|content| content.is_some_and(|content| content.key == key))?;
        Some(id(at as u32))
    }

    fn pop(&mut self) -> Option<BlockId> {
        let (shipped, model) = (self.shipped.pop(), self.model.pop());
        assert_eq!(shipped, model);
        shipped
    }

    fn evicted(&mut self, block: BlockId) {
        let content = self.contents[block.index()].take().unwrap();
        self.shipped.evicted(block, content);
        self.model.evicted(block, content);
        let outlook = self.shipped.outlook(block).map(|outlook| {
            let kept = outlook.kept_per_hit.map(|kept| match kept {
                CacheTime::Seconds(kept) | CacheTime::Capacities(kept) => kept,
                other => panic!("{other:?}"),
            });
            (outlook.class, kept)
        });
        assert_eq!(outlook, self.model.outlook(block));
    }

    /// Returns a block for a new content, if necessary that of a victim. A block in `held` is never
    /// returned.
    fn room(&mut self, held: &[BlockId]) -> BlockId {
        let free = |&at: &usize| self.contents[at].is_none() && !held.contains(&id(at as u32));
        if let Some(free) = (1..self.contents.len()).find(free) {
            return id(free as u32);
        }
        let victim = self.pop().unwrap();
        self.evicted(victim);
        victim
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.contents[block.index()] = Some(content);
        if self.draw(4) == 0 {
            // Calls with no blocks must change nothing, even in the middle of a chain.
            self.shipped.hit_all(&[]);
            self.shipped.release_all(&[]);
            self.shipped.admit_all(&[]);
        }
        self.shipped.admit(block, content);
        self.model.admit(block, content);
    }

    fn signal(&mut self, block: BlockId, signal: Signal) {
        self.shipped.signal(block, signal);
        self.model.signal(block, signal);
    }

    fn release(&mut self, block: BlockId) {
        self.shipped.release(block);
        self.model.release(block);
    }

    fn begin_release(&mut self, release: &Release<'_>) {
        self.shipped.begin_release(release);
        self.model.begin_release(release.blocks, release.length, release.known);
    }

    /// Serves one request, as a pool does or in stream form. Returns the number of released blocks.
    fn request(&mut self, workload: Workload) -> usize {
        let popular = self.draw(3) > 0;
        let chain = self.draw(if popular { workload.chains.div_ceil(4) } else { workload.chains });
        let length = 1 + self.draw(workload.length.into()) as u32;
        let signal = Signal {
            finish: [Finish::Unknown, Finish::Stop, Finish::ToolCalls, Finish::Length][chain as usize % 4],
            output_tokens: [None, Some(10), Some(250), Some(5000)][self.draw(4) as usize],
        };
        let contents: Vec<_> =
            (0..length).map(|depth| Content { key: chain << 8 | u64::from(depth), depth }).collect();
        let hits = contents.iter().take_while(|content| self.find(content.key).is_some()).count();
        if workload.stream {
            self.begin_release(&Release { length, known: hits as u32, ..Release::default() });
            for &content in contents.iter().rev() {
                let block = match self.find(content.key) {
                    Some(block) => {
                        self.shipped.hit(block);
                        self.model.hit(block);
                        block
                    }
                    None => {
                        let block = self.room(&[]);
                        self.admit(block, content);
                        block
                    }
                };
                self.signal(block, signal);
                self.release(block);
            }
            return contents.len();
        }
        let mut table: Vec<BlockId> =
            contents[..hits].iter().map(|content| self.find(content.key).unwrap()).collect();
        // Either one call per block or one call for all blocks is made. The effect has to be the same.
        if self.draw(2) == 0 {
            self.shipped.hit_all(&table);
        } else {
            table.iter().for_each(|&block| self.shipped.hit(block));
        }
        table.iter().for_each(|&block| self.model.hit(block));
        for &content in &contents[hits..] {
            // A cached block after a block that is not cached loses its content without an eviction. A
            // pool drops such blocks too, because no lookup can reach them.
            if let Some(block) = self.find(content.key) {
                self.contents[block.index()] = None;
                self.shipped.forget(block);
                self.model.forget(block);
            }
            let block = self.room(&table);
            self.admit(block, content);
            table.push(block);
        }
        let candidate = |(depth, &block): (usize, &BlockId)| Candidate { block, depth: depth as u32 };
        let released: Vec<_> = table.iter().enumerate().map(candidate).rev().collect();
        table.iter().for_each(|&block| self.signal(block, signal));
        self.begin_release(&Release { blocks: &released, ..Release::default() });
        if self.draw(2) == 0 {
            self.shipped.release_all(&released);
            released.iter().for_each(|candidate| self.model.release(candidate.block));
        } else {
            released.iter().for_each(|candidate| self.release(candidate.block));
        }
        contents.len()
    }

    /// Makes random calls between two requests.
    fn disturb(&mut self, workload: Workload) {
        match self.draw(2000) {
            0..20 => {
                // Pops a victim. It is either evicted, or put back and then popped again.
                let Some(block) = self.pop() else { return };
                if self.draw(2) == 0 {
                    self.shipped.unpop(block);
                    self.model.unpop(block);
                } else {
                    self.evicted(block);
                }
            }
            20..40 => {
                let block = id(1 + self.draw(self.contents.len() as u64 - 1) as u32);
                if self.contents[block.index()].is_some() {
                    self.shipped.take(block);
                    self.model.take(block);
                    self.evicted(block);
                }
            }
            40..43 if self.contents.len() < 100 => {
                self.contents.push(None);
                self.shipped.grow(self.contents.len()).unwrap();
                self.model.grow(self.contents.len());
            }
            43 if workload.seed.is_multiple_of(4) => {
                self.contents.fill(None);
                self.shipped.clear();
                self.model.clear();
            }
            _ => {}
        }
    }
}

fn agree(workload: Workload) {
    let num_blocks = workload.blocks as usize + 1;
    let mut pair = Pair {
        shipped: Hazard::new(num_blocks).unwrap(),
        model: Model::new(num_blocks),
        contents: vec![None; num_blocks],
        random: workload.seed,
    };
    let (mut released, mut now) = (0, 100.0);
    while released < workload.releases {
        if let Some(pace) = workload.pace {
            now += pace * pair.draw(4) as f64;
            pair.shipped.set_time(now);
            pair.model.set_time(now);
        }
        released += pair.request(workload);
        pair.disturb(workload);
    }
    pair.shipped.check_invariants().unwrap();
    while pair.pop().is_some() {}
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.div_ceil(64), max_shrink_iters: 40,
            ..ProptestConfig::default() })]

    #[test]
    fn hazard_is_its_model(workload in workload()) {
        agree(workload);
    }
}

/// The policy halves its counts after 131,072 releases. The random workloads have fewer releases, so
/// this test makes more.
#[test]
fn hazard_forgets_as_its_model_does() {
    let workload = Workload {
        seed: 7,
        blocks: 24,
        chains: 40,
        length: 3,
        pace: Some(2.0),
        stream: false,
        releases: 150_000,
    };
    agree(workload);
}
