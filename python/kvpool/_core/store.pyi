"""Bytes beneath the engine's memory: see kvpool.store."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Literal, Self, TypeAlias, final

from typing_extensions import Buffer

from kvpool._core import EvictionPolicy, _Ints
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
    "check_object",
    "load_index",
    "save_index",
]

#: What became of an object. Everything but ``ok`` is a miss to the request.
Outcome: TypeAlias = Literal[
    "ok",
    "absent",  # it is not there
    "pending",  # it is being written: later it may be there
    "damaged",  # other bytes were there; they are removed
    "failed",  # the back end failed: stats().last_error
    "full",  # the back end has no room, though the bound is not reached
    "timed_out",  # the deadline passed; the slot stays taken until the back end is known to have ended
    "unavailable",  # the breaker is open: the back end failed too often of late
    "busy",  # the queue is full, or a shared back end is still to remove what had this name
    "not_admitted",  # it has to be offered again, or was offered with admit="never"
    "no_room",  # every place is in use by a transfer
]

#: What is known of an object without asking anybody.
Presence: TypeAlias = Literal[
    "here",  # it can be loaded
    "pending",  # it is being written
    "absent",  # it is not there, or cannot be had now
    "unknown",  # a shared back end may have it: probe() asks
]

#: Whether an object is written: when it is offered again, at once, not at all.
Admission: TypeAlias = Literal["second_touch", "always", "never"]

@final
class Arena:
    """Host memory in slots, into and out of which a store moves objects.

    Without another copy. The memory is the arena's own, or that of an engine (``over``). To copy
    between it and a device, give it to ``kvpool.transfer``: ``BlockStore.from_regions([(arena.address,
    arena.stride, arena.slot_bytes)], arena.slots, keep_alive=arena)``.

    Args:
        slots: At least 1.
        slot_bytes: Bytes of a slot: of the largest object. At least 1.

    Raises:
        InvalidArgumentError: A number is out of range.
        TooLargeError: The memory cannot be had.

    >>> arena = kvpool.store.Arena(2, 4096)
    >>> arena.write(1, b"KV of a block")
    >>> arena.read(1, 13)
    b'KV of a block'
    """

    def __new__(cls, slots: int, slot_bytes: int) -> Self: ...
    @staticmethod
    def over(memory: Buffer, slot_bytes: int) -> Arena:
        """Slots in memory that somebody else has.

        A tensor's ``numpy()``, shared memory, an engine's view. The arena and its transfers keep the
        memory. The caller must not resize it: ``bytearray`` refuses to, but
        ``ndarray.resize(refcheck=False)`` frees the memory. Nothing but the store may write to a slot
        that a job has, and nothing may read one that is being loaded: what would be read is
        unspecified. Where the memory does not begin at a page of 4 KiB, or ``slot_bytes`` are not whole
        pages, each transfer costs a copy in a worker thread (``is_paged``).

        Args:
            memory: A writable, contiguous buffer of any shape and format, of whole slots.
            slot_bytes: Bytes of a slot, and from one to the next.

        Raises:
            ArgumentTypeError: No such buffer.
            InvalidArgumentError: Not whole slots, or none.
            TooLargeError: There are too many slots for the memory that is left.
        """
    @property
    def slots(self) -> int:
        """Number of slots."""
    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot."""
    @property
    def stride(self) -> int:
        """Bytes from one slot to the next."""
    @property
    def address(self) -> int:
        """Address of the first slot."""
    @property
    def is_paged(self) -> bool:
        """Whether slots begin and end on pages of 4 KiB."""
    def write(self, slot: int, payload: bytes) -> None:
        """Copies bytes to the front of a slot.

        Raises:
            SlotBusyError: A transfer has the slot.
            InvalidArgumentError: There is no such slot, or it is shorter.
        """
    def read(self, slot: int, length: int | None = None) -> bytes:
        """Copies bytes from the front of a slot.

        Args:
            slot: The slot.
            length: How many; all of it by default.

        Raises:
            SlotBusyError: A load has the slot.
            InvalidArgumentError: There is no such slot, or it is shorter.
        """
    def __len__(self) -> int: ...

@final
class Namespace:
    """All that the bytes of an object depend on, besides its tokens.

    Two stores share objects exactly if theirs are equal. Every field has to be given: one that is
    forgotten is wrong bytes. What an engine has beyond them, such as its version, goes into ``extra``.

    Args:
        model: Its name.
        weights: Their revision; another one is another namespace.
        kv_dtype: Of the cache: ``bf16``, ``fp8_e4m3``.
        scales: Whatever says which quantisation scales; empty for none.
        layouts: How a block of each KV-cache group lies in memory: group, names of the dimensions, items per
            dimension, items from one to the next.
        block_size: Tokens per block that is hashed.
        layers: The first layer that this rank holds, and how many.
        heads: The first KV head that this rank holds, and how many.
        hash_algorithm: What makes digests of tokens.
        hash_seed: What it is seeded with; empty for nothing.
        extra: Whatever else.

    Raises:
        InvalidArgumentError: A number is out of range.

    >>> namespace = kvpool.store.Namespace(
    ...     model="llama-3-8b", weights="rev-5f0b02c", kv_dtype="fp8_e4m3", scales="per-tensor:9b1c",
    block_size=16, ...     layouts=[(0, "LKNHD", [32, 2, 16, 8, 128], [32768, 16384, 1024, 128, 1])],
    layers=(0, 32), heads=(0, 8), ...     hash_algorithm="sha256", hash_seed=b"", extra={"engine": "vllm
    0.33"}, ... )
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
        """The namespace of a text that ``to_json`` made.

        Raises:
            InvalidArgumentError: It is none: a field is missing, unknown or of another type.
        """
    def to_json(self) -> str:
        """All fields as JSON."""
    @property
    def digest(self) -> bytes:
        """What every object carries: 32 bytes."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Disk:
    """A folder of a disk, and how much of it.

    A store opens it.

    Args:
        folder: Made if there is none. One store has it at a time.
        capacity_bytes: What the objects of one store may take, headers and padding included: taken at
            once, never exceeded. If the disk has less room, a store takes that and warns
            (``RuntimeWarning``).
        max_payload: Bytes of the largest object; a slot of the arena by default. Another one is a cold start.
        free_floor_bytes: What stays free on the disk, whatever the capacity; 4 GiB by default.
        direct: Whether to go round the page cache where the file system can.
        scanners: Threads that read headers at the start.
        io_uring: Whether a worker has several transfers on their way at once where the kernel lets it;
            ``Store.io`` says whether it does.

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
    """A folder that several machines have, with a file per object: NFS, or any other file system.

    A store opens it. What another engine of the same namespace wrote is found by ``probe``. Each engine
    keeps its own bound; when a store opens it, the oldest files of its namespace beyond the bound are
    removed.

    Args:
        folder: Made if there is none.
        capacity_bytes: What the objects of one store may take.
        max_payload: Bytes of the largest object; a slot of the arena by default.
        group: Whether every user of the folder's group reads and writes the objects: files have mode
            0660 and folders mode 2770 then, whatever the umask. Otherwise only this user does: files
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
    """A Redis or Valkey server, and how much of it.

    A store connects when it is opened. Objects are values under ``kvpool/NAMESPACE/HASH-GROUP``, of 512
    MiB at most. What another engine of the same namespace wrote is found by ``probe``. One store's
    objects are bounded by ``capacity_bytes``; set the server's ``maxmemory``, with a policy that
    evicts, for all of them. Redis 4.0 or later.

    Args:
        capacity_bytes: What the objects of one store may take.
        host: Its name or number; this machine by default.
        port: TCP port.
        unix_socket: Path of a Unix socket, instead of host and port.
        username: Who asks, of servers that know users.
        password: What it is asked with.
        database: Number of the database.
        protocol: Version of the protocol, 2 or 3.
        max_payload: Bytes of the largest object; a slot of the arena by default.
        time_to_live: Seconds from its write after which a value ends; ``None`` for never.
        timeout: Seconds that the server may send and take nothing. A whole call has this time, and a
            second for every 4 MiB that it moves.
        tls: Whether TLS (1.2 or 1.3) is spoken; never anything else then. What cannot be read of the
            following is a ``StoreError`` when the store is opened, and so is a server that nobody
            vouches for.
        tls_ca: A PEM file of those who may vouch for the server; those of this system by default.
        tls_certificate: PEM files of this side's certificate and key, for servers that ask for one.
        tls_server_name: The name in the server's certificate, if it is not ``host``.

    Raises:
        InvalidArgumentError: A number is out of range, there are two addresses, or TLS to a Unix socket.

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
    """A back end written in Python, and how much of it.

    ``kvpool.store.s3`` and ``kvpool.store.mooncake`` have two.

    Args:
        backend: What moves the bytes.
        capacity_bytes: What the objects of one store may take.
        max_payload: Bytes of the largest object; a slot of the arena by default.

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
    """A bounded store of objects beneath an engine's memory.

    No call but ``wait``, ``renew`` and ``close`` waits for the back end. Opening it does: it takes the
    room, and reads the headers that are there. In a forked child every call raises ``ClosedError``: the
    threads are the parent's.

    Args:
        backend: Where objects are kept.
        arena: Where they are moved from and to.
        namespace: Whose they are: objects of another one are free room.
        eviction: What goes first when the room is full; any policy by name but ``last-accessed``, whose
            times nobody states here.
        admission: What is written, where an offer does not say: ``second_touch`` spares a disk the
            prompts that nobody sends again.
        remembered_offers: How many offers are remembered for a second one.
        workers: Threads that wait for the back end, at most 1024.
        queue: Objects on their way; more are misses.
        deadline: Seconds that a transfer may take; then it is a miss, and its slot stays taken until it
            has ended.
        breaker_failures: Failures in a row after which the back end is left alone.
        breaker_pause: For how many seconds.
        believed_for: Seconds for which a shared back end is believed that it has an object, or has not.
        staged: Whether payloads pass through memory of the workers, at the price of a copy there. Then
            a slot is free once its job has ended, whatever the back end does: for engines that reuse a
            slot as soon as they are told.
        tell_gone: Whether ``take_gone`` tells what went.

    Raises:
        StoreInUseError: Another store has the folder.
        StoreError: The back end cannot be opened, or the disk has no room for an object.
        InvalidArgumentError: A setting is out of range, or the namespace is one that a store has made.
        TooLargeError: The memory cannot be had.

    >>> import tempfile
    >>> namespace = kvpool.store.Namespace(
    ...     model="m", weights="w", kv_dtype="bf16", scales="", layouts=[], block_size=16, layers=(0, 1),
    heads=(0, 1), ...     hash_algorithm="sha256", hash_seed=b"", extra={},
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
        """Offers objects.

        Returns the job. O(keys). What is admitted is written from its slot, which cannot be loaded into
        until then. An object that is there already is ``ok`` at once.

        Args:
            keys: The digest of each block's prefix, 1 to 32 bytes.
            slots: The slot of each.
            groups: The KV-cache group, of all or of each; 0 by default.
            lengths: Bytes of the payload, of all or of each; the whole slot by default.
            tokens: Position of the first token of each in its prompt, and how many: what is deep goes first.
            admit: What is written, for this call.

        Raises:
            SlotBusyError: A load has one of the slots.
            InvalidArgumentError: A slot that there is not, a length that does not fit, lists of other
                lengths.
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
        """Asks for objects.

        Returns the job. O(keys).

        An object whose outcome is ``ok`` is in its slot. The slot of another has no meaning; one that
        ``timed_out`` stays taken until the back end has ended.

        Args:
            keys: As for ``put``.
            slots: Where each goes: no slot twice, and none that another job has.
            groups: As for ``put``.
            lengths: As for ``put``: an object of another length is not it.

        Raises:
            SlotBusyError: A job has one of the slots, or it is named twice.
            InvalidArgumentError: As for ``put``.
            ClosedError: The store is closed.
        """
    def contains(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> list[Presence]:
        """What is known of each key.

        Asks nobody. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def probe(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> int:
        """Asks which objects are there.

        Returns the job; an object's outcome is ``ok`` or ``absent``. A shared back end is asked, many
        keys at once, and what it says is believed for a time by ``contains``, ``get`` and ``put``. Of
        others all is known. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def remove(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> int:
        """Removes objects.

        Returns how many there were. This store finds none from now on. Their bytes are cleared later,
        so after a crash some may be found again: what must never be found again needs ``renew``.
        O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def touch(self, keys: Sequence[bytes], *, groups: int | Sequence[int] | None = None) -> None:
        """These objects were used.

        Though not loaded: what was used last goes last. What is not there does not matter. O(keys).

        Raises:
            ClosedError: The store is closed.
        """
    def renew(self, namespace: Namespace) -> None:
        """Serves another namespace from now on.

        After an update of the weights, for one. Nothing of the old namespace is found any more, not
        after a restart either, however this process ends, and what is on its way is not kept. The
        namespace may be the old one, to begin anew. Waits for the back end, which records the renewal
        before this returns. O(objects that the store has room for).

        Other engines that share the back end go on as they are until they open or renew a store.

        Raises:
            StoreError: The back end has not recorded the renewal. This store finds nothing of before
                all the same; one that is opened later may. The next renewal records this one, too.
            InvalidArgumentError: It is a namespace that a store has made, with a generation. Nothing
                has changed.
            ClosedError: The store is closed.
        """
    @property
    def namespace(self) -> Namespace:
        """The namespace that objects carry now.

        The one that the store was opened with or renewed to, with its generation in ``extra``: what the
        back end has recorded, another one after each renewal. ``kvpool store gc --keep`` takes its
        digest.

        Raises:
            ClosedError: The store is closed.
        """
    def take_gone(self) -> list[tuple[bytes, int]]:
        """What could be found and cannot any more, since the last call.

        Evicted, removed or damaged: digest, padded to 32 bytes, and group. Empty unless the store was
        made with ``tell_gone``; then it has to be called now and then.

        Raises:
            ClosedError: The store is closed.
        """
    def poll(self) -> list[tuple[int, list[Outcome]]]:
        """The jobs that have ended since the last call.

        Oldest first, each with an outcome per key. Does not wait.

        Raises:
            ClosedError: The store is closed.
        """
    def wait(self, timeout: float = 1.0) -> list[tuple[int, list[Outcome]]]:
        """Waits for a job to end.

        If anything is on its way. Other threads may use the store meanwhile.

        Args:
            timeout: Seconds at most.

        Raises:
            ClosedError: The store is closed.
        """
    def fileno(self) -> int:
        """A file that is readable when there is something to poll.

        For event loops. Deadlines do not make it so.
        """
    @property
    def is_direct(self) -> bool:
        """Whether transfers go round the page cache."""
    @property
    def io(self) -> str:
        """How bytes move.

        ``io_uring`` of a disk, or ``threads (no io_uring: WHY)`` where the kernel does not let it;
        ``threads`` of the other back ends.
        """
    def stats(self) -> StoreStats:
        """What it did and has.

        O(objects on their way).

        Raises:
            ClosedError: The store is closed.
        """
    def close(self, timeout: float = 10.0) -> None:
        """Ends the store.

        Waits until nothing is on its way. A second call does nothing.

        Args:
            timeout: Seconds to wait at most; then what no worker has begun is dropped.
        """
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class StoreStats:
    """What a store did and has.

    Counters since it was opened, and what is so at the moment.
    """

    @property
    def objects(self) -> int:
        """Objects that can be found."""
    @property
    def bytes(self) -> int:
        """Bytes that they, and what is on its way or still to be cleared, take at most."""
    @property
    def capacity_bytes(self) -> int:
        """The bound on these bytes."""
    @property
    def in_flight(self) -> int:
        """Objects on their way, those included whose deadline has passed."""
    @property
    def quarantined(self) -> int:
        """Of these, what a back end still has after its deadline: slots that stay taken."""
    @property
    def restored(self) -> int:
        """Objects that were there when the store was opened."""
    @property
    def foreign(self) -> int:
        """Objects of another namespace, or format, or damaged, that were there then."""
    @property
    def loads(self) -> int:
        """Objects loaded."""
    @property
    def loaded_bytes(self) -> int:
        """Bytes of their payloads."""
    @property
    def misses(self) -> int:
        """Loads that missed, whatever the reason."""
    @property
    def writes(self) -> int:
        """Objects written."""
    @property
    def written_bytes(self) -> int:
        """Bytes of their payloads."""
    @property
    def known(self) -> int:
        """Offers of an object that was there, or on its way."""
    @property
    def not_admitted(self) -> int:
        """Offers that were not admitted."""
    @property
    def evicted(self) -> int:
        """Objects evicted for others."""
    @property
    def removed(self) -> int:
        """Objects removed by a caller."""
    @property
    def damaged(self) -> int:
        """Loads of an object that was another, or damaged."""
    @property
    def lost(self) -> int:
        """Objects that a back end did not have, though it should."""
    @property
    def full(self) -> int:
        """Writes that a back end had no room for."""
    @property
    def failed(self) -> int:
        """Transfers that failed otherwise."""
    @property
    def timed_out(self) -> int:
        """Transfers whose deadline passed."""
    @property
    def busy(self) -> int:
        """Transfers refused because the queue was full."""
    @property
    def unavailable(self) -> int:
        """Transfers refused because the breaker was open."""
    @property
    def known_absent(self) -> int:
        """Loads not tried, since the object was known not to be there."""
    @property
    def opened(self) -> int:
        """How often the breaker opened."""
    @property
    def last_error(self) -> str | None:
        """What the last failure or damage was."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class StoreFolder:
    """A folder that a store made.

    Looked at from outside, by people and tools.

    Args:
        folder: A folder that a store made.
        exclusive: Whether nobody else may have it: to verify or to clear. Without, headers may be
            looked at while a store has it; what is being written then looks damaged.

    Raises:
        StoreNotFoundError: There are no objects.
        StoreInUseError: It was to be exclusive, and a store has it.
        StoreError: It cannot be read.

    >>> import tempfile
    >>> namespace = kvpool.store.Namespace(
    ...     model="m", weights="w", kv_dtype="bf16", scales="", layouts=[], block_size=16, layers=(0, 1),
    heads=(0, 1), ...     hash_algorithm="sha256", hash_seed=b"", extra={},
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
        """How many objects it has room for."""
    @property
    def object_bytes(self) -> int:
        """Bytes of the disk per object."""
    @property
    def io(self) -> str:
        """How a store on this machine would move bytes.

        As ``Store.io``.
        """
    def objects(
        self, first: int, count: int, *, verify: bool = False
    ) -> list[tuple[int, str | None, int, int, str | None]]:
        """The objects at some places.

        Of each its place, the digest of its namespace, its group, bytes of its payload, and what is
        wrong with it. Of one that is damaged, the digest is None. Reads a page per place; everything,
        to verify.

        Args:
            first: The first place.
            count: How many.
            verify: Whether payloads are read and their checksums compared.

        Raises:
            StoreError: The disk fails.
        """
    def namespaces(self) -> dict[str, Namespace | None]:
        """The namespaces that ever had objects here, by digest.

        None where the text is lost.

        Raises:
            StoreError: The folder cannot be read.
        """
    def clear(self, places: Sequence[int]) -> None:
        """Makes places free.

        Raises:
            StoreError: It was not opened as ``exclusive``, or the disk fails.
            InvalidArgumentError: There is no such place.
        """
    def forget(self, digest: str) -> None:
        """Forgets the text of a namespace.

        Raises:
            StoreError: It was not opened as ``exclusive``, or the disk fails.
            InvalidArgumentError: It is no digest.
        """

@final
class StoreServer:
    """A Redis or Valkey server whose objects are looked at.

    From outside, by people and tools, while engines use it: what comes and goes meanwhile is seen or not.

    Args:
        server: Which one; how much of it does not matter.

    Raises:
        StoreError: It cannot be reached, or refuses.

    >>> try:
    ...     kvpool.store.StoreServer(kvpool.store.Redis(1 << 30, unix_socket="/no/such/socket")).scan()
    ... except kvpool.errors.StoreError as error:
    ...     print(error)
    asking the server failed: No such file or directory (os error 2)
    """

    def __new__(cls, server: Redis) -> Self: ...
    def keys(self) -> int:
        """How many keys its database has, those of others included.

        Raises:
            StoreError: The server fails.
        """
    def scan(
        self, cursor: int = 0, *, verify: bool = False
    ) -> tuple[int, list[tuple[str, str | None, int, int, str | None]], dict[str, Namespace | None], int]:
        """The page of keys that begins at a cursor.

        Returns the cursor of the next page, 0 behind the last; of each object its name, the digest of
        its namespace, its group, bytes of its payload, and what is wrong with it; the namespaces whose
        texts are on this page, None for one that is damaged; and the number of keys that somebody else
        has. A key may be on two pages while the server's table grows or shrinks.

        Args:
            cursor: 0, or what the page before returned.
            verify: Whether payloads are read and their checksums compared.

        Raises:
            StoreError: The server fails.
        """
    def remove(self, names: Sequence[str]) -> None:
        """Removes objects.

        Raises:
            StoreError: The server fails.
            InvalidArgumentError: One is no name of an object; then none is removed.
        """
    def forget(self, digest: str) -> None:
        """Removes the text of a namespace, and the record of its generation.

        Raises:
            StoreError: The server fails.
            InvalidArgumentError: It is no digest.
        """

def check_object(
    name: str, front: bytes, length: int, payload: bytes | None = None
) -> tuple[str, str | None, int, int, str | None] | None:
    """What an object is that a back end has under a name.

    Returns its name, the digest of its namespace, its group, bytes of its payload, and what is wrong
    with it; None if the name is not one of an object.

    Args:
        name: As back ends are given it: ``NAMESPACE/HASH-GROUP``.
        front: Its first 112 bytes: the header.
        length: Bytes of all of it.
        payload: What is behind the header, to be compared with its checksum.

    >>> kvpool.store.check_object("notes.txt", b"", 0)
    """

@final
class SlotHeaders:
    """Whose bytes lie in each slot of an arena that outlives the process.

    A file beside the memory, with a header for each slot; slot and block have one number. ``clear``
    comes before the first byte of a slot changes, ``seal`` when the last one is written: in between the
    slot is nobody's, whatever happens. docs/restart.md has the whole.

    Args:
        path: The file; made if there is none, and made anew if it has another number of slots.
        arena: The memory: ``Arena.over`` a file that is mapped.
        namespace: Whose KV it is.

    Raises:
        StoreError: The file cannot be had, or somebody else has it: another process, another object of
            this one.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> namespace = kvpool.store.Namespace(
    ...     model="m", weights="w", kv_dtype="bf16", scales="", block_size=16,
    ...     layouts=[(0, "NHD", [16, 2, 8], [16, 8, 1])], layers=(0, 1), heads=(0, 2),
    hash_algorithm="sha256", ...     hash_seed=b"", extra={},
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
        """Says that slots are about to be written to: from now on they are nobody's.

        Raises:
            InvalidArgumentError: There is no such slot.
            StoreError: The file cannot be written: then the slots must not be.
        """
    def seal(self, slots: _Ints, keys: Sequence[bytes], *, groups: int | Sequence[int] = 0) -> None:
        """Says that slots have the KV of these keys, whole: reads them, and writes their headers.

        Raises:
            InvalidArgumentError: There is no such slot, or it is 0, that of the null block; a key has
                no bytes, or more than 32; not as many keys as slots.
            StoreError: The file cannot be written, or a transfer has a slot.
        """
    def renew(self, namespace: Namespace) -> None:
        """Serves another namespace from now on.

        After an update of the weights, for one. No slot that was sealed before is in the new namespace.
        Use the new one for ``save_index``, too.
        """
    def __len__(self) -> int: ...

@final
class WarmStart:
    """What became of a snapshot."""

    @property
    def blocks(self) -> int:
        """Blocks that are cached again."""
    @property
    def refused(self) -> int:
        """Blocks whose bytes are not, or not any more, those of their hashes."""
    @property
    def lost(self) -> int:
        """Blocks whose records could not be read."""
    @property
    def age(self) -> float:
        """Seconds since the snapshot was made; 0 of a cold start."""
    @property
    def cold(self) -> str | None:
        """Why nothing was restored, or None."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

def save_index(subject: CacheManager | BlockPool, path: str | PathLike[str], namespace: Namespace) -> int:
    """Writes what a manager or a pool has cached to a file, and returns how many blocks that are.

    For any thread but the scheduler's: it waits for the disk. The manager is locked while its state is
    copied, O(blocks). The file takes the place of the one that is there whole, or not at all. One call
    at a time for one file.

    Args:
        subject: Of a manager what its device has.
        path: The file.
        namespace: All that the bytes depend on besides the tokens; another one is a cold start.

    Raises:
        StoreError: The file cannot be written; the one that was there stays.
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
    """Makes a new manager or pool what a file says, as far as the bytes agree.

    Its blocks are cached in the order in which they would have been evicted, with retention and
    tenants. No file, a damaged one or one of another namespace is a cold start, and no error. With
    times to live, call ``clock.advance`` first.

    Args:
        subject: As new: nothing was allocated.
        path: The file.
        namespace: Whose KV it is now.
        slots: Says whose bytes lie in each block.
        payloads: Whether the bytes of each block are compared with their checksum, too; else headers alone.
        trusted: Instead of ``slots``: somebody else vouches for the bytes of every block that the file names.
        elapsed: Seconds for which times to live have run since; None is the age of the file.

    Raises:
        InvalidArgumentError: Not one of ``slots`` and ``trusted``; slots of another namespace; a
            manager that is not new, has a journal, verifies hits, or has other blocks, another hash
            algorithm, key or seed, or other KV-cache groups than the one that the file is of. Nothing
            has changed.
        StoreError: The headers of the slots cannot be read.
    """
