"""Stores, which keep KV objects outside the engine's memory. See ``kvpool.store``."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Literal, Self, TypeAlias, final

from typing_extensions import Buffer

from kvpool._core import EvictionPolicy, RequestId, _Ints
from kvpool._core.hashing import HashCursor
from kvpool._core.manager import CacheManager
from kvpool._core.pool import BlockPool
from kvpool.store.custom import CustomBackend

__all__ = [
    "Arena",
    "Custom",
    "Disk",
    "Namespace",
    "Redis",
    "SharedFolder",
    "SlotHeaders",
    "Store",
    "StoreFolder",
    "StoreServer",
    "StoreStats",
    "WarmStart",
    "block_names",
    "busy_slots",
    "check_object",
    "load_index",
    "offer_blocks",
    "save_index",
]

# The outcome of a transfer of one object. A request treats everything but ``ok`` as a miss.
Outcome: TypeAlias = Literal[
    "ok",
    "absent",  # the object does not exist
    "pending",  # the object is being written, and may exist later
    "damaged",  # the back end had other bytes, which are removed
    "failed",  # the back end failed: stats().last_error
    "full",  # the back end has no space, although the store is below its limit
    "timed_out",  # the deadline passed; the slot stays taken until the back end has ended the transfer
    "unavailable",  # the breaker is open, because the back end has failed too often
    "busy",  # the queue is full, or a shared back end has not yet removed an object of this name
    "not_admitted",  # the object must be offered again, or was offered with admit="never"
    "no_room",  # transfers use every place of the store
]

# The state of an object as far as the store knows it without a call of the back end.
Presence: TypeAlias = Literal[
    "here",  # the object can be loaded
    "pending",  # the object is being written
    "absent",  # the object does not exist, or is unavailable now
    "unknown",  # a shared back end may have the object; probe() asks it
]

# The time at which an offered object is written: when it is offered again, at once, or never.
Admission: TypeAlias = Literal["second_touch", "always", "never"]

@final
class Arena:
    """Host memory that is divided into slots. A store reads and writes the slots without another copy.

    The memory belongs to the arena, or to an engine (see ``over``). To copy between an arena and a device,
    make a ``kvpool.transfer`` store of it: ``BlockStore.from_regions([(arena.address, arena.stride,
    arena.slot_bytes)], arena.slots, keep_alive=arena)``.

    Args:
        slots: The number of slots. At least 1.
        slot_bytes: The number of bytes of a slot. An object cannot be larger than a slot. At least 1.

    Raises:
        InvalidArgumentError: A number is out of range.
        TooLargeError: The memory cannot be allocated.

    >>> arena = kvpool.store.Arena(2, 4096)
    >>> arena.write(1, b"KV of a block")
    >>> arena.read(1, 13)
    b'KV of a block'
    """

    def __new__(cls, slots: int, slot_bytes: int) -> Self: ...
    @staticmethod
    def over(memory: Buffer, slot_bytes: int) -> Arena:
        """Returns an arena over memory that the caller owns.

        The memory is, for example, a tensor's ``numpy()``, shared memory, or a view of an engine's memory.
        The arena and its transfers keep the memory alive. The caller must not resize it: ``bytearray``
        refuses to, but ``ndarray.resize(refcheck=False)`` frees the memory. While a job uses a slot, only the
        store may write to it. While a slot is being loaded, nothing may read it, because its content is
        unspecified. If the memory does not begin at a page of 4 KiB, or ``slot_bytes`` is not a multiple of a
        page, each transfer costs one copy in a worker thread (see ``is_paged``).

        Args:
            memory: A writable, contiguous buffer of any shape and format. Its size is a multiple of
                ``slot_bytes``.
            slot_bytes: The number of bytes of a slot. The slots follow each other without gaps.

        Raises:
            ArgumentTypeError: The object is not such a buffer.
            InvalidArgumentError: The size of the buffer is 0, or not a multiple of ``slot_bytes``.
            TooLargeError: The remaining memory is too small for this number of slots.
        """
    @property
    def slots(self) -> int:
        """The number of slots."""
    @property
    def slot_bytes(self) -> int:
        """The number of bytes of a slot."""
    @property
    def stride(self) -> int:
        """The number of bytes from the beginning of one slot to that of the next."""
    @property
    def address(self) -> int:
        """The address of the first slot."""
    @property
    def is_paged(self) -> bool:
        """Whether slots begin and end on pages of 4 KiB."""
    def write(self, slot: int, payload: bytes) -> None:
        """Copies bytes to the front of a slot.

        Raises:
            SlotBusyError: A transfer uses the slot.
            InvalidArgumentError: The slot does not exist, or is shorter than the bytes.
        """
    def read(self, slot: int, length: int | None = None) -> bytes:
        """Copies bytes from the front of a slot.

        Args:
            slot: The slot.
            length: The number of bytes. With None, the whole slot.

        Raises:
            SlotBusyError: A load uses the slot.
            InvalidArgumentError: The slot does not exist, or is shorter than ``length``.
        """
    def __len__(self) -> int: ...

@final
class Namespace:
    """The properties of an engine that, besides the tokens, determine the bytes of an object.

    Two stores share objects only if their namespaces are equal. Every field is required, because a
    missing field would lead to wrong bytes. Put other properties of an engine that matter, such as its
    version, into ``extra``.

    Args:
        model: The name of the model.
        weights: The revision of the weights. Another revision is another namespace.
        kv_dtype: The dtype of the cache, such as ``bf16`` or ``fp8_e4m3``.
        scales: A text that identifies the quantisation scales. Empty for none.
        layouts: The memory layout of a block, per KV-cache group: the group, the names of the
            dimensions, the items per dimension, and the items from one entry of a dimension to the
            next.
        block_size: Tokens per hashed block.
        layers: The first layer of this rank, and the number of its layers.
        heads: The first KV head of this rank, and the number of its heads.
        hash_algorithm: The algorithm of the digests of tokens.
        hash_seed: The seed of that algorithm. Empty for none.
        extra: More properties, as names and values.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> namespace = kvpool.store.Namespace(
    ...     model="llama-3-8b",
    ...     weights="rev-5f0b02c",
    ...     kv_dtype="fp8_e4m3",
    ...     scales="per-tensor:9b1c",
    ...     block_size=16,
    ...     layouts=[(0, "LKNHD", [32, 2, 16, 8, 128], [32768, 16384, 1024, 128, 1])],
    ...     layers=(0, 32),
    ...     heads=(0, 8),
    ...     hash_algorithm="sha256",
    ...     hash_seed=b"",
    ...     extra={"engine": "vllm 0.33"},
    ... )
    >>> len(namespace.digest)
    32
    """

    def __new__(
        cls,
        *,
        model: str,
        weights: str,
        kv_dtype: str,
        scales: str,
        layouts: Sequence[tuple[int, str, Sequence[int], Sequence[int]]],
        block_size: int,
        layers: tuple[int, int],
        heads: tuple[int, int],
        hash_algorithm: str,
        hash_seed: bytes,
        extra: Mapping[str, str],
    ) -> Self: ...
    @staticmethod
    def from_json(text: str) -> Namespace:
        """Returns the namespace of a text that ``to_json`` made.

        Raises:
            InvalidArgumentError: The text is no namespace: a field is missing, unknown or of another type.
        """
    def to_json(self) -> str:
        """Returns all fields as JSON."""
    @property
    def digest(self) -> bytes:
        """The digest of all fields, 32 bytes. Every object contains it."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Disk:
    """Settings of a back end that keeps objects in a folder on a disk.

    Opening a ``Store`` with this back end opens the folder.

    Args:
        folder: The folder. It is created if it does not exist. One store uses it at a time.
        capacity_bytes: The largest number of bytes of the objects of one store, headers and padding included.
            The store allocates this space when it opens the folder, and never uses more. If the disk has less
            space, the store uses the available space and warns (``RuntimeWarning``).
        max_payload: The size of the largest object in bytes. None is the size of a slot of the arena. If the
            value differs from the last time, the store does not find the objects that the folder contains.
        free_floor_bytes: The number of bytes that remain free on the disk, whatever the capacity. 4 GiB by
            default.
        direct: Whether to bypass the page cache if the file system supports it.
        scanners: The number of threads that read headers when the store opens the folder.
        io_uring: Whether a worker runs several transfers at once if the kernel supports it.
            ``Store.io`` returns whether it does.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> kvpool.store.Disk("/mnt/nvme/kv", capacity_bytes=2 << 40)
    Disk("/mnt/nvme/kv", 2199023255552)
    """

    def __new__(
        cls,
        folder: str | PathLike[str],
        capacity_bytes: int,
        *,
        max_payload: int | None = None,
        free_floor_bytes: int = 4294967296,
        direct: bool = True,
        scanners: int = 8,
        io_uring: bool = True,
    ) -> Self: ...

@final
class SharedFolder:
    """Settings of a back end that keeps one file per object in a folder that several machines share.

    Opening a ``Store`` with this back end opens the folder. ``probe`` finds objects that another engine of
    the same namespace wrote. Each engine has its own limit. When a store opens the folder, it removes the
    oldest files of its namespace beyond the limit.

    Args:
        folder: The folder. It is created if it does not exist.
        capacity_bytes: The largest number of bytes of the objects of one store.
        max_payload: The size of the largest object in bytes. None is the size of a slot of the arena.
        group: Whether every user of the folder's group may read and write the objects. Files then have
            mode 0660 and folders mode 2770, with any umask. Otherwise only this user may, and files
            have mode 0600.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> kvpool.store.SharedFolder("/mnt/nfs/kv", capacity_bytes=2 << 40)
    SharedFolder("/mnt/nfs/kv", 2199023255552)
    """

    def __new__(
        cls,
        folder: str | PathLike[str],
        capacity_bytes: int,
        *,
        max_payload: int | None = None,
        group: bool = False,
    ) -> Self: ...

@final
class Redis:
    """Settings of a back end that keeps objects on a Redis or Valkey server.

    A store connects when it is opened. Objects are values with the key ``kvpool/NAMESPACE/HASH-GROUP``, of at
    most 512 MiB. ``probe`` finds objects that another engine with the same namespace has written.
    ``capacity_bytes`` limits the objects of one store. To limit all stores together, set the server's
    ``maxmemory``, with a policy that evicts. Needs Redis 4.0 or later.

    Args:
        capacity_bytes: The largest number of bytes of the objects of one store.
        host: The name or address of the server. None means this machine.
        port: The TCP port.
        unix_socket: The path of a Unix socket, instead of host and port.
        username: The user name, for servers with users.
        password: The password.
        database: The number of the database.
        protocol: The version of the protocol, 2 or 3.
        max_payload: The size of the largest object in bytes. None is the size of a slot of the arena.
        time_to_live: The number of seconds after its write at which a value expires. With ``None``, values do
            not expire.
        timeout: The number of seconds after which a connection without traffic is an error. A whole call may
            take this time, plus one second for every 4 MiB that it moves.
        tls: Whether to use TLS 1.2 or 1.3. If so, the store never connects without TLS. If a file of the
            following settings cannot be read, or the server's certificate is not trusted, opening the store
            raises ``StoreError``.
        tls_ca: A PEM file of the authorities that may sign the server's certificate. With None, the store
            uses the authorities of this system.
        tls_certificate: PEM files of the client's certificate and key, for servers that require one.
        tls_server_name: The name in the server's certificate, if it is not ``host``.

    Raises:
        InvalidArgumentError: A number is out of range. Or two addresses are given, or TLS with a Unix
            socket.

    >>> kvpool.store.Redis(64 << 30, host="cache.internal", password="secret")
    Redis("cache.internal:6379", 68719476736)
    """

    def __new__(
        cls,
        capacity_bytes: int,
        *,
        host: str | None = None,
        port: int = 6379,
        unix_socket: str | PathLike[str] | None = None,
        username: str | None = None,
        password: str | None = None,
        database: int = 0,
        protocol: int = 2,
        max_payload: int | None = None,
        time_to_live: float | None = 86400.0,
        timeout: float = 5.0,
        tls: bool = False,
        tls_ca: str | PathLike[str] | None = None,
        tls_certificate: tuple[str | PathLike[str], str | PathLike[str]] | None = None,
        tls_server_name: str | None = None,
    ) -> Self: ...

@final
class Custom:
    """Settings of a back end that is written in Python.

    ``kvpool.store.s3`` and ``kvpool.store.mooncake`` contain two such back ends.

    Args:
        backend: The Python object that moves the bytes.
        capacity_bytes: The largest number of bytes of the objects of one store.
        max_payload: The size of the largest object in bytes. None is the size of a slot of the arena.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> class Forgetful:
    ...     def write(self, name, header, address, length): ...
    ...     def read(self, name, address, length): ...
    ...     def exist(self, names):
    ...         return [False] * len(names)
    ...     def remove(self, names): ...
    >>> backend = kvpool.store.Custom(Forgetful(), capacity_bytes=1 << 30)
    """

    def __new__(
        cls, backend: CustomBackend, capacity_bytes: int, *, max_payload: int | None = None
    ) -> Self: ...

@final
class Store:
    """A bounded store of objects outside an engine's memory.

    Only ``wait``, ``renew``, ``close`` and the constructor wait for the back end. The constructor allocates
    the space and reads the existing headers. In a forked child process every call raises ``ClosedError``,
    because the store's threads exist only in the parent.

    Args:
        backend: The back end that keeps the objects.
        arena: The memory from which objects are written and into which they are loaded.
        namespace: The namespace of the objects. The space of objects of other namespaces counts as
            free.
        eviction: The order in which objects are evicted when the space is full. The name of a policy.
            ``last-accessed`` is not allowed, because the store has no access times.
        admission: Decides which offered objects are written, if a ``put`` does not set ``admit``.
            ``second_touch`` writes an object when it is offered for the second time, so prompts that are sent
            only once are not written.
        remembered_offers: The number of offered objects that the store remembers, to recognise a second
            offer.
        workers: The number of threads that wait for the back end, at most 1024.
        queue: The largest number of objects in transfer. Further transfers are misses, with the outcome
            ``busy``.
        deadline: The number of seconds that a transfer may take. After that, the transfer is a miss, but its
            slot remains in use until the transfer has ended.
        breaker_failures: The number of failures in a row after which the store pauses the back end.
        breaker_pause: The length of this pause in seconds.
        believed_for: The number of seconds for which the store relies on the answer of a shared back end
            about an object.
        staged: Whether the workers copy payloads to or from memory of their own, at the cost of one copy. A
            slot is then free as soon as its job has ended, even if the back end is still using the payload.
            Use it in engines that reuse a slot as soon as its job has ended.
        tell_gone: Whether ``take_gone`` reports the objects that can no longer be found.

    Raises:
        StoreInUseError: Another store uses the folder.
        StoreError: The back end cannot be opened, or the disk has no space for an object.
        InvalidArgumentError: A setting is out of range. Or the namespace comes from
            ``Store.namespace``.
        TooLargeError: The memory cannot be allocated.

    >>> import tempfile
    >>> namespace = kvpool.store.Namespace(
    ...     model="m",
    ...     weights="w",
    ...     kv_dtype="bf16",
    ...     scales="",
    ...     layouts=[],
    ...     block_size=16,
    ...     layers=(0, 1),
    ...     heads=(0, 1),
    ...     hash_algorithm="sha256",
    ...     hash_seed=b"",
    ...     extra={},
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     disk = kvpool.store.Disk(folder, capacity_bytes=1 << 20, free_floor_bytes=0)
    ...     arena = kvpool.store.Arena(2, 4096)
    ...     with kvpool.store.Store(disk, arena, namespace, admission="always", deadline=60) as store:
    ...         job = store.put([b"digest of a prefix"], [0])
    ...         store.wait(60), store.contains([b"digest of a prefix"])
    ([(0, ['ok'])], ['here'])
    """

    def __new__(
        cls,
        backend: Disk | SharedFolder | Redis | Custom,
        arena: Arena,
        namespace: Namespace,
        *,
        eviction: EvictionPolicy = "lru",
        admission: Admission = "second_touch",
        remembered_offers: int = 65536,
        workers: int = 4,
        queue: int = 1024,
        deadline: float = 2.0,
        breaker_failures: int = 8,
        breaker_pause: float = 5.0,
        believed_for: float = 10.0,
        staged: bool = False,
        tell_gone: bool = False,
    ) -> Self: ...
    def put(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        *,
        groups: int | Sequence[int] | None = None,
        lengths: int | Sequence[int] | None = None,
        tokens: Sequence[tuple[int, int]] | None = None,
        admit: Admission | None = None,
    ) -> int:
        """Offers objects to the store, to be written, and returns the number of the job.

        An admitted object is written from its slot. Until the write has ended, no object can be loaded into
        the slot. If the store already has an object, its outcome is ``ok`` at once. O(keys).

        Args:
            keys: The digest of each block's prefix, 1 to 32 bytes.
            slots: The slot of each object.
            groups: The KV-cache group, one number for all objects or one for each. None means group 0.
            lengths: The number of bytes of the payload, one number for all objects or one for each. None
                means the whole slot.
            tokens: For each object, the position of its first token in the prompt, and the number of its
                tokens. Objects at larger positions are evicted before objects at smaller positions.
            admit: Decides which objects of this call are written. None means the store's ``admission``.

        Raises:
            SlotBusyError: A load uses one of the slots.
            InvalidArgumentError: A slot does not exist, a length does not fit, or the lists differ in
                length.
            ClosedError: The store is closed.
        """
    def get(
        self,
        keys: Sequence[bytes],
        slots: Sequence[int],
        *,
        groups: int | Sequence[int] | None = None,
        lengths: int | Sequence[int] | None = None,
    ) -> int:
        """Loads objects into slots, and returns the number of the job.

        The slot of an object with the outcome ``ok`` contains the object. With another outcome, the
        content of the slot is unspecified. After ``timed_out``, the slot stays taken until the back end
        has ended the transfer. O(keys).

        Args:
            keys: As for ``put``.
            slots: The slot for each object. A slot may appear only once, and no other job may be using it.
            groups: As for ``put``.
            lengths: As for ``put``. An object with another length does not match.

        Raises:
            SlotBusyError: A job uses one of the slots, or a slot is named twice.
            InvalidArgumentError: As for ``put``.
            ClosedError: The store is closed.
        """
    def contains(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> list[Presence]:
        """Returns what the store knows about each key: whether its object exists.

        Does not call the back end. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def probe(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> int:
        """Checks which objects exist, and returns the number of the job.

        The outcome of an object is ``ok`` or ``absent``. The call asks a shared back end, with many keys at
        once, and ``contains``, ``get`` and ``put`` use the answer for ``believed_for`` seconds. For back ends
        that are not shared, the store itself knows all objects. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def remove(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> int:
        """Removes objects, and returns how many existed.

        This store no longer finds them. Their bytes are cleared later, so some may be found again after
        a crash. Use ``renew`` for objects that must never be found again. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def touch(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> None:
        """Marks objects as used, although they are not loaded.

        The most recently used objects are evicted last. Keys without an object are ignored. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def renew(self, namespace: Namespace) -> None:
        """Changes the namespace of the store, for instance after an update of the weights.

        Objects of the old namespace can no longer be found, not even after a restart or a crash of this
        process. Objects in transfer are not kept. You may pass the old namespace to invalidate all its
        objects. The call waits until the back end has recorded the renewal. O(objects that the store has
        space for).

        Other engines that share the back end continue to use the old objects until they open or renew a
        store.

        Raises:
            StoreError: The back end has not recorded the renewal. This store still finds nothing of the
                old namespace, but a store that is opened later may. The next renewal records this one,
                too.
            InvalidArgumentError: The namespace comes from ``Store.namespace``, with a generation.
                Nothing has changed.
            ClosedError: The store is closed.
        """
    @property
    def namespace(self) -> Namespace:
        """The current namespace of the objects.

        This is the namespace of the constructor or of the last ``renew``, with its generation in ``extra``.
        The back end records the generation, and each renewal changes it. Pass the digest of this namespace to
        ``kvpool store gc --keep``.

        Raises:
            ClosedError: The store is closed.
        """
    def take_gone(self) -> list[tuple[bytes, int]]:
        """Returns the objects that can no longer be found, since the last call.

        These objects were evicted, removed or damaged. Each entry has the digest, padded to 32 bytes, and the
        group. The list is empty unless the store was made with ``tell_gone``. With ``tell_gone``, make this
        call regularly, because the list grows until then.

        Raises:
            ClosedError: The store is closed.
        """
    def poll(self) -> list[tuple[int, list[Outcome]]]:
        """Returns the jobs that have ended since the last call.

        The oldest job comes first. Each job has one outcome per key. The call does not wait.

        Raises:
            ClosedError: The store is closed.
        """
    def wait(self, timeout: float = 1.0) -> list[tuple[int, list[Outcome]]]:
        """Waits until a job has ended, if any job is running, and returns what ``poll`` returns.

        Other threads may use the store meanwhile.

        Args:
            timeout: The largest number of seconds to wait.

        Raises:
            ClosedError: The store is closed.
        """
    def fileno(self) -> int:
        """Returns a file descriptor that is readable when ``poll`` has something to return.

        Use it in event loops. The descriptor does not become readable when a deadline passes.
        """
    @property
    def is_direct(self) -> bool:
        """Whether transfers bypass the page cache."""
    @property
    def io(self) -> str:
        """The way in which the store moves bytes.

        A disk has ``io_uring``, or ``threads (no io_uring: WHY)`` if the kernel does not support it. Other
        back ends have ``threads``.
        """
    def stats(self) -> StoreStats:
        """Returns the counters and gauges of the store.

        O(objects in transfer).

        Raises:
            ClosedError: The store is closed.
        """
    def close(self, timeout: float = 10.0) -> None:
        """Closes the store.

        Waits until no transfer is running. A second call does nothing.

        Args:
            timeout: The largest number of seconds to wait. After that, transfers that no worker has
                begun are dropped.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class StoreStats:
    """Counters and gauges of a store. Counters begin when the store is opened."""

    @property
    def objects(self) -> int:
        """Number of objects that the store can find now."""
    @property
    def bytes(self) -> int:
        """Largest number of bytes that objects, transfers and space still to be cleared can take."""
    @property
    def capacity_bytes(self) -> int:
        """The limit of the attribute ``bytes``."""
    @property
    def in_flight(self) -> int:
        """Number of objects in transfer, including those whose deadline has passed."""
    @property
    def quarantined(self) -> int:
        """Number of objects in transfer whose deadline has passed.

        Their slots remain in use until the transfers end.
        """
    @property
    def restored(self) -> int:
        """Number of objects that existed when the store was opened."""
    @property
    def foreign(self) -> int:
        """Number of objects found at the opening that are damaged, or have another namespace or format."""
    @property
    def loads(self) -> int:
        """Number of objects that were loaded into slots so far."""
    @property
    def loaded_bytes(self) -> int:
        """Number of bytes of the payloads of loaded objects."""
    @property
    def misses(self) -> int:
        """Number of loads that did not return their object, for any reason."""
    @property
    def writes(self) -> int:
        """Number of objects that were written to the back end so far."""
    @property
    def written_bytes(self) -> int:
        """Number of bytes of the payloads of written objects."""
    @property
    def known(self) -> int:
        """Number of times that ``put`` offered an object that the store already had or was writing."""
    @property
    def not_admitted(self) -> int:
        """Number of times that ``put`` offered an object that the admission setting did not admit."""
    @property
    def evicted(self) -> int:
        """Number of objects evicted to make space for others."""
    @property
    def removed(self) -> int:
        """Number of objects removed by a caller."""
    @property
    def damaged(self) -> int:
        """Number of loads that read another object than the requested one, or a damaged object."""
    @property
    def lost(self) -> int:
        """Number of objects that the store expected in the back end, but that were missing there."""
    @property
    def full(self) -> int:
        """Number of writes for which the back end had no space."""
    @property
    def failed(self) -> int:
        """Number of transfers that failed for a reason that no other counter counts."""
    @property
    def timed_out(self) -> int:
        """Number of transfers whose deadline passed."""
    @property
    def busy(self) -> int:
        """Number of transfers refused because the queue was full."""
    @property
    def unavailable(self) -> int:
        """Number of transfers refused while the back end was paused after failures (an open breaker)."""
    @property
    def known_absent(self) -> int:
        """Number of loads that were not tried, because the object was known to be absent."""
    @property
    def opened(self) -> int:
        """Number of times that the store has paused the back end after failures (opened the breaker)."""
    @property
    def last_error(self) -> str | None:
        """A description of the last failure or damaged object, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class StoreFolder:
    """The folder of a store, for tools that inspect it.

    Args:
        folder: A folder that a store made.
        exclusive: Whether to lock the folder, so that no store can use it meanwhile. Verifying and clearing
            need this. Without the lock, you may read headers while a store uses the folder, but objects that
            are being written look damaged.

    Raises:
        StoreNotFoundError: The folder has no objects.
        StoreInUseError: ``exclusive`` is given, and a store uses the folder.
        StoreError: The folder cannot be read.

    >>> import tempfile
    >>> namespace = kvpool.store.Namespace(
    ...     model="m",
    ...     weights="w",
    ...     kv_dtype="bf16",
    ...     scales="",
    ...     layouts=[],
    ...     block_size=16,
    ...     layers=(0, 1),
    ...     heads=(0, 1),
    ...     hash_algorithm="sha256",
    ...     hash_seed=b"",
    ...     extra={},
    ... )
    >>> with tempfile.TemporaryDirectory() as path:
    ...     disk = kvpool.store.Disk(path, capacity_bytes=1 << 20, free_floor_bytes=0)
    ...     kvpool.store.Store(disk, kvpool.store.Arena(2, 4096), namespace).close()
    ...     folder = kvpool.store.StoreFolder(path)
    ...     folder.places, folder.object_bytes, folder.objects(0, 128)
    (128, 8192, [])
    """

    def __new__(cls, folder: str | PathLike[str], *, exclusive: bool = False) -> Self: ...
    @property
    def places(self) -> int:
        """The number of objects for which the folder has space."""
    @property
    def object_bytes(self) -> int:
        """Number of bytes that each object takes on the disk, header and padding included."""
    @property
    def io(self) -> str:
        """How a store on this machine would move bytes. See ``Store.io``."""
    def objects(
        self, first: int, count: int, *, verify: bool = False
    ) -> list[tuple[int, str | None, int, int, str | None]]:
        """Returns the objects in some slots of the folder's file, which are called places.

        Each entry has the place, the digest of the namespace, the group, the bytes of the payload, and a
        description of the damage, or None if the object is intact. The digest of a damaged object is None.
        The call reads one page per place, or whole objects with ``verify``.

        Args:
            first: The first place.
            count: The number of places.
            verify: Whether to read the payloads and compare their checksums.

        Raises:
            StoreError: The disk fails.
        """
    def namespaces(self) -> dict[str, Namespace | None]:
        """Returns all namespaces that have had objects in this folder, by the digest of the namespace.

        The value is None if the file that describes the namespace is lost.

        Raises:
            StoreError: The folder cannot be read.
        """
    def clear(self, places: Sequence[int]) -> None:
        """Clears places (slots of the folder's file), so that they contain no objects.

        Raises:
            StoreError: The folder was not opened as ``exclusive``, or the disk fails.
            InvalidArgumentError: A place does not exist.
        """
    def forget(self, digest: str) -> None:
        """Deletes the file that describes a namespace, which is named by its digest.

        Raises:
            StoreError: The folder was not opened as ``exclusive``, or the disk fails.
            InvalidArgumentError: The text is not a digest.
        """

@final
class StoreServer:
    """The objects on a Redis or Valkey server, for tools that inspect them.

    Engines may use the server meanwhile. Results may lack objects that are written or removed at the same
    time.

    Args:
        server: The server. Its ``capacity_bytes`` does not matter.

    Raises:
        StoreError: The server cannot be reached, or refuses the connection.

    >>> try:
    ...     kvpool.store.StoreServer(kvpool.store.Redis(1 << 30, unix_socket="/no/such/socket")).scan()
    ... except kvpool.errors.StoreError as error:
    ...     print(error)
    asking the server failed: No such file or directory (os error 2)
    """

    def __new__(cls, server: Redis) -> Self: ...
    def keys(self) -> int:
        """Returns the number of keys in the database, including keys that are not objects.

        Raises:
            StoreError: The server fails.
        """
    def scan(
        self, cursor: int = 0, *, verify: bool = False
    ) -> tuple[int, list[tuple[str, str | None, int, int, str | None]], dict[str, Namespace | None], int]:
        """Returns one page of the server's keys, beginning at a cursor.

        The answer has four parts. The first is the cursor of the next page, or 0 after the last page. The
        second is a list of objects, each with its name, the digest of its namespace, its group, the bytes of
        its payload, and a description of its damage, or None. The third contains the namespaces whose texts
        are on this page, with None for a damaged text. The fourth is the number of other keys. A key may be
        on two pages while the server resizes its table.

        Args:
            cursor: 0, or the cursor that the previous page returned.
            verify: Whether to read the payloads and compare their checksums.

        Raises:
            StoreError: The server fails.
        """
    def remove(self, names: Sequence[str]) -> None:
        """Removes objects.

        Raises:
            StoreError: The server fails.
            InvalidArgumentError: A name is not that of an object. Then none is removed.
        """
    def forget(self, digest: str) -> None:
        """Removes the JSON text that describes a namespace, and the record of its generation.

        Raises:
            StoreError: The server fails.
            InvalidArgumentError: The text is not a digest.
        """

def block_names(store: Store, cursor: HashCursor, num_blocks: int) -> list[bytes]:
    """Returns the names of a prompt's full blocks in a store: their digests in epoch 0.

    O(blocks). In another epoch, blocks whose names are not remembered are hashed.

    Args:
        store: The store.
        cursor: The prompt.
        num_blocks: The number of the manager's blocks. At least twice as many names are remembered.

    Raises:
        ClosedError: The store is closed.
    """

def busy_slots(arena: Arena, slots: Sequence[int]) -> list[int]:
    """Returns those slots that a transfer uses. O(slots).

    Raises:
        InvalidArgumentError: A slot does not exist.
    """

def offer_blocks(
    store: Store,
    manager: CacheManager,
    request_id: RequestId,
    epoch: int,
    block_bytes: int,
    write: bool,
    choose: Callable[[list[int], list[bytes], list[int], list[bool]], list[int | None]],
) -> tuple[int, int | None, list[int]]:
    """Offers those computed blocks of a request that were not offered before, or that the store lost since.

    Returns the number of offered blocks, the job that writes them, and their slots. O(blocks for which
    ``choose`` is called + objects that the store lost since the previous call for this prompt).

    Args:
        store: The store.
        manager: The manager of the request.
        request_id: The request.
        epoch: The epoch of the weights that the store serves. A request of another epoch offers nothing.
        block_bytes: The number of bytes of a block.
        write: Whether to write the blocks now. Otherwise the caller writes them later.
        choose: A function that copies blocks to slots. Its arguments are lists: the positions of the blocks,
            their names, their ids on the device, and whether the store lacks them. It is not called without
            blocks. It returns the slot of each block, or None for a block that it leaves out. If the store
            lacks such a block, a later call offers the block again. So does a later call if the function
            raises an exception.

    Raises:
        UnknownRequestError: No request has this id.
        RequestStateError: The request holds no blocks on the device.
        StaleEpochError: The manager is in another epoch.
        ClosedError: The store is closed.
    """

def check_object(
    name: str, front: bytes, length: int, payload: bytes | None = None
) -> tuple[str, str | None, int, int, str | None] | None:
    """Checks an object that a back end has under a name.

    Returns its name, the digest of its namespace, its group, the bytes of its payload, and a description of
    its damage, or None. Returns None if the name is not that of an object.

    Args:
        name: The name of the object in the back end: ``NAMESPACE/HASH-GROUP``.
        front: The first 112 bytes of the object, which are its header.
        length: The number of bytes of the whole object.
        payload: The bytes after the header, which the call compares with their checksum. With None, the call
            skips this check.

    >>> kvpool.store.check_object("notes.txt", b"", 0)
    """

@final
class SlotHeaders:
    """Records which content is in each slot of an arena that outlives the process.

    The record is a file beside the memory, with one header per slot. The number of a slot is the id of its
    block. Call ``clear`` before the first byte of a slot changes, and ``seal`` after the last one is written.
    Between the two calls the slot has no valid content, even after a crash. docs/restart.md describes all
    steps.

    Args:
        path: The file. It is created if it does not exist, or if its number of slots differs.
        arena: The memory, such as ``Arena.over`` of a mapped file.
        namespace: The namespace of the KV.

    Raises:
        StoreError: The file cannot be opened or created. Or it is in use, by another process or by
            another object of this process.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> namespace = kvpool.store.Namespace(
    ...     model="m",
    ...     weights="w",
    ...     kv_dtype="bf16",
    ...     scales="",
    ...     block_size=16,
    ...     layouts=[(0, "NHD", [16, 2, 8], [16, 8, 1])],
    ...     layers=(0, 1),
    ...     heads=(0, 2),
    ...     hash_algorithm="sha256",
    ...     hash_seed=b"",
    ...     extra={},
    ... )
    >>> headers = kvpool.store.SlotHeaders(f"{folder.name}/slots", kvpool.store.Arena(8, 512), namespace)
    >>> headers.clear([3])
    >>> headers.seal([3], [b"digest of a prefix"])
    >>> len(headers)
    8
    >>> folder.cleanup()
    """

    def __new__(cls, path: str | PathLike[str], arena: Arena, namespace: Namespace) -> Self: ...
    def clear(self, slots: _Ints) -> None:
        """Marks slots as invalid before they are written to.

        Raises:
            InvalidArgumentError: A slot does not exist.
            StoreError: The file cannot be written. In this case do not write to the slots.
        """
    def seal(self, slots: _Ints, keys: Sequence[bytes], *, groups: int | Sequence[int] = 0) -> None:
        """Marks slots as containing the complete KV of these keys. Reads the slots, and writes their headers.

        Raises:
            InvalidArgumentError: A slot does not exist, or is slot 0, which belongs to the null block.
                Or a key has no bytes or more than 32, or the numbers of keys and slots differ.
            StoreError: The file cannot be written, or a transfer uses a slot.
        """
    def renew(self, namespace: Namespace) -> None:
        """Changes the namespace, for instance after an update of the weights.

        Slots that were sealed before do not belong to the new namespace. Pass the new namespace to
        ``save_index``, too.
        """
    def __len__(self) -> int: ...

@final
class WarmStart:
    """The result of ``load_index``, which restores cached content from a file."""

    @property
    def blocks(self) -> int:
        """Number of blocks whose cached content was restored."""
    @property
    def refused(self) -> int:
        """Number of blocks that were not restored, because their bytes do not match their hashes."""
    @property
    def lost(self) -> int:
        """Number of blocks whose records in the file could not be read."""
    @property
    def age(self) -> float:
        """Number of seconds since the file was written. 0 after a cold start."""
    @property
    def cold(self) -> str | None:
        """The reason for a cold start, in which nothing was restored, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def save_index(subject: CacheManager | BlockPool, path: str | PathLike[str], namespace: Namespace) -> int:
    """Writes the cached content of a manager or a pool to a file, and returns the number of blocks.

    The call waits for the disk, so do not make it in the scheduler's thread. The manager is locked while its
    state is copied, O(blocks). The call replaces an existing file as a whole, or leaves it as it is. Make
    only one call at a time for one file.

    Args:
        subject: The manager or pool. For a manager, the call saves the blocks of the device.
        path: The file.
        namespace: The properties that, besides the tokens, determine the bytes. A later load with another
            namespace is a cold start.

    Raises:
        StoreError: The file cannot be written. An existing file stays.
        PoolPoisonedError: The pool refuses all work.
    """

def load_index(
    subject: CacheManager | BlockPool,
    path: str | PathLike[str],
    namespace: Namespace,
    *,
    slots: SlotHeaders | None = None,
    payloads: bool = True,
    trusted: bool = False,
    elapsed: float | None = None,
) -> WarmStart:
    """Restores the cached content of a new manager or pool from a file that ``save_index`` wrote.

    The call restores a block only if its bytes match. Blocks are restored in the order in which they would
    have been evicted, with their retention and tenants. If the file is missing, damaged or from another
    namespace, nothing is restored (a cold start), and no error is raised. If hints have times to live, call
    ``clock.advance`` first.

    Args:
        subject: A new manager or pool, without allocated blocks.
        path: The file.
        namespace: The current namespace of the KV.
        slots: The record of the content of each block.
        payloads: Whether to compare the bytes of each block with their checksum. Without it, only headers are
            compared.
        trusted: Use it instead of ``slots``, if you guarantee that the memory still contains the bytes of
            every block in the file.
        elapsed: The number of seconds by which times to live have advanced since the snapshot. None uses the
            age of the file.

    Raises:
        InvalidArgumentError: Both or neither of ``slots`` and ``trusted`` are given, or the slots
            belong to another namespace. Or the manager is not new, has a journal, or verifies hits. Or
            its blocks, hash algorithm, key, seed or KV-cache groups differ from those of the file.
            Nothing has changed.
        StoreError: The headers of the slots cannot be read.
    """
