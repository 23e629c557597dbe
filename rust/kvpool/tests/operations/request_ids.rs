//! Tests that every 64-bit number, signed or unsigned, is a separate request id, and that its integer
//! type has no effect.

use kvpool::{CacheManager, ExtraKeys, ManagerConfig, ManagerError, RequestId, RequestRef};
use proptest::prelude::*;

/// Converts a number to an id from each integer type that can represent it.
fn ids(number: i128) -> Vec<RequestId> {
    let from = [
        i32::try_from(number).map(RequestId::from).ok(),
        u32::try_from(number).map(RequestId::from).ok(),
        i64::try_from(number).map(RequestId::from).ok(),
        u64::try_from(number).map(RequestId::from).ok(),
        usize::try_from(number).map(RequestId::from).ok(),
    ];
    from.into_iter().flatten().collect()
}

fn numbers() -> impl Strategy<Value = i128> {
    let edge =
        prop::sample::select(vec![0, i128::from(i32::MAX), i128::from(u32::MAX), i128::from(i64::MAX)]);
    let at_edge = (edge, -2..3i128, any::<bool>())
        .prop_map(|(edge, off, negative)| if negative { -edge + off } else { edge + off });
    prop_oneof![
        at_edge.prop_map(|number| number.max(i64::MIN.into())),
        Just(u64::MAX.into()),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
    ]
}

proptest! {
    #[test]
    fn ids_are_equal_as_their_numbers_are(a in numbers(), b in numbers()) {
        prop_assert!(!ids(a).is_empty());
        for (one, other) in ids(a).iter().flat_map(|one| ids(b).into_iter().map(move |other| (one, other))) {
            prop_assert_eq!(*one == other, a == b);
            prop_assert_eq!(RequestRef::from(one) == other.as_ref(), a == b);
        }
        for id in ids(a) {
            prop_assert_eq!((id.to_string(), format!("{id:?}")), (a.to_string(), a.to_string()));
            prop_assert_ne!(&id, &RequestId::from(a.to_string()));
            prop_assert_eq!(id.as_ref().to_owned(), id);
        }
    }

    #[test]
    fn a_manager_knows_every_number(numbers in prop::collection::hash_set(numbers(), 1..8)) {
        let config = ManagerConfig { num_blocks: 16, block_size: 4, ..ManagerConfig::default() };
        let mut manager = CacheManager::new(config).unwrap();
        for &number in &numbers {
            let prompt = manager.prepare(&[1], ExtraKeys::default()).unwrap();
            manager.admit(ids(number)[0].clone(), prompt).unwrap();
        }
        for &number in &numbers {
            for id in ids(number) {
                prop_assert_eq!(manager.request(&id).unwrap().tokens, 1);
                let prompt = manager.prepare(&[1], ExtraKeys::default()).unwrap();
                let twice = manager.admit(id.clone(), prompt).unwrap_err();
                let known = matches!(&twice.error, ManagerError::DuplicateRequest { .. });
                prop_assert!(known && twice.error.to_string().contains(&number.to_string()));
            }
        }
        for &number in &numbers {
            manager.release(&ids(number)[0], None).unwrap();
            prop_assert!(manager.request(&ids(number)[0]).is_err());
        }
        prop_assert_eq!(manager.check_invariants(), Ok(()));
    }
}
