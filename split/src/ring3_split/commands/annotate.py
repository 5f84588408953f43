"""`ring3 split annotate`.

What crosses between the halves of a plan, what is inferred, and the file that asks for the rest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import msgspec
from rich.console import Console

from ring3_split import source_options
from ring3_split.annotate import file
from ring3_split.annotate.check import Judge
from ring3_split.annotate.definitions import Definitions
from ring3_split.annotate.file import File
from ring3_split.annotate.outline import outline
from ring3_split.annotate.report import report, show
from ring3_split.annotate.survey import Survey, survey
from ring3_split.errors import Refusal
from ring3_split.indirect import is_header
from ring3_split.kernel import Kernel
from ring3_split.plan import Plan, load, planner, subject, weights
from ring3_split.prototypes import prototypes

WIDE = 10_000  # columns of what is not a terminal: nothing is folded


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "annotate",
        help="what crosses between the halves of a plan; asks for what cannot be inferred",
        description="Lists what crosses between the halves of a driver, infers what each pointer "
        "stands for, and writes the "
        "questions that remain into a file, which keeps the answers of earlier runs.",
    )
    parser.add_argument(
        "driver",
        nargs="?",
        metavar="DRIVER",
        help="module, as `modinfo` names it; with --plan it may be left out",
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        type=Path,
        help="a plan, as `plan --out` writes it; default the cut that `plan DRIVER` makes",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the file of questions; default DRIVER.annotations.toml",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="judge the answers, write nothing; 1 if anything is unknown or wrong",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the border and all annotations, write nothing"
    )
    source_options.add(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; its exit code."""
    plan = load(arguments.plan) if arguments.plan else None
    name = _name(arguments.driver, plan)
    path = arguments.out or Path(f"{name}.annotations.toml")
    if arguments.check and not path.exists():
        raise Refusal(
            f"{path}: is not there: write it with `annotate {name} --out {path}`, answer it, then "
            "check"
        )
    kernel = source_options.kernel(arguments)
    questions = file.load(path)
    found, described = look(kernel, name, plan, questions.answers(), arguments.jobs)
    questions.update(found, described)
    if arguments.check:
        return _check(questions, found, Judge(found, definitions(kernel, found)))
    result = report(found, questions, described)
    if arguments.json:
        result.sources = outline(kernel.root, _files(found))
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        return 0
    questions.save()
    show(result, Console(highlight=False, width=None if sys.stdout.isatty() else WIDE), questions)
    return 0


def look(
    kernel: Kernel,
    name: str,
    plan: Plan | None,
    answers: Mapping[str, str],
    jobs: int | None = None,
) -> tuple[Survey, str]:
    """The border of a driver under a plan, and what plan that is."""
    whole = subject.load(
        kernel, name, "signature" if plan and plan.precision == "signature" else "field", jobs
    )
    if plan is None:
        plan = planner.cut(whole, weights.places(whole), Fraction(1))
    strange = next(
        (function for function in plan.functions if function not in whole.graph.functions), None
    )
    if strange:
        raise Refusal(
            f"the plan places {strange}, which {name} of {kernel.name} does not have: make the "
            "plan anew"
        )
    described = f"{plan.method}, {plan.totals.kernel_percent:.1f} % of the lines in the kernel"
    declared = prototypes(kernel, whole.graph.driver.modules)
    return survey(whole.graph, plan.sides(), kernel.name, answers, declared), described


def definitions(kernel: Kernel, found: Survey) -> Definitions:
    """Where names in answers are looked up.

    The folders of the driver, then the kernel's headers.
    """
    modules = found.halves.graph.driver.modules
    return Definitions(
        kernel.root, tuple(dict.fromkeys(facts.module.directory for facts in modules))
    )


def _files(found: Survey) -> list[str]:
    """The files of the driver that have code or structs of its own."""
    code = {function.file for _, function in found.halves.graph.owned()}
    return sorted(
        code
        | {layout.file for layout in found.layouts.structs.values() if not is_header(layout.file)}
    )


def _check(questions: File, found: Survey, judge: Judge) -> int:
    """Prints each thing that is unknown or wrong with its place; 1 if there is one."""
    answers = questions.answers()
    problems = [
        f"{question.where}: {key}: {question.question}"
        for key, question in found.questions.items()
        if key not in answers
    ]
    for key, answer in answers.items():
        # A question that this plan does not ask keeps its answer unjudged; a table that a person
        # made is always judged.
        if found.concerns(key) or "question" not in questions.questions[key]:
            wrong = judge.complaint(key, answer)
            if wrong:
                problems.append(f"{questions.path}:{questions.line(key)}: {key}: {wrong}")
    for problem in problems:
        print(problem)
    if problems:
        print(
            f"{found.border.driver}: {len(problems)} unknown or wrong: nothing can be generated "
            "yet",
            file=sys.stderr,
        )
        return 1
    print(
        f"{found.border.driver}: all {len(found.questions)} questions are answered, "
        f"{len(found.inferred)} annotations inferred"
    )
    return 0


def _name(given: str | None, plan: Plan | None) -> str:
    if plan is None and given is None:
        raise Refusal("name a driver, or a plan with --plan FILE")
    if plan is not None and given not in (None, plan.driver):
        raise Refusal(f"the plan is for {plan.driver}, not for {given}")
    return given or (plan.driver if plan else "")
