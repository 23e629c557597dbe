"""tools/vllm_check.py without vLLM: what it compares, what it does not let pass, how it runs an engine."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tools import vllm_check
from tools.vllm import check_compare, check_engine
from tools.vllm.check_compare import EXACT, STOCK, Engine, Event, Record

if TYPE_CHECKING:
    from pathlib import Path


def stored(*hashes: int, group: int = 0) -> Event:
    return {"type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": None, "group_idx": group}


def removed(*hashes: int, group: int = 0) -> Event:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "group_idx": group}


CLEARED: Event = {"type": "AllBlocksCleared"}


def make_record() -> Record:
    """Two requests computed blocks 2 and 3 at once: stock tells of both copies."""
    return Record(
        tokens=[[[5, 6]], [[7]], [[8, 9]]],
        cached=[0, 32, 0],
        preemptions=3,
        batches=[[stored(1, 2, 3)], [stored(2, 3)], [removed(3)], [removed(3), removed(1)], [CLEARED]],
        seconds=1.0,
    )


def make_exact() -> Record:
    record = make_record()
    record.batches = [[stored(1, 2, 3)], [], [], [removed(3), removed(1)], [CLEARED]]
    return record


# --- Comparing --------------------------------------------------------------------------------------------------------


def test_counted_changes() -> None:
    found = check_compare.changes(make_record().events)
    assert len(found) == 9
    assert check_compare.counted(found) == check_compare.changes(make_exact().events)
    other_group = check_compare.changes([stored(1), stored(1, group=1), removed(1)])
    assert check_compare.counted(other_group) == other_group  # a hash of another group is another block
    again = check_compare.changes([stored(1), CLEARED, stored(1)])
    assert check_compare.counted(again) == again


def test_inconsistencies() -> None:
    assert check_compare.inconsistencies(check_compare.changes(make_exact().events)) == []
    assert check_compare.inconsistencies(check_compare.changes(make_record().events)) == [
        "2 hashes are stored while they are there",
        "1 hashes are removed that are not there",
    ]


def test_same_events() -> None:
    assert check_compare.compare_events(make_record(), make_record(), STOCK) == []
    assert check_compare.compare_events(make_record(), make_exact(), EXACT) == []


def test_stock_events_are_compared_one_by_one() -> None:
    swapped = make_record()
    swapped.batches[3].reverse()
    assert check_compare.compare_events(make_record(), swapped, STOCK) == ["event batch 3 differs (5 batches, stock 5)"]
    parent = make_record()
    parent.batches[1][0]["parent_block_hash"] = 1
    assert check_compare.compare_events(make_record(), parent, STOCK) == ["event batch 1 differs (5 batches, stock 5)"]
    short = make_record()
    del short.batches[-1]
    assert check_compare.compare_events(make_record(), short, STOCK) == ["event batch 4 differs (4 batches, stock 5)"]


def test_exact_events_that_are_not() -> None:
    assert check_compare.compare_events(make_record(), make_record(), EXACT) == [
        "2 hashes are stored while they are there",
        "1 hashes are removed that are not there",
        "events, removed: 0 of stock's are missing, 1 are not stock's",
        "events, stored: 0 of stock's are missing, 2 are not stock's",
    ]
    lost = make_exact()
    lost.batches[3].pop()
    assert check_compare.compare_events(make_record(), lost, EXACT) == [
        "events, removed: 1 of stock's are missing, 0 are not stock's"
    ]
    never_cleared = make_exact()
    never_cleared.batches.pop()
    assert check_compare.compare_events(make_record(), never_cleared, EXACT) == [
        "events, cleared: 1 of stock's are missing, 0 are not stock's"
    ]


def test_tokens_cached_tokens_and_preemptions() -> None:
    assert check_compare.compare_tokens(make_record(), make_record()) == []
    one = make_record()
    one.tokens[1][0][0] = 8
    assert check_compare.compare_tokens(make_record(), one) == [
        "1 of 3 prompts got other tokens, the first of them prompt 1"
    ]
    fewer = make_record()
    del fewer.tokens[2], fewer.cached[2]
    assert check_compare.compare_tokens(make_record(), fewer) == [
        "1 of 3 prompts got other tokens, the first of them prompt 2",
        "cached tokens of prompt 2: [], stock [0]",
    ]
    other = make_record()
    other.cached[1], other.preemptions = 16, 4
    assert check_compare.compare_tokens(make_record(), other) == [
        "cached tokens of prompt 1: [16], stock [32]",
        "4 preemptions, stock 3",
    ]


def test_a_run_of_stock_that_shows_nothing() -> None:
    assert check_compare.weaknesses(make_record()) == []
    empty = Record(tokens=[[[]]], cached=[0], preemptions=0, batches=[], seconds=0.0)
    assert [text.split(":")[0] for text in check_compare.weaknesses(empty)] == [
        "no tokens were generated",
        "nothing was preempted",
        "no prompt had cached tokens",
        "no KV events of blocks stored and removed",
    ]
    same = make_record()
    same.tokens = [[[1, 2]]] * 3
    assert "many prompts got the same tokens" in check_compare.weaknesses(same)[0]


def engines() -> list[Engine]:
    stock = Engine(STOCK, STOCK, {"n=1": make_record()})
    pool = Engine("pool", EXACT, {"n=1": make_exact()}, replaced=["BlockPool"])
    return [stock, pool, Engine("pool", STOCK, {"n=1": make_record()}, replaced=["BlockPool"])]


def test_verdict() -> None:
    assert check_compare.verdict(engines()) == []
    stock, pool, plain = engines()
    plain.scenarios["n=1"].preemptions = 9
    assert check_compare.verdict([stock, pool, plain]) == ["pool, events=stock, n=1: 9 preemptions, stock 3"]
    pool.replaced = []
    del plain.scenarios["n=1"]
    stock.replaced = ["BlockPool"]
    assert check_compare.verdict([stock, pool, plain]) == [
        "stock is not stock: kvpool is at BlockPool",
        "pool: kvpool left vLLM as it is: this compared stock with stock",
        "pool, events=stock, n=1: not run",
    ]
    pool.broken = "exited with 1"
    assert "pool: exited with 1" in check_compare.verdict([stock, pool])


def test_record_from_json() -> None:
    record = make_record()
    assert Record.from_json(json.loads(json.dumps(vars(record)))) == record
    with pytest.raises(TypeError):
        Record.from_json({"tokens": []})


# --- What the engine is given -----------------------------------------------------------------------------------------


def test_prompts() -> None:
    prompts = check_engine.make_prompts(200)
    assert prompts == check_engine.make_prompts(200)
    assert check_engine.make_prompts(40) == prompts[:40]
    assert max(map(len, prompts)) + check_engine.OUTPUTS <= check_engine.MAX_LENGTH
    assert max(max(prompt) for prompt in prompts) < check_engine.VOCABULARY
    whole = [tuple(prompt[: check_engine.BLOCK_SIZE]) for prompt in prompts]
    assert len(set(whole)) < len(whole) / 2  # beginnings are shared
    assert any(one == other for place, one in enumerate(prompts) for other in prompts[:place])


def test_sampling() -> None:
    greedy, several = (check_engine.sampling(scenario, 50) for scenario in check_engine.SCENARIOS)
    assert {one["temperature"] for one in greedy} == {0.0}
    assert {one["n"] for one in several} == {4}
    assert all(one["temperature"] > 0 for one in several)
    assert all(0 < one["max_tokens"] <= check_engine.OUTPUTS for one in (*greedy, *several))


@pytest.mark.parametrize("model", list(check_engine.MODELS))
def test_the_model_has_the_weights_of_its_config(model: str) -> None:
    config, shapes = check_engine.config(model), check_engine.shapes(model)
    assert config.get("layer_types", ["full_attention"] * check_engine.LAYERS) == check_engine.MODELS[model]
    assert shapes["model.embed_tokens.weight"] == (config["vocab_size"], config["hidden_size"])
    # A Llama's layers are all alike; of the other model one has a convolution, one attention.
    assert len(shapes) == (2 + 8 + 11 if model == "states" else 3 + 9 * config["num_hidden_layers"])
    assert config["hidden_size"] % config["num_attention_heads"] == 0


# --- Running engines --------------------------------------------------------------------------------------------------


def test_planned_runs() -> None:
    names = [engine.name for engine in vllm_check.planned(["manager", "shadow", "manager"])]
    assert names == ["stock", "manager", "shadow, events=stock", "manager, events=stock"]
    assert [engine.name for engine in vllm_check.planned([STOCK])] == ["stock"]


def test_environment_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPOOL_VLLM", "manager")
    monkeypatch.setenv("VLLM_PLUGINS", "none")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    settings = {"environment": {"HF_HUB_OFFLINE": "1"}}
    stock = vllm_check.child_environment(Engine(STOCK, STOCK), settings)
    assert not {"KVPOOL_VLLM", "KVPOOL_VLLM_EVENTS", "VLLM_PLUGINS", "PYTHONPATH"} & set(stock)
    assert stock["HF_HUB_OFFLINE"] == "1"
    pool = vllm_check.child_environment(Engine("pool", EXACT), settings)
    assert (pool["KVPOOL_VLLM"], pool["KVPOOL_VLLM_EVENTS"]) == ("pool", "exact")


CHILD = """#!{python}
import json, os, sys
options = dict(zip(sys.argv[3::2], sys.argv[4::2]))
level = os.environ.get("KVPOOL_VLLM", "stock")
exact = os.environ.get("KVPOOL_VLLM_EVENTS") == "exact"
found = json.loads(open({source!r}).read())["exact" if exact else "stock"]
if level == {breaks!r}:
    print("Traceback: it broke"); sys.exit(3)
if level == {differs!r}:
    found["tokens"][0][0][0] += 1
replaced = [] if level == "stock" else ["BlockPool"]
result = {{"vllm": "0.32.0", "replaced": replaced, "scenarios": {{"n=1": found}}}}
if level != {silent!r}:
    open(options["--result"], "w").write(json.dumps(result))
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    return tmp_path / "venv"


def make_venv(venv: Path, breaks: str = "", differs: str = "", silent: str = "") -> None:
    """An environment whose Python runs no engine, but writes what one would have done."""
    venv.mkdir()
    source, python = venv / "records.json", venv / "python"
    source.write_text(json.dumps({"stock": vars(make_record()), "exact": vars(make_exact())}))
    names = {"breaks": breaks, "differs": differs, "silent": silent}
    python.write_text(CHILD.format(python=sys.executable, source=str(source), **names))
    python.chmod(0o755)
    (venv / "kvpool.json").write_text(json.dumps({"python": str(python), "tests": "", "environment": {}}))


def run(venv: Path, *arguments: str, model: str = "full") -> int:
    return vllm_check.main(["--venv", str(venv), "--model", model, *arguments])


def test_every_model_is_compared_with_its_own_stock(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv, differs="pool")
    assert vllm_check.main(["--venv", str(venv), "--levels", "pool"]) == 1
    shown = capsys.readouterr()
    for model, layers in check_engine.MODELS.items():
        assert f"{model}: pool, n=1: 1 of 3 prompts got other tokens" in shown.err
        assert f"layers: {', '.join(layers)}" in shown.out


def test_levels_that_agree(venv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv)
    report = tmp_path / "out" / "report.json"
    assert run(venv, "--levels", "pool", "--json", str(report), "--logs", str(tmp_path / "logs")) == 0
    shown = capsys.readouterr()
    assert "2 runs did what stock did" in shown.err
    assert "BlockPool" in shown.out
    found = json.loads(report.read_text())
    assert found["problems"] == []
    assert [engine["level"] for engine in found["engines"]["full"]] == ["stock", "pool", "pool"]
    logs = sorted(file.name for file in (tmp_path / "logs").iterdir())
    assert logs == [
        "full-pool-exact.log",
        "full-pool-stock.log",
        "full-stock-stock.log",
    ]


def test_a_level_that_differs(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv, differs="pool")
    assert run(venv, "--levels", "pool") == 1
    assert "pool, n=1: 1 of 3 prompts got other tokens" in capsys.readouterr().err


def test_a_level_that_breaks(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv, breaks="shadow")
    assert run(venv, "--levels", "shadow") == 1
    assert "shadow, events=stock: exited with 3\nTraceback: it broke" in capsys.readouterr().err


def test_a_level_that_leaves_no_record(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv, silent="shadow")
    assert run(venv, "--levels", "shadow") == 1
    assert "left no record" in capsys.readouterr().err


def test_stock_that_breaks_ends_it(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_venv(venv, breaks="stock")
    assert run(venv) == 1
    assert "vllm_check: stock: exited with 3" in capsys.readouterr().err


def test_no_environment(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(venv) == 1
    assert "run tools/vllm_env.py (make vllm-env) first" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--prompts", "0"], ["--blocks", "3"], ["--timeout", "0"], ["--levels", "x"]])
def test_bad_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as failure:
        vllm_check.main(arguments)
    assert failure.value.code == 2


def test_recorder_keeps_fields() -> None:
    class Stored:
        __struct_fields__ = ("block_hashes", "group_idx")
        block_hashes: tuple[int, ...] = (1,)
        group_idx = 0

    recorder = check_engine.Recorder()
    batch: Any = type("Batch", (), {"events": [Stored()], "ts": 1.0})()
    recorder.publish(batch)
    assert recorder.batches == [[{"type": "Stored", "block_hashes": (1,), "group_idx": 0}]]
