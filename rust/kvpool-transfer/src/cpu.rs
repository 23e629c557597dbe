//! Copies by the processor, with the same checks and results as copies by a device.
//!
//! A copy is a loop of `memcpy` over regions and runs, which is limited only by memory bandwidth.
//! Several threads share a copy of more than some megabytes. They are started for each call, which
//! costs about 20 us per thread. A permanent pool of threads would not exist in a child process after a
//! `fork`.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use crate::memory::{Span, copy_spans};
use crate::runs::spans;
use crate::store::{Claim, Store};
use crate::words::Pair;

/// Smallest number of bytes per thread at which another thread makes a copy faster.
const BYTES_PER_THREAD: u64 = 4 << 20;

/// Default number of threads per copy. It is at most 8, because a few cores already use the whole
/// memory bandwidth.
pub(crate) fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(8)
}

/// Copies checked pairs of blocks between two host stores, in the regions `range`. `_claim` holds the
/// guards of the blocks during the copy. Returns the number of copied bytes.
#[expect(unsafe_code, reason = "copies between stores")]
pub(crate) fn copy(
    _claim: &Claim,
    src: &Store,
    dst: &Store,
    pairs: &[Pair],
    range: Range<usize>,
    threads: usize,
) -> u64 {
    let (sources, targets) = (&src.regions()[range.clone()], &dst.regions()[range]);
    let spans = spans(sources, targets, pairs, |runs| runs);
    let total = pairs.len() as u64 * sources.iter().map(|region| region.nbytes).sum::<u64>();
    let workers = (total / BYTES_PER_THREAD).min(threads as u64) as usize;
    if workers <= 1 {
        // SAFETY: `check` has found that the pairs are in range, and that no destination occurs twice
        // or is also a source. Regions of a store do not overlap. The code that made a store guarantees
        // that its memory is valid, and the caller keeps both stores alive. Because of the claim, no
        // other code accesses the blocks.
        unsafe { copy_spans(spans.into_iter()) };
        return total;
    }
    // All threads copy the same number of bytes. A span (one piece to copy) that crosses the border between
    // the shares of two threads is split there.
    let share = total.div_ceil(workers as u64).next_multiple_of(4096);
    let mut shares: Vec<Vec<Span>> = vec![Vec::new()];
    let mut room = share;
    for mut span in spans {
        while span.nbytes > room {
            let part = Span { nbytes: room, ..span };
            span = Span { src: span.src + room, dst: span.dst + room, nbytes: span.nbytes - room };
            shares.last_mut().into_iter().for_each(|last| last.push(part));
            shares.push(Vec::new());
            room = share;
        }
        room -= span.nbytes;
        shares.last_mut().into_iter().for_each(|last| last.push(span));
    }
    let run = |spans: &[Span]| {
        // SAFETY: as for the copy by one thread above. In addition, no two threads write the same byte.
        unsafe { copy_spans(spans.iter().copied()) };
    };
    let run = &run;
    thread::scope(|scope| {
        let (own, others) = shares.split_at(1);
        for spans in others {
            // If the process cannot start another thread, this thread copies the share.
            if thread::Builder::new().spawn_scoped(scope, move || run(spans)).is_err() {
                run(spans);
            }
        }
        own.iter().for_each(|spans| run(spans));
    });
    total
}
