//! Tests warm restarts. The intact part of a snapshot is used. The snapshot of another pool is a cold
//! start. A block is restored only if its bytes match its hash, whenever the process was killed.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::common::Numbers;
use crate::common::folder::Folder;
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig, PoolImage,
    SavedBlock,
};
use kvpool_store::warm::{Cold, SlotHeaders, load, save};
use kvpool_store::{NamespaceDigest, ObjectKey};

const OURS: NamespaceDigest = NamespaceDigest::from_bytes([7; 32]);

/// Returns the image of a pool in which every optional field of a block is set.
fn image(blocks: u32) -> PoolImage {
    let saved = |n: u32| SavedBlock {
        block: BlockId::new(n + 1),
        hash: BlockHash::from_bytes([n as u8; 32]),
        group: (n % 3) as u16,
        depth: n % 50,
        copy: n % 2,
        parent: (!n.is_multiple_of(4)).then(|| BlockHash::from_bytes([n as u8 / 2; 32])),
        behind: (n % 5 > 1).then(|| BlockId::new(n)),
        said: (!n.is_multiple_of(3)).then(|| kvpool::retention::SavedRetention {
            retention: Retention {
                keep: [Keep::Demoted, Keep::Pinned, Keep::Priority(Priority::new((n % 101) as u8).unwrap())]
                    [n as usize % 3],
                ttl: [None, Some(Ttl::Idle(f64::from(n))), Some(Ttl::Absolute(0.5))][n as usize / 3 % 3],
                then: if n.is_multiple_of(7) { Then::Demote } else { Then::Normal },
            },
            remaining: n.is_multiple_of(2).then(|| f64::from(n) / 3.0),
            tenant: (n % 9 == 1).then_some(TenantId(n)),
        }),
    };
    PoolImage {
        block_size: 16,
        num_blocks: 10_000,
        algorithm: Some(kvpool::HashAlgorithm::Sha256),
        settings: SETTINGS.into(),
        epoch: 3,
        blocks: (0..blocks).map(saved).collect(),
        free: (blocks + 1..blocks + 1500).map(BlockId::new).collect(),
    }
}

/// The text in which the owner of the pool stores its settings.
const SETTINGS: &str = "sha256, and what else a pool's owner says";
/// Number of bytes in a snapshot before its first chunk.
const HEADER: usize = 88 + SETTINGS.len();

fn written(folder: &Folder, image: &PoolImage) -> (PathBuf, Vec<u8>) {
    let path = folder.path().join("pool.warm");
    save(&path, image, OURS, 99).unwrap();
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn a_saved_image_is_loaded() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    for blocks in [0, 1, 1023, 1024, 1025, 3000] {
        let image = image(blocks);
        let (path, _) = written(&folder, &image);
        let snapshot = load(&path, OURS).unwrap();
        assert_eq!((snapshot.image, snapshot.saved_at, snapshot.lost), (image, 99, 0));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn another_one_is_a_cold_start() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let (path, bytes) = written(&folder, &image(5));
    let other = NamespaceDigest::from_bytes([8; 32]);
    assert!(matches!(load(&path, other), Err(Cold::Namespace { found: OURS, .. })));
    assert!(matches!(load(&folder.path().join("none"), OURS), Err(Cold::Absent)));
    assert!(matches!(load(folder.path(), OURS), Err(Cold::Unreadable(_))));
    for bit in 0..HEADER * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bytes).unwrap();
        assert!(matches!(load(&path, OURS), Err(Cold::NoSnapshot)), "bit {bit} of the header");
    }
    assert!(save(&folder.path().join("no/such/folder"), &image(5), OURS, 0).is_err());
}

/// If a snapshot is truncated, the blocks before that point are restored. They are the blocks that
/// would be evicted last.
#[test]
fn a_cut_snapshot_restores_the_part_before_the_cut() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let image = image(3000);
    let (path, bytes) = written(&folder, &image);
    let mut kept = Vec::new();
    for cut in (0..HEADER).chain((HEADER..bytes.len()).step_by(997)).chain(bytes.len() - 20..bytes.len()) {
        fs::write(&path, &bytes[..cut]).unwrap();
        let Ok(snapshot) = load(&path, OURS) else {
            assert!(cut < HEADER, "cut at {cut}");
            continue;
        };
        assert_eq!(snapshot.lost, 3000 - snapshot.image.blocks.len());
        assert_eq!(snapshot.image.blocks, image.blocks[snapshot.lost..]);
        kept.push(snapshot.image.blocks.len());
    }
    assert!(kept.is_sorted());
    kept.dedup();
    assert_eq!(kept, [0, 1024, 2048, 3000]);
}

/// If a bit of a snapshot is flipped, only the chunk that contains it is lost. No wrong block is
/// restored.
#[test]
fn damage_costs_a_chunk() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let image = image(3000);
    let (path, bytes) = written(&folder, &image);
    let mut numbers = Numbers(1);
    for _ in 0..300 {
        let mut damaged = bytes.clone();
        let at = HEADER + numbers.below((bytes.len() - HEADER) as u64) as usize;
        damaged[at] ^= 1 << numbers.below(8);
        fs::write(&path, damaged).unwrap();
        let snapshot = load(&path, OURS).unwrap();
        assert!(snapshot.lost <= 1024, "byte {at}");
        assert!(snapshot.image.blocks.iter().all(|saved| image.blocks.contains(saved)));
    }
}

#[test]
fn a_pool_through_a_file() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let limits = TenantLimits { tenant: TenantId(4), floor: 1, ceiling: Some(9) };
    let retention = Some(RetentionConfig { pin_budget: 2, tenants: vec![limits] });
    let eviction = kvpool_policies::LRU;
    let config = PoolConfig { num_blocks: 40, block_size: 1, eviction, retention, ..PoolConfig::default() };
    let mut pool = BlockPool::new(config.clone()).unwrap();
    pool.advance_time(5.0).unwrap();
    let hasher =
        Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap());
    for family in 0..6 {
        let mut cursor = HashCursor::new(hasher.clone(), ExtraKeys::default()).unwrap();
        cursor.append(&[1, 2, family, family + 1]);
        let mut table = pool.match_and_acquire(cursor.chain(), 4).unwrap();
        let hits = table.len();
        pool.allocate_into(4 - hits, &mut table).unwrap();
        pool.register(&table[hits..], cursor.chain(), hits).unwrap();
        pool.mark_computed(&table[hits..]).unwrap();
        let keep = Keep::Priority(Priority::new(20 * family as u8).unwrap());
        pool.retain(&table[2..], Retention { ttl: Some(Ttl::Idle(60.0)), ..Retention::of(keep) }).unwrap();
        pool.assign_tenant(&table[3..], TenantId(4)).unwrap();
        pool.release_table(&table).unwrap();
    }
    let path = folder.path().join("pool.warm");
    save(&path, &pool.image().unwrap(), OURS, 0).unwrap();
    let mut again = BlockPool::new(config).unwrap();
    again.advance_time(5.0).unwrap();
    again.restore(&load(&path, OURS).unwrap().image, 0.0, |_| true).unwrap();
    again.check_invariants().unwrap();
    assert_eq!(again.image().unwrap(), pool.image().unwrap());
    assert_eq!(again.retention_stats(), pool.retention_stats());
    assert_eq!(again.tenant_blocks(TenantId(4)).unwrap(), pool.tenant_blocks(TenantId(4)).unwrap());
}

#[test]
fn headers_of_slots() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path()).unwrap();
    let path = folder.path().join("slots");
    let key = |n: u8| ObjectKey { hash: BlockHash::from_bytes([n; 32]), group: u32::from(n) };
    let slots = SlotHeaders::open(&path, OURS, 4).unwrap();
    slots.seal(1, key(1), b"KV of one").unwrap();
    slots.seal(2, key(2), b"KV of two").unwrap();
    slots.clear(&[2, 3]).unwrap();
    assert!(slots.seal(4, key(1), b"").is_err() && slots.clear(&[1, 4]).is_err());
    let second = SlotHeaders::open(&path, OURS, 4).map(|_| ()).map_err(|error| error.kind());
    assert_eq!(second, Err(std::io::ErrorKind::ResourceBusy), "one at a time");
    drop(slots);
    let headers = SlotHeaders::open(&path, OURS, 4).unwrap().read().unwrap();
    let header = headers.expect(1, key(1)).unwrap();
    assert!(header.verify(b"KV of one").is_ok() && header.verify(b"KV of own").is_err());
    for (slot, key) in [(1, key(2)), (2, key(2)), (0, key(0)), (4, key(1))] {
        assert!(headers.expect(slot, key).is_err(), "slot {slot}");
    }
    let other = SlotHeaders::open(&path, NamespaceDigest::from_bytes([9; 32]), 4).unwrap().read().unwrap();
    assert!(other.expect(1, key(1)).is_err());
    // The file of headers belongs to a memory with another number of slots, so it is emptied.
    assert!(SlotHeaders::open(&path, OURS, 5).unwrap().read().unwrap().expect(1, key(1)).is_err());
}

// Tests in which an engine is killed (`kill -9`).

const BLOCKS: u32 = 60;
const SLOT_BYTES: u64 = 4096;

/// Returns the KV of a block. It depends only on the hash, so that a reader can check it.
fn kv(hash: &BlockHash) -> Vec<u8> {
    hash.as_bytes().repeat(SLOT_BYTES as usize / 32)
}

fn engine_config() -> PoolConfig {
    PoolConfig { num_blocks: BLOCKS as usize, block_size: 1, ..PoolConfig::default() }
}

/// An engine whose KV memory is a file. For each block, it clears the slot's header, writes the KV in
/// pieces, writes the header, and registers the block. From time to time it saves a snapshot.
struct Engine {
    pool: BlockPool,
    memory: File,
    slots: SlotHeaders,
    hasher: Arc<BlockHasher>,
    folder: PathBuf,
}

impl Engine {
    fn open(folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        let memory = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("memory"))
            .unwrap();
        memory.set_len(u64::from(BLOCKS) * SLOT_BYTES).unwrap();
        Self {
            pool: BlockPool::new(engine_config()).unwrap(),
            memory,
            slots: SlotHeaders::open(&folder.join("slots"), OURS, BLOCKS).unwrap(),
            hasher: Arc::new(
                BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap(),
            ),
            folder: folder.into(),
        }
    }

    fn payload(&self, block: BlockId) -> Vec<u8> {
        let mut bytes = vec![0; SLOT_BYTES as usize];
        self.memory.read_exact_at(&mut bytes, u64::from(block.get()) * SLOT_BYTES).unwrap();
        bytes
    }

    /// Restores the blocks whose KV matches the header of their slot. Returns their number, and the
    /// number of blocks whose KV does not match.
    fn restore(&mut self) -> (usize, usize) {
        let Ok(snapshot) = load(&self.folder.join("warm"), OURS) else { return (0, 0) };
        let headers = self.slots.read().unwrap();
        let mut pool = std::mem::replace(&mut self.pool, BlockPool::new(engine_config()).unwrap());
        let agrees = |saved: &SavedBlock| {
            let key = ObjectKey { hash: saved.hash, group: u32::from(saved.group) };
            let header = headers.expect(saved.block.get(), key);
            header.is_ok_and(|header| header.verify(&self.payload(saved.block)).is_ok())
        };
        let restored = pool.restore(&snapshot.image, 0.0, agrees).unwrap();
        pool.check_invariants().unwrap();
        self.pool = pool;
        (restored.blocks, restored.refused)
    }

    fn serve(&mut self, numbers: &mut Numbers) {
        let mut cursor = HashCursor::new(self.hasher.clone(), ExtraKeys::default()).unwrap();
        let family = numbers.below(9) as u32;
        cursor.append(
            &(0..3 + numbers.below(9) as u32).map(|at| if at < 2 { 1 } else { family }).collect::<Vec<_>>(),
        );
        let mut table = self.pool.match_and_acquire(cursor.chain(), usize::MAX).unwrap();
        let hits = table.len();
        for (block, hash) in table.iter().zip(cursor.chain().hashes()) {
            assert!(self.payload(*block) == kv(hash), "WRONG KV");
        }
        let missing = cursor.chain().len() - hits;
        self.pool.allocate_into(missing, &mut table).unwrap();
        let ids: Vec<_> = table[hits..].iter().map(|block| block.get()).collect();
        self.slots.clear(&ids).unwrap();
        for (&id, hash) in ids.iter().zip(&cursor.chain().hashes()[hits..]) {
            let bytes = kv(hash);
            for (part, piece) in (0..).zip(bytes.chunks(1024)) {
                self.memory.write_all_at(piece, u64::from(id) * SLOT_BYTES + part * 1024).unwrap();
            }
            self.slots.seal(id, ObjectKey { hash: *hash, group: 0 }, &bytes).unwrap();
        }
        self.pool.register(&table[hits..], cursor.chain(), hits).unwrap();
        self.pool.mark_computed(&table[hits..]).unwrap();
        self.pool.release_table(&table).unwrap();
    }
}

/// The process that the test kills: an engine that serves requests.
#[test]
fn engine() {
    let Ok(folder) = std::env::var("KVPOOL_WARM_ENGINE") else { return }; // not the other process
    let seed: u64 = std::env::var("KVPOOL_WARM_SEED").unwrap().parse().unwrap();
    let (mut engine, mut numbers) = (Engine::open(folder.as_ref()), Numbers(seed));
    engine.restore();
    let mut told = std::io::stdout();
    for turn in 0_u64.. {
        engine.serve(&mut numbers);
        if turn.is_multiple_of(3) {
            save(&engine.folder.join("warm"), &engine.pool.image().unwrap(), OURS, turn).unwrap();
            writeln!(told, "saved {turn}").unwrap();
        }
    }
}

/// Number of times that an engine is killed.
fn kills() -> u64 {
    std::env::var("KVPOOL_STORE_KILLS").map_or(10, |kills| kills.parse().unwrap())
}

#[test]
fn a_killed_engine_is_warm_and_never_wrong() {
    let folder = Folder::new();
    let (mut restored, mut refused) = (0, 0);
    for round in 0..kills() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["warm::engine", "--exact", "--nocapture"])
            .env("KVPOOL_WARM_ENGINE", folder.path())
            .env("KVPOOL_WARM_SEED", (round * 77).to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 + round * 5 % 9 {
            while !lines.next().unwrap().unwrap().starts_with("saved") {}
        }
        // Kill the engine at an arbitrary moment, which depends on the machine and on the length of
        // this loop.
        (0..round * 3571 % 50_000).for_each(|n| _ = std::hint::black_box(n));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut engine = Engine::open(folder.path());
        let (blocks, others) = engine.restore();
        (restored, refused) = (restored + blocks, refused + others);
        for id in 1..BLOCKS {
            if let Some(hash) = engine.pool.hash_of(BlockId::new(id)) {
                assert!(engine.payload(BlockId::new(id)) == kv(&hash), "WRONG KV in block {id}");
            }
        }
        // The restored engine serves further requests, and checks the KV of every hit.
        let mut numbers = Numbers(round);
        (0..20).for_each(|_| engine.serve(&mut numbers));
        engine.pool.check_invariants().unwrap();
        save(&engine.folder.join("warm"), &engine.pool.image().unwrap(), OURS, 0).unwrap();
    }
    assert!(restored > 20 * kills() as usize, "{restored} blocks restored, {refused} refused");
}
