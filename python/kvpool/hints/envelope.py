"""Reads envelopes of actions: vLLM's ``kv_hints``.

This module defines the effect of each action. vLLM passes ``KvHintsEnvelope(protocol_version,
message_id, actions)`` to the scheduler and does not define what an action means. The field names in an
action's payload are kvpool's own until there is a standard. Envelopes come from outside, so an invalid
envelope gets an answer and never raises.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvpool import Retention
from kvpool.hints.rules import Answer

if TYPE_CHECKING:
    from kvpool.hints.rules import HintRules, Outcome

__all__ = ["Range", "actions_of", "follow"]

Range = tuple[int, int | None, Retention]

#: The largest number of actions of one envelope that are read. Further actions are ignored.
MAX_ACTIONS: Final = 64
#: The priority that a ``retain`` action sets if its payload contains no priority.
_USUAL: Final = 70
_NOT_RETENTION: Final = ("prefetch", "share", "transfer", "offload")


class _Refused(Exception):  # noqa: N818 - not an error for callers
    """Raised for an action of an envelope that has no effect. Its message is the reason."""


def _get(one: Any, name: str, default: Any = None) -> Any:
    """Returns a field of an envelope or action, which is a dict or an object."""
    return one.get(name, default) if isinstance(one, dict) else getattr(one, name, default)


def actions_of(envelope: Any) -> tuple[list[Any], list[Answer]]:
    """Returns the actions of an envelope, and the outcomes that concern the envelope as a whole."""
    actions = _get(envelope, "actions")
    if not isinstance(actions, (list, tuple)):
        return [], [Answer("kv_hints", "ignored", "it has no list of actions")]
    if len(actions) > MAX_ACTIONS:
        return list(actions[:MAX_ACTIONS]), [
            Answer("kv_hints", "clipped", f"{len(actions)} actions: the first {MAX_ACTIONS} count")
        ]
    return list(actions), []


def follow(nth: int, action: Any, rules: HintRules) -> tuple[Answer, Range | None, bool]:
    """Interprets an action.

    Returns its outcome, its range of retention or None, and whether it ends the session.
    """
    kind = _get(action, "action_type")
    name = kind.lower().replace("-", "_") if isinstance(kind, str) else ""
    hint = f"kv_hints[{nth}] {name[:40]}".rstrip()
    version = _get(action, "action_version", 1)
    if version not in (1, "1", None):
        return Answer(hint, "ignored", f"action version {str(version)[:20]} is not known"), None, False
    try:
        if name == "end_session":
            return Answer(hint, "accepted"), None, True
        outcome, why, found = _retention(name, _get(action, "payload") or {}, rules)
    except _Refused as refused:
        return Answer(hint, "ignored", str(refused)), None, False
    return Answer(hint, outcome, why), found, False


def _retention(name: str, payload: Any, rules: HintRules) -> tuple[Outcome, str, Range]:
    start, end = _token(payload, "start", 0), _token(payload, "end", None)
    if end is not None and end < start:
        raise _Refused(f"it ends at token {end}, before it begins at {start}")
    if name in {"demote", "end_of_life"}:
        return "accepted", "", (start, None if name == "end_of_life" else end, Retention(demoted=True))
    if name in _NOT_RETENTION:
        raise _Refused("not a matter of retention")
    if name not in {"retain", "pin"}:
        raise _Refused("no such action is known")
    ttl, why = _ttl(payload, rules)
    whys = [why] if why else []
    if name == "pin":
        if ttl is None:
            ttl = rules.max_ttl
            whys.append(f"without an end: {rules.max_ttl:g} s")
        if rules.pins:
            retention = Retention(pinned=True, ttl=ttl)
        else:
            whys.append(f"pins are off: priority {rules.max_priority}")
            retention = Retention(rules.max_priority, ttl=ttl)
    else:
        asked = _get(payload, "priority", _USUAL)
        if isinstance(asked, bool) or not isinstance(asked, int):
            raise _Refused("its priority is no int")
        priority = min(max(asked, 0), rules.max_priority)
        if priority != asked:
            whys.append(f"priority {priority}")
        retention = Retention(priority, ttl=ttl)
    return ("clipped" if whys else "accepted"), "; ".join(whys), (start, end, retention)


def _token(payload: Any, name: str, default: int | None) -> Any:
    value = _get(payload, name, default)
    if value is default:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise _Refused(f"{name} is no position of a token")
    return value


def _ttl(payload: Any, rules: HintRules) -> tuple[float | None, str]:
    value = _get(payload, "ttl_s")
    if value is None:
        return None, ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) or value < 0:
        raise _Refused("its time to live is no number of seconds")
    if value > rules.max_ttl:
        return rules.max_ttl, f"{rules.max_ttl:g} s at most"
    return float(value), ""
