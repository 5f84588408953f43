"""What the generator makes of the border of a real driver, and the halves that build of it."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from ring3_split.annotate.survey import Survey, survey
from ring3_split.generate import complete, fields
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.table import Field
from ring3_split.kernel import Kernel
from ring3_split.plan import planner, subject, weights

PROBE = "sound/pci/ens1370.c:snd_audiopci_probe"


def test_members_of_a_union_cross_as_one() -> None:
    found = fields.disjoint([Field("a", 8, 4), Field("b", 8, 16, written=True), Field("c", 24, 8)])
    assert found == [Field("b", 8, 16, written=True), Field("c", 24, 8)]


def test_a_pointer_that_shares_its_place_with_a_number_is_none() -> None:
    (found,) = fields.disjoint(
        [Field("p", 0, 8, "POINTER", type="x"), Field("n", 0, 8, written=True)]
    )
    assert (found.kind, found.type) == ("DATA", "")


@pytest.fixture(scope="module")
def sound(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    whole = subject.load(kernel, "snd-ens1370", "field")
    plan = planner.cut(whole, weights.places(whole), Fraction(1))
    found: Survey = survey(whole.graph, plan.sides(), kernel.name)
    return generate(
        kernel, kernel.module("snd-ens1370"), found, Wishes(), tmp_path_factory.mktemp("sound")
    )


def view(generated: Generated, entry: str, kind: str) -> dict[str, Field]:
    return {one.path: one for one in generated.border.table.views[entry][kind]}


@pytest.mark.kernel
def test_a_pointer_may_be_null_where_the_driver_hands_null(sound: Generated) -> None:
    controls = next(one for one in sound.border.table.calls if one.name == "snd_pcm_add_chmap_ctls")
    last = controls.declared.parameters[-1].name
    assert controls.requires
    assert last not in controls.requires.split(" && ")


@pytest.mark.kernel
def test_all_that_the_user_half_of_a_sound_card_calls_can_be_had(sound: Generated) -> None:
    assert sound.border.table.refused == {}


@pytest.mark.kernel
def test_locks_never_cross(sound: Generated) -> None:
    for views in sound.border.table.views.values():
        for name in ("reg_lock", "src_mutex", "reg_mutex"):
            assert not any(one.path == name for kind in views.values() for one in kind)


@pytest.mark.kernel
def test_only_what_an_entry_writes_can_come_back(sound: Generated) -> None:
    found = view(sound, "sound/pci/ens1370.c:snd_ensoniq_playback1_close", "ensoniq")
    assert {name for name, one in found.items() if one.written} == {"mode", "playback1_substream"}
    assert (
        view(sound, "sound/pci/ens1370.c:snd_ensoniq_proc_read", "ensoniq")["ctrl"].written is False
    )


@pytest.mark.kernel
def test_a_void_pointer_is_what_the_entry_uses_it_as(sound: Generated) -> None:
    name = "private_data"
    assert (
        view(sound, "sound/pci/ens1370.c:snd_ensoniq_proc_read", "snd_info_entry")[name].type
        == "ensoniq"
    )
    assert (
        view(sound, "sound/pci/ak4531_codec.c:snd_ak4531_proc_read", "snd_info_entry")[name].type
        == "snd_ak4531"
    )


@pytest.mark.kernel
def test_a_driver_is_built_with_a_question_that_each_entry_answers_by_itself(
    sound: Generated,
) -> None:
    assert sound.border.survey.questions.keys() == {"snd_info_entry.private_data"}
    complete.check(sound.border)


@pytest.mark.kernel
def test_a_static_table_that_the_kernel_keeps_is_a_symbol_of_both_halves(sound: Generated) -> None:
    (found,) = [one for one in sound.border.table.symbols if one.name == "snd_ak4531_mixer.ops"]
    assert found.type == "snd_device_ops"
    for half in ("kernel", "user"):
        assert (
            "split_ops_of_snd_ak4531_mixer = {"
            in (sound.folder / half / "ak4531_codec.c").read_text()
        )


@pytest.mark.kernel
def test_parameters_of_the_module_go_to_the_entries_that_read_them(sound: Generated) -> None:
    assert sound.border.table.variables[PROBE] == ["enable", "id", "index", "joystick"]


@pytest.mark.kernel
def test_the_kernel_half_has_a_stub_for_each_entry_and_no_other_function_of_the_user_half(
    sound: Generated,
) -> None:
    text = "".join((sound.folder / "kernel" / f"{unit.stem}.c").read_text() for unit in sound.units)
    compiled = re.sub(r"(?ms)^#if 0$.*?^#endif$", "", text)
    assert (
        len(re.findall(r"split_upcall\(split_host, \d+, arguments\)", compiled))
        == len(sound.border.table.entries)
        == 20
    )
    assert "snd_ensoniq_create(" not in compiled
    assert "snd_audiopci_interrupt(int irq" in compiled


@pytest.mark.kernel
def test_generating_twice_gives_the_same(sound: Generated, kernel: Kernel, tmp_path: Path) -> None:
    again = generate(kernel, kernel.module("snd-ens1370"), sound.border.survey, Wishes(), tmp_path)
    for name in ("tables.c", "kernel/ens1370.c", "user/ens1370.c"):
        assert (again.folder / name).read_bytes() == (sound.folder / name).read_bytes(), name


@pytest.mark.kernel
def test_an_entry_may_call_what_its_own_code_calls(sound: Generated) -> None:
    table = sound.border.table
    mixer = "sound/pci/ak4531_codec.c:snd_ak4531_put_single"
    assert not {call.name for call in table.calls} & table.reach[mixer]
    assert {"snd_devm_card_new", "snd_card_register", "devm_request_irq"} <= table.reach[PROBE]
    assert mixer not in table.freeing
    assert "sound/pci/ak4531_codec.c:snd_ak4531_dev_free" in table.freeing
