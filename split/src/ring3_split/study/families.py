"""Driver families, by where they live in the kernel tree."""

from __future__ import annotations

from importlib import resources

import msgspec

from ring3_split.errors import Refusal

DEFAULT = ("net", "scsi", "ata", "sound")  # the paper's


class Paper(msgspec.Struct, frozen=True):
    """What [Microdrivers, Figure 2] says of a family."""

    drivers: int
    critical: float  # percent of the functions


class Family(msgspec.Struct, frozen=True):
    """Drivers of one kind."""

    title: str
    under: tuple[str, ...]  # folders, relative to the kernel tree
    paper: Paper | None = None
    name: str = ""

    def has(self, directory: str) -> bool:
        """Whether a module of this folder belongs to it."""
        return any(directory == top or directory.startswith(top + "/") for top in self.under)


def known() -> tuple[Family, ...]:
    """All families, in the order in which they are shown."""
    text = resources.files(__package__).joinpath("families.toml").read_bytes()
    table = msgspec.toml.decode(text, type=dict[str, Family])
    return tuple(msgspec.structs.replace(family, name=name) for name, family in table.items())


def asked(names: tuple[str, ...]) -> tuple[Family, ...]:
    """The families with these names and those that lie in them altogether.

    Raises:
        Refusal: a name that no family has.
    """
    families = {family.name: family for family in known()}
    for name in names:
        if name not in families:
            raise Refusal(f"no driver family is called {name!r}: there are {', '.join(families)}")
    folders = [folder for name in names for folder in families[name].under]
    whole = Family(title="", under=tuple(folders))
    return tuple(
        family for family in families.values() if all(whole.has(folder) for folder in family.under)
    )
