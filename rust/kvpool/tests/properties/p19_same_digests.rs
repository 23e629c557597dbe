//! Property 19: digests are the same in every process, with every hash seed, in Python and in Rust.
//!
//! In lmcache#2136 and DingoCache#77, keys depended on the process, so processes could not share a
//! store.
//!
//! An implementation fails this test if it uses the hash function of its language, or a random seed.
//!
//! `tests/vectors.rs` of kvpool-hash has all vectors.

use super::*;

/// In lmcache#2136 and DingoCache#77, digests differed between processes, Python versions and hash
/// seeds. Another program computed these digests with Python's `hashlib`: see `docs/hashing.md`. All
/// other vectors are in `tests/data` of kvpool-hash.
#[test]
fn property_19_digests_are_these_everywhere() {
    let golden = |algorithm, expected: &[&str]| {
        let config = HasherConfig { algorithm, block_size: 4, ..Default::default() };
        let mut cursor =
            HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), ExtraKeys::default()).unwrap();
        cursor.append(&[0, 1, 2, 3, 65_535, 65_536, u32::MAX - 1, u32::MAX]);
        let digests: Vec<_> = cursor.chain().hashes().iter().map(|hash| format!("{hash:?}")).collect();
        assert_eq!(digests, expected, "{algorithm}");
    };
    golden(
        HashAlgorithm::Sha256,
        &[
            "41a841d81982818f7eab34fa8f9aee1ccac353902b5ce433ea04051c16265001",
            "77ce3a995417c2f8fa5553a3a4e3f9bef3195737cf68da4c481993ce4b56e7a3",
        ],
    );
    golden(
        HashAlgorithm::VllmSha256,
        &[
            "9da1c53089c000ad1a79a77c143b68dda00e2a85315bc1f690bbd03ba4a195dd",
            "a314a1822e24f79e7234cf7d5fe276b4cd922c245bcb9472c4f57862e48e2abb",
        ],
    );
    golden(
        HashAlgorithm::VllmSha256Cbor,
        &[
            "c49ab11fb576db6f376aef58c24f728a0ba1807e8cac5f940f1a5c4c20741898",
            "c145bd369b66409346aabb34accecb49cb2bf775a347a6f71b309b06c5688c56",
        ],
    );
}
