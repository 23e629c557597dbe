//! Runs a model (a small concurrent program) under a fixed number of thread schedules. One half of the
//! schedules is uniformly random. The other half has few preemptions at random positions.
//!
//! The schedules are the same in every run. `KVPOOL_SHUTTLE_SCHEDULES=n` runs n schedules of each kind.
//! A failing test prints a schedule that `shuttle::replay` accepts.

#![allow(dead_code, clippy::allow_attributes, reason = "each test binary uses a part of it")]

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner, thread};

/// The number of thread schedules of each kind that run by default.
const SCHEDULES: usize = 1000;

/// Number of preemptions in a schedule of the second kind.
const DEPTH: usize = 3;

fn config() -> Config {
    let mut config = Config::new();
    // The stack of each simulated thread in bytes. It is large enough for a hasher, a manager and the
    // message of a panic.
    config.stack_size = 1 << 18;
    config.max_steps = MaxSteps::FailAfter(200_000);
    config
}

/// Runs a model under many thread schedules.
pub(crate) fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    let given = std::env::var("KVPOOL_SHUTTLE_SCHEDULES").ok();
    let schedules = given.and_then(|number| number.parse().ok()).unwrap_or(SCHEDULES);
    Runner::new(RandomScheduler::new_from_seed(1, schedules), config()).run(model.clone());
    Runner::new(PctScheduler::new_from_seed(1, DEPTH, schedules), config()).run(model);
}

/// Runs each task on its own thread, and waits for all of them.
pub(crate) fn together<R: Send + 'static>(tasks: Vec<Box<dyn FnOnce() -> R + Send>>) -> Vec<R> {
    let threads: Vec<_> = tasks.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().expect("a task")).collect()
}
