"""The drawings of the docs, as SVG: the life of a block, a step, tiers, groups.

    python tools/docs_pictures.py            # writes docs/images/*.svg
    python tools/docs_pictures.py --check    # they are what this writes

Owns the drawings: the files are made, not edited. Each stands on a light card of its own, so it can be read on a dark
page; all words are text.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"

STYLE = """
text { font: 14px system-ui, 'DejaVu Sans', sans-serif; fill: #16191d; }
.small { font-size: 12px; fill: #4a5260; }
.head { font-weight: 700; }
.small, .mono { paint-order: stroke; stroke: #fbfcfd; stroke-width: 4px; }
.mono { font-family: ui-monospace, 'DejaVu Sans Mono', monospace; font-size: 12.5px; }
.card { fill: #fbfcfd; stroke: #d6dae0; }
.box { fill: #ffffff; stroke: #5a6270; stroke-width: 1.3; }
.blue { fill: #e3f0fb; stroke: #1769aa; }
.green { fill: #e2f4ea; stroke: #16814d; }
.amber { fill: #fdf1df; stroke: #b26a00; }
.grey { fill: #eef0f3; stroke: #7b8494; }
.line { fill: none; stroke: #3a414b; stroke-width: 1.5; marker-end: url(#head); }
.dashed { stroke-dasharray: 5 4; }
""".strip()


@dataclass
class Picture:
    """A drawing: boxes with words, and arrows between points."""

    width: int
    height: int
    title: str
    described: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, *lines: str, colour: str = "", corner: int = 6) -> None:
        """A box whose first line is its name; the others are small."""
        self.parts.append(
            f'<rect class="box {colour}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}"/>'
        )
        top = y + height / 2 - 9 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(
                x + width / 2, top + 18 * number, line, "head" if number == 0 and len(lines) > 1 else "small", "middle"
            )

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """One line of words."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>')

    def arrow(
        self, *points: tuple[int, int], words: str = "", at: tuple[int, int] | None = None, kind: str = ""
    ) -> None:
        """A line through points, with a head at its end, and words at a place."""
        path = " L".join(f"{x},{y}" for x, y in points)
        self.parts.append(f'<path class="line {kind}" d="M{path}"/>')
        if words:
            x, y = at or ((points[0][0] + points[-1][0]) // 2, (points[0][1] + points[-1][1]) // 2 - 7)
            for number, line in enumerate(words.split("\n")):
                self.text(x, y + 15 * number, line, "small", "middle")

    def svg(self) -> str:
        """The file."""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-labelledby="title described">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="described">{escape(self.described)}</desc>',
                f"<style>{STYLE}</style>",
                '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                'orient="auto-start-reverse"><path d="M0,0L10,5L0,10z" fill="#3a414b"/></marker></defs>',
                f'<rect class="card" x="1" y="1" width="{self.width - 2}" height="{self.height - 2}" rx="10"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def life() -> Picture:
    """What a block is, and what makes it something else."""
    one = Picture(
        860,
        350,
        "The life of a block",
        "A block is free, then active while block tables hold it. When it is full and computed it is registered. "
        "Released, it is cached-free: a hit makes it active again, an eviction gives it to somebody else. While a step "
        "that was planned with it runs, it is fenced.",
    )
    one.box(40, 130, 150, 74, "free", "no content", colour="grey")
    one.box(330, 130, 190, 74, "active", "in block tables, counted", colour="blue")
    one.box(650, 130, 170, 74, "cached-free", "content, held by nobody", colour="green")
    one.box(330, 262, 190, 62, "fenced", "released, still in use", colour="amber")
    one.arrow((190, 150), (330, 150), words="admit, append", at=(260, 142))
    one.arrow((330, 190), (190, 190), words="release,\nnothing cached", at=(260, 208))
    one.arrow((520, 150), (650, 150), words="release", at=(585, 142))
    one.arrow((650, 190), (520, 190), words="hit", at=(585, 208))
    one.arrow((420, 204), (420, 262), words="release while a step runs", at=(508, 238))
    one.arrow((330, 293), (115, 293), (115, 204), words="the step has completed", at=(222, 286))
    one.arrow((520, 293), (735, 293), (735, 204), words="the step has completed", at=(628, 286))
    one.arrow(
        (735, 130),
        (735, 62),
        (115, 62),
        (115, 130),
        words="evict: the deepest block of the coldest chain first",
        at=(425, 54),
    )
    one.arrow((390, 130), (390, 96), (462, 96), (462, 130), words="commit: full, computed, registered", at=(426, 88))
    return one


def stack() -> Picture:
    """Where kvpool stands."""
    one = Picture(
        860,
        360,
        "Where kvpool stands",
        "vLLM, SGLang and schedulers of your own call kvpool. It hashes prompts, finds prefixes, allocates, evicts and "
        "plans copies, and keeps evidence. Beneath are device memory, host memory, and a store.",
    )
    for x, name, how in (
        (20, "vLLM", "a plug-in, nothing patched"),
        (230, "SGLang", "a back end of HiCache"),
        (440, "your scheduler", "Python or Rust"),
        (650, "older managers", "imports changed"),
    ):
        one.box(x, 20, 190, 56, name, how, colour="grey")
        one.arrow((x + 95, 76), (x + 95, 112))
    one.parts.append('<rect class="box blue" x="20" y="112" width="820" height="132" rx="8"/>')
    one.text(430, 134, "kvpool: which block holds what, what is computed, what goes", "head", "middle")
    for number, (name, what) in enumerate(
        (
            ("requests", "tables, forks, steps"),
            ("prefix index", "hash chains, groups"),
            ("allocator", "counts, fences"),
            ("evictors", "orders, retention"),
            ("evidence", "journal, explain"),
        )
    ):
        one.box(34 + 161 * number, 150, 148, 74, name, what)
    for x, name, what, colour in (
        (20, "device memory", "block tables, copy-on-write", "blue"),
        (300, "host memory", "swaps, offload", "green"),
        (580, "store", "disk, Redis, S3, Mooncake", "amber"),
    ):
        one.arrow((x + 130, 244), (x + 130, 280))
        one.box(x, 280, 260, 56, name, what, colour=colour)
    return one


def step() -> Picture:
    """Who does what in one step of an engine."""
    one = Picture(
        860,
        330,
        "One step",
        "The scheduler plans the step with kvpool, the engine copies what the plan says and runs the model, and the "
        "next call says what was computed and sampled.",
    )
    for x, name in ((20, "scheduler"), (310, "kvpool"), (600, "engine, GPU")):
        one.box(x, 20, 240, 36, name, colour="grey")
    for x in (140, 430, 720):
        one.parts.append(f'<path class="line dashed" style="marker-end:none" d="M{x},56 L{x},312"/>')
    rows = (
        (84, "admit(id, prompt)", "what hits, and new blocks"),
        (134, "append_ragged(ids, tokens, ...)", "computed, sampled, and what comes next"),
        (184, "take_plan()", "copies, as one checked plan"),
    )
    for y, call, words in rows:
        one.arrow((140, y), (430, y))
        one.text(285, y - 7, call, "mono", "middle")
        one.text(285, y + 15, words, "small", "middle")
    one.arrow((140, 234), (720, 234))
    one.text(575, 227, "block tables, slots, copies", "mono", "middle")
    one.box(640, 246, 160, 34, "the model runs", colour="blue")
    one.arrow((640, 292), (140, 292), words="sampled tokens", at=(290, 285))
    return one


def tiers() -> Picture:
    """What is kept where, and who moves it."""
    one = Picture(
        860,
        360,
        "Tiers",
        "Blocks live on the device; swapped and evicted content goes to host memory, and from there to a store: a "
        "disk, or a server that engines share. The core plans, kvpool.transfer and the store move.",
    )
    one.box(30, 30, 250, 76, "device", "a pool of blocks: hits, copy-on-write", colour="blue")
    one.box(30, 148, 250, 76, "host memory", "a pool of blocks: swaps, offload", colour="green")
    one.box(30, 266, 250, 76, "store", "disk, shared folder, Redis, S3, Mooncake", colour="amber")
    one.arrow((110, 106), (110, 148), words="swap out", at=(74, 131))
    one.arrow((200, 148), (200, 106), words="swap in", at=(234, 131))
    one.arrow((110, 224), (110, 266), words="put", at=(90, 249))
    one.arrow((200, 266), (200, 224), words="get", at=(220, 249))
    rows = (
        (68, "plans", "CacheManager, TieredPool", "exact counts, all or nothing; knows no bytes"),
        (186, "moves", "kvpool.transfer", "CUDA kernels and copies, or the processor; checks every mapping"),
        (304, "keeps", "kvpool.store", "checked headers, namespaces, bounded; a miss is all that can go wrong"),
    )
    for y, verb, who, what in rows:
        one.text(320, y, verb, "small")
        one.text(372, y, who, "head")
        one.text(372, y + 20, what, "small")
    return one


def groups() -> Picture:
    """One request, three groups, one pool."""
    one = Picture(
        860,
        330,
        "Groups of a hybrid model",
        "What stays cached of a prompt of 8 blocks in a model with full attention, a sliding window of two blocks and "
        "a recurrent state: full attention keeps all blocks, the window and the state what lies before the end and "
        "before a junction at block 4. A hit is as long as every group can serve: 8 blocks, or 4.",
    )
    one.text(30, 36, "cached of a prompt", "small")
    for number in range(8):
        one.box(190 + 62 * number, 18, 54, 26, str(number), colour="grey")
    rows = (
        (70, "full attention", "reads everything before", "blue", set(range(8))),
        (136, "sliding window", "reads two blocks", "green", {2, 3, 6, 7}),
        (202, "recurrent state", "reads the state before", "amber", {3, 7}),
    )
    for y, name, what, colour, kept in rows:
        one.text(30, y + 18, name, "head")
        one.text(30, y + 36, what, "small")
        for number in range(8):
            if number in kept:
                one.box(190 + 62 * number, y, 54, 40, "", colour=colour)
            else:
                one.text(217 + 62 * number, y + 24, "0", "small", "middle")
    for line, words in enumerate(
        ("A block id is a page", "in every layer of", "its group. 0 is the", "null block: nothing", "to come reads it.")
    ):
        one.text(704, 96 + 18 * line, words, "small")
    one.text(30, 276, "can be hit", "small")
    one.arrow((190, 272), (432, 272), words="4 blocks: behind a junction", at=(311, 290))
    one.arrow((190, 304), (680, 304), words="8 blocks: behind the prompt", at=(560, 298))
    return one


PICTURES = {"stack": stack, "life": life, "step": step, "tiers": tiers, "groups": groups}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the drawings of the docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not what is made")
    given = parser.parse_args(arguments)
    stale = []
    for name, make in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        made = make().svg()
        if given.check:
            if not path.is_file() or path.read_text(encoding="utf-8") != made:
                stale.append(path.name)
        else:
            path.write_text(made, encoding="utf-8")
    for name in stale:
        print(f"docs/images/{name} is not what tools/docs_pictures.py makes: run it", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
