//! Compares `Ghosts` and `BlockLists` with models that use plain vectors.

use kvpool::BlockId;
use kvpool::parts::{Link, Links};
use kvpool_policies::parts::{Bare, BlockLists, Ghosts, Members};
use proptest::prelude::*;

/// The model of `Ghosts`: two queues of keys, oldest first.
type Queues = [Vec<u64>; 2];

fn forget(queues: &mut Queues, key: u64) {
    queues.iter_mut().for_each(|queue| queue.retain(|&member| member != key));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn ghosts_are_queues_of_keys(
        capacity in 0_usize..12,
        steps in prop::collection::vec((0_u8..20, 0_u64..24, 0_usize..2, any::<u8>()), 1..200),
    ) {
        let mut ghosts = Ghosts::new(2, capacity).unwrap();
        let mut model = Queues::default();
        let mut capacity = capacity;
        for (step, key, queue, amount) in steps {
            match step {
                0..12 => {
                    prop_assert_eq!(ghosts.push(queue, key), capacity > 0);
                    forget(&mut model, key);
                    if capacity > 0 {
                        if model[0].len() + model[1].len() == capacity {
                            let from = if model[queue].is_empty() { 1 - queue } else { queue };
                            model[from].remove(0);
                        }
                        model[queue].push(key);
                    }
                }
                12..16 => {
                    let known = (0..2).find(|&queue| model[queue].contains(&key));
                    prop_assert_eq!(ghosts.find(key), known);
                    prop_assert_eq!(ghosts.take(key), known);
                    forget(&mut model, key);
                }
                16..18 => {
                    let len = usize::from(amount % 8);
                    ghosts.trim(queue, len);
                    let over = model[queue].len().saturating_sub(len);
                    model[queue].drain(..over);
                }
                18 => {
                    capacity = (capacity + usize::from(amount % 3)).min(40);
                    ghosts.grow(capacity).unwrap();
                }
                _ if amount < 32 => {
                    ghosts.clear();
                    model = Queues::default();
                }
                _ => prop_assert!(!ghosts.push(2, key), "there is no such queue"),
            }
            ghosts.check_invariants().unwrap();
            for (queue, expected) in model.iter().enumerate() {
                prop_assert_eq!(&ghosts.iter(queue).collect::<Vec<_>>(), expected);
                prop_assert_eq!((ghosts.len(queue), ghosts.is_empty(queue)),
                    (expected.len(), expected.is_empty()));
            }
        }
    }
}

/// Generates calls for three lists of the blocks 1 to 11. A call consists of its kind, a list, and
/// consecutive blocks, some of which may be invalid.
fn calls() -> impl Strategy<Value = Vec<(u8, usize, Vec<u32>)>> {
    let blocks = prop::collection::vec(0_u32..13, 0..8);
    // These are the blocks of a chain, in ascending or descending order.
    let chain = (1_u32..8, 1_u32..5, any::<bool>()).prop_map(|(first, len, down)| {
        let mut chain: Vec<_> = (first..first + len).collect();
        if down {
            chain.reverse();
        }
        chain
    });
    prop::collection::vec((0_u8..6, 0_usize..4, prop_oneof![blocks, chain]), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn lists_are_vectors(calls in calls()) {
        let mut lists: BlockLists = BlockLists::new(3, 12).unwrap();
        let mut model = [const { Vec::<u32>::new() }; 3];
        for (call, list, blocks) in calls {
            let ids: Vec<_> = blocks.iter().copied().map(BlockId::new).collect();
            match call {
                0 | 1 => for (&id, &block) in ids.iter().zip(&blocks) {
                    let is_loose = (1..12).contains(&block) && model.iter().all(|one| !one.contains(&block));
                    prop_assert_eq!(lists.push(list, id, call == 1), is_loose && list < 3);
                    if is_loose && list < 3 {
                        model[list].insert(if call == 1 { 0 } else { model[list].len() }, block);
                    }
                },
                2 => {
                    let run = blocks.iter().enumerate().take_while(|&(at, block)| {
                        let is_loose = !blocks[..at].contains(block)
                            && model.iter().all(|one| !one.contains(block));
                        (1..12).contains(block) && is_loose && list < 3
                    });
                    let run: Vec<_> = run.map(|(_, &block)| block).collect();
                    let put = |members: &mut Bare, id: u32, link: Link| {
                        let Some(place) = members.link_mut(id)
                            .filter(|place| !place.is_linked()) else { return false };
                        *place = link;
                        members.note(id, Some(list));
                        true
                    };
                    prop_assert_eq!(lists.push_back_run(list, ids.len(), |at| ids[at], put), run.len());
                    if list < 3 {
                        model[list].extend(run);
                    }
                }
                3 => {
                    let of = |at: &usize| {
                        let block = blocks[*at];
                        model.get(list).is_some_and(|one| one.contains(&block))
                            && !blocks[..*at].contains(&block)
                    };
                    let expected = (0..blocks.len()).take_while(of).count();
                    let take = |members: &mut Bare, block: BlockId| {
                        members.list_of(block.get()).filter(|&on| on == list)?;
                        members.note(block.get(), None);
                        Some(std::mem::replace(members.link_mut(block.get())?, Link::LOOSE))
                    };
                    prop_assert_eq!(lists.remove_run(list, &ids, take), expected);
                    if let Some(one) = model.get_mut(list) {
                        one.retain(|block| !blocks[..expected].contains(block));
                    }
                }
                4 => for at in 0..blocks.len() {
                    let front = at % 2 == 0;
                    let end = |one: &mut Vec<u32>| if front
                        && !one.is_empty() { Some(one.remove(0)) } else { one.pop() };
                    let expected = model.get_mut(list).and_then(end);
                    prop_assert_eq!(lists.pop(list, front).map(BlockId::get), expected);
                },
                _ => for (&id, &block) in ids.iter().zip(&blocks) {
                    let on = model.iter().position(|one| one.contains(&block));
                    prop_assert_eq!(lists.remove(id), on);
                    model.iter_mut().for_each(|one| one.retain(|&other| other != block));
                },
            }
            lists.check_invariants().unwrap();
            for (number, expected) in model.iter().enumerate() {
                prop_assert_eq!(&lists.iter(number).map(BlockId::get).collect::<Vec<_>>(), expected);
                prop_assert_eq!(lists.back(number).map(BlockId::get), expected.last().copied());
            }
        }
    }
}

/// Keys that differ only in their first or last bits are spread over the hash table like other keys. So
/// filling and emptying a large table takes a moment. If such keys clustered, it would take hours.
#[test]
fn keys_that_look_alike_do_not_meet() {
    let patterns: [fn(u64) -> u64; 4] = [|i| i, |i| i << 40, |i| i << 20, |i| u64::MAX - (i << 44)];
    for pattern in patterns {
        let n = 200_000_u64;
        let mut ghosts = Ghosts::new(1, n as usize).unwrap();
        for i in 0..n {
            ghosts.push(0, pattern(i));
        }
        ghosts.check_invariants().unwrap();
        assert!((0..n).all(|i| ghosts.take(pattern(i)).is_some() && ghosts.find(pattern(i)).is_none()));
    }
}

#[test]
fn the_number_of_queues_is_limited() {
    let most = Bare::MOST;
    assert!(Ghosts::new(most - 1, 1).is_ok());
    let error = Ghosts::new(most, 1).unwrap_err().to_string();
    assert_eq!(error, "num_lists is 256: must be at most 255");
}
