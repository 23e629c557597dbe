"""The report of ``kvpool size`` as one HTML page, and as one picture.

``render`` needs the standard library alone; ``save_png`` needs matplotlib. Both draw the same figures,
which ``plots`` makes from the report: ``svg`` and the drawing of ``png`` never look at it.

The page is one file: no script, style, font or image comes from elsewhere, and a content security
policy inside it forbids that. It can be read without its script, in dark and light, and on paper; what
is behind each plot is a table.
"""

from __future__ import annotations

from kvpool.cli.sizing_html.page import render
from kvpool.cli.sizing_html.png import save_png

__all__ = ["render", "save_png"]
