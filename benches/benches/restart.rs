//! Measures a warm restart of a pool of 2^20 blocks: taking its image, saving the image to a file, and
//! restoring a pool from the file.
//!
//! Limits: restoring a million blocks, including reading the file and the headers of slots, takes less
//! than a second. Taking the image takes less than a fifth of a second, because no other call can run
//! in that time. All figures are CPU time of the thread, except for the save, which waits for a disk.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;
use std::time::Duration;

use cpu_time::ThreadTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockPool, SavedBlock};
use kvpool_benches::{fill, pool};
use kvpool_store::warm::{SlotHeaders, load, save};
use kvpool_store::{NamespaceDigest, ObjectKey};

const BLOCKS: u32 = 1 << 20;
const OURS: NamespaceDigest = NamespaceDigest::from_bytes([7; 32]);

/// Returns the CPU time that the thread needs for `n` repetitions of `timed`.
fn ran<S, T>(n: u64, before: impl Fn() -> S, mut timed: impl FnMut(S) -> T) -> Duration {
    let mut sum = Duration::ZERO;
    for _ in 0..n {
        let state = before();
        let began = ThreadTime::now();
        let made = black_box(timed(state));
        sum += began.elapsed();
        drop(made);
    }
    sum
}

fn restart(criterion: &mut Criterion) {
    let folder = std::env::temp_dir().join(format!("kvpool-bench-restart-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (index, headers) = (folder.join("index"), folder.join("slots"));
    let mut full = pool(BLOCKS as usize + 1).unwrap();
    fill(&mut full).unwrap();
    let image = full.image().unwrap();
    let slots = SlotHeaders::open(&headers, OURS, BLOCKS + 1).unwrap();
    for saved in &image.blocks {
        let key = ObjectKey { hash: saved.hash, group: 0 };
        slots.seal(saved.block.get(), key, b"KV").unwrap();
    }
    // The loads below need this file, even if the filter excludes the benchmark that saves it.
    save(&index, &image, OURS, 0).unwrap();
    let mut group = criterion.benchmark_group("restart");
    group.sample_size(10).throughput(Throughput::Elements(image.blocks.len() as u64));
    group.bench_function("image", |bencher| {
        bencher.iter_custom(|n| ran(n, || (), |()| full.image().unwrap()));
    });
    group.bench_function("save", |bencher| bencher.iter(|| save(&index, &image, OURS, 0).unwrap()));
    let read = || load(&index, OURS).unwrap();
    group.bench_function("load", |bencher| bencher.iter_custom(|n| ran(n, || (), |()| read())));
    let fresh = || pool(BLOCKS as usize + 1).unwrap();
    group.bench_function("restore", |bencher| {
        let restore = |mut pool: BlockPool| {
            pool.restore(&image, 0.0, |_| true).unwrap();
            pool
        };
        bencher.iter_custom(|n| ran(n, fresh, restore));
    });
    group.bench_function("load_and_restore", |bencher| {
        let restore = |mut pool: BlockPool| {
            let (snapshot, headers) = (read(), slots.read().unwrap());
            let agrees = |saved: &SavedBlock| {
                let key = ObjectKey { hash: saved.hash, group: u32::from(saved.group) };
                headers.expect(saved.block.get(), key).is_ok()
            };
            assert_eq!(pool.restore(&snapshot.image, 0.0, agrees).unwrap().refused, 0);
            pool
        };
        bencher.iter_custom(|n| ran(n, fresh, restore));
    });
    group.finish();
    std::fs::remove_dir_all(folder).unwrap();
}

criterion_group!(benches, restart);
criterion_main!(benches);
