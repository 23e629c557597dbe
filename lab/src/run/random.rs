//! Random bytes, one run after another.

use std::time::Duration;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Run, run};
use crate::world::World;

/// Bytes of a run, at least and at most.
const BYTES: (usize, usize) = (40, 2000);

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After this number of calls.
    Calls(u64),
}

/// What random runs came to.
#[derive(Debug)]
pub struct Outcome<W: World> {
    /// The runs.
    pub runs: u64,
    /// The calls.
    pub calls: u64,
    /// The seconds.
    pub seconds: f64,
    /// The run that failed.
    pub failed: Option<Run<W>>,
}

/// The bytes of random runs, one after the other.
#[derive(Debug)]
pub struct Inputs(ChaCha8Rng);

impl Inputs {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl Iterator for Inputs {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let (least, most) = BYTES;
        let mut data = vec![0; least + self.0.next_u32() as usize % (most - least)];
        self.0.fill_bytes(&mut data);
        Some(data)
    }
}

/// Makes random runs until one fails.
#[must_use]
pub fn random<W: World>(seed: u64, until: Until) -> Outcome<W> {
    let mut inputs = Inputs::new(seed);
    let (begun, mut runs, mut calls) = (Instant::now(), 0, 0);
    loop {
        let is_over = match until {
            Until::Time(time) => begun.elapsed() >= time,
            Until::Calls(most) => calls >= most,
        };
        let Some(data) = inputs.next().filter(|_| !is_over) else {
            return Outcome { runs, calls, seconds: begun.elapsed().as_secs_f64(), failed: None };
        };
        let one = run::<W>(&data);
        runs += 1;
        calls += one.steps.len() as u64;
        if one.failure.is_some() {
            return Outcome { runs, calls, seconds: begun.elapsed().as_secs_f64(), failed: Some(one) };
        }
    }
}
