//! Property 18: equal digests of equal tokens imply equal extra keys, field by field: adapter, salt,
//! images, tenant, epoch.
//!
//! Bugs: vllm#44701, vllm#30931, vllm#3264: requests with different keys shared blocks, because keys
//! were left out of a hash or mixed up in it.
//!
//! Fails it: code that concatenates the fields' bytes without tags and lengths.
//!
//! `tests/properties.rs` of kvpool-hash tests random extra keys.

use super::*;

/// vllm#44701, #30931, #3264: adapters, salts or images that were left out of a hash, or mixed up in
/// it, shared blocks. Prompts with the same tokens whose extra keys differ in one field never share.
/// Equal ones do.
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
    // Equal strings in every field, moved between fields, split differently, empty, and absent.
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
