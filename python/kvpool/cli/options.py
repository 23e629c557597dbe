"""The options of ``kvpool replay``: names, ranges and help, by panel of its help page.

An option is ``None`` if it is not given and its default depends on other options, or if one of the modes
refuses it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

import kvpool
from kvpool.cli.capacity import DEFAULT_BLOCKS

__all__ = [
    "AsCsv",
    "AsJson",
    "BlockSize",
    "CapacityBlocks",
    "CapacityGib",
    "Config",
    "Dtype",
    "Eviction",
    "Explain",
    "Hash",
    "HeadDim",
    "Journal",
    "Keep",
    "KvHeads",
    "LatentDim",
    "Layers",
    "Limit",
    "MaxRunning",
    "Mode",
    "Model",
    "NoCheckPrefixes",
    "NoProgress",
    "Png",
    "PrefillTokensPerS",
    "Seed",
    "SessionsAtOnce",
    "Sort",
    "StepMs",
    "StepTokens",
    "Threads",
    "TraceBlockSize",
    "TraceFormat",
    "TracePath",
    "Verify",
    "Watermark",
]


def _option(
    panel: str, text: str, *names: str, default: str | bool = False, words: Iterable[str] = (), **more: Any
) -> Any:
    """Return a Typer option. ``default`` is the text of its default value on the help page.

    ``text`` is the help. It is shown literally, so brackets in it are not markup. Shells offer ``words`` as
    completions.
    """
    known = list(words)

    def complete(incomplete: str) -> list[str]:
        return [word for word in known if word.lower().startswith(incomplete.lower())]

    more |= {"autocompletion": complete} if known else {}
    return typer.Option(*names, help=escape(text), show_default=default, rich_help_panel=panel, **more)


TracePath = Annotated[
    Path | None,
    typer.Argument(
        metavar="TRACE",
        help="Trace file, plain or gzip, or a folder of them; - is stdin, example the trace that ships "
        "with kvpool. Without one, a trace is made up.",
        show_default=False,
    ),
]
_PANEL = "Trace"
Limit = Annotated[int | None, _option(_PANEL, "Replay this many requests.", metavar="N", min=1)]
TraceFormat = Annotated[
    str,
    _option(
        _PANEL,
        f"One of auto, {', '.join(kvpool.traces.trace_formats())}.",
        "--format",
        default=True,
        metavar="NAME",
        words=["auto", *kvpool.traces.trace_formats()],
    ),
]
TraceBlockSize = Annotated[
    int | None,
    _option(
        _PANEL,
        "Tokens that one hash id of the trace stands for.",
        default="what the trace says; else 512, or 16 for bailian",
        metavar="N",
        min=1,
    ),
]
Sort = Annotated[
    bool, _option(_PANEL, "Put requests in order of arrival instead of refusing disorder.", "--sort")
]
SessionsAtOnce = Annotated[
    int | None,
    _option(
        _PANEL,
        "Of kv-cache-tester: sessions that run at a time.",
        default="all begin at once",
        metavar="N",
        min=1,
    ),
]
NoCheckPrefixes = Annotated[
    bool, _option(_PANEL, "Take a trace in which an id follows different ids.", "--no-check-prefixes")
]

_PANEL = "Pool"
Mode = Annotated[
    Literal["engine", "lookup"],
    _option(
        _PANEL,
        "engine: continuous batching in virtual time, as a server does it. lookup: each request looked up "
        "and stored at once, as published hit rates are defined.",
        default=True,
        metavar="MODE",
    ),
]
BlockSize = Annotated[
    int, _option(_PANEL, "Tokens per block of the pool.", default=True, metavar="N", min=1, max=1 << 20)
]
CapacityBlocks = Annotated[
    int | None,
    _option(_PANEL, "Size of the pool in blocks.", default=str(DEFAULT_BLOCKS), metavar="N", min=1),
]
CapacityGib = Annotated[
    float | None, _option(_PANEL, "Size of the pool in GiB; needs a KV shape.", metavar="GIB")
]
Model = Annotated[
    str | None,
    _option(
        _PANEL,
        "KV shape by name; kvpool models lists them.",
        metavar="NAME",
        words=[name.lower() for name in kvpool.models.model_names()],
    ),
]
Config = Annotated[
    Path | None,
    _option(
        _PANEL, "KV shape of any model, from its config.json or the folder that has one.", metavar="FILE"
    ),
]
Dtype = Annotated[
    str | None,
    _option(
        _PANEL,
        "KV shape: element type, fp8 or nvfp4 for instance; of --config what the checkpoint asks for.",
        default="bf16",
        metavar="TYPE",
        words=kvpool.models.DTYPE_BYTES,
    ),
]
Layers = Annotated[int | None, _option(_PANEL, "KV shape: layers.", metavar="N")]
KvHeads = Annotated[int | None, _option(_PANEL, "KV shape: key/value heads per layer.", metavar="N")]
HeadDim = Annotated[int | None, _option(_PANEL, "KV shape: elements per head.", metavar="N")]
LatentDim = Annotated[
    int | None,
    _option(_PANEL, "KV shape of MLA: latent elements per layer, instead of heads.", metavar="N"),
]
Keep = Annotated[
    str,
    _option(
        _PANEL,
        "For hybrid models: the content of windows and states that stays cached for later requests: all, a "
        "checkpoint every N tokens, or junctions, where prompts end and where one departs from another.",
        default=True,
        metavar="N",
    ),
]
Eviction = Annotated[
    str,
    _option(
        _PANEL, "Eviction policy.", default=True, metavar="NAME", words=kvpool.policies.eviction_policies()
    ),
]

_PANEL = "Hashing"
Hash = Annotated[
    str,
    _option(
        _PANEL,
        f"One of {', '.join(kvpool.hashing.hash_algorithms())}. xxh3 and vllm-xxhash are not cryptographic "
        "and need --verify; vllm-xxhash also needs --seed.",
        "--hash",
        default=True,
        metavar="NAME",
        words=kvpool.hashing.hash_algorithms(),
    ),
]
Verify = Annotated[
    str,
    _option(
        _PANEL,
        f"What else is compared on a hit: {', '.join(kvpool.hashing.verify_modes())}.",
        default=True,
        metavar="WHAT",
        words=kvpool.hashing.verify_modes(),
    ),
]
Seed = Annotated[
    str | None,
    _option(
        _PANEL,
        "Seed of xxh3, of vLLM's algorithms (its PYTHONHASHSEED) and of fingerprints.",
        metavar="TEXT",
    ),
]

_PANEL = "Engine mode"
Explain = Annotated[bool, _option(_PANEL, "Say of computed tokens why they had to be.", "--explain")]
Watermark = Annotated[
    float | None,
    _option(_PANEL, "Share of the pool that admissions leave free.", default="0", metavar="SHARE"),
]
MaxRunning = Annotated[
    int | None, _option(_PANEL, "Requests that run at once.", default="256", metavar="N", min=1)
]
StepTokens = Annotated[
    int | None, _option(_PANEL, "Token budget of a step.", default="8192", metavar="N", min=1)
]
StepMs = Annotated[
    float | None, _option(_PANEL, "Virtual time of a step, prefill not counted.", default="20", metavar="MS")
]
PrefillTokensPerS = Annotated[
    float | None, _option(_PANEL, "Speed of prefill in virtual time.", default="50000", metavar="N")
]

_PANEL = "Run"
Threads = Annotated[
    int,
    _option(
        _PANEL,
        "Threads that hash ahead, 0: one per core. Results are the same.",
        default=True,
        metavar="N",
        min=0,
    ),
]
AsJson = Annotated[bool, _option(_PANEL, "Print one JSON object instead of the report.", "--json")]
AsCsv = Annotated[bool, _option(_PANEL, "Print CSV instead of the report, names in the first line.", "--csv")]
Png = Annotated[
    Path | None,
    _option(_PANEL, "Also draw the hit rate over the trace (needs kvpool[plot]).", metavar="FILE"),
]
Journal = Annotated[
    Path | None,
    _option(_PANEL, "Also record what the pool is asked, in a new file for kvpool journal.", metavar="FILE"),
]
NoProgress = Annotated[
    bool, _option(_PANEL, "No progress bar. Without a terminal it is one line at the end.", "--no-progress")
]
