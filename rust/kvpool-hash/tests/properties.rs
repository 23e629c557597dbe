//! Tests of block hashing with random inputs. A cursor that is appended to in pieces of any size, or
//! truncated, has the same digests as one that got all tokens at once. Different extra keys always give
//! different digests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::collections::HashMap;
use std::sync::Arc;

use kvpool_hash::{
    Adapter, BlockHash, BlockHasher, ChainLink, ExtraKeys, HashAlgorithm, HashChain, HashCursor, HashError,
    HasherConfig, MultimodalItem, Verify,
};
use proptest::prelude::*;

const NATIVE: [HashAlgorithm; 3] = [HashAlgorithm::Sha256, HashAlgorithm::Blake3, HashAlgorithm::Xxh3];

fn config(algorithm: HashAlgorithm, block_size: usize, verify: Verify) -> HasherConfig {
    HasherConfig { algorithm, block_size, verify, key: None, seed: Some("seed".into()) }
}

fn hasher(algorithm: HashAlgorithm, block_size: usize, verify: Verify) -> Arc<BlockHasher> {
    Arc::new(BlockHasher::new(config(algorithm, block_size, verify)).unwrap())
}

/// Returns the chain of all full blocks of `tokens`, hashed in one call.
fn from_scratch(hasher: &BlockHasher, extra: &ExtraKeys, tokens: &[u32]) -> HashChain {
    let mut chain = HashChain::new(hasher, extra.epoch);
    let whole = tokens.len() / hasher.block_size() * hasher.block_size();
    hasher.extend(&mut chain, extra, &tokens[..whole]).unwrap();
    chain
}

/// Asserts that the cursor equals a cursor that got all of `tokens` at once.
fn assert_is(cursor: &HashCursor, tokens: &[u32]) {
    let chain = from_scratch(cursor.hasher(), cursor.extra(), tokens);
    assert_eq!(cursor.chain(), &chain);
    assert_eq!(cursor.num_tokens(), tokens.len());
    assert_eq!(cursor.tail(), &tokens[chain.tokens().len()..]);
    let read: Vec<_> = (0..tokens.len()).map(|i| cursor.token_at(i).unwrap()).collect();
    assert_eq!(read, tokens);
    assert_eq!(cursor.token_at(tokens.len()), None);
    for i in 0..chain.len() {
        let start = i * chain.block_size();
        assert_eq!(cursor.chain().block_tokens(i), Some(&tokens[start..start + chain.block_size()]));
    }
    assert_eq!(cursor.chain().block_tokens(chain.len()), None);
}

fn algorithms() -> impl Strategy<Value = HashAlgorithm> {
    prop::sample::select(HashAlgorithm::ALL)
}

fn verifies() -> impl Strategy<Value = Verify> {
    prop::sample::select(Verify::ALL)
}

fn tokens(max: usize) -> impl Strategy<Value = Vec<u32>> {
    let token =
        prop_oneof![0u32..30, 250u32..260, 65530u32..65540, 0x7fff_fff0u32..=0x8000_0010, any::<u32>()];
    prop::collection::vec(token, 0..max)
}

fn items() -> impl Strategy<Value = Vec<MultimodalItem>> {
    let item = ("[a-c]{0,2}", 0u64..60, 0u64..20).prop_map(|(identifier, offset, length)| MultimodalItem {
        identifier: identifier.into_bytes().into(),
        offset,
        length,
    });
    prop::collection::vec(item, 0..6)
}

fn late(offset: usize) -> MultimodalItem {
    MultimodalItem { identifier: (*b"late").into(), offset: offset as u64, length: 4 }
}

/// Generates short strings over two letters, so that different fields often contain equal strings.
fn field() -> impl Strategy<Value = Option<Box<[u8]>>> {
    prop::option::of("[ab]{0,2}".prop_map(|text| text.into_bytes().into()))
}

fn adapters() -> impl Strategy<Value = Option<Adapter>> {
    let path = prop::option::of("[ab]{0,2}".prop_map(Into::into));
    prop::option::of(("[ab]{0,2}", path).prop_map(|(id, path)| Adapter { id: id.into_bytes().into(), path }))
}

/// Generates extra keys that the native encoding can represent.
fn native_extras() -> impl Strategy<Value = ExtraKeys> {
    (adapters(), field(), field(), 0u64..3, field(), items()).prop_map(
        |(adapter, salt, tenant, epoch, user, multimodal)| ExtraKeys {
            adapter,
            salt,
            tenant,
            epoch,
            user,
            multimodal,
        },
    )
}

/// Generates extra keys that every encoding can represent.
fn common_extras() -> impl Strategy<Value = ExtraKeys> {
    native_extras().prop_map(|extra| ExtraKeys {
        tenant: None,
        user: None,
        salt: extra.salt.filter(|salt| !salt.is_empty()),
        ..extra
    })
}

#[derive(Debug, Clone)]
enum Op {
    Append(Vec<u32>),
    /// Appends tokens together with items. The offsets of the items are relative to the end of the
    /// existing tokens.
    AppendWith(Vec<u32>, Vec<MultimodalItem>),
    /// Tries to append an item that begins before the end of the existing tokens.
    AppendLate(Vec<MultimodalItem>, prop::sample::Index),
    /// Replaces the cursor by a clone of itself.
    Fork,
    Truncate(prop::sample::Index),
    Rebase(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => tokens(40).prop_map(Op::Append),
        2 => tokens(3).prop_map(Op::Append),
        4 => (tokens(40), items()).prop_map(|(tokens, items)| Op::AppendWith(tokens, items)),
        1 => (items(), any::<prop::sample::Index>()).prop_map(|(items, back)| Op::AppendLate(items, back)),
        1 => Just(Op::Fork),
        3 => any::<prop::sample::Index>().prop_map(Op::Truncate),
        1 => (0u64..4).prop_map(Op::Rebase),
    ];
    prop::collection::vec(op, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_split_of_appends_equals_from_scratch(
        algorithm in algorithms(), verify in verifies(), block_size in 1usize..20, extra in common_extras(),
        tokens in tokens(200), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let end = tokens.len();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(end + 1)).chain([0, end]).collect();
        cuts.sort_unstable();
        let mut cursor = HashCursor::new(hasher(algorithm, block_size, verify), extra).unwrap();
        let mut completed = 0;
        for pair in cuts.windows(2) {
            completed += cursor.append(&tokens[pair[0]..pair[1]]);
        }
        prop_assert_eq!(completed, cursor.chain().len());
        prop_assert_eq!(cursor.hashed_blocks(), completed as u64);
        assert_is(&cursor, &tokens);
    }

    /// A multimodal item may be added when the cursor is created, with the turn that appends its
    /// tokens, or with any turn in between. The digests are the same.
    #[test]
    fn a_cursor_built_in_turns_is_the_one_built_at_once(
        algorithm in algorithms(), verify in verifies(), block_size in 1usize..20, extra in common_extras(),
        tokens in tokens(90), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        turns in prop::collection::vec(any::<prop::sample::Index>(), 6),
    ) {
        let hasher = hasher(algorithm, block_size, verify);
        let end = tokens.len();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(end + 1)).chain([0, end]).collect();
        cuts.sort_unstable();
        // An item can be added in each turn that begins at or before the item's first token. Turn 0 is
        // the creation of the cursor.
        let mut bring = vec![Vec::new(); cuts.len()];
        for (item, turn) in extra.multimodal.iter().zip(&turns) {
            let last = cuts[..cuts.len() - 1].iter().filter(|&&cut| cut as u64 <= item.offset).count();
            bring[turn.index(last + 1)].push(item.clone());
        }
        let first = ExtraKeys { multimodal: bring[0].clone(), ..extra.clone() };
        let mut cursor = HashCursor::new(Arc::clone(&hasher), first).unwrap();
        let mut completed = 0;
        for (pair, items) in cuts.windows(2).zip(&bring[1..]) {
            completed += cursor.append_with(&tokens[pair[0]..pair[1]], items).unwrap();
        }
        prop_assert_eq!(cursor.chain(), &from_scratch(&hasher, &extra, &tokens));
        prop_assert_eq!((completed, cursor.hashed_blocks()), (cursor.chain().len(), completed as u64));
        assert_is(&cursor, &tokens);
        let mut once = HashCursor::new(hasher, extra).unwrap();
        once.append(&tokens);
        for cursor in [&mut cursor, &mut once] {
            cursor.append(&[7; 30]);
        }
        prop_assert_eq!(cursor.chain(), once.chain());
    }

    #[test]
    fn property_16_truncate_then_append_equals_from_scratch(
        algorithm in algorithms(), verify in verifies(), block_size in 1usize..20, extra in common_extras(),
        tokens in tokens(120), keep in any::<prop::sample::Index>(), more in tokens(60),
    ) {
        let mut cursor = HashCursor::new(hasher(algorithm, block_size, verify), extra).unwrap();
        cursor.append(&tokens);
        let hashed = cursor.hashed_blocks();
        let keep = keep.index(tokens.len() + 1);
        cursor.truncate(keep).unwrap();
        prop_assert_eq!(cursor.hashed_blocks(), hashed);
        assert_is(&cursor, &tokens[..keep]);
        cursor.append(&more);
        assert_is(&cursor, &[&tokens[..keep], &more].concat());
    }

    #[test]
    fn any_operations_equal_from_scratch(
        algorithm in algorithms(), verify in verifies(), block_size in 1usize..20, extra in common_extras(),
        ops in ops(),
    ) {
        let mut cursor = HashCursor::new(hasher(algorithm, block_size, verify), extra.clone()).unwrap();
        let (mut model, mut extra) = (Vec::new(), extra);
        for op in ops {
            match op {
                Op::Append(tokens) => {
                    let before = model.len() / block_size;
                    model.extend_from_slice(&tokens);
                    prop_assert_eq!(cursor.append(&tokens), model.len() / block_size - before);
                }
                Op::AppendWith(tokens, mut items) => {
                    let (before, end) = (model.len() / block_size, model.len() as u64);
                    items.iter_mut().for_each(|item| item.offset += end);
                    model.extend_from_slice(&tokens);
                    extra.multimodal.extend_from_slice(&items);
                    let completed = cursor.append_with(&tokens, &items).unwrap();
                    prop_assert_eq!(completed, model.len() / block_size - before);
                }
                Op::AppendLate(mut items, back) => {
                    let len = model.len();
                    items.iter_mut().for_each(|item| item.offset += len as u64);
                    if len > 0 {
                        let (index, offset) = (items.len(), back.index(len) as u64);
                        items.push(late(offset as usize));
                        let error = HashError::ItemAppended { index, offset, len };
                        prop_assert_eq!(cursor.append_with(&[1; 20], &items), Err(error));
                    }
                }
                Op::Fork => {
                    let fork = cursor.clone();
                    cursor.append_with(&[1; 20], &[late(model.len())]).unwrap();
                    cursor.truncate(0).unwrap();
                    cursor = fork;
                }
                Op::Truncate(keep) => {
                    let (keep, end) = (keep.index(model.len() + 1), model.len() as u64);
                    model.truncate(keep);
                    extra.multimodal.retain(|item| item.offset < keep as u64 || item.offset >= end);
                    cursor.truncate(keep).unwrap();
                }
                Op::Rebase(epoch) => {
                    extra.epoch = epoch;
                    cursor.rebase(epoch).unwrap();
                    prop_assert_eq!(cursor.chain().epoch(), epoch);
                }
            }
            prop_assert_eq!(cursor.extra(), &extra);
            prop_assert_eq!(cursor.epoch(), extra.epoch);
            assert_is(&cursor, &model);
        }
    }

    /// Two requests have equal tokens. Their native digests, and their fingerprints under every
    /// algorithm, are equal only if all of their extra keys are equal.
    #[test]
    fn property_18_extras_are_injective(
        native in prop::sample::select(&NATIVE[..]),
        extras in prop::collection::vec(native_extras(), 2..8),
    ) {
        let hasher = hasher(native, 4, Verify::Fingerprint);
        // Removes the differences between lists of items that the digests do not contain: the order of
        // items at one position, and empty items at the start of a block or after the last token. An
        // empty item inside of a block is part of its message.
        let canonical = |extra: &ExtraKeys| {
            let mut extra = extra.clone();
            extra.multimodal.retain(|i| i.offset < 80 && (i.length > 0 || !i.offset.is_multiple_of(4)));
            extra.multimodal.sort_by_key(|i| (i.offset, i.length, i.identifier.clone()));
            extra
        };
        let tokens = vec![9u32; 80];
        let states: Vec<_> = extras.iter().map(|extra| {
            let chain = from_scratch(&hasher, extra, &tokens);
            let (hash, fingerprint) = (chain.hashes()[19], chain.fingerprints()[19]);
            (canonical(extra), hasher.root(extra).unwrap(), hash, fingerprint)
        }).collect();
        for a in &states {
            for b in &states {
                prop_assert_eq!(a.0 == b.0, a.2 == b.2, "{:?}\n{:?}", a.0, b.0);
                prop_assert_eq!(a.0 == b.0, a.3 == b.3, "{:?}\n{:?}", a.0, b.0);
                let request_level = |e: &ExtraKeys| ExtraKeys { multimodal: Vec::new(), ..e.clone() };
                let same_request = request_level(&a.0) == request_level(&b.0);
                prop_assert_eq!(same_request, a.1.digest() == b.1.digest());
                prop_assert_eq!(same_request, a.1.fingerprint() == b.1.fingerprint());
            }
        }
    }

    /// Two blocks have equal digests only if they have the same position and the same tokens up to
    /// their end.
    #[test]
    fn digests_differ_where_prefixes_differ(algorithm in algorithms(), a in tokens(40), b in tokens(40)) {
        let hasher = hasher(algorithm, 4, Verify::None);
        let extra = ExtraKeys::default();
        let (x, y) = (from_scratch(&hasher, &extra, &a), from_scratch(&hasher, &extra, &b));
        for i in 0..x.len() {
            for j in 0..y.len() {
                let same = i == j && a[..4 * i + 4] == b[..4 * j + 4];
                prop_assert_eq!(x.hashes()[i] == y.hashes()[j], same);
            }
        }
    }

    #[test]
    fn names_round_trip(algorithm in algorithms(), verify in verifies(), bytes in any::<[u8; 32]>()) {
        prop_assert_eq!(algorithm.name().parse(), Ok(algorithm));
        prop_assert_eq!(verify.name().parse(), Ok(verify));
        let hash = BlockHash::from_bytes(bytes);
        prop_assert_eq!(BlockHash::from_digest(HashAlgorithm::Sha256, hash.as_bytes()).unwrap(), hash);
        prop_assert_eq!(hash.digest(algorithm), &bytes[..algorithm.digest_len()]);
    }
}

/// One string is used as the value of each extra key, in all combinations. All digests of the empty
/// prefix differ.
#[test]
fn property_18_the_same_string_in_different_fields() {
    let same = || Some(Box::<[u8]>::from(*b"same"));
    let mut extras = Vec::new();
    for mask in 0u32..64 {
        let on = |bit: u32| mask >> bit & 1 == 1;
        if on(1) && !on(0) {
            continue; // A path needs an adapter.
        }
        extras.push(ExtraKeys {
            adapter: on(0).then(|| Adapter { id: (*b"same").into(), path: on(1).then(|| "same".into()) }),
            salt: same().filter(|_| on(2)),
            tenant: same().filter(|_| on(3)),
            epoch: u64::from(on(4)),
            user: same().filter(|_| on(5)),
            multimodal: Vec::new(),
        });
    }
    for algorithm in NATIVE {
        let hasher = hasher(algorithm, 4, Verify::Fingerprint);
        let (mut digests, mut fingerprints) = (HashMap::new(), HashMap::new());
        for extra in &extras {
            let root = hasher.root(extra).unwrap();
            assert_eq!(digests.insert(root.digest(), extra), None);
            assert_eq!(fingerprints.insert(root.fingerprint(), extra), None);
        }
    }
}

/// In vLLM's encodings, the same string as adapter, item and salt gives three different digests. None
/// of them equals the digest without extra keys.
#[test]
fn property_18_fields_of_vllm_encodings() {
    for &algorithm in HashAlgorithm::ALL.iter().filter(|a| a.is_vllm()) {
        let hasher = hasher(algorithm, 4, Verify::Fingerprint);
        let adapter =
            |path: Option<&str>| Some(Adapter { id: (*b"same").into(), path: path.map(Into::into) });
        let extras = [
            ExtraKeys::default(),
            ExtraKeys { adapter: adapter(None), ..ExtraKeys::default() },
            ExtraKeys { adapter: adapter(Some("same")), ..ExtraKeys::default() },
            ExtraKeys { salt: Some((*b"same").into()), ..ExtraKeys::default() },
            ExtraKeys {
                multimodal: vec![MultimodalItem { identifier: (*b"same").into(), offset: 0, length: 4 }],
                ..ExtraKeys::default()
            },
        ];
        let mut seen = HashMap::new();
        for extra in &extras {
            let chain = from_scratch(&hasher, extra, &[1, 2, 3, 4]);
            assert_eq!(seen.insert(chain.hashes()[0], extra), None);
        }
    }
}

#[test]
fn property_19_digests_do_not_depend_on_process_state() {
    // Each hasher is made separately, on different threads and in different orders. `tests/vectors.rs`
    // compares the digests with published values.
    let tokens: Vec<u32> = (0..64).collect();
    for &algorithm in HashAlgorithm::ALL {
        let make = || {
            let hasher = hasher(algorithm, 16, Verify::Tokens);
            from_scratch(&hasher, &ExtraKeys::default(), &tokens)
        };
        let here = make();
        let threads: Vec<_> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            handles.into_iter().map(|handle| handle.join().unwrap()).collect()
        });
        assert!(threads.iter().all(|chain| *chain == here), "{algorithm}");
    }
}

#[test]
fn an_append_that_completes_no_block_hashes_nothing() {
    for &algorithm in HashAlgorithm::ALL {
        let mut cursor =
            HashCursor::new(hasher(algorithm, 16, Verify::Fingerprint), ExtraKeys::default()).unwrap();
        for token in 0..15 {
            assert_eq!(cursor.append(&[token]), 0);
            assert_eq!(cursor.append(&[]), 0);
            assert_eq!(cursor.hashed_blocks(), 0);
        }
        assert_eq!(cursor.append(&[15]), 1);
        assert_eq!(cursor.hashed_blocks(), 1);
        assert_eq!(cursor.append(&[0; 15]), 0);
        assert_eq!(cursor.hashed_blocks(), 1);
        assert_eq!(cursor.append(&[0; 33]), 3);
        assert_eq!(cursor.hashed_blocks(), 4);
    }
}

/// Invalid items of a later turn are refused in the same way as invalid items of a prompt. The cursor
/// is unchanged afterwards.
#[test]
fn items_that_a_turn_cannot_bring_change_nothing() {
    for &algorithm in HashAlgorithm::ALL {
        let extra = ExtraKeys { multimodal: vec![late(6)], ..ExtraKeys::default() };
        let mut cursor = HashCursor::new(hasher(algorithm, 4, Verify::Fingerprint), extra.clone()).unwrap();
        cursor.append(&[1, 2, 3, 4, 5]);
        let late = |offset| late(offset as usize);
        let endless = MultimodalItem { length: u64::MAX, ..late(5) };
        let no_text = MultimodalItem { identifier: (*b"\xff").into(), ..late(5) };
        let appended = |index, offset| HashError::ItemAppended { index, offset, len: 5 };
        let mut refused = vec![
            (vec![late(4)], appended(0, 4)),
            (vec![late(9), late(5), late(0)], appended(2, 0)),
            (
                vec![late(5), endless],
                HashError::ItemRange { index: 1, offset: 5, length: u64::MAX, max: i64::MAX as u64 },
            ),
        ];
        if algorithm.is_vllm() {
            let field = "a multimodal identifier";
            refused.push((vec![no_text], HashError::ExtraNotUtf8 { algorithm, field, valid_up_to: 0 }));
        }
        for (items, error) in refused {
            assert_eq!(cursor.append_with(&[6, 7, 8], &items), Err(error));
            assert_eq!((cursor.extra(), cursor.hashed_blocks()), (&extra, 1));
            assert_is(&cursor, &[1, 2, 3, 4, 5]);
        }
        assert_eq!(cursor.append_with(&[6, 7, 8], &[late(5)]), Ok(1));
        assert_eq!(cursor.extra().multimodal, [late(6), late(5)]);
    }
    assert_eq!(
        HashError::ItemAppended { index: 2, offset: 0, len: 5 }.to_string(),
        "multimodal item 2 begins at token 0, must begin at token 5 or later: earlier \
         tokens are already appended"
    );
}

#[test]
fn truncation_before_an_item_removes_it() {
    let extra = ExtraKeys { multimodal: vec![late(2), late(5), late(9)], ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(hasher(HashAlgorithm::Sha256, 4, Verify::None), extra).unwrap();
    cursor.append(&[0; 8]);
    cursor.truncate(6).unwrap();
    assert_eq!(cursor.extra().multimodal, [late(2), late(5), late(9)]);
    cursor.truncate(5).unwrap();
    assert_eq!(cursor.extra().multimodal, [late(2), late(9)]);
    let (cut, text) = (cursor.chain().clone(), from_scratch(cursor.hasher(), &ExtraKeys::default(), &[0; 4]));
    assert_ne!(cut, text);
    cursor.truncate(0).unwrap();
    assert_eq!(cursor.extra().multimodal, [late(9)]);
    cursor.append(&[0; 4]);
    assert_eq!(cursor.chain(), &text);
}

#[test]
fn errors_leave_everything_unchanged() {
    let hasher = hasher(HashAlgorithm::Sha256, 4, Verify::Fingerprint);
    let extra = ExtraKeys::default();
    let mut cursor = HashCursor::new(Arc::clone(&hasher), extra.clone()).unwrap();
    cursor.append(&[1, 2, 3, 4, 5]);
    let error = cursor.truncate(6).unwrap_err();
    assert_eq!(error, HashError::TruncateBeyondEnd { requested: 6, len: 5 });
    assert_eq!(error.to_string(), "cannot truncate to 6 tokens: there are 5");
    assert_is(&cursor, &[1, 2, 3, 4, 5]);
    cursor.truncate(5).unwrap();

    let mut chain = from_scratch(&hasher, &extra, &[1, 2, 3, 4]);
    let before = chain.clone();
    let other_epoch = ExtraKeys { epoch: 1, ..ExtraKeys::default() };
    let far = MultimodalItem { identifier: (*b"i").into(), offset: u64::MAX, length: 1 };
    let far = ExtraKeys { multimodal: vec![far], ..ExtraKeys::default() };
    assert_eq!(
        hasher.extend(&mut chain, &extra, &[1; 5]),
        Err(HashError::NotBlockAligned { tokens: 5, block_size: 4 })
    );
    assert!(matches!(
        hasher.extend(&mut chain, &other_epoch, &[1; 4]),
        Err(HashError::ChainMismatch { what: "epoch", .. })
    ));
    assert!(matches!(hasher.extend(&mut chain, &far, &[1; 4]), Err(HashError::ItemRange { index: 0, .. })));
    for (other, what) in [
        (self::hasher(HashAlgorithm::Blake3, 4, Verify::Fingerprint), "algorithm"),
        (self::hasher(HashAlgorithm::Sha256, 2, Verify::Fingerprint), "block size"),
    ] {
        let error = other.extend(&mut chain, &extra, &[1; 4]).unwrap_err();
        assert!(matches!(error, HashError::ChainMismatch { what: w, .. } if w == what), "{error}");
    }
    let without_fingerprints = self::hasher(HashAlgorithm::Sha256, 4, Verify::None);
    assert_eq!(
        without_fingerprints.extend(&mut chain, &extra, &[1; 4]),
        Err(HashError::ChainNotExtendable { blocks: 1 })
    );
    assert_eq!(chain, before);

    let mut elsewhere =
        HashChain::from_digests(HashAlgorithm::Sha256, 4, 0, vec![BlockHash::from_bytes([1; 32])]).unwrap();
    assert_eq!(
        hasher.extend(&mut elsewhere, &extra, &[1; 4]),
        Err(HashError::ChainNotExtendable { blocks: 1 })
    );

    let root = hasher.root(&extra).unwrap();
    assert!(matches!(hasher.hash_block(&root, 0, &[1; 3], &extra), Err(HashError::NotOneBlock { .. })));
    assert!(matches!(hasher.hash_block(&root, 3, &[1; 4], &extra), Err(HashError::BlockStart { .. })));
}

#[test]
fn what_is_hashed_behind_a_link_from_a_digest_is_what_its_chain_says() {
    let image = MultimodalItem { identifier: (*b"image").into(), offset: 3, length: 2 };
    let extra =
        ExtraKeys { salt: Some((*b"s").into()), multimodal: vec![image], epoch: 4, ..ExtraKeys::default() };
    for algorithm in NATIVE {
        let hasher = hasher(algorithm, 2, Verify::None);
        let tokens: Vec<u32> = (0..8).collect();
        let chain = from_scratch(&hasher, &extra, &tokens);
        let mut before: Option<ChainLink> = None;
        for (depth, block) in tokens.chunks(2).enumerate() {
            let link = ChainLink::new(&hasher, before.as_ref(), block, &extra).unwrap();
            let parent = before.as_ref().map(|parent| (parent.hash(), parent.depth()));
            let made = ChainLink::from_digest(algorithm, 4, chain.hashes()[depth], parent, block).unwrap();
            assert!(made == link, "{algorithm} at depth {depth}");
            before = Some(made);
        }
    }
}

#[test]
fn a_link_from_a_digest_has_tokens_and_no_padding() {
    let hash = BlockHash::from_digest(HashAlgorithm::Sha256, &[7; 32]).unwrap();
    let zero = BlockHash::from_digest(HashAlgorithm::Sha256, &[0; 32]).unwrap();
    let none = ChainLink::from_digest(HashAlgorithm::Sha256, 0, hash, None, &[]);
    assert!(matches!(none, Err(HashError::NotOneBlock { tokens: 0, .. })));
    for (hash, parent) in [(hash, None), (zero, Some((hash, 0)))] {
        let padded = ChainLink::from_digest(HashAlgorithm::Xxh3, 0, hash, parent, &[1]);
        assert!(matches!(padded, Err(HashError::DigestPadding { .. })));
    }
    let deep = ChainLink::from_digest(HashAlgorithm::Sha256, 0, hash, Some((hash, u32::MAX)), &[1]).unwrap();
    assert_eq!(deep.depth(), u32::MAX);
}
