//! Converts bytes to arguments. Every byte value is valid, small bytes give small values, and a change
//! of one byte changes little.

use arbitrary::{Result, Unstructured};

/// Draws an index into `weights`. Its probability is proportional to its weight.
pub(crate) fn pick(bytes: &mut Unstructured<'_>, weights: &[u8]) -> Result<usize> {
    let sum: u32 = weights.iter().map(|&weight| u32::from(weight)).sum();
    let mut at = u32::from(bytes.arbitrary::<u8>()?) % sum.max(1);
    for (index, &weight) in weights.iter().enumerate() {
        if at < u32::from(weight) {
            return Ok(index);
        }
        at -= u32::from(weight);
    }
    Ok(0)
}

/// Draws a number from 0 to `most`, including both.
pub(crate) fn up_to(bytes: &mut Unstructured<'_>, most: u8) -> Result<usize> {
    bytes.int_in_range(0..=most).map(usize::from)
}

/// Draws a list of at most `longest` numbers, each at most `most`.
pub(crate) fn some(bytes: &mut Unstructured<'_>, longest: u8, most: u8) -> Result<Vec<usize>> {
    let len = up_to(bytes, longest)?;
    (0..len).map(|_| up_to(bytes, most)).collect()
}

/// Draws at most `longest` tokens, from the beginning of one of a few prompts, so that prefixes are
/// shared.
pub(crate) fn tokens(bytes: &mut Unstructured<'_>, longest: u8) -> Result<Vec<u32>> {
    const PATTERNS: [u32; 8] = [0, 0, 0, 0x10, 0x04, 0x40, 0x01, 0xFFFF];
    let len = up_to(bytes, longest)?;
    let pattern = PATTERNS[up_to(bytes, 7)?];
    Ok((0..len).map(|at| pattern >> at & 1).collect())
}

/// Returns simpler lists, which the shrinker tries: shorter lists and lists of smaller numbers, the
/// shortest first.
pub(crate) fn simpler_list<T: Clone + PartialEq + Default>(list: &[T]) -> Vec<Vec<T>> {
    let mut simpler: Vec<_> = (0..list.len())
        .map(|at| {
            let mut shorter = list.to_vec();
            shorter.remove(at);
            shorter
        })
        .collect();
    for at in (0..list.len()).filter(|&at| list[at] != T::default()) {
        let mut smaller = list.to_vec();
        smaller[at] = T::default();
        simpler.push(smaller);
    }
    simpler
}

/// Returns smaller numbers, which the shrinker tries, the smallest first.
pub(crate) fn smaller(number: usize) -> impl Iterator<Item = usize> {
    let tried = [0, number / 2, number.saturating_sub(1)];
    (0..tried.len()).map(move |at| tried[at]).filter(move |&other| other < number)
}
