"""Counting rules of the study, on drivers small enough to count by hand."""

import pytest

from ring3_split.errors import Refusal
from ring3_split.study import count, families, marks, paper
from ring3_split.study.result import VERSION, FamilyResult, Study
from ring3_split.study.rules import BASE, RULES, Calls, Rule, bit

EVERY = (1 << len(RULES)) - 1
BY_SIGNATURE = sum(bit(rule) for rule in RULES if rule.calls == "signature")

# A driver of four functions with 105 lines. `f` is critical under every rule, `p` only where calls
# are followed by signature.
ROOTED = {
    "a/a.c:f": (10, EVERY),
    "a/a.c:p": (30, BY_SIGNATURE),
    "a/b.c:idle": (60, 0),
    "a/shared.h:inline": (5, 0),
}
# One of two functions without any root; it shares the inline.
ROOTLESS = {"b/b.c:idle": (20, 0), "a/shared.h:inline": (5, 0)}
DIRECT = Rule("direct", "signature", "data")


def test_a_function_that_two_drivers_contain_counts_once() -> None:
    scope = count.scope([ROOTED, ROOTLESS])
    assert (scope.drivers, scope.functions, scope.lines) == (2, 5, 125)


def test_pooled_is_a_share_of_all_functions_and_of_all_lines() -> None:
    tally = count.scope([ROOTED, ROOTLESS]).rules[BASE.name]
    assert (tally.critical, tally.percent) == (2, 40.0)
    assert (tally.critical_lines, tally.lines_percent) == (40, 32.0)


def test_drivers_without_roots_are_left_out_of_the_rooted_numbers_only() -> None:
    tally = count.scope([ROOTED, ROOTLESS]).rules[BASE.name]
    assert (tally.rooted, tally.rooted_functions, tally.rooted_lines) == (1, 4, 105)
    assert (tally.rooted_percent, tally.rooted_lines_percent) == (50.0, 38.1)


def test_in_the_mean_a_small_driver_weighs_as_much_as_a_large_one() -> None:
    tally = count.scope([ROOTED, ROOTLESS]).rules[BASE.name]
    assert (tally.mean, tally.rooted_mean, tally.rooted_median) == (25.0, 50.0, 50.0)


def test_each_rule_counts_its_own_functions() -> None:
    tally = count.scope([ROOTED, ROOTLESS]).rules[DIRECT.name]
    assert (tally.critical, tally.percent, tally.critical_lines) == (1, 20.0, 10)


def test_a_shared_function_is_critical_if_it_is_so_in_any_driver() -> None:
    other = ROOTLESS | {"a/shared.h:inline": (5, EVERY)}
    assert count.scope([ROOTED, other]).rules[BASE.name].critical == 3


def test_by_file_each_c_file_is_a_driver_and_headers_are_none() -> None:
    scope = count.scope(count.by_file([ROOTED, ROOTLESS]))
    assert (scope.drivers, scope.functions) == (3, 4)
    tally = scope.rules[BASE.name]
    assert (tally.rooted, tally.mean) == (1, round(100 / 3, 2))


def test_a_family_without_drivers_is_zero_everywhere() -> None:
    scope = count.scope([{}])
    assert scope.drivers == 0
    assert scope.rules[BASE.name].percent == 0.0


# root -> a -> b, root =(type)=> c -> a, root =(field)=> d; late is a timer only.
DIRECT_CALLS = {"root": {"a"}, "a": {"b"}, "c": {"a"}, "late": {"e"}}
GRAPHS: dict[Calls, marks.Graph] = {
    "direct": DIRECT_CALLS,
    "signature": DIRECT_CALLS | {"root": {"a", "c", "d"}},
    "field": DIRECT_CALLS | {"root": {"a", "d"}},
}
LINES = dict.fromkeys(("root", "a", "b", "c", "d", "e", "late", "idle"), 1)
START: marks.Start = {
    "root": [("signature", "data"), ("binding", "data")],
    "late": [("signature", "timers")],
}


def critical(rule: Rule) -> set[str]:
    found = marks.marks(LINES, GRAPHS, START)
    return {function for function, (_, bits) in found.items() if bits & bit(rule)}


def test_direct_calls_alone_follow_no_pointer() -> None:
    assert critical(DIRECT) == {"root", "a", "b"}


def test_a_call_by_signature_reaches_more_than_one_by_field() -> None:
    assert critical(BASE) == {"root", "a", "b", "c", "d"}
    assert critical(Rule("field", "signature", "data")) == {"root", "a", "b", "d"}


def test_timers_are_roots_only_where_the_rule_has_them() -> None:
    assert critical(Rule("direct", "signature", "deferred")) == {"root", "a", "b"}
    assert critical(Rule("direct", "signature", "timers")) == {"root", "a", "b", "late", "e"}


def test_a_root_found_by_one_finder_is_none_for_the_other() -> None:
    assert critical(Rule("direct", "binding", "timers")) == {"root", "a", "b"}


def test_a_cycle_of_calls_ends() -> None:
    found = marks.spread({"a": {"b"}, "b": {"a"}}, {"a": 1})
    assert found == {"a": 1, "b": 1}


def test_a_family_brings_those_that_lie_in_it() -> None:
    assert [family.name for family in families.asked(("net",))] == [
        "net",
        "net/ethernet",
        "net/wireless",
        "net/usb",
    ]


def test_scsi_and_ata_together_are_what_the_paper_calls_scsi() -> None:
    assert [family.name for family in families.asked(("scsi", "ata"))] == [
        "scsi",
        "ata",
        "scsi+ata",
    ]
    assert [family.name for family in families.asked(("scsi",))] == ["scsi"]


def test_a_folder_that_only_begins_alike_is_another_family() -> None:
    net = families.asked(("net",))[0]
    assert net.has("drivers/net/ethernet/intel/e1000")
    assert not net.has("drivers/network")


def test_an_unknown_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(Refusal, match=r"'nett'.*net.*sound"):
        families.asked(("nett",))


def study(*found: FamilyResult) -> Study:
    return Study(VERSION, "Linux test", RULES, found, ())


def family(name: str, drivers: list[count.Marks]) -> FamilyResult:
    scope = count.scope(drivers)
    said = next(one for one in families.known() if one.name == name)
    return FamilyResult(
        name,
        said.title,
        said.under,
        said.paper,
        len(drivers),
        0,
        0,
        0,
        scope,
        scope,
        count.scope(count.by_file(drivers)),
    )


def test_ways_of_counting_are_ordered_by_their_distance_from_the_paper() -> None:
    countings = paper.countings(study(family("net", [ROOTED, ROOTLESS])))
    assert len(countings) == 3 * 4 * len(RULES)
    assert [one.away for one in countings] == sorted(one.away for one in countings)
    # Mean over drivers by signature: 25 %, where the paper has 27.8 %.
    mean = next(
        one for one in countings if (one.unit, one.way, one.rule) == ("module", "mean", BASE.name)
    )
    assert (mean.percent, mean.away) == ({"net": 25.0}, 2.8)


def test_the_range_over_all_ways_of_counting_is_said() -> None:
    # Least: direct calls, mean over modules, (1 of 4 + 0) / 2. Most: by C file with roots, a.c,
    # whose two functions are critical.
    assert paper.ranges(paper.countings(study(family("net", [ROOTED, ROOTLESS])))) == {
        "net": (12.5, 100.0)
    }


def test_families_that_the_paper_does_not_have_are_not_compared() -> None:
    assert paper.countings(study(family("gpu", [ROOTED]))) == []
