"""The locks of a border, and the prototypes of what is called."""

from __future__ import annotations

from pathlib import Path

from border import OPEN, Border, function, number
from ring3_split.model import Kind, Region
from ring3_split.prototypes import Prototype, compiled


def held(kind: Kind, lock: str, line: int = 12) -> tuple[Region, ...]:
    return (Region(kind, lock, line, (line,), (line,)),)


def test_a_mutex_of_both_halves_is_taken_in_the_kernel_and_given_back_when_the_user_half_dies() -> (
    None
):
    border = Border(number("a"))
    border.functions["nic_open"] = function("nic_open", regions=held(Kind.MUTEX, "nic.mutex"))
    border.functions["nic_send"] = function(
        "nic_send", line=30, regions=held(Kind.MUTEX, "nic.mutex", 32)
    )
    lock = border.look().border.locks["nic.mutex"]
    assert (lock.way, bool(lock.on_death), [taker.half for taker in lock.takers]) == (
        "downcall",
        True,
        ["user", "kernel"],
    )


def test_a_mutex_of_the_user_half_alone_is_its_own() -> None:
    border = Border(number("a"))
    border.functions["nic_open"] = function("nic_open", regions=held(Kind.MUTEX, "nic.mutex"))
    assert border.look().border.locks["nic.mutex"].way == "local"


def test_rtnl_is_always_taken_in_the_kernel() -> None:
    border = Border(number("a"))
    border.functions["nic_open"] = function("nic_open", regions=held(Kind.RTNL, ""))
    lock = border.look().border.locks["rtnl"]
    assert (lock.way, lock.takers[0].function) == ("downcall", OPEN)


def test_a_spinlock_tells_how_the_kernel_comes_to_it() -> None:
    border = Border(number("a"))
    border.functions["nic_send"] = function(
        "nic_send", line=30, regions=held(Kind.SPIN, "nic.lock", 32)
    )
    lock = border.look().border.locks["nic.lock"]
    assert (lock.way, lock.takers[0].contexts) == ("kernel", ["unknown: an entry"])
    assert "not known" in lock.combolock


def test_a_prototype_is_that_of_the_header_even_where_a_macro_has_the_name(
    clang: Path, tmp_path: Path
) -> None:
    text = (
        "int get(const char *name, ...);\n#define get(x) 0\ntypedef unsigned long "
        "size_t;\nvoid *take(size_t n);\n"
    )
    (tmp_path / "a.c").write_text(text)
    found = compiled(str(clang), (), tmp_path, "a.c", ["absent", "get", "take"])
    assert found == {
        "get": Prototype("int", ("const char *",), True),
        "take": Prototype("void *", ("size_t",)),
    }


def test_a_unit_that_does_not_compile_has_no_prototypes(clang: Path, tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int broken(\n")
    assert compiled(str(clang), (), tmp_path, "a.c", ["broken"]) == {}
