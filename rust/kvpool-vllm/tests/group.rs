//! Tests the decisions of [`Group`] about the block table of one request.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool_vllm::{
    Arrived, Caching, Call, Change, Group, Key, Move, Noted, Pool, Prompt, Retains, Start, States, Step,
    Table, Tail, VllmError,
};

/// The block table of one request. Block 99 in it does not belong to the pool.
struct Plain<'a>(&'a [u32], &'a Pool);

impl Table for Plain<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn block(&self, at: usize) -> Option<u32> {
        self.0.get(at).copied().filter(|&block| block != 99)
    }

    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R {
        look(self.1)
    }
}

/// Returns a pool whose blocks 1 to 8 are in use.
fn pool() -> Pool {
    let mut pool = Pool::new(10, true).unwrap();
    pool.allocate(8, &mut Vec::new(), None).unwrap();
    pool
}

fn step(settled: usize, slots: usize) -> Step {
    Step { settled, slots, main: slots, ..Step::default() }
}

fn states() -> Group {
    let states = Some(States { speculative: 1, ..States::default() });
    Group { states, ..Group::new("state", 0, 4, 1).unwrap() }
}

#[test]
fn a_window_frees_its_dead_blocks_from_the_last_to_the_first_null_block() {
    let (pool, window) = (pool(), Group::new("sliding", 4, 2, 1).unwrap());
    let change = |table: &[u32]| window.step(&Plain(table, &pool), &step(9, 12), None);
    let dead = Change { dead: vec![(2, 3), (1, 2), (0, 1)], missing: 1, ..Change::default() };
    assert_eq!(change(&[1, 2, 3, 4, 5]), Some(dead.clone()));
    assert_eq!(change(&[1, 0, 3, 4, 5]), Some(Change { dead: vec![(2, 3)], ..dead.clone() }));
    assert_eq!(change(&[1, 2, 99, 4, 5, 6]), Some(Change::default()), "a block that is not of the pool");
    assert_eq!(change(&[]), None, "a request that does not run yet");
}

#[test]
fn a_state_that_was_retired_is_freed_once() {
    let (pool, group) = (pool(), states());
    let table = Plain(&[1, 2, 3, 4], &pool);
    let noted = |retired, last| Some(Noted { retired, last });
    let of = |noted| group.step(&table, &step(9, 9), noted).unwrap();
    assert_eq!(of(noted(0, Some(1))).dead, [(1, 2), (0, 1)]);
    assert_eq!(of(noted(0, Some(1))).before, None);
    let change = of(noted(2, Some(1)));
    assert_eq!((change.dead, change.retired, change.before), (vec![], None, Some((1, 2))));
    assert_eq!(group.step(&table, &step(9, 9), None), None, "a state that is shared");
}

#[test]
fn a_state_moves_unless_the_block_of_a_draft_is_shared_or_cached() {
    let (mut pool, group) = (pool(), states());
    let noted = Some(Noted::default());
    let moved = Move { from: Some(0), nulls: 2, drafts: (1, 2) };
    let change = group.step(&Plain(&[1, 2], &pool), &step(0, 16), noted).unwrap();
    assert_eq!((change.missing, change.moves), (1, Some(Move { nulls: 1, ..moved })));
    pool.touch(&[2]).unwrap();
    assert_eq!(group.step(&Plain(&[1, 2], &pool), &step(0, 16), noted), None);
    pool.set_hash(3, Key::new(&[1; 16], 0).unwrap(), Some(8));
    assert_eq!(group.step(&Plain(&[1, 3], &pool), &step(0, 16), noted), None);
    assert_eq!(group.step(&Plain(&[1, 0], &pool), &step(0, 16), noted), None);
}

#[test]
fn a_plain_group_changes_only_if_a_block_is_missing_or_full() {
    let (pool, full) = (pool(), Group::new("full", 0, 4, 1).unwrap());
    let drafts = full.clone().caching_to(4, Some(8), 2, true).unwrap();
    let more = Group { more_slots: 3, ..full.clone() };
    let uncached = Group { is_cached: false, ..full.clone() };
    for group in [full, drafts, more, uncached] {
        assert!(group.is_plain());
        for (blocks, known, tokens) in
            (0..4).flat_map(|a| (0..4).flat_map(move |b| (0..20).map(move |c| (a, b, c))))
        {
            let table = Plain(&[1, 2, 3][..blocks], &pool);
            let step = group.step(&table, &step(tokens, tokens), None);
            assert_eq!(group.has_slots(blocks, tokens), step.is_some_and(|step| step.is_empty()));
            let caching = group.caching(&Prompt::default(), &table, known, tokens);
            assert_eq!(group.completes(known, tokens), caching.asks());
        }
    }
    assert!(!Group { prompt_tail: Some(1), ..Group::new("full", 0, 4, 2).unwrap() }.is_plain());
    assert!(!states().is_plain() && !Group::new("sliding", 4, 2, 1).unwrap().is_plain());
}

#[test]
fn an_arriving_request_takes_at_most_the_groups_maximum() {
    let window = Group { most: Some(3), ..Group::new("sliding", 4, 2, 1).unwrap() };
    let call = Call { new: 3, whole: true, ..Call::default() };
    let arrival = window.arrival(&call.step(8, 0, 40, 99), 4).unwrap();
    assert_eq!(arrival, Arrived { skipped: 2, missing: 2, whole: 0 });
    assert_eq!(window.arrival(&call.step(7, 0, 40, 99), 4), None, "a hit inside a block");
}

#[test]
fn a_step_never_grows_beyond_the_model() {
    let call = Call { new: 8, lookahead: 2, caches: true, ..Call::default() };
    let of = call.step(28, 4, 60, 32);
    assert_eq!((of.settled, of.slots, of.main, of.cached, of.whole), (24, 32, 36, 36, None));
    assert_eq!(Call { caches: false, ..call }.step(40, 0, 60, 32).cached, 0);
}

#[test]
fn the_block_in_which_a_prompt_ends_is_cached_until_it_has_a_longer_key() {
    let mut pool = pool();
    let group = Group { prompt_tail: Some(1), ..Group::new("full", 0, 4, 2).unwrap() };
    let prompt = Prompt { tokens: 7, digests: 9, ..Prompt::default() };
    let caching = |pool: &Pool, table: &[u32]| group.caching(&prompt, &Plain(table, pool), 0, 7);
    assert_eq!(caching(&pool, &[1, 2]), Caching { known: 0, full: 1, finals: 7, tail: true });
    pool.set_hash(2, Key::new(&[1; 16], 0).unwrap(), Some(6));
    assert!(!caching(&pool, &[1, 2]).tail);
    assert!(caching(&pool, &[1]).tail, "a block that this step appends");
    assert_eq!(group.tail(&Plain(&[1, 2], &pool), 7), Tail::Partial);
}

#[test]
fn the_block_in_which_a_prompt_ends_is_cached_when_the_prompt_is_computed() {
    let pool = pool();
    let group = Group { prompt_tail: Some(1), ..Group::new("full", 0, 4, 2).unwrap() };
    let prompt = Prompt { tokens: 7, digests: 9, ..Prompt::default() };
    let tail = |tokens| group.caching(&prompt, &Plain(&[1, 2], &pool), 0, tokens).tail;
    assert_eq!((tail(5), tail(6)), (false, true)); // the last digest of the prompt covers 6 tokens
}

#[test]
fn the_end_of_a_prompt_gets_a_key_although_its_block_is_cached() {
    let mut pool = pool();
    let group = Group { prompt_tail: Some(1), ..Group::new("full", 0, 4, 2).unwrap() };
    let key = Key::new(&[1; 16], 0).unwrap();
    pool.cache_full(Start::at(1), &[2], |_| Some(key), 4, &mut Vec::new(), None).unwrap();
    assert_eq!(group.tail(&Plain(&[1, 2], &pool), 8), Tail::Partial);
}

#[test]
fn a_state_at_the_end_of_a_prompt_is_cached_once() {
    let (mut pool, group) = (pool(), states());
    let prompt = Prompt { tokens: 9, ..Prompt::default() };
    assert!(group.caching(&prompt, &Plain(&[1, 2], &pool), 0, 8).tail);
    assert!(!group.caching(&prompt, &Plain(&[1], &pool), 0, 4).tail);
    let tail = |pool: &Pool, table: &[u32]| group.tail(&Plain(table, pool), 8);
    assert_eq!((tail(&pool, &[1]), tail(&pool, &[1, 0])), (Tail::Absent, Tail::Absent));
    assert_eq!(tail(&pool, &[1, 2]), Tail::Partial);
    let key = Key::new(&[1; 16], 0).unwrap();
    pool.cache_full(Start::at(1), &[2], |_| Some(key), 4, &mut Vec::new(), None).unwrap();
    assert_eq!(tail(&pool, &[1, 2]), Tail::Cached(key));
}

#[test]
fn states_are_kept_where_a_request_turned_off() {
    let group = Group::new("state", 0, 4, 1).unwrap().caching_to(4, Some(4), 0, true).unwrap();
    let prompt = Prompt { tokens: 9, junction: 12, interval: Some(0), ..Prompt::default() };
    let kept = |by_series_33| {
        let retains = Retains { scheduler_block: 4, drops: true, by_series_33 };
        group.kept(0..4, &retains, &prompt)
    };
    // A request with the same prompt can hit up to token 4. vLLM 0.33 also keeps the block before the
    // junction (the position at which the request diverged from an earlier one).
    assert_eq!(kept(false), [true, false, true, false]);
    assert_eq!(kept(true), [true, true, true, false]);
}

#[test]
fn a_group_that_can_t_be_is_refused() {
    let text = |group: Result<Group, VllmError>| group.unwrap_err().to_string();
    let expected = "kind is \"cross\": must be full, sliding, chunked or state";
    assert_eq!(text(Group::new("cross", 0, 4, 1)), expected);
    assert_eq!(text(Group::new("full", 0, 0, 1)), "block_size is 0: must be at least 1");
    let group = Group::new("full", 0, 4, 1).unwrap();
    assert_eq!(text(group.caching_to(4, Some(0), 0, false)), "ends is 0: must be at least 1");
}
