//! Converts bytes to calls.
//!
//! This module chooses the next call, and how many of its arguments are wrong. Each world draws the
//! arguments (`fill` and `spoil` of [`World`]): [`pool`] those of a pool, [`manager`] those of a
//! manager.

pub mod groups;
pub mod manager;
pub mod pool;
pub mod vllm;

use kvpool_journal::calls::Slots;

use crate::bytes::Bytes;
use crate::world::{Call, World};

/// The weight of a call without an explicit weight.
pub const USUAL: u8 = 4;
/// One of this number of arguments is wrong.
const WRONG: usize = 14;
/// One of this number of impossible calls is made.
const IMPOSSIBLE: usize = 10;
/// Maximum number of attempts to draw a call that is possible.
const ATTEMPTS: usize = 20;

/// How often calls are drawn: lists of exceptions. The first list that names a call counts.
pub type Weights = &'static [&'static [(&'static str, u8)]];

fn weight(weights: Weights, name: &str) -> usize {
    let exception = weights.iter().copied().flatten().find(|(call, _)| *call == name);
    usize::from(exception.map_or(USUAL, |&(_, weight)| weight))
}

/// Draws the next call. Returns `None` if no call is possible.
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
