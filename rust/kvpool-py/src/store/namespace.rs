//! Bindings of `Namespace`, the settings that determine the meaning of stored bytes.

use std::collections::BTreeMap;

use kvpool_store::{Layout, Namespace, Span};
use pyo3::types::{PyBytes, PyDict};

use super::numbers::u32_of;
use crate::argument::take;
use crate::convert::{Int, Text, count};
use crate::errors::raise;
use crate::gather::{gather, gather_as};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.store", name = "Namespace", eq, hash)]
#[derive(PartialEq, Eq)]
pub(crate) struct PyNamespace(pub(crate) Namespace);

crate::argument::held!(PyNamespace);

impl std::hash::Hash for PyNamespace {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.digest().hash(state);
    }
}

/// Converts the argument `layers` or `heads`: the first index, and the number of items.
fn span(py: Python<'_>, name: &str, (first, count): (Int, Int)) -> PyResult<Span> {
    Ok(Span { first: u32_of(py, name, first)?, count: u32_of(py, name, count)? })
}

fn texts(extra: &Bound<'_, PyDict>) -> PyResult<BTreeMap<String, String>> {
    let text = |object: &Bound<'_, PyAny>| take::<Text>("a name or a value of extra", object);
    let mut texts = BTreeMap::new();
    for (name, value) in extra {
        texts.insert(text(&name)?.0, text(&value)?.0);
    }
    Ok(texts)
}

fn layout(item: &Bound<'_, PyAny>) -> PyResult<Layout> {
    let py = item.py();
    let (group, order, shape, strides): (Int, Text, Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
    let numbers = |name, list: &Bound<'_, PyAny>| {
        let items: Vec<Int> = gather_as(name, list, "an int")?;
        items.into_iter().map(|item| Ok(count(py, name, item)? as u64)).collect::<PyResult<Vec<_>>>()
    };
    Ok(Layout {
        group: u32_of(py, "group", group)?,
        order: order.0,
        shape: numbers("shape", &shape)?,
        strides: numbers("strides", &strides)?,
    })
}

#[pymethods]
impl PyNamespace {
    #[new]
    #[pyo3(signature = (
        *, model, weights, kv_dtype, scales, layouts, block_size, layers, heads, hash_algorithm, hash_seed,
        extra
    ))]
    // No field has a default, because a forgotten field would load wrong bytes.
    fn new(
        py: Python<'_>,
        model: Text,
        weights: Text,
        kv_dtype: Text,
        scales: Text,
        layouts: &Bound<'_, PyAny>,
        block_size: Int,
        layers: (Int, Int),
        heads: (Int, Int),
        hash_algorithm: Text,
        hash_seed: &[u8],
        extra: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let each = "a tuple (group, order, shape, strides)";
        Ok(Self(Namespace {
            model: model.0,
            weights: weights.0,
            kv_dtype: kv_dtype.0,
            scales: scales.0,
            layouts: gather("layouts", layouts, |position, item| {
                crate::gather::or_wrong_item("layouts", position, &item, each, layout(&item))
            })?,
            block_size: u32_of(py, "block_size", block_size)?,
            layers: span(py, "layers", layers)?,
            heads: span(py, "heads", heads)?,
            hash_algorithm: hash_algorithm.0,
            hash_seed: hash_seed.to_vec(),
            extra: texts(extra)?,
        }))
    }

    #[staticmethod]
    fn from_json(py: Python<'_>, text: Text) -> PyResult<Self> {
        Namespace::from_json(&text.0)
            .map(Self)
            .map_err(|error| raise(py, "InvalidArgumentError", format!("no namespace: {error}")))
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.digest().as_bytes())
    }

    fn __repr__(&self) -> String {
        format!("Namespace({})", self.0.digest())
    }
}
