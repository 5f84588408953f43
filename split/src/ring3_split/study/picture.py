"""The study as a picture.

The critical share of each family, and how it is spread over the drivers.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ring3_split.study.result import FamilyResult, Study
from ring3_split.study.rules import BASE, RULES, Rule

COLOURS = {"signature": "#4269d0", "field": "#6cc5b0", "direct": "#efb118"}
TITLES = {
    "signature": "calls through pointers by signature (paper)",
    "field": "by signature and field",
    "direct": "not followed",
}


def draw(study: Study, folder: Path) -> None:
    """Writes study.svg and study.png; the same study gives the same files."""
    families = [family for family in study.families if family.module.drivers]
    if not families:
        return
    # Letters as paths, no date and no random ids: the file is small, looks the same everywhere, and
    # can be compared.
    with rc_context({"svg.hashsalt": "ring3", "font.size": 9}):
        figure = Figure(figsize=(11, 1.6 + 0.42 * len(families)), layout="constrained")
        shares, spread = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
        _shares(shares, families)
        _spread(spread, families, study)
        figure.legend(
            *shares.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
        )
        figure.suptitle(f"Critical functions, {study.kernel}")
        figure.savefig(folder / "study.svg", metadata={"Date": None})
        figure.savefig(folder / "study.png", dpi=130)


def _shares(axes: Axes, families: list[FamilyResult]) -> None:
    height = 0.26
    for place, (calls, colour) in enumerate(COLOURS.items()):
        name = Rule(calls, BASE.roots, BASE.reach).name  # type: ignore[arg-type]
        values = [family.module.rules[name].percent for family in families]
        positions = [number + (place - 1) * height for number in range(len(families))]
        axes.barh(positions, values, height, color=colour, label=TITLES[calls])
    marked = [number for number, family in enumerate(families) if family.paper]
    for number in marked:
        said = families[number].paper
        label = "the paper, Linux 2.6.18" if number == marked[0] else ""
        if said:
            axes.plot(
                [said.critical] * 2,
                [number - 0.45, number + 0.45],
                color="black",
                linewidth=2,
                label=label,
            )
    axes.set_yticks(
        range(len(families)), [f"{family.title} ({family.module.drivers})" for family in families]
    )
    axes.invert_yaxis()
    axes.set_xlabel("percent of all functions; a driver is a module")
    axes.grid(axis="x", alpha=0.3)


def _spread(axes: Axes, families: list[FamilyResult], study: Study) -> None:
    index = RULES.index(BASE)
    shares = [
        [
            100 * row.alone.critical[index] / row.alone.functions
            for row in study.drivers
            if family.name in row.families and row.alone.functions
        ]
        for family in families
    ]
    axes.boxplot(
        [[share for share in some if share] or [0.0] for some in shares],
        positions=range(len(families)),
        orientation="horizontal",
        widths=0.6,
        manage_ticks=False,
        flierprops={"markersize": 2},
        medianprops={"color": "#ff725c"},
    )
    axes.set_xlabel("percent of each driver's functions, drivers with roots")
    axes.set_xlim(0, 100)
    axes.grid(axis="x", alpha=0.3)
