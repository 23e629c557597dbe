//! Classes: groups of blocks with similar features. For each class, the policy learns the times to the
//! next use.
//!
//! This module defines the features of a class, their ranges, and the number of each class.
//!
//! | feature | of | values |
//! |---|---|---|
//! | uses | the block | 1; 2; 3 to 7; more |
//! | gap | the block | six ranges of two octaves each, from 1.5 s on; none for one use |
//! | share | the request that released it | none (also for one block); less than 9/10; more |
//! | output | that request: tokens of its answer | below 32, or unknown; 200; 600; more |
//! | finish | that request: how it ended | unknown, aborted, or at a limit; end of turn; tool calls |
//!
//! The gap is the mean of the times between the uses of a block, on a logarithmic scale. The share is
//! the part of the request's blocks that were cached before the request.
//!
//! The number of a class is the number of the request's features times [`HISTORIES`], plus the number
//! of the block's own features. From a class, the uses and the gap of a block can be computed
//! approximately. A record of an evicted block (a ghost) contains only its class.

use std::fmt;

use super::age::eighths;
use kvpool::{Finish, Signal};

/// The value of a gap that means: the block was used once.
pub(super) const NO_GAP: u8 = u8::MAX;

const GAPS: usize = 6;
/// The smallest number of uses in each range after the first, which is one use.
const USES: [u8; 3] = [2, 3, 8];
const SHARES: usize = 3;
const OUTPUTS: usize = 4;
const FINISHES: usize = 3;

const HISTORIES: usize = 1 + USES.len() * GAPS;
pub(super) const CLASSES: usize = HISTORIES * SHARES * OUTPUTS * FINISHES;

/// The number of families of classes. The classes of a family differ only in the output and the finish
/// of the request.
pub(super) const FAMILIES: usize = HISTORIES * SHARES;

pub(super) const fn family(class: usize) -> usize {
    class / (HISTORIES * OUTPUTS * FINISHES) * HISTORIES + class % HISTORIES
}

/// The start of the first range of gaps (times between two uses), as a binary logarithm of ticks times
/// 8.
const FIRST_GAP: u8 = 36;
const GAP_STEP: u8 = 16;

/// How often a block was used, and the time between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct History {
    pub(super) uses: u8,
    /// The mean of the binary logarithms of the gaps (times between two uses, in ticks), times 8. It is
    /// [`NO_GAP`] before a second use.
    pub(super) gap: u8,
}

impl History {
    pub(super) const NEW: Self = Self { uses: 1, gap: NO_GAP };

    /// Returns the block's history after another use, `age` ticks after the last one.
    #[inline]
    pub(super) fn again(self, age: u32) -> Self {
        let last = u32::from(eighths(age)).min(u32::from(NO_GAP) - 1);
        let gap = if self.gap == NO_GAP { last } else { (u32::from(self.gap) * 11 + last * 5) / 16 };
        Self { uses: self.uses.saturating_add(1), gap: gap as u8 }
    }

    fn number(self) -> usize {
        let uses = USES.iter().filter(|&&least| self.uses >= least).count();
        if uses == 0 || self.gap == NO_GAP {
            return 0;
        }
        let gap = usize::from(self.gap.saturating_sub(FIRST_GAP) / GAP_STEP).min(GAPS - 1);
        1 + (uses - 1) * GAPS + gap
    }

    /// Returns a typical history of the blocks of a class.
    pub(super) fn of_class(class: u16) -> Self {
        let Some(number) = (usize::from(class) % HISTORIES).checked_sub(1) else { return Self::NEW };
        let gap = FIRST_GAP + GAP_STEP * (number % GAPS) as u8 + GAP_STEP / 2;
        Self { uses: USES[number / GAPS % USES.len()], gap }
    }
}

/// A bit in the number of a class that explanations show. It is set for a class whose gaps are measured
/// in capacities of admitted blocks, not in seconds.
const COUNTED: u16 = 1 << 15;

/// Returns the number of a class that explanations show. `timed` is true if its gaps are measured in
/// seconds.
pub(super) const fn numbered(class: u16, timed: bool) -> u16 {
    if timed { class } else { class | COUNTED }
}

/// Formats a description of a class. `class` is its [public number](numbered).
pub(super) fn describe(class: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (class, timed) = (usize::from(class & !COUNTED), class & COUNTED == 0);
    let (history, signal_part) = (class % HISTORIES, class / HISTORIES);
    let uses = ["used twice", "used 3 to 7 times", "used 8 times or more"];
    let gaps = if timed {
        [
            "less than 6 s",
            "less than 24 s",
            "less than 96 s",
            "less than 7 min",
            "less than 26 min",
            "26 min or more",
        ]
    } else {
        // These ranges of gaps are in capacities (the pool's number of blocks) of admitted blocks.
        [
            "less than 0.4 capacities",
            "less than 1.5 capacities",
            "less than 6 capacities",
            "less than 24 capacities",
            "less than 96 capacities",
            "96 capacities or more",
        ]
    };
    match history.checked_sub(1) {
        None => f.write_str("used once")?,
        Some(history) => {
            let (uses, gap) = (uses[history / GAPS % uses.len()], gaps[history % gaps.len()]);
            write!(f, "{uses}, {gap} apart")?;
        }
    }
    let shares = ["new", "known in part", "known"];
    let outputs = ["", ", answer of 32 tokens or more", ", answer of 200 or more", ", answer of 600 or more"];
    let finishes = ["", ", end of turn", ", tool calls"];
    let (share, output) =
        (shares[signal_part / (OUTPUTS * FINISHES) % SHARES], outputs[signal_part / FINISHES % OUTPUTS]);
    write!(f, ", prompt {share}{output}{}", finishes[signal_part % FINISHES])
}

/// Returns the share feature of a request: the range of `known` cached blocks among the `length` blocks
/// of its prompt.
pub(super) fn share(length: u32, known: u32) -> u16 {
    match known {
        0 | 1 => 0,
        _ if u64::from(known) * 10 < u64::from(length) * 9 => 1,
        _ => 2,
    }
}

/// The smallest code of a signal (how a request ended). A block in use stores such a code in the place
/// of its class, so codes are larger than all classes.
const FIRST_SIGNAL: u16 = 1 << 15;
/// The code for a request that ended without a signal.
pub(super) const NO_SIGNAL: u16 = FIRST_SIGNAL;
/// A value that stands for no class and for no signal.
pub(super) const NO_CLASS: u16 = u16::MAX;

/// Returns the code of a signal, which is stored with a block in use.
pub(super) fn encode_signal(signal: Signal) -> u16 {
    let tokens = signal.output_tokens.unwrap_or(0);
    let output = [32, 200, 600].iter().filter(|&&least| tokens >= least).count();
    let finish = match signal.finish {
        Finish::Unknown | Finish::Length | Finish::Aborted => 0,
        Finish::Stop => 1,
        Finish::ToolCalls => 2,
    };
    FIRST_SIGNAL + (output * FINISHES + finish) as u16
}

/// Returns the part of a class that a signal determines. `class` is the code of a signal. For a class,
/// the result is 0.
#[inline]
pub(super) const fn signal_part(class: u16) -> u16 {
    class.saturating_sub(FIRST_SIGNAL)
}

/// Returns the class of a block with this share, this signal and this history.
#[inline]
pub(super) fn of(share: u16, signal_part: u16, history: History) -> u16 {
    (share * (OUTPUTS * FINISHES) as u16 + signal_part) * HISTORIES as u16 + history.number() as u16
}

/// Returns the class of an idle block. For any other value, which occurs only after errors of the
/// caller, returns class 0.
#[inline]
pub(super) const fn learned(class: u16) -> u16 {
    if is_class(class) { class } else { 0 }
}

/// Whether the value is the class of an idle block. Otherwise it is the code of a signal.
#[inline]
pub(super) const fn is_class(class: u16) -> bool {
    class < FIRST_SIGNAL
}

/// Whether the value is a valid class, or the code of a valid signal.
pub(super) const fn is_sound(class: u16) -> bool {
    (class as usize) < CLASSES
        || (class >= FIRST_SIGNAL && ((class - FIRST_SIGNAL) as usize) < OUTPUTS * FINISHES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_unique_number_that_encodes_its_history() {
        let mut seen = vec![false; CLASSES];
        for (known, tokens, finish) in [0, 5, 10]
            .into_iter()
            .flat_map(|known| [0, 32, 200, 600].map(|tokens| (known, tokens)))
            .flat_map(|(known, tokens)| {
                [Finish::Unknown, Finish::Stop, Finish::ToolCalls].map(|finish| (known, tokens, finish))
            })
        {
            let (share, signal_part) = (
                share(10, known),
                signal_part(encode_signal(Signal { finish, output_tokens: Some(tokens) })),
            );
            let gaps = (0..GAPS as u8).map(|gap| FIRST_GAP + GAP_STEP * gap);
            let used = gaps.flat_map(|gap| USES.map(|uses| History { uses, gap }));
            for history in used.chain([History::NEW]) {
                let class = of(share, signal_part, history);
                assert!(!std::mem::replace(&mut seen[usize::from(class)], true));
                assert_eq!(of(share, signal_part, History::of_class(class)), class);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    /// The description contains the range of gaps that belongs to the number of the class.
    #[test]
    fn every_class_has_a_unique_description() {
        struct Words(u16);
        impl fmt::Display for Words {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                describe(self.0, f)
            }
        }
        let all: std::collections::BTreeSet<_> = (0..CLASSES as u16)
            .flat_map(|class| [true, false].map(|timed| Words(numbered(class, timed)).to_string()))
            .collect();
        assert_eq!(
            all.len(),
            2 * CLASSES - SHARES * OUTPUTS * FINISHES,
            "a block that was used once has no gap"
        );
        let twice = |seconds: f64| {
            let history = History::NEW.again((seconds * 16.0) as u32);
            Words(of(0, signal_part(encode_signal(Signal::default())), history)).to_string()
        };
        for (seconds, gap) in [
            (5.9, "less than 6 s"),
            (6.0, "less than 24 s"),
            (23.9, "less than 24 s"),
            (95.9, "less than 96 s"),
            (96.0, "less than 7 min"),
            (384.0, "less than 26 min"),
            (1535.0, "less than 26 min"),
            (1536.0, "26 min or more"),
        ] {
            assert_eq!(twice(seconds), format!("used twice, {gap} apart, prompt new"));
        }
        assert_eq!(
            Words(of_parts(2, Signal { finish: Finish::ToolCalls, output_tokens: Some(300) })).to_string(),
            "used once, prompt known, answer of 200 or more, tool calls"
        );
    }

    fn of_parts(share: u16, signal: Signal) -> u16 {
        of(share, signal_part(encode_signal(signal)), History::NEW)
    }

    #[test]
    fn gaps_are_averaged_on_a_logarithmic_scale() {
        let twice = History::NEW.again(160);
        assert_eq!((twice.uses, twice.gap), (2, eighths(160)));
        let thrice = twice.again(1600);
        assert!(thrice.gap > eighths(160) && thrice.gap < eighths(1600));
        assert_ne!(History::NEW.again(u32::MAX).gap, NO_GAP);
    }
}
