//! Makes runs whose choices come from random bytes.

use std::time::Duration;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Run, run};
use crate::world::World;

/// Minimum and maximum number of random bytes from which the calls of one run are drawn.
const LENGTHS: (usize, usize) = (40, 2000);

/// A generator of the bytes of random runs. Equal seeds give equal bytes.
#[derive(Debug)]
pub struct Bytes(ChaCha8Rng);

impl Bytes {
    /// Creates the generator for this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
}

impl Iterator for Bytes {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let (least, most) = LENGTHS;
        let mut data = vec![0; least + self.0.next_u32() as usize % (most - least)];
        self.0.fill_bytes(&mut data);
        Some(data)
    }
}

/// The condition under which random runs stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Stop when this time has passed.
    Time(Duration),
    /// Stop when this number of calls was made.
    Calls(u64),
}

/// The result of random runs.
#[derive(Debug)]
pub struct Outcome<W: World> {
    /// Number of runs.
    pub runs: u64,
    /// Number of calls.
    pub calls: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// The run that failed, or `None` if none failed.
    pub failed: Option<Run<W>>,
}

/// Makes random runs until one of them fails or the condition `until` is true.
#[must_use]
pub fn random<W: World>(seed: u64, until: Until) -> Outcome<W> {
    let (begun, mut runs, mut calls) = (Instant::now(), 0, 0);
    let outcome =
        |runs, calls, failed| Outcome { runs, calls, seconds: begun.elapsed().as_secs_f64(), failed };
    for data in Bytes::new(seed) {
        let is_over = match until {
            Until::Time(time) => begun.elapsed() >= time,
            Until::Calls(most) => calls >= most,
        };
        if is_over {
            break;
        }
        let one = run::<W>(&data);
        runs += 1;
        calls += one.steps.len() as u64;
        if one.failure.is_some() {
            return outcome(runs, calls, Some(one));
        }
    }
    outcome(runs, calls, None)
}
