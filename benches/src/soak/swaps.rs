//! Preemption by swap, in two phases, and the copies of every step: planned, handed out, completed or aborted at each point.

use kvpool::{Fit, ManagerError, RequestRef, RequestState, SwapId, TierError};

use super::driver::{Abort, Driver};
use super::meter::{Meter, Operation};
use super::{Sabotage, Wrong, ensure};

/// A swap under way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    id: SwapId,
    /// Its requests, as keys of the books.
    keys: Vec<usize>,
    out: bool,
    /// Whether any of its blocks has to be copied.
    copies: bool,
    /// Whether its copies have been handed out.
    taken: bool,
}

impl Driver {
    /// Hands out the planned copies and makes them.
    pub(super) fn take_plan(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let plan = meter.time(Operation::TakePlan, || self.manager.take_plan())?;
        if !self.sabotaged(Sabotage::LostCopies) {
            self.store.copy(&plan);
        }
        self.books.expected.copied_blocks += plan.len() as u64;
        self.swaps.iter_mut().for_each(|swap| swap.taken = true);
        self.note(plan.len() as u64);
        Ok(())
    }

    pub(super) fn swap_out(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let keys = self.pick_group(RequestState::Running);
        self.swap_out_group(&keys, meter)
    }

    pub(super) fn swap_in(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let keys = self.pick_group(RequestState::Swapped);
        self.begin_swap(&keys, false, meter)
    }

    pub(super) fn swap_out_group(&mut self, keys: &[usize], meter: &mut Meter) -> Result<(), Wrong> {
        self.begin_swap(keys, true, meter)
    }

    /// One to four requests, some of which may share blocks.
    fn pick_group(&mut self, state: RequestState) -> Vec<usize> {
        let mut keys = Vec::new();
        for _ in 0..self.chance.between(1, 4) {
            if let Some(key) = self.pick(state)
                && !keys.contains(&key)
            {
                keys.push(key);
            }
        }
        keys
    }

    fn begin_swap(&mut self, keys: &[usize], out: bool, meter: &mut Meter) -> Result<(), Wrong> {
        if keys.is_empty() {
            return Ok(());
        }
        for &key in keys {
            self.read_back(self.books.get(key)?, false)?;
        }
        let entries = keys.iter().map(|&key| self.books.get(key)).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<RequestRef<'_>> = entries.iter().map(|entry| entry.id.as_ref()).collect();
        let manager = &mut self.manager;
        let fit = meter.time(Operation::FitSwap, || match out {
            true => manager.fit_swap_out(&ids),
            false => manager.fit_swap_in(&ids),
        });
        if self.preset.host_share == 0 {
            let none = matches!(fit, Err(ManagerError::NoHostTier));
            return ensure(none, || format!("a swap without a host tier: {fit:?}"));
        }
        let fit = fit?;
        let before = self.observe(false);
        let manager = &mut self.manager;
        let (result, time) = Meter::clock(|| match out {
            true => manager.begin_swap_out(&ids),
            false => manager.begin_swap_in(&ids),
        });
        let begun = if out { Operation::SwapOutBegin } else { Operation::SwapInBegin };
        meter.count(if result.is_ok() { begun } else { Operation::SwapRefused }, time);
        ensure(result.is_ok() == (fit == Fit::Ok), || format!("a swap that fits {fit:?} gave {result:?}"))?;
        let id = match result {
            Ok(id) => id,
            Err(error) => return self.out_of_blocks(&before, &error),
        };
        let mapping = self.manager.tiers().swap_mapping(id)?;
        for &(_, dst, copied) in &mapping {
            if copied {
                self.store.wipe(usize::from(out), dst);
            }
        }
        let copies = mapping.iter().any(|&(.., copied)| copied);
        self.note(id.get() << 32 | mapping.len() as u64);
        for &key in keys {
            self.books.set_state(key, RequestState::Moving)?;
        }
        self.swaps.push(UnderWay { id, keys: keys.to_vec(), out, copies, taken: false });
        Ok(())
    }

    /// Completes or aborts a swap under way.
    pub(super) fn end_swap(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let nth = self.chance.below(self.swaps.len());
        if self.swaps.is_empty() { Ok(()) } else { self.end_nth_swap(nth, meter) }
    }

    /// Ends the swap that moves a request.
    pub(super) fn end_swap_of(&mut self, key: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let nth = self.swaps.iter().position(|swap| swap.keys.contains(&key));
        let nth = nth.ok_or_else(|| Wrong(format!("request {key} moves in no swap")))?;
        self.end_nth_swap(nth, meter)
    }

    fn end_nth_swap(&mut self, nth: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let abort = self.chance.percent(35);
        let UnderWay { id, out, copies, taken, .. } = self.swaps[nth];
        let held = self.held_by_leaving(nth)?;
        if abort {
            meter.time(Operation::SwapAbort, || self.manager.abort_swap(id))?;
            let point = match (out, taken) {
                (true, false) => Abort::OutPlanned,
                (true, true) => Abort::OutCopied,
                (false, false) => Abort::InPlanned,
                (false, true) => Abort::InCopied,
            };
            self.aborts[point as usize] += 1;
            self.swap_aborts += 1;
        } else {
            if copies && !taken {
                let before = self.observe(false);
                let result = meter.time(Operation::Invalid, || self.manager.complete_swap(id));
                let refused = matches!(result, Err(ManagerError::Tier(TierError::CopiesNotTaken { .. })));
                ensure(refused, || format!("a swap was completed before its copies: {result:?}"))?;
                self.invalid += 1;
                self.unchanged(&before, "a swap that was completed too early")?;
                self.take_plan(meter)?;
            }
            let complete = if out { Operation::SwapOutComplete } else { Operation::SwapInComplete };
            let pairs = meter.time(complete, || self.manager.complete_swap(id))?;
            self.note(pairs.len() as u64);
        }
        let UnderWay { keys, .. } = self.swaps.swap_remove(nth);
        let counted =
            if out { &mut self.books.expected.swapped_out } else { &mut self.books.expected.swapped_in };
        *counted += if abort { 0 } else { keys.len() as u64 };
        let state = if out == abort { RequestState::Running } else { RequestState::Swapped };
        for (key, held) in keys.into_iter().zip(held) {
            if let Some(held) = held {
                self.note_left(key, held)?;
                continue;
            }
            self.books.set_state(key, state)?;
            self.read_back(self.books.get(key)?, false)?;
        }
        Ok(())
    }

    /// Blocks that each request of a swap gives up when it ends; nothing for those that stay.
    fn held_by_leaving(&self, nth: usize) -> Result<Vec<Option<usize>>, Wrong> {
        let held = self.swaps[nth].keys.iter().map(|&key| {
            let entry = self.books.get(key)?;
            let table = self.manager.block_table(&entry.id)?;
            let held = table.iter().filter(|block| !block.is_null()).count();
            Ok((entry.state == RequestState::Releasing).then_some(held))
        });
        held.collect()
    }
}
