"""Which bytes are texts, and where they end."""

from __future__ import annotations

import pytest

from ring3_split.generate.texts import last_bytes, last_bytes_within
from ring3_split.model import Layout, Member


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("char[16]", (15,)),
        ("const char[6]", (5,)),
        ("char[3][32]", (31, 63, 95)),
        ("char[0]", ()),
        ("char *[4]", ()),
        ("char", ()),
        ("u8[6]", ()),
        ("unsigned char[32]", ()),
        ("signed char[4]", ()),
    ],
)
def test_an_array_of_char_is_a_text_and_one_of_bytes_is_none(
    kind: str, expected: tuple[int, ...]
) -> None:
    assert last_bytes(kind) == expected


def test_of_some_members_it_is_said() -> None:
    assert last_bytes("unsigned char[44]", "snd_ctl_elem_id.name") == (43,)
    assert last_bytes("char[14]", "sockaddr.sa_data_min") == ()


def test_a_struct_that_is_copied_as_a_whole_has_the_texts_of_its_members() -> None:
    inner = Layout(
        "inner",
        "d/a.c",
        1,
        12,
        (Member("number", "int", 0, 4), Member("name", "char[8]", 4, 8, count=8)),
    )
    outer = Layout(
        "outer",
        "d/a.c",
        5,
        32,
        (
            Member("two", "struct inner[2]", 0, 24, count=2, struct="inner"),
            Member("label", "char[4]", 24, 4, count=4),
            Member("raw", "char[4]", 28, 4, count=4, union=1),
            Member("word", "u32", 28, 4, union=1),
        ),
    )
    known = {"inner": inner, "outer": outer}
    place = Member("places", "struct outer[2]", 64, 64, count=2, struct="outer")
    assert last_bytes_within(place, outer.members, known.get) == (11, 23, 27, 43, 55, 59)
