//! Delta debugging: finds a minimal list of items that still causes a failure (Zeller and Hildebrandt,
//! "Simplifying and Isolating Failure-Inducing Input", 2002). It removes chunks of items, beginning
//! with halves and ending with single items, until no more items can be removed.

/// Returns a minimal list of items, in order, for which the function `still` returns true. If any one
/// of them is removed, `still` returns false. At worst O(items squared) runs.
///
/// ```
/// use kvpool_journal::minimize;
/// let fails = |items: &[u32]| items.contains(&3) && items.contains(&7);
/// assert_eq!(minimize((0..100).collect(), &mut |items| fails(items)), [3, 7]);
/// ```
pub fn minimize<T: Clone>(items: Vec<T>, still: &mut dyn FnMut(&[T]) -> bool) -> Vec<T> {
    let mut least = items;
    // First find the shortest prefix of the list that fails, because items after the failure are not
    // needed.
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
        // Repeat with the same chunk size as long as items are removed. Then halve the size, down to
        // single items.
        if !left_out || chunk > 1 {
            chunk /= 2;
        }
    }
    least
}
