"""A border and its annotations as text for a person, and as JSON for the code generator."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from ring3_split.annotate.border import Interface
from ring3_split.annotate.file import File
from ring3_split.annotate.outline import Piece
from ring3_split.annotate.survey import Survey


class Note(msgspec.Struct, omit_defaults=True):
    """What is known of one pointer, or of one thing that was asked."""

    key: str
    where: str
    origin: str  # "inferred", "answered", "open"
    answer: str = ""  # in the vocabulary; empty while it is open
    type: str = ""
    evidence: list[str] = []
    question: str = ""


class Counts(msgspec.Struct):
    """How much had to be said."""

    upcalls: int
    driver_downcalls: int  # functions of the driver's kernel half
    kernel_downcalls: int  # functions of the kernel that run there
    # all that user functions call, also through inlines that are taken apart, however they are met
    kernel_functions: int
    callees: int  # functions and inlines of the kernel that user functions call themselves
    structs: int
    members: int
    shared: int  # of these members, those that the driver's kernel half touches, too
    written_by_both: int
    inferred: int
    asked: int
    answered: int
    lines: int  # of the driver's functions
    asked_percent: float  # asked, of the lines: what a person writes, one annotation to a line
    annotated_percent: float  # asked and inferred, of the lines


class Report(msgspec.Struct):
    """All of it."""

    plan: str  # the plan that was looked at, in words
    counts: Counts  # how much had to be said
    interface: Interface  # what crosses between the halves
    notes: list[Note]  # each pointer and each question, by key
    sources: dict[str, list[Piece]] = {}  # the driver's files, in pieces at file scope


def report(survey: Survey, file: File, plan: str) -> Report:
    """Puts together what the survey found and what a person answered."""
    answers = file.answers()
    return Report(plan, _counts(survey, answers), survey.border, _notes(survey, answers))


def show(found: Report, console: Console, file: File) -> None:
    """Prints the counts and the open questions."""
    counts = found.counts
    console.print(f"{found.interface.driver}, {found.interface.kernel}, {found.plan}")
    console.print(
        f"  {counts.upcalls} upcalls, downcalls to {counts.driver_downcalls} functions of the "
        "kernel half and "
        f"{counts.kernel_downcalls} of {counts.kernel_functions} functions of the kernel; "
        f"{counts.members} members of {counts.structs} structs cross, {counts.shared} of them "
        "touched by both halves"
    )
    console.print(
        f"  {counts.inferred} annotations inferred, {counts.asked} asked, {counts.answered} of "
        "them answered: "
        f"{counts.asked_percent:.2f} % of {counts.lines} lines ({counts.annotated_percent:.2f} % "
        "with the inferred ones)"
    )
    table = Table("where", "what", "question", box=None, pad_edge=False)
    for note in found.notes:
        if note.origin == "open":
            table.add_row(note.where, f"{note.key} {note.type}".strip(), note.question)
    if table.row_count:
        console.print(f"\nOpen, in {file.path}:")
        console.print(table)


def _notes(survey: Survey, answers: dict[str, str]) -> list[Note]:
    notes = []
    for key in sorted(survey.items.keys() | survey.questions.keys()):
        item, inferred, question = (
            survey.items.get(key),
            survey.inferred.get(key),
            survey.questions.get(key),
        )
        answer = answers.get(key, "")
        origin = "answered" if answer else "inferred" if inferred else "open"
        note = Note(
            key,
            question.where if question else item.where if item else "",
            origin,
            answer,
            item.type if item else "",
        )
        if inferred and not answer:
            note.answer, note.evidence = (
                str(inferred.annotation),
                [str(evidence) for evidence in inferred.evidence],
            )
        if question:
            note.question, note.evidence = question.question, list(question.known)
        notes.append(note)
    return notes


def _counts(survey: Survey, answers: dict[str, str]) -> Counts:
    border, asked = survey.border, len(survey.questions)
    uses = [use for kind in border.types.values() for use in kind.members.values()]
    ways = [downcall.way for downcall in border.downcalls]
    return Counts(
        upcalls=len(border.entries),
        driver_downcalls=ways.count("driver"),
        kernel_downcalls=ways.count("downcall"),
        kernel_functions=len(ways) - ways.count("driver"),
        callees=survey.halves.callees(),
        structs=len(border.types),
        members=len(uses),
        shared=sum(bool(use.kernel) for use in uses),
        written_by_both=sum("w" in use.kernel and "w" in use.user for use in uses),
        inferred=len(survey.inferred),
        asked=asked,
        answered=sum(key in answers for key in survey.questions),
        lines=survey.lines,
        asked_percent=100 * asked / survey.lines if survey.lines else 0.0,
        annotated_percent=100 * (asked + len(survey.inferred)) / survey.lines
        if survey.lines
        else 0.0,
    )
