//! Tests that printed text contains no secret: neither `Debug` nor an error shows a key, a seed, a
//! salt, a tenant, a user or a token.
//!
//! Applications write objects to logs, alone or nested in each other. So this test prints all objects
//! and searches the text for secrets.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::fmt::Debug;

use kvpool::hash::{Adapter, HashAlgorithm, HashChain, MultimodalItem, Verify};
use kvpool::{
    BlockHasher, BlockPool, CacheManager, ExtraKeys, HashCursor, HasherConfig, ManagerConfig, PoolConfig,
};
use kvpool_observe::{AdvisorConfig, ExplainConfig, ManagerWatch, ManagerWatchConfig};

const KEY: [u8; 32] = [0xa7; 32];
const SEED: &str = "seed-of-them-all";
const SALT: &[u8] = b"salt-of-the-gateway";
const TENANT: &[u8] = b"tenant-acme";
const USER: &[u8] = b"user-mallory";
const FIRST_TOKEN: u32 = 4_070_809_000;
const TOKENS: u32 = 10;

fn prompt() -> Vec<u32> {
    (FIRST_TOKEN..FIRST_TOKEN + TOKENS).collect()
}

fn extra() -> ExtraKeys {
    ExtraKeys {
        salt: Some(SALT.into()),
        tenant: Some(TENANT.into()),
        user: Some(USER.into()),
        multimodal: vec![MultimodalItem { identifier: USER.into(), offset: 1, length: 2 }],
        ..ExtraKeys::default()
    }
}

fn config() -> ManagerConfig {
    ManagerConfig {
        num_blocks: 20,
        block_size: 4,
        algorithm: HashAlgorithm::Blake3,
        verify: Verify::Tokens,
        key: Some(KEY),
        seed: Some(SEED.to_owned()),
        host_blocks: 10,
        ..ManagerConfig::default()
    }
}

/// Returns a manager with all of its observers. `Debug` prints the observers with the manager.
fn manager() -> CacheManager {
    let watch = ManagerWatchConfig {
        event_capacity: 10,
        digest: true,
        advisor: Some(AdvisorConfig::default()),
        explain: Some(ExplainConfig::default()),
        ..ManagerWatchConfig::default()
    };
    CacheManager::new(config()).unwrap().watched(&watch).unwrap()
}

/// Returns the forms in which `Debug` and `Display` may show bytes: as text, as numbers, as hexadecimal
/// digits.
fn shapes(bytes: &[u8]) -> Vec<String> {
    let numbers: Vec<_> = bytes.iter().map(ToString::to_string).collect();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    vec![String::from_utf8_lossy(bytes).into_owned(), numbers.join(", "), hex]
}

/// Returns all secrets in all forms. The test uses `Verify::Tokens`, because then the pool stores every
/// kind of secret.
fn secrets() -> Vec<String> {
    let bytes = [&KEY[..], SEED.as_bytes(), SALT, TENANT, USER];
    let tokens = prompt().into_iter().map(|token| token.to_string());
    bytes.iter().flat_map(|bytes| shapes(bytes)).chain(tokens).collect()
}

fn found(text: &str) -> Vec<String> {
    secrets().into_iter().filter(|secret| text.contains(secret.as_str())).collect()
}

fn assert_tells_nothing(what: &str, object: &dyn Debug) {
    // `{:#?}` prints each element on its own line. Its lines are joined, so that the same search works
    // for both forms.
    let pretty: Vec<_> = format!("{object:#?}").lines().map(|line| line.trim().to_owned()).collect();
    for text in [format!("{object:?}"), pretty.join(" ").replace(",]", "]")] {
        assert_eq!(found(&text), Vec::<String>::new(), "{what}: {text}");
    }
}

#[test]
fn the_search_finds_what_a_derived_debug_would_show() {
    let salt: Box<[u8]> = SALT.into();
    let shown = format!("{:?} {:#?} {:?} {SEED:?}", prompt(), Some(1), salt);
    assert_eq!(found(&shown).len(), TOKENS as usize + 2);
    assert_eq!(found(&format!("{KEY:02x?}").replace(", ", "")).len(), 1);
}

#[test]
fn hashing_prints_no_secret() {
    let hasher = HasherConfig {
        algorithm: HashAlgorithm::Blake3,
        key: Some(KEY),
        seed: Some(SEED.to_owned()),
        verify: Verify::Tokens,
        block_size: 4,
    };
    assert_tells_nothing("config", &hasher);
    for &algorithm in HashAlgorithm::ALL {
        let hasher = BlockHasher::new(HasherConfig { algorithm, ..hasher.clone() }).unwrap();
        assert_tells_nothing("hasher", &hasher);
    }
    let hasher = std::sync::Arc::new(BlockHasher::new(hasher).unwrap());
    let mut cursor = HashCursor::new(hasher, extra()).unwrap();
    cursor.append(&prompt());
    assert_tells_nothing("extra keys", &extra());
    assert_tells_nothing("cursor", &cursor);
    assert_tells_nothing("chain", cursor.chain());
    assert!(!cursor.chain().tokens().is_empty(), "the chain has tokens to hide");
    // The name of an adapter is shown, because the operator chooses it. An engine must not put parts of
    // a prompt into it.
    let adapter = Adapter { id: (*b"sha256:93b1").into(), path: Some("adapters/sql".into()) };
    assert!(format!("{:?}", ExtraKeys { adapter: Some(adapter), ..extra() }).contains("adapters/sql"));
}

#[test]
fn managers_and_pools_print_no_secret() {
    let mut manager = manager();
    assert_tells_nothing("config", &config());
    let cursor = manager.prepare(&prompt(), extra()).unwrap();
    manager.admit("request-1", cursor).unwrap();
    manager.commit("request-1", 9).unwrap();
    assert_tells_nothing("manager", &manager);
    assert_tells_nothing("events", &manager.pool().stats());

    let cursor = manager.prepare(&prompt(), extra()).unwrap();
    assert_eq!(manager.probe(&cursor).unwrap().cached_blocks, 2, "there is something to hide");
    let mut pool = BlockPool::new(PoolConfig {
        num_blocks: 10,
        block_size: 4,
        verify: Verify::Tokens,
        ..PoolConfig::default()
    })
    .unwrap();
    let blocks = pool.allocate(2).unwrap();
    pool.register(&blocks, cursor.chain(), 0).unwrap();
    assert_tells_nothing("pool", &pool);
}

#[test]
fn refusals_print_no_secret() {
    let mut manager = manager();
    let cursor = manager.prepare(&prompt(), extra()).unwrap();
    manager.admit("request-1", cursor).unwrap();
    // The id is already in use. The error contains the prompt, so its text must not show the prompt's
    // secrets.
    let cursor = manager.prepare(&prompt(), extra()).unwrap();
    let refused = manager.admit("request-1", cursor).unwrap_err();
    assert_tells_nothing("refusal", &refused);
    assert_eq!(found(&refused.to_string()), Vec::<String>::new());
    // Errors for invalid extra keys and configurations.
    let vllm =
        BlockHasher::new(HasherConfig { algorithm: HashAlgorithm::VllmSha256, ..HasherConfig::default() })
            .unwrap();
    let unkeyed = HasherConfig { key: Some(KEY), seed: Some(SEED.to_owned()), ..HasherConfig::default() };
    let digests = HashChain::from_digests(HashAlgorithm::Xxh3, 4, 0, vec![KEY.into()]).unwrap_err();
    let errors = [vllm.check_extra(&extra()).unwrap_err(), BlockHasher::new(unkeyed).unwrap_err(), digests];
    for error in errors {
        assert_tells_nothing("error", &error);
        assert_eq!(found(&error.to_string()), Vec::<String>::new());
    }
}
