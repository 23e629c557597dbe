#!/usr/bin/env python3
"""Writes the bytes of KV events as test vectors. The bytes follow only the format in
``docs/events.md``; the tool uses no code of the package.

    python tools/make_event_vectors.py          # writes rust/kvpool-observe/tests/publish/vectors.json
    python tools/make_event_vectors.py --check  # compares the file; make lint runs this

Map headers are written like those of vLLM's packer: the header of a ``BlockStored`` always has its long
form.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).resolve().parents[1] / "rust/kvpool-observe/tests/publish/vectors.json"

TIME: Final = 1700000000.5
FIRST, SECOND, PARENT = 0xFEDCBA9876543210, 0xDEADBEEF, 0x0123456789ABCDEF
TOKENS: Final = [1, 2, 3, 4, 100000, 6, 7, 8]


class LongMap(dict[str, Any]):
    """A map that is packed with the longer MessagePack header, which has two bytes of length."""


def pack(value: Any) -> bytes:
    """Packs a value as MessagePack in the shortest form. Only a LongMap has a longer header."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            raise TypeError("events have no booleans")
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case int():
            return pack_int(value)
        case str():
            data = value.encode()
            if len(data) < 32:
                return bytes([0xA0 | len(data)]) + data
            return b"\xd9" + bytes([len(data)]) + data
        case bytes():
            return b"\xc4" + bytes([len(value)]) + value
        case list() | tuple():
            head = bytes([0x90 | len(value)]) if len(value) < 16 else b"\xdc" + struct.pack(">H", len(value))
            return head + b"".join(map(pack, value))
        case LongMap():
            return b"\xde" + struct.pack(">H", len(value)) + pack_entries(value)
        case dict():
            return bytes([0x80 | len(value)]) + pack_entries(value)
    raise TypeError(f"events have no {type(value).__name__}")


def pack_entries(value: dict[str, Any]) -> bytes:
    return b"".join(pack(key) + pack(entry) for key, entry in value.items())


def pack_int(value: int) -> bytes:
    if value < 0:
        for bound, tag, form in (
            (32, None, "b"),
            (1 << 7, 0xD0, "b"),
            (1 << 15, 0xD1, "h"),
            (1 << 31, 0xD2, "i"),
        ):
            if value >= -bound:
                return (b"" if tag is None else bytes([tag])) + struct.pack(">" + form, value)
        return b"\xd3" + struct.pack(">q", value)
    if value < 0x80:
        return bytes([value])
    for bits, tag, form in ((8, 0xCC, "B"), (16, 0xCD, "H"), (32, 0xCE, "I")):
        if value < 1 << bits:
            return bytes([tag]) + struct.pack(">" + form, value)
    return b"\xcf" + struct.pack(">Q", value)


def stored(hashes: list[Any], parent: Any, tokens: list[int], medium: str, **more: Any) -> LongMap:
    """Makes the map of a BlockStored event as vLLM does: eight keys that are always present, followed
    by the optional keys in vLLM's order.
    """
    event = LongMap(
        type="BlockStored",
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=4,
        lora_id=more.pop("lora_id", None),
        medium=medium,
        lora_name=more.pop("lora_name", None),
    )
    event.update(more)
    return event


REMOVED: Final = {"type": "BlockRemoved", "block_hashes": [FIRST, SECOND], "medium": "GPU", "group_idx": 0}
CLEARED: Final = {"type": "AllBlocksCleared"}
FULL: Final = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def vectors() -> dict[str, str]:
    minimal = stored([FIRST], None, [*TOKENS[:3], 4], "CPU")
    whole = stored([FIRST, SECOND], PARENT, TOKENS, "GPU", extra_keys=[None, None], **FULL)
    far = stored(
        [FIRST],
        PARENT,
        TOKENS[:4],
        "STORAGE",
        lora_id=7,
        lora_name="sql",
        extra_keys=[["sql", ["mmhash0", 0], "salt"]],
        **FULL,
        locality="REMOTE",
        ownership="mooncake",
        session_id="s1",
    )
    window = stored([SECOND], None, TOKENS[:4], "GPU", group_idx=300, kv_cache_spec_kind="sliding_window")
    window["kv_cache_spec_sliding_window"] = 4096
    sglang = {
        "type": "BlockStored",
        "block_hashes": [signed(FIRST), SECOND],
        "parent_block_hash": PARENT,
        "token_ids": TOKENS,
        "block_size": 4,
        "lora_id": None,
        "medium": "CPU_PINNED",
        "cache_salt": "salt",
        "session_id": "s1",
        "lora_name": "sql",
    }
    legacy = [
        "BlockStored",
        [FIRST, SECOND],
        PARENT,
        TOKENS,
        4,
        None,
        "GPU",
        None,
        [None, None],
        0,
        "full_attention",
    ]
    batches: dict[str, list[Any]] = {
        "stored_vllm_like": [TIME, [whole], 0],
        "stored_min_cpu": [TIME, [minimal], 0],
        "stored_lora_mm_salt_storage": [TIME, [far], 1],
        "removed_gpu": [TIME, [REMOVED], 0],
        "cleared": [TIME, [CLEARED], 0],
        "stored_bytes_hash": [TIME, [stored([bytes(range(32))], None, TOKENS[:4], "GPU")], 0],
        "mixed": [TIME, [REMOVED, minimal, CLEARED], 0],
        "legacy_stored": [TIME, [[*legacy, None]], 0],
        "legacy_removed": [TIME, [["BlockRemoved", [FIRST, SECOND], "GPU", 0]], 0],
        "legacy_cleared": [TIME, [["AllBlocksCleared"]], 0],
        "stored_window": [TIME, [window], 70000],
        "heartbeat": [TIME, [], 0],
        "sglang_stored": [TIME, [sglang], 3],
        "sglang_stored_plain": [
            TIME,
            [{key: sglang[key] for key in list(sglang)[:6]} | {"medium": "EXTERNAL"}],
            0,
        ],
        "sglang_removed": [
            TIME,
            [{"type": "BlockRemoved", "block_hashes": [signed(FIRST)], "medium": "DISK"}],
            0,
        ],
        "sglang_legacy_stored": [
            TIME,
            [["BlockStored", [signed(FIRST)], None, TOKENS[:4], 4, None, "GPU"]],
            0,
        ],
        "sglang_legacy_removed": [TIME, [["BlockRemoved", [signed(FIRST)], "GPU"]], 0],
    }
    return {name: pack(batch).hex() for name, batch in batches.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Vectors of the bytes of KV events.")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    text = json.dumps(vectors(), indent=1) + "\n"
    if not arguments.check:
        FILE.write_text(text)
        return 0
    if FILE.read_text() != text:
        print(f"{FILE.name} is not what tools/make_event_vectors.py writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
