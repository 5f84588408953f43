"""The Pareto curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ring3_split.errors import Refusal
from ring3_split.plan.curve import Corner
from ring3_split.plan.cut import Point


def draw(
    path: Path, corners: Sequence[Corner], chosen: Point, propagation: Point, words: tuple[str, str]
) -> None:
    """Draws lines in the kernel against crossings; the file's ending says the format.

    The same curve is the same file.

    `words` are the title and what a crossing is.
    """
    with mpl.rc_context({"svg.hashsalt": "ring3", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        points = [corner.point for corner in corners]
        axes.plot(
            [p.crossings for p in points],
            [p.lines for p in points],
            "o-",
            color="#1f5f8b",
            ms=4,
            lw=1,
            label="minimum cuts",
        )
        axes.plot(
            propagation.crossings,
            propagation.lines,
            "s",
            color="#b5532a",
            ms=6,
            label="propagation",
        )
        axes.plot(
            chosen.crossings, chosen.lines, "o", mfc="none", color="black", ms=11, label="this plan"
        )
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(left=-0.2)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"crossings ({words[1]})")
        axes.set_ylabel("lines in the kernel")
        axes.set_title(words[0], fontsize=9)
        axes.grid(visible=True, lw=0.3)
        axes.legend(frameon=False)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as error:
            raise Refusal(f"{path}: {error}") from None
