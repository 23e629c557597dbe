//! Bindings of `Match`.

use std::hash::{Hash, Hasher};

use kvpool::Match;

use crate::convert::{blocks, count, ids};
use crate::errors::OrRaise;
use crate::hashing::{ChainArg, PyChainLink};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.requests", name = "Match", eq, hash)]
#[derive(PartialEq)]
pub(crate) struct PyMatch(pub(super) Match);

impl Hash for PyMatch {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[pymethods]
impl PyMatch {
    #[new]
    #[pyo3(signature = (chain, block_ids, start=0))]
    fn new(py: Python<'_>, chain: ChainArg<'_>, block_ids: &Bound<'_, PyAny>, start: i128) -> PyResult<Self> {
        let (named, start) = (blocks(block_ids)?, count(py, "start", start)?);
        Ok(Self(chain.with(|chain| Match::new(chain, start, &named)).or_raise(py)?))
    }

    getters! {
        start: usize = self.0.start();
        block_ids: Vec<u32> = ids(self.0.blocks());
        link: Option<PyChainLink> = self.0.link().cloned().map(PyChainLink);
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("Match(start={}, blocks={})", self.0.start(), self.0.len())
    }
}
