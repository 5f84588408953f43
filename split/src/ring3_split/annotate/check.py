"""Judges answers: every question has one, its names exist, its types fit.

What is unknown is refused with its place.
"""

from __future__ import annotations

from ring3_split.annotate.ask import WORDS_FOR
from ring3_split.annotate.declared import pointee
from ring3_split.annotate.definitions import Definitions
from ring3_split.annotate.expression import Expression, Malformed
from ring3_split.annotate.items import Item
from ring3_split.annotate.survey import Survey
from ring3_split.annotate.vocabulary import Parts, read, usage
from ring3_split.model import Member


class Judge:
    """Judges answers about one border."""

    def __init__(self, survey: Survey, definitions: Definitions) -> None:
        self.survey = survey
        self.definitions = definitions

    def complaint(self, key: str, answer: str) -> str:
        """What is wrong with an answer; "" if nothing is."""
        question, item = self.survey.questions.get(key), self.survey.items.get(key)
        try:
            if item is not None:
                return self._pointer(item, read(answer))
            # What another plan asks of a function that this one has in the kernel half changes
            # nothing.
            unasked = ("kernel",) if key in self.survey.halves.user else ("kernel", "refuse")
            allowed = question.allowed if question else unasked
            if not self.survey.concerns(key):
                return "nothing of this name crosses, and the driver has no such function"
            return "" if answer in allowed else f"`{answer}` is none of: {', '.join(allowed)}"
        except Malformed as wrong:
            return str(wrong)

    def _pointer(self, item: Item, parts: Parts) -> str:
        annotation = parts.annotation
        words = (*WORDS_FOR[item.pointee], "operations")
        if annotation.word not in words:
            fitting = ", ".join(usage(word, typed=item.pointee != "void") for word in words)
            return f"`{annotation.word}` does not fit `{item.type}`: {fitting}"
        if (
            item.pointee == "void"
            and annotation.word in ("single", "array")
            and not annotation.type
        ):
            return (
                f"`{item.type}` does not say what it points to: write "
                f"{usage(annotation.word, typed=False)}"
            )
        if (
            annotation.type
            and annotation.type not in self.survey.layouts
            and not self.definitions.struct(annotation.type)
        ):
            return f"struct {annotation.type} is not defined anywhere"
        if annotation.member and not self._has(annotation.type, annotation.member):
            return f"struct {annotation.type} has no member `{annotation.member}`"
        return self._length(item, parts.length) if parts.length else ""

    def _has(self, struct: str, path: str) -> bool:
        """Whether a struct has a member, if its layout is known."""
        if struct not in self.survey.layouts:
            return True
        return self.survey.layouts.member(f"{struct}.{path.partition('.')[0]}") is not None

    def _length(self, item: Item, length: Expression) -> str:
        for struct in length.structs:
            if (
                struct not in self.survey.layouts
                and not self.definitions.struct(struct)
                and pointee(f"{struct} *") == ("struct", struct)
            ):
                return f"struct {struct} is not defined anywhere"
        graph = self.survey.halves.graph
        for call in length.calls:
            if not any(function.name == call for _, function in graph.owned()):
                return f"`{call}` is no function of the driver"
        for chain in length.passed:
            if not self._passed(item, chain):
                return f"`{chain[0]}` is nothing that could be passed here"
        return next((wrong for chain in length.chains if (wrong := self._chain(item, chain))), "")

    def _passed(self, item: Item, chain: tuple[str, ...]) -> bool:
        """Whether an argument begins with something that is there.

        `this` is the struct that holds a member.
        """
        if item.kind == "field":
            owner = item.key.rpartition(".")[0]
            known = (
                chain[0] == "this" or self.survey.layouts.member(f"{owner}.{chain[0]}") is not None
            )
        else:
            facts = self.survey.halves.graph.functions.get(item.function)
            known = facts is not None and any(one.name == chain[0] for one in facts.parameters)
        return known or (len(chain) == 1 and self.definitions.constant(chain[0]))

    def _chain(self, item: Item, chain: tuple[str, ...]) -> str:
        """What is wrong with `first->second.third`."""
        constant = len(chain) == 1 and self.definitions.constant
        if item.kind == "field":
            wrong = self._members(item.key.rpartition(".")[0], chain)
            return "" if wrong and constant and constant(chain[0]) else wrong
        facts = self.survey.halves.graph.functions.get(item.function)
        declared = {one.name: one.type for one in facts.parameters} if facts else {}
        if chain[0] not in declared:
            return (
                ""
                if constant and constant(chain[0])
                else f"`{chain[0]}` is no parameter of the function, and no constant"
            )
        target = pointee(declared[chain[0]])
        if len(chain) == 1:
            return f"`{chain[0]}` is a pointer, not a number" if target else ""
        return self._members(target[1] if target else "", chain[1:], chain[0])

    def _members(self, struct: str, names: tuple[str, ...], before: str = "") -> str:
        """What is wrong with a way through members, which must end at a number."""
        for name in names:
            if struct not in self.survey.layouts:
                return (
                    ""
                    if struct and self.definitions.struct(struct)
                    else f"`{before}` has no members"
                )
            member = self.survey.layouts.member(f"{struct}.{name}")
            if member is None:
                return f"`{name}` is no member of struct {struct}"
            if name is names[-1] and not _number(member):
                return f"`{name}` of struct {struct} is not a number: {member.type}"
            struct, before = member.struct or member.pointee, name
        return ""


def _number(member: Member) -> bool:
    return (
        not member.pointee
        and not member.struct
        and member.count is None
        and not member.type.rstrip().endswith("*")
    )
