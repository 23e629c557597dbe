//! From bytes to a call.
//!
//! Owns: which call comes next, and how many arguments are wrong. The arguments are the affair of each world
//! (`fill` and `spoil` of [`World`]); [`pool`] has those of a pool, [`manager`] those of a manager.

pub mod groups;
pub mod manager;
pub mod pool;
pub mod vllm;

use kvpool_journal::calls::Slots;

use crate::bytes::Bytes;
use crate::world::{Call, World};

/// The weight of a call for which nothing else is said.
pub const USUAL: u8 = 4;
/// One argument in so many is wrong.
const WRONG: usize = 14;
/// One call in so many that are impossible is made.
const IMPOSSIBLE: usize = 10;
/// Attempts to draw a call that is possible.
const ATTEMPTS: usize = 20;

/// How often calls are drawn: lists of exceptions, of which the first that names a call counts.
pub type Weights = &'static [&'static [(&'static str, u8)]];

fn weight(weights: Weights, name: &str) -> usize {
    let exception = weights.iter().copied().flatten().find(|(call, _)| *call == name);
    usize::from(exception.map_or(USUAL, |&(_, weight)| weight))
}

/// The next call; `None` if no call is possible.
pub fn draw<W: World>(bytes: &mut Bytes<'_>, world: &mut W) -> Option<Call<W>> {
    let weights = world.weights();
    let names = <Call<W> as Slots>::NAMES;
    let sum: usize = names.iter().map(|name| weight(weights, name)).sum();
    for _ in 0..ATTEMPTS {
        let mut at = bytes.wide(sum);
        let position = names.iter().position(|name| {
            let here = at < weight(weights, name);
            at = at.saturating_sub(weight(weights, name));
            here
        })?;
        let mut call = Call::<W>::blank(u8::try_from(position).ok()?)?;
        let mut draft = world.draft(names[position]);
        let mut possible = true;
        for slot in call.slots() {
            possible &= world.fill(slot, bytes, &mut draft);
        }
        let mut fits = true;
        for slot in call.slots() {
            if bytes.one_in(WRONG) {
                fits &= world.spoil(slot, bytes);
            }
        }
        if fits && (possible || bytes.one_in(IMPOSSIBLE)) {
            return Some(call);
        }
    }
    None
}
