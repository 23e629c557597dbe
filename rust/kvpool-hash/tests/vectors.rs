//! The published test vectors: every digest and fingerprint equals the value that an independent Python
//! program computed.
//!
//! The program is `tools/make_hash_vectors.py`, which uses `hashlib`, `pickle`, `cbor2`, `xxhash` and
//! `blake3`. Because the values are fixed in a file, these tests also check property 19 of the design:
//! digests are equal in every process, on every host, and in every version of this crate.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::BTreeMap;
use std::sync::Arc;

use kvpool_hash::vllm::{self, Atom, ExtraTuple, ObjectId};
use kvpool_hash::{
    Adapter, BlockHash, BlockHasher, ExtraKeys, HashAlgorithm, HashChain, HashCursor, HasherConfig,
    MultimodalItem, Verify,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Document {
    none_hash: BTreeMap<String, String>,
    chains: Vec<Case>,
    vllm_blocks: Vec<VllmBlock>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    block_size: usize,
    tokens: Tokens,
    seed: Option<String>,
    key: Option<String>,
    extra: Extra,
    fingerprints: Vec<String>,
    digests: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Tokens {
    List(Vec<u32>),
    Formula { count: u64, mul: u64, add: u64, r#mod: u64 },
}

#[derive(Deserialize)]
struct Extra {
    adapter: Option<AdapterFields>,
    salt: Option<String>,
    tenant: Option<String>,
    #[serde(default)]
    epoch: u64,
    user: Option<String>,
    #[serde(default)]
    multimodal: Vec<Item>,
}

#[derive(Deserialize)]
struct AdapterFields {
    id: String,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    identifier: String,
    offset: u64,
    length: u64,
}

#[derive(Deserialize)]
struct VllmBlock {
    tokens: Tokens,
    extra: Option<Vec<Vec<Value>>>,
    digests: BTreeMap<String, String>,
}

fn document() -> Document {
    serde_json::from_str(include_str!("data/hash_vectors.json")).unwrap()
}

fn unhex(text: &str) -> Box<[u8]> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn digest(algorithm: HashAlgorithm, text: &str) -> BlockHash {
    BlockHash::from_digest(algorithm, &unhex(text)).unwrap()
}

impl Tokens {
    fn list(&self) -> Vec<u32> {
        match self {
            Self::List(tokens) => tokens.clone(),
            Self::Formula { count, mul, add, r#mod } => {
                (0..*count).map(|i| u32::try_from((i * mul + add) % r#mod).unwrap()).collect()
            }
        }
    }
}

impl Case {
    fn tokens(&self) -> Vec<u32> {
        self.tokens.list()
    }

    fn extra(&self) -> ExtraKeys {
        let optional = |text: &Option<String>| text.as_deref().map(unhex);
        ExtraKeys {
            adapter: self
                .extra
                .adapter
                .as_ref()
                .map(|a| Adapter { id: unhex(&a.id), path: a.path.as_deref().map(Into::into) }),
            salt: optional(&self.extra.salt),
            tenant: optional(&self.extra.tenant),
            epoch: self.extra.epoch,
            user: optional(&self.extra.user),
            multimodal: self
                .extra
                .multimodal
                .iter()
                .map(|i| MultimodalItem {
                    identifier: unhex(&i.identifier),
                    offset: i.offset,
                    length: i.length,
                })
                .collect(),
        }
    }

    fn hasher(&self, algorithm: &str, verify: Verify) -> BlockHasher {
        BlockHasher::new(HasherConfig {
            algorithm: algorithm.parse().unwrap(),
            block_size: self.block_size,
            verify,
            key: self.key.as_deref().map(|key| <[u8; 32]>::try_from(&*unhex(key)).unwrap()),
            seed: self.seed.clone(),
        })
        .unwrap()
    }
}

/// Calls `check` for every chain of the file and every algorithm of the chain. The arguments are the
/// chain, the name of the algorithm, and the expected digests, that of the empty prefix first.
fn for_each_chain(mut check: impl FnMut(&Case, &str, &[BlockHash])) {
    for case in document().chains {
        for (algorithm, digests) in &case.digests {
            let known: HashAlgorithm = algorithm.parse().unwrap();
            let expected: Vec<_> = digests.iter().map(|text| digest(known, text)).collect();
            check(&case, algorithm, &expected);
        }
    }
}

#[test]
fn digests_of_chains() {
    for_each_chain(|case, algorithm, expected| {
        let hasher = case.hasher(algorithm, Verify::None);
        let extra = case.extra();
        assert_eq!(hasher.root(&extra).unwrap().digest(), expected[0], "{}, {algorithm}, root", case.name);
        let mut chain = HashChain::new(&hasher, extra.epoch);
        hasher.extend(&mut chain, &extra, &case.tokens()).unwrap();
        assert_eq!(chain.hashes(), &expected[1..], "{}, {algorithm}", case.name);
        assert!(chain.fingerprints().is_empty());
    });
}

#[test]
fn digests_and_fingerprints_of_cursors() {
    for_each_chain(|case, algorithm, expected| {
        let fingerprints: Vec<_> =
            case.fingerprints.iter().map(|f| u128::from_le_bytes((*unhex(f)).try_into().unwrap())).collect();
        for verify in [Verify::Fingerprint, Verify::Tokens] {
            let hasher = Arc::new(case.hasher(algorithm, verify));
            let extra = case.extra();
            let root = hasher.root(&extra).unwrap();
            assert_eq!(root.fingerprint(), fingerprints[0], "{}, {algorithm}, root", case.name);
            let mut cursor = HashCursor::new(hasher, extra).unwrap();
            for part in case.tokens().chunks(case.block_size.div_ceil(2) + 1) {
                cursor.append(part);
            }
            assert_eq!(cursor.chain().hashes(), &expected[1..], "{}, {algorithm}", case.name);
            assert_eq!(cursor.chain().fingerprints(), &fingerprints[1..], "{}, {algorithm}", case.name);
            assert_eq!(cursor.chain().tokens(), case.tokens());
        }
    });
}

#[test]
fn digests_of_single_blocks() {
    for_each_chain(|case, algorithm, expected| {
        let hasher = case.hasher(algorithm, Verify::Fingerprint);
        let extra = case.extra();
        let mut state = hasher.root(&extra).unwrap();
        let mut start = 0;
        for (block, expected) in case.tokens().chunks(case.block_size).zip(&expected[1..]) {
            state = hasher.hash_block(&state, start, block, &extra).unwrap();
            assert_eq!(state.digest(), *expected, "{}, {algorithm}, token {start}", case.name);
            start += block.len() as u64;
        }
    });
}

#[test]
fn every_algorithm_has_twenty_vectors() {
    let mut counts = BTreeMap::new();
    for_each_chain(|_, algorithm, _| *counts.entry(algorithm.to_owned()).or_insert(0) += 1);
    for algorithm in HashAlgorithm::ALL {
        assert!(counts[algorithm.name()] >= 20, "{algorithm}: {counts:?}");
    }
}

fn tuples(extra: &[Vec<Value>]) -> Vec<ExtraTuple> {
    let atom = |value: &Value| match value {
        Value::Null => Atom::None,
        Value::Number(number) => Atom::Int(number.as_i64().unwrap()),
        Value::Array(parts) => {
            let repeats = usize::try_from(parts[2].as_u64().unwrap()).unwrap();
            let content = unhex(parts[1].as_str().unwrap()).repeat(repeats);
            let object = ObjectId(parts[3].as_u64().unwrap());
            match parts[0].as_str().unwrap() {
                "str" => Atom::str(std::str::from_utf8(&content).unwrap(), object),
                _ => Atom::bytes(&content, object),
            }
        }
        other => panic!("{other}"),
    };
    extra.iter().map(|tuple| tuple.iter().map(atom).collect()).collect()
}

#[test]
fn vllm_blocks_with_the_engines_own_extra_keys() {
    for block in document().vllm_blocks {
        let extra = block.extra.as_deref().map(tuples);
        let tokens = block.tokens.list();
        for (name, expected) in &block.digests {
            let algorithm: HashAlgorithm = name.parse().unwrap();
            let parent: Vec<u8> = (0..algorithm.digest_len() as u8).collect();
            let hash = vllm::hash_block(algorithm, &parent, &tokens, extra.as_deref()).unwrap();
            assert_eq!(
                hash,
                digest(algorithm, expected),
                "{name}, {} tokens, {:?}",
                tokens.len(),
                block.extra
            );
        }
    }
}

#[test]
fn none_hashes_that_vllm_publishes() {
    let sha256 = vllm::none_hash(HashAlgorithm::VllmSha256, None).unwrap();
    let cbor = vllm::none_hash(HashAlgorithm::VllmSha256Cbor, None).unwrap();
    let (sha256_text, cbor_text) = (format!("{sha256:?}"), format!("{cbor:?}"));
    assert!(sha256_text.starts_with("066b1e8987e0") && sha256_text.ends_with("71198"), "{sha256_text}");
    assert!(cbor_text.starts_with("9bd96a48") && cbor_text.ends_with("81eef0"), "{cbor_text}");
    let document = document();
    assert_eq!(document.none_hash["vllm-sha256"], sha256_text);
    assert_eq!(document.none_hash["vllm-sha256-cbor"], cbor_text);
}
