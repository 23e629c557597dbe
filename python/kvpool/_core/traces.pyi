"""Request traces: formats, generation, replay."""

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
    """Names of the trace formats.

    >>> kvpool.traces.trace_formats()
    ['mooncake', 'mooncake-sessions', 'bailian', 'kv-cache-tester', 'block-rows', 'kv-events']
    """

@type_check_only
class TraceSummary(TypedDict):
    """Figures of a trace: tokens, block references by id, and milliseconds."""

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
    """The findings while a trace was read. docs/traces.md describes each count."""

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

    Requests in order of arrival, each with ``timestamp`` (ms), ``input_length`` and ``output_length``
    (tokens), and ``hash_ids``, one chained id per block of the prompt. ``len(trace)`` is the number of
    requests. docs/traces.md describes the formats that it can be read from.

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
        """Reads a trace file or a folder of them, plain or gzip.

        O(block references); other threads continue. ``TraceReader`` does the same in slices.

        Args:
            path: The file; ``"-"`` is standard input; of a folder, all .json and .jsonl files, plain or .gz.
            format: One of ``trace_formats()``; ``"auto"`` detects it from the first record.
            block_tokens: Tokens that one id stands for, at least 1. By default what the trace says,
                else 512, or 16 for ``"bailian"``. Where the trace says another size, its blocks are
                made into blocks of this one.
            limit: Stop after this many requests. At least 1.
            check_prefixes: Check that every id has one parent; off saves 40 to 80 bytes per different id.
            sort: Put requests in order of arrival instead of refusing disorder.
            sessions_at_once: Of ``"kv-cache-tester"``: sessions that run at a time; all begin at once
                by default.
            event_gap_s: Of ``"kv-events"``: up to this many seconds after it was stored, the end of a
                chain may be continued by the same request.

        Raises:
            TraceFileError: The file cannot be opened or read.
            TraceError: A line is not a request, or breaks the order of times or ids (the message names line
                and field); there is no request; an option is 0.
            InvalidArgumentError: An option is negative, or the format unknown.
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

        O(block references); other threads continue. The options are those of ``read``.

        Raises:
            TraceError: A line is not a request, or breaks the order of times or ids (the message names line
                and field); there is no request; an option is 0.
            InvalidArgumentError: An option is negative, or the format unknown.
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
        """Makes up a trace: chats, agents and one-shot requests over shared system prompts.

        Equal arguments give equal traces, to the last byte, on every host. O(block references).

        Args:
            requests: How many. At least 1.
            seed: Seed of the random draws, 0 to ``2**64 - 1``.
            block_tokens: Tokens that one id stands for.
            rate_per_s: Mean arrivals per second of trace time; 4 by default.
            chat_fraction: Share of the requests that are turns of chats; 0.5 by default.
            agent_fraction: Share of the requests that are steps of agents; 0.3 by default. The rest are
                one-shot.

        Raises:
            InvalidArgumentError: An argument is out of range; the message says which.
        """
    def to_jsonl(self, format: TraceFormat = "mooncake") -> bytes:  # noqa: A002
        """Returns the trace as JSON lines of a format.

        Parsing it again, with the same ``block_tokens``, gives the same requests. O(block references).

        Args:
            format: ``"mooncake"``, ``"mooncake-sessions"`` or ``"bailian"``; docs/traces.md says what
                each loses.

        Raises:
            InvalidArgumentError: The format is unknown, or only read.
        """
    def write_jsonl(self, file: SupportsWrite[bytes], format: TraceFormat = "mooncake") -> None:  # noqa: A002
        """Writes the trace as JSON lines of a format, piece by piece.

        The bytes are those of ``to_jsonl``, and never all in memory: pieces of 64 KiB. O(block references);
        other threads continue, and Ctrl-C interrupts between two pieces.

        Args:
            file: Any object with a ``write`` for bytes: a binary file, a ``gzip.GzipFile``,
                ``sys.stdout.buffer``.
            format: As in ``to_jsonl``.

        Raises:
            InvalidArgumentError: The format is unknown, or only read.
            Exception: What ``write`` raises; a part may have been written.

        >>> import io
        >>> trace, out = kvpool.traces.Trace.generate(requests=10), io.BytesIO()
        >>> trace.write_jsonl(out)
        >>> out.getvalue() == trace.to_jsonl()
        True
        """
    def with_block_tokens(self, block_tokens: int) -> Trace:
        """Returns the same workload in blocks of another size.

        Larger blocks hit as a whole or not at all; smaller blocks hit the same tokens. Block ids
        change. O(block references).

        Args:
            block_tokens: A multiple or a divisor of this trace's.

        Raises:
            InvalidArgumentError: Neither size divides the other, or it is negative.
            TraceError: It is 0, or gives more than ``2**30`` block references, or more than there is
                memory for, 8 bytes each.

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

        Rates are shares from 0 to 1. An ideal rate is that of a cache that never evicts: by blocks, by
        tokens, by full blocks only, and in the last half. The object also has reuse times, arrivals,
        sessions and kinds. O(block references).

        >>> import json
        >>> stats = json.loads(kvpool.traces.Trace.generate(requests=100).stats_json())
        >>> stats["requests"], 0 < stats["ideal_token_hit_rate"] < 1
        (100, True)
        """
    @property
    def format(self) -> TraceFormat | None:
        """The format that it was read from; None if it was made up."""
    @property
    def block_tokens(self) -> int:
        """Tokens that one id stands for."""
    def notes(self) -> ReadNotes:
        """Returns what was noticed while it was read.

        O(1); all 0 for a trace that was made up.
        """
    def __len__(self) -> int: ...

@final
class TraceReader:
    """A trace on its way in.

    Reads in slices what ``Trace.read`` reads at once, so that a caller can show progress or stop.

    Args:
        path: As in ``Trace.read``, and so are the other arguments.
        format: The format, or ``"auto"``.
        block_tokens: Tokens that one id stands for.
        limit: Stop after this many requests.
        check_prefixes: Check that every id has one parent.
        sort: Put requests in order of arrival.
        sessions_at_once: Sessions that run at a time.
        event_gap_s: Seconds in which a stored chain may be continued by the same request.

    Raises:
        TraceFileError: The file cannot be opened or read.
        TraceError: An option is 0.
        InvalidArgumentError: An option is negative, or the format unknown.

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
        """Reads on for about this many bytes, and returns whether all is read.

        Other threads continue. Formats without an order of arrival are put in order in the last call.
        O(bytes).

        Args:
            size: Bytes of the file, before decompression.

        Raises:
            TraceError: As ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: The reader has given its trace, or has failed.
            InvalidArgumentError: ``size`` is negative.
        """
    @property
    def bytes_read(self) -> int:
        """Bytes read so far, before decompression."""
    @property
    def total_bytes(self) -> int | None:
        """Bytes of the file or folder; None for standard input."""
    def finish(self) -> Trace:
        """Reads what is left, and returns the trace.

        O(block references); other threads continue.

        Raises:
            TraceError: As ``Trace.read``.
            TraceFileError: Reading failed.
            KvpoolError: The reader has given its trace, or has failed.
        """

@final
class Replay:
    """A trace on its way through a pool or a manager.

    In ``"lookup"`` mode each request is looked up, stored and released at once: the definition behind
    published hit rates. In ``"engine"`` mode requests arrive, wait, prefill in chunks, decode and are
    preempted in virtual time, as in a server.

    Args:
        trace: The requests.
        mode: ``"lookup"`` or ``"engine"``.
        block_size: Tokens per block; in lookup mode a divisor of the trace's block tokens.
        groups: KV-cache groups of a hybrid model, whose block sizes are multiples of ``block_size``: of
            each its kind (``"full"``, ``"sliding"``, ``"chunked"`` or ``"state"``), tokens per block,
            tokens of its window or chunk, and what stays cached: ``"all"``, ``"junctions"`` or every so
            many tokens. Lookup mode then goes through the manager, in chunks of ``step_tokens``: only
            full blocks can hit, and prompts end with the last block that the trace names.
        capacity_blocks: Usable blocks of the pool, the null block not counted. At least 1.
        algorithm: One of ``hash_algorithms()``.
        verify: One of ``verify_modes()``.
        seed: Seed of the hash algorithm, where it takes one.
        eviction: ``"lru"``.
        explain: Engine mode: the report says why tokens were computed, as ``misses``.
        watermark: Engine mode: share of the pool that an admission leaves available while other requests run.
        max_running: Engine mode: requests that run at once, at most.
        step_tokens: Engine mode: tokens that one step computes, at most.
        step_ms: Engine mode: virtual milliseconds per step, before its prefill tokens.
        prefill_tokens_per_s: Engine mode: prefill tokens per virtual second, added to ``step_ms``.
        tiers: Engine mode: tiers beneath the device, from it down, of each how many blocks it holds,
            and milliseconds that one takes from it to the tier above. What they have of a prompt is
            loaded, and not computed: the report says it as ``tiers``, and the times to the first token
            are those with them.
        threads: Threads that hash prompts ahead; 0 takes the number of cores. The result does not depend on
            it.
        journal: Records what the pool or manager is asked: a ``Journal``.

    Raises:
        InvalidArgumentError: A setting is out of range; the message says which, and what is allowed.
        HashingError: The algorithm cannot work with this seed.
        JournalExistsError: The journal's file exists.
        JournalFileError: The journal's file cannot be made.

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
        """Requests of the trace."""
    def advance(self, requests: int | None = None) -> int:
        """Runs on until this many more requests are finished, or all are, and returns how many are finished.

        O(blocks) of those requests; other threads continue.

        Args:
            requests: How many more; all by default.

        Raises:
            TraceError: The ids of a request do not give tokens.
            InvalidArgumentError: ``requests`` is negative.
        """
    def report_json(self) -> str:
        """Returns what has been measured so far, as a JSON object.

        Settings; counts of requests, blocks and tokens with their hits, over all requests and over the
        last half; hit rates as shares from 0 to 1; in engine mode, times and preemptions; of several
        groups, what each alone would have served. O(1).
        """
    def journal_stats(self) -> JournalStats | None:
        """Returns how far the journal has come, or None without one.

        A journal never fails an operation: one that cannot be written stops, and ``error`` says why. O(1).
        """
    def flush_journal(self) -> None:
        """Writes what the journal has collected: what a crash would lose.

        Without a journal nothing happens. It is also flushed when the replay goes.

        Raises:
            JournalFileError: The journal has stopped recording; the message says why.
        """
    def check_invariants(self) -> None:
        """Recounts the invariants of the pool or manager that is replayed.

        O(blocks), for tests.

        Raises:
            InvariantError: The first broken invariant.
        """
