"""What a judge of plans says."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a plan breaks or rests on."""

    # Of faults: "atomic", "section", "entry", "root", "fixed", "unpaired", "bracket", "lock",
    # "combolock", "inline", "seen" or "source"; of assumptions: "context", "stated", "combolock" or
    # "copy".
    rule: str
    function: str  # its id, or the lock
    text: str
    path: tuple[str, ...] = ()  # the chain of calls, one a line, with file:line


class Verdict(msgspec.Struct, frozen=True):
    """What the judge found. The plan holds if there are no faults, as far as the assumptions do."""

    faults: tuple[Finding, ...]
    assumptions: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def read(self) -> bool:
        """Whether the plan is one of this source; only then it was judged."""
        return all(fault.rule != "source" for fault in self.faults)

    @property
    def holds(self) -> bool:
        """Whether nothing is broken."""
        return not self.faults
