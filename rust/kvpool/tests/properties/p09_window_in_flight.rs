//! Property 9: with `settled` tokens committed and more in flight, trimming to a window never releases
//! a block that overlaps `[settled - window + 1, settled + in flight]`. If tokens in flight are
//! rejected, the next step needs no block that was released.
//!
//! In vllm#47728, a sliding window was trimmed up to the scheduled tokens. The running step, or the
//! step after a roll-back, read blocks that had been allocated to other requests.
//!
//! An implementation fails this test if its window ends at the last token of the request, including
//! drafts and scheduled tokens.

use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

/// Number of tokens per block. It is large enough that a window can end in the middle of a block.
const SIZE: usize = 3;

/// Returns the KV of a token, which depends on the tokens before it.
fn kv(tokens: &[u32]) -> u64 {
    tokens.iter().fold(1, |state: u64, token| {
        (state ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    })
}

/// A running step with a copy of a request's block table. It computes tokens `start..end`, each of
/// which reads the window before it.
struct Running {
    number: u64,
    request: i64,
    /// Serial number of the request. It differs even if a later request has the same id.
    serial: u64,
    tokens: Vec<u32>,
    start: usize,
    table: Vec<BlockId>,
}

struct Request {
    serial: u64,
    /// All tokens of the request, including drafts.
    tokens: Vec<u32>,
    /// Number of tokens for which a step was launched.
    launched: usize,
}

/// An engine with asynchronous scheduling: steps run while others are planned, and end in order.
struct Overlapped {
    manager: CacheManager,
    window: usize,
    /// The KV in every slot of every block.
    memory: Vec<[u64; SIZE]>,
    requests: BTreeMap<i64, Request>,
    running: VecDeque<Running>,
    next_step: u64,
    /// Number of blocks that were allocated to a request while a running step still had them in its
    /// table. It shows that the test reaches this case.
    reused: usize,
}

#[derive(Clone, Debug)]
enum Move {
    Admit(i64, Vec<u32>),
    /// Appends this number of sampled tokens to a request, which may be drafts. Starts a step for all
    /// tokens that no step computes yet.
    Launch(i64, usize),
    /// Ends the oldest step. This number of tokens at its end is rejected, unless a later step depends
    /// on them.
    Settle(usize),
    Trim(i64),
    Release(i64),
}

impl Overlapped {
    fn new(usable: usize, window: usize) -> Self {
        let config = ManagerConfig { num_blocks: usable + 1, block_size: SIZE, ..Default::default() };
        Self {
            manager: CacheManager::new(config).unwrap(),
            window,
            memory: vec![[0; SIZE]; usable + 1],
            requests: BTreeMap::new(),
            running: VecDeque::new(),
            next_step: 0,
            reused: 0,
        }
    }

    fn write(&mut self, tokens: &[u32], start: usize, table: &[BlockId]) {
        for at in start..tokens.len() {
            let block = table[at / SIZE];
            assert!(!block.is_null(), "token {at} is written to a block that was given up");
            self.memory[block.index()][at % SIZE] = kv(&tokens[..=at]);
        }
    }

    /// Checks the KV in the window that token `at` reads.
    fn read(&self, tokens: &[u32], at: usize, table: &[BlockId]) {
        for seen in (at + 1).saturating_sub(self.window)..=at {
            let block = table[seen / SIZE];
            assert!(!block.is_null(), "token {at} reads token {seen} in a block that was given up");
            let found = self.memory[block.index()][seen % SIZE];
            assert_eq!(found, kv(&tokens[..=seen]), "token {at} reads token {seen} in {block:?}");
        }
    }

    fn note_reuse(&mut self, blocks: &[BlockId]) {
        let in_flight = |block| self.running.iter().any(|step| step.table.contains(block));
        self.reused += blocks.iter().filter(|&block| in_flight(block)).count();
    }

    fn act(&mut self, act: &Move) {
        match act {
            Move::Admit(id, tokens) if !self.requests.contains_key(id) => {
                let cursor = self.manager.prepare(tokens, ExtraKeys::default()).unwrap();
                let Ok(admission) = self.manager.admit(*id, cursor) else { return };
                self.note_reuse(&admission.block_ids[admission.cached_blocks..]);
                self.next_step += 1;
                let (tokens, launched) = (tokens.clone(), admission.cached_tokens);
                self.requests.insert(*id, Request { serial: self.next_step, tokens, launched });
                self.launch(*id);
            }
            Move::Launch(id, more) if self.requests.contains_key(id) => {
                let sampled: Vec<_> = (0..*more as u32).map(|n| self.next_step as u32 % 3 + n).collect();
                let Ok(changes) = self.manager.append_tokens(*id, &sampled, 0) else { return };
                self.note_reuse(&changes.iter().map(|change| change.block).collect::<Vec<_>>());
                self.requests.get_mut(id).unwrap().tokens.extend(&sampled);
                self.launch(*id);
            }
            Move::Settle(rejected) => self.settle(*rejected),
            Move::Trim(id) if self.requests.contains_key(id) => {
                self.manager.trim_window(*id, self.window).unwrap();
                self.check_trimmed(*id);
            }
            Move::Release(id) if self.requests.contains_key(id) => {
                let serial = self.requests.remove(id).unwrap().serial;
                let last = self.running.iter().filter(|step| step.serial == serial).map(|step| step.number);
                self.manager.release(*id, last.max()).unwrap();
            }
            _ => {}
        }
        self.manager.check_invariants().unwrap();
    }

    fn launch(&mut self, request: i64) {
        let Request { serial, ref tokens, launched: start } = self.requests[&request];
        if tokens.len() == start {
            return;
        }
        let tokens = tokens.clone();
        let table = self.manager.block_table(request).unwrap().to_vec();
        self.write(&tokens, start, &table); // it may write at any moment until it ends
        self.requests.get_mut(&request).unwrap().launched = tokens.len();
        let number = self.next_step;
        self.next_step += 1;
        self.running.push_back(Running { number, request, serial, tokens, start, table });
    }

    fn settle(&mut self, rejected: usize) {
        let Some(Running { number, request, serial, tokens, start, table }) = self.running.pop_front() else {
            return;
        };
        self.write(&tokens, start, &table);
        (start..tokens.len()).for_each(|at| self.read(&tokens, at, &table));
        if let Some(known) = self.requests.get_mut(&request).filter(|known| known.serial == serial) {
            let is_last = known.tokens.len() == tokens.len();
            let drafts = tokens.len() - start - 1;
            let kept = tokens.len() - if is_last { rejected.min(drafts) } else { 0 };
            if kept < tokens.len() {
                known.tokens.truncate(kept);
                known.launched = kept;
                self.manager.truncate(request, kept, None).unwrap();
            }
            self.manager.commit(request, kept).unwrap();
        }
        self.manager.complete_step(number).unwrap();
    }

    /// Checks that the table has the blocks that overlap the window of the settled tokens, and the
    /// blocks after it. Blocks that are entirely before the window must be trimmed.
    fn check_trimmed(&self, id: i64) {
        let settled = self.manager.request(id).unwrap().computed_tokens;
        for (at, block) in self.manager.block_table(id).unwrap().iter().enumerate() {
            let (first, last) = (at * SIZE, at * SIZE + SIZE - 1);
            if last >= (settled + 1).saturating_sub(self.window) {
                assert!(!block.is_null(), "tokens {first}.. are needed: {settled} settled, {}", self.window);
            } else if last + self.window < settled {
                assert!(block.is_null(), "tokens {first}.. are kept: {settled} settled, {}", self.window);
            }
        }
    }
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let id = || 0i64..3;
    let act = prop_oneof![
        3 => (id(), prop::collection::vec(0u32..2, 1..9)).prop_map(|(id, tokens)| Move::Admit(id, tokens)),
        8 => (id(), 0usize..5).prop_map(|(id, more)| Move::Launch(id, more)),
        8 => (0usize..5).prop_map(Move::Settle),
        6 => id().prop_map(Move::Trim),
        1 => id().prop_map(Move::Release),
    ];
    prop::collection::vec(act, 1..90)
}

/// Tests vllm#47728 with steps of several requests in flight, rejected drafts, and windows that are
/// smaller and larger than a block. Every token of every step reads the KV of its own window, even if
/// the step runs late.
#[test]
fn property_09_trimming_a_window_spares_tokens_in_flight() {
    let reused = Cell::new(0);
    let setting = (3usize..14, 1usize..7, moves());
    let result = runner(file!(), 2000).run(&setting, |(usable, window, moves)| {
        let mut engine = Overlapped::new(usable, window);
        moves.iter().for_each(|act| engine.act(act));
        (0..engine.running.len()).for_each(|_| engine.settle(0));
        reused.set(reused.get() + engine.reused);
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(reused.get() > 20, "{}: what is trimmed is used by others while steps run", reused.get());
}

/// Tests the formula of property 9 for every combination of the window, the number of settled tokens,
/// the number of tokens in flight, and the number of rejected tokens.
#[test]
fn property_09_a_rollback_of_tokens_in_flight_finds_its_window() {
    for window in 1..=6usize {
        for settled in 1..=12usize {
            for in_flight in 0..=5usize {
                for rolled_back in 0..=in_flight {
                    let mut engine = Overlapped::new(12, window);
                    let tokens: Vec<u32> = (0..settled as u32).collect();
                    engine.act(&Move::Admit(0, tokens.clone()));
                    engine.act(&Move::Settle(0));
                    engine.act(&Move::Launch(0, in_flight));
                    engine.act(&Move::Trim(0)); // checks the window
                    engine.act(&Move::Settle(rolled_back));
                    engine.act(&Move::Trim(0));
                    engine.act(&Move::Launch(0, 2));
                    engine.act(&Move::Settle(0)); // reads the window
                }
            }
        }
    }
}
