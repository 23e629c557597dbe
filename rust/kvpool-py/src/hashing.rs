//! Bindings of `BlockHasher`, `ExtraKeys`, `HashCursor` and `HashChain`.

use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use kvpool::{
    Adapter, BlockHash, BlockHasher, ChainLink, ExtraKeys, HashAlgorithm, HashChain, HashCursor,
    HasherConfig, MultimodalItem, Verify, shorten,
};
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyTuple};

use crate::argument::{Argument, take};
use crate::convert::{Int, Text, bytes, count, shown, tokens};
use crate::enter::{LONG, Locked, enter, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::python::prelude::*;

/// Parses a setting that must be one of a list of names.
pub(crate) fn named<T: FromStr>(py: Python<'_>, name: &str) -> PyResult<T>
where
    T::Err: Display,
{
    // Only the shortened text is parsed, because no valid name is longer.
    shorten(name).parse().map_err(|error: T::Err| raise(py, "InvalidArgumentError", error.to_string()))
}

pub(crate) fn key(py: Python<'_>, key: Option<&[u8]>) -> PyResult<Option<[u8; 32]>> {
    key.map(|key| {
        key.try_into().map_err(|_| {
            raise(py, "InvalidArgumentError", format!("key has {} bytes: must be 32", key.len()))
        })
    })
    .transpose()
}

fn epoch(py: Python<'_>, epoch: i128) -> PyResult<u64> {
    u64::try_from(epoch).map_err(|_| {
        raise(py, "InvalidArgumentError", format!("epoch is {epoch}: must be from 0 to {}", u64::MAX))
    })
}

fn digests<'py>(py: Python<'py>, chain: &HashChain) -> PyResult<Bound<'py, PyList>> {
    let algorithm = chain.algorithm();
    PyList::new(py, chain.hashes().iter().map(|hash| PyBytes::new(py, hash.digest(algorithm))))
}

/// Converts multimodal items. `None` is an empty list.
pub(crate) fn multimodal_items(items: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<MultimodalItem>> {
    let Some(items) = items else { return Ok(Vec::new()) };
    let py = items.py();
    let item = |position, item: &Bound<'_, PyAny>| {
        let (identifier, offset, length): (Bound<'_, PyAny>, Int, Int) =
            extract("multimodal", position, item, "a tuple (identifier, offset, length)")?;
        let (offset, length) = (count(py, "offset", offset)?, count(py, "length", length)?);
        let identifier = bytes(&identifier, "identifier")?.into();
        Ok(MultimodalItem { identifier, offset: offset as u64, length: length as u64 })
    };
    // All items are read before any is converted. So an endless sequence is refused before the converted
    // items take memory.
    let raw = gather("multimodal", items, |_, item| Ok(item))?;
    raw.iter().enumerate().map(|(position, one)| item(position, one)).collect()
}

#[pyclass(frozen, module = "kvpool._core.hashing", name = "ExtraKeys", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyExtraKeys(pub(crate) ExtraKeys);

#[pymethods]
impl PyExtraKeys {
    #[new]
    #[pyo3(signature = (
        *, adapter=None, adapter_path=None, salt=None, tenant=None, user=None, multimodal=None
    ))]
    fn new(
        py: Python<'_>,
        adapter: Option<&Bound<'_, PyAny>>,
        adapter_path: Option<Text>,
        salt: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        user: Option<&Bound<'_, PyAny>>,
        multimodal: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let owned = |value: Option<&Bound<'_, PyAny>>, name| {
            value.map(|value| Ok::<_, PyErr>(bytes(value, name)?.into())).transpose()
        };
        let adapter: Option<Box<[u8]>> = owned(adapter, "adapter")?;
        if adapter.is_none() && adapter_path.is_some() {
            return Err(raise(py, "InvalidArgumentError", "adapter_path is given without adapter"));
        }
        let adapter = adapter.map(|id| Adapter { id, path: adapter_path.map(|path| path.0.into()) });
        Ok(Self(ExtraKeys {
            adapter,
            salt: owned(salt, "salt")?,
            tenant: owned(tenant, "tenant")?,
            user: owned(user, "user")?,
            multimodal: multimodal_items(multimodal)?,
            epoch: 0,
        }))
    }

    /// Returns the constructor's arguments, from which the object is copied and unpickled.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let ExtraKeys { adapter, salt, tenant, user, multimodal, .. } = &self.0;
        let keys = PyDict::new(py);
        if let Some(Adapter { id, path }) = adapter {
            keys.set_item("adapter", PyBytes::new(py, id))?;
            keys.set_item("adapter_path", path.as_deref())?;
        }
        for (name, key) in [("salt", salt), ("tenant", tenant), ("user", user)] {
            if let Some(key) = key {
                keys.set_item(name, PyBytes::new(py, key))?;
            }
        }
        let items = multimodal.iter();
        let items = items.map(|item| (PyBytes::new(py, &item.identifier), item.offset, item.length));
        keys.set_item("multimodal", items.collect::<Vec<_>>())?;
        Ok((PyTuple::empty(py), keys))
    }

    /// Shows which keys are set, but not their values, because salts and tenants do not belong in logs.
    fn __repr__(&self) -> String {
        let ExtraKeys { adapter, salt, tenant, user, multimodal, .. } = &self.0;
        let set = [
            ("adapter", adapter.is_some()),
            ("salt", salt.is_some()),
            ("tenant", tenant.is_some()),
            ("user", user.is_some()),
            ("multimodal", !multimodal.is_empty()),
        ];
        let shown: Vec<_> =
            set.iter().filter(|(_, set)| *set).map(|(name, _)| format!("{name}=...")).collect();
        format!("ExtraKeys({})", shown.join(", "))
    }
}

pub(crate) fn extra_or_default(extra: Option<&Bound<'_, PyExtraKeys>>) -> ExtraKeys {
    extra.map(|extra| extra.get().0.clone()).unwrap_or_default()
}

/// Returns a copy of a cursor, or hashes the tokens of a prompt in `epoch`. Hashing runs without the
/// interpreter. Before, `append_known` may append leading tokens to the cursor; it returns their number.
pub(crate) fn prompt(
    py: Python<'_>,
    hasher: &Arc<BlockHasher>,
    prompt: &Bound<'_, PyAny>,
    extra: Option<&Bound<'_, PyExtraKeys>>,
    epoch: u64,
    append_known: impl FnOnce(&mut HashCursor, &[u32]) -> usize + Send,
) -> PyResult<HashCursor> {
    if let Ok(cursor) = prompt.cast::<PyHashCursor>() {
        if extra.is_some() {
            let message = "extra keys are given with a prompt that is hashed already: hash it with them";
            return Err(raise(py, "InvalidArgumentError", message));
        }
        return Ok(cursor.get().snapshot(py));
    }
    let tokens = tokens(prompt)?;
    let extra = ExtraKeys { epoch, ..extra_or_default(extra) };
    hash(py, hasher.clone(), extra, tokens, append_known)
}

/// Returns a cursor over the given tokens. The call hashes them while detached from the interpreter.
fn hash(
    py: Python<'_>,
    hasher: Arc<BlockHasher>,
    extra: ExtraKeys,
    tokens: Vec<u32>,
    append_known: impl FnOnce(&mut HashCursor, &[u32]) -> usize + Send,
) -> PyResult<HashCursor> {
    let make = move || {
        let mut cursor = HashCursor::new(hasher, extra)?;
        let known = append_known(&mut cursor, &tokens);
        cursor.append(&tokens[known..]);
        Ok::<_, kvpool::HashError>(cursor)
    };
    py.detach(make).or_raise(py)
}

/// Converts the argument `algorithm`. An int is probably a block size that the caller passed by position, so
/// the error says to pass it by name.
fn algorithm_name<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a str> {
    if !object.is_instance_of::<PyInt>() {
        return take("algorithm", object);
    }
    let (size, known) = (shown(object), HashAlgorithm::ALL.iter().map(|algorithm| algorithm.name()));
    let known = known.collect::<Vec<_>>().join(", ");
    let message = format!(
        "algorithm is {size}, an int: must be one of {known}; a block size has a name: \
            BlockHasher(block_size={size})"
    );
    Err(raise(object.py(), "ArgumentTypeError", message))
}

#[pyclass(frozen, module = "kvpool._core.hashing", name = "BlockHasher")]
pub(crate) struct PyBlockHasher(pub(crate) Arc<BlockHasher>);

#[pymethods]
impl PyBlockHasher {
    #[new]
    #[pyo3(signature = (algorithm="sha256", block_size=16, *, verify="none", key=None, seed=None))]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = algorithm_name)] algorithm: &str,
        block_size: i128,
        verify: &str,
        key: Option<&[u8]>,
        seed: Option<Text>,
    ) -> PyResult<Self> {
        let config = HasherConfig {
            algorithm: named(py, algorithm)?,
            block_size: count(py, "block_size", block_size)?,
            verify: named(py, verify)?,
            key: self::key(py, key)?,
            seed: seed.map(|seed| seed.0),
        };
        Ok(Self(Arc::new(BlockHasher::new(config).or_raise(py)?)))
    }

    getters! {
        algorithm: &'static str = self.0.algorithm().name();
        block_size: usize = self.0.block_size();
        verify: &'static str = self.0.verify().name();
    }

    #[pyo3(signature = (tokens=None, extra=None, *, epoch=0))]
    fn cursor(
        &self,
        py: Python<'_>,
        tokens: Option<&Bound<'_, PyAny>>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        epoch: i128,
    ) -> PyResult<PyHashCursor> {
        let epoch = self::epoch(py, epoch)?;
        let tokens = tokens.map(self::tokens).transpose()?.unwrap_or_default();
        let extra = ExtraKeys { epoch, ..extra_or_default(extra) };
        Ok(PyHashCursor::new(hash(py, self.0.clone(), extra, tokens, |_, _| 0)?))
    }

    #[pyo3(signature = (tokens, extra=None, *, epoch=0))]
    fn hash_tokens<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'py, PyAny>,
        extra: Option<&Bound<'py, PyExtraKeys>>,
        epoch: i128,
    ) -> PyResult<Bound<'py, PyList>> {
        self.cursor(py, Some(tokens), extra, epoch)?.digests(py)
    }

    #[pyo3(signature = (tokens, parent=None, extra=None, *, epoch=0))]
    fn link(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        parent: Option<&Bound<'_, PyChainLink>>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        epoch: i128,
    ) -> PyResult<PyChainLink> {
        let extra = ExtraKeys { epoch: self::epoch(py, epoch)?, ..extra_or_default(extra) };
        let (tokens, parent) = (self::tokens(tokens)?, parent.map(|parent| &parent.get().0));
        Ok(PyChainLink(ChainLink::new(&self.0, parent, &tokens, &extra).or_raise(py)?))
    }

    fn __repr__(&self) -> String {
        format!("BlockHasher({:?}, {}, verify={:?})", self.algorithm(), self.block_size(), self.verify())
    }
}

#[pyclass(frozen, module = "kvpool._core.hashing", name = "HashCursor")]
pub(crate) struct PyHashCursor(Locked<HashCursor>);

impl PyHashCursor {
    pub(crate) fn new(cursor: HashCursor) -> Self {
        Self(Locked::new(cursor))
    }

    pub(crate) fn snapshot(&self, py: Python<'_>) -> HashCursor {
        enter(py, &self.0, |cursor| cursor.clone())
    }
}

#[pymethods]
impl PyHashCursor {
    #[pyo3(signature = (tokens, *, multimodal=None))]
    fn append(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        multimodal: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let (tokens, items) = (self::tokens(tokens)?, multimodal_items(multimodal)?);
        let size = tokens.len() + items.len();
        enter_sized(py, &self.0, size, |cursor| cursor.append_with(&tokens, &items)).or_raise(py)
    }

    fn truncate(&self, py: Python<'_>, num_tokens: Int) -> PyResult<()> {
        let num_tokens = count(py, "num_tokens", num_tokens)?;
        enter(py, &self.0, |cursor| cursor.truncate(num_tokens)).or_raise(py)
    }

    fn rebase(&self, py: Python<'_>, epoch: i128) -> PyResult<()> {
        let epoch = self::epoch(py, epoch)?;
        enter_sized(py, &self.0, LONG, |cursor| cursor.rebase(epoch)).or_raise(py)
    }

    getters! {
        num_tokens: usize = enter(py, &self.0, |cursor| cursor.num_tokens());
        epoch: u64 = enter(py, &self.0, |cursor| cursor.epoch());
        tail: Vec<u32> = enter(py, &self.0, |cursor| cursor.tail().to_vec());
        hashed_blocks: u64 = enter(py, &self.0, |cursor| cursor.hashed_blocks());
    }

    fn chain(&self, py: Python<'_>) -> PyHashChain {
        PyHashChain(enter(py, &self.0, |cursor| cursor.chain().clone()))
    }

    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        digests(py, &self.chain(py).0)
    }

    fn copy(&self, py: Python<'_>) -> Self {
        Self::new(self.snapshot(py))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.num_tokens(py)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("HashCursor(num_tokens={}, epoch={})", self.num_tokens(py), self.epoch(py))
    }
}

/// An argument that is a hash chain: a `HashChain`, or the chain that a `HashCursor` has during the call.
#[derive(Clone, Copy)]
pub(crate) enum ChainArg<'a> {
    Chain(&'a HashChain),
    Cursor(&'a Locked<HashCursor>),
}

impl ChainArg<'_> {
    pub(crate) fn len(self, py: Python<'_>) -> usize {
        match self {
            Self::Chain(chain) => chain.len(),
            Self::Cursor(cursor) => enter(py, cursor, |cursor| cursor.chain().len()),
        }
    }

    /// Runs a call on the chain, without a copy of it.
    pub(crate) fn with<R>(self, call: impl FnOnce(&HashChain) -> R) -> R {
        match self {
            Self::Chain(chain) => call(chain),
            Self::Cursor(cursor) => cursor.within(|cursor| call(cursor.chain())),
        }
    }
}

impl<'a, 'py> Argument<'a, 'py> for ChainArg<'a> {
    fn expected(_: Python<'py>) -> String {
        "a HashChain or a HashCursor, which BlockHasher.cursor makes of tokens".into()
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyHashChain>() {
            Ok(chain) => Ok(Self::Chain(&chain.get().0)),
            Err(_) => Ok(Self::Cursor(&object.cast::<PyHashCursor>()?.get().0)),
        }
    }
}

#[pyclass(frozen, module = "kvpool._core.hashing", name = "HashChain")]
pub(crate) struct PyHashChain(pub(crate) HashChain);

#[pymethods]
impl PyHashChain {
    #[staticmethod]
    #[pyo3(signature = (algorithm, block_size, digests, *, epoch=0))]
    fn from_digests(
        py: Python<'_>,
        algorithm: &str,
        block_size: i128,
        digests: &Bound<'_, PyAny>,
        epoch: i128,
    ) -> PyResult<Self> {
        let epoch = self::epoch(py, epoch)?;
        let algorithm: HashAlgorithm = named(py, algorithm)?;
        let block_size = count(py, "block_size", block_size)?;
        let hashes = gather("digests", digests, |position, item| {
            let digest: Bound<'_, PyBytes> = extract("digests", position, &item, "bytes")?;
            BlockHash::from_digest(algorithm, digest.as_bytes()).or_raise(py)
        })?;
        Ok(Self(HashChain::from_digests(algorithm, block_size, epoch, hashes).or_raise(py)?))
    }

    getters! {
        algorithm: &'static str = self.0.algorithm().name();
        block_size: usize = self.0.block_size();
        epoch: u64 = self.0.epoch();
    }

    fn digests<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        digests(py, &self.0)
    }

    fn fingerprints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.fingerprints())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("HashChain({:?}, block_size={}, len={})", self.algorithm(), self.block_size(), self.0.len())
    }
}

#[pyclass(frozen, module = "kvpool._core.hashing", name = "ChainLink", eq, hash)]
#[derive(PartialEq)]
pub(crate) struct PyChainLink(pub(crate) ChainLink);

impl Hash for PyChainLink {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash().as_bytes().hash(state);
    }
}

#[pymethods]
impl PyChainLink {
    #[staticmethod]
    #[pyo3(signature = (algorithm, digest, tokens, *, parent=None, depth=0, epoch=0))]
    fn from_digest(
        py: Python<'_>,
        algorithm: &str,
        digest: &[u8],
        tokens: &Bound<'_, PyAny>,
        parent: Option<&[u8]>,
        depth: i128,
        epoch: i128,
    ) -> PyResult<Self> {
        let (algorithm, epoch) = (named::<HashAlgorithm>(py, algorithm)?, self::epoch(py, epoch)?);
        let depth = u32::try_from(count(py, "depth", depth)?).unwrap_or(u32::MAX);
        let hash = |digest| BlockHash::from_digest(algorithm, digest).or_raise(py);
        let parent = match (parent, depth.checked_sub(1)) {
            (None, None) => None,
            (Some(parent), Some(above)) => Some((hash(parent)?, above)),
            _ => {
                let message = format!("depth is {depth}: 0 without a parent, at least 1 behind one");
                return Err(raise(py, "InvalidArgumentError", message));
            }
        };
        let tokens = self::tokens(tokens)?;
        Ok(Self(ChainLink::from_digest(algorithm, epoch, hash(digest)?, parent, &tokens).or_raise(py)?))
    }

    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.hash().digest(self.0.algorithm()))
    }

    getters! {
        depth: u32 = self.0.depth();
        num_tokens: u64 = self.0.num_tokens();
        epoch: u64 = self.0.epoch();
    }

    fn __repr__(&self) -> String {
        format!("ChainLink(depth={}, hash={:?})", self.0.depth(), self.0.hash())
    }
}

#[pyfunction]
pub(crate) fn hash_algorithms() -> Vec<&'static str> {
    HashAlgorithm::ALL.iter().map(|algorithm| algorithm.name()).collect()
}

#[pyfunction]
pub(crate) fn verify_modes() -> Vec<&'static str> {
    Verify::ALL.iter().map(|verify| verify.name()).collect()
}
