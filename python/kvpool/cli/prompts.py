"""Prompts from logs: JSON lines with token ids, text or messages, converted to requests in tokens.

This module owns the fields of a line, the conversion of chats to text, and the requests of a finished
conversation. ``tokenizers`` makes the tokens, from a ``tokenizer.json``, and ``jinja2`` applies the
chat template.
"""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from kvpool import ExtraKeys
from kvpool.cli.problems import UsageError
from kvpool.errors import MissingPackageError, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["Asked", "Texts", "has_prompts", "requests_in"]

#: The first two bytes of gzip data.
_GZIP: Final = b"\x1f\x8b"
#: Maximum number of bytes of a log's first line that are read, to recognise the format of the log.
_FIRST_LINE: Final = 1 << 24

#: Alternative names of each field of a log. If a line has several of them, the first counts.
_IDS: Final = ("prompt_token_ids", "token_ids", "input_ids")
_TEXTS: Final = ("prompt", "text")
_ANSWERS: Final = ("output", "completion", "response")
_CHATS: Final = ("messages", "conversations")
_SALTS: Final = ("cache_salt", "salt")
_ADAPTERS: Final = ("lora_name", "adapter")
#: ShareGPT's names of roles, and the names that chat templates use.
_ROLES: Final = {"human": "user", "gpt": "assistant", "bot": "assistant", "chatgpt": "assistant"}
_NEEDED: Final = "needs one of token_ids, prompt, text, messages"
#: The chat template that is used if a model has none: ChatML.
_CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """One request of a log."""

    #: The arrival time in milliseconds. ``None`` if the log has no times.
    time_ms: float | None
    tokens: list[int]
    output_tokens: int
    #: Number of earlier turns in the conversation of the request.
    turn: int = 0
    #: The salt and the adapter. Requests share blocks only if their salts and adapters are equal.
    extra: ExtraKeys | None = None


class Texts:
    """A tokenizer and its chat template.

    Args:
        path: ``tokenizer.json``, or the folder that contains it.
        template: A file with a chat template; by default that of the folder, or else ChatML.

    Raises:
        MissingPackageError: The package ``tokenizers`` or ``jinja2`` is missing.
        UsageError: A file cannot be read, or has another format.

    """

    def __init__(self, path: Path, template: Path | None) -> None:
        try:
            import jinja2.sandbox
            import tokenizers
        except ImportError as error:
            raise MissingPackageError(
                "prompts as text need tokenizers and jinja2: pip install 'kvpool[prompts]'"
            ) from error
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            raise UsageError(
                f"--tokenizer {path}: no tokenizer.json that can be read", _TOKENIZER_HINT
            ) from None
        except Exception:  # the only class that tokenizers raises
            raise UsageError(
                f"--tokenizer {file}: not in the format of tokenizer.json", _TOKENIZER_HINT
            ) from None
        settings = _settings(file.with_name("tokenizer_config.json"))
        source = _template(file, settings) if template is None else template.read_text(encoding="utf-8")
        #: Whether chats use the default template, because the model has none.
        self.is_made_up = source is None
        self._special = {name: _text_of(settings.get(name)) for name in ("bos_token", "eos_token")}
        self._jinja = jinja2
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda _format: ""}
        try:
            self._template = environment.from_string(_CHATML if source is None else source)
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {path} cannot be used: {error}", "--chat-template FILE"
            ) from None

    def of_text(self, text: str) -> list[int]:
        """Return the tokens of a prompt."""
        return list(self._tokenizer.encode(text).ids)

    def of_chat(self, messages: list[dict[str, Any]], tools: object) -> list[int]:
        """Return the tokens of the prompt that the chat template makes of these messages."""
        try:
            text = self._template.render(
                messages=messages, tools=tools, add_generation_prompt=True, **self._special
            )
        except (self._jinja.TemplateError, ValueError, TypeError) as error:
            raise ValueError(f"the chat template refuses the messages: {error}") from None
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def length(self, text: str) -> int:
        """Return the number of tokens of a model's answer."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


_TOKENIZER_HINT: Final = "give the model's folder, or its tokenizer.json"


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _template(file: Path, settings: dict[str, Any]) -> str | None:
    apart = file.with_name("chat_template.jinja")
    if apart.is_file():
        return apart.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = next((one.get("template") for one in found if one.get("name") == "default"), None)
    return found if isinstance(found, str) else None


def _text_of(token: object) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _refuse(message: str) -> None:
    raise ValueError(message)


def requests_in(lines: Iterable[bytes], texts: Texts | None) -> Iterator[Asked]:
    """Yield the requests of a log, in its order.

    Raises:
        TraceError: A line is not a request. The message has its number.

    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if not isinstance(record, dict):
                raise ValueError("must be a JSON object, such as " + '{"prompt": "..."}')
            body = record.get("body")
            yield from _of_record({**record, **body} if isinstance(body, dict) else record, texts)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            raise TraceError(f"line {number}: no JSON object; a log has one on each line") from None
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from None


def has_prompts(path: Path) -> bool:
    """Return whether the first line of a file has a prompt: token ids, text or messages."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2).startswith(_GZIP)
            line = (gzip.GzipFile(fileobj=file) if packed else file).readline(_FIRST_LINE)
        record = json.loads(line)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        return False
    if isinstance(record, dict) and isinstance(record.get("body"), dict):
        record = record["body"]
    return isinstance(record, dict) and not record.keys().isdisjoint((*_IDS, *_TEXTS, *_CHATS))


def _of_record(record: dict[str, Any], texts: Texts | None) -> Iterator[Asked]:
    when, extra = _time(record), _extra(record)
    ids = next((record[name] for name in _IDS if name in record), None)
    text = next((record[name] for name in _TEXTS if name in record), None)
    if isinstance(text, list):
        ids, text = text, None
    if ids is not None:
        yield Asked(when, _ids(ids), _answer(record, texts), extra=extra)
    elif text is not None:
        tokens = _needed(texts).of_text(_string(text, "prompt"))
        yield Asked(when, tokens, _answer(record, texts), extra=extra)
    elif chat := next((record[name] for name in _CHATS if name in record), None):
        messages, tools = _messages(chat), record.get("tools")
        needed = _needed(texts)
        if messages[-1]["role"] != "assistant":
            yield Asked(when, needed.of_chat(messages, tools), _answer(record, texts), extra=extra)
            return
        # The line of the log has a finished conversation. It becomes one request for each answer of the
        # model.
        answers = [at for at, message in enumerate(messages) if at and message["role"] == "assistant"]
        for turn, at in enumerate(answers):
            output = needed.length(messages[at]["content"])
            yield Asked(when, needed.of_chat(messages[:at], tools), output, turn, extra)
    else:
        raise ValueError(_NEEDED)


def _extra(record: dict[str, Any]) -> ExtraKeys | None:
    """Return the salt and the adapter of a line; ``None`` if it has neither."""
    salt, adapter = _key(record, _SALTS), _key(record, _ADAPTERS)
    return None if salt is None and adapter is None else ExtraKeys(salt=salt, adapter=adapter)


def _key(record: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return, as text, the value of the first of the fields ``names`` that is not missing or empty."""
    name = next((name for name in names if record.get(name) not in (None, "")), None)
    if name is None:
        return None
    value = record[name]
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError(f'"{name}" must be text or a whole number')
    return str(value)


def _needed(texts: Texts | None) -> Texts:
    if texts is None:
        raise ValueError("has text, which needs --tokenizer, the tokenizer.json of the model")
    return texts


def _ids(value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 1 << 32 for one in value):
        raise ValueError("token ids must be a list of whole numbers from 0 to 4294967295")
    return value


def _string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f'"{name}" must be text or a list of token ids')
    return value


def _messages(value: object) -> list[dict[str, Any]]:
    found = []
    for message in value if isinstance(value, list) else []:
        if not isinstance(message, dict):
            break
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if isinstance(content, list):
            # Only the text parts of a message are used. Images and sounds have no text.
            content = "".join(part.get("text") or "" for part in content if isinstance(part, dict))
        if not isinstance(role, str):
            break
        found.append({**message, "role": _ROLES.get(role, role), "content": content or ""})
    if not found or len(found) != len(value):  # type: ignore[arg-type]
        raise ValueError('"messages" must be a list of objects with "role" and "content"')
    return found


def _answer(record: dict[str, Any], texts: Texts | None) -> int:
    """Return the number of tokens of a request's answer. 0 if the log does not contain it."""
    usage = record.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
    for found in (record.get("output_length"), counted):
        if type(found) is int and 0 <= found < 1 << 32:
            return found
    ids = record.get("output_token_ids")
    if isinstance(ids, list):
        return len(ids)
    text = next((record[name] for name in _ANSWERS if isinstance(record.get(name), str)), None)
    return 0 if text is None or texts is None else texts.length(text)


def _time(record: dict[str, Any]) -> float | None:
    """Return the arrival time in milliseconds, from the field ``timestamp`` or ``created`` of a line.

    ``timestamp`` is in milliseconds or ISO 8601, and ``created`` is in seconds.
    """
    found = record.get("timestamp")
    if isinstance(found, str):
        try:
            return datetime.datetime.fromisoformat(found).timestamp() * 1000
        except (ValueError, OverflowError):
            raise ValueError(
                f'"timestamp" is {found[:40]!r}: must be milliseconds, or like 2026-01-31T12:00:00'
            ) from None
    scale = 1.0
    if found is None:
        found, scale = record.get("created"), 1000.0
    if found is None:
        return None
    if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < 1e15:
        raise ValueError(f"the time is {str(found)[:40]}: must be a number, 0 or more")
    return found * scale
