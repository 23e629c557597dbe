//! `VllmHasher`: the function that vLLM's `get_request_block_hasher` returns. It computes the block
//! hashes that a request lacks.
//!
//! vLLM calls it for every request that arrives, from its input thread, and for every running request at
//! every token. Most of these calls have no full block, so the call checks this first.
//!
//! Blocks without extra keys are hashed in parts of [`PART`] tokens, detached from the interpreter. Between
//! two parts, the call converts the tokens of the next part, and adds the digests of the last one to the
//! result. So other threads never wait for the conversion of a whole prompt.
//!
//! For blocks with extra keys, vLLM makes the keys and the core encodes them, including which objects
//! are identical. vLLM hashes a block itself if the core can't represent its keys.

use kvpool::hash::vllm::{Atom, ExtraTuple, ObjectId, hash_block, hash_text_blocks};
use kvpool::{BlockHash, HashAlgorithm};
use pyo3::intern;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyModule, PyString, PyTuple};

use crate::convert::exact_ints;
use crate::errors::OrRaise;
use crate::hashing::named;
use crate::python::prelude::*;

/// If a part of a prompt has this number of tokens or more, it is hashed without the interpreter.
const LONG: usize = 1024;

/// The number of tokens that a call converts at once. Meanwhile, it holds the interpreter.
const PART: usize = 1 << 14;

#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmHasher")]
pub(crate) struct PyVllmHasher {
    algorithm: HashAlgorithm,
    block_size: usize,
    /// The module `vllm.v1.core.kv_cache_utils`. Each call reads the seed and the function for extra keys
    /// from it.
    utils: Py<PyModule>,
    /// vLLM's hash function. It hashes blocks that the core can't encode.
    hash_fn: Py<PyAny>,
}

/// The tokens of a request that have no hashes yet.
struct Source<'py> {
    request: Bound<'py, PyAny>,
    tokens: Bound<'py, PyList>,
    start: usize,
    parent: Option<Bound<'py, PyBytes>>,
    /// The number of blocks, from the next one on, that may have extra keys. `None` if no block can have any.
    with_extra: Option<usize>,
}

#[pymethods]
impl PyVllmHasher {
    #[new]
    fn new(
        py: Python<'_>,
        algorithm: &str,
        block_size: usize,
        utils: Py<PyModule>,
        hash_fn: Py<PyAny>,
    ) -> PyResult<Self> {
        let algorithm: HashAlgorithm = named(py, algorithm)?;
        // Hashing no tokens raises an error if vLLM does not have the algorithm, or if the block size is 0.
        hash_text_blocks(algorithm, &[0; 32], &[], block_size).or_raise(py)?;
        Ok(Self { algorithm, block_size, utils, hash_fn })
    }

    /// Computes the hashes that are missing at the end of ``request.block_hashes``.
    fn __call__<'py>(&self, py: Python<'py>, request: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        let tokens = request.getattr(intern!(py, "_all_token_ids"))?.cast_into::<PyList>()?;
        let known = match hashes.cast::<PyList>() {
            Ok(list) => list.len(),
            Err(_) => hashes.len()?,
        };
        let start = known * self.block_size;
        let out = PyList::empty(py);
        if start + self.block_size > tokens.len() {
            return Ok(out);
        }
        let parent = if known == 0 { None } else { Some(hashes.get_item(known - 1)?.cast_into()?) };
        let with_extra = extra_blocks(&request, start)?;
        let mut source = Source { request, tokens, start, parent, with_extra };
        if source.with_extra.is_some() {
            self.hash_with_extra(py, &mut source, &out)?;
        }
        self.hash_text(py, &mut source, &out)?;
        Ok(out)
    }
}

/// Returns the number of blocks, from the next one on, that may have extra keys. With multimodal items, an
/// adapter or prompt embeddings, these are all blocks. With a salt, it is only the first block of the
/// request.
fn extra_blocks(request: &Bound<'_, PyAny>, start: usize) -> PyResult<Option<usize>> {
    let py = request.py();
    let always = request.getattr(intern!(py, "mm_features"))?.is_truthy()?
        || request.getattr(intern!(py, "lora_request"))?.is_truthy()?
        || !request.getattr(intern!(py, "prompt_embeds"))?.is_none();
    if always {
        return Ok(Some(usize::MAX));
    }
    let salted = start == 0 && request.getattr(intern!(py, "cache_salt"))?.is_truthy()?;
    Ok(salted.then_some(1))
}

impl PyVllmHasher {
    fn parent<'py>(&self, py: Python<'py>, source: &Source<'py>) -> PyResult<Bound<'py, PyBytes>> {
        match &source.parent {
            Some(parent) => Ok(parent.clone()),
            None => Ok(self.utils.bind(py).getattr(intern!(py, "NONE_HASH"))?.cast_into()?),
        }
    }

    fn digest<'py>(&self, py: Python<'py>, hash: &BlockHash) -> Bound<'py, PyBytes> {
        PyBytes::new(py, hash.digest(self.algorithm))
    }

    /// Hashes all remaining full blocks, which have no extra keys, one part after the other.
    fn hash_text<'py>(
        &self,
        py: Python<'py>,
        source: &mut Source<'py>,
        out: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let part = (PART / self.block_size).max(1) * self.block_size;
        // Other threads may change the list while this one is detached. The next call hashes the
        // tokens that they append.
        let last = source.tokens.len();
        loop {
            let left = last.min(source.tokens.len()).saturating_sub(source.start);
            let end = source.start + part.min(left / self.block_size * self.block_size);
            if end == source.start {
                return Ok(());
            }
            self.hash_part(py, source, end, out)?;
            source.start = end;
        }
    }

    /// Hashes the blocks from the start of `source` to `end`, which have no extra keys.
    fn hash_part<'py>(
        &self,
        py: Python<'py>,
        source: &Source<'py>,
        end: usize,
        out: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let Some(tokens) = exact_ints(&source.tokens, source.start, end) else {
            // Some token id is not a 32-bit number, so vLLM's own function hashes the blocks.
            for block in 0..(end - source.start) / self.block_size {
                let parent = self.last_parent(py, source, out)?;
                out.append(self.hash_in_vllm(py, source, block, parent, None)?)?;
            }
            return Ok(());
        };
        let parent = self.last_parent(py, source, out)?;
        let parent = parent.as_bytes();
        let hash = || hash_text_blocks(self.algorithm, parent, &tokens, self.block_size);
        let hashes = if tokens.len() < LONG { hash() } else { py.detach(hash) };
        for hash in hashes.or_raise(py)? {
            out.append(self.digest(py, &hash))?;
        }
        Ok(())
    }

    /// Returns the hash of the block before the next one: the last hash that this call has added to `out`, or
    /// the parent of `source` if `out` is empty.
    fn last_parent<'py>(
        &self,
        py: Python<'py>,
        source: &Source<'py>,
        out: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        match out.len() {
            0 => self.parent(py, source),
            done => Ok(out.get_item(done - 1)?.cast_into()?),
        }
    }

    /// Hashes the blocks that may have extra keys, and moves the start of `source` to the first block
    /// after them.
    fn hash_with_extra<'py>(
        &self,
        py: Python<'py>,
        source: &mut Source<'py>,
        out: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let utils = self.utils.bind(py);
        let extra_keys = utils.getattr(intern!(py, "generate_block_hash_extra_keys"))?;
        let mut next_item = 0usize;
        let mut left = source.with_extra.unwrap_or(0);
        while left > 0 && source.start + self.block_size <= source.tokens.len() {
            let end = source.start + self.block_size;
            let (extra, item): (Bound<'py, PyAny>, usize) =
                extra_keys.call1((&source.request, source.start, end, next_item))?.extract()?;
            next_item = item;
            let parent = self.last_parent(py, source, out)?;
            let tokens = exact_ints(&source.tokens, source.start, end);
            let known = match (&tokens, extra.is_none()) {
                (None, _) => None,
                (Some(tokens), true) => Some(hash_block(self.algorithm, parent.as_bytes(), tokens, None)),
                (Some(tokens), false) => atoms(&extra)
                    .map(|extra| hash_block(self.algorithm, parent.as_bytes(), tokens, Some(&extra))),
            };
            let hash = match known {
                Some(hash) => self.digest(py, &hash.or_raise(py)?).into_any(),
                None => self.hash_in_vllm(py, source, 0, parent, Some(extra))?,
            };
            out.append(hash)?;
            source.start = end;
            left -= 1;
        }
        Ok(())
    }

    /// Hashes one block with vLLM's own function. `block` is its position after the start of `source`.
    fn hash_in_vllm<'py>(
        &self,
        py: Python<'py>,
        source: &Source<'py>,
        block: usize,
        parent: Bound<'py, PyBytes>,
        extra: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let start = source.start + block * self.block_size;
        let tokens = source.tokens.get_slice(start, start + self.block_size);
        let hash = self.utils.bind(py).getattr(intern!(py, "hash_block_tokens"))?;
        hash.call1((self.hash_fn.bind(py), parent, tokens, extra))
    }
}

/// Converts extra keys to the core's form, if they are a tuple of tuples of `str`, `bytes`, `int` and `None`.
/// Otherwise returns `None`, and vLLM hashes the block.
fn atoms(extra: &Bound<'_, PyAny>) -> Option<Vec<ExtraTuple>> {
    extra.cast_exact::<PyTuple>().ok()?.iter().map(|tuple| tuple_atoms(&tuple)).collect()
}

fn tuple_atoms(tuple: &Bound<'_, PyAny>) -> Option<ExtraTuple> {
    tuple.cast_exact::<PyTuple>().ok()?.iter().map(|value| atom(&value)).collect()
}

fn atom(value: &Bound<'_, PyAny>) -> Option<Atom> {
    let object = ObjectId(value.as_ptr() as u64);
    if value.is_none() {
        Some(Atom::None)
    } else if let Ok(text) = value.cast_exact::<PyString>() {
        Some(Atom::str(&text.to_cow().ok()?, object))
    } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
        Some(Atom::bytes(bytes.as_bytes(), object))
    } else if value.is_instance_of::<PyBool>() {
        None
    } else {
        value.cast_exact::<PyInt>().ok()?.extract().ok().map(Atom::Int)
    }
}
