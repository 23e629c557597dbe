//! Arguments of operations, from bytes, and simpler ones: rows of a batch, what is computed of them and has blocks, what a
//! connector has loaded, parts of a prompt.

use arbitrary::{Result as Decoded, Unstructured};
use kvpool::{Computed, Covered, Loaded, Part, Ticket, Until};

use super::operation::LAST_ID;
use crate::bytes::{after, pick, smaller, some, tokens, up_to};

/// Requests with their tokens.
pub type Rows = Vec<(i64, Vec<u32>)>;

/// What is computed of rows: [`Computed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// Nothing is said.
    Nothing,
    /// All but the last token.
    AllButLast,
    /// A number for each row.
    Counts(Vec<usize>),
}

impl Said {
    pub(super) fn computed(&self) -> Computed<'_> {
        match self {
            Self::Nothing => Computed::Nothing,
            Self::AllButLast => Computed::AllButLast,
            Self::Counts(counts) => Computed::Counts(counts),
        }
    }
}

/// What of rows is to have blocks: [`Covered`].
#[derive(Clone, Debug, PartialEq)]
pub enum Room {
    /// All tokens, and so many slots more.
    Ahead(usize),
    /// A number for each row.
    Each(Vec<usize>),
}

impl Room {
    pub(super) fn covered(&self) -> Covered<'_> {
        match self {
            Self::Ahead(slots) => Covered::Lookahead(*slots),
            Self::Each(counts) => Covered::Each(counts),
        }
    }

    pub(super) fn decode(bytes: &mut Unstructured<'_>, rows: usize) -> Decoded<Self> {
        Ok(if pick(bytes, &[2, 1])? == 0 {
            Self::Ahead(up_to(bytes, 4)?)
        } else {
            Self::Each(counts(bytes, rows)?)
        })
    }

    pub(super) fn simpler(&self) -> Option<Self> {
        (*self != Self::Ahead(0)).then_some(Self::Ahead(0))
    }

    pub(super) fn without(&self, row: usize) -> Self {
        match self {
            Self::Ahead(slots) => Self::Ahead(*slots),
            Self::Each(counts) => Self::Each(without(counts, row)),
        }
    }
}

/// What a connector has loaded: [`Loaded`].
#[derive(Clone, Debug, PartialEq)]
pub enum Arrived {
    /// All.
    All,
    /// So many tokens from the start.
    First(usize),
    /// All but these tokens.
    AllBut(std::ops::Range<usize>),
}

impl Arrived {
    pub(super) fn loaded(&self) -> Loaded<'_> {
        match self {
            Self::All => Loaded::All,
            Self::First(tokens) => Loaded::First(*tokens),
            Self::AllBut(range) => Loaded::AllBut(std::slice::from_ref(range)),
        }
    }
}

pub(super) fn id(bytes: &mut Unstructured<'_>) -> Decoded<i64> {
    Ok(up_to(bytes, LAST_ID)? as i64)
}

pub(super) fn ids(bytes: &mut Unstructured<'_>) -> Decoded<Vec<i64>> {
    Ok(some(bytes, 3, LAST_ID)?.into_iter().map(|id| id as i64).collect())
}

pub(super) fn counts(bytes: &mut Unstructured<'_>, rows: usize) -> Decoded<Vec<usize>> {
    (0..rows).map(|_| up_to(bytes, 12)).collect()
}

pub(super) fn rows(bytes: &mut Unstructured<'_>, longest: u8) -> Decoded<Rows> {
    (0..up_to(bytes, longest)?).map(|_| Ok((id(bytes)?, tokens(bytes, 4)?))).collect()
}

pub(super) fn part(bytes: &mut Unstructured<'_>) -> Decoded<Part> {
    // 6 is all.
    let allocate_tokens = Some(up_to(bytes, 6)?).filter(|&chunk| chunk < 6);
    Ok(Part { allocate_tokens, external_tokens: up_to(bytes, 8)?, ..Part::WHOLE })
}

pub(super) fn ticket(bytes: &mut Unstructured<'_>) -> Decoded<Ticket> {
    Ok(Ticket::new(up_to(bytes, 5)? as u64))
}

/// A fence's end, a step's, or now.
pub(super) fn until(bytes: &mut Unstructured<'_>) -> Decoded<Until> {
    let fenced = pick(bytes, &[1, 1])? == 1;
    Ok(if fenced { ticket(bytes)?.into() } else { Until::from(after(bytes)?) })
}

pub(super) fn simpler_tokens(tokens: &[u32]) -> Vec<Vec<u32>> {
    let zeros = vec![0; tokens.len()];
    let zeros = (zeros != tokens).then_some(zeros);
    zeros.into_iter().chain(smaller(tokens.len()).map(|len| tokens[..len].to_vec())).collect()
}

pub(super) fn simpler_ids(id: i64) -> impl Iterator<Item = i64> {
    smaller(id.unsigned_abs() as usize).map(|id| id as i64)
}

pub(super) fn without<T: Clone>(list: &[T], at: usize) -> Vec<T> {
    let mut fewer = list.to_vec();
    fewer.remove(at);
    fewer
}

/// Rows with simpler tokens in one of them.
pub(super) fn simpler_rows(rows: &Rows) -> Vec<Rows> {
    let simpler = |at: usize| {
        simpler_tokens(&rows[at].1).into_iter().map(move |tokens| {
            let mut other = rows.clone();
            other[at].1 = tokens;
            other
        })
    };
    (0..rows.len()).flat_map(simpler).collect()
}

/// The whole at once, then one of both.
pub(super) fn simpler_parts(part: Part) -> Vec<Part> {
    let candidates =
        [Part::WHOLE, Part { external_tokens: 0, ..part }, Part { allocate_tokens: None, ..part }];
    let fewer = smaller(part.external_tokens).map(|external_tokens| Part { external_tokens, ..part });
    candidates.into_iter().chain(fewer).filter(|&other| other != part).collect()
}

/// At once, if it is not.
pub(super) fn simpler_end(until: Until) -> Option<Until> {
    (until != Until::Now).then_some(Until::Now)
}
