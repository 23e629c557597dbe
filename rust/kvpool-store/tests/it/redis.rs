//! Tests a Redis server that is suspended, killed, emptied or full, or that refuses calls. The results
//! are misses, never wrong bytes.

use std::sync::Arc;
use std::time::Duration;

use crate::common::redis::Server;
use crate::common::{LEN, always, at, finish, get, key, namespace, payload, put, settle};
use kvpool_store::redis::{Address, Inspector, RedisBackend, RedisConfig};
use kvpool_store::{
    Arena, BackendError, Get, HeaderError, Mismatch, ObjectKey, ObjectName, ParseNameError, Put, Store,
    StoreConfig, StoreError, TokenRange, Why,
};

const SLOTS: u32 = 16;

fn open(config: RedisConfig, how: StoreConfig) -> (Store, Arc<Arena>) {
    let arena = Arena::new(SLOTS, LEN).unwrap();
    let backend = RedisBackend::open(config).unwrap();
    (Store::open(backend, arena.clone(), &namespace(1), how).unwrap(), arena)
}

fn fill(arena: &Arc<Arena>, first: u64) -> Vec<Put> {
    let tokens = TokenRange { first: 0, count: 16 };
    (0..SLOTS)
        .map(|slot| {
            let n = first + u64::from(slot);
            arena.write(slot).unwrap().copy_from_slice(&payload(n, LEN));
            Put { key: key(n), tokens, len: LEN, slot, admit: None }
        })
        .collect()
}

fn wanted(first: u64) -> Vec<Get> {
    (0..SLOTS).map(|slot| Get { key: key(first + u64::from(slot)), len: LEN, slot }).collect()
}

/// Checks that the slot of each loaded object has the right bytes, and that the slot of a miss has no
/// bytes of an object. Returns the number of loaded objects.
fn check(arena: &Arc<Arena>, first: u64, objects: &[Result<(), Why>]) -> usize {
    for (slot, object) in (0..SLOTS).zip(objects) {
        if object.is_ok() {
            let slot_bytes = arena.read(slot).unwrap();
            assert!(slot_bytes[..] == payload(first + u64::from(slot), LEN), "wrong bytes in {slot}");
        }
    }
    objects.iter().filter(|object| object.is_ok()).count()
}

#[test]
fn both_protocols_databases_and_users() {
    let Some(server) =
        Server::start(&["--requirepass", "secret", "--user", "kv", "on", ">other", "allcommands", "allkeys"])
    else {
        return;
    };
    let with = |username: Option<&str>, password: Option<&str>, protocol, database| RedisConfig {
        username: username.map(Into::into),
        password: password.map(Into::into),
        protocol,
        database,
        ..server.config(8)
    };
    for (n, config) in [
        with(None, Some("secret"), 2, 0),
        with(None, Some("secret"), 3, 0),
        with(Some("kv"), Some("other"), 2, 3),
        with(Some("kv"), Some("other"), 3, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut store, arena) = open(config, always());
        let before = if n % 2 == 0 { Err(Why::Absent) } else { Ok(()) };
        assert_eq!(get(&mut store, &arena, 1, at(0)), before, "databases are apart, protocols are not");
        put(&mut store, &arena, 1, at(0)).unwrap();
        assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    }
    for config in
        [with(None, None, 2, 0), with(None, Some("wrong"), 2, 0), with(Some("kv"), Some("secret"), 3, 0)]
    {
        let error = RedisBackend::open(config).unwrap_err();
        assert!(matches!(error, StoreError::Backend(BackendError::Io { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("NOAUTH") || text.contains("WRONGPASS"), "{text}");
    }
    assert!(!format!("{:?}", with(None, Some("secret"), 2, 0)).contains("secret"));
}

#[test]
fn settings_out_of_range_are_refused() {
    let config = RedisConfig::new(Address::Unix("/nowhere".into()), 1 << 20, LEN);
    let refused = |config| match RedisBackend::open(config) {
        Err(StoreError::InvalidConfig { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(RedisConfig { max_payload: 0, ..config.clone() }), "max_payload");
    assert_eq!(
        refused(RedisConfig { max_payload: 512 << 20, capacity_bytes: 1 << 40, ..config.clone() }),
        "max_payload"
    );
    assert_eq!(refused(RedisConfig { capacity_bytes: 5000, ..config.clone() }), "capacity_bytes");
    assert_eq!(refused(RedisConfig { protocol: 4, ..config.clone() }), "protocol");
    assert_eq!(refused(RedisConfig { timeout: Duration::ZERO, ..config.clone() }), "timeout");
    let short = Some(Duration::from_millis(900));
    assert_eq!(refused(RedisConfig { time_to_live: short, ..config.clone() }), "time_to_live");
    assert!(matches!(RedisBackend::open(config), Err(StoreError::Backend(_))), "nobody is there");
    let nobody = Address::Tcp("127.0.0.1".into(), 1);
    assert!(matches!(
        RedisBackend::open(RedisConfig::new(nobody, 1 << 20, LEN)),
        Err(StoreError::Backend(_))
    ));
}

/// If a server is suspended during loads, the loads miss at their deadline. The slots remain in use
/// until no more data can arrive. No wrong bytes appear afterwards.
#[test]
fn a_server_that_is_stopped() {
    let Some(server) = Server::start(&[]) else { return };
    // The timeout is longer than the delays on a busy machine, but not longer than necessary, because
    // each round waits for it.
    let config = RedisConfig { timeout: Duration::from_secs(2), ..server.config(64) };
    let (mut store, arena) = open(config, always());
    store.put(&fill(&arena, 0), at(0)).unwrap();
    assert_eq!(finish(&mut store, at(0))[0].objects, [Ok(()); SLOTS as usize]);
    for round in 1..4 {
        server.stop(true);
        store.get(&wanted(0), at(10 * round)).unwrap();
        let mut done = Vec::new();
        store.poll(at(10 * round + 2), &mut done);
        assert!(done[0].objects.iter().all(|object| *object == Err(Why::TimedOut)), "{done:?}");
        // The timeout of the socket has passed, so the slots are free now, although the server is still
        // suspended.
        settle(&mut store, at(10 * round + 2));
        assert_eq!(store.stats().quarantined, 0);
        for slot in 0..SLOTS {
            arena.write(slot).unwrap().fill(0xee);
        }
        server.stop(false);
        assert!((0..SLOTS).all(|slot| arena.read(slot).unwrap().iter().all(|&byte| byte == 0xee)));
        // The circuit breaker allows one call as a trial.
        store.get(&wanted(0)[..1], at(10 * round + 9)).unwrap();
        assert_eq!(finish(&mut store, at(10 * round + 9))[0].objects, [Ok(())]);
        store.get(&wanted(0), at(10 * round + 9)).unwrap();
        let objects = finish(&mut store, at(10 * round + 9)).remove(0).objects;
        assert_eq!(check(&arena, 0, &objects), SLOTS as usize, "{objects:?}");
    }
}

#[test]
fn a_server_that_is_killed_and_comes_back_empty() {
    let Some(mut server) = Server::start(&[]) else { return };
    let (mut store, arena) = open(server.config(64), StoreConfig { workers: 4, ..always() });
    let mut loaded = 0;
    for round in 0..8 {
        let first = u64::from(SLOTS) * (round % 2);
        let now = at(100 * round);
        let job = store.put(&fill(&arena, first), now).unwrap();
        if round % 4 == 3 {
            server.kill();
        }
        let done = finish(&mut store, now).remove(0);
        assert_eq!(done.job, job);
        settle(&mut store, now);
        if round % 4 == 3 {
            server.restart();
        }
        let now = at(100 * round + 50);
        store.get(&wanted(first), now).unwrap();
        let objects = finish(&mut store, now).remove(0).objects;
        loaded += check(&arena, first, &objects);
        settle(&mut store, now);
        store.check_invariants().unwrap();
    }
    assert!(loaded >= 4 * SLOTS as usize, "{loaded}: {:?}", store.stats());
    // After the server was emptied, each object is a miss once and is then written again.
    server.ask(&[b"FLUSHALL"]);
    store.get(&wanted(0), at(2000)).unwrap();
    let objects = finish(&mut store, at(2000)).remove(0).objects;
    assert!(objects.iter().all(|object| *object == Err(Why::Absent)), "{objects:?}");
    settle(&mut store, at(2000));
    store.put(&fill(&arena, 0), at(2000)).unwrap();
    assert_eq!(finish(&mut store, at(2000))[0].objects, [Ok(()); SLOTS as usize]);
}

/// A server without free memory returns an error for writes. The circuit breaker remains closed, and
/// stored objects can still be loaded.
#[test]
fn a_server_that_is_full() {
    let Some(server) = Server::start(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]) else {
        return;
    };
    let (mut store, arena) = open(server.config(4096), always());
    let mut full = 0;
    for first in (0..2048).step_by(SLOTS as usize) {
        store.put(&fill(&arena, first), at(0)).unwrap();
        let objects = finish(&mut store, at(0)).remove(0).objects;
        assert!(objects.iter().all(|object| matches!(object, Ok(()) | Err(Why::Full))), "{objects:?}");
        full += objects.iter().filter(|object| object.is_err()).count() as u64;
    }
    settle(&mut store, at(0));
    assert!(full > 0 && store.stats().full == full && store.stats().opened == 0, "{:?}", store.stats());
    store.get(&wanted(0), at(0)).unwrap();
    let objects = finish(&mut store, at(0)).remove(0).objects;
    assert_eq!(check(&arena, 0, &objects), SLOTS as usize);
}

/// The server refuses to read a value of another type. The object is a miss, and the connection remains
/// usable.
#[test]
fn a_key_with_a_foreign_value_is_a_miss() {
    let Some(server) = Server::start(&[]) else { return };
    let (mut store, arena) = open(server.config(8), always());
    let name = ObjectName { namespace: store.namespace().digest(), key: key(1) };
    server.ask(&[b"LPUSH", format!("kvpool/{name}").as_bytes(), b"a list"]);
    assert_eq!(get(&mut store, &arena, 1, at(0)), Err(Why::Failed));
    assert!(store.stats().last_error.unwrap().contains("WRONGTYPE"));
    put(&mut store, &arena, 1, at(0)).unwrap();
    assert_eq!(get(&mut store, &arena, 1, at(0)), Ok(()));
    // The key of an object expires after a time on the server.
    let lives = server.ask(&[b"TTL", format!("kvpool/{name}").as_bytes()]);
    let lives: u64 = String::from_utf8(lives).unwrap().parse().unwrap();
    assert!((80_000..=86_400).contains(&lives), "{lives}");
}

/// Puts every kind of value in place of an object, with both protocols. Foreign values are counted and
/// never changed.
#[test]
fn an_inspection_names_the_fault_of_each_value() {
    let Some(server) = Server::start(&[]) else { return };
    let (mut store, arena) = open(server.config(16), always());
    store.put(&fill(&arena, 0), at(0)).unwrap();
    finish(&mut store, at(0));
    let carried = store.namespace().clone();
    let digest = carried.digest();
    let name = |n: u64| format!("kvpool/{}", ObjectName { namespace: digest, key: key(n) }).into_bytes();
    let value = server.ask(&[b"GET", &name(1)]);
    // Keys 2 to 8 get, in this order: the value of another object, one byte more, fewer bytes, a header
    // alone, a value without a header, a list, and a payload with a changed byte.
    server.ask(&[b"SET", &name(2), &value]);
    server.ask(&[b"SETRANGE", &name(3), (LEN + 112).to_string().as_bytes(), b"x"]);
    server.ask(&[b"SET", &name(4), &server.ask(&[b"GETRANGE", &name(4), b"0", b"5000"])]);
    server.ask(&[b"SET", &name(5), &server.ask(&[b"GETRANGE", &name(5), b"0", b"111"])]);
    server.ask(&[b"SET", &name(6), b"short"]);
    server.ask(&[b"DEL", &name(7)]);
    server.ask(&[b"RPUSH", &name(7), b"a list"]);
    server.ask(&[b"SETRANGE", &name(8), b"3000", b"\0"]);
    for other in [&b"session"[..], b"kvpool/", b"kvpool/notes.json", b"\xff\xfe"] {
        server.ask(&[b"SET", other, b"of somebody else"]);
    }
    server.ask(&[b"SET", format!("kvpool/{}.json", namespace(2).digest()).as_bytes(), b"{}"]);
    for protocol in [2, 3] {
        let inspector = Inspector::open(RedisConfig { protocol, ..server.config(16) }).unwrap();
        for verify in [false, true] {
            let page = inspector.scan(0, verify).unwrap();
            assert_eq!((page.next, page.others, page.objects.len()), (0, 4, 16));
            assert_eq!(inspector.keys().unwrap(), 16 + 4 + 1 + 2);
            let mut texts = page.namespaces;
            texts.sort_by_key(|(of, _)| *of != digest);
            assert_eq!(texts, [(digest, Some(carried.clone())), (namespace(2).digest(), None)]);
            for seen in page.objects {
                let n = (0..16).find(|&n| key(n) == seen.name.key).unwrap();
                let expected = match n {
                    2 => matches!(seen.header, Err(Mismatch::Key { .. })),
                    3..6 => matches!(seen.header, Err(Mismatch::Length { .. })),
                    6 | 7 => matches!(seen.header, Err(Mismatch::Header(HeaderError::Short { .. }))),
                    8 if verify => matches!(seen.header, Err(Mismatch::Payload { .. })),
                    _ => seen.header.is_ok_and(|header| header.namespace == digest && header.len == LEN),
                };
                assert!(expected, "object {n}: {:?}", seen.header);
            }
        }
    }
    let inspector = Inspector::open(server.config(16)).unwrap();
    inspector
        .remove(&(2..9).map(|n| ObjectName { namespace: digest, key: key(n) }).collect::<Vec<_>>())
        .unwrap();
    inspector.forget(namespace(2).digest()).unwrap();
    let page = inspector.scan(0, true).unwrap();
    assert!(page.objects.len() == 9 && page.objects.iter().all(|seen| seen.header.is_ok()));
    assert_eq!((page.namespaces.len(), page.others), (1, 4));
}

#[test]
fn a_name_is_its_text_and_no_other() {
    let name = ObjectName { namespace: namespace(1).digest(), key: ObjectKey { group: 7, ..key(3) } };
    let text = name.to_string();
    assert_eq!(text.parse(), Ok(name));
    for wrong in [
        String::new(),
        text.replace('/', "//"),
        text.replace("-7", "-07"),
        text.replace("-7", "-+7"),
        text.replace("-7", "-4294967296"),
        text.to_uppercase(),
        format!("{text} "),
        text[1..].to_owned(),
        text.replace("-7", ""),
    ] {
        assert_eq!(wrong.parse::<ObjectName>(), Err(ParseNameError), "{wrong}");
    }
}
