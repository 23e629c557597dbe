//! One scripted case for each reason of a miss.

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    Adapter, AdmitOptions, CacheManager, CacheTime, ExtraKeys, Finish, HashAlgorithm, Loaded, ManagerConfig,
    MultimodalItem, Part, RequestId, RetentionRange, Signal,
};
use kvpool_observe::explain::{Requester, When};
use kvpool_observe::{
    ExplainConfig, ExplainError, Explanation, ManagerWatch, ManagerWatchConfig, MissReason,
};

use super::{ALL, BLOCK, admit, admit_with, explaining, names, run, run_with, spans, tokens};

fn manager(blocks: usize) -> CacheManager {
    manager_of(ManagerConfig { num_blocks: blocks + 1, ..ManagerConfig::default() })
}

fn manager_of(config: ManagerConfig) -> CacheManager {
    explaining(ManagerConfig { block_size: BLOCK, ..config }, ALL)
}

fn retaining(blocks: usize, tenants: Vec<TenantLimits>) -> CacheManager {
    let retention = Some(RetentionConfig { pin_budget: 0, tenants });
    let eviction = kvpool_policies::LRU;
    manager_of(ManagerConfig { num_blocks: blocks + 1, eviction, retention, ..ManagerConfig::default() })
}

fn request(id: &str) -> Requester {
    Requester::Request(RequestId::from(id))
}

/// Returns the fields of a [`When`], because tests cannot construct one to compare with.
fn at(reason: &MissReason) -> (u64, Option<f64>) {
    let When { admission, time, .. } = reason.when().unwrap();
    (admission, time)
}

#[test]
fn never_seen() {
    let mut manager = manager(8);
    admit(&mut manager, "a", &tokens(0, 3));
    assert_eq!(spans(&manager, "a"), [(0, 0, MissReason::NeverSeen), (1, 2, MissReason::Behind)]);
}

/// A prompt that continues a known prompt diverges from no known content. The reason for the new blocks
/// is that they were never seen.
#[test]
fn never_seen_after_a_known_prompt() {
    let mut manager = manager(8);
    run(&mut manager, "a", &tokens(0, 2));
    assert_eq!(admit(&mut manager, "b", &tokens(0, 4)), 8);
    assert_eq!(spans(&manager, "b"), [(2, 2, MissReason::NeverSeen), (3, 3, MissReason::Behind)]);
}

#[test]
fn diverged_at_a_token() {
    let mut manager = manager(16);
    run(&mut manager, "a", &tokens(0, 4));
    let mut other = tokens(0, 4);
    other[6] = 99;
    assert_eq!(admit(&mut manager, "b", &other), 4);
    assert_eq!(spans(&manager, "b"), [(1, 1, MissReason::Diverged { token: 6 }), (2, 3, MissReason::Behind)]);
    // If the prompt diverges from several known contents, the one with the longest common part is
    // reported. If a block differs at its first token, the prompt diverges at the start of the block.
    let mut third = tokens(0, 2);
    third[7] = 77;
    admit(&mut manager, "c", &third);
    assert_eq!(spans(&manager, "c"), [(1, 1, MissReason::Diverged { token: 7 })]);
    third[4] = 78;
    admit(&mut manager, "d", &third);
    assert_eq!(spans(&manager, "d"), [(1, 1, MissReason::Diverged { token: 4 })]);
    third[3] = 79;
    admit(&mut manager, "e", &third);
    assert_eq!(spans(&manager, "e"), [(0, 0, MissReason::Diverged { token: 3 }), (1, 1, MissReason::Behind)]);
}

#[test]
fn evicted_when_by_which_policy_and_for_whom() {
    for policy in [kvpool_policies::LRU, kvpool_policies::S3_FIFO] {
        let mut manager =
            manager_of(ManagerConfig { num_blocks: 5, eviction: policy, ..ManagerConfig::default() });
        run(&mut manager, "a", &tokens(0, 3));
        admit(&mut manager, "b", &tokens(100, 3)); // one block is free, two are evicted
        manager.release("b", None).unwrap();
        assert_eq!(admit(&mut manager, "c", &tokens(0, 3)), 4);
        let spans = spans(&manager, "c");
        let [(1, 2, MissReason::Evicted { when, policy: name, requester, .. })] = &spans[..] else {
            panic!("{spans:?}")
        };
        // The last block could not be a hit in any case, because the last token is always computed. It
        // is still reported as evicted.
        assert_eq!((when.admission, when.time, *name, requester), (2, None, policy.name(), &request("b")));
        assert_eq!(
            manager.explain("c").unwrap().to_string(),
            format!(
                "request \"c\", admitted at 3: 4 of 12 tokens cached\n  blocks 1-2 (tokens 4-11): evicted at \
                 admission 2 by {name} for request \"b\""
            )
        );
    }
}

/// An explanation reports the class that the policy assigns to the evicted block. The class depends on
/// the block, its uses and the hints of its request. The time is that of the caller's clock, if the
/// caller passes one.
#[test]
fn evicted_by_a_policy_that_reports_its_expectation() {
    for clock in [false, true] {
        let eviction = kvpool_policies::HAZARD;
        let mut manager = manager_of(ManagerConfig { num_blocks: 5, eviction, ..ManagerConfig::default() });
        let mut second = 0.0;
        let mut serve = |manager: &mut CacheManager, id: &str, tokens: &[u32], finish| {
            if clock {
                second += 50.0;
                manager.advance_time(second).unwrap();
            }
            admit(manager, id, tokens);
            manager.commit(id, tokens.len()).unwrap();
            let signal = Signal { finish, output_tokens: Some(210) };
            manager.release_batch_with(&[(id.into(), signal)], None).unwrap();
        };
        serve(&mut manager, "a", &tokens(0, 4), Finish::ToolCalls);
        serve(&mut manager, "b", &tokens(0, 4), Finish::Stop);
        serve(&mut manager, "c", &tokens(100, 4), Finish::ToolCalls);
        serve(&mut manager, "d", &tokens(0, 4), Finish::Unknown);
        let explanation = manager.explain("d").unwrap();
        let outlook = explanation.spans[0].reason.outlook().unwrap();
        let gap = if clock { "less than 96 s" } else { "less than 0.4 capacities" };
        assert_eq!(
            outlook.class_words(),
            format!("used twice, {gap} apart, prompt known in part, answer of 200 or more, end of turn")
        );
        match outlook.kept_per_hit {
            Some(CacheTime::Seconds(kept)) => assert!(clock && kept > 1.0, "{kept}"),
            Some(CacheTime::Capacities(kept)) => assert!(!clock && kept > 0.0, "{kept}"),
            other => panic!("before anything is learned some hits are expected: {other:?}"),
        }
        let said = explanation.to_string();
        let expected = format!("; of the class \"{}\", expected back once in ", outlook.class_words());
        assert!(said.contains(&expected), "{said}");
        manager.check_invariants().unwrap();
    }
}

/// Appended tokens evict blocks in the same way as admissions do.
#[test]
fn evicted_for_an_appended_token() {
    let mut manager = manager(3);
    run(&mut manager, "a", &tokens(0, 2));
    admit(&mut manager, "b", &tokens(100, 1));
    manager.append(&["b".into()], &[7], kvpool::Computed::Nothing).unwrap();
    manager.release("b", None).unwrap();
    admit(&mut manager, "c", &tokens(0, 2));
    let [(1, 1, MissReason::Evicted { when, requester, .. })] = &spans(&manager, "c")[..] else { panic!() };
    assert_eq!((when.admission, requester), (2, &request("b")));
}

/// If a block has a priority, the reason contains "priority" instead of the name of the policy.
#[test]
fn evicted_by_its_priority() {
    let mut manager = retaining(4, vec![]);
    let low = Retention::of(Keep::Priority(Priority::new(5).unwrap()));
    let hints = AdmitOptions {
        ranges: vec![RetentionRange { start: 0, end: None, retention: low }],
        ..AdmitOptions::default()
    };
    run(&mut manager, "old", &tokens(0, 2));
    let cursor = manager.prepare(&tokens(50, 2), ExtraKeys::default()).unwrap();
    manager.admit_with("low", cursor, &hints).unwrap();
    manager.commit("low", 8).unwrap();
    manager.release("low", None).unwrap();
    run(&mut manager, "new", &tokens(100, 2));
    admit(&mut manager, "again", &tokens(50, 1));
    let [(0, 0, MissReason::Evicted { policy: "priority", requester, .. })] = &spans(&manager, "again")[..]
    else {
        panic!()
    };
    assert_eq!(*requester, request("new"));
}

fn expiring(then: Then) -> AdmitOptions {
    let retention =
        Retention { keep: Keep::Priority(Priority::new(80).unwrap()), ttl: Some(Ttl::Absolute(10.0)), then };
    AdmitOptions {
        ranges: vec![RetentionRange { start: 0, end: None, retention }],
        ..AdmitOptions::default()
    }
}

#[test]
fn expired() {
    for then in [Then::Normal, Then::Demote] {
        let mut manager = retaining(4, vec![]);
        manager.advance_time(1.0).unwrap();
        let cursor = manager.prepare(&tokens(0, 2), ExtraKeys::default()).unwrap();
        manager.admit_with("a", cursor, &expiring(then)).unwrap();
        manager.commit("a", 8).unwrap();
        manager.release("a", None).unwrap();
        manager.advance_time(11.5).unwrap();
        run(&mut manager, "b", &tokens(100, 4));
        admit(&mut manager, "c", &tokens(0, 1));
        let [(0, 0, reason @ MissReason::Expired { requester, .. })] = &spans(&manager, "c")[..] else {
            panic!()
        };
        assert_eq!((at(reason), requester), ((2, Some(11.5)), &request("b")));
    }
}

/// If a block is used after its time to live has ended, its next eviction is not reported as an expiry.
#[test]
fn a_hit_ends_an_expiry() {
    let mut manager = retaining(4, vec![]);
    manager.advance_time(1.0).unwrap();
    let cursor = manager.prepare(&tokens(0, 2), ExtraKeys::default()).unwrap();
    manager.admit_with("a", cursor, &expiring(Then::Normal)).unwrap();
    manager.commit("a", 8).unwrap();
    manager.release("a", None).unwrap();
    manager.advance_time(11.5).unwrap();
    run(&mut manager, "hit", &tokens(0, 3));
    run(&mut manager, "b", &tokens(100, 4));
    admit(&mut manager, "c", &tokens(0, 1));
    assert_eq!(names(&manager, "c"), [(0, 0, "evicted")]);
}

#[test]
fn end_of_life() {
    let mut manager = retaining(4, vec![]);
    admit(&mut manager, "a", &tokens(0, 2));
    manager.commit("a", 8).unwrap();
    manager.end_session("a", kvpool::Until::Now).unwrap();
    let scan = AdmitOptions { no_cache: true, ..AdmitOptions::default() };
    let cursor = manager.prepare(&tokens(50, 2), ExtraKeys::default()).unwrap();
    manager.admit_with("scan", cursor, &scan).unwrap();
    manager.commit("scan", 8).unwrap();
    manager.release("scan", None).unwrap();
    run(&mut manager, "b", &tokens(100, 4));
    for (id, first) in [("c", 0), ("d", 50)] {
        admit(&mut manager, id, &tokens(first, 1));
        let spans = spans(&manager, id);
        let [(0, 0, reason @ MissReason::EndOfLife { requester, .. })] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!((at(reason), requester), ((3, None), &request("b")));
    }
}

#[test]
fn tenant_ceiling_hides_the_id_of_another_tenants_request() {
    let limits = TenantLimits { tenant: TenantId(7), floor: 0, ceiling: Some(1) };
    let mut manager = retaining(4, vec![limits]);
    let seven = AdmitOptions { tenant: Some(TenantId(7)), ..AdmitOptions::default() };
    run(&mut manager, "old", &tokens(50, 2)); // older, but spared
    let admit_seven = |manager: &mut CacheManager, id: &str| {
        let cursor = manager.prepare(&tokens(0, 2), ExtraKeys::default()).unwrap();
        manager.admit_with(id, cursor, &seven).unwrap();
    };
    admit_seven(&mut manager, "a");
    manager.commit("a", 8).unwrap();
    manager.release("a", None).unwrap();
    run(&mut manager, "b", &tokens(100, 1));
    admit_seven(&mut manager, "c");
    let [(1, 1, MissReason::TenantCeiling { requester, .. })] = &spans(&manager, "c")[..] else { panic!() };
    assert_eq!(*requester, Requester::Another);
    manager.commit("c", 8).unwrap();
    manager.release("c", None).unwrap();
    let cursor = manager.prepare(&tokens(200, 1), ExtraKeys::default()).unwrap();
    manager.admit_with("d", cursor, &seven).unwrap();
    admit_seven(&mut manager, "e");
    let [(1, 1, MissReason::TenantCeiling { requester, .. })] = &spans(&manager, "e")[..] else { panic!() };
    assert_eq!(*requester, request("d"));
}

#[test]
fn dropped_by_id_makes_later_blocks_unreachable() {
    let mut manager = manager(8);
    admit(&mut manager, "a", &tokens(0, 4));
    manager.commit("a", 16).unwrap();
    let second = manager.block_table("a").unwrap()[1];
    manager.drop_cached(&[second]).unwrap();
    manager.release("a", None).unwrap();
    assert_eq!(admit(&mut manager, "b", &tokens(0, 4)), 4);
    let spans = spans(&manager, "b");
    let [(1, 1, reason @ MissReason::DroppedById { .. }), (2, 3, MissReason::Unreachable)] = &spans[..]
    else {
        panic!("{spans:?}")
    };
    assert_eq!(at(reason), (1, None));
}

/// If one of two copies is evicted and then the other is dropped by id, the reason is the drop, because
/// the content leaves the cache with the second copy.
#[test]
fn the_last_copy_counts() {
    let mut manager = manager(3);
    for id in ["a", "b"] {
        admit(&mut manager, id, &tokens(0, 1));
    }
    manager.commit_batch(&["a".into(), "b".into()], &[4, 4]).unwrap();
    manager.release("a", None).unwrap();
    manager.release("b", None).unwrap();
    admit(&mut manager, "c", &tokens(100, 2));
    manager.release("c", None).unwrap();
    assert_eq!(manager.stats().pool.evicted, 1);
    assert_eq!(manager.drop_cached(&[1, 2, 3].map(kvpool::BlockId::new)).unwrap(), 1);
    admit(&mut manager, "d", &tokens(0, 1));
    assert_eq!(names(&manager, "d"), [(0, 0, "dropped-by-id")]);
}

/// An admission evicts the blocks after its first missed block. The lookup was earlier, so these blocks
/// are reported as cached.
#[test]
fn blocks_that_an_admission_evicts_count_as_cached() {
    let mut manager = manager(4);
    admit(&mut manager, "a", &tokens(0, 4));
    manager.commit("a", 16).unwrap();
    let second = manager.block_table("a").unwrap()[1];
    manager.drop_cached(&[second]).unwrap();
    manager.release("a", None).unwrap();
    admit(&mut manager, "b", &tokens(0, 4));
    assert_eq!(names(&manager, "b"), [(1, 1, "dropped-by-id"), (2, 3, "unreachable")]);
    manager.release("b", None).unwrap();
    admit(&mut manager, "c", &tokens(0, 4));
    let spans = spans(&manager, "c");
    let [_, (2, 3, MissReason::Evicted { requester, .. })] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(*requester, request("b"));
}

#[test]
fn reset() {
    let mut manager = manager(8);
    run(&mut manager, "a", &tokens(0, 2));
    manager.reset().unwrap();
    admit(&mut manager, "b", &tokens(0, 2));
    let [(0, 1, reason @ MissReason::Reset { .. })] = &spans(&manager, "b")[..] else { panic!() };
    assert_eq!(at(reason), (1, None));
}

#[test]
fn other_epoch() {
    for algorithm in [HashAlgorithm::Sha256, HashAlgorithm::VllmSha256Cbor] {
        let config =
            ManagerConfig { num_blocks: 9, algorithm, seed: Some("0".into()), ..ManagerConfig::default() };
        let mut manager = manager_of(config);
        manager.bump_epoch().unwrap();
        run(&mut manager, "a", &tokens(0, 2));
        manager.bump_epoch().unwrap();
        admit(&mut manager, "b", &tokens(0, 2));
        let spans = spans(&manager, "b");
        assert_eq!(spans[0].2, MissReason::OtherEpoch { epoch: 1 }, "{algorithm}: {spans:?}");
        // If the encoding of hashes does not include the epoch, the hashes are the same in every epoch.
        let behind = if algorithm == HashAlgorithm::Sha256 { "behind" } else { "other-epoch" };
        assert_eq!(spans.last().unwrap().2.name(), behind);
    }
}

fn salted(salt: &[u8]) -> ExtraKeys {
    ExtraKeys { salt: Some(salt.into()), ..ExtraKeys::default() }
}

fn adapted(id: &[u8]) -> ExtraKeys {
    ExtraKeys { adapter: Some(Adapter { id: id.into(), path: None }), ..ExtraKeys::default() }
}

#[test]
fn other_salt_hides_the_request_id() {
    let mut manager = manager(8);
    run_with(&mut manager, "a", &tokens(0, 2), salted(b"one"));
    admit_with(&mut manager, "b", &tokens(0, 2), salted(b"two"));
    assert_eq!(spans(&manager, "b"), [(0, 0, MissReason::OtherSalt), (1, 1, MissReason::Behind)]);
    assert!(!manager.explain("b").unwrap().to_string().contains("\"a\""));
    // Requests with one salt evict the blocks of requests with the other salt. The explanation does not
    // name the request that evicted them.
    manager.release("b", None).unwrap();
    run_with(&mut manager, "c", &tokens(100, 8), salted(b"two"));
    admit_with(&mut manager, "d", &tokens(0, 1), salted(b"one"));
    let [(0, 0, MissReason::Evicted { requester, .. })] = &spans(&manager, "d")[..] else { panic!() };
    assert_eq!(*requester, Requester::Another);
}

#[test]
fn other_adapter() {
    let mut manager = manager(8);
    run(&mut manager, "a", &tokens(0, 2));
    admit_with(&mut manager, "b", &tokens(0, 2), adapted(b"lora"));
    assert_eq!(spans(&manager, "b")[0].2, MissReason::OtherAdapter);
    // If the tokens were seen with several combinations of extra keys, the most similar combination is
    // reported.
    let both = ExtraKeys { salt: Some((*b"one").into()), ..adapted(b"lora") };
    admit_with(&mut manager, "c", &tokens(0, 2), both);
    assert_eq!(spans(&manager, "c")[0].2, MissReason::OtherSalt);
}

#[test]
fn other_keys() {
    let mut manager = manager(32);
    run(&mut manager, "a", &tokens(0, 4));
    let tenant = ExtraKeys { tenant: Some((*b"t").into()), ..ExtraKeys::default() };
    let user = ExtraKeys { user: Some((*b"u").into()), ..ExtraKeys::default() };
    let both = ExtraKeys { salt: Some((*b"one").into()), ..adapted(b"lora") };
    for (id, extra) in [("b", tenant), ("c", user), ("d", both)] {
        admit_with(&mut manager, id, &tokens(0, 2), extra);
        assert_eq!(spans(&manager, id)[0].2, MissReason::OtherKeys, "{id}");
    }
    // With an image in its first block, a prompt differs from the start. With an image in a later
    // block, it equals the earlier prompt up to that block.
    let image = |offset| ExtraKeys {
        multimodal: vec![MultimodalItem { identifier: (*b"cat").into(), offset, length: 2 }],
        ..ExtraKeys::default()
    };
    admit_with(&mut manager, "e", &tokens(0, 2), image(1));
    assert_eq!(spans(&manager, "e")[0].2, MissReason::OtherKeys);
    admit_with(&mut manager, "f", &tokens(0, 4), image(9));
    assert_eq!(spans(&manager, "f"), [(2, 2, MissReason::OtherKeys), (3, 3, MissReason::Behind)]);
}

#[test]
fn being_computed_and_not_computed() {
    let mut manager = manager(32);
    admit(&mut manager, "a", &tokens(0, 3));
    manager.commit("a", 4).unwrap();
    admit(&mut manager, "b", &tokens(0, 3));
    assert_eq!(spans(&manager, "b"), [(1, 2, MissReason::BeingComputed { by: request("a") })]);
    manager.release("b", None).unwrap();
    admit(&mut manager, "c", &tokens(0, 3));
    assert_eq!(spans(&manager, "c"), [(1, 2, MissReason::BeingComputed { by: request("a") })]);
    manager.release("a", None).unwrap();
    admit(&mut manager, "d", &tokens(0, 3));
    assert_eq!(spans(&manager, "d"), [(1, 2, MissReason::BeingComputed { by: request("c") })]);
    manager.preempt("c", None).unwrap();
    manager.release("d", None).unwrap();
    admit(&mut manager, "e", &tokens(0, 3));
    assert_eq!(spans(&manager, "e"), [(1, 2, MissReason::NotComputed)]);
}

/// If the request that computes the content belongs to another tenant, the explanation does not name
/// the request.
#[test]
fn being_computed_by_another_tenants_request() {
    let mut manager = retaining(8, vec![]);
    for (id, tenant) in [("a", 1), ("b", 2)] {
        let cursor = manager.prepare(&tokens(0, 1), ExtraKeys::default()).unwrap();
        let hints = AdmitOptions { tenant: Some(TenantId(tenant)), ..AdmitOptions::default() };
        manager.admit_with(id, cursor, &hints).unwrap();
    }
    assert_eq!(spans(&manager, "b"), [(0, 0, MissReason::BeingComputed { by: Requester::Another })]);
}

#[test]
fn last_token() {
    let mut manager = manager(8);
    run(&mut manager, "a", &tokens(0, 2));
    assert_eq!(admit(&mut manager, "b", &tokens(0, 2)), 4);
    assert_eq!(spans(&manager, "b"), [(1, 1, MissReason::LastToken)]);
}

#[test]
fn too_short() {
    let mut manager = manager(8);
    admit(&mut manager, "a", &[1, 2, 3]);
    assert_eq!(spans(&manager, "a"), [(0, 0, MissReason::TooShort)]);
    let mut longer = tokens(0, 1);
    longer.push(9);
    run(&mut manager, "b", &longer);
    admit(&mut manager, "c", &longer);
    assert_eq!(spans(&manager, "c"), [(1, 1, MissReason::TooShort)]);
    assert_eq!(manager.explain("c").unwrap().spans[0].tokens, 4..5);
}

/// If a content was removed from the record, the reason is that it is not remembered. The record has
/// room for 16 contents, and 17 were stored.
#[test]
fn not_remembered() {
    let config = ManagerConfig { num_blocks: 3, block_size: BLOCK, ..ManagerConfig::default() };
    let mut manager = explaining(config, ExplainConfig { records: Some(16), requests: 1 });
    for first in 0..16 {
        run(&mut manager, "a", &tokens(first * 1000, 1));
    }
    admit(&mut manager, "b", &tokens(0, 1));
    assert_eq!(names(&manager, "b"), [(0, 0, "evicted")]); // the first one is still known
    manager.release("b", None).unwrap();
    run(&mut manager, "c", &tokens(99_000, 1));
    admit(&mut manager, "d", &tokens(1000, 1));
    // The record contains the first block of this prompt, with the same extra keys.
    assert_eq!(names(&manager, "d"), [(0, 0, "not-remembered")]);
    manager.release("d", None).unwrap();
    // Another request has requested the content without computing it. That does not prove that the
    // content was never computed.
    admit(&mut manager, "d", &tokens(1000, 1));
    assert_eq!(names(&manager, "d"), [(0, 0, "not-remembered")]);
    manager.release("d", None).unwrap();
    // The record is full, so it cannot distinguish a content that was never seen from one that it has
    // lost.
    admit(&mut manager, "e", &tokens(77_000, 1));
    assert_eq!(names(&manager, "e"), [(0, 0, "not-remembered")]);
    // If the parent is known and the record has lost no child of it, the record can distinguish the
    // two.
    manager.commit("e", 4).unwrap();
    manager.release("e", None).unwrap();
    // The explainer stores the explanation of only one released request.
    assert!(manager.explain("e").is_ok());
    assert_eq!(manager.explain("d"), Err(ExplainError::UnknownRequest { id: "d".into() }));
}

/// Returns a manager in which hashes can collide. vLLM's encodings do not contain the length of a
/// multimodal item, but fingerprints do.
fn colliding(blocks: usize) -> CacheManager {
    manager_of(ManagerConfig {
        num_blocks: blocks,
        algorithm: HashAlgorithm::VllmSha256Cbor,
        verify: kvpool::Verify::Fingerprint,
        seed: Some("0".into()),
        ..ManagerConfig::default()
    })
}

fn image(length: u64) -> ExtraKeys {
    let item = MultimodalItem { identifier: (*b"cat").into(), offset: 1, length };
    ExtraKeys { multimodal: vec![item], ..ExtraKeys::default() }
}

#[test]
fn collision() {
    let mut manager = colliding(9);
    run_with(&mut manager, "a", &tokens(0, 2), image(1));
    admit_with(&mut manager, "b", &tokens(0, 2), image(2));
    assert_eq!(names(&manager, "b"), [(0, 0, "collision"), (1, 1, "unreachable")]);
    // A request with a collision publishes nothing, so the second request would wait in vain for its
    // blocks.
    manager.commit("b", 8).unwrap();
    admit_with(&mut manager, "c", &tokens(0, 3), image(2));
    assert_eq!(names(&manager, "c"), [(0, 0, "collision"), (1, 1, "unreachable"), (2, 2, "never-seen")]);
}

/// The blocks after a collision never become available to other requests. So a request with the same
/// blocks gets another reason than `BeingComputed`.
#[test]
fn blocks_after_a_collision_are_not_being_computed() {
    let mut manager = colliding(17);
    admit_with(&mut manager, "a", &tokens(0, 2), image(1));
    admit_with(&mut manager, "b", &tokens(0, 3), image(2));
    admit_with(&mut manager, "c", &tokens(0, 3), image(2));
    assert_eq!(names(&manager, "c")[1], (2, 2, "being-computed"));
    manager.release("c", None).unwrap();
    manager.commit("a", 8).unwrap();
    manager.commit("b", 12).unwrap();
    admit_with(&mut manager, "c", &tokens(0, 3), image(2));
    assert_eq!(names(&manager, "c"), [(0, 0, "collision"), (1, 1, "unreachable"), (2, 2, "not-computed")]);
}

#[test]
fn a_resumption_has_its_own_explanation_and_counts() {
    let mut manager = manager(4);
    admit(&mut manager, "a", &tokens(0, 3));
    manager.commit("a", 12).unwrap();
    manager.preempt("a", None).unwrap();
    run(&mut manager, "b", &tokens(100, 3));
    manager.resume("a").unwrap();
    let spans = spans(&manager, "a");
    let [(1, 2, MissReason::Evicted { when, requester, .. })] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((when.admission, requester), (2, &request("b")));
    let Explanation { admission, resumed, .. } = manager.explain("a").unwrap();
    assert_eq!((admission, resumed), (3, true));
    let misses = manager.misses().unwrap();
    assert_eq!((misses.admitted.get("never-seen"), misses.admitted.get("behind")), (Some(8), Some(16)));
    assert_eq!((misses.resumed.get("evicted"), misses.resumed.total()), (Some(8), 8));
    assert_eq!(misses.admitted.get("bad luck"), None);
}

/// If a request is swapped out and in again, lookups find its content again.
#[test]
fn swapped_in_content_is_cached_again() {
    let mut manager = manager_of(ManagerConfig { num_blocks: 5, host_blocks: 9, ..ManagerConfig::default() });
    admit(&mut manager, "a", &tokens(0, 3));
    manager.commit("a", 12).unwrap();
    let out = manager.begin_swap_out(&["a".into()]).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(out).unwrap();
    run(&mut manager, "b", &tokens(100, 4));
    manager.check_invariants().unwrap();
    let back = manager.begin_swap_in(&["a".into()]).unwrap();
    manager.check_invariants().unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(back).unwrap();
    manager.check_invariants().unwrap();
    manager.release("a", None).unwrap();
    assert_eq!(admit(&mut manager, "c", &tokens(100, 3)), 4);
    let [(1, 2, MissReason::Evicted { requester, .. })] = &spans(&manager, "c")[..] else {
        panic!("{:?}", spans(&manager, "c"))
    };
    assert_eq!(*requester, request("a"));
}

#[test]
fn a_fork_has_its_parents_explanation_and_a_planned_step_explains() {
    let mut manager = manager(16);
    run(&mut manager, "a", &tokens(0, 2));
    let mut step = manager.plan_step();
    let cursor = manager.prepare(&tokens(0, 3), ExtraKeys::default()).unwrap();
    manager.plan_admit(&mut step, "b", cursor).unwrap();
    manager.commit_step(&mut step).unwrap();
    manager.fork("b", "c").unwrap();
    assert_eq!(names(&manager, "b"), [(2, 2, "never-seen")]);
    let (of_parent, mut of_child) = (manager.explain("b").unwrap(), manager.explain("c").unwrap());
    assert_eq!(of_child.request, "c".into());
    of_child.request = "b".into();
    assert_eq!(of_child, of_parent);
}

/// If a prompt has more spans than an explanation can contain, one last span covers the remaining
/// blocks.
#[test]
fn spans_are_bounded() {
    let mut manager = manager(400);
    admit(&mut manager, "a", &tokens(0, 200));
    manager.commit("a", 800).unwrap();
    let every_other: Vec<_> = manager.block_table("a").unwrap().iter().copied().step_by(2).collect();
    manager.drop_cached(&every_other).unwrap();
    admit(&mut manager, "b", &tokens(0, 200));
    let spans = spans(&manager, "b");
    assert_eq!(spans.len(), Explanation::MAX_SPANS + 1);
    assert_eq!(spans.last(), Some(&(64, 199, MissReason::Behind)));
    assert_eq!(manager.misses().unwrap().admitted.get("dropped-by-id"), Some(32 * BLOCK as u64));
}

#[test]
fn a_manager_without_explanations_returns_an_error() {
    let config = ManagerConfig { num_blocks: 9, block_size: BLOCK, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    run(&mut manager, "a", &tokens(0, 2));
    assert_eq!(manager.explain("a"), Err(ExplainError::NotExplaining));
    assert_eq!(manager.misses(), None);
    let mut explained = self::manager(8);
    assert!(explained.explain("a").is_err());
    run(&mut explained, "a", &tokens(0, 2));
    assert!(explained.explain("a").is_ok());
}

#[test]
fn settings_out_of_range_are_named() {
    for (records, requests, named) in
        [(Some(15), 0, "records is 15"), (Some(1 << 25), 0, "records"), (None, 1 << 21, "requests")]
    {
        let manager = CacheManager::new(ManagerConfig { num_blocks: 9, ..ManagerConfig::default() }).unwrap();
        let explain = Some(ExplainConfig { records, requests });
        let error = manager.watched(&ManagerWatchConfig { explain, ..ManagerWatchConfig::default() });
        assert!(error.unwrap_err().to_string().contains(named));
    }
}

/// Tokens that a connector loads are counted as missed. Tokens that it does not load are computed.
#[test]
fn external_tokens_are_missed_too() {
    let mut manager = manager(8);
    let part = Part { external_tokens: 8, ..Part::WHOLE };
    let prompt = manager.prepare(&tokens(0, 3), ExtraKeys::default()).unwrap();
    manager.admit_with("a", prompt, &AdmitOptions { part, ..AdmitOptions::default() }).unwrap();
    manager.external_done("a", Loaded::First(4)).unwrap();
    assert_eq!(spans(&manager, "a"), [(0, 0, MissReason::NeverSeen), (1, 2, MissReason::Behind)]);
    assert_eq!((manager.stats().external_tokens, manager.stats().computed_tokens), (4, 8));
    assert_eq!(manager.misses().unwrap().admitted.total(), 12);
}
