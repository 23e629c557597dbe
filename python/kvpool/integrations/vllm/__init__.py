"""kvpool inside vLLM: a general plug-in, opt-in by environment, that patches no file of vLLM's.

``KVPOOL_VLLM`` says how much of vLLM's KV-cache management is kvpool's:

========
==========================================================================================================
unset nothing: vLLM is as it was pool the block pool and the hashing of prompts; vLLM's own managers
over them manager also the calls of vLLM's manager: a lookup, an allocation, a decode step is one call
into Rust, whatever the
          KV-cache groups. A few configurations stay with vLLM's managers over the pool
shadow vLLM decides, kvpool does everything beside it, and the first difference is reported ========
==========================================================================================================

vLLM finds :func:`register` through the entry point ``vllm.general_plugins`` in every process of its
engine. What it does is decided in :mod:`.install`; what it needs of vLLM is listed in
:mod:`.signatures` and checked by :mod:`.gate`. On anything unknown it logs one line that says what
differs, and leaves vLLM as it is; no exception leaves it.

See ``docs/vllm.md``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import Settings

#: Logs of the plug-in; vLLM shows what is below its own name.
LOGGER_NAME = "vllm.kvpool"

_registered = False


def register() -> None:
    """Puts kvpool into vLLM as ``KVPOOL_VLLM`` says. Called by vLLM in each of its processes; once is
    enough for each.

    In a process that never imports vLLM's engine, such as a worker, nothing happens beyond reading the
    variable.
    """
    global _registered
    if _registered:
        return
    _registered = True
    from .deferred import when_imported
    from .settings import Settings

    try:
        settings = Settings.from_environment()
    except ValueError as error:
        logging.getLogger(LOGGER_NAME).error("kvpool: %s. vLLM is left as it is.", error)
        return
    if settings.level is not None:
        when_imported("vllm.v1.engine.core", lambda: _install(settings))


def _install(settings: Settings) -> None:
    logger = logging.getLogger(LOGGER_NAME)
    try:
        from .gate import check

        differences = check(settings.level or "pool")
        if differences:
            logger.error(
                "kvpool: this vLLM is not one that it knows, and is left as it is: %s", "; ".join(differences)
            )
            return
        from .install import install

        install(settings)
    except Exception as error:
        # One line; where it comes from is for who asks for it.
        text = " ".join(str(error).split())
        logger.error("kvpool: vLLM is left as it is: %s%s", type(error).__name__, f": {text}" if text else "")
        logger.debug("kvpool: the calls that led to it", exc_info=True)
        return
    logger.info("kvpool: KVPOOL_VLLM=%s, events %s", settings.level, settings.events)


__all__ = ["LOGGER_NAME", "register"]


def __dir__() -> list[str]:
    """Lists the public names."""
    return [*__all__]
