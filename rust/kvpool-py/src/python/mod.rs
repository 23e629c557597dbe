//! The only module through which Rust calls Python code.
//!
//! Every function here that may run Python code first protects the calling thread against being unwound when
//! the interpreter exits ([`protect`]). So no call of Python code can miss the protection. [`prelude`]
//! replaces the prelude of PyO3. Its [`PyObjectMethods`] has the methods of `PyAnyMethods`, and protects the
//! thread in those that may run Python code. `clippy.toml` forbids the originals.
//!
//! An allocation or a destructor may run Python code, too. [`crate::enter`] protects the threads that
//! use locked state.

#![expect(clippy::disallowed_methods, reason = "the one place that calls them")]

mod exit;
mod single;

use pyo3::IntoPyObject;
use pyo3::buffer::{Element, PyBuffer, PyUntypedBuffer};
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeCheck;
use pyo3::types::{PyDict, PyIterator, PyMemoryView, PyString, PyType};

pub(crate) use self::exit::protect;
pub(crate) use self::single::Single;

/// The prelude of the bindings, which they use instead of `pyo3::prelude`.
pub(crate) mod prelude {
    pub(crate) use pyo3::prelude::{
        Borrowed, Bound, FromPyObject, IntoPyObject, Py, PyAny, PyBoolMethods, PyBytesMethods, PyDictMethods,
        PyErr, PyListMethods, PyRef, PyResult, PySetMethods, PyStringMethods, PyTupleMethods, PyTypeMethods,
        Python,
    };

    pub(crate) use kvpool_py_macros::{pyclass, pyfunction, pymethods};

    pub(crate) use super::PyObjectMethods;
}

/// Runs a call with the interpreter. If the interpreter is about to end, parks this thread for ever.
pub(crate) fn attach<R>(call: impl FnOnce(Python<'_>) -> R) -> R {
    try_attach(call).unwrap_or_else(|| exit::park())
}

/// Runs a call with the interpreter. Returns `None` if the interpreter has ended.
pub(crate) fn try_attach<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    protect();
    Python::try_attach(call)
}

/// Imports a module.
pub(crate) fn import<'py>(py: Python<'py>, name: impl Name<'py>) -> PyResult<Bound<'py, PyModule>> {
    protect();
    py.import(name)
}

pub(crate) fn check_signals(py: Python<'_>) -> PyResult<()> {
    protect();
    py.check_signals()
}

pub(crate) fn memory_view<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
    protect();
    PyMemoryView::from(object)
}

pub(crate) fn untyped_buffer(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    protect();
    PyUntypedBuffer::get(object)
}

pub(crate) fn buffer<T: Element>(object: &Bound<'_, PyAny>) -> PyResult<PyBuffer<T>> {
    protect();
    PyBuffer::get(object)
}

/// The name of an attribute or a module.
pub(crate) trait Name<'py>: IntoPyObject<'py, Target = PyString> {}

impl<'py, N: IntoPyObject<'py, Target = PyString>> Name<'py> for N {}

type Any<'py> = Bound<'py, PyAny>;

/// Declares [`PyObjectMethods`], and calls the method of `PyAnyMethods` with the same name in each of
/// its methods.
macro_rules! calls {
    ($($name:ident $(<$($of:ident: $bound:path),+>)? ($($arg:ident: $type:ty),*) -> $answer:ty;)+) => {
        /// The methods of Python objects. Each of them protects the thread before it runs Python code.
        pub(crate) trait PyObjectMethods<'py> {
            $(fn $name $(<$($of: $bound),+>)? (&self $(, $arg: $type)*) -> $answer;)+

            fn is_instance_of<T: PyTypeCheck>(&self) -> bool;
            fn extract<'a, T: FromPyObject<'a, 'py> + Single>(&'a self) -> Result<T, T::Error>;
        }

        impl<'py> PyObjectMethods<'py> for Bound<'py, PyAny> {
            $(fn $name $(<$($of: $bound),+>)? (&self $(, $arg: $type)*) -> $answer {
                protect();
                PyAnyMethods::$name(self $(, $arg)*)
            })+

            fn is_instance_of<T: PyTypeCheck>(&self) -> bool {
                protect();
                PyAnyMethods::is_instance_of::<T>(self)
            }

            fn extract<'a, T: FromPyObject<'a, 'py> + Single>(&'a self) -> Result<T, T::Error> {
                protect();
                PyAnyMethods::extract(self)
            }
        }
    };
}

calls! {
    is<T: AsRef<Py<PyAny>>>(other: T) -> bool;
    is_none() -> bool;
    is_callable() -> bool;
    is_truthy() -> PyResult<bool>;
    get_type() -> Bound<'py, PyType>;
    hasattr<N: Name<'py>>(name: N) -> PyResult<bool>;
    getattr<N: Name<'py>>(name: N) -> PyResult<Any<'py>>;
    getattr_opt<N: Name<'py>>(name: N) -> PyResult<Option<Any<'py>>>;
    setattr<N: Name<'py>, V: IntoPyObject<'py>>(name: N, value: V) -> PyResult<()>;
    call0() -> PyResult<Any<'py>>;
    call1<A: PyCallArgs<'py>>(args: A) -> PyResult<Any<'py>>;
    call_method<N: Name<'py>, A: PyCallArgs<'py>>(
        name: N, args: A, kwargs: Option<&Bound<'py, PyDict>>
    ) -> PyResult<Any<'py>>;
    call_method0<N: Name<'py>>(name: N) -> PyResult<Any<'py>>;
    call_method1<N: Name<'py>, A: PyCallArgs<'py>>(name: N, args: A) -> PyResult<Any<'py>>;
    get_item<K: IntoPyObject<'py>>(key: K) -> PyResult<Any<'py>>;
    contains<V: IntoPyObject<'py>>(value: V) -> PyResult<bool>;
    try_iter() -> PyResult<Bound<'py, PyIterator>>;
    eq<O: IntoPyObject<'py>>(other: O) -> PyResult<bool>;
    len() -> PyResult<usize>;
    repr() -> PyResult<Bound<'py, PyString>>;
    str() -> PyResult<Bound<'py, PyString>>;
}
