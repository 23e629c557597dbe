"""kvpool inside vLLM: a general plug-in, opt-in by environment, that patches no file of vLLM's.

``KVPOOL_VLLM`` says how much of vLLM's KV-cache management is kvpool's:

========  ==========================================================================================================
unset     nothing: vLLM is as it was
pool      the block pool and the hashing of prompts; vLLM's own managers over them
manager   also the calls of vLLM's manager for models with one group of full attention: a lookup, an allocation, a
          decode step is one call into Rust. Other configurations stay with vLLM's managers over the pool
shadow    vLLM decides, kvpool does everything beside it, and the first difference is reported
========  ==========================================================================================================

vLLM finds :func:`register` through the entry point ``vllm.general_plugins`` in every process of its engine. What it does
is decided in :mod:`.install`; what it needs of vLLM is listed in :mod:`.signatures` and checked by :mod:`.gate`. On
anything unknown it logs one line that says what differs, and leaves vLLM as it is; no exception leaves it.

See ``docs/vllm.md``.
"""

from __future__ import annotations

import logging

#: Logs of the plug-in; vLLM shows what is below its own name.
LOGGER_NAME = "vllm.kvpool"

_registered = False


def register() -> None:
    """Puts kvpool into vLLM as ``KVPOOL_VLLM`` says. Called by vLLM in each of its processes; once is enough for each."""
    global _registered
    if _registered:
        return
    _registered = True
    logger = logging.getLogger(LOGGER_NAME)
    try:
        from .settings import Settings

        settings = Settings.from_environment()
    except ValueError as error:
        logger.error("kvpool: %s. vLLM is left as it is.", error)
        return
    if settings.level is None:
        return
    try:
        from .gate import check

        differences = check(settings.level)
        if differences:
            logger.error("kvpool: this vLLM is not one that it knows, and is left as it is: %s", "; ".join(differences))
            return
        from .install import install

        install(settings)
    except Exception:
        logger.exception("kvpool: vLLM is left as it is")
        return
    logger.info("kvpool: KVPOOL_VLLM=%s, events %s", settings.level, settings.events)
