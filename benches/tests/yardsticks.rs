//! Compares random requests in kvpool and in the yardsticks with a reference model.
//!
//! The model knows each request and the content of each block. It does not know the order of eviction,
//! because the managers differ in it. Until a block is evicted, the test compares hits exactly.
//! Afterwards a hit may be shorter, and the test checks that the blocks of the hit have the content of
//! the prompt. In both cases no block may have two contents, and the test compares the number of
//! available blocks exactly.
#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

use std::collections::{BTreeMap, HashMap, HashSet};

use kvpool_benches::Random;
use kvpool_benches::requests::{Batch, Kvpool, Manager, Map, Radix};

const BLOCK_SIZE: usize = 4;

/// The time at which a manager registers the blocks of generated tokens.
#[derive(Clone, Copy, PartialEq)]
enum Registers {
    WithTheNextToken,
    AtRelease,
}

/// A running request.
#[derive(Default)]
struct Request {
    tokens: Vec<u32>,
    table: Vec<u32>,
    computed: usize,
}

/// The expected state of a manager, as sets of tokens.
struct Model {
    usable: usize,
    registers: Registers,
    /// All prefixes that were registered at any time.
    registered: HashSet<Vec<u32>>,
    running: BTreeMap<i64, Request>,
    /// The content of each full block: all tokens from the start of the prompt to the end of the block.
    contents: HashMap<u32, Vec<u32>>,
}

impl Model {
    fn new(num_blocks: usize, registers: Registers) -> Self {
        let usable = num_blocks - 1;
        Self {
            usable,
            registers,
            registered: HashSet::new(),
            running: BTreeMap::new(),
            contents: HashMap::new(),
        }
    }

    /// Returns the number of blocks that no running request has.
    fn available(&self) -> usize {
        let held: HashSet<_> = self.running.values().flat_map(|request| &request.table).collect();
        self.usable - held.len()
    }

    /// Returns the number of blocks that a hit on a prompt has if nothing was evicted.
    fn longest_hit(&self, prompt: &[u32]) -> usize {
        let most = prompt.len().saturating_sub(1) / BLOCK_SIZE;
        (0..most).take_while(|at| self.registered.contains(&prompt[..(at + 1) * BLOCK_SIZE])).count()
    }

    fn register(&mut self, id: i64) {
        let request = &self.running[&id];
        for blocks in 1..=request.computed / BLOCK_SIZE {
            self.registered.insert(request.tokens[..blocks * BLOCK_SIZE].to_vec());
        }
    }

    fn admit(&mut self, id: i64, prompt: &[u32], hit: usize, table: Vec<u32>) {
        assert_eq!(table.len(), prompt.len().div_ceil(BLOCK_SIZE));
        for (at, block) in table[..hit].iter().enumerate() {
            assert_eq!(self.contents.get(block).unwrap(), &prompt[..(at + 1) * BLOCK_SIZE], "a wrong hit");
        }
        for block in &table[hit..] {
            self.take(*block);
        }
        let computed = hit * BLOCK_SIZE;
        self.running.insert(id, Request { tokens: prompt.to_vec(), table, computed });
        self.note_contents(id, hit);
    }

    /// Checks that an allocated block does not belong to a request.
    fn take(&mut self, block: u32) {
        assert!((1..=self.usable as u32).contains(&block));
        let mut tables = self.running.values().map(|request| &request.table);
        assert!(tables.all(|table| !table.contains(&block)), "block {block} was handed out twice");
        self.contents.remove(&block);
    }

    /// Records a commit of a request. `table` is its block table after the commit, which may have
    /// replaced blocks by others with the same content.
    fn commit(&mut self, id: i64, computed: usize, table: Vec<u32>) {
        let request = self.running.get_mut(&id).unwrap();
        assert_eq!(table.len(), request.table.len());
        for (at, (new, old)) in table.iter().zip(&request.table).enumerate() {
            if new != old {
                let content = &request.tokens[..(at + 1) * BLOCK_SIZE];
                assert_eq!(
                    self.contents.get(new).unwrap(),
                    content,
                    "a block was replaced by another content"
                );
            }
        }
        request.table = table;
        request.computed = computed;
        self.register(id);
    }

    fn decode(&mut self, id: i64, token: u32, table: Vec<u32>) {
        let request = self.running.get_mut(&id).unwrap();
        let blocks = request.table.len();
        assert_eq!(table[..blocks], request.table, "a table changed");
        request.computed = request.tokens.len();
        request.tokens.push(token);
        assert_eq!(table.len(), request.tokens.len().div_ceil(BLOCK_SIZE));
        for &block in &table[blocks..] {
            self.take(block);
        }
        self.running.get_mut(&id).unwrap().table = table;
        self.note_contents(id, 0);
        if self.registers == Registers::WithTheNextToken {
            self.register(id);
        }
    }

    fn release(&mut self, id: i64) {
        self.register(id);
        self.running.remove(&id);
    }

    /// Records the content of the full blocks of a request, from block `from` on. Every other request
    /// that has one of these blocks must have the same content.
    fn note_contents(&mut self, id: i64, from: usize) {
        let request = &self.running[&id];
        for at in from..request.tokens.len() / BLOCK_SIZE {
            let content = &request.tokens[..(at + 1) * BLOCK_SIZE];
            let known = self.contents.entry(request.table[at]).or_insert_with(|| content.to_vec());
            assert_eq!(known, content, "a block of a running request has other content");
        }
    }
}

/// Makes a prompt from a few different blocks, so that prompts share prefixes.
fn prompt(random: &mut Random) -> Vec<u32> {
    let length = 1 + random.below(8 * BLOCK_SIZE);
    let mut prompt = Vec::new();
    while prompt.len() < length {
        prompt.extend([random.below(3) as u32; BLOCK_SIZE]);
    }
    prompt.truncate(length);
    prompt
}

/// Runs random operations. Returns the number of blocks that were hits.
fn run(
    manager: &mut impl Manager,
    num_blocks: usize,
    registers: Registers,
    seed: u64,
    operations: usize,
    evicts: bool,
) -> usize {
    let mut random = Random::new(seed);
    let mut model = Model::new(num_blocks, registers);
    let mut hits = 0;
    for id in 0..operations as i64 {
        let ids: Vec<i64> = model.running.keys().copied().collect();
        let chosen = ids.get(random.below(ids.len().max(1))).copied();
        match (random.below(8), chosen) {
            (0..3, _) => {
                let prompt = prompt(&mut random);
                let blocks = prompt.len().div_ceil(BLOCK_SIZE);
                match manager.admit(id, &prompt) {
                    Some(hit) => {
                        let longest = model.longest_hit(&prompt);
                        assert!(if evicts { hit <= longest } else { hit == longest }, "{hit} of {longest}");
                        model.admit(id, &prompt, hit, manager.table(id));
                        hits += hit;
                    }
                    None => assert!(blocks > model.available(), "refused a request that fits"),
                }
            }
            (3..5, Some(id)) => {
                // Often compute only a part of the prompt, as with chunked prefill.
                let Request { tokens, computed, .. } = &model.running[&id];
                let computed = computed + random.below(tokens.len() - computed + 1);
                manager.commit(id, computed);
                model.commit(id, computed, manager.table(id));
            }
            (5..7, Some(id)) => {
                let token = random.below(3) as u32;
                for _ in 0..random.below(3 * BLOCK_SIZE) {
                    if manager.decode(&Batch::new(vec![id]), &[token]) {
                        model.decode(id, token, manager.table(id));
                    } else {
                        assert_eq!(model.available(), 0, "refused a token that fits");
                    }
                }
            }
            (_, Some(id)) => {
                manager.release(id);
                model.release(id);
            }
            (_, None) => {}
        }
        assert_eq!(manager.available(), model.available());
    }
    for id in model.running.keys() {
        manager.release(*id);
    }
    assert_eq!(manager.available(), model.usable);
    manager.reset();
    assert_eq!(manager.available(), model.usable);
    assert_eq!(manager.admit(-1, &[0; 3 * BLOCK_SIZE]), Some(0), "cached content after a reset");
    hits
}

/// Runs 20 sequences in a pool that never evicts, and 20 sequences in a pool that evicts all the time.
fn check<M: Manager>(new: impl Fn(usize) -> M, registers: Registers) {
    let mut hits = 0;
    for seed in 0..20 {
        hits += run(&mut new(8192), 8192, registers, seed, 600, false);
        hits += run(&mut new(40), 40, registers, seed, 600, true);
    }
    assert!(hits > 2000, "only {hits} hits: the test checks nothing");
}

#[test]
fn kvpool_with_sha256_agrees_with_the_model() {
    check(|blocks| Kvpool::sha256(blocks, BLOCK_SIZE), Registers::WithTheNextToken);
}

#[test]
fn kvpool_verified_by_tokens_agrees_with_the_model() {
    check(|blocks| Kvpool::verified(blocks, BLOCK_SIZE), Registers::WithTheNextToken);
}

#[test]
fn the_map_agrees_with_the_model() {
    check(Map::<BLOCK_SIZE>::new, Registers::WithTheNextToken);
}

#[test]
fn the_radix_tree_agrees_with_the_model() {
    check(Radix::<BLOCK_SIZE>::new, Registers::AtRelease);
}

/// Caches three prompts of three full blocks, and uses the first one again. Then the blocks of the
/// second prompt must be evicted first, beginning at its end.
fn evicts_the_least_recently_used_prefix(mut manager: impl Manager) {
    let prompt = |first| (first..first + 3 * BLOCK_SIZE as u32 + 1).collect::<Vec<_>>();
    let [a, b, c, d] = [0, 100, 200, 300].map(prompt);
    for prompt in [&a, &b, &c, &a] {
        assert!(manager.admit(0, prompt).is_some());
        manager.commit(0, prompt.len());
        manager.release(0);
    }
    // A new prompt uses the three free blocks and evicts the last block of the prompt `b`. The next
    // prompt evicts the last two blocks of `c`.
    assert_eq!(manager.admit(1, &d), Some(0));
    assert_eq!(manager.admit(2, &b), Some(2));
    manager.release(1);
    assert_eq!(manager.admit(3, &a), Some(3));
    assert_eq!(manager.admit(4, &c), Some(1));
    assert_eq!(manager.available(), 0);
    assert_eq!(manager.admit(5, &d), None);
}

#[test]
fn kvpool_evicts_the_least_recently_used_prefix_from_its_end() {
    evicts_the_least_recently_used_prefix(Kvpool::sha256(13, BLOCK_SIZE));
    evicts_the_least_recently_used_prefix(Kvpool::verified(13, BLOCK_SIZE));
}

#[test]
fn the_map_evicts_the_least_recently_used_prefix_from_its_end() {
    evicts_the_least_recently_used_prefix(Map::<BLOCK_SIZE>::new(13));
}

#[test]
fn the_radix_tree_evicts_the_least_recently_used_prefix_from_its_end() {
    evicts_the_least_recently_used_prefix(Radix::<BLOCK_SIZE>::new(13));
}

#[test]
fn blocks_of_one_token_are_shared() {
    fn check(mut manager: impl Manager) {
        assert_eq!(manager.admit(0, &[1, 2, 3]), Some(0));
        manager.commit(0, 3);
        assert_eq!(manager.admit(1, &[1, 2, 9, 3]), Some(2));
        assert_eq!(manager.table(1)[..2], manager.table(0)[..2]);
    }
    check(Kvpool::sha256(16, 1));
    check(Kvpool::verified(16, 1));
    check(Map::<1>::new(16));
    check(Radix::<1>::new(16));
}
