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

/// The result of random runs.
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

/// Makes random runs until one fails.
#[must_use]
pub fn random<W: World>(seed: u64, until: Until) -> Outcome<W> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let (begun, mut runs, mut calls) = (Instant::now(), 0, 0);
    loop {
        let is_over = match until {
            Until::Time(time) => begun.elapsed() >= time,
            Until::Calls(most) => calls >= most,
        };
        if is_over {
            return Outcome { runs, calls, seconds: begun.elapsed().as_secs_f64(), failed: None };
        }
        let (least, most) = BYTES;
        let mut data = vec![0; least + generator.next_u32() as usize % (most - least)];
        generator.fill_bytes(&mut data);
        let one = run::<W>(&data);
        runs += 1;
        calls += one.steps.len() as u64;
        if one.failure.is_some() {
            return Outcome { runs, calls, seconds: begun.elapsed().as_secs_f64(), failed: Some(one) };
        }
    }
}
