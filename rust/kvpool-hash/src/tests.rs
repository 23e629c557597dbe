//! Tests of refused inputs, of hidden secrets, and of the effect of keys and seeds. Properties that
//! hold for all inputs are in `tests/properties.rs`, and published vectors in `tests/vectors.rs`.

use std::sync::Arc;

use super::*;

fn config(algorithm: HashAlgorithm, block_size: usize, verify: Verify) -> HasherConfig {
    HasherConfig { algorithm, block_size, verify, key: None, seed: Some("seed".into()) }
}

fn hasher(algorithm: HashAlgorithm, block_size: usize, verify: Verify) -> Arc<BlockHasher> {
    Arc::new(BlockHasher::new(config(algorithm, block_size, verify)).unwrap())
}

fn compiled_in() -> impl Iterator<Item = HashAlgorithm> {
    HashAlgorithm::ALL.iter().copied().filter(|algorithm| algorithm.is_compiled_in())
}

/// Every build knows the names of all algorithms. A build that cannot compute the algorithm still
/// accepts digests that were computed elsewhere.
#[test]
fn an_algorithm_that_is_not_compiled_in_is_refused_with_its_features() {
    assert!(compiled_in().count() > 0);
    for &algorithm in HashAlgorithm::ALL {
        assert_eq!(algorithm.name().parse(), Ok(algorithm));
        let digests = vec![BlockHash::from_bytes([0; 32])];
        assert!(HashChain::from_digests(algorithm, 16, 0, digests).is_ok());
        match BlockHasher::new(config(algorithm, 16, Verify::None)) {
            Ok(_) => assert!(algorithm.is_compiled_in()),
            Err(error) => {
                assert!(!algorithm.is_compiled_in());
                assert_eq!(error, HashError::NotCompiledIn { algorithm });
                let features = format!(" --features {}", algorithm.features());
                assert!(error.to_string().ends_with(&features), "{error}");
            }
        }
    }
}

/// `make test-slow` runs the tests of this crate with no cargo feature, and with each feature alone.
#[test]
fn the_default_configuration_works_in_every_build() {
    let hasher = BlockHasher::new(HasherConfig { block_size: 4, ..HasherConfig::default() }).unwrap();
    let mut cursor = HashCursor::new(hasher.into(), ExtraKeys::default()).unwrap();
    cursor.append(&[0, 1, 2, 3]);
    let digest = format!("{:?}", cursor.chain().hashes()[0]);
    assert_eq!(digest, "41a841d81982818f7eab34fa8f9aee1ccac353902b5ce433ea04051c16265001");
}

#[test]
fn invalid_configurations_are_refused() {
    let refused = |config: HasherConfig| BlockHasher::new(config).unwrap_err();
    let default = HasherConfig::default;
    let error = refused(HasherConfig { block_size: 0, ..default() });
    assert_eq!(error.to_string(), "block_size is 0, must be 1..=4294967295");
    for algorithm in compiled_in() {
        let with_key = config(algorithm, 16, Verify::None);
        let with_key = BlockHasher::new(HasherConfig { key: Some([1; 32]), ..with_key });
        assert_eq!(with_key.is_ok(), algorithm == HashAlgorithm::Blake3);
        let no_seed = BlockHasher::new(HasherConfig { algorithm, ..default() });
        let needs_seed = algorithm.is_vllm() && !algorithm.is_cryptographic();
        assert_eq!(no_seed.is_err(), needs_seed, "{algorithm}");
    }
    let error = "md5".parse::<HashAlgorithm>().unwrap_err().to_string();
    assert!(error.contains("\"md5\"") && error.contains("vllm-xxhash-cbor"), "{error}");
    assert!("sometimes".parse::<Verify>().unwrap_err().to_string().contains("fingerprint"));
    let sha = HashAlgorithm::Sha256;
    for len in [0, 16, 31, 33] {
        let error = HashError::DigestLength { len, expected: 32, algorithm: sha };
        assert_eq!(BlockHash::from_digest(sha, &vec![0; len]), Err(error));
    }
    assert!(BlockHash::from_digest(HashAlgorithm::Xxh3, &[0; 32]).is_err());
    let padded = vec![BlockHash::from_bytes([1; 32])];
    assert!(matches!(
        HashChain::from_digests(HashAlgorithm::Xxh3, 16, 0, padded.clone()),
        Err(HashError::DigestPadding { index: 0, digest_len: 16, .. })
    ));
    assert!(matches!(
        HashChain::from_digests(HashAlgorithm::Sha256, 0, 0, padded),
        Err(HashError::BlockSize { block_size: 0, .. })
    ));
}

#[test]
fn extra_keys_that_vllm_cannot_represent_are_refused() {
    let bytes = |bytes: &[u8]| Some(Box::<[u8]>::from(bytes));
    let default = ExtraKeys::default;
    let bad_item = MultimodalItem { identifier: (*b"a\xff").into(), offset: 0, length: 1 };
    let extras = [
        (ExtraKeys { tenant: bytes(b"t"), ..default() }, "a tenant"),
        (ExtraKeys { user: bytes(b"u"), ..default() }, "a user"),
        (ExtraKeys { salt: bytes(b""), ..default() }, "an empty salt"),
        (ExtraKeys { salt: bytes(b"\xff"), ..default() }, "the salt"),
        (
            ExtraKeys { adapter: Some(Adapter { id: (*b"\xff").into(), path: None }), ..default() },
            "the adapter id",
        ),
        (ExtraKeys { multimodal: vec![bad_item], ..default() }, "a multimodal identifier"),
    ];
    for algorithm in compiled_in() {
        let hasher = hasher(algorithm, 16, Verify::None);
        for (extra, field) in &extras {
            match hasher.check_extra(extra) {
                Ok(()) => assert!(!algorithm.is_vllm(), "{algorithm}: {field}"),
                Err(error) => {
                    assert!(algorithm.is_vllm());
                    assert!(error.to_string().contains(field), "{error}");
                    assert_eq!(hasher.root(extra), Err(error.clone()));
                    assert_eq!(HashCursor::new(Arc::clone(&hasher), extra.clone()).unwrap_err(), error);
                }
            }
        }
        assert_eq!(hasher.check_extra(&ExtraKeys { epoch: 9, ..default() }), Ok(()));
    }
}

#[cfg(feature = "vllm")]
#[test]
fn other_algorithms_than_vllms_are_refused() {
    let not_vllm = vllm::none_hash(HashAlgorithm::Sha256, None);
    assert_eq!(not_vllm, Err(HashError::NotVllm { algorithm: HashAlgorithm::Sha256 }));
    assert!(vllm::hash_block(HashAlgorithm::Xxh3, &[1], &[1], None).is_err());
    assert!(vllm::none_hash(HashAlgorithm::VllmXxhash, None).is_err());
}

#[cfg(feature = "blake3")]
#[test]
fn debug_hides_key_and_seed() {
    let config = HasherConfig {
        algorithm: HashAlgorithm::Blake3,
        key: Some([0x5a; 32]),
        seed: Some("open sesame".into()),
        verify: Verify::Fingerprint,
        ..HasherConfig::default()
    };
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let cursor = HashCursor::new(Arc::clone(&hasher), ExtraKeys::default()).unwrap();
    let text = format!("{hasher:?} {cursor:?}");
    assert!(!text.contains("sesame") && !text.contains("90, 90") && !text.contains("5a5a5a"), "{text}");
}

#[test]
fn seeds_and_keys_change_only_the_hashes_that_use_them() {
    let make = |algorithm, seed: Option<&str>, key| {
        let config = HasherConfig {
            algorithm,
            seed: seed.map(Into::into),
            key,
            verify: Verify::Fingerprint,
            ..HasherConfig::default()
        };
        BlockHasher::new(config).unwrap().root(&ExtraKeys::default()).unwrap()
    };
    for algorithm in compiled_in() {
        let (a, b) = (make(algorithm, Some("a"), None), make(algorithm, Some("b"), None));
        let seeded = !matches!(algorithm, HashAlgorithm::Sha256 | HashAlgorithm::Blake3);
        assert_eq!(a.digest() != b.digest(), seeded, "{algorithm}");
        assert_ne!(a.fingerprint(), b.fingerprint(), "{algorithm}");
    }
    if !HashAlgorithm::Blake3.is_compiled_in() {
        return;
    }
    let keys = [None, Some([0; 32]), Some([1; 32])].map(|key| make(HashAlgorithm::Blake3, None, key));
    for (i, a) in keys.iter().enumerate() {
        for b in &keys[..i] {
            assert!(a.digest() != b.digest() && a.fingerprint() != b.fingerprint());
        }
    }
}

#[test]
fn types_have_the_traits_and_sizes_that_callers_rely_on() {
    fn shared<T: Send + Sync + Clone + std::fmt::Debug>() {}
    shared::<BlockHasher>();
    shared::<HashCursor>();
    shared::<HashChain>();
    shared::<ExtraKeys>();
    assert!(Verify::None < Verify::Fingerprint && Verify::Fingerprint < Verify::Tokens);
    assert_eq!(size_of::<BlockHash>(), 32);
}

#[cfg(feature = "vllm")]
#[test]
fn rebase_rehashes_only_if_the_epoch_is_part_of_the_hash() {
    let rehashed = |algorithm, verify| {
        let mut cursor = HashCursor::new(hasher(algorithm, 4, verify), ExtraKeys::default()).unwrap();
        cursor.append(&[1; 10]);
        let old = cursor.chain().clone();
        cursor.rebase(0).unwrap();
        assert_eq!((cursor.hashed_blocks(), cursor.chain()), (2, &old));
        cursor.rebase(1).unwrap();
        assert_eq!(cursor.num_tokens(), 10);
        assert_eq!(cursor.chain().hashes() == old.hashes(), algorithm.is_vllm());
        assert_ne!(cursor.chain(), &old);
        cursor.hashed_blocks() - 2
    };
    assert_eq!(rehashed(HashAlgorithm::Sha256, Verify::None), 2);
    assert_eq!(rehashed(HashAlgorithm::VllmSha256, Verify::None), 0);
    assert_eq!(rehashed(HashAlgorithm::VllmSha256, Verify::Fingerprint), 2);
}

#[test]
fn hashes_of_a_range_in_another_epoch_are_those_of_a_rebased_cursor() {
    let item = MultimodalItem { identifier: (*b"image").into(), offset: 9, length: 6 };
    for algorithm in compiled_in() {
        for multimodal in [vec![], vec![item.clone()]] {
            for verify in [Verify::None, Verify::Fingerprint] {
                let extra = ExtraKeys { epoch: 3, multimodal: multimodal.clone(), ..ExtraKeys::default() };
                let mut cursor = HashCursor::new(hasher(algorithm, 4, verify), extra).unwrap();
                cursor.append(&(0..22).collect::<Vec<_>>());
                let mut rebased = cursor.clone();
                rebased.rebase(1).unwrap();
                let rebased = rebased.chain().hashes();
                for first in 0..=5_usize {
                    let before = first.checked_sub(1).map(|before| rebased[before]);
                    for end in first..=5 {
                        assert_eq!(cursor.hashes_in_epoch(1, first..end, before), rebased[first..end]);
                    }
                }
            }
        }
    }
}

/// Digests that are never equal would fail the first check. A digest that ignored the salt would fail
/// the second.
#[test]
fn different_salts_never_share_and_equal_salts_do() {
    for algorithm in compiled_in() {
        let hasher = hasher(algorithm, 4, Verify::None);
        let chain = |salt: &[u8]| {
            let extra = ExtraKeys { salt: Some(salt.into()), ..ExtraKeys::default() };
            let mut chain = HashChain::new(&hasher, extra.epoch);
            hasher.extend(&mut chain, &extra, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
            chain
        };
        assert_eq!(chain(b"a"), chain(b"a"));
        assert!(chain(b"a").hashes().iter().all(|hash| !chain(b"b").hashes().contains(hash)), "{algorithm}");
    }
}
