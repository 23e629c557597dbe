//! Property 3: an allocation of 0 blocks, of a negative number, or of more blocks than available
//! changes nothing. Counts remain within the pool.
//!
//! In ascend#14283 and lmcache#987, such an allocation took the available blocks, or made the counts
//! negative.
//!
//! An implementation fails this test if it takes blocks until none is left and only then returns an
//! error, or if it never compares a signed count with 0.

use super::*;

#[test]
fn property_03_an_impossible_allocation_changes_nothing() {
    for cached in 0..=2 {
        for held in 0..=2 {
            let mut pool = pool(6);
            cache(&mut pool, &(0..2 * cached as u32).collect::<Vec<_>>());
            let held = pool.allocate(held).unwrap();
            if let [first, ..] = held[..] {
                pool.release_after(&[first], 7).unwrap();
            }
            let available = pool.num_available();
            assert_eq!(available, 6 - held.len());
            let before = observe(&pool);
            // The list includes -1 and the most negative number, converted to unsigned numbers as a
            // caller might do.
            for n in [0, available + 1, 7, usize::MAX, isize::MIN.cast_unsigned()] {
                let mut out = ids(&[77]);
                let result = pool.allocate_into(n, &mut out);
                if n == 0 {
                    assert_eq!(result, Ok(()));
                } else {
                    let fenced = usize::from(!held.is_empty());
                    assert_eq!(
                        result,
                        Err(PoolError::OutOfBlocks(Refusal::new(n, available, fenced, n <= 6)))
                    );
                }
                assert_eq!(raw(&out), [77], "allocate({n})");
                assert_eq!(observe(&pool), before, "allocate({n})");
            }
            assert_eq!(pool.allocate(available).unwrap().len(), available);
            assert_eq!(sums(&pool), recount(&pool));
        }
    }
}
