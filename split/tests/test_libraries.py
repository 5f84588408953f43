"""Which modules are a part of a driver."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from facts import function, module, unit
from ring3_split.libraries import libraries
from ring3_split.model import Call, Indirect, ModuleFacts, Stored

ETHERNET = "drivers/net/ethernet/maker/model"


def parts(
    *others: ModuleFacts,
    used: str = "help",
    directory: str = ETHERNET,
    stored: tuple[Stored, ...] = (),
) -> list[str]:
    """The libraries of a driver that calls `used`; the others export what they define."""
    own = module(
        unit(function("probe", calls=(Call(used, 11),)), stored=stored),
        name="own",
        directory=directory,
    )
    named = {other.module.name: other for other in others}
    exporters = {
        symbol: name
        for name, other in named.items()
        for unit in other.units
        for symbol in unit.exports
    }

    def facts(names: Iterable[str]) -> list[ModuleFacts]:
        return [named[name] for name in names]

    return [part.module.name for part in libraries(own, exporters, facts)]


def library(
    directory: str, name: str = "library", symbol: str = "help", **more: object
) -> ModuleFacts:
    stored = more.pop("stored", ())
    part = unit(
        function(symbol, f"{directory}/l.c", **more),
        source=f"{directory}/l.c",
        exports=(symbol,),
        stored=stored,
    )
    return module(part, name=name, directory=directory)


def test_a_module_that_the_kernel_enters_with_data_is_a_part() -> None:
    entered = library(
        "drivers/net", stored=(Stored("help", 1, field="net_device_ops.ndo_start_xmit"),)
    )
    assert parts(entered) == ["library"]


def test_a_module_whose_function_the_driver_binds_is_a_part() -> None:
    handler = (Stored("help", 12, api="request_irq", argument=1),)
    assert parts(library("drivers/net"), stored=handler) == ["library"]


def test_a_helper_that_the_kernel_does_not_enter_is_no_part() -> None:
    assert parts(library("drivers/net")) == []


def test_a_helper_in_the_drivers_own_directory_or_above_is_a_part() -> None:
    assert parts(library(ETHERNET)) == ["library"]
    assert parts(library("drivers/net/ethernet/maker")) == ["library"]
    assert parts(library(f"{ETHERNET}/other")) == []


def test_the_class_that_calls_its_drivers_is_no_part() -> None:
    calls = (Indirect(7, 12, field="ata_port_operations.qc_issue"),)
    stored = (Stored("help", 1, field="ata_port_operations.qc_prep"),)
    core = library("drivers/ata", indirect=calls, stored=stored)
    assert parts(core, directory="drivers/ata") == []


def test_a_module_of_another_family_is_no_part() -> None:
    assert (
        parts(library("drivers/scsi", stored=(Stored("help", 1, field="irqaction.handler"),))) == []
    )


def test_a_librarys_library_is_a_part() -> None:
    near = library(ETHERNET, name="near", calls=(Call("deep", 11),))
    deep = library(ETHERNET, name="deep", symbol="deep")
    assert parts(near, deep) == ["near", "deep"]


@pytest.mark.parametrize("name", ["net_failover", "macsec"])
def test_a_device_of_its_own_is_no_part(name: str) -> None:
    entered = library(
        "drivers/net", name=name, stored=(Stored("help", 1, field="net_device_ops.ndo_start_xmit"),)
    )
    assert parts(entered) == []
