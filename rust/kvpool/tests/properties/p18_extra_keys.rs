//! Property 18: if the digests of the same tokens are equal, every field of their extra keys is equal:
//! adapter, salt, images, tenant, epoch.
//!
//! In vllm#44701, vllm#30931 and vllm#3264, requests with different keys shared blocks, because the
//! hash did not include a key, or did not distinguish keys.
//!
//! An implementation fails this test if it concatenates the bytes of the fields without tags and
//! lengths.
//!
//! `tests/properties.rs` of kvpool-hash tests random extra keys.

use super::*;

/// In vllm#44701, #30931 and #3264, requests with different adapters, salts or images shared blocks.
/// Prompts with the same tokens never share blocks if their extra keys differ in one field. If the keys
/// are equal, they share blocks.
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
    // The extra keys have equal strings in different fields, strings that are split differently, empty
    // strings, and absent fields.
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
