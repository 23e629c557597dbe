//! Converts bytes to calls, and makes the calls until one of them fails or the bytes end.

pub mod random;
pub mod report;
pub mod shrink;
pub mod soak;

use kvpool_journal::{Answer, Step};

use crate::bytes::Bytes;
use crate::draw::draw;
use crate::failure::{Failure, guarded};
use crate::world::{Call, World};

/// Maximum number of calls of one run.
const MOST_CALLS: usize = 400;

/// The calls that the bytes encode, and the failure of the last call, if any.
#[derive(Debug)]
pub struct Run<W: World> {
    /// The settings.
    pub setting: W::Setting,
    /// The calls that were made. If the run has a failure, the last call caused it.
    pub steps: Vec<Step<Call<W>>>,
    /// The failure that ended the run, if there is one.
    pub failure: Option<Failure>,
    /// The data that was drawn for the calls and that they refer to, such as prompts.
    pub memory: Option<W::Memory>,
}

impl<W: World> Clone for Run<W> {
    fn clone(&self) -> Self {
        let (setting, steps, failure) = (self.setting.clone(), self.steps.clone(), self.failure.clone());
        Self { setting, steps, failure, memory: self.memory.clone() }
    }
}

/// Converts a call of this run to a form that can also be replayed after other calls than those of this
/// run.
pub(crate) fn step<C>(number: usize, operation: C, epoch: u64, answer: Answer) -> Step<C> {
    Step { number: number as u64, operation, epoch, answer }
}

/// Draws calls from the bytes and makes them, until one fails or the bytes end.
#[must_use]
pub fn run<W: World>(data: &[u8]) -> Run<W> {
    let mut bytes = Bytes::new(data);
    let setting = W::setting(&mut bytes);
    let mut steps: Vec<Step<Call<W>>> = Vec::new();
    let mut memory = None;
    let made = guarded(|| {
        let mut world = W::new(&setting, None)?;
        while !bytes.is_over() && steps.len() < MOST_CALLS {
            let Some(call) = draw(&mut bytes, &mut world) else { break };
            let epoch = world.epoch();
            // Record the call before it is made, so that the run also contains a call that panics.
            steps.push(step(steps.len(), call.clone(), epoch, Answer::default()));
            let made = guarded(|| world.make(&call));
            if made.is_err() {
                memory = Some(world.memory().clone());
            }
            let answer = made?;
            if let Some(last) = steps.last_mut() {
                last.answer = answer;
            }
        }
        Ok(())
    });
    Run { setting, steps, failure: made.err(), memory }
}
