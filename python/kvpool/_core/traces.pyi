"""Request traces: reading and writing files, generating traces, and replaying them."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, Self, TypedDict, final, type_check_only

from _typeshed import SupportsWrite

from kvpool._core import EvictionPolicy, HashAlgorithm, ReplayMode, TraceFormat, VerifyMode
from kvpool._core.journal import Journal, JournalStats

__all__ = [
    "Replay",
    "Trace",
    "TraceReader",
    "trace_formats",
]

def trace_formats() -> list[TraceFormat]:
    """Returns the names of the trace formats.

    >>> kvpool.traces.trace_formats()
    ['mooncake', 'mooncake-sessions', 'bailian', 'kv-cache-tester', 'block-rows', 'kv-events']
    """

@type_check_only
class TraceSummary(TypedDict):
    """Counts of a trace: tokens, block references and distinct block ids. Times are in milliseconds."""

    requests: int
    span_ms: float
    input_tokens: int
    output_tokens: int
    longest_input: int
    block_references: int
    partial_blocks: int
    unique_blocks: int
    block_tokens: int

@type_check_only
class ReadNotes(TypedDict):
    """Counts of the records of a trace file, and of their irregularities. See docs/traces.md."""

    records: int
    reordered: int
    unchained: int
    regrouped: int
    untimed: int
    skipped_events: int
    unknown_parents: int

@final
class Trace:
    """A request trace in memory.

    Requests are in order of arrival. Each request has a ``timestamp`` (ms), an ``input_length`` and an
    ``output_length`` (tokens), and ``hash_ids``. These are one id per block of the prompt. An id identifies a
    block together with all blocks before it. ``len(trace)`` is the number of requests. docs/traces.md
    describes the formats of trace files.

    >>> trace = kvpool.traces.Trace.generate(requests=100, seed=1)
    >>> trace
    Trace(requests=100, block_tokens=512)
    >>> len(kvpool.traces.Trace.parse(trace.to_jsonl(), limit=10))
    10
    """

    @staticmethod
    def read(
        path: str | PathLike[str],
        *,
        format: TraceFormat | Literal["auto"] = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Trace:
        """Reads a trace file, or a folder of trace files, plain or gzip.

        O(block references). Other threads run meanwhile. ``TraceReader`` reads a trace piece by piece.

        Args:
            path: The file. ``"-"`` is standard input. In a folder, all .json and .jsonl files are read,
                plain or .gz.
            format: One of ``trace_formats()``. ``"auto"`` detects the format from the first record.
            block_tokens: The number of tokens per block, at least 1. Each id in ``hash_ids`` identifies one
                block. The default is the size in the trace. For formats that do not contain a size, the
                default is 512 for Mooncake's and 16 for ``"bailian"``. If the trace contains another size,
                its blocks are converted.
            limit: The largest number of requests to read, at least 1.
            check_prefixes: Whether to check that each block id always follows the same id in prompts. False
                saves 40 to 80 bytes per distinct id.
            sort: Whether to sort requests by arrival. False refuses requests that are out of order.
            sessions_at_once: For ``"kv-cache-tester"``, the number of sessions that run at a time, at least
                1. By default all sessions begin at the same time.
            event_gap_s: For ``"kv-events"``: a chain that is continued within this number of seconds after
                its last block was stored is considered to be the same request.

        Raises:
            TraceFileError: The file cannot be opened or read, or the folder has no trace file.
            TraceError: A line is not a request, or its time or ids break the order. The message names
                the line and the field. Or the trace has no request, or an option is 0.
            InvalidArgumentError: An option is negative, or the format is unknown.
        """
    @staticmethod
    def parse(
        data: bytes,
        *,
        format: TraceFormat | Literal["auto"] = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Trace:
        """Reads a trace from bytes, plain or gzip.

        O(block references). Other threads run meanwhile. The options are those of ``read``.

        Raises:
            TraceError: A line is not a request, or its time or ids break the order. The message names
                the line and the field. Or the trace has no request, or an option is 0.
            InvalidArgumentError: An option is negative, or the format is unknown.
        """
    @staticmethod
    def generate(
        requests: int = 2000,
        *,
        seed: int = 0,
        block_tokens: int = 512,
        rate_per_s: float | None = None,
        chat_fraction: float | None = None,
        agent_fraction: float | None = None,
    ) -> Trace:
        """Generates a synthetic trace: chats, agents and one-shot requests with shared system prompts.

        Equal arguments give equal traces, to the last byte, on every host. O(block references).

        Args:
            requests: The number of requests, at least 1.
            seed: The seed of the random draws, 0 to ``2**64 - 1``.
            block_tokens: The number of tokens per block. Each id in ``hash_ids`` identifies one block.
            rate_per_s: The mean number of arrivals per second of trace time, 4 by default.
            chat_fraction: The share of requests that are turns of chats, 0.5 by default.
            agent_fraction: The share of requests that are steps of agents, 0.3 by default. All other
                requests are one-shot.

        Raises:
            InvalidArgumentError: An argument is out of range. The message names it.
        """
    def to_jsonl(self, format: TraceFormat = "mooncake") -> bytes:  # noqa: A002
        """Returns the trace as JSON lines in a format.

        Parsing the result with the same ``block_tokens`` gives the same requests. O(block references).

        Args:
            format: ``"mooncake"``, ``"mooncake-sessions"`` or ``"bailian"``. docs/traces.md lists the
                facts that each format loses.

        Raises:
            InvalidArgumentError: The format is unknown, or can only be read.
        """
    def write_jsonl(self, file: SupportsWrite[bytes], format: TraceFormat = "mooncake") -> None:  # noqa: A002
        """Writes the trace as JSON lines in a format, piece by piece.

        The method writes the bytes that ``to_jsonl`` returns, in pieces of 64 KiB, so that they are never in
        memory as a whole. O(block references). Other threads run meanwhile, and Ctrl-C interrupts between two
        pieces.

        Args:
            file: Any object with a ``write`` method for bytes: a binary file, a ``gzip.GzipFile``,
                ``sys.stdout.buffer``.
            format: As in ``to_jsonl``.

        Raises:
            InvalidArgumentError: The format is unknown, or can only be read.
            Exception: The file's ``write`` raised it. Part of the trace may have been written.

        >>> import io
        >>> trace, out = kvpool.traces.Trace.generate(requests=10), io.BytesIO()
        >>> trace.write_jsonl(out)
        >>> out.getvalue() == trace.to_jsonl()
        True
        """
    def with_block_tokens(self, block_tokens: int) -> Trace:
        """Returns the same workload in blocks of another size.

        With larger blocks, a replay may have fewer hits, because a block hits only as a whole. With smaller
        blocks, the same tokens hit as before. Block ids change. O(block references).

        Args:
            block_tokens: The new number of tokens per block, a multiple or a divisor of the trace's current
                number.

        Raises:
            InvalidArgumentError: Neither size divides the other, or ``block_tokens`` is negative.
            TraceError: ``block_tokens`` is 0, or the result has more than ``2**30`` block references.
                Or there is not enough memory for 8 bytes per reference.

        >>> trace = kvpool.traces.Trace.generate(requests=10)
        >>> trace.with_block_tokens(64)
        Trace(requests=10, block_tokens=64)
        """
    def summary(self) -> TraceSummary:
        """Returns counts of requests, tokens and blocks.

        O(block references).
        """
    def stats_json(self) -> str:
        """Returns counts, percentiles and ideal hit rates, as a JSON object.

        Rates are shares from 0 to 1. An ideal rate is the hit rate of a cache that never evicts. The object
        has ideal rates by blocks, by tokens, by full blocks only, and for the last half of the requests. It
        also has statistics of reuse times, arrivals, sessions and kinds of requests. O(block references).

        >>> import json
        >>> stats = json.loads(kvpool.traces.Trace.generate(requests=100).stats_json())
        >>> stats["requests"], 0 < stats["ideal_token_hit_rate"] < 1
        (100, True)
        """
    @property
    def format(self) -> TraceFormat | None:
        """The format from which the trace was read. None for a generated trace."""
    @property
    def block_tokens(self) -> int:
        """The number of tokens per block. Each id in ``hash_ids`` identifies one block."""
    def notes(self) -> ReadNotes:
        """Returns the counts of the records that were read, and of their irregularities.

        All counts are 0 for a generated trace. O(1).
        """
    def __len__(self) -> int: ...

@final
class TraceReader:
    """Reads a trace piece by piece.

    The result is the same as that of ``Trace.read``, but the caller can show progress or stop between two
    pieces.

    Args:
        path: The file or folder, as in ``Trace.read``. The other arguments are also those of ``Trace.read``.
        format: The format, or ``"auto"``.
        block_tokens: The number of tokens per block. Each id in ``hash_ids`` identifies one block.
        limit: The largest number of requests to read.
        check_prefixes: Whether to check that each block id always follows the same id in prompts.
        sort: Whether to sort requests by arrival.
        sessions_at_once: The number of sessions that run at a time.
        event_gap_s: The number of seconds within which a continued chain is considered to be the same
            request.

    Raises:
        TraceFileError: The file cannot be opened or read, or the folder has no trace file.
        TraceError: An option is 0.
        InvalidArgumentError: An option is negative, or the format is unknown.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "trace.jsonl")
    >>> size = path.write_bytes(kvpool.traces.Trace.generate(requests=100).to_jsonl())
    >>> reader = kvpool.traces.TraceReader(path)
    >>> while not reader.advance(1000):
    ...     assert reader.bytes_read <= reader.total_bytes == size
    >>> reader.finish()
    Trace(requests=100, block_tokens=512)
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        *,
        format: TraceFormat | Literal["auto"] = "auto",  # noqa: A002
        block_tokens: int | None = None,
        limit: int | None = None,
        check_prefixes: bool = True,
        sort: bool = False,
        sessions_at_once: int | None = None,
        event_gap_s: float = 5.0,
    ) -> Self: ...
    def advance(self, size: int = 4_194_304) -> bool:
        """Reads about this number of bytes, and returns whether the whole trace has been read.

        Other threads run meanwhile. If the requests of the file are not in order of arrival, the last call
        sorts them. O(bytes).

        Args:
            size: The number of bytes to read from the file, before decompression.

        Raises:
            TraceError: The errors of ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: ``finish`` was called before, or the reader has failed.
            InvalidArgumentError: ``size`` is negative.
        """
    @property
    def bytes_read(self) -> int:
        """The number of bytes read so far, before decompression.

        Raises:
            KvpoolError: ``finish`` was called before, or the reader has failed.
        """
    @property
    def total_bytes(self) -> int | None:
        """The number of bytes of the file or folder. None for standard input.

        Raises:
            KvpoolError: ``finish`` was called before, or the reader has failed.
        """
    def finish(self) -> Trace:
        """Reads the rest, and returns the trace. The reader cannot be used afterwards.

        O(block references). Other threads run meanwhile.

        Raises:
            TraceError: The errors of ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: ``finish`` was called before, or the reader has failed.
        """

@final
class Replay:
    """Runs the requests of a trace through a pool or a manager, and measures hit rates.

    In ``"lookup"`` mode, each request is looked up, stored and released before the next begins, which is the
    definition of published hit rates. In ``"engine"`` mode, requests arrive, wait, prefill in chunks, decode
    and are preempted in virtual time, as in a server.

    Args:
        trace: The requests.
        mode: ``"lookup"`` or ``"engine"``.
        block_size: The number of tokens per block. In lookup mode, the trace's ``block_tokens`` must be a
            multiple of it.
        groups: The KV-cache groups of a hybrid model. Each has a kind (``"full"``, ``"sliding"``,
            ``"chunked"`` or ``"state"``), tokens per block (a multiple of ``block_size``), and the tokens of
            its window or chunk. The last item selects the blocks that stay cached: ``"all"``,
            ``"junctions"``, or the number of tokens between two kept positions. With groups, lookup mode uses
            the manager, in chunks of ``step_tokens``. Only full blocks can hit then, and a prompt ends with
            its last block in the trace.
        capacity_blocks: The number of usable blocks of the pool, without the null block. At least 1.
        algorithm: One of ``hash_algorithms()``.
        verify: One of ``verify_modes()``.
        seed: The seed of the hash algorithm, if it uses one.
        eviction: One of ``eviction_policies()``.
        explain: Whether ``misses`` in the report explains why tokens were computed. In lookup mode,
            only with ``groups``.
        watermark: In engine mode, the share of the pool that an admission leaves available while other
            requests run.
        max_running: In engine mode, the largest number of requests that run at once.
        step_tokens: In engine mode, the largest number of tokens that one step computes.
        step_ms: In engine mode, the virtual milliseconds of a step without prefill tokens.
        prefill_tokens_per_s: In engine mode, the number of prefill tokens per virtual second. The time of the
            prefill tokens is added to ``step_ms``.
        tiers: In engine mode, the tiers beneath the device, from top to bottom. Each tier is a pair: its
            number of blocks, and the milliseconds that moving one block to the tier above takes. Blocks that
            a tier contains are loaded instead of computed. The report contains the statistics of the tiers as
            ``tiers``, and the times to the first token include the loads.
        threads: The number of threads that hash prompts in advance, at most 1024. 0 uses one thread per core.
            The result does not depend on it.
        journal: A ``Journal`` that records the calls of the pool or manager.

    Raises:
        InvalidArgumentError: A setting is out of range. The message names it and the values that are
            allowed.
        HashingError: The algorithm cannot use this seed.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be created.

    >>> import json
    >>> replay = kvpool.traces.Replay(kvpool.traces.Trace.generate(requests=50), capacity_blocks=50_000)
    >>> while replay.advance(20) < replay.total:
    ...     pass
    >>> report = json.loads(replay.report_json())
    >>> report["mode"], report["hits"]["requests"], 0 < report["token_hit_rate"] < 1
    ('lookup', 50, True)
    """

    def __new__(
        cls,
        trace: Trace,
        *,
        mode: ReplayMode = "lookup",
        block_size: int = 16,
        groups: Sequence[tuple[str, int, int, int | str | None]] | None = None,
        capacity_blocks: int = 100_000,
        algorithm: HashAlgorithm = "sha256",
        verify: VerifyMode = "none",
        seed: str | None = None,
        eviction: EvictionPolicy = "lru",
        explain: bool = False,
        watermark: float = 0.0,
        max_running: int = 256,
        step_tokens: int = 8192,
        step_ms: float = 20.0,
        prefill_tokens_per_s: float = 50_000.0,
        tiers: Sequence[tuple[int, float]] | None = None,
        threads: int = 0,
        journal: Journal | None = None,
    ) -> Self: ...
    @property
    def total(self) -> int:
        """The number of requests of the trace."""
    def advance(self, requests: int | None = None) -> int:
        """Runs more requests, and returns the total number of finished ones.

        O(blocks) of those requests. Other threads run meanwhile, and Ctrl-C interrupts.

        Args:
            requests: The number of further requests to finish. By default, all requests.

        Raises:
            TraceError: The ids of a request cannot be converted to tokens.
            InvalidArgumentError: ``requests`` is negative.
        """
    def report_json(self) -> str:
        """Returns the measurements so far, as a JSON object.

        The object contains the settings, and counts of requests, blocks and tokens, with their hits. There
        are counts of all requests, and of the last half of the requests. Hit rates are shares from 0 to 1.
        Engine mode adds times and preemptions. With several groups, the object contains the number of tokens
        that each group alone could have hit. O(1).
        """
    def journal_stats(self) -> JournalStats | None:
        """Returns the statistics of the journal, or None if there is no journal.

        A journal never makes an operation fail. If it cannot be written, it stops recording, and ``error`` of
        the statistics contains the reason. O(1).
        """
    def flush_journal(self) -> None:
        """Writes the collected records of the journal to its file, so that a crash does not lose them.

        Without a journal, does nothing. The journal is also flushed when the replay is deleted.

        Raises:
            JournalFileError: The journal has stopped recording. The message has the reason.
        """
    def check_invariants(self) -> None:
        """Checks all invariants of the replayed pool or manager.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
