//! Compares stream form with a simple simulation that uses maps of cached contents, and policies
//! written from their papers for one block at a time. ARC is written from the cases in its paper.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeSet;

use kvpool_policies::{AdaptiveReplacement, Recency};
use kvpool_replay::{
    sizing::{Blocks, PolicyRun, References, lru, stream},
    trace::{Trace, TraceRequest},
};
use proptest::prelude::*;

/// A simulated cache of block contents, which is asked for one content after the other.
trait Cache {
    fn contents(&self) -> BTreeSet<u32>;
    /// Uses a block content (a block number of the trace). Returns the content that was evicted for it,
    /// if any.
    fn touch(&mut self, content: u32) -> Option<u32>;
}

struct Queue {
    queue: Vec<u32>,
    capacity: usize,
}

impl Cache for Queue {
    fn contents(&self) -> BTreeSet<u32> {
        self.queue.iter().copied().collect()
    }

    fn touch(&mut self, content: u32) -> Option<u32> {
        if self.queue.contains(&content) {
            self.queue.retain(|&other| other != content);
            self.queue.push(content);
            return None;
        }
        self.queue.push(content);
        (self.queue.len() > self.capacity).then(|| self.queue.remove(0))
    }
}

struct Arc {
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
    /// ARC's target size for its list of contents used once, in units of 1 / 2^32 blocks.
    p: i128,
    capacity: usize,
}

const ONE: i128 = 1 << 32;

impl Arc {
    fn replace(&mut self, in_b2: bool) -> u32 {
        let t1 = self.t1.len() as i128;
        if t1 >= 1 && (t1 * ONE > self.p || in_b2 && t1 == self.p / ONE) || self.t2.is_empty() {
            let victim = self.t1.remove(0);
            self.b1.push(victim);
            victim
        } else {
            let victim = self.t2.remove(0);
            self.b2.push(victim);
            victim
        }
    }
}

impl Cache for Arc {
    fn contents(&self) -> BTreeSet<u32> {
        self.t1.iter().chain(&self.t2).copied().collect()
    }

    fn touch(&mut self, x: u32) -> Option<u32> {
        let c = self.capacity;
        let (b1, b2) = (self.b1.len() as i128, self.b2.len() as i128);
        if self.t1.contains(&x) || self.t2.contains(&x) {
            self.t1.retain(|&other| other != x);
            self.t2.retain(|&other| other != x);
            self.t2.push(x);
            return None;
        }
        if self.b1.contains(&x) {
            self.p = (self.p + ONE.max(b2 * ONE / b1)).min((c as i128 + 1) * ONE);
            let victim = self.replace(false);
            self.b1.retain(|&other| other != x);
            self.t2.push(x);
            return Some(victim);
        }
        if self.b2.contains(&x) {
            self.p = (self.p - ONE.max(b1 * ONE / b2)).max(0);
            let victim = self.replace(true);
            self.b2.retain(|&other| other != x);
            self.t2.push(x);
            return Some(victim);
        }
        let l1 = self.t1.len() + self.b1.len();
        let all = l1 + self.t2.len() + self.b2.len();
        let mut victim = None;
        if l1 == c {
            if self.t1.len() < c {
                self.b1.remove(0);
                victim = Some(self.replace(false));
            } else {
                victim = Some(self.t1.remove(0));
            }
        } else if all >= c {
            if all == 2 * c + 1 {
                self.b2.remove(0);
            }
            if self.t1.len() + self.t2.len() == c {
                victim = Some(self.replace(false));
            }
        }
        self.t1.push(x);
        victim
    }
}

/// Returns the number of hits of each request, the number of evictions, and the turnover of each
/// window. The turnover is the share of the contents at the end of a window that were not in the cache
/// during the whole window.
fn simulate(references: &References, capacity: usize, cache: &mut dyn Cache) -> (Vec<u32>, u64, Vec<f64>) {
    let (mut hits, mut evictions, mut turnovers) = (Vec::new(), 0, Vec::new());
    let mut stayed: Option<BTreeSet<u32>> = None;
    let mut insertions = 0;
    for index in 0..references.requests() {
        let request = references.request(index);
        let before = cache.contents();
        hits.push(request.iter().take_while(|content| before.contains(content)).count() as u32);
        for &content in request.iter().rev() {
            let missing = !cache.contents().contains(&content);
            let victim = cache.touch(content);
            evictions += u64::from(victim.is_some());
            if let (Some(stayed), Some(victim)) = (&mut stayed, victim) {
                stayed.remove(&victim);
                insertions += usize::from(missing);
            }
            let full = cache.contents().len() == capacity;
            if full && (stayed.is_none() || insertions == capacity) {
                if let Some(stayed) = &stayed {
                    turnovers.push((capacity - stayed.len()) as f64 / capacity as f64);
                }
                stayed = Some(cache.contents());
                insertions = 0;
            }
        }
    }
    (hits, evictions, turnovers)
}

fn agree(references: &References, capacity: usize, run: &PolicyRun, cache: &mut dyn Cache) {
    let (hits, evictions, turnovers) = simulate(references, capacity, cache);
    assert_eq!(run.outcome().hits(), hits);
    assert_eq!(run.evictions(), evictions);
    assert_eq!(run.turnovers(), turnovers);
    assert_eq!(run.insertions(), evictions + cache.contents().len() as u64);
}

/// Returns a trace whose blocks form a forest. Each prompt is the path from a root to one of the
/// `leaves`.
fn forest(parents: &[usize], leaves: &[usize]) -> References {
    let requests = leaves.iter().enumerate().map(|(index, leaf)| {
        let mut path = Vec::new();
        let mut next = Some(leaf % parents.len());
        while let Some(block) = next {
            path.push(block as u64);
            next = (parents[block] % (block + 1)).checked_sub(1);
        }
        path.reverse();
        let input_length = 4 * path.len() as u32;
        TraceRequest { timestamp_ms: index as f64, input_length, output_length: 1, hash_ids: path.into() }
    });
    References::new(&Trace::new(requests.collect(), 4).unwrap(), Blocks::All).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_stream_form_is_that_of_papers(
        parents in prop::collection::vec(0_usize..40, 1..40),
        leaves in prop::collection::vec(0_usize..40, 1..80),
        capacity in 1_usize..20,
    ) {
        let references = forest(&parents, &leaves);
        let ids = capacity + 2;
        let run = |policy: &mut dyn kvpool::evictor::Policy| stream(&references, capacity, policy).unwrap();

        let by_recency = run(&mut Recency::new(ids).unwrap());
        prop_assert_eq!(by_recency.outcome(), &lru(&references, capacity));
        agree(&references, capacity, &by_recency, &mut Queue { queue: Vec::new(), capacity });
        let [t1, t2, b1, b2] = [(); 4].map(|()| Vec::new());
        let mut arc = Arc { t1, t2, b1, b2, p: 0, capacity };
        agree(&references, capacity, &run(&mut AdaptiveReplacement::new(ids).unwrap()), &mut arc);
    }
}

#[test]
fn capacities_of_zero_and_above_the_limit() {
    let references = forest(&[0, 1, 2], &[2, 2]);
    let none = stream(&references, 0, &mut Recency::new(2).unwrap()).unwrap();
    assert_eq!((none.outcome().hits(), none.evictions(), none.turnover()), (&[0, 0][..], 0, None));
    let error = stream(&references, usize::MAX, &mut Recency::new(2).unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("capacity_blocks is 18446744073709551615; allowed: fewer than"), "{error}");
    let ample = stream(&references, 1000, &mut Recency::new(2).unwrap()).unwrap();
    assert_eq!((ample.outcome().hits(), ample.insertions(), ample.turnover()), (&[0, 3][..], 3, None));
}
