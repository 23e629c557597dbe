"""Tests ``kvpool trace make``, which makes a trace from prompts and chat logs. Blocks of the trace are
equal if, and only if, the prompts are equal up to their ends.
"""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvpool.cli import main
from tests.command import json_of, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("plain_output")

WORDS = ["<bos>", "user", "assistant", "system", ":", ";", "be", "brief", "one", "two", "three", "yes", "no"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    " {{ message['role'] }} : {{ message['content'] }} ; {% endfor %}"
    "{% if add_generation_prompt %} assistant : {% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Makes the folder of a model, with a tokenizer of a few words and a chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path / "model"
    folder.mkdir()
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<bos>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "bos_token": {"content": "<bos>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def log(tmp_path: Path, *records: Any) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n\n" for record in records))
    return path


def rows(tmp_path: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    out = tmp_path / "made.jsonl"
    assert main(["trace", "make", *map(str, arguments[:1]), str(out), *map(str, arguments[1:])]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def length(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("name", ["token_ids", "prompt_token_ids", "input_ids", "prompt"])
def test_token_ids_become_blocks_that_are_equal_where_prompts_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4], [1, 2, 9, 4], [9, 9, 3, 4]]
    path = log(tmp_path, *({name: prompt} for prompt in prompts))
    made = rows(tmp_path, path, "--block-size", "2", "--rate-per-s", "4")
    assert [row["hash_ids"] for row in made] == [[0, 1], [0, 1], [0, 2], [3, 4]]
    assert [row["timestamp"] for row in made] == [0.0, 250.0, 500.0, 750.0]
    assert [row["input_length"] for row in made] == [5, 4, 4, 4]
    capsys.readouterr()
    stats = json_of(capsys, "trace", "stats", tmp_path / "made.jsonl")
    assert (stats["format"], stats["requests"], stats["block_tokens"]) == ("block-rows", 4, 2)
    assert stats["unique_blocks"] == 5
    sized = json_of(
        capsys, "size", tmp_path / "made.jsonl", "--capacities", "100%", "--policies", "lru", "--no-progress"
    )
    assert sized["policies"][0]["hits"][0]["block_hit_rate"] == 3 / 8


def test_blocks_are_equal_only_if_salts_and_adapters_are(tmp_path: Path) -> None:
    keys: list[dict[str, Any]] = [
        {},
        {"cache_salt": None, "adapter": ""},
        {"cache_salt": "a"},
        {"salt": "a"},
        {"cache_salt": "b"},
        {"lora_name": "a"},
        {"adapter": "a"},
        {"adapter": 1},
        {"lora_name": "a", "salt": "a"},
    ]
    path = log(tmp_path, *({"token_ids": [1, 2], **key} for key in keys))
    made = rows(tmp_path, path, "--block-size", "2")
    assert [row["hash_ids"] for row in made] == [[0], [0], [1], [1], [2], [3], [3], [4], [5]]


def test_the_salt_of_a_batch_file_applies_to_each_turn(tmp_path: Path, model: Path) -> None:
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "yes"}] * 2
    records = [{"body": {"messages": chat, "cache_salt": salt}} for salt in ("a", "b", "a")]
    made = rows(tmp_path, log(tmp_path, *records), "--tokenizer", model, "--block-size", "1")
    for salted in (made[0::3], made[1::3], made[2::3]):
        assert len(salted) == 2
    assert made[0]["hash_ids"] == made[2]["hash_ids"]
    assert made[3]["hash_ids"] == made[5]["hash_ids"]
    assert not set(made[3]["hash_ids"]) & set(made[4]["hash_ids"])


def test_times_and_answers_are_taken_from_the_log(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        log(
            tmp_path,
            {"token_ids": [1, 2], "created": 1_700_000_002, "usage": {"completion_tokens": 7}},
            {"body": {"prompt": [3, 4]}, "timestamp": "2023-11-14T22:13:21+00:00", "output_length": 3},
            {"token_ids": [5, 6], "timestamp": 1_700_000_000_500, "output_token_ids": [1, 2, 3, 4]},
        ),
        "--block-size",
        "2",
    )
    assert [(row["timestamp"], row["output_length"]) for row in made] == [
        (1_700_000_000_500, 4),
        (1_700_000_001_000, 3),
        (1_700_000_002_000, 7),
    ]


def test_text_equals_the_tokenizers_output(tmp_path: Path, model: Path) -> None:
    path = log(tmp_path, {"prompt": "be brief one two"}, {"text": "be brief three", "output": "yes no"})
    made = rows(tmp_path, path, "--tokenizer", model, "--block-size", "2")
    assert [(row["input_length"], row["output_length"]) for row in made] == [(4, 0), (3, 2)]
    assert made[0]["hash_ids"][0] == made[1]["hash_ids"][0]


def test_a_chat_is_written_by_the_template_and_continues_its_prefix(tmp_path: Path, model: Path) -> None:
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "yes"}]
    more = [*turns, {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]}]
    path = log(tmp_path, {"messages": turns[:1]}, {"messages": more})
    made = rows(tmp_path, path, "--tokenizer", model, "--block-size", "1")
    # The template turns the first prompt into: <bos> user : one ; assistant :
    assert made[0]["input_length"] == length("<bos> user : one ; assistant :")
    assert made[1]["hash_ids"][: made[0]["input_length"]] == made[0]["hash_ids"]
    assert made[1]["input_length"] == length("<bos> user : one ; assistant : yes ; user : two ; assistant :")


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_a_finished_conversation_is_a_request_for_each_answer(tmp_path: Path, model: Path, form: str) -> None:
    said = [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "yes"),
        ("user", "two"),
        ("assistant", "no no"),
    ]
    names = {"user": "human", "assistant": "gpt"} if form == "conversations" else {}
    keys = ("from", "value") if form == "conversations" else ("role", "content")
    chat = [dict(zip(keys, (names.get(role, role), text), strict=True)) for role, text in said]
    path = log(tmp_path, {form: chat}, {form: chat})
    made = rows(
        tmp_path, path, "--tokenizer", model, "--block-size", "1", "--turn-s", "9", "--rate-per-s", "2"
    )
    assert [(row["timestamp"], row["output_length"]) for row in made] == [
        (0, 1),
        (500, 1),
        (9000, 2),
        (9500, 2),
    ]
    assert made[0]["hash_ids"] == made[1]["hash_ids"] == made[2]["hash_ids"][: made[0]["input_length"]]


def test_without_a_template_a_chat_is_chatml_and_that_is_said(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "tokenizer_config.json").unlink()
    path = log(tmp_path, {"messages": [{"role": "user", "content": "one"}]})
    (row,) = rows(tmp_path, path, "--tokenizer", model / "tokenizer.json", "--block-size", "1")
    assert row["input_length"] == length("<|im_start|>user one<|im_end|> <|im_start|>assistant")
    assert "chats are written as ChatML" in capsys.readouterr().err
    (model / "chat_template.jinja").write_text(TEMPLATE)
    (row,) = rows(tmp_path, path, "--tokenizer", model, "--block-size", "1")
    assert row["input_length"] == length("user : one ; assistant :")
    assert "ChatML" not in capsys.readouterr().err


def test_a_template_runs_in_a_sandbox(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "bad.jinja"
    template.write_text("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    path = log(tmp_path, {"messages": [{"role": "user", "content": "one"}]})
    arguments = [str(path), str(tmp_path / "o"), "--tokenizer", str(model), "--chat-template", str(template)]
    assert main(["trace", "make", *arguments]) == 1
    assert "the chat template refuses the messages" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_packed_logs_standard_input_and_output(tmp_path: Path) -> None:
    text = b'{"token_ids": [1, 2]}\n'
    assert run("trace", "make", "-", "-", "--block-size", "2", stdin=text).stdout.count(b"\n") == 1
    (tmp_path / "log.gz").write_bytes(gzip.compress(text))
    assert (
        main(["trace", "make", str(tmp_path / "log.gz"), str(tmp_path / "t.jsonl.gz"), "--block-size", "2"])
        == 0
    )
    assert json.loads(gzip.decompress((tmp_path / "t.jsonl.gz").read_bytes()))["hash_ids"] == [0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1, 2]", "line 2: must be a JSON object"),
        ("{", "line 2: no JSON object"),
        ("[" * 100_000, "line 2: no JSON object"),
        ("\ufffd\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "line 2: no JSON object"),
        ("{}", "line 2: needs one of token_ids"),
        ('{"token_ids": [1, -1]}', "line 2: token ids must be a list of whole numbers from 0 to 4294967295"),
        ('{"token_ids": [1, 1.5]}', "line 2: token ids must be"),
        ('{"token_ids": "1 2"}', "line 2: token ids must be"),
        ('{"token_ids": [1], "timestamp": "noon"}', "line 2: \"timestamp\" is 'noon': must be milliseconds"),
        ('{"token_ids": [1], "timestamp": -1}', "line 2: the time is -1"),
        ('{"prompt": "text"}', "line 2: has text, which needs --tokenizer"),
        ('{"messages": [{"role": "user"}]}', "line 2: has text, which needs --tokenizer"),
        ('{"messages": ["hi"]}', 'line 2: "messages" must be a list of objects'),
        ('{"messages": 7}', 'line 2: "messages" must be a list of objects'),
        ('{"token_ids": [1], "cache_salt": ["a"]}', 'line 2: "cache_salt" must be text or a whole number'),
        ('{"token_ids": [1], "usage": 7}', ""),
        ('{"token_ids": [1], "created": 5}', "some lines have a time and others have none"),
    ],
)
def test_a_line_that_is_no_request_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    path, out = tmp_path / "log.jsonl", tmp_path / "o"
    path.write_text('{"token_ids": [1, 2]}\n' + line + "\n", encoding="latin-1")
    code = main(["trace", "make", str(path), str(out)])
    error = capsys.readouterr().err
    assert code == (1 if words else 0), error
    assert words in error
    assert out.exists() != bool(words), "a failed call leaves no file"


def test_without_the_packages_it_is_said_what_to_install(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    path = log(tmp_path, {"prompt": "one"})
    assert main(["trace", "make", str(path), str(tmp_path / "o"), "--tokenizer", str(model)]) == 1
    assert "pip install 'kvpool[prompts]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["prompt", "token_ids", "messages"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_log_in_the_place_of_a_trace_gets_the_hint_of_trace_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, packed: bool
) -> None:
    path = log(tmp_path, {name: [1]})
    if packed:
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert main(["size", str(path)]) == 1
    error = capsys.readouterr().err
    assert "is missing" in error
    assert f"hint: these lines have prompts: kvpool trace make {path} trace.jsonl" in " ".join(error.split())
    path.write_text('{"timestamp": 1}\n')
    assert main(["size", str(path)]) == 1
    assert "hint: kvpool generate" in capsys.readouterr().err


def test_it_does_not_write_over_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, {"token_ids": [1]})
    before = path.read_bytes()
    assert main(["trace", "make", str(path), str(path)]) == 2
    assert path.read_bytes() == before
