"""What a study writes: CSV, JSON, picture and page, from results made by hand."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import conforms
from ring3_split.model import Failure, Module, ModuleFacts
from ring3_split.study import assemble, detail, families, page, picture, sheet, table
from ring3_split.study.assemble import Looked
from ring3_split.study.evaluate import Evaluated
from ring3_split.study.result import Row, Study, told
from ring3_split.study.rules import BASE, RULES

EVERY = (1 << len(RULES)) - 1
REASON = "drivers/net/bad.c:3: 'x.h' </script> file not found"


def looked(
    name: str,
    marks: dict[str, tuple[int, int]],
    *,
    failures: tuple[Failure, ...] = (),
    error: str = "",
) -> Looked:
    module = Module(name, "drivers/net", (f"drivers/net/{name}.c",), {})
    functions = tuple(
        detail.Listed(key.rpartition(":")[2], 0, 7, lines, bits)
        for key, (lines, bits) in marks.items()
    )
    root = (
        (
            detail.RootListed(
                0, "signature", "data", "net/transmit", "net_device_ops.ndo_start_xmit"
            ),
        )
        if functions
        else ()
    )
    calls = (detail.CallListed(0, 1, 7, 12),) if len(functions) > 1 else ()
    packed = detail.pack(detail.Detail((name,), (f"drivers/net/{name}.c",), functions, root, calls))
    return Looked(
        ModuleFacts(module, (), failures),
        Evaluated(marks, detail="" if error else packed, error=error),
    )


GOOD = looked(
    "good",
    {
        "drivers/net/good.c:xmit": (20, EVERY),
        "drivers/net/good.c:put": (5, EVERY),
        "drivers/net/good.c:idle": (75, 0),
    },
)
BAD = looked("bad", {}, failures=(Failure("drivers/net/bad.c", REASON),))
BROKEN = looked("broken", {}, error="the analysis failed: KeyError: 'f'")
EMPTY = looked("empty", {})


@pytest.fixture(scope="module")
def study() -> Study:
    return assemble.study(
        "Linux test",
        families.asked(("net",)),
        [GOOD, BAD, BROKEN, EMPTY],
        {"drivers/net/odd": "missing separator", "fs": "x"},
    )


def row(study: Study, name: str) -> Row:
    return next(one for one in study.drivers if one.name == name)


def test_a_driver_that_cannot_be_read_is_listed_and_counted_as_unread(study: Study) -> None:
    net = study.families[0]
    assert (net.modules, net.unread, net.partial, net.empty, net.module.drivers) == (4, 2, 0, 1, 1)
    assert row(study, "bad").failures == (Failure("drivers/net/bad.c", REASON),)


def test_a_failure_of_the_analysis_is_a_reason_too(study: Study) -> None:
    assert row(study, "broken").failures[0].reason == "the analysis failed: KeyError: 'f'"


def test_json_gives_the_same_study_back(study: Study) -> None:
    report = told(study)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Study) == study
    assert conforms.check(report) is None
    assert {row.unit for row in report["rows"]} == {"%"}


def test_csv_has_a_row_for_each_driver_and_the_numbers_come_back(
    study: Study, tmp_path: Path
) -> None:
    file = tmp_path / "study.csv"
    sheet.write(study, file)
    with file.open(newline="") as stream:
        rows = {one["driver"]: one for one in csv.DictReader(stream)}
    assert sorted(rows) == ["bad", "broken", "empty", "good"]
    good = rows["good"]
    assert [
        int(good[name]) for name in ("functions", "lines", BASE.name, f"{BASE.name}:lines")
    ] == [3, 100, 2, 25]
    assert good["with_libraries:functions"] == ""
    assert (rows["bad"]["unread"], rows["bad"]["functions"]) == ("1", "0")


def test_the_table_is_markdown_and_has_the_paper_beside_it(study: Study) -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table.families(study))
    lines = [line.strip() for line in capture.get().splitlines() if line.strip()]
    assert lines[1].startswith("|--")
    assert "134: 27.8 %" in lines[2]
    assert "66.7 %" in lines[2]


class Page(HTMLParser):
    """Takes the text of elements and the embedded data out of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.inside = ""
        self.data: dict[str, str] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.inside = values.get("id") or tag if tag == "script" else ""
        self.outside += [
            value
            for key, value in attrs
            if key in ("src", "href") and value and not value.startswith("#")
        ]

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.data[self.inside] = self.data.get(self.inside, "") + data
        else:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.inside = ""


@pytest.fixture(scope="module")
def written(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("page")
    picture.draw(study, folder)
    details = {"drivers/net/good": GOOD.found.detail}
    page.write(study, details, folder / "study.svg", folder / "study.html")
    parsed = Page()
    parsed.feed((folder / "study.html").read_text(encoding="utf-8"))
    return parsed


def test_the_page_lists_what_could_not_be_read_with_the_reason(written: Page) -> None:
    assert f"drivers/net/bad.c: {REASON}" in written.text
    assert "the analysis failed: KeyError: 'f'" in written.text
    assert "it has no function of its own" in written.text


def test_the_page_names_folders_of_its_families_that_make_could_not_evaluate(
    written: Page, study: Study
) -> None:
    assert "drivers/net/odd: missing separator" in written.text
    assert list(study.broken) == ["drivers/net/odd"]


def test_the_page_needs_nothing_from_outside(written: Page) -> None:
    assert written.outside == []


def test_the_page_carries_the_whole_study(written: Page, study: Study) -> None:
    assert msgspec.json.decode(written.data["study"], type=Study) == study


def test_a_driver_can_be_opened_in_the_page(written: Page) -> None:
    packed = json.loads(written.data["details"])["drivers/net/good"]
    opened = detail.unpack(packed)
    assert [listed.name for listed in opened.functions] == ["xmit", "put", "idle"]
    assert opened.roots[0].template == "net/transmit"


def test_the_same_study_makes_the_same_picture(study: Study, tmp_path: Path) -> None:
    pictures = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        picture.draw(study, tmp_path / name)
        pictures.append((tmp_path / name / "study.svg").read_bytes())
    assert pictures[0] == pictures[1]
    assert not re.search(rb"<dc:date>", pictures[0])
