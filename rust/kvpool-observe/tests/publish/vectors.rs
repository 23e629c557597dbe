//! Compares the encoded events of every form with stored bytes. A separate script,
//! `tools/make_event_vectors.py`, made those bytes from the specification.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvpool::BlockHash;
use kvpool_observe::publish::{Digest, Event, Extra, Form, GroupName, HashForm, Label, encode};

const TIME: f64 = 1_700_000_000.5;
const TOKENS: [u32; 8] = [1, 2, 3, 4, 100_000, 6, 7, 8];

fn first() -> Digest {
    Digest::of_number(0xfedc_ba98_7654_3210)
}

fn second() -> Digest {
    Digest::of_number(0xdead_beef)
}

fn parent() -> Digest {
    Digest::of_number(0x0123_4567_89ab_cdef)
}

fn full() -> GroupName {
    GroupName { index: Some(0), kind: Some("full_attention".into()), window: None }
}

fn form(name: &str) -> Form {
    name.parse().unwrap()
}

fn vectors() -> BTreeMap<String, String> {
    serde_json::from_str(include_str!("vectors.json")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_vector_equals_the_encoders_output() {
    let (plain, none, full) = (Label::default(), GroupName::default(), full());
    let (one, two) = ([first()], [first(), second()]);
    let removed = Event::Removed { tier: 0, group: &full, hashes: &two };
    let minimal = Event::Stored {
        tier: 1,
        group: &none,
        hashes: &one,
        parent: None,
        tokens: &TOKENS[..4],
        block_tokens: 4,
        label: &plain,
        extra: &[],
    };
    let whole = |group, label, extra, tier| Event::Stored {
        tier,
        group,
        hashes: &two,
        parent: Some(parent()),
        tokens: &TOKENS,
        block_tokens: 4,
        label,
        extra,
    };
    let far_label = Label {
        lora_id: Some(7),
        lora_name: Some("sql".into()),
        session: Some("s1".into()),
        locality: Some("REMOTE".into()),
        ownership: Some("mooncake".into()),
        salt: Some("salt".into()),
    };
    let keys: Arc<[Extra]> =
        [Extra::Text("sql".into()), Extra::Item("mmhash0".into(), 0), Extra::Text("salt".into())].into();
    let far_keys = [Some(keys)];
    let far = Event::Stored {
        tier: 2,
        group: &full,
        hashes: &one,
        parent: Some(parent()),
        tokens: &TOKENS[..4],
        block_tokens: 4,
        label: &far_label,
        extra: &far_keys,
    };
    let bytes: [u8; 32] = std::array::from_fn(|at| at as u8);
    let whole_digest = [Digest::new(BlockHash::from_bytes(bytes), 32)];
    assert_eq!(whole_digest[0].last8(), 0x1819_1a1b_1c1d_1e1f);
    let as_bytes = Event::Stored {
        tier: 0,
        group: &none,
        hashes: &whole_digest,
        parent: None,
        tokens: &TOKENS[..4],
        block_tokens: 4,
        label: &plain,
        extra: &[],
    };
    let window = GroupName { index: Some(300), kind: Some("sliding_window".into()), window: Some(4096) };
    let sliding = Event::Stored {
        tier: 0,
        group: &window,
        hashes: &two[1..],
        parent: None,
        tokens: &TOKENS[..4],
        block_tokens: 4,
        label: &plain,
        extra: &[],
    };
    let root = Event::Stored {
        tier: 0,
        group: &full,
        hashes: &one,
        parent: None,
        tokens: &TOKENS[..4],
        block_tokens: 4,
        label: &plain,
        extra: &[],
    };
    let no_keys = [None, None];
    let session = Label { locality: None, ownership: None, lora_id: None, ..far_label.clone() };
    let two_events = whole(&full, &plain, &no_keys, 0);
    let gone = |tier| Event::Removed { tier, group: &full, hashes: &one };
    let written = [
        ("stored_vllm_like", form("vllm"), 0, vec![two_events]),
        ("stored_min_cpu", form("vllm"), 0, vec![minimal]),
        ("stored_lora_mm_salt_storage", form("vllm"), 1, vec![far]),
        ("removed_gpu", form("vllm"), 0, vec![removed]),
        ("cleared", form("vllm"), 0, vec![Event::Cleared]),
        ("stored_bytes_hash", form("vllm-bytes"), 0, vec![as_bytes]),
        ("mixed", form("vllm"), 0, vec![removed, minimal, Event::Cleared]),
        ("legacy_stored", form("vllm-array"), 0, vec![two_events]),
        ("legacy_removed", form("vllm-array"), 0, vec![removed]),
        ("legacy_cleared", form("vllm-array"), 0, vec![Event::Cleared]),
        ("stored_window", form("vllm"), 70_000, vec![sliding]),
        ("heartbeat", form("vllm"), 0, vec![]),
        ("sglang_stored", form("sglang"), 3, vec![whole(&full, &session, &far_keys[..0], 1)]),
        ("sglang_stored_plain", form("sglang"), 0, vec![whole(&full, &plain, &no_keys, 3)]),
        ("sglang_removed", form("sglang"), 0, vec![gone(2)]),
        ("sglang_legacy_stored", form("sglang-array"), 0, vec![root]),
        ("sglang_legacy_removed", form("sglang-array"), 0, vec![gone(0)]),
    ];
    let vectors = vectors();
    assert_eq!(vectors.len(), written.len());
    for (name, form, rank, events) in written {
        assert_eq!(hex(&encode(form, TIME, rank, &events)), vectors[name], "{name}");
    }
}

#[test]
fn forms_are_found_by_their_names_and_others_are_refused() {
    for (name, expected) in Form::NAMES {
        assert_eq!(form(name), expected);
    }
    assert_eq!(form("vllm-bytes").hashes, HashForm::Bytes);
    let refused = "Vllm".parse::<Form>().unwrap_err().to_string();
    assert_eq!(
        refused,
        "there is no form \"Vllm\": one of vllm, vllm-array, vllm-bytes, vllm-array-bytes, sglang, \
         sglang-array"
    );
}
