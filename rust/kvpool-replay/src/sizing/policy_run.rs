//! Runs an eviction policy over a trace at one capacity, in one of two forms.
//!
//! [`run_policy`] runs a policy in the given [`Form`].

use std::str::FromStr;

use kvpool::EvictionPolicy;

use super::error::{SizingError, setting, too_many};
use super::outcome::PolicyRun;
use super::pool_form::pool_form;
use super::references::References;
use super::stream::stream;

/// The way in which a policy is run.
///
/// ```
/// use kvpool_replay::sizing::Form;
/// assert_eq!("stream".parse(), Ok(Form::Stream));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// Runs whole requests, as the real pool does: see [`pool_form`].
    #[default]
    Pool,
    /// Runs block by block, as the simulations of papers do: see [`stream`].
    Stream,
}

impl FromStr for Form {
    type Err = SizingError;

    fn from_str(name: &str) -> Result<Self, SizingError> {
        match name {
            "pool" => Ok(Self::Pool),
            "stream" => Ok(Self::Stream),
            _ => Err(setting("form", name, "pool or stream")),
        }
    }
}

/// Runs a policy over a trace at one capacity, starting with an empty cache.
///
/// ```
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::sizing::{Blocks, Form, References, lru, run_policy};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let run = run_policy(&references, 700, kvpool_policies::LRU, Form::Pool)?;
/// assert_eq!(run.outcome(), &lru(&references, 700));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
///
/// # Errors
/// [`SizingError::Setting`] for a capacity that the policy does not support or that needs too much
/// memory. In stream form also for a policy without an order of its own (`last-accessed`).
pub fn run_policy(
    references: &References,
    capacity_blocks: usize,
    policy: EvictionPolicy,
    form: Form,
) -> Result<PolicyRun, SizingError> {
    // Limit the capacity to the number of blocks in the trace. A larger cache gives the same result,
    // because such a cache evicts nothing.
    match form {
        Form::Pool => {
            let blocks = capacity_blocks.min(references.unique_blocks()).max(1) + 1;
            let mut evictor = policy.build(blocks, None).map_err(|_| too_many(capacity_blocks))?;
            Ok(pool_form(references, capacity_blocks, evictor.as_mut()))
        }
        Form::Stream => {
            let mut order = policy
                .order(2)
                .map_err(|_| too_many(capacity_blocks))?
                .ok_or_else(|| setting("policy", policy.name(), "a policy with an order of its own"))?;
            stream(references, capacity_blocks, order.as_mut())
        }
    }
}
