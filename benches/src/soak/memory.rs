//! Whether memory stays flat: heap in use over the course of a run, and what the system says is resident.
//!
//! The first tenth of a run is warm-up, and at least [`WARM_UP_TURNS`] of each configuration. What is in use in the tenth that
//! follows, on average, is compared with the last tenth. Bytes that a resize of a pool took are measured where it happens, and
//! subtracted. More than the bound is a leak. A run that is too short for that says so.

/// Turns after which tables and lists have the size that the load needs.
const WARM_UP_TURNS: u64 = 50_000;

/// Growth that counts as flat: so much of what is in use, and never less than [`LEAST_BOUND`].
const BOUND_PERCENT: i64 = 5;

/// Live requests come and go, and tables of them double: one megabyte is no leak.
const LEAST_BOUND: i64 = 1 << 20;

/// Heap in use during a part of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    samples: i64,
    sum: i64,
    /// Bytes that resizes had taken by then, summed over the samples.
    resized: i64,
}

impl Window {
    const fn add(&mut self, bytes: i64, resized: i64) {
        self.samples += 1;
        self.sum += bytes;
        self.resized += resized;
    }

    fn mean(&self) -> i64 {
        self.sum / self.samples.max(1)
    }
}

/// What was seen of memory.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Memory {
    /// Whether the run was long enough, and heap counted, so that the rest means something.
    pub judged: bool,
    /// Bytes of heap in use in the tenth of the run after the warm-up, on average; 0 where nobody counts them.
    pub heap_start: i64,
    /// The same in the last tenth.
    pub heap_end: i64,
    /// The most that was in use.
    pub heap_peak: i64,
    /// Bytes that resizes took between the two.
    pub resized: i64,
    /// `heap_end - heap_start - resized`.
    pub growth: i64,
    /// The growth that is allowed.
    pub bound: i64,
    /// Bytes resident when the warm-up ended; `None` where the system does not say.
    pub resident_start: Option<u64>,
    /// The same at the end.
    pub resident_end: Option<u64>,
}

/// Takes samples.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    start: Window,
    end: Window,
    peak: i64,
    /// The progress at which the warm-up ended.
    warm: Option<f64>,
    resident_start: Option<u64>,
}

impl Watch {
    /// Takes a sample when `progress` of the run, 0 to 1, has passed, and each configuration has made `turns`.
    pub(crate) fn sample(&mut self, progress: f64, turns: u64, heap: i64, resized: i64) {
        self.peak = self.peak.max(heap);
        if self.warm.is_none() && progress >= 0.1 && turns >= WARM_UP_TURNS {
            self.warm = Some(progress);
            self.resident_start = resident();
        }
        if self.warm.is_some_and(|warm| progress < warm + 0.1) {
            self.start.add(heap, resized);
        }
        if progress >= 0.9 {
            self.end.add(heap, resized);
        }
    }

    /// What came of it.
    pub(crate) fn result(&self) -> Memory {
        let long_enough = self.warm.is_some_and(|warm| warm <= 0.7);
        let (heap_start, heap_end) = (self.start.mean(), self.end.mean());
        let resized =
            self.end.resized / self.end.samples.max(1) - self.start.resized / self.start.samples.max(1);
        Memory {
            judged: long_enough && heap_start > 0,
            heap_start,
            heap_end,
            heap_peak: self.peak,
            resized,
            growth: heap_end - heap_start - resized,
            bound: (heap_start * BOUND_PERCENT / 100).max(LEAST_BOUND),
            resident_start: self.resident_start,
            resident_end: resident(),
        }
    }
}

/// Bytes of this process that are resident; `None` but on Linux.
#[must_use]
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(heap: impl Fn(i64) -> i64, resized: impl Fn(i64) -> i64) -> Memory {
        let mut watch = Watch::default();
        (0..=1000).for_each(|at| watch.sample(at as f64 / 1000.0, 1000 * at as u64, heap(at), resized(at)));
        watch.result()
    }

    #[test]
    fn growth_is_seen_but_for_that_of_the_warm_up_and_of_resizes() {
        let mib = 1 << 20;
        let flat = watch(|at| if at < 100 { at * mib } else { 100 * mib }, |_| 0);
        assert_eq!((flat.growth, flat.bound, flat.heap_peak), (0, 5 * mib, 100 * mib));
        let leak = watch(|at| 100 * mib + at * mib / 100, |_| 0);
        assert!(leak.growth > 7 * mib && leak.growth > leak.bound, "{leak:?}");
        let resized = watch(|at| 100 * mib + at * mib / 100, |at| at * mib / 100);
        assert_eq!(resized.growth, 0, "{resized:?}");
        assert!(flat.judged && leak.judged);
        let mut short = Watch::default();
        (0..=1000).for_each(|at| short.sample(at as f64 / 1000.0, 60 * at, 1, 0));
        assert!(!short.result().judged, "the warm-up was most of the run");
    }
}
