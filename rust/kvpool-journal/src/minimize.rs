//! Delta debugging: the fewest items that still fail (Zeller and Hildebrandt, "Simplifying and
//! Isolating Failure-Inducing Input", 2002). Chunks are left out, halves first, then single items,
//! until none can be.

/// The fewest items, in order, that still fail: no single one of them can be left out. O(items squared)
/// runs at worst.
///
/// ```
/// use kvpool_journal::minimize;
/// let fails = |items: &[u32]| items.contains(&3) && items.contains(&7);
/// assert_eq!(minimize((0..100).collect(), &mut |items| fails(items)), [3, 7]);
/// ```
pub fn minimize<T: Clone>(items: Vec<T>, still: &mut dyn FnMut(&[T]) -> bool) -> Vec<T> {
    let mut least = items;
    // What comes behind the failure is of no use: the shortest beginning first.
    let (mut short, mut long) = (0, least.len());
    while long - short > 1 {
        let middle = short + (long - short) / 2;
        if still(&least[..middle]) {
            long = middle;
        } else {
            short = middle;
        }
    }
    if long < least.len() && still(&least[..long]) {
        least.truncate(long);
    }
    let mut chunk = least.len().div_ceil(2);
    while chunk > 0 {
        let mut left_out = false;
        let mut end = least.len();
        while end > 0 {
            let start = end.saturating_sub(chunk);
            let rest = [&least[..start], &least[end..]].concat();
            if still(&rest) {
                (least, left_out) = (rest, true);
            }
            end = start.min(least.len());
        }
        // Again with the same chunk as long as it helps, down to single items.
        if !left_out || chunk > 1 {
            chunk /= 2;
        }
    }
    least
}
