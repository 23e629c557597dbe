//! Compares random copies on the CPU with a model of the bytes. A refused copy changes nothing. An
//! accepted copy is one simultaneous assignment of exactly the requested pieces.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;

use kvpool_transfer::{
    After, Device, EngineConfig, HostOptions, Options, Region, Store, TransferEngine, TransferError,
};
use proptest::prelude::*;

/// The memory of a test. Its stores use parts of this memory.
struct Arena {
    bytes: Vec<u8>,
}

impl Arena {
    fn new(len: usize) -> Self {
        Self { bytes: (0..len).map(|at| (at * 31 % 251) as u8).collect() }
    }

    fn store(
        &mut self,
        regions: &[(usize, usize, usize)],
        num_blocks: u64,
    ) -> Result<Arc<Store>, TransferError> {
        let base = self.bytes.as_mut_ptr() as u64;
        let regions = regions
            .iter()
            .map(|&(at, stride, nbytes)| Region {
                base: base + at as u64,
                stride: stride as u64,
                nbytes: nbytes as u64,
            })
            .collect();
        // SAFETY: the layouts of these tests end within the arena. The arena outlives its stores, and
        // no other code accesses it meanwhile.
        unsafe { Store::new(regions, num_blocks, Device::Cpu, Vec::new(), false, None) }
    }
}

/// Draws the offset, stride and length of each region, and the number of blocks. The pieces of a block
/// are either side by side, or each region is a plane of its own.
fn layout() -> impl Strategy<Value = (Vec<(usize, usize, usize)>, u64)> {
    (1_usize..4, 1_usize..40, 0_usize..9, 1_u64..12, any::<bool>()).prop_map(
        |(count, nbytes, padding, blocks, planes)| {
            let stride = if planes { nbytes + padding } else { count * nbytes + padding };
            let step = if planes { stride * blocks as usize } else { nbytes };
            ((0..count).map(|index| (index * step, stride, nbytes)).collect(), blocks)
        },
    )
}

/// Returns the bytes of the arena after the copy, or `None` if the copy has to be refused.
fn model(
    bytes: &[u8],
    layout: &[(usize, usize, usize)],
    blocks: u64,
    shift: usize,
    pairs: &[(i64, i64)],
    range: (usize, usize),
) -> Option<Vec<u8>> {
    let known = |block: i64| u64::try_from(block).is_ok_and(|block| block < blocks);
    if !pairs.iter().all(|&(src, dst)| known(src) && known(dst)) {
        return None;
    }
    if pairs.iter().map(|&(_, dst)| dst).collect::<HashSet<_>>().len() < pairs.len() {
        return None;
    }
    let (mut read, mut written) = (HashSet::new(), HashMap::new());
    for &(src, dst) in pairs.iter().filter(|&&(src, dst)| shift > 0 || src != dst) {
        for &(at, stride, nbytes) in &layout[range.0..range.1] {
            for byte in 0..nbytes {
                let from = at + src as usize * stride + byte;
                let to = at + dst as usize * stride + byte + shift;
                read.insert(from);
                written.insert(to, bytes[from]);
            }
        }
    }
    if written.keys().any(|to| read.contains(to)) {
        return None;
    }
    let mut after = bytes.to_vec();
    written.into_iter().for_each(|(to, value)| after[to] = value);
    Some(after)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Copies within one store, or between two stores over the same memory. In the latter case, the
    /// second store begins `shift` bytes after the first.
    #[test]
    fn copies_within_an_arena(
        (layout, blocks) in layout(),
        shift in prop_oneof![Just(0_usize), 1_usize..600],
        pairs in prop::collection::vec((-1_i64..12, -1_i64..12), 0..6),
        part in (0_usize..3, 1_usize..4),
        submitted in any::<bool>(),
    ) {
        let mut arena = Arena::new(4096);
        let src = arena.store(&layout, blocks).expect("a layout of the generator");
        let moved: Vec<_> = layout.iter().map(|&(at, stride, nbytes)| (at + shift, stride, nbytes)).collect();
        let dst = if shift == 0 { src.clone() } else {
            arena.store(&moved, blocks).expect("the same, moved") };
        let range = if submitted { (part.0.min(layout.len() - 1), 0) } else { (0, layout.len()) };
        let range = (range.0, if submitted { (range.0 + part.1).min(layout.len()) } else { range.1 });
        let expected = model(&arena.bytes, &layout, blocks, shift, &pairs, range);
        let before = arena.bytes.clone();
        let engine = TransferEngine::new(Device::Cpu, EngineConfig::default()).expect("an engine");
        let result = if submitted {
            let options = Options { regions: Some(range), ..Options::default() };
            engine.submit(&src, &dst, pairs.iter().copied(), &options)
                .and_then(|transfer| transfer.wait(None))
        } else {
            let stream = kvpool_transfer::StreamHandle::from_raw(0);
            engine.copy(&src, &dst, pairs.iter().copied(), stream, kvpool_transfer::Method::Auto)
        };
        match expected {
            None => {
                prop_assert!(result.is_err(), "accepted");
                prop_assert_eq!(&arena.bytes, &before);
            }
            Some(after) => {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(&arena.bytes, &after);
            }
        }
    }
}

#[test]
fn large_copies_are_shared_by_threads_and_cut_anywhere() {
    let (mut from, mut to) = (Arena::new(40 << 20), Arena::new(40 << 20));
    to.bytes.fill(0);
    // The four blocks are adjacent, so the copy is a single piece. Three threads split it in the middle
    // of blocks.
    let layout = [(0, (10 << 20) - 7, (10 << 20) - 7)];
    let (src, dst) = (from.store(&layout, 4).expect("fits"), to.store(&layout, 4).expect("fits"));
    let engine = TransferEngine::new(Device::Cpu, EngineConfig { threads: 3, ..EngineConfig::default() });
    let engine = engine.expect("an engine");
    let pairs = [0_i64, 1, 2, 3].map(|block| (block, block)).into_iter();
    engine.submit(&src, &dst, pairs, &Options::default()).expect("checked").wait(None).expect("copied");
    let end = 4 * ((10 << 20) - 7);
    assert!(from.bytes[..end] == to.bytes[..end]);
    assert!(to.bytes[end..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_transfer_follows_another_engines() {
    let mut arena = Arena::new(64);
    let store = arena.store(&[(0, 16, 16)], 4).expect("fits");
    let [first, second] =
        [(); 2].map(|()| TransferEngine::new(Device::Cpu, EngineConfig::default()).expect("an engine"));
    let one = first.submit(&store, &store, [(0, 1)].into_iter(), &Options::default()).expect("checked");
    let options = Options { after: After::Transfer(one), ..Options::default() };
    second
        .submit(&store, &store, [(1, 2)].into_iter(), &options)
        .expect("checked")
        .wait(None)
        .expect("copied");
    assert_eq!(store.read_block(2), store.read_block(0));
}

/// Two engines copy in both directions while threads read and write the same blocks. Whenever a thread
/// reads a block, it has the bytes of exactly one write.
#[test]
fn no_block_is_seen_half_written() {
    const BYTES: usize = 1 << 16;
    const BLOCKS: i64 = 3;
    let mut arena = Arena::new(BYTES);
    let like = arena.store(&[(0, BYTES, BYTES)], 1).expect("fits");
    let options = HostOptions { pinned: Some(false), ..HostOptions::default() };
    let [a, b] = [(); 2].map(|()| Store::host(BLOCKS as u64, &like, &options).expect("memory"));
    let write = |store: &Store, block, value| store.write_block(block, &vec![value; BYTES]).expect("a block");
    let copies = |src: &Arc<Store>, dst: &Arc<Store>| {
        let engine = TransferEngine::new(Device::Cpu, EngineConfig::default()).expect("an engine");
        for round in 0..150 {
            let pairs = (0..BLOCKS).map(|block| (block, (block + round) % BLOCKS)).collect::<Vec<_>>();
            if round % 3 == 0 {
                let stream = kvpool_transfer::StreamHandle::from_raw(0);
                engine
                    .copy(src, dst, pairs.into_iter(), stream, kvpool_transfer::Method::Auto)
                    .expect("checked");
            } else {
                engine.submit(src, dst, pairs.into_iter(), &Options::default()).expect("checked");
            }
        }
        engine.close();
    };
    (0..BLOCKS).for_each(|block| write(&a, block, block as u8));
    thread::scope(|scope| {
        scope.spawn(|| copies(&a, &b));
        scope.spawn(|| copies(&b, &a));
        scope.spawn(|| (0..150).for_each(|round| write(&b, round % BLOCKS, round as u8)));
        scope.spawn(|| {
            for round in 0..300 {
                let block = if round % 2 == 0 { &a } else { &b }.read_block(round % BLOCKS).expect("a block");
                assert!(block.iter().all(|&byte| byte == block[0]), "half written");
            }
        });
    });
}
