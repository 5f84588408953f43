"""The language of annotations, and the table of the kernel's functions that is written in it."""

from __future__ import annotations

import pytest

from ring3_split.annotate.api import known
from ring3_split.annotate.expression import Malformed, parse
from ring3_split.annotate.vocabulary import WORDS, read, usage


@pytest.mark.parametrize(
    "text",
    [
        "single",
        "single(struct e1000_adapter)",
        "array(count)",
        "array(count + 1, struct ring)",
        "out bytes(regs->len)",
        "in string",
        "list(struct ring, link)",
        "bytes(ETH_GSTRING_LEN * count(dev, set))",
        "dma(size)",
        "handle",
    ],
)
def test_an_annotation_is_written_as_it_was_read(text: str) -> None:
    assert str(read(text).annotation) == text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is none of"),
        ("many", "is none of"),
        ("array", "should be written array(LENGTH)"),
        ("bytes(3, 4)", "should be written bytes(LENGTH)"),
        ("array(count +)", "a number or a name is missing"),
        ("array(count $ 2)", "cannot be read"),
        ("single(ring)", "write `struct NAME`"),
        ("bytes(regs->)", "a member is missing after `regs`"),
        ("bytes(f(1)", "is missing in `f(1`"),
    ],
)
def test_what_is_wrong_is_said(text: str, wrong: str) -> None:
    with pytest.raises(Malformed) as caught:
        read(text)
    assert wrong in str(caught.value)


def test_a_length_names_members_functions_and_structs() -> None:
    length = parse("2 * (a->b.c + f(d, 1)) * sizeof(struct e)")
    assert (length.chains, length.passed) == ([("a", "b", "c")], [("d",)])
    assert (length.calls, length.structs) == (["f"], ["e"])


def test_each_word_says_how_it_is_written() -> None:
    assert [usage(word) for word in WORDS][:4] == [
        "single",
        "array(LENGTH)",
        "bytes(LENGTH)",
        "string",
    ]
    assert usage("array", typed=False) == "array(LENGTH, struct NAME)"
    assert usage("list") == "list(struct NAME, MEMBER)"


def test_every_note_of_the_table_can_be_read() -> None:
    apis = known()
    lines = [*apis.exact.values(), *(api for _, api in apis.patterns)]
    notes = [note for api in lines for note in (*api.arguments.values(), api.result) if note]
    notes += [note for callback in apis.callbacks.values() for note in callback.values()]
    assert [str(read(note).annotation) for note in notes] == notes


def test_an_exact_name_goes_before_a_pattern() -> None:
    apis = known()
    assert apis.of("mii_ethtool_gset").arguments == {1: "out single"}  # type: ignore[union-attr]
    assert apis.of("mii_link_ok").name == "mii_*"  # type: ignore[union-attr]


def test_a_longer_pattern_goes_before_a_shorter() -> None:
    assert known().of("napi_alloc_skb").way == "never"  # type: ignore[union-attr]


def test_an_allocator_of_newer_kernels_is_found_under_its_old_name() -> None:
    assert known().of("vzalloc_noprof").way == "memory"  # type: ignore[union-attr]


def test_what_the_table_does_not_name_is_not_known() -> None:
    assert known().of("frobnicate") is None


@pytest.mark.parametrize(
    "symbol",
    [
        "memdup_user",
        "memdup_user_nul",
        "mempool_alloc_noprof",
        "mempool_free",
        "mem_cgroup_charge_skmem",
        "strncpy_from_user",
        "strndup_user",
        "stream_open",
        "kstrtoul_from_user",
        "bitmap_zalloc",
        "bitmap_free",
        "bitmap_parse_user",
        "nla_put",
        "vmalloc_to_page",
    ],
)
def test_what_only_shares_the_prefix_of_a_library_is_asked_for(symbol: str) -> None:
    assert known().of(symbol) is None


@pytest.mark.parametrize(
    "symbol",
    [
        "memcpy",
        "memset",
        "memchr_inv",
        "strlen",
        "strim",
        "kstrtouint",
        "bitmap_print_to_pagebuf",
        "nla_find",
    ],
)
def test_a_function_of_a_library_is_computed_in_the_process(symbol: str) -> None:
    api = known().of(symbol)
    assert api is not None
    assert api.way == "local"
