//! Random runs of a pool and of a manager that have a journal. The runs contain every call.

use kvpool::groups::{self, GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockId, BlockPool, CacheManager, Computed, Covered, DuplicatePolicy, ExtraKeys, Finish,
    HashAlgorithm, Loaded, ManagerConfig, Match, Part, PoolConfig, RequestRef, RetentionRange, Rows, Signal,
    SwapId, Ticket, Until, Verify,
};
use kvpool_journal::{Journal, JournalConfig, Journaled, ManagerCalls, PoolCalls};
use kvpool_observe::{ManagerWatchConfig, WatchConfig};
use proptest::prelude::*;

/// One call: its kind, and three numbers from which its arguments are made.
pub(crate) type Call = (u8, u32, u32, u32);

pub(crate) fn calls(most: usize) -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec((any::<u8>(), any::<u32>(), any::<u32>(), any::<u32>()), 1..most)
}

pub(crate) fn settings() -> impl Strategy<Value = ManagerConfig> {
    let policies = prop::sample::select(kvpool_policies::ALL.to_vec());
    let verify = prop::sample::select(vec![Verify::None, Verify::Fingerprint, Verify::Tokens]);
    let algorithms =
        prop::sample::select(vec![HashAlgorithm::Sha256, HashAlgorithm::Xxh3, HashAlgorithm::VllmSha256]);
    (policies, verify, algorithms, 6usize..40, 1usize..5, any::<bool>(), any::<bool>(), 0usize..3).prop_map(
        |(eviction, verify, algorithm, num_blocks, block_size, drop, retained, host)| ManagerConfig {
            num_blocks,
            block_size,
            algorithm,
            verify: if algorithm.is_cryptographic() { verify } else { verify.max(Verify::Fingerprint) },
            duplicates: if drop { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep },
            eviction,
            retention: (retained && eviction != kvpool_policies::LAST_ACCESS).then(|| RetentionConfig {
                pin_budget: 2,
                tenants: vec![TenantLimits { tenant: TenantId(1), floor: 1, ceiling: Some(3) }],
            }),
            watermark: 0.1,
            host_blocks: host * 8,
            ..ManagerConfig::default()
        },
    )
}

/// Generates settings of a manager for a hybrid model. Such a manager does not verify its hits.
pub(crate) fn hybrid_settings() -> impl Strategy<Value = ManagerConfig> {
    let keep = prop_oneof![
        Just(groups::Keep::All),
        (1usize..9).prop_map(groups::Keep::Every),
        Just(groups::Keep::Junctions),
        Just(groups::Keep::Nothing)
    ];
    let kind = prop_oneof![
        2 => Just(GroupKind::Full),
        2 => (1usize..9).prop_map(|window| GroupKind::Sliding { window }),
        1 => (1usize..7).prop_map(|chunk| GroupKind::Chunked { chunk }),
        2 => Just(GroupKind::State),
        1 => Just(GroupKind::Cross),
    ];
    let group = (kind, 1usize..3, keep, 0usize..2, 0usize..6);
    (settings(), prop::collection::vec(group, 1..4)).prop_map(|(config, specs)| {
        let spec = |(kind, times, keep, margin, sink)| {
            let block_tokens = times * config.block_size;
            let partly = !matches!(keep, groups::Keep::All | groups::Keep::Nothing);
            let partial_hits = kind == GroupKind::Full && margin == 0 && partly;
            let sink_tokens = if matches!(kind, GroupKind::Sliding { .. }) { sink } else { 0 };
            GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) }
        };
        let specs = specs.into_iter().map(spec).collect();
        let algorithm = match config.algorithm {
            HashAlgorithm::Xxh3 => HashAlgorithm::Sha256,
            strong => strong,
        };
        let groups = Some(Groups::new(specs, Some(config.block_size)).unwrap());
        ManagerConfig { groups, algorithm, verify: Verify::None, ..config }
    })
}

/// Generates settings of managers with and without KV-cache groups.
pub(crate) fn any_settings() -> impl Strategy<Value = ManagerConfig> {
    prop_oneof![settings(), hybrid_settings()]
}

pub(crate) fn ring(digest_every: u32) -> Journal {
    Journal::ring(1 << 24, JournalConfig { digest_every, frame_bytes: 512 }).unwrap()
}

fn retention(a: u32) -> Retention {
    let keep = match a % 4 {
        0 => Keep::Pinned,
        1 => Keep::Demoted,
        2 => Keep::Priority(Priority::new(80).unwrap()),
        _ => Keep::Priority(Priority::NORMAL),
    };
    let ttl = match a / 4 % 3 {
        0 => None,
        1 => Some(Ttl::Idle(f64::from(a % 7))),
        _ => Some(Ttl::Absolute(f64::from(a % 5))),
    };
    Retention { keep, ttl, then: if a.is_multiple_of(2) { Then::Normal } else { Then::Demote } }
}

/// Makes prompts that share prefixes. A prompt begins with equal tokens, followed by tokens that
/// alternate between two values.
fn prompt(a: u32, b: u32) -> Vec<u32> {
    let same = a as usize % 12;
    (0..same).map(|_| b % 2).chain((0..b as usize / 2 % 9).map(|at| b / 32 % 3 + at as u32 % 2)).collect()
}

fn extra(a: u32) -> ExtraKeys {
    ExtraKeys { salt: a.is_multiple_of(5).then(|| b"salt".as_slice().into()), ..ExtraKeys::default() }
}

/// Runs calls on a manager, which records them in its journal.
pub(crate) fn run_manager(manager: &mut Journaled<CacheManager>, calls: &[Call]) {
    let mut step = 0;
    for &(call, a, b, c) in calls {
        let id = i64::from(a % 6);
        let name = |a: u32| RequestRef::from(i64::from(a % 6));
        let after = c.is_multiple_of(3).then_some(u64::from(c % 8) + step);
        let ranges = [RetentionRange { start: (b % 9) as usize, end: None, retention: retention(c) }];
        // Ignore the result of each call, because the journal also records refused calls.
        match call % 40 {
            0..6 => {
                let mut cursor = manager.prepare(&prompt(b, c), extra(c)).unwrap();
                if c.is_multiple_of(17) {
                    cursor.rebase(99).unwrap();
                }
                let options = AdmitOptions {
                    part: part(a, b),
                    tenant: b.is_multiple_of(4).then_some(TenantId(1)),
                    no_cache: c.is_multiple_of(9),
                    ranges: if b.is_multiple_of(3) { ranges.to_vec() } else { Vec::new() },
                };
                let _ = manager.admit(id.into(), cursor, &options);
            }
            6 => {
                let odd = ["\0", "\u{1b}[31m", "a\u{301}", "\u{202e}x", "\"\\", "\u{1f600}"][a as usize % 6];
                drop(manager.admit(
                    format!("{odd}{id}").into(),
                    manager.prepare(&prompt(b, c), extra(c)).unwrap(),
                    &AdmitOptions::default(),
                ));
            }
            7 | 8 => {
                let ids: Vec<_> = (0..b % 4).map(|at| name(a + at)).collect();
                let computed = if c.is_multiple_of(2) { Computed::AllButLast } else { Computed::Nothing };
                let tokens = vec![c % 3; ids.len()];
                let rows = Rows { requests: &ids, tokens: &tokens, computed, ..Rows::default() };
                let _ = manager.append(&rows);
            }
            9 => {
                let running: Vec<i64> = (0..6)
                    .filter(|&id| manager.request(id).is_ok_and(|info| info.state.name() == "running"))
                    .collect();
                let ids: Vec<RequestRef<'_>> = running.iter().map(|&id| id.into()).collect();
                let tokens = vec![c % 3; ids.len()];
                let computed = Computed::AllButLast;
                let rows = Rows { requests: &ids, tokens: &tokens, computed, ..Rows::default() };
                let _ = manager.append(&rows);
            }
            10 => drop(manager.append_tokens(id.into(), &prompt(b, c), &[], (c % 5) as usize)),
            11 => drop(manager.commit(id.into(), (b % 16) as usize)),
            12 | 13 => {
                let tokens = manager.request(id).map_or(3, |info| info.tokens);
                let _ = manager.commit(id.into(), tokens);
            }
            14 => {
                let ids: Vec<_> = (0..b % 3).map(|at| name(a + at)).collect();
                let counts: Vec<_> =
                    ids.iter().map(|&id| manager.request(id).map_or(1, |info| info.tokens)).collect();
                let _ = manager.commit_batch(&ids, &counts);
            }
            15 => drop(manager.preempt(id.into(), after.into())),
            16 => drop(manager.resume(id.into(), part(b, c))),
            17 | 18 if b.is_multiple_of(4) => {
                drop(manager.end_session(id.into(), until(c, after)));
            }
            17 | 18 => {
                drop(manager.release(id.into(), until(c, after)));
            }
            19 => {
                drop(manager.fork(id.into(), i64::from(b % 6).into()));
            }
            20 => drop(manager.truncate(id.into(), (b % 14) as usize, Until::Now)),
            21 => {
                drop(manager.trim_window(id.into(), (b % 8) as usize));
            }
            22 => drop(manager.take_plan()),
            23 => {
                let ids: Vec<_> = (0..=b % 2).map(|at| name(a + at)).collect();
                let _ = if c.is_multiple_of(2) {
                    manager.begin_swap_out(&ids)
                } else {
                    manager.begin_swap_in(&ids)
                };
            }
            24 => {
                let swap = SwapId::from_number(u64::from(b % 6));
                let _ = manager.take_plan();
                if c.is_multiple_of(3) {
                    drop(manager.abort_swap(swap));
                } else {
                    drop(manager.complete_swap(swap));
                }
            }
            25 => planned_step(manager, a, b, c),
            26 => drop(manager.retain(id.into(), &ranges)),
            27 => match b % 4 {
                0 => drop(manager.set_tenant(id.into(), TenantId(c % 3))),
                1 => drop(manager.retain(id.into(), &[RetentionRange::end_of_life((c % 8) as usize)])),
                2 => {
                    let cursor = manager.prepare(&prompt(b, c), extra(c)).unwrap();
                    let _ = manager.retain_prefix(&cursor, &ranges);
                }
                _ => {
                    let cursor = manager.prepare(&prompt(b, c), extra(c)).unwrap();
                    let _ = manager.retain_prefix(&cursor, &[RetentionRange::end_of_life((a % 5) as usize)]);
                }
            },
            28 => drop(manager.advance_time(f64::from(b % 50))),
            29 => {
                step += u64::from(b % 3);
                let _ = manager.complete_step(step);
            }
            30 => match b % 6 {
                0 => drop(manager.bump_epoch()),
                1 => drop(manager.reset()),
                2 => drop(manager.resize(manager.pool().num_blocks() + (c % 4) as usize)),
                3 => drop(manager.evict((c % 5) as usize)),
                _ => drop(manager.drop_cached(&[BlockId::new(c % 40), BlockId::new(a % 9)])),
            },
            31 => drop(manager.take_events()),
            32 | 33 => ragged(manager, a, b, c),
            34 if manager.groups().is_some() && c.is_multiple_of(2) => {
                drop(manager.extend_encoder(id.into(), (b % 9) as usize));
            }
            34 => drop(manager.extend(id.into(), (b % 16) as usize)),
            35 => {
                let failed = (b % 9) as usize..(b % 9 + c % 4) as usize;
                let loaded = match a % 4 {
                    0 => Loaded::First((b % 9) as usize),
                    1 => Loaded::AllBut(std::slice::from_ref(&failed)),
                    _ => Loaded::All,
                };
                let _ = manager.external_done(id.into(), loaded);
            }
            36 => {
                let ids: Vec<_> = (0..b % 3).map(|at| name(a + at)).collect();
                let lengths: Vec<_> = ids
                    .iter()
                    .map(|&id| {
                        manager.request(id).map_or(1, |info| info.tokens - (c as usize % info.tokens.min(4)))
                    })
                    .collect();
                let until = until(c, after);
                let _ = manager.truncate_batch(&ids, &lengths, until);
            }
            37 => {
                let ids: Vec<_> = (0..b % 3).map(|at| name(a + at)).collect();
                let until = until(c, after);
                if c.is_multiple_of(2) {
                    drop(manager.release_batch(&ids, until));
                } else {
                    let signal = Signal { finish: Finish::ToolCalls, output_tokens: Some(c) };
                    let ended: Vec<_> = ids.iter().map(|&id| (id, signal)).collect();
                    drop(manager.release_batch_with(&ended, until));
                }
            }
            38 => {
                let ids: Vec<_> = (0..b % 3).map(|at| name(a + at % 2)).collect();
                let children: Vec<_> = (0..b % 3).map(|at| name(c + at)).collect();
                drop(manager.fork_batch((&ids, &children)));
            }
            _ if b.is_multiple_of(2) => drop(manager.fence()),
            _ => drop(manager.end_fence(Ticket::new(u64::from(c % 8)))),
        }
    }
}

/// Returns the part of a prompt to admit. Usually this is the whole prompt.
fn part(a: u32, b: u32) -> Part {
    Part {
        allocate_tokens: a.is_multiple_of(3).then_some((b % 7) as usize),
        external_tokens: if b.is_multiple_of(5) { (a % 9) as usize } else { 0 },
        compute_all: (a ^ b).is_multiple_of(6),
    }
}

fn until(c: u32, after: Option<u64>) -> Until {
    if c.is_multiple_of(7) { Ticket::new(u64::from(c % 8)).into() } else { after.into() }
}

/// Appends different numbers of tokens to the requests of a batch, in one call.
fn ragged(manager: &mut Journaled<CacheManager>, a: u32, b: u32, c: u32) {
    let ids: Vec<_> = (0..b % 4).map(|at| RequestRef::from(i64::from((a + at) % 6))).collect();
    let mut offsets = vec![0];
    for row in 0..ids.len() {
        offsets.push(offsets[row] + (c as usize >> row) % 4);
    }
    let tokens: Vec<u32> = (0..offsets[ids.len()]).map(|at| (c + at as u32) % 2).collect();
    let counts: Vec<usize> =
        ids.iter().map(|&id| manager.request(id).map_or(1, |info| info.tokens) + (a % 3) as usize).collect();
    let rows = Rows {
        requests: &ids,
        tokens: &tokens,
        offsets: &offsets,
        computed: [Computed::Nothing, Computed::AllButLast, Computed::Counts(&counts)][(a % 3) as usize],
        covered: [Covered::All, Covered::Lookahead(3), Covered::Each(&counts)][(b / 4 % 3) as usize],
        most_changes: b.is_multiple_of(11).then_some((c % 6) as usize),
    };
    let _ = manager.append(&rows);
}

fn planned_step(manager: &mut Journaled<CacheManager>, a: u32, b: u32, c: u32) {
    let mut plan = manager.plan_step();
    let mut bits = a ^ b.rotate_left(7) ^ c.rotate_left(19);
    for at in 0..(a % 5) {
        let id = i64::from((b + at) % 6);
        match bits % 5 {
            0 => {
                let cursor = manager.prepare(&prompt(bits, c), extra(bits)).unwrap();
                let hints = AdmitOptions { no_cache: bits.is_multiple_of(2), ..AdmitOptions::default() };
                let _ = manager.plan_admit_with(&mut plan, id, cursor, &hints);
            }
            1 => drop(manager.plan_resume(&mut plan, id)),
            2 => drop(manager.plan_append(&mut plan, id, &prompt(bits, b), 0)),
            3 => drop(manager.plan_preempt(&mut plan, id, None)),
            _ => drop(manager.plan_release(&mut plan, id, None)),
        }
        bits = bits.rotate_right(3).wrapping_mul(0x9e37_79b9);
    }
    if c.is_multiple_of(7) {
        let _ = manager.take_plan();
        let _ = manager.complete_step(0);
    }
    let _ = manager.commit_step(&mut plan);
}

pub(crate) fn pool_settings(config: &ManagerConfig) -> PoolConfig {
    PoolConfig {
        num_blocks: config.num_blocks,
        block_size: config.block_size,
        verify: config.verify,
        duplicates: config.duplicates,
        eviction: config.eviction,
        retention: config.retention.clone(),
        ..PoolConfig::default()
    }
}

pub(crate) const EVENTS: usize = 64;

pub(crate) fn recorded_manager(
    config: ManagerConfig,
    event_capacity: usize,
    journal: Journal,
) -> Journaled<CacheManager> {
    let watch = ManagerWatchConfig { event_capacity, ..ManagerWatchConfig::default() };
    Journaled::with_watch(config, &watch, journal).unwrap()
}

pub(crate) fn recorded_pool(
    config: &ManagerConfig,
    event_capacity: usize,
    journal: Journal,
) -> Journaled<BlockPool> {
    let watch = WatchConfig { event_capacity, ..WatchConfig::default() };
    Journaled::with_watch(pool_settings(config), &watch, journal).unwrap()
}

/// Runs calls on a pool. The hash chains of the prompts are computed by a manager's hasher.
pub(crate) fn run_pool(pool: &mut Journaled<BlockPool>, hashed_by: &CacheManager, calls: &[Call]) {
    use kvpool::hash::{BlockHasher, ChainLink, HashChain, HashCursor, HasherConfig};
    let mut tables: Vec<Vec<BlockId>> = vec![Vec::new(); 5];
    let (mut step, mut found, mut cached) = (0, None, None);
    for &(call, a, b, c) in calls {
        let table = tables[a as usize % 5].clone();
        let mut cursor = HashCursor::new(
            hashed_by.hasher().clone(),
            ExtraKeys { epoch: pool.epoch() + u64::from(c.is_multiple_of(19)), ..extra(c) },
        )
        .unwrap();
        cursor.append(&prompt(b, c));
        let chain = cursor.chain();
        match call % 29 {
            0..4 => {
                if let Ok(blocks) = pool.allocate((b % 6) as usize) {
                    tables[a as usize % 5].extend(blocks);
                }
            }
            4..8 => {
                if let Ok(found) = pool.match_and_acquire(chain, (a % 7) as usize, None) {
                    tables[a as usize % 5].extend(found);
                }
            }
            8 => {
                if let Ok(found) = pool.match_and_acquire(chain, usize::MAX, Some(TenantId(1))) {
                    tables[a as usize % 5].extend(found);
                }
            }
            9..12 => {
                let blocks = &table[..table.len().min(chain.len())];
                let _ = pool.register(blocks, chain, 0);
                let _ = pool.mark_computed(blocks);
            }
            12 => {
                let start = (a % 3) as usize;
                let blocks: Vec<_> = table.iter().copied().take(chain.len().saturating_sub(start)).collect();
                let _ = pool.register(&blocks, chain, start);
            }
            13..16 => {
                if pool.release(&table).is_ok() {
                    tables[a as usize % 5].clear();
                }
            }
            16 => {
                if pool.release_table(&table).is_ok() {
                    tables[a as usize % 5].clear();
                }
            }
            17 => {
                let ticket = Ticket::new(u64::from(b % 6));
                let released = match c % 3 {
                    0 => pool.release_after(&table, u64::from(b % 5)).is_ok(),
                    1 => pool.fence().and_then(|ticket| pool.release_until(&table, ticket)).is_ok(),
                    _ => pool.release_until(&table, ticket).is_ok(),
                };
                if released {
                    tables[a as usize % 5].clear();
                }
            }
            18 => {
                if c.is_multiple_of(2) {
                    let _ = pool.end_fence(Ticket::new(u64::from(b % 6)));
                }
                step += u64::from(b % 3);
                let _ = pool.complete_step(step);
            }
            19 => {
                if pool.acquire(&table).is_ok() {
                    tables[b as usize % 5].extend(table);
                }
            }
            20 => {
                let extra = ExtraKeys { epoch: pool.epoch(), ..ExtraKeys::default() };
                let block = |kind: u32| vec![kind % 2; pool.block_size()];
                let mut link = ChainLink::new(hashed_by.hasher(), None, &block(b), &extra).unwrap();
                for kind in 0..c % 3 {
                    link =
                        ChainLink::new(hashed_by.hasher(), Some(&link), &block(b >> kind), &extra).unwrap();
                }
                if c.is_multiple_of(2) {
                    if let (Some(&last), Some(place)) = (table.last(), table.len().checked_sub(1))
                        && let Ok(now) = pool.register_link(last, &link)
                    {
                        tables[a as usize % 5][place] = now;
                    }
                } else if let Ok(Some(block)) = pool.acquire_registered(&link) {
                    tables[a as usize % 5].push(block);
                }
            }
            21 => match b % 4 {
                0 => drop(pool.retain(&table, retention(c))),
                1 => {
                    drop(pool.assign_tenant(&table, TenantId(c % 3)));
                    let signal =
                        Signal { finish: Finish::Stop, output_tokens: c.is_multiple_of(2).then_some(c) };
                    drop(pool.signal(&table, signal));
                }
                2 => drop(pool.mark_accessed(&table, f64::from(c % 100))),
                _ => drop(pool.advance_time(f64::from(c % 60))),
            },
            22 => match b % 8 {
                0 => drop(pool.bump_epoch()),
                1 => drop(pool.reset()),
                2 => drop(pool.resize(pool.num_blocks() + (c % 4) as usize)),
                _ => {
                    drop(pool.drop_cached(&[BlockId::new(c % 40), BlockId::new(a % 9)]));
                }
            },
            23 => drop(pool.take_events()),
            26 => {
                let chain = cached.as_ref().filter(|_| c % 4 > 1).unwrap_or(chain);
                let (start, max_blocks) = ((a % 3) as usize, (b % 7) as usize);
                found = match c % 4 {
                    0 => pool.lookup(chain, start, usize::MAX).ok(),
                    1 => Match::new(chain, 0, &table[..table.len().min(chain.len())]).ok(),
                    _ => pool.lookup_refreshing(chain, start, max_blocks).ok(),
                }
                .or(found);
            }
            27 => {
                if let Some(found) = &found
                    && pool.acquire_match(found).is_ok()
                {
                    tables[a as usize % 5].extend(found.blocks());
                }
            }
            24 => {
                let start = (b % 3) as usize;
                let blocks = &table[..table.len().min(chain.len().saturating_sub(start))];
                for (at, block) in pool.register_table(blocks, chain, start).unwrap_or_default() {
                    tables[a as usize % 5][at] = block;
                }
            }
            25 => match b % 4 {
                0 => {
                    if pool.disown(&table).is_ok() {
                        tables[a as usize % 5].clear();
                    }
                }
                1 => drop(pool.evict((c % 5) as usize)),
                _ => {
                    let mut blocks: Vec<_> = pool.free_order().into_iter().rev().take(chain.len()).collect();
                    blocks.extend(c.is_multiple_of(7).then_some(BlockId::new(c % 40)));
                    if let Ok(changes) = pool.adopt(&blocks, chain, 0) {
                        changes.into_iter().for_each(|(at, block)| blocks[at] = block);
                        tables[a as usize % 5].extend(blocks);
                        cached = Some(chain.clone());
                    }
                }
            },
            _ => {
                // Some chains were hashed with a different algorithm or block size than the pool's.
                let chain = match c % 4 {
                    0 => HashChain::from_digests(
                        chain.algorithm(),
                        chain.block_size(),
                        chain.epoch(),
                        chain.hashes().to_vec(),
                    )
                    .unwrap(),
                    other => {
                        let config = HasherConfig {
                            algorithm: if other == 1 { HashAlgorithm::Blake3 } else { HashAlgorithm::Xxh3 },
                            block_size: pool.block_size() + usize::from(other == 3),
                            ..HasherConfig::default()
                        };
                        let hasher = std::sync::Arc::new(BlockHasher::new(config).unwrap());
                        let mut cursor = HashCursor::new(hasher, ExtraKeys::default()).unwrap();
                        cursor.append(&prompt(b, c));
                        cursor.chain().clone()
                    }
                };
                let _ = pool.register(&table[..table.len().min(chain.len())], &chain, 0);
                let _ = pool.match_and_acquire(&chain, 0, None);
            }
        }
    }
}
