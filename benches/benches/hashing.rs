//! Measures hashing per 16-token block: the incremental cursor over a 32,768-token prompt, for every
//! algorithm.
//!
//! This benchmark is important because SHA-256 takes most of the time of a cold prompt.
#![expect(clippy::unwrap_used, reason = "a bench stops at the first error")]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvpool::{BlockHasher, ExtraKeys, HashAlgorithm, HashCursor, HasherConfig, Verify};

fn chains(criterion: &mut Criterion) {
    let tokens: Vec<u32> = (0..32_768).map(|i| i * 7 % 128_000).collect();
    let mut group = criterion.benchmark_group("hash");
    group.throughput(Throughput::Elements((tokens.len() / 16) as u64));
    for &algorithm in HashAlgorithm::ALL {
        for verify in [Verify::None, Verify::Fingerprint] {
            let config = HasherConfig {
                algorithm,
                verify,
                seed: Some("bench".into()),
                block_size: 16,
                ..HasherConfig::default()
            };
            let hasher = Arc::new(BlockHasher::new(config).unwrap());
            let id = BenchmarkId::new(algorithm.name(), verify.name());
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys::default()).unwrap();
                    cursor.append(black_box(&tokens));
                    cursor
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, chains);
criterion_main!(benches);
