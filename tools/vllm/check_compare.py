"""Compares the records of two engines that ran the same requests, for tools/vllm_check.py. This module
does not use vLLM.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STOCK: Final = "stock"
# The settings of KV events at a level are ``EXACT``, kvpool's default, and ``STOCK``, vLLM's own.
EXACT: Final = "exact"
Event = dict[str, Any]  # the fields of an event, including its type
Change = tuple[str, Any, Any]  # "stored", "removed" or "cleared"; the hash; the group


@dataclasses.dataclass
class Record:
    """The outputs, cached tokens, preemptions and events of one engine in one scenario."""

    tokens: list[list[list[int]]]  # by prompt and completion
    cached: list[int]  # num_cached_tokens by prompt
    preemptions: int
    batches: list[list[Event]]  # KV events in the published batches
    seconds: float

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Makes a record from the JSON that a run wrote. Raises a TypeError if a key is unknown or
        missing.
        """
        return cls(**data)

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]


@dataclasses.dataclass
class Engine:
    """One run of an engine: all scenarios at one level."""

    level: str
    events: str
    scenarios: dict[str, Record] = dataclasses.field(default_factory=dict)
    replaced: list[str] = dataclasses.field(default_factory=list)
    vllm: str = ""
    seconds: float = 0.0
    broken: str = ""

    @property
    def name(self) -> str:
        return (
            self.level
            if self.level == STOCK or self.events == EXACT
            else f"{self.level}, events={self.events}"
        )


def changes(events: Iterable[Event]) -> list[Change]:
    """Splits events into changes, each of which stores or removes one hash."""
    found: list[Change] = []
    for event in events:
        group = event.get("group_idx")
        if event["type"] == "BlockStored":
            found += [("stored", one, group) for one in event["block_hashes"]]
        elif event["type"] == "BlockRemoved":
            found += [("removed", one, group) for one in event["block_hashes"]]
        elif event["type"] == "AllBlocksCleared":
            found.append(("cleared", None, None))
        else:
            found.append((event["type"], None, group))
    return found


def cached_changes(found: Iterable[Change]) -> list[Change]:
    """Returns only those changes after which a hash becomes cached or is no longer cached.

    vLLM reports every copy of a block. If a hash has several copies, only storing the first copy and
    removing the last one changes the hits that a reader of the events can expect. kvpool's events
    report only these changes.
    """
    copies: collections.Counter[tuple[Any, Any]] = collections.Counter()
    kept: list[Change] = []
    for kind, one, group in found:
        key = (one, group)
        if kind == "stored":
            copies[key] += 1
            if copies[key] == 1:
                kept.append((kind, one, group))
        elif kind == "removed":
            copies[key] -= 1
            if copies[key] == 0:
                kept.append((kind, one, group))
        else:
            copies.clear()
            kept.append((kind, one, group))
    return kept


def inconsistencies(found: Iterable[Change]) -> list[str]:
    """Returns the events that a subscriber could not apply: stores of a hash that it already has, and
    removals of a hash that it does not have.
    """
    there: set[tuple[Any, Any]] = set()
    twice = missing = 0
    for kind, one, group in found:
        key = (one, group)
        if kind == "stored":
            twice += key in there
            there.add(key)
        elif kind == "removed":
            missing += key not in there
            there.discard(key)
        else:
            there.clear()
    told = [f"{twice} hashes are stored while they are there"] if twice else []
    return told + ([f"{missing} hashes are removed that are not there"] if missing else [])


def first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    """Returns the first position at which two sequences differ, or None."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def compare_tokens(stock: Record, other: Record) -> list[str]:
    problems = []
    differing = sum(one != two for one, two in zip(stock.tokens, other.tokens, strict=False))
    differing += abs(len(stock.tokens) - len(other.tokens))
    if differing:
        place = first_difference(other.tokens, stock.tokens)
        problems.append(
            f"{differing} of {len(stock.tokens)} prompts got other tokens, the first of them prompt {place}"
        )
    place = first_difference(other.cached, stock.cached)
    if place is not None:
        ours, theirs = other.cached[place : place + 1], stock.cached[place : place + 1]
        problems.append(f"cached tokens of prompt {place}: {ours}, stock {theirs}")
    if other.preemptions != stock.preemptions:
        problems.append(f"{other.preemptions} preemptions, stock {stock.preemptions}")
    return problems


def compare_events(stock: Record, other: Record, events: str) -> list[str]:
    """Compares the KV events of a level with those of stock. With vLLM's event setting both sequences
    must be equal. Otherwise only the changes of cached hashes must be equal.
    """
    if events != EXACT:
        place = first_difference(other.batches, stock.batches)
        if place is None:
            return []
        ours, theirs = len(other.batches), len(stock.batches)
        return [f"event batch {place} differs ({ours} batches, stock {theirs})"]
    found = changes(other.events)
    problems = inconsistencies(found)
    wanted, had = collections.Counter(cached_changes(changes(stock.events))), collections.Counter(found)
    for kind in sorted({change[0] for change in (*wanted, *had)}):
        missing = sum(n for change, n in (wanted - had).items() if change[0] == kind)
        added = sum(n for change, n in (had - wanted).items() if change[0] == kind)
        if missing or added:
            problems.append(f"events, {kind}: {missing} of stock's are missing, {added} are not stock's")
    return problems


def missing_coverage(record: Record) -> list[str]:
    """Returns the reasons why stock's run is not a useful test, for example because no request was
    preempted.
    """
    problems = []
    if not any(any(one) for prompt in record.tokens for one in prompt):
        problems.append("no tokens were generated")
    elif len({str(prompt) for prompt in record.tokens}) < 0.8 * len(record.tokens):
        problems.append("many prompts got the same tokens: a wrong block of KV would not show")
    if not record.preemptions:
        problems.append("nothing was preempted: take fewer blocks (--blocks)")
    if not any(record.cached):
        problems.append("no prompt had cached tokens")
    kinds = {change[0] for change in changes(record.events)}
    if not {"stored", "removed"} <= kinds:
        problems.append("no KV events of blocks stored and removed")
    return problems


def verdict(engines: Sequence[Engine]) -> list[str]:
    """Returns the problems, one line each. The first engine is stock. If the list is empty, every level
    behaved like stock.
    """
    stock = engines[0]
    problems = [f"{engine.name}: {engine.broken}" for engine in engines if engine.broken]
    if stock.replaced:
        problems.append(f"the level stock is not stock vLLM: kvpool has replaced {', '.join(stock.replaced)}")
    for scenario, record in stock.scenarios.items():
        problems += [f"stock, {scenario}: {weakness}" for weakness in missing_coverage(record)]
    for engine in engines[1:]:
        if engine.broken:
            continue
        if not engine.replaced:
            problems.append(f"{engine.name}: kvpool left vLLM as it is: this compared stock with stock")
        for scenario, record in stock.scenarios.items():
            other = engine.scenarios.get(scenario)
            if other is None:
                problems.append(f"{engine.name}, {scenario}: not run")
                continue
            found = compare_tokens(record, other) + compare_events(record, other, engine.events)
            problems += [f"{engine.name}, {scenario}: {problem}" for problem in found]
    return problems
