"""The report of ``kvpool size`` as one HTML page, and as one picture.

``render`` needs only the standard library; ``save_png`` needs matplotlib. Both draw the same figures,
which ``plots`` makes from the report. ``svg`` and the drawing in ``png`` do not read the report.

The page is one file. No script, style, font or image comes from elsewhere, and its content security
policy forbids it. The page can be read without its script, in dark and light mode, and on paper. Each
plot has a table with its figures.
"""

from __future__ import annotations

from kvpool.cli.sizing_html.page import render
from kvpool.cli.sizing_html.png import save_png

__all__ = ["render", "save_png"]
