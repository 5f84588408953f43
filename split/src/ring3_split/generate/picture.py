"""Throughput and CPU against what each crossing costs, as a picture: Figure 4 of [Microdrivers]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ring3_split.errors import Refusal
from ring3_split.generate.bench import Report
from ring3_split.generate.delays import LOADS, Delay
from ring3_split.generate.measured import Spread
from ring3_split.generate.placements import NAMES

COLOURS = {"out": "#1f5f8b", "in": "#b5532a", "paced": "#4a8f5c"}


def draw(path: Path, report: Report) -> None:
    """Draws the delays of a report, medians with the smallest and the largest.

    The same report is the same file.

    Raises:
        Refusal: the file cannot be written.
    """
    clock = "instruction clock" if report.mode == "instructions" else "wall clock"
    with mpl.rc_context({"svg.hashsalt": "ring3", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        throughput, cpu = figure.subplots(1, 2)
        _panel(throughput, report.delays, lambda row: row.mbit_s_ratio, "throughput")
        _panel(cpu, report.delays, lambda row: row.cpu_ratio, "processor time per packet")
        cpu.legend(frameon=False)
        figure.suptitle(f"{report.driver} split, {report.kernel}, {clock}", fontsize=9)
        try:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        except (OSError, ValueError) as error:
            raise Refusal(f"{path}: {error}") from None


def _panel(axes: Axes, rows: list[Delay], of: Callable[[Delay], Spread], name: str) -> None:
    delays = sorted({row.delay_us for row in rows if row.delay_us is not None})
    for shift, load in enumerate(LOADS):
        spreads = {
            row.delay_us: of(row) for row in rows if row.load == load and row.delay_us is not None
        }
        values = [spreads[delay] for delay in delays]
        axes.errorbar(
            [place + 0.08 * (shift - 1) for place in range(len(delays))],
            [one.median for one in values],
            yerr=[
                [one.median - one.min for one in values],
                [one.max - one.median for one in values],
            ],
            fmt="o-",
            ms=4,
            lw=1,
            capsize=2,
            color=COLOURS[load],
            label=NAMES[load],
        )
    axes.axhline(1, color="black", lw=0.6)
    axes.set_xticks(range(len(delays)), [_told(delay) for delay in delays])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("delay of each crossing")
    axes.set_ylabel(f"{name}, original = 1")
    axes.grid(visible=True, lw=0.3)


def _told(microseconds: int) -> str:
    return f"{microseconds / 1000:g} ms" if microseconds >= 1000 else f"{microseconds} us"
