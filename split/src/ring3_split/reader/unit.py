"""What the parts of the reader share about one translation unit."""

from __future__ import annotations

from pathlib import Path

from ring3_split.ir.fields import Fields
from ring3_split.ir.instruction import Instruction
from ring3_split.ir.module import IrModule
from ring3_split.reader.ctypes import CTypes
from ring3_split.reader.sources import Sources


class Context:
    """A module with its sources and names."""

    def __init__(self, module: IrModule, root: Path) -> None:
        self.module = module
        self.metadata = module.metadata
        self.fields = Fields.of(module)
        self.ctypes = CTypes(module.metadata)
        self.sources = Sources(root)
        module.spelled = self.spelled

    def path(self, node: int) -> str:
        """The absolute path of the file of a subprogram, variable or type."""
        return self.metadata.file(self.metadata.reference(node, "file"))

    def file(self, node: int) -> str:
        """The file of a subprogram, variable or type, relative to the tree."""
        return self.sources.relative(self.path(node))

    def spelled(self, instruction: Instruction) -> list[str]:
        """The names that stand in the source where an instruction is.

        A member, and the members of it that follow.
        """
        scope = self.metadata.reference(instruction.scope, "file")
        if not scope:
            return []
        return self.sources.text(self.metadata.file(scope)).words(
            instruction.line, instruction.column
        )

    def is_function(self, symbol: str) -> bool:
        """Whether a symbol is a function, or stands for one."""
        symbol = self.module.aliases.get(symbol, symbol)
        return symbol in self.module.functions or symbol in self.module.declarations
