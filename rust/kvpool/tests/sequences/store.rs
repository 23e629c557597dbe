//! The bytes: what is written where, and plans executed on it.

use super::*;

/// What computing the last token of each prefix of `tokens` writes.
pub(super) fn kv(weights: u64, tokens: &[u32]) -> Vec<u64> {
    let mix = |state: u64, with: u64| {
        let mixed = (state ^ with).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ (mixed >> 29)
    };
    let mut state = mix(!0, weights);
    let next = |token: &u32| {
        state = mix(state, u64::from(*token) + 1);
        state
    };
    tokens.iter().map(next).collect()
}

/// The memory of all tiers.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Store {
    block_size: usize,
    cells: Vec<Vec<u64>>,
}

impl Store {
    pub(super) fn new(block_size: usize, num_blocks: &[usize]) -> Self {
        let junk = |tier: usize| move |cell: usize| (tier * 1_000_000 + cell) as u64;
        let cells = num_blocks.iter().enumerate();
        let cells = cells.map(|(tier, blocks)| (0..blocks * block_size).map(junk(tier)).collect()).collect();
        Self { block_size, cells }
    }

    pub(super) fn block(&self, place: Place) -> &[u64] {
        let start = place.block.index() * self.block_size;
        &self.cells[place.tier][start..start + self.block_size]
    }

    pub(super) fn cell(&mut self, place: Place, slot: usize) -> &mut u64 {
        &mut self.cells[place.tier][place.block.index() * self.block_size + slot]
    }

    pub(super) fn write(&mut self, place: Place, bytes: &[u64]) {
        let start = place.block.index() * self.block_size;
        self.cells[place.tier][start..start + self.block_size].copy_from_slice(bytes);
    }

    pub(super) fn copy(&mut self, Transfer { src, dst }: Transfer) {
        let bytes = self.block(src).to_vec();
        self.write(dst, &bytes);
    }

    /// Executes a plan in three ways, which must agree.
    pub(super) fn execute(&mut self, plan: &TransferPlan) {
        let before = self.clone();
        let mut by_runs = self.clone();
        for round in plan.rounds(&[]).unwrap() {
            round.iter().for_each(|&transfer| self.copy(transfer));
            for run in runs(&round).iter().rev() {
                for i in (0..run.len as u32).rev() {
                    let at = |place: Place| Place { block: BlockId::new(place.block.get() + i), ..place };
                    by_runs.copy(Transfer { src: at(run.src), dst: at(run.dst) });
                }
            }
        }
        assert_eq!(*self, by_runs, "runs of {plan:?}");
        let mut at_once = before.clone();
        plan.transfers().iter().for_each(|t| at_once.write(t.dst, before.block(t.src)));
        assert_eq!(*self, at_once, "rounds of {plan:?}");
    }
}
