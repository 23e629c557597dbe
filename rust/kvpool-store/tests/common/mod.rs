//! Code that the tests of stores share: keys, payloads, and a back end in memory that fails, stalls or
//! returns wrong data on demand.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "each test uses a part"
)]

pub(crate) mod folder;
pub(crate) mod redis;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kvpool::BlockHash;
use kvpool_store::{
    Admit, Arena, Backend, BackendError, Completion, Generation, Get, HEADER_BYTES, Header, Namespace,
    NamespaceDigest, Object, ObjectKey, ObjectMut, ObjectName, Place, Put, Span, Store, StoreConfig,
    TokenRange, Why,
};

pub(crate) const LEN: u32 = 5000;

/// Time limit of every wait, which ends a test that would otherwise hang. It is far longer than any
/// machine needs.
pub(crate) const AGES: Duration = Duration::from_secs(120);

/// A deterministic sequence of numbers (`SplitMix64`).
#[derive(Debug)]
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

pub(crate) fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn namespace(n: u8) -> Namespace {
    Namespace {
        model: format!("model {n}"),
        weights: String::new(),
        kv_dtype: "bf16".into(),
        scales: String::new(),
        layouts: Vec::new(),
        block_size: 16,
        layers: Span::default(),
        heads: Span::default(),
        hash_algorithm: "sha256".into(),
        hash_seed: Vec::new(),
        extra: BTreeMap::new(),
    }
}

pub(crate) fn key(n: u64) -> ObjectKey {
    let mut hash = [0xaa; 32];
    hash[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    hash[8..16].copy_from_slice(&n.to_le_bytes());
    ObjectKey { hash: BlockHash::from_bytes(hash), group: 0 }
}

/// Returns the payload for a key. All payloads are different, and none consists only of zeros.
pub(crate) fn payload(n: u64, len: u32) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (u64::from(i).wrapping_mul(31) ^ n.wrapping_mul(0x9e37_79b9) ^ (u64::from(i) >> 8)) as u8 | 1
        })
        .collect()
}

pub(crate) fn always() -> StoreConfig {
    StoreConfig { admission: Admit::Always, workers: 2, ..StoreConfig::default() }
}

/// Waits until a job has ended. The clock of the store does not advance.
pub(crate) fn finish(store: &mut Store, now: Duration) -> Vec<Completion> {
    let mut out = Vec::new();
    while out.is_empty() {
        store.wait(now, AGES, &mut out);
    }
    out
}

/// Waits until every task of the store has ended.
pub(crate) fn settle(store: &mut Store, now: Duration) -> Vec<Completion> {
    let mut out = Vec::new();
    store.poll(now, &mut out);
    for _ in 0..10_000 {
        if store.is_idle() {
            return out;
        }
        let mut more = Vec::new();
        store.wait(now, AGES, &mut more);
        out.append(&mut more);
    }
    panic!("never idle: {:?}", store.stats());
}

pub(crate) fn put(store: &mut Store, arena: &Arc<Arena>, n: u64, now: Duration) -> Result<(), Why> {
    arena.write(0).unwrap()[..LEN as usize].copy_from_slice(&payload(n, LEN));
    let tokens = TokenRange { first: 0, count: 16 };
    store.put(&[Put { key: key(n), tokens, len: LEN, slot: 0, admit: None }], now).unwrap();
    settle(store, now).pop().unwrap().objects[0]
}

/// Loads an object and checks its bytes. After a miss, checks that the slot contains no bytes of an
/// object.
pub(crate) fn get(store: &mut Store, arena: &Arc<Arena>, n: u64, now: Duration) -> Result<(), Why> {
    arena.write(1).unwrap().fill(0);
    store.get(&[Get { key: key(n), len: LEN, slot: 1 }], now).unwrap();
    let got = settle(store, now).pop().unwrap().objects[0];
    let slot = arena.read(1).unwrap();
    match got {
        Ok(()) => assert!(slot[..LEN as usize] == payload(n, LEN), "wrong bytes of {n}"),
        Err(_) => assert!(slot.iter().all(|&byte| byte == 0), "bytes of a load that missed"),
    }
    got
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    #[default]
    Works,
    Fails,
    IsFull,
    Panics,
}

#[derive(Debug, Default)]
struct Inside {
    mode: Mode,
    /// Whether calls of the back end wait until this becomes false.
    stalled: bool,
    /// Whether replies to probes are held back. A reply then describes the state before this delay.
    answers_late: bool,
    waiting: usize,
    objects: HashMap<Place, (ObjectKey, Vec<u8>, Vec<u8>)>,
    generations: HashMap<[u8; 32], Generation>,
    calls: u64,
}

impl Inside {
    /// Removes the object at a place. Checks that `names`, which the store passed, contains its key.
    /// This is not checked if the header is damaged, because the store then cannot know the key.
    fn leave(&mut self, place: Place, names: &[ObjectName]) {
        if let Some((old, header, _)) = self.objects.remove(&place) {
            assert!(
                names.iter().any(|name| name.key == old) || Header::decode(&header).is_err(),
                "{old:?} goes, and was not told"
            );
        }
    }
}

/// A back end that stores objects in memory.
#[derive(Debug)]
pub(crate) struct Fake {
    places: u32,
    pub(crate) shared: bool,
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Fake {
    pub(crate) fn new(places: u32) -> Arc<Self> {
        Arc::new(Self { places, shared: false, inside: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn shared(places: u32) -> Arc<Self> {
        Arc::new(Self { places, shared: true, inside: Mutex::default(), changed: Condvar::new() })
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.inside.lock().unwrap().mode = mode;
    }

    pub(crate) fn stall(&self, stalled: bool) {
        self.inside.lock().unwrap().stalled = stalled;
        self.changed.notify_all();
    }

    pub(crate) fn answers_late(&self, late: bool) {
        self.inside.lock().unwrap().answers_late = late;
        self.changed.notify_all();
    }

    /// Removes the objects with this key, as a back end does that loses them. Returns their number.
    pub(crate) fn forget(&self, n: u64) -> usize {
        let mut inside = self.inside.lock().unwrap();
        let before = inside.objects.len();
        inside.objects.retain(|_, (of, ..)| *of != key(n));
        before - inside.objects.len()
    }

    /// Waits until `calls` calls wait in the back end.
    pub(crate) fn until_waiting(&self, calls: usize) {
        let inside = self.inside.lock().unwrap();
        let (inside, _) =
            self.changed.wait_timeout_while(inside, AGES, |inside| inside.waiting < calls).unwrap();
        assert!(inside.waiting >= calls, "{} calls are waiting", inside.waiting);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.inside.lock().unwrap().calls
    }

    pub(crate) fn objects(&self) -> usize {
        self.inside.lock().unwrap().objects.len()
    }

    pub(crate) fn has(&self, n: u64) -> bool {
        self.inside.lock().unwrap().objects.values().any(|(of, ..)| *of == key(n))
    }

    /// Flips a bit in an object's header or payload. Returns false if the object does not exist.
    pub(crate) fn flip(&self, n: u64, bit: usize) -> bool {
        let mut inside = self.inside.lock().unwrap();
        let Some((_, header, payload)) = inside.objects.values_mut().find(|(of, ..)| *of == key(n)) else {
            return false;
        };
        let (byte, all) = (bit / 8 % (HEADER_BYTES + LEN as usize), HEADER_BYTES);
        let byte = if byte < all { &mut header[byte] } else { &mut payload[byte - all] };
        *byte ^= 1 << (bit % 8);
        true
    }

    /// Begins a call that reads or writes the record of a generation. Such calls do not wait while
    /// `stalled` is true.
    fn record(&self) -> Result<std::sync::MutexGuard<'_, Inside>, BackendError> {
        let inside = self.inside.lock().unwrap();
        if inside.mode == Mode::Works { Ok(inside) } else { Err(BackendError::Full) }
    }

    fn enter(&self) -> Result<std::sync::MutexGuard<'_, Inside>, BackendError> {
        let mut inside = self.inside.lock().unwrap();
        inside.calls += 1;
        inside.waiting += 1;
        self.changed.notify_all();
        inside = self.changed.wait_while(inside, |inside| inside.stalled).unwrap();
        inside.waiting -= 1;
        match inside.mode {
            Mode::Works => Ok(inside),
            Mode::IsFull => Err(BackendError::Full),
            Mode::Fails => {
                Err(BackendError::Io { operation: "a test", error: std::io::Error::other("asked to fail") })
            }
            Mode::Panics => {
                drop(inside);
                panic!("asked to panic")
            }
        }
    }
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn places(&self) -> u32 {
        self.places
    }

    fn object_bytes(&self) -> u64 {
        8192
    }

    fn max_payload(&self) -> u32 {
        LEN
    }

    fn is_shared(&self) -> bool {
        self.shared
    }

    fn restore(&self, _: NamespaceDigest, found: &mut dyn FnMut(Place, &[u8])) -> Result<(), BackendError> {
        let inside = self.inside.lock().unwrap();
        for place in 0..if self.shared { 0 } else { self.places } {
            if let Some((_, header, _)) = inside.objects.get(&place) {
                found(place, header);
            }
        }
        Ok(())
    }

    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
        Ok(self.record()?.generations.get(of.as_bytes()).copied())
    }

    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError> {
        let mut inside = self.record()?;
        if replaces || !inside.generations.contains_key(of.as_bytes()) {
            inside.generations.insert(*of.as_bytes(), generation);
        }
        Ok(())
    }

    fn write(
        &self,
        place: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        let mut inside = self.enter()?;
        assert!(place < self.places);
        inside.leave(place, replaces);
        let bytes = (name.key, object.header.0.to_vec(), object.pages[..object.len as usize].to_vec());
        inside.objects.insert(place, bytes);
        Ok(())
    }

    fn read(&self, place: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        let inside = self.enter()?;
        let object = match place {
            Some(place) => inside.objects.get(&place),
            None => inside.objects.values().find(|(of, ..)| *of == name.key),
        };
        let (_, header, payload) = object.ok_or(BackendError::Absent)?;
        into.header.0.copy_from_slice(header);
        into.pages[..payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        let mut inside = self.enter()?;
        let has = |name: &ObjectName| inside.objects.values().any(|(of, ..)| *of == name.key);
        let answers = names.iter().map(has).collect();
        inside.waiting += 1;
        self.changed.notify_all();
        inside = self.changed.wait_while(inside, |inside| inside.answers_late).unwrap();
        inside.waiting -= 1;
        Ok(answers)
    }

    fn clear(&self, place: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError> {
        let mut inside = self.enter()?;
        match place {
            Some(place) => inside.leave(place, names),
            None => inside.objects.retain(|_, (of, ..)| names.iter().all(|name| name.key != *of)),
        }
        Ok(())
    }
}
