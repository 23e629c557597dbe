//! Compares random operations with a model that follows the documentation: the bytes are correct, the
//! capacity is respected, and the least recently used object is evicted.

use crate::common::{Fake, LEN, Mode, always, at, get, key, namespace, put, settle};
use kvpool_store::{Arena, BreakerConfig, Presence, Store, StoreConfig, Why};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Put(u64),
    Get(u64),
    Remove(u64),
    Touch(u64),
    Flip(u64, usize),
    Mode(Mode),
    Restart,
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (0_u64..8).prop_map(Operation::Put),
        6 => (0_u64..8).prop_map(Operation::Get),
        1 => (0_u64..8).prop_map(Operation::Remove),
        1 => (0_u64..8).prop_map(Operation::Touch),
        1 => (0_u64..8, 0_usize..8 * LEN as usize).prop_map(|(n, bit)| Operation::Flip(n, bit)),
        1 => prop_oneof![4 => Just(Mode::Works), 1 => Just(Mode::Fails), 1 => Just(Mode::IsFull)]
            .prop_map(Operation::Mode),
        1 => Just(Operation::Restart),
    ]
}

/// The objects that the store should contain, oldest first. The flag states whether a test changed the
/// bytes of the object.
#[derive(Debug, Default)]
struct Model {
    objects: Vec<(u64, bool)>,
    /// Whether the order of use is known. It is unknown after a restart, because the store does not
    /// save it.
    ordered: bool,
}

impl Model {
    fn find(&self, n: u64) -> Option<usize> {
        self.objects.iter().position(|&(of, _)| of == n)
    }

    fn touch(&mut self, at: usize) {
        let object = self.objects.remove(at);
        self.objects.push(object);
    }
}

proptest! {
    #[test]
    fn a_store_equals_its_model(places in 1_u32..5, staged: bool, operations in vec(operations(), 1..60)) {
        let fake = Fake::new(places);
        let arena = Arena::new(2, LEN).unwrap();
        // The test changes the behaviour of the back end between calls. Disable the circuit breaker,
        // because it would hide the effects of this.
        let breaker = BreakerConfig { failures: u32::MAX, ..BreakerConfig::default() };
        let config = StoreConfig { breaker, staged, tell_gone: true, ..always() };
        let open = || Store::open(fake.clone(), arena.clone(), &namespace(1), config).unwrap();
        let mut store = open();
        let mut model = Model { ordered: true, ..Model::default() };
        let mut mode = Mode::Works;
        // The objects that an observer expects in the store. It adds those that were written, and
        // removes those that `take_gone` returns.
        let mut told = std::collections::BTreeSet::new();
        for operation in operations {
            match operation {
                // Change the mode of the back end only for the next calls. While the test waits, the back end
                // has to work, because the store clears the place of a failed write until this succeeds.
                Operation::Mode(new) => mode = new,
                Operation::Put(n) if mode == Mode::Works => {
                    prop_assert_eq!(put(&mut store, &arena, n, at(0)), Ok(()));
                    match model.find(n) {
                        Some(found) => model.touch(found),
                        None => {
                            if model.objects.len() == places as usize {
                                let here = |&&(of, _): &&(u64, bool)| store
                                    .contains(&key(of), at(0)) == Presence::Here;
                                let gone = model.objects.iter().position(|object| !here(&object)).unwrap();
                                prop_assert!(gone == 0
                                    || !model.ordered, "{} was not the oldest of {:?}", gone, model);
                                model.objects.remove(gone);
                            }
                            model.objects.push((n, false));
                        }
                    }
                }
                Operation::Put(n) => {
                    let known = model.find(n).is_some();
                    let full = model.objects.len() == places as usize;
                    fake.set(mode);
                    arena.write(0).unwrap().fill(1);
                    let tokens = Default::default();
                    let offer = kvpool_store::Put { key: key(n), tokens, len: LEN, slot: 0, admit: None };
                    store.put(&[offer], at(0)).unwrap();
                    let ended = crate::common::finish(&mut store, at(0)).pop().unwrap().objects[0];
                    fake.set(Mode::Works);
                    settle(&mut store, at(0));
                    let why = if mode == Mode::Fails { Why::Failed } else { Why::Full };
                    prop_assert_eq!(ended, if known { Ok(()) } else { Err(why) });
                    match model.find(n) {
                        Some(found) => model.touch(found),
                        None if full => {
                            let here = |of: u64| store.contains(&key(of), at(0)) == Presence::Here;
                            let gone = model.objects.iter().position(|&(of, _)| !here(of)).unwrap();
                            prop_assert!(gone == 0 || !model.ordered);
                            model.objects.remove(gone);
                        }
                        None => {}
                    }
                }
                Operation::Get(n) => {
                    let expected = match model.find(n) {
                        None => Err(Why::Absent),
                        Some(_) if mode == Mode::Fails => Err(Why::Failed),
                        Some(_) if mode == Mode::IsFull => Err(Why::Full),
                        Some(found) if model.objects[found].1 => Err(Why::Damaged),
                        Some(_) => Ok(()),
                    };
                    fake.set(mode);
                    let got = get(&mut store, &arena, n, at(0));
                    fake.set(Mode::Works);
                    settle(&mut store, at(0));
                    prop_assert!(got == expected
                        || (got, expected) == (Err(Why::Absent), Err(Why::Damaged)), "{:?}", got);
                    if let Some(found) = model.find(n) {
                        model.touch(found);
                        if expected == Err(Why::Damaged) {
                            model.objects.pop();
                        }
                    }
                }
                Operation::Remove(n) => {
                    let found = model.find(n);
                    prop_assert_eq!(store.remove(&[key(n)], at(0)), usize::from(found.is_some()));
                    settle(&mut store, at(0));
                    prop_assert!(!fake.has(n));
                    if let Some(found) = found {
                        model.objects.remove(found);
                    }
                }
                Operation::Touch(n) => {
                    store.touch(&[key(n)]);
                    if let Some(found) = model.find(n) {
                        model.touch(found);
                    }
                }
                Operation::Flip(n, bit) => {
                    // Flipping the same bit twice would restore it, so flip at most one bit of each
                    // object.
                    if let Some(found) = model.find(n) && !model.objects[found].1 {
                        prop_assert!(fake.flip(n, bit));
                        model.objects[found].1 = true;
                    }
                }
                Operation::Restart => {
                    store.close();
                    store = open();
                    // If a header is damaged, the store does not find the object any more.
                    model.objects.retain(|&(n, flipped)| {
                        let here = store.contains(&key(n), at(0)) == Presence::Here;
                        assert!(here || flipped, "{n} is lost");
                        here
                    });
                    model.ordered = false;
                    told = model.objects.iter().map(|&(n, _)| key(n)).collect();
                }
            }
            let here: std::collections::BTreeSet<_> =
                (0..8).map(key).filter(|key| store.contains(key, at(0)) == Presence::Here).collect();
            let gone = store.take_gone();
            prop_assert!(gone.iter().all(|key| told.remove(key)), "{:?} went, and was not there", gone);
            prop_assert!(told.is_subset(&here), "{:?} went, and nobody was told", told.difference(&here));
            told.clone_from(&here);
            let here = here.len();
            prop_assert_eq!(here, model.objects.len());
            let stats = store.stats();
            prop_assert_eq!((stats.objects, stats.in_flight), (here as u64, 0));
            prop_assert!(fake.objects() <= places as usize && stats.bytes <= stats.capacity_bytes);
            store.check_invariants().unwrap();
        }
    }
}
