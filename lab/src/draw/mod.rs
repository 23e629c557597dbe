//! Converts bytes to calls.
//!
//! This module chooses the next call, and which of its arguments are invalid. Each world draws the
//! arguments itself ([`World`]'s methods `fill` and `spoil`): [`pool`] draws the arguments of a pool's
//! calls, [`manager`] those of a manager's calls.

pub mod groups;
pub mod manager;
pub mod pool;
pub mod vllm;

use kvpool_journal::calls::Slots;

use crate::bytes::Bytes;
use crate::world::{Call, World};

/// How often a call is drawn, relative to the others, if the lists of the world do not contain it.
pub const USUAL: u8 = 4;
/// On average, one in this number of arguments is made invalid on purpose.
const WRONG: usize = 14;
/// If no valid arguments exist for a drawn call, the call is made nevertheless with a probability of
/// one in this number. Otherwise another call is drawn.
const IMPOSSIBLE: usize = 10;
/// Maximum number of calls that are drawn one after another until one can be made.
const ATTEMPTS: usize = 20;

/// Lists of call names with a weight for each. The probability of a call is proportional to its weight.
/// If several lists contain a call, the first one applies.
pub type Weights = &'static [&'static [(&'static str, u8)]];

fn weight(weights: Weights, name: &str) -> usize {
    let exception = weights.iter().copied().flatten().find(|(call, _)| *call == name);
    usize::from(exception.map_or(USUAL, |&(_, weight)| weight))
}

/// Draws the next call. Returns `None` if no attempt gives a call with valid arguments.
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
