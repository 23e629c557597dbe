"""The whole ``CacheManager``, step plans, forks, windows and swaps included, against the reference model.

Random calls, valid and not. After each the result, the class and the figures of the error, block tables, both orders,
the sums of both tiers, planned copies, the events, the digest and all invariants are compared; a call that failed has
changed nothing. Not driven here: journals (test_journal.py), hints (Rust: operations/manager_retention.rs), policies
of one's own (tests/test_python_policy.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import kvpool
from kvpool.testing import observe_manager
from tests.manager_plan import Operation, Plan
from tests.reference.manager import ReferenceManager
from tests.reference.pool import Content, ReferencePool
from tests.reference.tables import ReferenceRequest
from tests.shares import in_shares, run_share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvpool._core import Duplicates, HashAlgorithm, VerifyMode

BLOCK_SIZE = 2
LARGEST = 16
#: A number and its text are two requests.
NAMES: list[str | int] = [0, 1, "1", "b", -7]
IDS = st.sampled_from(NAMES)
TOKENS = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=9) | st.integers(1, 9).map(lambda n: [0] * n)
SALTS = st.sampled_from(["", "", "", "s"])
STATES = ["running", "preempted", "swapped", "moving", "loading", "releasing"]
#: Steps, counted from the one that was completed last.
STEPS = st.integers(-2, 3)
PICKS = st.lists(st.integers(0, 4), min_size=1, max_size=3)
AFTER = st.none() | st.none() | STEPS


#: Tickets that are open, counted from the one that was opened last, or one that is not.
TICKETS = st.none() | st.none() | st.integers(0, 2)
ENDS = st.tuples(AFTER, st.none()) | st.tuples(st.none(), TICKETS) | st.tuples(AFTER, TICKETS)
#: ``allocate_tokens``, ``external_tokens`` and ``reuse``.
EXTERNAL = st.just(0) | st.integers(1, 4) | st.integers(0, 9)
PARTS = st.just((None, 0, True)) | st.tuples(
    st.none() | st.integers(0, 6), EXTERNAL, st.sampled_from([True, True, False])
)
ROWS = st.lists(st.tuples(IDS, st.lists(st.integers(0, 1), max_size=3)), max_size=4)
COUNTS = st.lists(st.integers(0, 12), max_size=4)
OPERATIONS = st.builds(
    Operation,
    st.sampled_from(["admit", "append", "append_ragged", "preempt", "resume", "release"]),
    IDS,
    TOKENS,
    SALTS,
    ENDS,
    PARTS,
    ROWS,
    st.sampled_from([0, 0, 1, 3]),
    st.none() | st.none() | COUNTS,
)


def attempt(call: Callable[[], Any]) -> tuple[Any, kvpool.KvpoolError | None]:
    """The result of a call, or the class of its error and the error."""
    try:
        return plain(call()), None
    except kvpool.KvpoolError as error:
        return type(error), error


def plain(result: Any) -> Any:
    """Admissions as table, number of cached blocks, and tokens that are loaded."""
    if isinstance(result, kvpool.Admission):
        assert result.num_blocks == len(result.block_ids)
        assert result.cached_tokens == result.cached_blocks * BLOCK_SIZE
        return result.block_ids, result.cached_blocks, result.external_tokens
    if isinstance(result, ReferenceRequest):
        return list(result.blocks), result.registered, (result.external or result.cached) - result.cached
    if isinstance(result, kvpool.AdmissionFit):
        return result.fit, result.cached_tokens, result.new_blocks, result.fitting_tokens, result.can_ever_fit
    return [plain(one) for one in result] if isinstance(result, list) else result


class ManagerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(3, LARGEST),
        watermark=st.sampled_from([0.0, 0.0, 0.2]),
        verify=st.sampled_from(kvpool.hashing.verify_modes()),
        duplicates=st.sampled_from(["keep", "drop-on-release"]),
        algorithm=st.sampled_from(["sha256", "blake3", "vllm-sha256-cbor"]),
        host_blocks=st.sampled_from([0, 3, 6, 12]),
        advisor=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        watermark: float,
        verify: VerifyMode,
        duplicates: Duplicates,
        algorithm: HashAlgorithm,
        host_blocks: int,
        advisor: bool,
    ) -> None:
        self.manager = kvpool.CacheManager(
            num_blocks,
            BLOCK_SIZE,
            algorithm=algorithm,
            verify=verify,
            duplicates=duplicates,
            watermark=watermark,
            event_capacity=10_000,
            host_blocks=host_blocks,
            advisor=advisor,
            digest=True,
        )
        self.hasher = kvpool.BlockHasher(algorithm, BLOCK_SIZE, verify=verify)
        pool = ReferencePool(num_blocks, BLOCK_SIZE, drop_duplicates=duplicates != "keep")
        host = ReferencePool(host_blocks, BLOCK_SIZE, drop_duplicates=duplicates != "keep") if host_blocks else None
        self.model = ReferenceManager(pool, watermark, host)
        self.swaps: list[int] = []
        #: Of requests whose external tokens are counted when they arrive: what their statistics begin with.
        self.loading: dict[str | int, str] = {}
        self.matchable: set[bytes] = set()
        self.counts = Counter[str]()

    def both(self, call: Callable[[], Any], modelled: Callable[[], Any], tier: int = 0, fit: Any = None) -> Any:
        """Runs a call on both; returns the result, or the class of the error.

        ``tier`` may be out of blocks; of an admission that is refused then, ``fit`` says how far.
        """
        before = observe_manager(self.manager, NAMES)
        result, error = attempt(call)
        expected, _ = attempt(modelled)
        assert result == expected
        if error is not None:
            assert str(error)
            assert observe_manager(self.manager, NAMES) == before
        if isinstance(error, kvpool.errors.OutOfBlocksError):
            free, cached_free, _, fenced = self.model.pools[tier].sums()
            assert error.missing == error.needed - error.available > 0
            assert error.available <= free + cached_free
            assert error.fenced == fenced
            if fit is not None:
                assert (error.can_ever_fit, error.fitting_tokens) == (fit[4], fit[3])
                assert error.needed >= fit[2]
        return result

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "manager"):
            return
        manager, model, pool = self.manager, self.model, self.model.pool
        manager.check_invariants()
        stats = manager.stats()
        assert (manager.free_order(), manager.eviction_order()) == (pool.free, pool.eviction_order())
        assert (stats.pool.free, stats.pool.cached_free, stats.pool.active, stats.pool.fenced) == pool.sums()
        assert sum(pool.sums()) == stats.pool.usable == manager.num_blocks - 1
        assert manager.num_available == sum(pool.sums()[:2])
        assert stats.pool.registered == sum(block.content is not None for block in pool.blocks)
        assert manager.epoch == pool.epoch
        assert len(manager) == len(model.requests)
        states = Counter(request.state for request in model.requests.values())
        assert Counter({state: getattr(stats, state) for state in STATES}) == states
        host = manager.host_stats()
        assert (host is None) == (model.host is None)
        if host is not None and model.host is not None:
            assert (host.free, host.cached_free, host.active, host.fenced) == model.host.sums()
        model.check_kv()
        assert manager.state_digest() == manager.state_digest_from_scratch()
        manager.scrub(3)
        for name in NAMES:
            assert (name in manager) == (name in model.requests)
            if name in manager:
                info, request = manager.request(name), model.requests[name]
                assert manager.block_ids(name) == request.blocks
                assert (info.state, info.tier) == (request.state, request.tier)
                assert (info.tokens, info.blocks) == (len(request.tokens), len(request.blocks))
                assert (info.computed_tokens, info.cached_tokens) == (request.computed, request.cached)
                assert info.external_end == (request.external or request.computed)
        assert {name: getattr(stats, name) for name in self.counts} == dict(self.counts)
        assert stats.hit_tokens + stats.external_tokens + stats.computed_tokens == stats.prompt_tokens
        self.replay_events()

    def replay_events(self) -> None:
        """Events replayed into a set are the hashes that can be matched."""
        events, lost = self.manager.take_events()
        assert lost == 0
        for event in events:
            if event["type"] == "stored":
                assert event["hash"] not in self.matchable
                self.matchable.add(event["hash"])
            elif event["type"] == "removed":
                self.matchable.remove(event["hash"])
            else:
                self.matchable.clear()
        assert self.matchable == {self.digest(content) for content in self.model.pool.matchable()}

    def digest(self, content: Content) -> bytes:
        salt, epoch, tokens = content
        return self.hasher.hash_tokens(list(tokens), self.extra(str(salt)), epoch=epoch)[-1]

    @staticmethod
    def extra(salt: str) -> kvpool.ExtraKeys | None:
        return kvpool.ExtraKeys(salt=salt) if salt else None

    def count_admitted(self, name: str | int) -> None:
        request = self.model.requests[name]
        self.counts.update(
            admissions=1,
            prompt_tokens=len(request.tokens),
            hit_tokens=request.cached,
            computed_tokens=len(request.tokens) - request.cached,
        )
        self.loading[name] = ""

    def count_resumed(self, name: str | int) -> None:
        request = self.model.requests[name]
        self.counts.update(resumptions=1, resumed_tokens=len(request.tokens), resumed_hit_tokens=request.cached)
        self.loading[name] = "resumed_"

    @rule(tokens=TOKENS, salt=SALTS, part=PARTS)
    def fit(self, tokens: list[int], salt: str, part: tuple[int | None, int, bool]) -> None:
        """A fit is what an admission would be, or says how much of it would be."""
        before, parts = observe_manager(self.manager, NAMES), self.parts(part)
        self.both(
            lambda: self.manager.fit(tokens, self.extra(salt), **parts), lambda: self.model.fit(tokens, salt, **parts)
        )
        assert observe_manager(self.manager, NAMES) == before

    @staticmethod
    def parts(part: tuple[int | None, int, bool]) -> dict[str, Any]:
        return dict(zip(("allocate_tokens", "external_tokens", "reuse"), part, strict=True))

    @rule(name=IDS, tokens=TOKENS, salt=SALTS, prepared=st.booleans(), part=PARTS)
    def admit(
        self,
        name: str | int,
        tokens: list[int],
        salt: str,
        prepared: bool,
        part: tuple[int | None, int, bool] = (None, 0, True),
    ) -> None:
        cursor = self.manager.prepare(tokens, self.extra(salt))
        pool, before = self.model.pool, observe_manager(self.manager, NAMES)
        found, pending = pool.lookup(salt, tokens, self.model.reusable(tokens))
        probe = self.manager.probe(cursor)
        idle = sum(pool.blocks[block].held == 0 for block in found)
        assert (probe.cached_blocks, probe.idle_blocks, probe.pending_blocks) == (len(found), idle, pending)
        assert observe_manager(self.manager, NAMES) == before
        parts = self.parts(part)
        fit = self.model.fit(tokens, salt, **parts) if 0 <= part[1] < len(tokens) else None
        prompt, extra = (cursor, None) if prepared else (tokens, self.extra(salt))
        result = self.both(
            lambda: self.manager.admit(name, prompt, extra, **parts),
            lambda: self.model.admit(name, tokens, salt, **parts),
            fit=fit,
        )
        if isinstance(result, tuple):
            self.count_admitted(name)
        self.counts["refusals"] += result is kvpool.errors.OutOfBlocksError

    @rule(name=IDS, tokens=TOKENS, salt=SALTS, ends=st.sampled_from(["", "release", "preempt"]))
    def serve(self, name: str | int, tokens: list[int], salt: str, ends: str) -> None:
        """A request from its admission to its computed prompt, and perhaps to its end."""
        if name not in self.model.requests:
            self.admit(name, tokens, salt, True)
            self.commit_all(name)
        if ends == "release":
            self.release(name)
        elif ends == "preempt":
            self.preempt(name)

    def running(self) -> list[str | int]:
        return [name for name in NAMES if name in self.model.requests and self.model.requests[name].running]

    @rule(picks=st.lists(st.integers(0, 4), max_size=3), token=st.integers(0, 1), commit=st.booleans())
    def append(self, picks: list[int], token: int, commit: bool) -> None:
        """Some running requests, perhaps one of them twice."""
        names = self.running() or NAMES
        self.append_batch([names[pick % len(names)] for pick in picks], [token] * len(picks), commit)

    @rule(names=st.lists(IDS, max_size=4), commit=st.booleans(), more=st.integers(0, 1))
    def append_any(self, names: list[str | int], commit: bool, more: int) -> None:
        self.append_batch(names, [0] * (len(names) + more), commit)

    @rule(token=st.integers(0, 1), commit=st.booleans())
    def append_all(self, token: int, commit: bool) -> None:
        self.append_batch(self.running(), [token] * len(self.running()), commit)

    def append_batch(self, names: list[str | int], tokens: list[int], commit: bool) -> None:
        result = self.both(
            lambda: self.manager.append(names, tokens, commit=commit),
            lambda: self.model.append(names, tokens, commit=commit),
        )
        self.counts["appended_tokens"] += len(tokens) if isinstance(result, list) else 0

    @rule(name=IDS, tokens=TOKENS, lookahead=st.sampled_from([0, 0, 1, 3]))
    def append_tokens(self, name: str | int, tokens: list[int], lookahead: int) -> None:
        result = self.both(
            lambda: self.manager.append_tokens(name, tokens, lookahead=lookahead),
            lambda: self.model.append_tokens(name, tokens, lookahead),
        )
        self.counts["appended_tokens"] += len(tokens) if isinstance(result, list) else 0

    @rule(name=IDS, computed=st.integers(0, 12))
    def commit(self, name: str | int, computed: int) -> None:
        self.both(lambda: self.manager.commit(name, computed), lambda: self.model.commit(name, computed))

    @rule(name=IDS)
    def commit_all(self, name: str | int) -> None:
        known = self.model.requests.get(name)
        self.commit(name, min(len(known.tokens), self.model.room(known)) if known else 0)

    @rule(names=st.lists(IDS, max_size=3), less=st.lists(st.integers(-1, 3), min_size=3, max_size=4))
    def commit_batch(self, names: list[str | int], less: list[int]) -> None:
        known = [self.model.requests.get(name) for name in names]
        counts = [max(0, len(one.tokens) - n) if one else n + 1 for one, n in zip(known, less, strict=False)]
        counts += less[3:] and [1]
        self.both(lambda: self.manager.commit_batch(names, counts), lambda: self.model.commit_batch(names, counts))

    def step_number(self, offset: int) -> int:
        return max(0, self.model.pool.completed + offset)

    def end(self, offset: int | None, nth: int | None) -> dict[str, Any]:
        """The arguments of a release; a ticket that is not open is closed, or will be. The first is opened for it."""
        if nth == 0 and not self.model.pool.tickets:
            self.fence()
        tickets = sorted(self.model.pool.tickets, reverse=True)
        wrong = (self.model.pool.next_ticket or 3) - 1 + 3 * (0 in tickets)
        until = None if nth is None else tickets[nth] if nth < len(tickets) else wrong
        return {"after_step": None if offset is None else self.step_number(offset), "until": until}

    @rule(name=IDS, end=ENDS)
    def release(self, name: str | int, end: tuple[int | None, int | None] = (None, None)) -> None:
        until = self.end(*end)
        self.both(lambda: self.manager.release(name, **until), lambda: self.model.release(name, **until))

    @rule(names=st.lists(IDS, max_size=4), end=ENDS)
    def release_batch(self, names: list[str | int], end: tuple[int | None, int | None]) -> None:
        """What ended in a step; now and then one that is not there, or one twice."""
        until = self.end(*end)
        self.both(lambda: self.manager.release_batch(names, **until), lambda: self.model.release_batch(names, **until))

    @rule(name=IDS, end=ENDS)
    def preempt(self, name: str | int, end: tuple[int | None, int | None] = (None, None)) -> None:
        until = self.end(*end)
        known = self.model.requests.get(name)
        computed = known.computed if known else 0
        done = self.both(lambda: self.manager.preempt(name, **until), lambda: self.model.preempt(name, **until))
        self.counts.update({} if done is not None else {"preemptions": 1, "preempted_tokens": computed})

    @rule(name=IDS, part=PARTS)
    def resume(self, name: str | int, part: tuple[int | None, int, bool]) -> None:
        parts = self.parts(part)
        result = self.both(lambda: self.manager.resume(name, **parts), lambda: self.model.resume(name, **parts))
        if isinstance(result, tuple):
            self.count_resumed(name)
        if result is kvpool.errors.OutOfBlocksError:
            self.counts["refusals"] += 1

    @rule(name=IDS, slots=st.integers(0, 14))
    def extend(self, name: str | int, slots: int) -> None:
        self.both(lambda: self.manager.extend(name, slots), lambda: self.model.extend(name, slots))

    @rule(name=IDS, chunk=st.integers(1, 4))
    def prefill(self, name: str | int, chunk: int) -> None:
        """A prompt, chunk by chunk: what has blocks is computed, then the next tokens get theirs."""
        self.admit(name, [0] * 9, "", True, (chunk, 0, True))
        self.commit_all(name)
        known = self.model.requests.get(name)
        self.extend(name, min(len(known.tokens), known.computed + chunk) if known else chunk)

    @rule(
        name=IDS,
        loaded=st.none() | st.integers(0, 10),
        failed=st.none() | st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2),
    )
    def external_done_of_any(self, name: str | int, loaded: int | None, failed: list[tuple[int, int]] | None) -> None:
        known = self.model.requests.get(name)
        released = known is not None and known.state == "releasing"
        cached = known.computed if known else 0
        done = self.both(
            lambda: self.manager.external_done(name, loaded, failed=failed),
            lambda: self.model.external_done(name, loaded, failed=failed),
        )
        if isinstance(done, int):
            brought = 0 if released else self.model.requests[name].computed - cached
            kind = self.loading[name]
            self.counts[f"{kind}external_tokens"] += brought
            self.counts["computed_tokens"] -= brought if not kind else 0

    @rule(
        name=IDS,
        cached=st.integers(0, 4),
        external=st.integers(1, 5),
        end=st.none() | ENDS,
        loaded=st.none() | st.integers(0, 8),
        ends=st.booleans(),
    )
    def load(
        self,
        name: str | int,
        cached: int,
        external: int,
        end: tuple[int | None, int | None] | None,
        loaded: int | None,
        ends: bool,
    ) -> None:
        """A prompt of which a connector has some more than the cache, perhaps released before it has arrived."""
        self.admit(name, [0] * cached + [1] * (external + 1), "", True, (2, cached + external, True))
        if end is not None:
            self.release(name, end)
        if ends:
            self.external_done_of_any(name, loaded, None)

    @rule(picks=PICKS, loaded=st.none() | st.integers(0, 10))
    def external_done(self, picks: list[int], loaded: int | None) -> None:
        states = {"loading", "releasing"}
        names = [name for name, known in self.model.requests.items() if known.state in states]
        for name in dict.fromkeys(names[pick % len(names)] for pick in picks) if names else ():
            self.external_done_of_any(name, loaded, None)

    @rule()
    def fence(self) -> None:
        self.both(self.manager.fence, self.model.fence)

    @rule(nth=st.integers(0, 2))
    def end_fence(self, nth: int) -> None:
        ticket = self.end(None, nth)["until"]
        self.both(lambda: self.manager.end_fence(ticket), lambda: self.model.end_fence(ticket))

    @rule(
        rows=ROWS,
        picks=st.none() | st.lists(st.integers(0, 4), min_size=4, max_size=4),
        computed=st.none()
        | st.just("commit")
        | st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 3, -1]), min_size=4, max_size=4),
        covered=st.none() | st.integers(1, 4) | st.lists(st.integers(-5, 5), min_size=4, max_size=4),
        wrong=st.just("") | st.sampled_from(["none", "short", "long", "descending", "late", "early", "both", "counts"]),
        room=st.none() | st.integers(0, 6),
    )
    def append_ragged(
        self,
        rows: list[tuple[str | int, list[int]]],
        picks: list[int] | None,
        computed: str | list[int] | None,
        covered: int | list[int] | None,
        wrong: str,
        room: int | None,
    ) -> None:
        """Numbers count from the tokens that a request will have; ``wrong`` is what is wrong with the lists."""
        if picks is not None and (running := self.some("running", picks)):
            names = [running[pick % len(running)] for pick in picks]
            rows = [
                (name, new)
                for at, (name, (_, new)) in enumerate(zip(names, rows, strict=False))
                if name not in names[:at]
            ]
        names, tokens, every = [name for name, _ in rows], [token for _, new in rows for token in new], []
        offsets = [0]
        for name, new in rows:
            known = self.model.requests.get(name)
            every.append(len(new) + (len(known.tokens) if known else 0))
            offsets.append(offsets[-1] + len(new))
        damaged: list[int] | None = {
            "none": None,
            "short": offsets[:-1] or offsets,
            "long": [*offsets, offsets[-1]],
            "descending": [*offsets[:-1], offsets[-1] + 1, offsets[-1]][-len(offsets) :],
            "late": [offset + 1 for offset in offsets],
            "early": [*offsets[:-1], max(0, offsets[-1] - 1)],
        }.get(wrong, offsets)
        arguments: dict[str, Any] = {}
        if isinstance(computed, list):
            counts = [max(0, n - less) for n, less in zip(every, computed, strict=False)]
            arguments["computed"] = counts + [1] * (wrong == "counts")
        if computed == "commit" or wrong == "both":
            arguments["commit"] = True
        if isinstance(covered, list):
            arguments["covered"] = [max(0, n + m) for n, m in zip(every, covered, strict=False)] + [1] * (
                wrong == "counts"
            )
        if isinstance(covered, int) or wrong == "both":
            arguments["lookahead"] = covered if isinstance(covered, int) else 1

        def call() -> Any:
            if room is None:
                return self.manager.append_ragged(names, tokens, damaged, **arguments)
            out = np.full((3, room), -1, dtype=np.int32)
            try:
                changed = self.manager.append_ragged(names, tokens, damaged, **arguments, out=out)
            except kvpool.KvpoolError:
                assert (out == -1).all()
                raise
            assert (out[:, changed:] == -1).all()
            return tuple(out[:, :changed].tolist())

        result = self.both(
            call, lambda: self.model.append_ragged(names, tokens, damaged, **arguments, most_changes=room)
        )
        self.counts["appended_tokens"] += len(tokens) if isinstance(result, tuple) else 0

    @rule(
        names=st.lists(IDS, max_size=3),
        less=st.lists(st.integers(-1, 4), min_size=3, max_size=4),
        end=ENDS,
        tokens=st.lists(st.integers(0, 1), max_size=2),
    )
    def truncate_batch(
        self, names: list[str | int], less: list[int], end: tuple[int | None, int | None], tokens: list[int]
    ) -> None:
        """Drafts of a batch are rejected, while the step that wrote them goes on."""
        names, until = (names if less[0] < 0 else self.some("running", [0, 1, 2])), self.end(*end)
        known = [self.model.requests.get(name) for name in names]
        counts = [max(0, len(one.tokens) - n) if one else n + 1 for one, n in zip(known, less, strict=False)]
        counts += less[3:] and [1]
        self.both(
            lambda: self.manager.truncate_batch(names, counts, **until),
            lambda: self.model.truncate_batch(names, counts, **until),
        )
        for name in names:
            self.append_tokens(name, tokens, 1)

    @rule(offset=STEPS)
    def complete_step(self, offset: int) -> None:
        step = self.step_number(offset)
        self.both(lambda: self.manager.complete_step(step), lambda: self.model.complete_step(step))

    @rule(parent=IDS, child=IDS)
    def fork(self, parent: str | int, child: str | int) -> None:
        forked = self.both(lambda: self.manager.fork(parent, child), lambda: self.model.fork(parent, child))
        self.counts["forks"] += forked is None

    @rule(token=st.integers(0, 1), picks=PICKS, children=st.lists(IDS, max_size=3), ends=st.booleans())
    def search_beams(self, token: int, picks: list[int], children: list[str | int], ends: bool) -> None:
        """A step of beam search: some beams go on twice, others end, the rest grows."""
        running = self.some("running", picks) or NAMES[:1]
        parents = [running[nth % len(running)] for nth in range(len(children) - (token == 0 and ends))]
        forked = self.both(
            lambda: self.manager.fork_batch(parents, children), lambda: self.model.fork_batch(parents, children)
        )
        self.counts["forks"] += len(children) if forked is None else 0
        if ends:
            self.release_batch(running[:1], (None, None))
        self.append_all(token, False)

    def some(self, state: str, picks: list[int]) -> list[str | int]:
        """Some requests in this state; if there is none, one that has just been served."""
        if state == "running" and not self.running():
            self.serve(NAMES[picks[0] % len(NAMES)], [0] * 5, "", "")
        names = [name for name in NAMES if name in self.model.requests and self.model.requests[name].state == state]
        return list(dict.fromkeys(names[pick % len(names)] for pick in picks)) if names else []

    @rule(token=st.integers(0, 1), picks=PICKS)
    def fork_and_append(self, token: int, picks: list[int]) -> None:
        """Samples of one prompt: all but the last of them copy the tail."""
        for parent in self.some("running", picks):
            unknown = [name for name in NAMES if name not in self.model.requests]
            self.fork(parent, (unknown or NAMES)[0])
        self.append_all(token, False)

    @rule(picks=PICKS, less=st.integers(-1, 5), tokens=TOKENS, end=ENDS)
    def truncate(self, picks: list[int], less: int, tokens: list[int], end: tuple[int | None, int | None]) -> None:
        """Drafts are rejected, and others appended."""
        until = self.end(*end)
        for name in self.some("running", picks) or [NAMES[picks[0] % len(NAMES)]]:
            known = self.model.requests.get(name)
            keep = max(0, len(known.tokens) - less) if known else 1
            self.both(
                partial(self.manager.truncate, name, keep, **until), partial(self.model.truncate, name, keep, **until)
            )
            self.append_tokens(name, tokens[:2], 0)

    @rule(picks=PICKS, window=st.integers(0, 6))
    def trim_window(self, picks: list[int], window: int) -> None:
        for name in self.some("running", picks):
            self.commit_all(name)
            self.trim_window_of_any(name, window)

    @rule(name=IDS, window=st.integers(0, 6))
    def trim_window_of_any(self, name: str | int, window: int) -> None:
        self.both(lambda: self.manager.trim_window(name, window), lambda: self.model.trim_window(name, window))

    @rule()
    def take_plan(self) -> None:
        plan = self.both(lambda: self.manager.take_plan().transfers, self.model.take_plan)
        self.counts["copied_blocks"] += len(plan)

    @rule(names=st.lists(IDS, max_size=3), out=st.booleans())
    def begin_swap_of_any(self, names: list[str | int], out: bool) -> None:
        self.begin_swap(names, out)

    @rule(picks=PICKS, out=st.booleans())
    def begin_swap_of_some(self, picks: list[int], out: bool) -> None:
        self.begin_swap(self.some("running" if out else "swapped", picks), out)

    @rule(picks=PICKS, back=st.booleans())
    def swap(self, picks: list[int], back: bool) -> None:
        """Requests go to the host, and some of them come back."""
        self.begin_swap(self.some("running", picks), True)
        self.complete_swap(-1, True)
        if back:
            self.begin_swap(self.some("swapped", picks), False)
            self.complete_swap(-1, True)

    def begin_swap(self, names: list[str | int], out: bool) -> None:
        manager, model = self.manager, self.model
        fit, modelled = (manager.fit_swap_out, model.fit_swap_out) if out else (manager.fit_swap_in, model.fit_swap_in)
        fits = self.both(lambda: fit(names), lambda: modelled(names))
        begin = manager.begin_swap_out if out else manager.begin_swap_in
        swap = self.both(lambda: begin(names), lambda: model.begin_swap(names, out), 1 if out else 0)
        assert (fits == "ok") == isinstance(swap, int)
        if isinstance(swap, int):
            self.swaps.append(swap)

    @rule(nth=st.integers(-1, 1), take=st.booleans())
    def complete_swap(self, nth: int, take: bool) -> None:
        if take:
            self.take_plan()
        swap = self.swaps[nth % len(self.swaps)] if self.swaps else 99
        begun = self.model.swaps.get(swap)
        done = self.both(lambda: self.manager.complete_swap(swap), lambda: self.model.complete_swap(swap))
        if isinstance(done, dict) and begun:
            self.swaps.remove(swap)
            self.counts["swapped_out" if begun.to else "swapped_in"] += len(begun.names)

    @rule(nth=st.integers(0, 2))
    def abort_swap(self, nth: int) -> None:
        swap = self.swaps[nth % len(self.swaps)] if self.swaps else 99
        if self.both(lambda: self.manager.abort_swap(swap), lambda: self.model.abort_swap(swap)) is None:
            self.swaps.remove(swap)

    @rule(name=IDS, tokens=TOKENS)
    def hints_are_refused_without_retention(self, name: str | int, tokens: list[int]) -> None:
        manager, before = self.manager, observe_manager(self.manager, NAMES)
        known = (
            kvpool.errors.NoRetentionError
            if name in manager
            else (kvpool.errors.NoRetentionError, kvpool.errors.UnknownRequestError)
        )
        calls: list[tuple[Callable[[], Any], Any]] = [
            (lambda: manager.end_of_life(name), known),
            (lambda: manager.set_tenant(name, 1), known),
            (lambda: manager.end_of_life_of(manager.prepare(tokens)), kvpool.errors.NoRetentionError),
            (lambda: manager.advance_time(1.0), kvpool.errors.NoRetentionError),
        ]
        for call, error in calls:
            with pytest.raises(error):
                call()
        assert manager.retention_stats() is None
        assert observe_manager(manager, NAMES) == before

    @rule(tokens=TOKENS)
    def bump_epoch(self, tokens: list[int]) -> None:
        stale = self.manager.prepare(tokens)
        self.both(self.manager.bump_epoch, self.model.bump_epoch)
        before = observe_manager(self.manager, NAMES)
        assert attempt(lambda: self.manager.probe(stale))[0] is kvpool.errors.StaleEpochError
        wrong = kvpool.errors.StaleEpochError if tokens else kvpool.errors.InvalidArgumentError
        assert attempt(lambda: self.manager.admit("another", stale))[0] is wrong
        assert observe_manager(self.manager, NAMES) == before

    @rule(ids=st.lists(st.integers(0, LARGEST + 1), max_size=4))
    def evict(self, ids: list[int]) -> None:
        self.both(lambda: self.manager.drop_cached(ids), lambda: self.model.pool.drop_cached(ids))

    @rule()
    def reset(self) -> None:
        self.both(self.manager.reset, self.model.reset)

    @rule(held=st.sampled_from(["", "", "swapped"]))
    def reset_when_all_have_left(self, held: str) -> None:
        """Everybody gives up his blocks, perhaps but for those whose blocks are in the host; then everything goes."""
        for swap in self.swaps:
            self.both(partial(self.manager.abort_swap, swap), partial(self.model.abort_swap, swap))
        self.swaps.clear()
        self.take_plan()
        self.end_loads()
        for name, request in list(self.model.requests.items()):
            if request.state not in {held, "preempted"}:
                self.preempt(name)
        fences = [step for pool in self.model.pools for step, _ in pool.fences]
        self.both(
            lambda: self.manager.complete_step(max(fences, default=0)),
            lambda: self.model.complete_step(max(fences, default=0)),
        )
        self.end_fences()
        self.reset()

    def end_loads(self) -> None:
        for name, request in list(self.model.requests.items()):
            if request.external is not None:
                self.external_done_of_any(name, None, None)

    def end_fences(self) -> None:
        for ticket in list(self.model.pool.tickets):
            self.both(partial(self.manager.end_fence, ticket), partial(self.model.end_fence, ticket))

    @rule(by=st.integers(-1, 1))
    def resize(self, by: int) -> None:
        size = min(self.manager.num_blocks + by, LARGEST)
        self.both(lambda: self.manager.resize(size), lambda: self.model.pool.resize(size))

    def call(self, step: kvpool.Step, operation: Operation) -> int:
        name, tokens = operation.name, operation.tokens
        match operation.kind:
            case "admit":
                return step.admit(name, tokens, self.extra(operation.salt), **operation.parts)
            case "append":
                return step.append(name, tokens, lookahead=operation.lookahead)
            case "append_ragged" if operation.covered is None:
                return step.append_ragged(*operation.batch, lookahead=operation.lookahead)
            case "append_ragged" if operation.lookahead == 0:
                return step.append_ragged(*operation.batch, covered=operation.covered)
            case "append_ragged":
                return step.append_ragged(*operation.batch, lookahead=operation.lookahead, covered=operation.covered)
            case "preempt":
                return step.preempt(name, **operation.ends)
            case "resume":
                return step.resume(name, **operation.parts)
            case _:
                return step.release(name, **operation.ends)

    @rule(operations=st.lists(OPERATIONS, min_size=1, max_size=5), end=st.sampled_from(["commit", "roll", "stale"]))
    def step(self, operations: Sequence[Operation], end: str) -> None:
        """Planning changes nothing; then the plan is committed, rolled back, or made stale by another change."""
        operations = [replace(one, end=itemgetter("after_step", "until")(self.end(*one.end))) for one in operations]
        before = observe_manager(self.manager, NAMES)
        step, plan = self.manager.plan_step(), Plan.begin(self.model)
        for operation in operations:
            result, _ = attempt(lambda one=operation: self.call(step, one))  # type: ignore[misc]
            expected, _ = attempt(lambda one=operation: plan.plan(one))  # type: ignore[misc]
            assert result == expected, operation
            assert (step.available_blocks, len(step)) == (plan.available, len(plan.planned))
        assert observe_manager(self.manager, NAMES) == before
        if end == "commit":
            preempted = [request.computed for operation, request, *_ in plan.planned if operation.kind == "preempt"]
            kinds = {operation.name: operation.kind for operation, *_ in plan.planned}
            self.both(step.commit, plan.commit)
            self.counts.update({"preemptions": len(preempted), "preempted_tokens": sum(preempted)})
            for operation, *_ in plan.planned:
                if kinds[operation.name] == "admit":
                    self.count_admitted(operation.name)
                elif kinds[operation.name] == "resume":
                    self.count_resumed(operation.name)
                elif kinds[operation.name] == "append":
                    self.counts["appended_tokens"] += len(operation.tokens)
        elif end == "stale":
            self.both(lambda: self.manager.complete_step(0), lambda: self.model.complete_step(0))
            before = observe_manager(self.manager, NAMES)
            assert attempt(step.commit)[0] is kvpool.errors.StaleStepError
        step.rollback()
        sound = replace(operations[0], end=(None, None), covered=None)
        for use in (step.commit, lambda: step.available_blocks, lambda: self.call(step, sound)):
            assert attempt(use)[0] is kvpool.errors.StaleStepError
        if end != "commit":
            assert observe_manager(self.manager, NAMES) == before

    @rule()
    def release_everything(self) -> None:
        """Whatever happened, releasing all requests and completing all steps brings every block back."""
        for swap in self.swaps:
            self.both(partial(self.manager.abort_swap, swap), partial(self.model.abort_swap, swap))
        self.swaps.clear()
        self.end_loads()
        for name in [name for name in NAMES if name in self.model.requests]:
            self.both(partial(self.manager.release, name), partial(self.model.release, name))
        self.end_fences()
        last = max([step for pool in self.model.pools for step, _ in pool.fences], default=0)
        self.both(lambda: self.manager.complete_step(last), lambda: self.model.complete_step(last))
        self.take_plan()
        assert self.manager.num_available == self.manager.num_blocks - 1
        assert len(self.manager) == 0


@pytest.mark.longer
@in_shares
def test_the_manager_does_what_the_model_does(share: int) -> None:
    # What only a few histories in a hundred meet is found here or nowhere in Python.
    run_share(ManagerMachine, share, settings().max_examples * 3 // 2)
