//! Makes each call twice: with cached content, and after all cached content was removed. A call that
//! succeeds without cached content must also succeed with it.

use super::*;
use kvpool::Fit;

/// A random test case: two prompts with a common beginning, and an unrelated request that holds blocks.
#[derive(Debug)]
struct Case {
    specs: Vec<GroupSpec>,
    usable: usize,
    /// Number of tokens that both prompts have in common at their beginning.
    common: usize,
    lengths: [usize; 2],
    /// Number of tokens of the unrelated request.
    unrelated: usize,
    chunk: usize,
    part: Part,
    /// Number of tokens of the second prompt that are computed before a truncation.
    computed: usize,
    lost: usize,
    /// Number of new tokens, and number of slots for drafts.
    new: usize,
    lookahead: usize,
}

impl Case {
    fn drawn(numbers: &mut Numbers) -> Self {
        let lengths = [1 + numbers.below(30), 1 + numbers.below(30)];
        let external_tokens = if numbers.below(4) == 0 { numbers.below(lengths[1]) } else { 0 };
        let allocate_tokens = [None, Some(numbers.below(9))][numbers.below(2)];
        Self {
            specs: drawn(numbers),
            usable: 1 + numbers.below(39),
            common: numbers.below(30),
            lengths,
            unrelated: numbers.below(12),
            chunk: 1 + numbers.below(9),
            part: Part { allocate_tokens, external_tokens, compute_all: false },
            computed: numbers.below(lengths[1] + 1),
            lost: numbers.below(4).saturating_sub(1),
            new: numbers.below(4),
            lookahead: numbers.below(4),
        }
    }

    fn prompt(&self, which: usize) -> Vec<u32> {
        let token = |at: usize| if at < self.common { at } else { 100 * (which + 1) + at };
        (0..self.lengths[which]).map(|at| token(at) as u32).collect()
    }

    /// Returns a manager in which the unrelated request holds blocks. The first prompt is cached, if
    /// the pool was large enough to compute it.
    fn warm(&self) -> CacheManager {
        let mut manager = manager(&self.specs, self.usable);
        drop(serve(&mut manager, 0, &self.prompt(0), self.chunk));
        if self.unrelated > 0 {
            let tokens: Vec<u32> = (0..self.unrelated as u32).map(|at| 1000 + at).collect();
            drop(admit(&mut manager, 1, &tokens, Part::WHOLE));
        }
        manager
    }

    /// Returns a manager in which the second prompt runs, its external tokens are loaded, and its first
    /// chunk has blocks. `None` if the pool has too few blocks.
    fn admitted(&self) -> Option<CacheManager> {
        let mut manager = self.warm();
        let part = Part { allocate_tokens: Some(self.chunk), ..self.part };
        let admission = admit(&mut manager, 2, &self.prompt(1), part).ok()?;
        drop(manager.take_plan().unwrap());
        if admission.external_tokens > 0 {
            manager.external_done(2, Loaded::All).unwrap();
            drop(manager.take_plan().unwrap());
        }
        Some(manager)
    }

    /// Returns a manager in which the second prompt is partly computed and then truncated. `None` if
    /// the pool has too few blocks.
    fn running(&self) -> Option<CacheManager> {
        let mut manager = self.admitted()?;
        let covered = manager.request(2).unwrap().computed_tokens + self.chunk;
        let upto = self.computed.min(covered).min(self.lengths[1]);
        if upto > manager.request(2).unwrap().computed_tokens {
            manager.commit(2, upto).unwrap();
            drop(manager.take_plan().unwrap());
        }
        let keep = self.lengths[1].saturating_sub(self.lost).max(1);
        drop(manager.truncate(2, keep, Until::Now));
        Some(manager)
    }

    fn preempted(&self) -> Option<CacheManager> {
        let mut manager = self.running()?;
        manager.preempt(2, Until::Now).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        Some(manager)
    }

    /// Makes a call in two managers, one with cached content and one without. Checks that both succeed
    /// or both fail. Returns whether they succeed, or `None` if the call is refused for another reason
    /// than missing blocks.
    fn twice(
        &self,
        what: &str,
        make: impl Fn(&Self) -> Option<CacheManager>,
        call: impl Fn(&mut CacheManager) -> Result<(), ManagerError>,
    ) -> Option<bool> {
        let mut with = make(self)?;
        let mut without = make(self)?;
        without.drop_cached(&all_blocks(&without)).unwrap();
        assert_eq!(with.pool().num_available(), without.pool().num_available());
        let (with, without) = (call(&mut with), call(&mut without));
        if matches!(&without, Err(error) if !matches!(error, ManagerError::OutOfBlocks(_))) {
            assert_eq!(with.as_ref().err(), without.as_ref().err(), "{what}: {self:?}");
            return None;
        }
        if without.is_ok() {
            assert_eq!(with, Ok(()), "{what} fits without the cache: {self:?}");
        }
        Some(with.is_ok())
    }
}

/// Admissions, planned admissions and `fit` give the same answer.
#[test]
fn cached_blocks_refuse_no_admission() {
    let mut numbers = Numbers(2);
    let mut seen = [0; 2];
    for _ in 0..cases() {
        let case = Case::drawn(&mut numbers);
        let prompt = case.prompt(1);
        let make = |case: &Case| Some(case.warm());
        let admitted = case.twice("an admission", make, |manager| {
            let cursor = manager.prepare(&prompt, ExtraKeys::default())?;
            let fit = manager.fit(&cursor, case.part)?;
            let mut plan = manager.plan_step();
            let options = AdmitOptions { part: case.part, ..AdmitOptions::default() };
            let planned =
                manager.plan_admit_with(&mut plan, 2, cursor, &options).map_err(|refused| refused.error);
            let admitted = admit(manager, 2, &prompt, case.part);
            assert_eq!(fit.fit == Fit::Ok, admitted.is_ok(), "{fit:?}, {admitted:?}: {case:?}");
            let found = admitted.as_ref().map(|admission| admission.cached_tokens);
            assert_eq!(planned.as_ref(), found.as_ref().map_err(|error| *error), "planned: {case:?}");
            admitted.map(drop)
        });
        seen[usize::from(admitted.unwrap())] += 1;
    }
    assert!(seen.into_iter().all(|n| n > cases() / 20), "{seen:?} are refused and admitted");
}

#[test]
fn cached_blocks_refuse_no_resumption() {
    let mut numbers = Numbers(3);
    let mut seen = [0; 2];
    for _ in 0..cases() {
        let case = Case::drawn(&mut numbers);
        let resumed = case.twice("a resumption", Case::preempted, |manager| {
            let mut plan = manager.plan_step();
            let planned = manager.plan_resume_with(&mut plan, 2, case.part);
            let resumed = manager.resume_with(2, case.part);
            let found = resumed.as_ref().map(|admission| admission.cached_tokens);
            assert_eq!(planned.as_ref(), found.as_ref().map_err(|error| *error), "planned: {case:?}");
            resumed.map(drop)
        });
        if let Some(resumed) = resumed {
            seen[usize::from(resumed)] += 1;
        }
    }
    assert!(seen.into_iter().all(|n| n > cases() / 50), "{seen:?} are refused and resumed");
}

#[test]
fn cached_blocks_refuse_no_growth() {
    let mut numbers = Numbers(4);
    let mut seen = [0; 2];
    for _ in 0..cases() {
        let case = Case::drawn(&mut numbers);
        let tokens: Vec<u32> = (0..case.new as u32).map(|at| 500 + at).collect();
        let appended = case.twice("an append", Case::running, |manager| {
            step(manager, 2, &tokens, None, case.lookahead).map(drop)
        });
        let extended = case.twice("an extension", Case::running, |manager| {
            let computed = manager.request(2)?.computed_tokens;
            manager.extend(2, computed + case.chunk).map(drop)
        });
        for done in appended.into_iter().chain(extended) {
            seen[usize::from(done)] += 1;
        }
    }
    assert!(seen.into_iter().all(|n| n > cases() / 50), "{seen:?} are refused and done");
}

/// If a commit, an append and the allocation of draft slots succeed in two separate calls, they also
/// succeed in one call.
#[test]
fn one_call_per_step_needs_no_more_than_two() {
    let mut numbers = Numbers(5);
    let mut fewer = 0;
    for _ in 0..cases() {
        let case = Case::drawn(&mut numbers);
        let tokens: Vec<u32> = (0..case.new as u32).map(|at| 500 + at).collect();
        let (Some(mut one), Some(mut two)) = (case.admitted(), case.admitted()) else { continue };
        let request = one.request(2).unwrap();
        let computed = request.tokens.min(request.computed_tokens + case.chunk);
        two.commit(2, computed).unwrap();
        drop(two.take_plan().unwrap());
        let (one, two) = if computed < request.tokens {
            let covered = computed + case.chunk;
            (next_chunk(&mut one, 2, computed, covered), two.extend(2, covered).map(drop))
        } else {
            let lookahead = case.lookahead;
            let one = step(&mut one, 2, &tokens, Some(computed), lookahead).map(drop);
            (one, step(&mut two, 2, &tokens, None, lookahead).map(drop))
        };
        if two.is_ok() {
            assert_eq!(one, Ok(()), "two calls can do it: {case:?}");
        }
        fewer += u64::from(two.is_err());
    }
    assert!(fewer > cases() / 200, "{fewer} steps were refused");
}
