"""Decides for each target whether the measured rates reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .measure import ON_DEVICE, TO_DEVICE, TO_HOST
from .report import Verdict

if TYPE_CHECKING:
    from .measure import Direction, Rates
    from .report import Judgement

#: Target: a rate has to be at least this share of the rate of a plain copy.
TARGET = 0.9
DEVICE_FROM, SWAPS_FROM = 16, 8


def _judged(target: str, share: float | None, detail: str, *, measured: bool) -> Verdict:
    judgement: Judgement = "not measured"
    if measured and share is not None:
        judgement = "PASS" if share >= TARGET else "FAIL"
    return Verdict(target, judgement, detail if judgement != "not measured" else "")


def _on_device(rates: Rates, kib: int, *, measured: bool) -> Verdict:
    rate = rates.on_device.get(kib)
    share = None if rate is None else rates.share(rate, ON_DEVICE)
    detail = "" if rate is None or share is None else f"{rate:.0f} GB/s, {100 * share:.0f} %"
    target = f"kernel on the device, pieces of {kib} KiB: {100 * TARGET:.0f} % of the card's plain copy"
    return _judged(target, share, detail, measured=measured)


def _swap(rates: Rates, direction: Direction, kib: int, *, measured: bool) -> Verdict:
    """Judge a swap by the rate that a user gets: the rate of the planner's choice on a calibrated GPU."""
    reached = rates.swaps.get((direction, kib), {})
    rate = reached.get("auto, calibrated", reached.get("auto"))
    share = None if rate is None else rates.share(rate, direction)
    detail = ""
    if rate is not None and share is not None:
        best = max(reached, key=lambda name: reached[name])
        best_share = rates.share(reached[best], direction) or 0.0
        detail = f"{rate:.1f} GB/s, {100 * share:.0f} %; best is {best} with {100 * best_share:.0f} %"
    target = f"swap {direction}, pieces of {kib} KiB: {100 * TARGET:.0f} % of a plain pinned copy"
    return _judged(target, share, detail, measured=measured)


def judge(rates: Rates, *, measured: bool) -> list[Verdict]:
    """Return all verdicts. In a dry run every verdict is "not measured"."""
    verdicts = [_on_device(rates, kib, measured=measured) for kib in (16, 32, 64)]
    for direction in (TO_HOST, TO_DEVICE):
        verdicts += [_swap(rates, direction, kib, measured=measured) for kib in (8, 16, 32, 64)]
    return verdicts
