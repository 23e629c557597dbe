//! Makes random inputs without a fuzzer: changed inputs of a corpus, and new inputs. Code coverage does
//! not guide them.
//!
//! The inputs are deterministic: the same seed and the same corpus give the same inputs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Maximum number of bytes of an input that is not derived from the corpus.
const LONGEST: usize = 400;

/// An endless stream of random inputs.
#[derive(Debug)]
pub struct Inputs {
    random: ChaCha8Rng,
    corpus: Vec<Vec<u8>>,
}

impl Inputs {
    /// Creates the stream of inputs for this seed. Some of them are changed inputs of the corpus.
    #[must_use]
    pub fn new(seed: u64, corpus: Vec<Vec<u8>>) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), corpus }
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n.max(1) as u64) as usize
    }

    /// Returns the bytes of a new input. Half of them are small values, because these select the first
    /// items of lists.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| {
                let byte = self.random.next_u32() as u8;
                if self.random.next_u32() & 1 == 0 { byte & 7 } else { byte }
            })
            .collect()
    }

    /// Returns the next input of the stream.
    pub fn next_input(&mut self) -> Vec<u8> {
        let fresh = self.corpus.is_empty() || self.below(3) == 0;
        if fresh {
            let len = self.below(LONGEST);
            return self.bytes(len);
        }
        let at = self.below(self.corpus.len());
        let mut input = self.corpus[at].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut input);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let len = 1 + self.below(12);
        match self.below(4) {
            0 => {
                let new = self.bytes(len);
                input.splice(at..at, new);
            }
            1 => {
                let end = (at + len).min(input.len());
                input.drain(at..end);
            }
            2 => {
                let other = self.below(self.corpus.len());
                let from = self.below(self.corpus[other].len());
                input.truncate(at);
                input.extend_from_slice(&self.corpus[other][from..]);
            }
            _ => {
                let byte = self.bytes(1)[0];
                if let Some(slot) = input.get_mut(at) {
                    *slot = byte;
                }
            }
        }
    }
}
