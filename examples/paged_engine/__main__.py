"""The command line: ``python -m examples.paged_engine``, from the repository's root.

Exit code 0: the prompts are generated, or the check has passed. 1: generation failed, or the check
found a difference. 2: bad usage. 130: Ctrl-C. Results go to stdout, everything else to stderr.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import torch
import typer

from examples.paged_engine.check import Workload, check, modes
from examples.paged_engine.checkpoint import (
    AsciiTokenizer,
    CheckpointError,
    ModelConfig,
    Tokenizer,
    load_checkpoint,
    random_weights,
)
from examples.paged_engine.display import check_progress, generate, print_outputs, print_report
from examples.paged_engine.engine import Engine, EngineConfig
from examples.paged_engine.hybrid import Hybrid, HybridConfig, hybrid_weights
from examples.paged_engine.kv_cache import Keep
from examples.paged_engine.model import Llama
from examples.paged_engine.request import RequestTooLargeError
from examples.paged_engine.sampling import Sampling

__all__ = ["main"]

_EXAMPLES: Final = """Examples:

  python -m examples.paged_engine "Once upon a time" "Once upon a hill" --n 2

  python -m examples.paged_engine one two --n 8 --blocks 9 --preempt recompute

  python -m examples.paged_engine "Once upon a time" "Once upon a hill" --model hybrid --in-turn

  python -m examples.paged_engine "Why?" --model ~/SmolLM2-135M --threads 8

  python -m examples.paged_engine --check --json | jq .passed"""

_app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@_app.command(epilog=_EXAMPLES)
def _command(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue.", show_default=False)
    ] = None,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Samples per prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per sample, at most.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the samples; prompts count up from it.")] = 0,
    model: Annotated[
        str,
        typer.Option(
            help="llama or hybrid, whose weights are random and whose text is noise; or a directory with a "
            "Llama checkpoint."
        ),
    ] = "llama",
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of the device's pool.")] = 512,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per block.")] = 16,
    host_blocks: Annotated[int, typer.Option(min=0, help="Blocks of the host tier, for swaps.")] = 1024,
    preempt: Annotated[
        Literal["swap", "recompute"], typer.Option(help="How a sequence gives way when blocks run out.")
    ] = "swap",
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Prefix caching.")] = True,
    keep: Annotated[
        str,
        typer.Option(
            metavar="all|junctions|N",
            help="Of windows and states, where hits can end: anywhere, where prompts turn off, or every N "
            "tokens.",
        ),
    ] = "64",
    in_turn: Annotated[
        bool,
        typer.Option(
            "--in-turn", help="Prompts one after the other: each finds what those before it have left."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="Where the model and its KV are: cpu, cuda, cuda:1.")] = "cpu",
    threads: Annotated[
        int, typer.Option(min=1, help="Threads of the model; more pay off for a larger one.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    run_check: Annotated[
        bool, typer.Option("--check", help="Check that caching and preemption change no bit of any result.")
    ] = False,
    check_prompts: Annotated[int, typer.Option(min=12, help="Prompts of the check.")] = 64,
) -> None:
    """Continue prompts with a small inference engine built on kvpool.

    Prompts are computed together, in paged KV blocks, with chunked prefill,
    prefix caching, parallel sampling with copy-on-write, and preemption by
    swap or recompute. The models have full attention, windows or recurrent
    states. The samples depend only on the seed.
    """
    if run_check == bool(prompts):
        raise typer.BadParameter("give either prompts or --check")
    torch.set_num_threads(threads)
    llama, tokenizer = _load(model, device)
    if prompts is None:
        raise typer.Exit(_check(llama, check_prompts, as_json=as_json))
    llama.choose_tile()
    config = EngineConfig(
        blocks=blocks,
        block_size=block_size,
        host_blocks=host_blocks,
        preempt=preempt,
        prefix_caching=cache,
        keep=_keep(keep),
    )
    with Engine(llama, config) as engine:
        todo = [
            (tokenizer.encode(prompt), Sampling(n, max_tokens, temperature, seed + number))
            for number, prompt in enumerate(prompts)
        ]
        outputs, requests = generate(engine, tokenizer, todo, in_turn=in_turn)
        texts = {key: tokenizer.decode(tokens) for key, tokens in outputs.items()}
        if not as_json:
            names = [group.name for group in llama.groups]
            print_outputs(prompts, texts, requests, names, engine.stats())
            return
        samples = [
            {
                "request": request,
                "sample": sample,
                "tokens": outputs[request, sample],
                "text": texts[request, sample],
            }
            for request, sample in sorted(outputs)
        ]
        hits = [dataclasses.asdict(request.hit) for request in requests if request.hit is not None]
        report = {"samples": samples, "hits": hits, "stats": dataclasses.asdict(engine.stats())}
        typer.echo(json.dumps(report, indent=2))


def _keep(given: str) -> Keep:
    """Parses the value of --keep: ``all``, ``junctions`` or a number of tokens."""
    if given == "all":
        return "all"
    if given == "junctions":
        return "junctions"
    if given.isdecimal() and int(given) > 0:
        return int(given)
    raise typer.BadParameter(
        f"{given!r} is neither all nor junctions nor a number of tokens", param_hint="--keep"
    )


def _load(model: str, device: str) -> tuple[Llama, Tokenizer]:
    """Loads one of the small models with random weights, or a checkpoint."""
    tokenizer: Tokenizer = AsciiTokenizer()
    try:
        if model == "hybrid":
            hybrid = HybridConfig()
            return Hybrid(hybrid, hybrid_weights(hybrid).to(device)), tokenizer
        if model == "llama":
            config = ModelConfig()
            weights = random_weights(config)
        else:
            config, weights, tokenizer = load_checkpoint(Path(model))
        return Llama(config, weights.to(device)), tokenizer
    # torch raises an AssertionError if it was built without support for the device.
    except (RuntimeError, AssertionError) as error:
        raise typer.BadParameter(f"{device}: {str(error).splitlines()[0]}", param_hint="--device") from error


def _check(llama: Llama, prompts: int, *, as_json: bool) -> int:
    workload = Workload.make(llama.config.vocab_size, prompts=prompts)
    with check_progress(shown=not as_json or sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=(len(modes(llama)) + 1) * workload.num_tokens)
        report = check(
            llama, workload, on_tokens=lambda mode, tokens: bar.update(task, description=mode, advance=tokens)
        )
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        print_report(report)
    return 1 if report.problems else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        arguments: The arguments after ``python -m examples.paged_engine``. If ``None``, the arguments
            of the process are used.
    """
    try:
        _app(arguments, prog_name="python -m examples.paged_engine")
    except SystemExit as end:
        return int(end.code or 0)
    except RequestTooLargeError as error:
        return _fail(str(error), "raise --blocks, or lower --max-tokens", 2)
    except CheckpointError as error:
        return _fail(str(error), None, 1)
    except ValueError as error:
        return _fail(str(error), None, 2)
    return 0


def _fail(message: str, hint: str | None, code: int) -> int:
    """Prints an error and a hint. Returns the exit code."""
    print(f"error: {message}", file=sys.stderr)
    if hint is not None:
        print(f"hint: {hint}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
