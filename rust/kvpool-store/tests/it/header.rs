//! Tests headers and namespaces: any bytes lead to a defined result, every flipped bit is detected, and
//! every field matters.

use std::collections::{BTreeMap, HashSet};

use kvpool::BlockHash;
use kvpool_store::{
    FORMAT_VERSION, HEADER_BYTES, Header, HeaderError, Layout, Mismatch, Namespace, NamespaceDigest,
    ObjectKey, Span, TokenRange,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn headers() -> impl Strategy<Value = (Header, Vec<u8>)> {
    (any::<[u8; 32]>(), any::<[u8; 32]>(), any::<u32>(), any::<u64>(), any::<u32>(), vec(any::<u8>(), 0..600))
        .prop_map(|(namespace, hash, group, first, count, payload)| {
            let key = ObjectKey { hash: BlockHash::from_bytes(hash), group };
            let tokens = TokenRange { first, count };
            (Header::of(NamespaceDigest::from_bytes(namespace), key, tokens, &payload).unwrap(), payload)
        })
}

/// Checks that `bytes` and `payload` are the object with this header.
fn is_object(wanted: &Header, bytes: &[u8], payload: &[u8]) -> Result<(), Mismatch> {
    let header = Header::decode(bytes)?;
    header.expect(wanted.namespace, wanted.key, wanted.len)?;
    header.verify(payload)
}

proptest! {
    #[test]
    fn a_written_snapshot_is_read((header, payload) in headers(), behind in vec(any::<u8>(), 0..50)) {
        let mut bytes = header.encode().to_vec();
        bytes.extend(behind);
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
        prop_assert_eq!(is_object(&header, &bytes, &payload), Ok(()));
    }

    #[test]
    fn any_bytes_are_answered(mut bytes in vec(any::<u8>(), 0..2 * HEADER_BYTES), magic: bool) {
        if magic {
            bytes.iter_mut().zip(b"kvpoolob").for_each(|(byte, magic)| *byte = *magic);
        }
        let decoded = Header::decode(&bytes);
        prop_assert!(decoded.is_err(), "{:?}", decoded);
    }

    #[test]
    fn every_flipped_bit_is_found((header, mut payload) in headers()) {
        let mut bytes = header.encode();
        for bit in 0..8 * HEADER_BYTES {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(is_object(&header, &bytes, &payload).is_err(), "bit {} of the header", bit);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..8 * payload.len() {
            payload[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(
                is_object(&header, &bytes, &payload),
                Err(Mismatch::Payload { wanted: header.checksum }),
                "bit {} of the payload", bit
            );
            payload[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn truncated_bytes_are_detected((header, payload) in headers(), cut in 0_usize..HEADER_BYTES) {
        let bytes = header.encode();
        prop_assert_eq!(Header::decode(&bytes[..cut]), Err(HeaderError::Short { len: cut }));
        let cut = cut.min(payload.len());
        if cut < payload.len() {
            let wanted = Mismatch::Length { found: cut as u32, wanted: header.len };
            prop_assert_eq!(header.verify(&payload[..cut]), Err(wanted));
        }
    }

    #[test]
    fn another_object_is_a_mismatch((one, _) in headers(), (other, _) in headers()) {
        let expect = |namespace, key, len| one.expect(namespace, key, len);
        prop_assert_eq!(expect(one.namespace, one.key, one.len), Ok(()));
        let wanted = other.namespace;
        prop_assert_eq!(
            expect(wanted, one.key, one.len), Err(Mismatch::Namespace { found: one.namespace, wanted })
        );
        prop_assert_eq!(
            expect(one.namespace, other.key, one.len),
                Err(Mismatch::Key { found: one.key, wanted: other.key })
        );
        let (found, wanted) = (one.len, one.len + 1);
        prop_assert_eq!(expect(one.namespace, one.key, wanted), Err(Mismatch::Length { found, wanted }));
        let group = ObjectKey { group: one.key.group ^ 1, ..one.key };
        prop_assert_eq!(
            expect(one.namespace, group, one.len), Err(Mismatch::Key { found: one.key, wanted: group })
        );
    }
}

#[test]
fn another_format_is_named() {
    let mut bytes = header_of(b"abc").encode();
    bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes());
    // This header has another format version but a correct checksum, so the error is the version, and not
    // damage.
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..HEADER_BYTES - 8]);
    bytes[HEADER_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Header::decode(&bytes), Err(HeaderError::Version { found: FORMAT_VERSION + 1 }));
    assert_eq!(Header::decode(&[0; HEADER_BYTES]), Err(HeaderError::Absent));
}

fn header_of(payload: &[u8]) -> Header {
    let key = ObjectKey { hash: BlockHash::from_bytes([7; 32]), group: 3 };
    Header::of(namespace().digest(), key, TokenRange { first: 32, count: 16 }, payload).unwrap()
}

/// The layout is fixed: every release with the same format version reads these bytes.
#[test]
fn the_layout_equals_the_documentation() {
    let header = header_of(b"abc");
    let bytes = header.encode();
    assert_eq!(bytes[..8], *b"kvpoolob");
    assert_eq!(bytes[8..16], [1, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[16..48], *header.namespace.as_bytes());
    assert_eq!(bytes[48..80], [7; 32]);
    assert_eq!(bytes[80..96], [32, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 3, 0, 0, 0]);
    assert_eq!(bytes[96..104], 0x78af_5f94_892f_3950_u64.to_le_bytes(), "XXH3-64 of abc, as published");
    assert_eq!(bytes.len(), 112);
}

fn namespace() -> Namespace {
    Namespace {
        model: "model".into(),
        weights: "revision".into(),
        kv_dtype: "bf16".into(),
        scales: String::new(),
        layouts: vec![Layout {
            group: 0,
            order: "LKNHD".into(),
            shape: vec![2, 2, 16, 8, 128],
            strides: vec![1, 2, 3],
        }],
        block_size: 16,
        layers: Span { first: 0, count: 32 },
        heads: Span { first: 0, count: 8 },
        hash_algorithm: "sha256".into(),
        hash_seed: vec![],
        extra: BTreeMap::new(),
    }
}

/// If any field changes, the digest changes. It also changes if text moves from one field to the next.
#[test]
fn every_field_of_a_namespace_counts() {
    let changes: [fn(&mut Namespace); 27] = [
        |_| {},
        |n| n.model.push('1'),
        |n| n.model.clear(),
        |n| n.weights.push('1'),
        |n| (n.model, n.weights) = ("modelrev".into(), "ision".into()),
        |n| n.kv_dtype.push('1'),
        |n| n.scales.push('1'),
        |n| (n.kv_dtype, n.scales) = (String::new(), "bf16".into()),
        |n| n.layouts.clear(),
        |n| n.layouts.push(n.layouts[0].clone()),
        |n| n.layouts[0].group = 1,
        |n| n.layouts[0].order = "LKHND".into(),
        |n| n.layouts[0].shape[0] = 4,
        |n| n.layouts[0].shape.truncate(4),
        |n| n.layouts[0].strides[2] = 4,
        |n| (n.layouts[0].shape, n.layouts[0].strides) = (vec![2, 2, 16, 8], vec![128, 1, 2, 3]),
        |n| n.block_size = 32,
        |n| n.layers.first = 1,
        |n| n.layers.count = 31,
        |n| (n.layers, n.heads) = (n.heads, n.layers),
        |n| n.heads.first = 8,
        |n| n.heads.count = 4,
        |n| n.hash_algorithm = "xxh3".into(),
        |n| n.hash_seed.push(0),
        |n| drop(n.extra.insert("engine".into(), "1".into())),
        |n| drop(n.extra.insert("engine1".into(), String::new())),
        |n| n.extra.extend([("a".into(), "b".into()), ("c".into(), "d".into())]),
    ];
    let digests: HashSet<_> = changes
        .iter()
        .map(|change| {
            let mut changed = namespace();
            change(&mut changed);
            changed.digest()
        })
        .collect();
    assert_eq!(digests.len(), changes.len());
}

/// A digest is the same on every host and in every release. Otherwise an update would make all stored
/// objects unreachable.
#[test]
fn the_digest_of_a_namespace_is_fixed() {
    // The digest of the documented encoding, computed by a program in another language.
    let digest = "f0c0f444c38777988f5dc5cc8e5eb60f6e0934f621728392dd2d51b33e256130";
    assert_eq!(namespace().digest().to_string(), digest);
}

#[test]
fn the_text_of_a_namespace_is_complete() {
    let namespace = Namespace { extra: [("engine".into(), "\"1\"\n".into())].into(), ..namespace() };
    let text = namespace.to_json();
    assert_eq!(Namespace::from_json(&text).unwrap(), namespace);
    // A missing field is different from an empty field. An unknown field may affect the bytes, so it is
    // refused.
    for wrong in
        [text.replace("\"scales\":\"\",", ""), text.replacen('{', "{\"new\":1,", 1), text.replace("16", "-1")]
    {
        assert!(Namespace::from_json(&wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_printed_digest_can_be_parsed() {
    let digest = namespace().digest();
    assert_eq!(digest.to_string().parse(), Ok(digest));
    let shown = digest.to_string();
    for wrong in
        ["", "00", &shown[1..], &format!("{shown}0"), &shown.replace(&shown[..1], "+"), &"é".repeat(32)]
    {
        assert!(wrong.parse::<NamespaceDigest>().is_err(), "{wrong}");
    }
}
