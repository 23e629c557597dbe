"""Hints that engines and gateways attach to a request about its future use, applied as retention.

>>> import kvpool
>>> from kvpool.hints import HintRules, read
>>> rules = HintRules(priority=True, breakpoints=True)  # without arguments none is followed
>>> hints = read(rules, tokens=20, priority=-10, breakpoints=[(8, "1h"), (16, "5m")], session_id="s1")
>>> for answer in hints.answers:
...     print(answer.hint, answer.outcome, answer.why or "-")
priority accepted -
session_id ignored off
breakpoints accepted -
>>> manager = kvpool.CacheManager(64, 4, retention=True)
>>> manager.clock.advance(0.0)
0
>>> _ = manager.admit("a", range(20), **hints.options), manager.commit("a", 20)
>>> manager.retention.stats()
RetentionStats(demoted=0, below_normal=0, above_normal=5, pinned=0, with_ttl=0, expired=0)

``docs/hints.md`` lists the effect of each hint. Hints come from outside, so an invalid hint never
raises. Each hint gets an answer: ``accepted`` as given, ``clipped`` to a limit, or ``ignored``. The
last two come with a reason. Hints are advisory: they change the order of eviction, and never the result
of a lookup.

``cache_salt`` is more than a hint, because it separates prompts that must not share blocks. Pass it to
``ExtraKeys(salt=)`` even if no tenant is configured for it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvpool import Retention
from kvpool.hints.envelope import Range, actions_of, follow
from kvpool.hints.rules import NORMAL, Answer, HintRules, Outcome
from kvpool.hints.sessions import Sessions

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Answer", "HintRules", "Hints", "Outcome", "Sessions", "of_vllm_request", "read"]

#: The retention priorities of blocks of a session and of blocks before a breakpoint.
_SESSION: Final = 60
_BREAKPOINT: Final = 70
_TTLS: Final = {"5m": 300.0, "1h": 3600.0}
#: The largest number of breakpoints of one prompt.
_MOST_BREAKPOINTS: Final = 4
_OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Hints:
    """The effects of the hints of one request.

    Attributes:
        answers: The outcome of each hint, in the order in which the hints were read.
        ranges: The retention of each range of tokens, for ``admit`` and ``retain``. Where ranges
            overlap, the later one applies.
        tenant: The tenant of the blocks, or None.
        no_cache: Whether the request's tokens outside of all ranges will not be used again.
        ends_session: Whether the session ends with this request.
    """

    answers: tuple[Answer, ...] = ()
    ranges: tuple[Range, ...] = ()
    tenant: int | None = None
    no_cache: bool = False
    ends_session: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments for ``CacheManager.admit``.

        The dict is empty if no hint was followed. A manager that was made without retention then
        accepts the call, too.
        """
        found: dict[str, Any] = {}
        if self.ranges:
            found["retention"] = list(self.ranges)
        if self.tenant is not None:
            found["tenant"] = self.tenant
        if self.no_cache:
            found["no_cache"] = True
        return found


class _Reader:
    """Collects the effects of one request's hints."""

    def __init__(self, rules: HintRules, tokens: int) -> None:
        self.rules, self.tokens = rules, tokens
        self.answers: list[Answer] = []
        self.ranges: list[Range] = []
        self.tenant: int | None = None
        self.no_cache = self.ends_session = False

    def answer(self, hint: str, outcome: Outcome, why: str = "") -> None:
        self.answers.append(Answer(hint, outcome, why))

    def priority(self, value: Any) -> None:
        if not self.rules.priority:
            return self.answer("priority", "ignored", _OFF)
        if isinstance(value, bool) or not isinstance(value, int):
            return self.answer("priority", "ignored", "no int")
        asked = NORMAL - value
        given = min(max(asked, 0), self.rules.max_priority)
        self.ranges.append((0, None, Retention(given)))
        return self.answer("priority", *_clipped(given != asked, f"priority {given}"))

    def session(self, value: Any) -> None:
        ttl = self.rules.session_ttl
        if ttl is None:
            return self.answer("session_id", "ignored", _OFF)
        if not isinstance(value, str) or not value:
            return self.answer("session_id", "ignored", "no name")
        self.ranges.append((0, None, Retention(min(_SESSION, self.rules.max_priority), ttl=ttl, idle=True)))
        return self.answer("session_id", "accepted")

    def salt(self, value: Any) -> None:
        if not self.rules.tenants:
            return self.answer("cache_salt", "ignored", _OFF)
        tenant = self.rules.tenants.get(value) if isinstance(value, str) else None
        if tenant is None:
            return self.answer("cache_salt", "ignored", "no tenant has it")
        self.tenant = tenant
        return self.answer("cache_salt", "accepted")

    def cache_key(self, key: Any, retention: Any) -> None:
        if not self.rules.cache_key:
            return self.answer("prompt_cache_key", "ignored", _OFF)
        if key is not None and not isinstance(key, str):
            return self.answer("prompt_cache_key", "ignored", "no text")
        most = self.rules.max_ttl
        if retention in (None, "in_memory", "in-memory"):
            priority, ttl, idle = 60, 600.0, True
        elif retention == "24h":
            priority, ttl, idle = 80, 86_400.0, False
        else:
            return self.answer("prompt_cache_key", "ignored", "its retention is neither in_memory nor 24h")
        given, allowed = min(priority, self.rules.max_priority), min(ttl, most)
        self.ranges.append((0, None, Retention(given, ttl=allowed, idle=idle)))
        clipped = (given, allowed) != (priority, ttl)
        return self.answer("prompt_cache_key", *_clipped(clipped, f"priority {given} for {allowed:g} s"))

    def breakpoints(self, marks: Any) -> None:
        if not self.rules.breakpoints:
            return self.answer("breakpoints", "ignored", _OFF)
        if not isinstance(marks, (list, tuple)):
            return self.answer("breakpoints", "ignored", "no list")
        whys: list[str] = []
        if len(marks) > _MOST_BREAKPOINTS:
            whys.append(f"{len(marks)} of them: the first {_MOST_BREAKPOINTS} count")
        start, longest, found = 0, self.rules.max_ttl, False
        for nth, mark in enumerate(marks[:_MOST_BREAKPOINTS]):
            token, ttl = mark if isinstance(mark, (list, tuple)) and len(mark) == 2 else (None, None)
            seconds = _TTLS.get(ttl) if isinstance(ttl, str) else None
            if isinstance(token, bool) or not isinstance(token, int) or seconds is None or token <= start:
                whys.append(f"number {nth} is no token behind the one before, with 5m or 1h")
                continue
            if seconds > longest:
                # The times to live must not increase from one breakpoint to the next. Otherwise, the prefix
                # that a longer time depends on would expire first.
                whys.append(f"number {nth}: {longest:g} s")
            if token > self.tokens:
                whys.append(f"number {nth}: the prompt has {self.tokens} tokens")
                token = max(self.tokens, start + 1)
            longest = min(longest, seconds)
            kept = Retention(min(_BREAKPOINT, self.rules.max_priority), ttl=longest, idle=True, then="demote")
            self.ranges.append((start, token, kept))
            start, found = token, True
        if not found:
            return self.answer("breakpoints", "ignored", whys[0] if whys else "none is marked")
        self.no_cache = True
        return self.answer("breakpoints", *_clipped(bool(whys), "; ".join(whys)))

    def envelope(self, envelope: Any) -> None:
        if not self.rules.kv_hints:
            return self.answer("kv_hints", "ignored", _OFF)
        actions, answers = actions_of(envelope)
        self.answers += answers
        for nth, action in enumerate(actions):
            answer, found, ends = follow(nth, action, self.rules)
            self.answers.append(answer)
            self.ends_session |= ends
            if found is not None:
                self.ranges.append(found)
        return None


def _clipped(clipped: bool, why: str) -> tuple[Outcome, str]:
    return ("clipped", why) if clipped else ("accepted", "")


def read(
    rules: HintRules,
    *,
    tokens: int,
    priority: Any = None,
    session_id: Any = None,
    cache_salt: Any = None,
    prompt_cache_key: Any = None,
    prompt_cache_retention: Any = None,
    breakpoints: Sequence[tuple[int, str]] | Any = None,
    kv_hints: Any = None,
) -> Hints:
    """Converts the hints of a request to retention. An argument that is None means that the hint is absent.

    If several hints cover a token, the later one applies. The order is: priority, session, cache key,
    breakpoints, and then the actions of the envelope in their order.

    Args:
        rules: The hints that are followed, and their limits.
        tokens: Number of tokens of the prompt.
        priority: An int, as in vLLM's requests: lower values are more important.
        session_id: The name of a session. ``Sessions.end`` ends it.
        cache_salt: The salt that separates tenants.
        prompt_cache_key: A key as in OpenAI's requests. It announces that similar prompts will follow.
        prompt_cache_retention: ``in_memory`` or ``24h``, used together with the key.
        breakpoints: Pairs of a number of tokens and ``5m`` or ``1h``, as in Anthropic's cache_control.
            The breakpoint is after that number of tokens.
        kv_hints: An envelope of actions, as in vLLM: an object or a dict.
    """
    reader = _Reader(rules, tokens)
    if priority is not None:
        reader.priority(priority)
    if session_id is not None:
        reader.session(session_id)
    if cache_salt is not None:
        reader.salt(cache_salt)
    if prompt_cache_key is not None or prompt_cache_retention is not None:
        reader.cache_key(prompt_cache_key, prompt_cache_retention)
    if breakpoints is not None:
        reader.breakpoints(breakpoints)
    if kv_hints is not None:
        reader.envelope(kv_hints)
    return Hints(
        tuple(reader.answers), tuple(reader.ranges), reader.tenant, reader.no_cache, reader.ends_session
    )


def of_vllm_request(request: Any) -> dict[str, Any]:
    """Returns the hints of a vLLM request as arguments of ``read``.

    A priority of 0 counts as absent, because it is vLLM's default.

    >>> from types import SimpleNamespace
    >>> of_vllm_request(SimpleNamespace(priority=0, session_id="s1", cache_salt=None, num_prompt_tokens=40))
    {'tokens': 40, 'session_id': 's1'}
    """
    said = {
        name: getattr(request, name, None) for name in ("priority", "session_id", "cache_salt", "kv_hints")
    }
    found: dict[str, Any] = {"tokens": getattr(request, "num_prompt_tokens", 0)}
    return found | {
        name: value for name, value in said.items() if value is not None and (name, value) != ("priority", 0)
    }


def __dir__() -> list[str]:
    return [*__all__]
