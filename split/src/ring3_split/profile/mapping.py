"""From addresses to function ids.

The calls of a run, as pairs of the functions that the facts know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ring3_split.indirect import is_header
from ring3_split.model import ModuleFacts
from ring3_split.profile.counts import Sample
from ring3_split.profile.image import Frame, Image
from ring3_split.profile.record import Pair

THUNK = "__x86_indirect_thunk"  # what calls through a pointer, register by register


class Names:
    """The functions of one module by name."""

    def __init__(self, facts: ModuleFacts) -> None:
        self.ids: dict[str, set[str]] = {}
        for unit in facts.units:
            for function in unit.functions:
                self.ids.setdefault(function.name, set()).add(function.id)
            for alias, target in unit.aliases.items():
                self.ids.setdefault(alias, set()).update(
                    f.id for f in unit.functions if f.name == target
                )

    def find(self, frame: Frame) -> str | None:
        """The id of a function.

        gcc writes ".isra.0", ".cold" and the like after the names of what it has changed.
        """
        found = self.ids.get(frame.name.split(".")[0], set())
        if len(found) > 1:
            found = {
                id_
                for id_ in found
                if frame.file and f"/{id_.rpartition(':')[0]}".endswith(f"/{frame.file}")
            }
        return next(iter(found)) if len(found) == 1 else None


@dataclass
class Mapped:
    """The outcome."""

    pairs: tuple[Pair, ...]
    unknown: dict[str, int]  # symbol -> calls
    invisible: tuple[str, ...]


@dataclass
class _Sum:
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    atomic: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)


def map_calls(
    samples: Sequence[Sample], images: Sequence[Image], facts: Sequence[ModuleFacts]
) -> Mapped:
    """Sums the calls up by caller and callee.

    The caller is the innermost function of the driver at the place of call; an inline function of a
    kernel header belongs to who calls it, and the kernel as caller is "".
    """
    names = {image.module: Names(module) for image, module in zip(images, facts, strict=True)}
    total = _Sum()
    chains = _chains(samples, images)
    for sample in samples:
        entered = next(
            (
                (image, frame)
                for image in images
                if (frame := image.entered(sample.callee, sample.epoch))
            ),
            None,
        )
        if entered is None:
            continue  # another module, or memory that was used again
        callee = _find(names, *entered, sample.calls, total)
        caller = _caller(names, chains.get((sample.back, sample.epoch)), sample.calls, total)
        if callee is not None and caller is not None:
            total.calls[caller, callee] += sample.calls
            total.atomic[caller, callee] += sample.atomic
    pairs = (Pair(*pair, count, total.atomic[pair]) for pair, count in sorted(total.calls.items()))
    return Mapped(
        tuple(pairs), dict(sorted(total.unknown.items())), _invisible(images, names, facts)
    )


def _find(
    names: dict[str, Names], image: Image, frame: Frame, calls: int, total: _Sum
) -> str | None:
    found = names[image.module].find(frame)
    if found is None:
        total.unknown[f"{image.module}:{frame.name}"] += calls
    return found


def _chains(
    samples: Sequence[Sample], images: Sequence[Image]
) -> dict[tuple[int, int], tuple[Image, tuple[Frame, ...]]]:
    """The functions around each place of call.

    The call instruction ends where the callee returns to.

    A function of the kernel that ends by calling a callback jumps to it, so that the callback seems
    to be called by who called the kernel. Such a place is left out: the call is the kernel's.
    """
    own = {function.name for image in images for function in image.object.functions}
    found: dict[tuple[int, int], tuple[Image, tuple[Frame, ...]]] = {}
    for image in images:
        places = {
            (sample.back, sample.epoch): place
            for sample in samples
            if (place := image.locate(sample.back - 1, sample.epoch))
            and not _calls_kernel(image, place, own)
        }
        frames = image.frames(places.values())
        found |= {
            key: (image, frames[place])
            for key, place in places.items()
            if key not in found and place in frames
        }
    return found


def _calls_kernel(image: Image, place: tuple[int, int], own: set[str]) -> bool:
    """Whether the call whose last byte is at a place is to a function of the kernel.

    Its operand is its last four bytes.
    """
    section, offset = place
    target = image.object.imported.get((section, offset - 3), "")
    return bool(target) and target not in own and not target.startswith(THUNK)


def _caller(
    names: dict[str, Names], chain: tuple[Image, tuple[Frame, ...]] | None, calls: int, total: _Sum
) -> str | None:
    if chain is None:
        return ""
    image, frames = chain
    known = [found for frame in frames if (found := names[image.module].find(frame))]
    own = next((found for found in known if not is_header(found)), None)
    if own is None and not known:
        total.unknown[f"{image.module}:{frames[-1].name if frames else '?'}"] += calls
    return own or (known[-1] if known else None)


def _invisible(
    images: Sequence[Image], names: dict[str, Names], facts: Sequence[ModuleFacts]
) -> tuple[str, ...]:
    own = {
        function.id
        for module in facts
        for unit in module.units
        for function in unit.functions
        if not is_header(function.file)
    }
    seen = {names[image.module].find(frame) for image in images for frame in image.visible()}
    return tuple(sorted(own - seen))
