//! Tests whether a prompt can ever be computed in a pool. A single request runs in chunks, in pools of
//! every size.

use super::*;
use kvpool::Fit;

/// Runs a prompt alone in an empty pool to its end, in chunks of [`Part::allocate_tokens`]. Returns the
/// largest number of blocks that it holds.
pub(super) fn run(
    specs: &[GroupSpec],
    usable: usize,
    tokens: &[u32],
    part: Part,
) -> Result<usize, ManagerError> {
    let mut manager = manager(specs, usable);
    // In a group of chunked attention, a hit that ends at the beginning of an attention chunk needs no
    // blocks. A model with only such groups has hits even if nothing is cached. `compute_all` prevents
    // these hits.
    let admission = admit(&mut manager, 0, tokens, Part { compute_all: true, ..part })?;
    let mut most = held(&manager);
    if admission.external_tokens > 0 {
        manager.external_done(0, Loaded::All)?;
        assert_eq!(manager.request(0)?.state, RequestState::Running, "everything came");
    }
    let chunk = part.allocate_tokens.map_or(tokens.len(), |chunk| chunk.max(1));
    let first = part.allocate_tokens.map_or(tokens.len(), |chunk| part.external_tokens + chunk);
    let mut covered = first.min(tokens.len());
    loop {
        manager.commit(0, covered)?;
        // A kept state (checkpoint) is copied before the next chunk overwrites it.
        drop(manager.take_plan()?);
        if covered == tokens.len() {
            break;
        }
        covered = tokens.len().min(covered + chunk);
        manager.extend(0, covered)?;
        most = most.max(held(&manager));
    }
    manager.release(0, Until::Now)?;
    assert_eq!(held(&manager), 0);
    Ok(most)
}

/// Returns sizes of pools to test: the smallest size, sizes around a limit, and a large size.
fn sizes(least: usize) -> impl Iterator<Item = usize> {
    let sizes = [1, least.saturating_sub(1), least, least + 1, 39];
    sizes.into_iter().filter(|&usable| usable > 0)
}

fn check(specs: &[GroupSpec], tokens: &[u32], part: Part) {
    let what = format!("{} tokens of {specs:?}, {part:?}", tokens.len());
    let least = run(specs, 200, tokens, part).unwrap();
    let ones = Part { allocate_tokens: Some(1), ..part };
    let least_of_ones = run(specs, 200, tokens, ones).unwrap();
    assert!(run(specs, least.max(1), tokens, part).is_ok(), "{what}: {least} blocks");
    assert!(least < 2 || run(specs, least - 1, tokens, part).is_err(), "{what}: {least} blocks");
    for usable in sizes(least).chain(sizes(least_of_ones)) {
        let what = format!("{usable} blocks, {what}");
        let mut manager = manager(specs, usable);
        let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
        let fit = manager.fit(&prompt, part).unwrap();
        assert_eq!(fit.can_ever_fit, least <= usable, "{what}: {fit:?}, {least} blocks are held");
        let refusal = match admit(&mut manager, 0, tokens, part) {
            Ok(_) => {
                assert_eq!(fit.fit, Fit::Ok, "{what}: {fit:?}");
                continue;
            }
            Err(ManagerError::OutOfBlocks(refusal)) => refusal,
            Err(other) => panic!("{what}: {other}"),
        };
        assert_eq!(refusal.can_ever_fit, fit.can_ever_fit, "{what}: {refusal:?}");
        let answer = match (least <= usable, least_of_ones <= usable) {
            (true, _) => Fit::Later,
            (false, true) => Fit::InChunks,
            (false, false) => Fit::Never,
        };
        assert_eq!(fit.fit, answer, "{what}: {fit:?}");
    }
}

#[test]
fn a_prompt_can_ever_fit_exactly_if_it_runs_alone() {
    let mut numbers = Numbers(1);
    for _ in 0..cases() {
        let specs = drawn(&mut numbers);
        let tokens: Vec<u32> = (0..1 + numbers.below(30) as u32).collect();
        let allocate_tokens = [None, Some(numbers.below(9))][numbers.below(2)];
        let external_tokens = if numbers.below(3) == 0 { numbers.below(tokens.len()) } else { 0 };
        let compute_all = numbers.below(4) == 0;
        check(&specs, &tokens, Part { allocate_tokens, external_tokens, compute_all });
    }
}
