//! Properties 18 to 20: keys, digests, copies of a content.

use super::histories::*;
use super::*;

/// vllm#44701, #30931, #3264: adapters, salts or images that were left out of a hash, or mixed up in it, shared blocks.
/// Prompts with the same tokens and extra keys that differ in one field never share, and equal ones do.
#[test]
fn property_18_requests_share_only_if_every_extra_key_is_equal() {
    let bytes = |text: &str| Some(text.as_bytes().into());
    let adapter =
        |id: &str, path: Option<&str>| Some(Adapter { id: id.as_bytes().into(), path: path.map(Into::into) });
    let image = |identifier: &str, offset, length| MultimodalItem {
        identifier: identifier.as_bytes().into(),
        offset,
        length,
    };
    let none = ExtraKeys::default;
    // The same strings in every field, moved between fields, split differently, empty, absent.
    let native = [
        none(),
        ExtraKeys { salt: bytes(""), ..none() },
        ExtraKeys { salt: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("ab"), ..none() },
        ExtraKeys { tenant: bytes(""), ..none() },
        ExtraKeys { tenant: bytes("a"), ..none() },
        ExtraKeys { user: bytes("a"), ..none() },
        ExtraKeys { adapter: adapter("a", None), ..none() },
        ExtraKeys { adapter: adapter("b", None), ..none() },
        ExtraKeys { salt: bytes("a"), tenant: bytes("b"), ..none() },
        ExtraKeys { salt: bytes("b"), tenant: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("a"), tenant: bytes(""), ..none() },
        ExtraKeys { salt: bytes("a"), user: bytes("b"), ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 2)], ..none() },
        ExtraKeys { multimodal: vec![image("a", 1, 1)], ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 1), image("b", 1, 1)], ..none() },
        ExtraKeys { multimodal: vec![image("b", 0, 1), image("a", 1, 1)], ..none() },
        ExtraKeys { salt: bytes("a"), multimodal: vec![image("a", 0, 2)], ..none() },
    ];
    let vllm = [
        none(),
        ExtraKeys { salt: bytes("a"), ..none() },
        ExtraKeys { salt: bytes("ab"), ..none() },
        ExtraKeys { adapter: adapter("a", Some("p")), ..none() },
        ExtraKeys { adapter: adapter("p", Some("a")), ..none() },
        ExtraKeys { multimodal: vec![image("a", 0, 2)], ..none() },
        ExtraKeys { multimodal: vec![image("b", 0, 2)], ..none() },
        ExtraKeys { salt: bytes("a"), multimodal: vec![image("a", 0, 2)], ..none() },
    ];
    for &algorithm in HashAlgorithm::ALL {
        let extras = if algorithm.is_vllm() { &vllm[..] } else { &native };
        let verify = if algorithm.is_cryptographic() { Verify::None } else { Verify::Fingerprint };
        let seed = Some("0".into());
        let config =
            ManagerConfig { num_blocks: 200, block_size: B, algorithm, verify, seed, ..Default::default() };
        let mut manager = CacheManager::new(config).unwrap();
        let tokens = [1, 2, 3, 4, 5];
        for (at, extra) in extras.iter().enumerate() {
            let admission =
                manager.admit(at as i64, manager.prepare(&tokens, extra.clone()).unwrap()).unwrap();
            assert_eq!(
                admission.cached_tokens, 0,
                "{algorithm}: {extra:?} was given another request's blocks"
            );
            manager.commit(at as i64, 5).unwrap();
        }
        for (at, extra) in extras.iter().enumerate() {
            let admission =
                manager.admit(100 + at as i64, manager.prepare(&tokens, extra.clone()).unwrap()).unwrap();
            assert_eq!(
                admission.block_ids[..2],
                manager.block_table(at as i64).unwrap()[..2],
                "{algorithm}: {extra:?}"
            );
        }
        manager.check_invariants().unwrap();
    }
}

/// lmcache#2136, DingoCache#77: digests differed between processes, Python versions, hash seeds. These were computed by
/// another program, with Python's `hashlib`: see `docs/hashing.md`. All other vectors are in `data/hash_vectors.json`.
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

/// ovg-project/kvcached#401, nano#219: with two copies of a content, evicting one made the content unmatchable, or left an
/// entry that named a block with other content. Copies go in every order, by every way out.
#[test]
fn property_20_copies_of_a_content_can_go_in_any_order() {
    let chain = chain(&[1, 2, 3, 4]);
    for order in permutations(3) {
        for ways in 0..27 {
            let mut pool = pool(9);
            let copies: Vec<_> = (0..3).map(|_| fill(&mut pool, &[1, 2, 3, 4])).collect();
            for (nth, &copy) in order.iter().enumerate() {
                let table = &copies[copy];
                match ways / 3usize.pow(nth as u32) % 3 {
                    0 => {
                        pool.release_table(table).unwrap();
                        assert_eq!(pool.evict(table).unwrap(), 2);
                    }
                    1 => assert_eq!(pool.evict(table).unwrap(), 2), // while it is held
                    _ => {
                        // Evicted by an allocation of everything that nobody holds.
                        pool.release_table(table).unwrap();
                        pool.allocate(pool.num_available()).unwrap();
                    }
                }
                pool.check_invariants().unwrap();
                let left: Vec<_> = order[nth + 1..].iter().map(|&copy| &copies[copy]).collect();
                let found = pool.match_and_acquire(&chain, 2).unwrap();
                assert_eq!(
                    found.is_empty(),
                    left.is_empty(),
                    "{order:?}, {ways}: a copy is left and not found"
                );
                for (at, block) in found.iter().enumerate() {
                    assert!(
                        left.iter().any(|table| table[at] == *block),
                        "{order:?}, {ways}: {block:?} is not a copy"
                    );
                    assert_eq!(pool.hash_of(*block), Some(chain.hashes()[at]));
                }
                pool.release_table(&found).unwrap();
            }
            assert_eq!(pool.stats().registered, 0);
        }
    }
}

/// kvcached#401, nano#219, for the index in every small history: each registered block is found among the copies of its own
/// hash, and what a lookup returns carries the hash that was asked for.
#[test]
fn property_20_every_entry_names_a_block_with_its_hash() {
    every_history(4, |world, act, history| {
        world.act(act);
        world.pool.check_invariants().unwrap();
        let copies = world.copies();
        let found = world.pool.match_and_acquire(world.prompt(), 2).unwrap();
        for (block, hash) in found.iter().zip(world.prompt().hashes()) {
            assert_eq!(world.pool.hash_of(*block), Some(*hash), "{history:?}");
        }
        let expected = world.prompt().hashes().iter().take_while(|hash| copies.contains_key(hash)).count();
        assert_eq!(found.len(), expected, "{history:?}: a dangling or a lost entry");
    });
    // The index alone: no two chains share an entry, and a removed block leaves none.
    let mut index = PrefixIndex::new(8, B, Verify::None, false).unwrap();
    let (one, two) = (chain(&[1, 2]), chain(&[3, 4]));
    for (block, chain) in [(1, &one), (2, &two), (3, &one), (4, &one), (5, &two)] {
        index.insert(id(block), chain, 0).unwrap();
    }
    for order in permutations(3) {
        let mut index = index.clone();
        for (nth, &at) in order.iter().enumerate() {
            assert!(index.remove(id([1, 3, 4][at])));
            let left = index.copies(&one.hashes()[0]);
            assert_eq!(left.len(), 2 - nth);
            assert!(left.iter().all(|&block| index.hash_of(block) == Some(one.hashes()[0])));
            assert_eq!(raw(&index.copies(&two.hashes()[0])), [2, 5]);
            index.check_invariants().unwrap();
        }
        assert_eq!(index.num_hashes(), 1);
    }
}
