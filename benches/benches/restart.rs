//! A warm restart of a pool of 2^20 blocks: its image, its file, and a pool made of it.
//!
//! Guards: a million blocks are restored, file and headers of slots read, in less than a second; the image, which is taken while the pool
//! waits, in a tenth of one.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvpool_benches::{fill, pool};
use kvpool_store::warm::{SlotHeaders, load, save};
use kvpool_store::{NamespaceDigest, ObjectKey};

const BLOCKS: u32 = 1 << 20;
const OURS: NamespaceDigest = NamespaceDigest::from_bytes([7; 32]);

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
    let mut group = criterion.benchmark_group("restart");
    group.sample_size(10).throughput(Throughput::Elements(image.blocks.len() as u64));
    group.bench_function("image", |bencher| bencher.iter(|| black_box(full.image().unwrap())));
    group.bench_function("save", |bencher| bencher.iter(|| save(&index, &image, OURS, 0).unwrap()));
    group.bench_function("load", |bencher| bencher.iter(|| black_box(load(&index, OURS).unwrap())));
    let fresh = || pool(BLOCKS as usize + 1).unwrap();
    group.bench_function("restore", |bencher| {
        bencher.iter_batched(
            fresh,
            |mut pool| {
                pool.restore(&image, 0.0, |_| true).unwrap();
                pool
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("load_and_restore", |bencher| {
        bencher.iter_batched(
            fresh,
            |mut pool| {
                let (snapshot, headers) = (load(&index, OURS).unwrap(), slots.read().unwrap());
                let restored = pool
                    .restore(&snapshot.image, 0.0, |saved| {
                        let key = ObjectKey { hash: saved.hash, group: u32::from(saved.group) };
                        headers.expect(saved.block.get(), key).is_ok()
                    })
                    .unwrap();
                assert_eq!(restored.refused, 0);
                pool
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
    std::fs::remove_dir_all(folder).unwrap();
}

criterion_group!(benches, restart);
criterion_main!(benches);
