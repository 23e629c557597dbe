"""Collects facts about the machine for the report: the driver, the GPU and its clocks."""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .driver import ATTRIBUTES
from .session import GIB

if TYPE_CHECKING:
    from .driver import Driver

ROOT = Path(__file__).resolve().parents[2]
_SMI = (
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "temperature.gpu",
    "power.draw",
    "utilization.gpu",
)


def _output(*command: str) -> str:
    """Return the output of a program, or "" if the program is missing or fails."""
    program = shutil.which(command[0])
    if program is None:
        return ""
    try:
        ended = subprocess.run(  # noqa: S603  # named here, looked up above
            [program, *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.strip() if ended.returncode == 0 else ""


def clocks(driver: Driver) -> str:
    """Return the current clocks of the GPU as reported by nvidia-smi, or "" if nvidia-smi is unavailable."""
    if driver.is_fake:
        return ""
    values = _output("nvidia-smi", f"--query-gpu={','.join(_SMI)}", "--format=csv,noheader", "-i", driver.pci)
    return ", ".join(
        f"{name} {value.strip()}" for name, value in zip(_SMI, values.split(","), strict=False) if values
    )


def facts(driver: Driver, torch: Any) -> dict[str, str]:
    """Return the facts about the machine that a reader needs to interpret the results."""
    from kvpool import __version__

    capability = (
        f"{driver.attribute('compute capability, major')}.{driver.attribute('compute capability, minor')}"
    )
    others = [name for name in ATTRIBUTES if not name.startswith("compute")]
    return {
        "card": driver.name,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "commit": _output("git", "describe", "--always", "--dirty") or "not known",
        "driver": f"{driver.version // 1000}.{driver.version % 1000 // 10}",
        "bus": driver.pci,
        "memory": f"{driver.total_memory / GIB:.1f} GiB",
        "compute capability": capability,
        **{name: str(driver.attribute(name)) for name in others},
        "clocks": clocks(driver) or "not known",
        "kvpool": __version__,
        "torch": "not used" if torch is None else torch.__version__,
        "Python": platform.python_version(),
    }
