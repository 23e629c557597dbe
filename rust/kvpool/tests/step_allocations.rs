//! Tests that a step that uses buffers of the caller allocates no memory, except when the lists of a
//! request grow.
//!
//! This is a separate test binary, because it counts the allocations of a thread.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "common/counting.rs"]
mod counting;

use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, RequestRef, Rows};

const REQUESTS: usize = 32;

/// Makes many steps with `step`, each of which appends a token to every request, so that each needs a
/// new block. Returns the smallest number of allocations in a step.
fn fewest(mut step: impl FnMut(&mut CacheManager, &Rows<'_>) -> usize) -> usize {
    let config = ManagerConfig { num_blocks: 100_000, block_size: 1, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    let requests: Vec<RequestRef<'_>> = (0..REQUESTS as i64).map(RequestRef::Int).collect();
    for &request in &requests {
        let RequestRef::Int(number) = request else { continue };
        let prompt = manager.prepare(&[number as u32], ExtraKeys::default()).unwrap();
        manager.admit(number, prompt).unwrap();
    }
    let tokens = [7; REQUESTS];
    let rows =
        Rows { requests: &requests, tokens: &tokens, computed: Computed::AllButLast, ..Rows::default() };
    let counted = (0..300).map(|_| {
        let before = counting::counts().0;
        assert_eq!(step(&mut manager, &rows), REQUESTS);
        counting::counts().0 - before
    });
    counted.min().unwrap()
}

#[test]
fn a_step_into_a_buffer_of_the_caller_allocates_nothing() {
    let mut changes = Vec::new();
    let into = |manager: &mut CacheManager, rows: &Rows<'_>| {
        manager.append_into(rows, &mut changes).unwrap();
        changes.len()
    };
    assert_eq!(fewest(into), 0);
    // `append_ragged` returns a new list, so it allocates once.
    assert_eq!(fewest(|manager, rows| manager.append_ragged(rows).unwrap().len()), 1);
}

/// At the start of a step, the manager removes the changes of the previous step from the caller's
/// buffer. If the step is refused, the buffer is empty.
#[test]
fn the_buffer_holds_the_changes_of_the_last_step_alone() {
    let config = ManagerConfig { num_blocks: 4, block_size: 2, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    manager.admit(1, manager.prepare(&[1, 2], ExtraKeys::default()).unwrap()).unwrap();
    let requests = [RequestRef::Int(1)];
    let rows = |tokens| Rows { requests: &requests, tokens, ..Rows::default() };
    let mut changes = Vec::new();
    for (tokens, grown) in [(&[3_u32], 1), (&[4], 0), (&[5], 1)] {
        manager.append_into(&rows(tokens), &mut changes).unwrap();
        assert_eq!(changes.len(), grown);
    }
    // The buffer still contains a change of the last step. The next step appends two tokens, which need
    // a block that is not available.
    let refused = Rows { offsets: &[0, 2], ..rows(&[6, 7]) };
    assert!(manager.append_into(&refused, &mut changes).is_err());
    assert!(changes.is_empty());
}

/// The lists of a request grow by 32 blocks or more at a time. So a request of 580 tokens has moved
/// each of its lists once.
#[test]
fn a_request_allocates_once_per_list_as_it_grows() {
    let mut manager =
        CacheManager::new(ManagerConfig { num_blocks: 4096, ..ManagerConfig::default() }).unwrap();
    let requests: Vec<RequestRef<'_>> = (0..REQUESTS as i64).map(RequestRef::Int).collect();
    for number in 0..REQUESTS as u32 {
        let prompt: Vec<u32> = (0..100).map(|at| number << 10 | at).collect();
        let prompt = manager.prepare(&prompt, ExtraKeys::default()).unwrap();
        manager.admit(number, prompt).unwrap();
    }
    let (tokens, mut changes) = ([7; REQUESTS], Vec::with_capacity(REQUESTS));
    let rows =
        Rows { requests: &requests, tokens: &tokens, computed: Computed::AllButLast, ..Rows::default() };
    manager.append_into(&rows, &mut changes).unwrap();
    let before = counting::counts().0;
    (0..480).for_each(|_| manager.append_into(&rows, &mut changes).unwrap());
    let allocations = counting::counts().0 - before;
    // Tokens, hashes, blocks and the partial block. The manager's own lists grow a few times.
    assert!(allocations <= 4 * REQUESTS + 16, "{allocations} allocations");
}
