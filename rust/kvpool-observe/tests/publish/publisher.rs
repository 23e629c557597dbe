//! Tests the sequence numbers, first batches, gaps, heartbeats and replays of a publisher, and the
//! extra keys of blocks.

use std::sync::Arc;

use kvpool_observe::publish::{
    Digest, Extra, Form, Group, GroupName, Keys, Label, Publisher, PublisherError, SinkConfig, base,
};

const START: u64 = 1_700_000_000;

fn publisher() -> Publisher {
    let name = GroupName { index: Some(0), kind: Some("full_attention".into()), window: None };
    Publisher::new(vec![Group { name, block_tokens: 2, chained: true }], 0, base(START)).unwrap()
}

/// Stores a chain of `contents` contents, numbered from 1.
fn chain(publisher: &mut Publisher, contents: u64) {
    for at in 1..=contents {
        let parent = (at > 1).then(|| Digest::of_number(at - 1));
        publisher.stored(0, 0, Digest::of_number(at), parent, Some(&[at as u32, 0]));
    }
}

fn has(payload: &[u8], text: &str) -> bool {
    payload.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn numbers_begin_at_the_base_of_the_start_and_the_first_word_is_cleared() {
    let mut publisher = publisher();
    let sink = publisher.add(SinkConfig::default());
    assert_eq!(publisher.snapshot(sink, 0.0).unwrap().cut, None);
    let first = publisher.flush(1.0, 5.0);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].number, START << 20);
    assert!(has(&first[0].payload, "AllBlocksCleared"));
    chain(&mut publisher, 3);
    let second = publisher.flush(2.0, 5.0);
    assert_eq!(second.len(), 1);
    assert_eq!(second[0].number, (START << 20) + 1);
    assert!(!has(&second[0].payload, "AllBlocksCleared"));
    // If the worker restarts a second later, all its batch numbers are higher than those that it can
    // have used before.
    assert!(base(START + 1) > second[0].number + 1_000_000);
}

#[test]
fn a_lost_batch_leaves_a_gap_and_everything_is_published_again() {
    let mut publisher = publisher();
    let (one, other) = (publisher.add(SinkConfig::default()), publisher.add(SinkConfig::default()));
    publisher.flush(1.0, 5.0);
    chain(&mut publisher, 2);
    let lost = publisher.flush(2.0, 5.0);
    assert_eq!(lost.iter().map(|batch| batch.sink).collect::<Vec<_>>(), [one, other]);
    assert!(Arc::ptr_eq(&lost[0].payload, &lost[1].payload));
    publisher.lost(other).unwrap();
    publisher.lost(other).unwrap(); // reported a second time
    let anew = publisher.flush(3.0, 5.0);
    assert_eq!(anew.len(), 1);
    assert_eq!((anew[0].sink, anew[0].number), (other, lost[1].number + 2));
    assert!(has(&anew[0].payload, "AllBlocksCleared") && has(&anew[0].payload, "BlockStored"));
    publisher.removed(0, 0, Digest::of_number(2));
    let both = publisher.flush(4.0, 5.0);
    assert_eq!(
        both.iter().map(|batch| batch.number).collect::<Vec<_>>(),
        [lost[0].number + 1, anew[0].number + 1]
    );
    assert_eq!(publisher.lost(2), Err(PublisherError::UnknownSink { sink: 2, sinks: 2 }));
}

#[test]
fn a_held_sink_gets_everything_after_it_has_room() {
    let mut publisher = publisher();
    let sink = publisher.add(SinkConfig::default());
    let first = publisher.flush(1.0, 5.0);
    publisher.hold(sink, true).unwrap();
    assert!(publisher.flush(9.0, 5.0).is_empty()); // not even a heartbeat
    publisher.hold(sink, false).unwrap();
    // The contents did not change while the sink was paused, so the sink lost nothing.
    assert_eq!(publisher.flush(9.0, 5.0)[0].number, first[0].number + 1);
    publisher.hold(sink, true).unwrap();
    for at in 1..4 {
        publisher.stored(0, 0, Digest::of_number(at), None, Some(&[at as u32, 0]));
        assert!(publisher.flush(10.0, 5.0).is_empty());
    }
    publisher.hold(sink, false).unwrap();
    let anew = publisher.flush(11.0, 5.0);
    assert_eq!((anew.len(), anew[0].number), (1, first[0].number + 3));
    assert!(has(&anew[0].payload, "AllBlocksCleared") && has(&anew[0].payload, "BlockStored"));
    assert!(publisher.hold(1, true).is_err());
}

/// A consumer that missed the last batch detects it at the next heartbeat, even if the clock was set
/// back.
#[test]
fn a_clock_that_is_set_back_holds_no_heartbeat_up() {
    let mut publisher = publisher();
    publisher.add(SinkConfig::default());
    publisher.flush(9_000.0, 5.0);
    assert_eq!(publisher.flush(9_004.0, 5.0).len(), 0);
    assert_eq!(publisher.flush(1_000.0, 5.0).len(), 1);
    assert_eq!(publisher.flush(1_004.0, 5.0).len(), 0);
    assert_eq!(publisher.flush(1_005.0, 5.0).len(), 1);
}

#[test]
fn batches_of_others_follow_the_changes_with_the_next_numbers() {
    let mut publisher = publisher();
    let sink = publisher.add(SinkConfig::default());
    publisher.pass_on(vec![7]);
    let first = publisher.flush(1.0, 5.0);
    assert_eq!(first.iter().map(|batch| batch.number).collect::<Vec<_>>(), [START << 20, (START << 20) + 1]);
    assert!(has(&first[0].payload, "AllBlocksCleared") && *first[1].payload == [7]);
    publisher.hold(sink, true).unwrap();
    publisher.pass_on(vec![8]);
    assert!(publisher.flush(2.0, 5.0).is_empty());
    publisher.hold(sink, false).unwrap();
    let anew = publisher.flush(3.0, 5.0);
    assert_eq!((anew.len(), anew[0].number), (1, (START << 20) + 3));
}

#[test]
fn an_empty_batch_is_sent_where_nothing_was_for_a_while() {
    let mut publisher = publisher();
    publisher.add(SinkConfig::default());
    publisher.flush(1.0, 5.0);
    assert!(publisher.flush(5.9, 5.0).is_empty());
    let beat = publisher.flush(6.0, 5.0);
    assert_eq!(beat.len(), 1);
    assert_eq!(beat[0].payload[10..], [0x90, 0]);
    assert!(publisher.flush(10.0, 5.0).is_empty());
}

#[test]
fn replays_contain_the_retained_batches_within_their_limit() {
    let mut publisher = publisher();
    let sink = publisher.add(SinkConfig { replay_batches: 3, ..SinkConfig::default() });
    let small = publisher.add(SinkConfig { replay_bytes: 1, ..SinkConfig::default() });
    for at in 0..5 {
        publisher.flush(f64::from(at), 0.0);
    }
    let numbers =
        |sink, from| publisher.replay(sink, from).unwrap().map(|(number, _)| number).collect::<Vec<_>>();
    let base = publisher.base();
    assert_eq!(numbers(sink, 0), [base + 2, base + 3, base + 4]);
    assert_eq!(numbers(sink, base + 4), [base + 4]);
    assert!(numbers(sink, base + 5).is_empty());
    // For replays, the latest batch is stored even if it is longer than the limit.
    assert_eq!(numbers(small, 0), [base + 4]);
    assert!(publisher.replay(2, 0).is_err());
}

#[test]
fn republication_is_cut_into_batches_in_order() {
    let mut publisher = publisher();
    chain(&mut publisher, 20_000);
    let sink = publisher.add(SinkConfig::default());
    // A snapshot contains one event per chain. A chain with more contents than a batch may have is
    // split into several batches.
    assert_eq!(publisher.flush(1.0, 5.0).len(), 1);
    for at in 0..20_000 {
        publisher.stored(0, 0, Digest::of_number(1 << 40 | at), None, Some(&[at as u32, 1]));
    }
    publisher.flush(2.0, 5.0);
    publisher.lost(sink).unwrap();
    let anew = publisher.flush(3.0, 5.0);
    assert!(anew.len() == 3);
    assert!(anew.windows(2).all(|pair| pair[0].number + 1 == pair[1].number));
}

#[test]
fn runs_end_where_the_label_changes_and_extra_keys_belong_to_their_blocks() {
    let mut publisher = publisher();
    publisher.add(SinkConfig::default());
    publisher.add(SinkConfig { form: "sglang".parse::<Form>().unwrap(), ..SinkConfig::default() });
    publisher.flush(1.0, 5.0);
    chain(&mut publisher, 3);
    let label = Arc::new(Label {
        lora_name: Some("sql".into()),
        salt: Some("grain".into()),
        session: Some("s1".into()),
        ..Label::default()
    });
    let keys = Keys { label, extra: Some([Extra::Text("sql".into())].into()) };
    for at in 2..4 {
        publisher.learned(0, Digest::of_number(at), None, None, Some(&keys));
    }
    let batches = publisher.flush(2.0, 5.0);
    let events = |payload: &[u8]| payload.windows(11).filter(|window| window == b"BlockStored").count();
    assert_eq!((events(&batches[0].payload), events(&batches[1].payload)), (2, 2));
    assert!(has(&batches[0].payload, "session_id") && !has(&batches[0].payload, "grain"));
    // `92 91` in `MessagePack` are an array of two blocks, and in it an array of one key.
    assert!(
        has(&batches[0].payload, "extra_keys")
            && batches[0].payload.windows(3).any(|at| at == [0x92, 0x91, 0xa3])
    );
    assert!(has(&batches[1].payload, "cache_salt") && has(&batches[1].payload, "grain"));
}

#[test]
fn settings_that_mean_nothing_are_refused_by_name() {
    let group = Group { name: GroupName::default(), block_tokens: 0, chained: true };
    assert_eq!(Publisher::new(vec![], 0, 0).unwrap_err(), PublisherError::NoGroups);
    assert_eq!(
        Publisher::new(vec![group.clone()], 0, 0).unwrap_err().to_string(),
        "block_tokens of group 0 is 0: must be at least 1"
    );
    let most = usize::from(u16::MAX);
    let many = vec![Group { block_tokens: 1, ..group }; most + 1];
    assert_eq!(
        Publisher::new(many, 0, 0).unwrap_err(),
        PublisherError::TooManyGroups { groups: most + 1, most }
    );
}

#[test]
fn unknown_groups_and_tiers_are_counted_and_change_nothing() {
    let mut publisher = publisher();
    let digest = Digest::of_number(1);
    publisher.stored(0, 1, digest, None, Some(&[1, 2]));
    publisher.stored(0, u16::MAX, digest, None, Some(&[1, 2]));
    publisher.stored(9, 0, digest, None, Some(&[1, 2]));
    publisher.removed(200, 0, digest);
    publisher.cleared(200);
    assert!(publisher.contents().is_empty());
    assert_eq!(publisher.contents().ignored(), 4);
    // A content whose number of tokens differs from the block size is not published.
    publisher.stored(0, 0, digest, Some(digest), Some(&[1, 2, 3]));
    assert_eq!((publisher.contents().len(0), publisher.contents().untold()), (1, 1));
    publisher.contents().check().unwrap();
}
