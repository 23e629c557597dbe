"""Beam search: requests that fork, and blocks that are copied when two beams continue differently.

In these events, the scheduler calls kvpool:

| event | call |
|---|---|
| a beam has no continuation | ``release(beams)`` frees blocks that no other beam holds |
| a beam has several continuations | ``fork(parents, children)``: the children share all blocks |
| every beam gets a token | ``append(beams, tokens, commit=True)``: a write to a shared block copies it |
| before the step writes KV | ``take_plan()``: one plan with the copies of all beams |

Each step makes four calls, whatever the number of beams and searches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import kvpool
from examples.ports.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BeamSearch", "candidates", "main", "plain_search"]


def candidates(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Stands for the model: returns possible next tokens, and the number that each adds to the score."""
    seed = sum((i + 3) * token for i, token in enumerate(tokens[-5:])) + len(tokens)
    return [((seed * 7 + k * 5) % 13, (seed * 11 + k * 17) % 29) for k in range(3)]


def best(beams: list[list[int]], scores: list[int], width: int) -> list[tuple[int, int, int]]:
    """Returns the best continuations. Each is a score, the position of the beam in the list, and a token."""
    ways = [
        (score + more, -row, token)
        for row, (tokens, score) in enumerate(zip(beams, scores, strict=True))
        for token, more in candidates(tokens)
    ]
    return [(score, -row, token) for score, row, token in sorted(ways, reverse=True)[:width]]


def plain_search(prompt: Sequence[int], width: int, steps: int) -> list[list[int]]:
    """Does the same search as :class:`BeamSearch`, without kvpool. Beams are plain lists of tokens."""
    beams, scores = [list(prompt)], [0]
    for _ in range(steps):
        ways = best(beams, scores, width)
        beams = [[*beams[row], token] for _, row, token in ways]
        scores = [score for score, _, _ in ways]
    return beams


@dataclass(eq=False, slots=True)
class Beam:
    """One beam: the key of its request in the manager, its tokens and its score."""

    key: int
    tokens: list[int]
    score: int = 0


class BeamSearch:
    """One prompt and its beams."""

    def __init__(
        self, manager: kvpool.CacheManager, memory: Memory, prompt: Sequence[int], width: int
    ) -> None:
        self.manager = manager
        self.memory = memory
        self.width = width
        self._keys = count()
        self.beams = [Beam(next(self._keys), list(prompt))]
        admission = manager.admit(0, list(prompt))
        memory.step([(admission.block_ids, prompt, admission.cached_tokens)])
        manager.commit(0, len(prompt))

    def step(self) -> None:
        """Appends one token to each beam of the best continuations, and computes it."""
        ways = best([beam.tokens for beam in self.beams], [beam.score for beam in self.beams], self.width)
        chosen, heirs = [], set[int]()
        forks: dict[int, int] = {}
        for score, row, token in ways:
            parent = self.beams[row]
            key = parent.key
            if row in heirs:
                key = next(self._keys)
                forks[key] = parent.key
            heirs.add(row)
            chosen.append(Beam(key, [*parent.tokens, token], score))
        self.manager.release([beam.key for row, beam in enumerate(self.beams) if row not in heirs])
        self.manager.fork(list(forks.values()), list(forks))
        self.beams = chosen
        self.manager.append([beam.key for beam in chosen], [beam.tokens[-1] for beam in chosen], commit=True)
        copies = self.manager.take_plan().transfers
        self.memory.copy((source, destination) for (_, source), (_, destination) in copies)
        self.memory.step(
            (self.manager.block_ids(beam.key), beam.tokens, len(beam.tokens) - 1) for beam in chosen
        )

    def finish(self) -> list[list[int]]:
        """Ends all beams and returns them, best first."""
        self.manager.release([beam.key for beam in self.beams])
        return [beam.tokens for beam in self.beams]


def main() -> None:
    """Searches with eight beams, and prints how many blocks they shared."""
    prompt = list(range(30))
    manager = kvpool.CacheManager(200, 4)
    search = BeamSearch(manager, Memory(200, 4), prompt, width=8)
    for _ in range(20):
        search.step()
    stats, tables = manager.stats(), [manager.block_ids(beam.key) for beam in search.beams]
    right = search.finish() == plain_search(prompt, 8, 20)
    print(
        f"8 beams with {sum(map(len, tables))} entries over {len(set().union(*tables))} blocks, "
        f"{stats.forks} forks, "
        f"{stats.copied_blocks} blocks copied, all as they should be: {right}"
    )


if __name__ == "__main__":
    main()
