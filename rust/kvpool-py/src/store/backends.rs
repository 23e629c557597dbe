//! `Disk`, `SharedFolder` and `Redis`: the settings of the back ends that a store can open.

use std::path::PathBuf;
use std::sync::Arc;

use kvpool_store::disk::{DiskBackend, DiskConfig, Io};
use kvpool_store::folder::{FolderBackend, FolderConfig};
use kvpool_store::redis::{Address, RedisBackend, RedisConfig, Tls};
use kvpool_store::{Backend, StoreError};

use super::custom::{Custom, PyCustom};
use super::numbers::{duration, u32_from, u32_of};
use crate::convert::{Int, Text, count};
use crate::errors::raise;
use crate::python::prelude::*;

/// An argument that is the settings of a back end of any kind.
#[derive(FromPyObject)]
pub(crate) enum AnyBackend<'py> {
    #[pyo3(annotation = "Disk")]
    Disk(PyRef<'py, PyDisk>),
    #[pyo3(annotation = "SharedFolder")]
    Folder(PyRef<'py, PySharedFolder>),
    #[pyo3(annotation = "Redis")]
    Redis(PyRef<'py, PyRedis>),
    #[pyo3(annotation = "Custom")]
    Custom(PyRef<'py, PyCustom>),
}

impl crate::python::Single for AnyBackend<'_> {}

crate::argument::convert_itself!(AnyBackend<'py>: "a Disk, a SharedFolder, a Redis or a Custom");

/// Settings from which a back end can be opened without the interpreter.
pub(super) enum Opener {
    Disk(DiskConfig),
    Folder(FolderConfig),
    Redis(RedisConfig),
    Custom(Custom),
}

impl AnyBackend<'_> {
    /// Returns the settings of the back end. If `max_payload` is not given, the largest payload is a slot of
    /// the arena.
    pub(super) fn opener(&self, py: Python<'_>, slot_bytes: u32) -> Opener {
        match self {
            Self::Disk(disk) => Opener::Disk(DiskConfig {
                max_payload: disk.max_payload.unwrap_or(slot_bytes),
                ..disk.config.clone()
            }),
            Self::Folder(folder) => Opener::Folder(FolderConfig {
                max_payload: folder.max_payload.unwrap_or(slot_bytes),
                ..folder.config.clone()
            }),
            Self::Redis(server) => Opener::Redis(RedisConfig {
                max_payload: server.max_payload.unwrap_or(slot_bytes),
                ..server.config.clone()
            }),
            Self::Custom(custom) => Opener::Custom(custom.of(py, slot_bytes)),
        }
    }
}

/// Facts about an opened back end, most of them about how it moves bytes.
pub(super) struct How {
    /// Whether transfers bypass the page cache.
    pub(super) is_direct: bool,
    pub(super) io: String,
    /// Why the store has less space than `capacity_bytes`. `None` if it has the whole space.
    pub(super) shortage: Option<String>,
    /// The object of a back end that is written in Python.
    pub(super) object: Option<Arc<Py<PyAny>>>,
}

/// Returns how a disk of this machine would move bytes.
pub(super) fn io_found() -> String {
    Io::found().to_string()
}

impl Opener {
    /// Opens the back end, and returns how it moves bytes. The call waits for the disk or the server.
    pub(super) fn open(self) -> Result<(Arc<dyn Backend>, How), StoreError> {
        let threads = How { is_direct: false, io: "threads".into(), shortage: None, object: None };
        Ok(match self {
            Self::Disk(config) => {
                let disk = DiskBackend::open(&config)?;
                let shortage = disk.shortage().map(ToOwned::to_owned);
                let how =
                    How { is_direct: disk.is_direct(), io: disk.io().to_string(), shortage, object: None };
                (disk, how)
            }
            Self::Folder(config) => (FolderBackend::open(config)?, threads),
            Self::Redis(config) => (RedisBackend::open(config)?, threads),
            Self::Custom(custom) => {
                let object = Some(Arc::clone(&custom.backend));
                (Arc::new(custom), How { object, ..threads })
            }
        })
    }
}

fn max_payload(py: Python<'_>, bytes: Option<Int>) -> PyResult<Option<u32>> {
    bytes.map(|bytes| u32_of(py, "max_payload", bytes)).transpose()
}

#[pyclass(frozen, module = "kvpool._core.store", name = "Disk")]
pub(crate) struct PyDisk {
    config: DiskConfig,
    max_payload: Option<u32>,
}

#[pymethods]
impl PyDisk {
    #[new]
    #[pyo3(signature = (
        folder, capacity_bytes, *, max_payload=None, free_floor_bytes=4294967296, direct=true, scanners=8,
        io_uring=true
    ))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        capacity_bytes: Int,
        max_payload: Option<Int>,
        free_floor_bytes: i128,
        direct: bool,
        scanners: i128,
        io_uring: bool,
    ) -> PyResult<Self> {
        let config = DiskConfig {
            folder,
            capacity_bytes: count(py, "capacity_bytes", capacity_bytes)? as u64,
            max_payload: 0,
            free_floor: count(py, "free_floor_bytes", free_floor_bytes)? as u64,
            direct,
            scanners: count(py, "scanners", scanners)?,
            io_uring,
        };
        Ok(Self { config, max_payload: self::max_payload(py, max_payload)? })
    }

    fn __repr__(&self) -> String {
        format!("Disk({:?}, {})", self.config.folder, self.config.capacity_bytes)
    }
}

#[pyclass(frozen, module = "kvpool._core.store", name = "SharedFolder")]
pub(crate) struct PySharedFolder {
    config: FolderConfig,
    max_payload: Option<u32>,
}

#[pymethods]
impl PySharedFolder {
    #[new]
    #[pyo3(signature = (folder, capacity_bytes, *, max_payload=None, group=false))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        capacity_bytes: Int,
        max_payload: Option<Int>,
        group: bool,
    ) -> PyResult<Self> {
        let capacity_bytes = count(py, "capacity_bytes", capacity_bytes)? as u64;
        let max_payload = self::max_payload(py, max_payload)?;
        Ok(Self { config: FolderConfig { folder, capacity_bytes, max_payload: 0, group }, max_payload })
    }

    fn __repr__(&self) -> String {
        format!("SharedFolder({:?}, {})", self.config.folder, self.config.capacity_bytes)
    }
}

#[pyclass(frozen, module = "kvpool._core.store", name = "Redis")]
pub(crate) struct PyRedis {
    pub(super) config: RedisConfig,
    max_payload: Option<u32>,
}

crate::argument::held!(PyRedis);

#[pymethods]
impl PyRedis {
    #[new]
    #[pyo3(signature = (
        capacity_bytes, *, host=None, port=6379, unix_socket=None, username=None, password=None,
        database=0, protocol=2,
        max_payload=None, time_to_live=Some(86400.0), timeout=5.0, tls=false, tls_ca=None,
        tls_certificate=None,
        tls_server_name=None
    ), text_signature = "(capacity_bytes, *, host=None, port=6379, unix_socket=None, username=None, \
        password=None, database=0, \
        protocol=2, max_payload=None, time_to_live=86400.0, timeout=5.0, tls=False, tls_ca=None,
        tls_certificate=None, \
        tls_server_name=None)")]
    fn new(
        py: Python<'_>,
        capacity_bytes: Int,
        host: Option<Text>,
        port: i128,
        unix_socket: Option<PathBuf>,
        username: Option<Text>,
        password: Option<Text>,
        database: i128,
        protocol: i128,
        max_payload: Option<Int>,
        time_to_live: Option<f64>,
        timeout: f64,
        tls: bool,
        tls_ca: Option<PathBuf>,
        tls_certificate: Option<(PathBuf, PathBuf)>,
        tls_server_name: Option<Text>,
    ) -> PyResult<Self> {
        let safe = Tls {
            authorities: tls_ca,
            certificate: tls_certificate,
            server_name: tls_server_name.map(|text| text.0),
        };
        if !tls && safe != Tls::default() {
            let message = "tls_ca, tls_certificate and tls_server_name are for tls=True";
            return Err(raise(py, "InvalidArgumentError", message));
        }
        if tls && unix_socket.is_some() {
            let message = "tls and unix_socket are both given: a Unix socket does not leave the machine";
            return Err(raise(py, "InvalidArgumentError", message));
        }
        let port = u16::try_from(port).ok().filter(|&port| port > 0).ok_or_else(|| {
            raise(py, "InvalidArgumentError", format!("port is {port}: must be from 1 to {}", u16::MAX))
        })?;
        let address = match (host, unix_socket) {
            (Some(_), Some(_)) => {
                let message = "host and unix_socket are both given: a server is at one of them";
                return Err(raise(py, "InvalidArgumentError", message));
            }
            (None, Some(path)) => Address::Unix(path),
            (host, None) => {
                let host = host.map_or_else(|| "127.0.0.1".into(), |host| host.0);
                if tls { Address::Tls(host, port, safe) } else { Address::Tcp(host, port) }
            }
        };
        let config = RedisConfig {
            username: username.map(|text| text.0),
            password: password.map(|text| text.0),
            database: u32_from(py, "database", database)?,
            protocol: u32_from(py, "protocol", protocol)?,
            time_to_live: time_to_live.map(|lives| duration(py, "time_to_live", lives)).transpose()?,
            timeout: duration(py, "timeout", timeout)?,
            ..RedisConfig::new(address, count(py, "capacity_bytes", capacity_bytes)? as u64, 0)
        };
        Ok(Self { config, max_payload: self::max_payload(py, max_payload)? })
    }

    fn __repr__(&self) -> String {
        let at = match &self.config.address {
            Address::Tcp(host, port) | Address::Tls(host, port, _) => format!("{host}:{port}"),
            Address::Unix(path) => path.display().to_string(),
        };
        format!("Redis({at:?}, {})", self.config.capacity_bytes)
    }
}
