#!/usr/bin/env python3
"""Makes rust/kvpool-hash/tests/data/hash_vectors.json, the published vectors of kvpool's block hashes.

It implements design/hash-specification.md and shares no code with the Rust implementation: hashlib,
pickle, cbor2, xxhash and blake3 do the work, and SipHash is implemented below. vLLM's digests are made
like in vLLM, by pickling or CBOR-encoding Python objects.

    pip install cbor2 xxhash blake3
    python tools/make_hash_vectors.py            # writes the file
    python tools/make_hash_vectors.py --check    # compares it, writes nothing, exits 1 on a difference

The output depends only on this file: it uses no randomness and no environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import blake3
import cbor2
import xxhash

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUT = Path(__file__).resolve().parent.parent / "rust/kvpool-hash/tests/data/hash_vectors.json"
MASK = (1 << 64) - 1


def siphash13_128(key: bytes, message: bytes) -> bytes:
    """Returns the 16 bytes of SipHash-1-3 with 128 bits. They are two words, each little endian, first
    word first.
    """
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rotl(x: int, n: int) -> int:
        return ((x << n) | (x >> (64 - n))) & MASK

    def rounds(n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotl(v[1], 13) ^ v[0]
            v[0] = rotl(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotl(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)

    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) & 0xFF])
    for i in range(0, whole + 8, 8):
        word = int.from_bytes(last if i == whole else message[i : i + 8], "little")
        v[3] ^= word
        rounds(1)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(3)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(3)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little") + second.to_bytes(8, "little")


# --- Native encoding


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def optional(data: bytes | None) -> bytes:
    return b"\0" if data is None else b"\1" + u64(len(data)) + data


def field(extra: dict[str, Any], name: str) -> bytes | None:
    return bytes.fromhex(extra[name]) if name in extra else None


def root_message(extra: dict[str, Any]) -> bytes:
    adapter = b"\0"
    if "adapter" in extra:
        name = bytes.fromhex(extra["adapter"]["id"])
        path = extra["adapter"].get("path")
        adapter = b"\1" + u64(len(name)) + name + optional(None if path is None else path.encode())
    return b"".join(
        [
            b"kvproot1",
            b"\1" + adapter,
            b"\2" + optional(field(extra, "salt")),
            b"\3" + optional(field(extra, "tenant")),
            b"\4" + u64(extra.get("epoch", 0)),
            b"\5" + optional(field(extra, "user")),
        ]
    )


def items_of_block(extra: dict[str, Any], start: int, end: int) -> list[dict[str, Any]]:
    items = sorted(extra.get("multimodal", []), key=lambda i: (i["offset"], i["length"], i["identifier"]))
    return [i for i in items if i["offset"] < end and start < i["offset"] + i["length"]]


def block_message(parent: bytes, tokens: list[int], start: int, extra: dict[str, Any]) -> bytes:
    section = b"\0"
    if items := items_of_block(extra, start, start + len(tokens)):
        section = b"\1" + u32(len(items))
        for item in items:
            name = bytes.fromhex(item["identifier"])
            relative = (item["offset"] - start).to_bytes(8, "little", signed=True)
            section += b"\6" + u64(len(name)) + name + relative + u64(item["length"])
    return b"kvpblok1" + parent + u32(len(tokens)) + b"".join(map(u32, tokens)) + section


def fingerprint_key(case: dict[str, Any]) -> bytes:
    key = b"\1" + bytes.fromhex(case["key"]) if "key" in case else b"\0"
    seed = b"\1" + u64(len(case["seed"].encode())) + case["seed"].encode() if "seed" in case else b"\0"
    return hashlib.sha256(b"kvpool fingerprint key 1" + key + seed).digest()[:16]


def native_hash(algorithm: str, case: dict[str, Any]) -> Callable[[bytes], bytes]:
    if algorithm == "sha256":
        return lambda message: hashlib.sha256(message).digest()
    if algorithm == "blake3":
        if "key" not in case:
            return lambda message: blake3.blake3(message).digest()
        key = bytes.fromhex(case["key"])
        return lambda message: blake3.blake3(message, key=key).digest()
    seed = 0
    if "seed" in case:
        seed = int.from_bytes(
            hashlib.sha256(b"kvpool xxh3 seed 1" + case["seed"].encode()).digest()[:8], "little"
        )
    return lambda message: xxhash.xxh3_128(message, seed=seed).digest()


# --- vLLM's encodings


def vllm_hash(algorithm: str) -> Callable[[Any], bytes]:
    """Returns vLLM's hash function for an algorithm, whose name is given without the prefix "vllm-"."""

    def serialize(value: Any) -> bytes:
        return (
            cbor2.dumps(value, canonical=True)
            if algorithm.endswith("cbor")
            else pickle.dumps(value, protocol=5)
        )

    if "sha256" in algorithm:
        return lambda value: hashlib.sha256(serialize(value)).digest()
    return lambda value: xxhash.xxh3_128_digest(serialize(value))


def fresh(data: bytes) -> str:
    """Returns a new object with the same text, as if the string had been decoded from a message."""
    return data.decode()


def vllm_extra_keys(extra: dict[str, Any], start: int, end: int) -> tuple[Any, ...] | None:
    keys: list[Any] = []
    if "adapter" in extra:
        path = extra["adapter"].get("path")
        keys.append(
            (
                "lora",
                fresh(bytes.fromhex(extra["adapter"]["id"])),
                None if path is None else fresh(path.encode()),
            )
        )
    keys.extend(
        ("mm", fresh(bytes.fromhex(item["identifier"])), item["offset"] - start)
        for item in items_of_block(extra, start, end)
    )
    if start == 0 and "salt" in extra:
        keys.append(("cache_salt", fresh(bytes.fromhex(extra["salt"]))))
    return tuple(keys) or None


# --- Cases

NATIVE = ["sha256", "blake3", "xxh3"]
VLLM = ["vllm-sha256", "vllm-sha256-cbor", "vllm-xxhash", "vllm-xxhash-cbor"]
ALL = NATIVE + VLLM

EDGES = [0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1]


def formula(count: int, mul: int, add: int, mod: int) -> dict[str, int]:
    """Describes a long list of tokens by a formula: token i is (i * mul + add) % mod."""
    return {"count": count, "mul": mul, "add": add, "mod": mod}


def tokens_of(tokens: list[int] | dict[str, int]) -> list[int]:
    if isinstance(tokens, list):
        return tokens
    return [(i * tokens["mul"] + tokens["add"]) % tokens["mod"] for i in range(tokens["count"])]


def text(value: str) -> str:
    return value.encode().hex()


def item(identifier: str, offset: int, length: int) -> dict[str, Any]:
    return {"identifier": text(identifier), "offset": offset, "length": length}


def cases() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []

    def case(
        name: str,
        block_size: int,
        tokens: list[int] | dict[str, int],
        algorithms: list[str] = ALL,
        seed: str | None = "seed",
        key: str | None = None,
        **extra: Any,
    ) -> None:
        entry: dict[str, Any] = {
            "name": name,
            "algorithms": algorithms,
            "block_size": block_size,
            "tokens": tokens,
        }
        if seed is not None:
            entry["seed"] = seed
        if key is not None:
            entry["key"] = key
        entry["extra"] = extra
        out.append(entry)

    plain = formula(48, 7919, 13, 151936)
    # The cases vary the block size, and have tokens of every encoded length.
    case("block 1, edges", 1, EDGES)
    case("block 2, edges", 2, EDGES[:10])
    case("block 3, edges", 3, EDGES[:9])
    case("block 4, edges", 4, EDGES[3:11])
    case("block 16, ordinary", 16, plain)
    case("block 16, zeros", 16, formula(32, 0, 0, 1))
    case("block 16, largest", 16, formula(16, 0, 2**32 - 1, 2**32))
    case("block 17, wide", 17, formula(34, 2654435761, 7, 2**32))
    case("block 23, cbor head", 23, formula(23, 1, 0, 1000))
    case("block 24, cbor head", 24, formula(24, 1, 0, 1000))
    case("block 117, past the stack", 117, formula(117, 3571, 1, 32000))
    case("block 256", 256, formula(512, 104729, 3, 151936))
    case("block 8192, one frame", 8192, formula(8192, 2654435761, 1, 2**32))
    case("block 8193, maybe two", 8193, formula(8193, 2654435761, 1, 2**32))
    case("block 20011, frames", 20011, formula(40022, 31337, 5, 200000))
    case("block 70001, frames", 70001, formula(70001, 11, 0, 70000))
    # Seeds.
    case("no seed", 16, plain, algorithms=NATIVE + VLLM[:2], seed=None)
    case("empty seed", 16, plain, seed="")
    case("seed 0", 16, plain, seed="0")
    case("seed, non-ascii", 16, plain, seed="Grüße 🔑")
    case("seed, long", 16, plain, seed="s" * 300)
    # Keys.
    for i, (name, key) in enumerate({"zeros": "00" * 32, "counting": bytes(range(32)).hex()}.items()):
        case(f"key of {name}", 16, plain, algorithms=["blake3"], seed=None, key=key)
        case(f"key of {name}, seed", 16, plain, algorithms=["blake3"], key=key, tenant=text(f"t{i}"))
    # These cases have extra keys that every algorithm supports.
    case("adapter", 4, [1, 2, 3, 4, 5, 6, 7, 8], adapter={"id": text("content-93b1")})
    case("adapter with path", 4, [1, 2, 3, 4, 5, 6, 7, 8], adapter={"id": text("a"), "path": "/lora/a"})
    case("adapter, path equal to id", 4, [1, 2, 3, 4], adapter={"id": text("same"), "path": "same"})
    case("adapter, one letter twice", 4, [1, 2, 3, 4], adapter={"id": text("x"), "path": "x"})
    case("adapter, empty strings", 4, [1, 2, 3, 4], adapter={"id": text(""), "path": ""})
    case("adapter, latin-1 letters", 4, [1, 2, 3, 4], adapter={"id": text("é"), "path": "é"}, salt=text("é"))
    case("adapter, other letters", 4, [1, 2, 3, 4], adapter={"id": text("Ā"), "path": "Ā"})
    case("salt", 4, [1, 2, 3, 4, 5, 6, 7, 8], salt=text("content-93b1"))
    case("salt, long", 4, [1, 2, 3, 4], salt=text("0123456789" * 30))
    case("salt of 255", 4, [1, 2, 3, 4], salt=text("a" * 255))
    case("salt of 256", 4, [1, 2, 3, 4], salt=text("a" * 256))
    case("one item", 4, [1, 9, 9, 4, 5, 6, 7, 8], multimodal=[item("image", 1, 2)])
    case("item over blocks", 4, [1, 2] + [9] * 9 + [12], multimodal=[item("image", 2, 9)])
    case("item of one block", 4, [9] * 4 + [1] * 4, multimodal=[item("image", 0, 4)])
    case(
        "items, out of order", 8, [9] * 16, multimodal=[item("b", 6, 3), item("a", 0, 3), item("bb", 12, 40)]
    )
    case(
        "items, equal ids",
        8,
        [9] * 16,
        multimodal=[item("same", 0, 2), item("same", 3, 2), item("s", 5, 1), item("s", 6, 4)],
    )
    case(
        "items, empty and overlapping",
        8,
        [9] * 16,
        multimodal=[item("z", 3, 0), item("y", 8, 0), item("w", 1, 14), item("v", 2, 3)],
    )
    case("items, equal offsets", 4, [9] * 4, multimodal=[item("a", 1, 3), item("z", 1, 2), item("b", 1, 2)])
    case("item, far offset", 256, formula(512, 1, 0, 1000), multimodal=[item("i", 255, 257)])
    case("item from far before", 300, formula(600, 1, 0, 1000), multimodal=[item("i", 10, 590)])
    many = [item(f"item-{i}", 2 * i, 2) for i in range(70)]
    case("many items", 128, formula(256, 0, 9, 10), multimodal=many)
    case(
        "all of vLLM's",
        4,
        [1, 9, 9, 4, 9, 9, 9, 9, 9, 6, 7, 8],
        adapter={"id": text("mm"), "path": "cache_salt"},
        salt=text("lora"),
        multimodal=[item("mm", 1, 2), item("lora", 4, 5)],
    )
    case("epoch", 4, [1, 2, 3, 4, 5, 6, 7, 8], epoch=1)
    case("epoch, largest", 4, [1, 2, 3, 4], epoch=2**64 - 1, salt=text("s"))
    # These cases have extra keys that only the native algorithms support. Some have the same string in
    # each field.
    case("tenant", 4, [1, 2, 3, 4], algorithms=NATIVE, tenant=text("same"))
    case("user", 4, [1, 2, 3, 4], algorithms=NATIVE, user=text("same"))
    case("salt, same string", 4, [1, 2, 3, 4], algorithms=NATIVE, salt=text("same"))
    case("adapter, same string", 4, [1, 2, 3, 4], algorithms=NATIVE, adapter={"id": text("same")})
    case("empty salt", 4, [1, 2, 3, 4], algorithms=NATIVE, salt="")
    case("empty tenant", 4, [1, 2, 3, 4], algorithms=NATIVE, tenant="")
    case("bytes, not UTF-8", 4, [1, 2, 3, 4], algorithms=NATIVE, salt="ff00fe", tenant="80", user="c0")
    case(
        "everything",
        16,
        plain,
        algorithms=NATIVE,
        adapter={"id": text("adapter"), "path": "path"},
        salt=text("salt"),
        tenant=text("tenant"),
        epoch=7,
        user=text("user"),
        multimodal=[item("image", 3, 20), item("audio", 30, 4)],
    )
    return out


def expected(case: dict[str, Any]) -> dict[str, Any]:
    """Adds the expected digests to a case: the digest of the root, followed by one digest per block."""
    tokens, size, extra = tokens_of(case["tokens"]), case["block_size"], case["extra"]
    blocks = [(start, tokens[start : start + size]) for start in range(0, len(tokens), size)]
    assert all(len(block) == size for _, block in blocks), case["name"]

    digests: dict[str, list[str]] = {}
    for algorithm in case["algorithms"]:
        if algorithm in NATIVE:
            hash_native = native_hash(algorithm, case)
            chain = [hash_native(root_message(extra))]
            for start, block in blocks:
                chain.append(hash_native(block_message(chain[-1], block, start, extra)))
        else:
            hash_vllm = vllm_hash(algorithm)
            chain = [hash_vllm(case.get("seed", "vllm-none-hash"))]
            for start, block in blocks:
                keys = vllm_extra_keys(extra, start, start + size)
                chain.append(hash_vllm((chain[-1], tuple(block), keys)))
        digests[algorithm] = [digest.hex() for digest in chain]

    sip_key = fingerprint_key(case)
    fingerprints = [siphash13_128(sip_key, root_message(extra))]
    for start, block in blocks:
        fingerprints.append(siphash13_128(sip_key, block_message(fingerprints[-1], block, start, extra)))
    return {**case, "fingerprints": [f.hex() for f in fingerprints], "digests": digests}


# --- Blocks of vLLM with extra keys. Their hash depends on which values are the same Python object.


def vllm_blocks() -> list[dict[str, Any]]:
    """Makes blocks of vLLM with extra keys. A value in a key is null, a number, or [kind, hex, repeats,
    object]. Equal object numbers stand for the same Python object.
    """

    def atom(spec: Any, objects: dict[int, Any]) -> Any:
        if not isinstance(spec, list):
            return spec
        kind, value, repeats, number = spec
        if number not in objects:
            data = bytes.fromhex(value) * repeats
            objects[number] = data.decode() if kind == "str" else data
        return objects[number]

    def s(value: str, number: int, repeats: int = 1) -> list[Any]:
        return ["str", text(value), repeats, number]

    def b(value: bytes, number: int, repeats: int = 1) -> list[Any]:
        return ["bytes", value.hex(), repeats, number]

    extras: list[Any] = [
        None,
        [],
        [[]],
        [[None]],
        [[s("lora", 1), s("name", 2), s("path", 3)]],
        [[s("mm", 1), s("same", 2), 0], [s("mm", 1), s("same", 2), 5]],
        [[s("mm", 1), s("same", 2), 0], [s("mm", 1), s("same", 3), 5]],
        [[b(b"same", 2), -1], [b(b"same", 2), -128], [b(b"same", 3), -129]],
        [[s("prompt_embeds", 1), b(bytes(range(32)), 2)], [], [None, None, None, None, None]],
        [[0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**39, 2**40, 2**63 - 1]],
        [
            [
                -1,
                -24,
                -25,
                -256,
                -257,
                -65536,
                -65537,
                -(2**31),
                -(2**31) - 1,
                -(2**39),
                -(2**39) - 1,
                -(2**63),
            ]
        ],
        [[b(b"", 1), b(b"a" * 255, 2), b(b"a" * 256, 3), s("", 4), s("ü" * 127, 5), s("ü" * 128, 6)]],
        [[s(f"n{i}", i), s(f"n{i // 2}", i // 2)] for i in range(300)],
        # pickle divides its output into frames, and writes long data outside of them. These cases have
        # long data, and short frames in between. Some of these are shorter than the minimum length of a
        # frame.
        [[s("a", 1, 65535)], [s("b", 2, 65536)], [s("c", 3, 65537), None], [s("b", 2, 65536)], [1]],
        [
            [b(b"a", 1, 65536), b(b"b", 2, 65536), 5, b(b"c", 3, 70000)],
            [b(b"a", 1, 65536)],
            [b(b"d", 4, 65535)],
        ],
    ]
    inputs: list[tuple[Any, Any]] = []
    for extra in extras:
        # If there are several extra keys, they are large. Then one list of tokens is enough.
        lists = ([1, 2, 3, 4], [7], []) if extra is None or len(extra) < 2 else ([1, 2, 3, 4],)
        inputs += [(tokens, extra) for tokens in lists]
    # Each of these tokens takes two bytes. A frame is exactly full after 32,750 tokens if the parent's
    # digest has 32 bytes, and after 32,758 if it has 16.
    for count in (32749, 32750, 32751, 32757, 32758, 32759):
        inputs += [(formula(count, 1, 0, 200), extra) for extra in (None, [[s("x", 1)]])]
    out = []
    for tokens, extra in inputs:
        digests = {}
        for algorithm in VLLM:
            length = 32 if "sha256" in algorithm else 16
            parent = bytes(range(length))
            objects: dict[int, Any] = {}
            keys = None if extra is None else tuple(tuple(atom(a, objects) for a in group) for group in extra)
            digests[algorithm] = vllm_hash(algorithm)((parent, tuple(tokens_of(tokens)), keys)).hex()
        out.append({"tokens": tokens, "extra": extra, "digests": digests})
    return out


def document() -> str:
    known = [expected(case) for case in cases()]
    for algorithm in ALL:
        assert sum(algorithm in case["digests"] for case in known) >= 20, algorithm
    none_hash = {a: vllm_hash(a)("vllm-none-hash").hex() for a in VLLM[:2]}
    # Compare these two values with the parts of them (first and last digits) that vLLM prints in its logs.
    assert none_hash["vllm-sha256"].startswith("066b1e8987e0")
    assert none_hash["vllm-sha256"].endswith("71198")
    assert none_hash["vllm-sha256-cbor"].startswith("9bd96a48")
    assert none_hash["vllm-sha256-cbor"].endswith("81eef0")

    def lines(entries: list[Any]) -> str:
        return ",\n".join("  " + json.dumps(entry, ensure_ascii=True) for entry in entries)

    head = json.dumps(
        "Vectors of design/hash-specification.md, written by tools/make_hash_vectors.py. Strings of extra "
        "keys are hex. "
        "Token i of a formula is (i * mul + add) % mod. The first digest and fingerprint of a list are the "
        "root's, then one per block. Parents of vllm_blocks are the bytes 00, 01, 02, ...; their extra keys "
        "are tuples of null, numbers and [type, hex, repeats, object]."
    )
    return (
        f'{{"about": {head},\n"none_hash": {json.dumps(none_hash)},\n'
        f'"chains": [\n{lines(known)}\n],\n"vllm_blocks": [\n{lines(vllm_blocks())}\n]}}\n'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    check = parser.parse_args().check
    made = document()
    if not check:
        OUTPUT.write_text(made, encoding="utf-8", newline="\n")
        print(f"wrote {OUTPUT} ({len(made)} bytes)")
        return 0
    if OUTPUT.is_file() and OUTPUT.read_text(encoding="utf-8") == made:
        print(f"{OUTPUT} is up to date")
        return 0
    print(f"{OUTPUT} differs from what this program makes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
