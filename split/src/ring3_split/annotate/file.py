"""The file of questions and answers: DRIVER.annotations.toml.

A person edits it, the next run goes on from it.

    [questions."e1000_adapter.tx_ring"]   one table for each thing that cannot be inferred
    answer = ""                           the person's; never touched
    needed = false                        the plan of today does not ask it; kept for tomorrow's
    [inferred]                            a line each, always written anew; an answer to the
                                          same key takes precedence

Comments, order and layout that a person gave to `questions` stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.container import OutOfOrderTableProxy
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Table

from ring3_split.annotate.ask import Question
from ring3_split.annotate.case import Inferred
from ring3_split.annotate.survey import Survey
from ring3_split.errors import Refusal

VERSION = 1

Tables = Table | OutOfOrderTableProxy

HEADER = """\
What crosses between the two halves of a driver, and what the code does not tell: \
fill in each empty `answer`.
The vocabulary is in docs/split.md, section annotate. Check the answers with: \
ring3 split annotate DRIVER --check
"""


@dataclass
class File:
    """The file, as text that keeps what a person wrote."""

    path: Path
    document: tomlkit.TOMLDocument

    @property
    def questions(self) -> Tables:
        """The tables of questions."""
        return _table(self.document, "questions", self.path)

    def answers(self) -> dict[str, str]:
        """Answers that were given, by key."""
        return {
            key: answer
            for key, table in self.questions.items()
            if (answer := str(table.get("answer", "")).strip())
        }

    def update(self, survey: Survey, plan: str) -> None:
        """Brings the file up to date with a border; answers, comments and order stay."""
        self.document["driver"] = survey.border.driver
        self.document["kernel"] = survey.border.kernel
        self.document["plan"] = plan
        for key, question in survey.questions.items():
            self._ask(key, question)
        for key, table in self.questions.items():
            if key in survey.questions or (survey.concerns(key) and table.get("answer")):
                table.pop("needed", None)
            else:
                table["needed"] = False
        self.document["inferred"] = _inferred(survey.inferred)

    def line(self, key: str, name: str = "answer") -> int:
        """The line of a question's key, from 1; that of its head if it has none."""
        head = 0
        for number, text in enumerate(self.text().splitlines(), 1):
            if text.strip().startswith("["):
                head = number if text.strip() == f'[questions."{key}"]' else 0
            elif head and text.split("=")[0].strip() == name:
                return number
        return 1

    def text(self) -> str:
        """The file's text."""
        return tomlkit.dumps(self.document)

    def save(self) -> None:
        """Writes the file, whole or not at all."""
        beside = self.path.with_name(f"{self.path.name}.new")
        try:
            beside.write_text(self.text())
            beside.replace(self.path)
        except OSError as error:
            raise Refusal(f"{self.path}: {error.strerror}") from None

    def _ask(self, key: str, question: Question) -> None:
        table = self.questions.get(key)
        if table is None:
            table = tomlkit.table()
            self.questions[key] = table
        if not isinstance(table, dict):
            raise Refusal(f"{self.path}: questions.{key} is not a table")
        values: dict[str, Any] = {"where": question.where}
        if question.type:
            values["type"] = question.type
        values |= {
            "question": question.question,
            "known": list(question.known),
            "allowed": list(question.allowed),
        }
        for name, value in values.items():
            if table.get(name) != value:
                table[name] = _value(value)
        if "answer" not in table:
            table["answer"] = ""


def load(path: Path) -> File:
    """Reads the file, or begins one."""
    try:
        document = tomlkit.parse(path.read_text())
    except FileNotFoundError:
        return File(path, _empty())
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, TOMLKitError) as error:
        raise Refusal(f"{path}: not a TOML file: {error}") from None
    if document.get("version") != VERSION:
        raise Refusal(
            f"{path}: version {document.get('version')} of annotations, this program knows "
            f"{VERSION}"
        )
    file = File(path, document)
    for key, table in file.questions.items():
        if not isinstance(table, dict) or not isinstance(table.get("answer", ""), str):
            raise Refusal(f"{path}:{file.line(key)}: the answer to {key} is not a string")
    return file


def _empty() -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    for line in HEADER.splitlines():
        document.add(tomlkit.comment(line))
    document.add(tomlkit.nl())
    document.add("version", tomlkit.item(VERSION))
    for name in ("driver", "kernel", "plan"):
        document.add(name, tomlkit.item(""))
    document.add("questions", tomlkit.table(is_super_table=True))
    document.add("inferred", tomlkit.table())
    return document


def _table(document: tomlkit.TOMLDocument, name: str, path: Path) -> Tables:
    table = document.get(name)
    if table is None:
        table = tomlkit.table(is_super_table=True)
        document.add(name, table)
        table = document[name]
    # Tables that a person put behind `inferred` make one table in several places.
    if not isinstance(table, Table | OutOfOrderTableProxy):
        raise Refusal(f"{path}: `{name}` is not a table")
    return table


def _inferred(found: Mapping[str, Inferred]) -> Table:
    table = tomlkit.table()
    table.add(
        tomlkit.comment(
            "written anew each time; to overrule a line, add a table to `questions` with its key "
            "and an `answer`"
        )
    )
    for key, inferred in sorted(found.items()):
        line = tomlkit.inline_table()
        line.update(
            {
                "is": str(inferred.annotation),
                "why": "; ".join(str(evidence) for evidence in inferred.evidence),
            }
        )
        table.add(key, line)
    return table


def _value(value: Any) -> InlineTable | Any:
    """Lists stand one entry a line."""
    if isinstance(value, list):
        array = tomlkit.array()
        array.extend(value)
        return array.multiline(multiline=len(value) > 1)
    return value
