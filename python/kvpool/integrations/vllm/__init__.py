"""kvpool inside vLLM, as a general plug-in. An environment variable enables it.

The plug-in changes no file of vLLM. ``KVPOOL_VLLM`` selects which parts of vLLM's KV-cache management
kvpool replaces:

- unset: none. vLLM is unchanged.
- ``pool``: the block pool and the hashing of prompts. vLLM's own managers use them.
- ``manager``: in addition, the methods of vLLM's manager. Each lookup, allocation and decode step is
  one call into Rust, for any KV-cache groups. In a few configurations, vLLM's managers remain.
- ``shadow``: vLLM makes all decisions. kvpool makes the same calls in parallel, and the first
  difference is reported.

vLLM finds :func:`register` through the entry point ``vllm.general_plugins`` in every process of its
engine. :mod:`.install` replaces the parts. :mod:`.signatures` lists the parts of vLLM on which the
plug-in relies, and :mod:`.gate` checks them. If the installed vLLM differs, the plug-in logs the
differences in one line, and leaves vLLM
unchanged. It never raises an exception. See ``docs/vllm.md``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .settings import Settings

#: The logger of the plug-in. Its name is below vLLM's own, because vLLM shows only such loggers.
LOGGER_NAME = "vllm.kvpool"

_registered = False


def register() -> None:
    """Installs kvpool in vLLM at the level that ``KVPOOL_VLLM`` names.

    vLLM calls this function in each of its processes. Further calls in the same process do nothing. A
    process that never imports vLLM's engine, such as a worker, only reads the variable.
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
        # Logs one line; the traceback is logged at level debug.
        text = " ".join(str(error).split())
        logger.error("kvpool: vLLM is left as it is: %s%s", type(error).__name__, f": {text}" if text else "")
        logger.debug("kvpool: the calls that led to it", exc_info=True)
        return
    logger.info("kvpool: KVPOOL_VLLM=%s, events %s", settings.level, settings.events)


__all__ = ["LOGGER_NAME", "register"]


def __dir__() -> list[str]:
    return [*__all__]
