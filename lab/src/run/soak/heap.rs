//! Checks that the use of memory does not grow. Compares the bytes of heap in use at moments when no
//! manager holds or caches a block.

/// Allowed growth in bytes. It is so large that the hash tables of every configuration can double once
/// more without a failure.
const BOUND: i64 = 1 << 19;

/// Minimum number of samples. With fewer samples, growth is not judged.
const LEAST: usize = 8;

/// The use of heap memory during a soak.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Heap {
    /// Whether growth was judged: the bytes of heap were counted, and the run was long enough.
    pub judged: bool,
    /// Average number of bytes in use in the second quarter of the run.
    pub start: i64,
    /// Average number of bytes in use in the last quarter.
    pub end: i64,
    /// The maximum growth of the heap that counts as no leak, in bytes.
    pub bound: i64,
    /// Resident bytes at the end, or `None` if the system does not report them.
    pub resident: Option<u64>,
}

impl Heap {
    /// Judges samples of the bytes in use, in the order of time. Ignores the first quarter, which is
    /// the warm-up.
    #[must_use]
    pub fn of(samples: &[i64]) -> Self {
        let quarter = samples.len() / 4;
        let mean = |samples: &[i64]| samples.iter().sum::<i64>() / samples.len().max(1) as i64;
        let start = mean(&samples[quarter..2 * quarter]);
        let end = mean(&samples[samples.len() - quarter..]);
        let judged = samples.len() >= LEAST && start > 0;
        Self { judged, start, end, bound: BOUND, resident: resident() }
    }

    /// Returns whether the use of heap memory has grown by more than is allowed.
    #[must_use]
    pub const fn has_grown(&self) -> bool {
        self.judged && self.end - self.start > self.bound
    }
}

/// Returns the resident bytes of this process on Linux, and `None` on other systems.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::Heap;

    #[test]
    fn growth_after_the_warm_up_is_a_leak() {
        let of = |heap: fn(i64) -> i64| Heap::of(&(0..40).map(heap).collect::<Vec<_>>());
        let (warm, leak) = (of(|at| (at.min(9) + 1) << 20), of(|at| (1 << 20) + (at << 16)));
        assert!(warm.judged && !warm.has_grown(), "{warm:?}");
        assert!(leak.has_grown(), "{leak:?}");
        assert!(!Heap::of(&[1, 1 << 30]).judged, "too short");
    }
}
