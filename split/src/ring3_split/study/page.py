"""The study as one HTML file that needs no network and no server."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from ring3_split.study import paper
from ring3_split.study.result import Study

NEAREST = 12


def write(study: Study, details: Mapping[str, str], picture: Path | None, path: Path) -> None:
    """Writes the page.

    Args:
        study: what was found.
        details: packed details of each driver, by its `Row.path` (`detail.pack`).
        picture: an SVG file to show, if any.
        path: where the page goes.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_part),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    countings = [] if study.quick else paper.countings(study)
    svg = picture.read_text(encoding="utf-8") if picture and picture.exists() else ""
    text = environment.get_template(
        "page.html"
    ).render(
        study=study,
        countings=countings[:NEAREST],
        ranges=paper.ranges(countings),
        said=[family for family in study.families if family.paper and family.module.drivers],
        units=paper.UNITS,
        ways=paper.WAYS,
        troubled=[
            row for row in study.drivers if row.failures or row.skipped or not row.alone.functions
        ],
        style=Markup(_part("page.css")),  # noqa: S704 - our own
        script=Markup(_part("page.js")),  # noqa: S704 - our own
        picture=Markup(svg[svg.find("<svg") :]) if svg else "",  # noqa: S704 - our own
        data=_embedded(study),
        details=_embedded(details),
    )
    path.write_text(text, encoding="utf-8")


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _embedded(value: object) -> Markup:
    """JSON that can stand in a script element: `<` could end it, and is written as an escape."""
    # escaped by the line itself
    return Markup(msgspec.json.encode(value).decode("utf-8").replace("<", "\\u003c"))  # noqa: S704
