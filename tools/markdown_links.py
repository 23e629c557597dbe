"""Links of a page in Markdown, and the page with other ones. What stands in a block of code is no link."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: ``[words](target)``, with a ``!`` before it for a picture.
LINK: Final = re.compile(r"(?P<bang>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_FENCED: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def links(page: str) -> list[re.Match[str]]:
    """Every link of a page, in order."""
    return [found for part in _FENCED.split(page) if not part.startswith("```") for found in LINK.finditer(part)]


def with_links(page: str, replaced: Callable[[re.Match[str]], str]) -> str:
    """The page with each link as ``replaced`` says."""
    parts = _FENCED.split(page)
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in parts)
