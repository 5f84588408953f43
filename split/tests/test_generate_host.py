"""What the generator makes of a SCSI host adapter whose struct lies behind its Scsi_Host.

vmw_pvscsi by its plan of examples/.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import conforms
from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate.border import Wishes
from ring3_split.generate.build import Built
from ring3_split.generate.halves import Generated, generate
from ring3_split.generate.summary import summary
from ring3_split.generate.table import Call, Field, Undo
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject
from ring3_split.plan.file import Side

pytestmark = pytest.mark.kernel
EXAMPLES = Path(__file__).parents[1] / "examples"
SOURCE = "drivers/scsi/vmw_pvscsi.c"
PROBE = f"{SOURCE}:pvscsi_probe"


def made(kernel: Kernel, folder: Path, **moved: Side) -> Generated:
    plan = load(EXAMPLES / "vmw_pvscsi.plan.toml")
    answers = file.load(EXAMPLES / "vmw_pvscsi.annotations.toml").answers()
    whole = subject.load(kernel, "vmw_pvscsi", "field", None, subject.Known(None, plan.contexts))
    sides = plan.sides() | {f"{SOURCE}:{name}": side for name, side in moved.items()}
    found = survey(whole.graph, sides, kernel.name, answers)
    return generate(kernel, kernel.module("vmw_pvscsi"), found, Wishes.of(plan, answers), folder)


@pytest.fixture(scope="module")
def host(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    return made(kernel, tmp_path_factory.mktemp("host"))


def view(generated: Generated, kind: str) -> dict[str, Field]:
    return {one.path: one for one in generated.border.table.views[PROBE][kind]}


def call(generated: Generated, name: str) -> Call:
    return next(one for one in generated.border.table.calls if one.name == name)


def kernel_half(generated: Generated) -> str:
    return (generated.folder / "kernel/vmw_pvscsi_main.c").read_text()


def test_what_lies_behind_a_host_begins_at_the_array_that_it_ends_in(host: Generated) -> None:
    inner, offset = host.border.behind["Scsi_Host"]
    assert inner == "pvscsi_adapter"
    assert view(host, "Scsi_Host")["pvscsi_adapter:mmioBase"].offset == offset
    assert f"static_assert(offsetof(struct Scsi_Host, hostdata) == {offset}," in kernel_half(host)


def test_members_that_a_probe_sets_of_the_drivers_own_table_reach_the_kernels_table(
    host: Generated,
) -> None:
    assert "pvscsi_template" in host.border.table.variables[PROBE]
    found = view(host, "scsi_host_template")
    assert {name for name, one in found.items() if one.written} == {"can_queue", "cmd_per_lun"}
    (bound,) = found["can_queue"].bounds
    assert (bound.low, bound.high) == (1, 1024)
    symbol = next(
        n for n, one in enumerate(host.border.table.symbols) if one.name == "pvscsi_template"
    )
    assert f"{{ {symbol}, &type_scsi_host_template, 1 }}" in (host.folder / "tables.c").read_text()


def test_lists_in_the_drivers_structs_are_changed_in_the_kernels_objects(host: Generated) -> None:
    assert [one.type for one in call(host, "list_add").arguments] == ["list_head", "list_head"]
    assert "head->next && !new->next" in call(host, "list_add").requires  # of any driver
    assert (
        "ctx < adapter->cmd_map + adapter->req_depth" in call(host, "list_add").requires
    )  # of this one
    assert {"INIT_LIST_HEAD", "list_add"} <= host.border.table.reach[PROBE]
    assert (
        "#define list_add split_stub_list_add"
        in (host.folder / "user/vmw_pvscsi_main.c").read_text()
    )


def test_lists_of_the_kernels_are_none_of_the_user_halfs(host: Generated) -> None:
    inside = {name: {inner for inner, _ in rows} for name, rows in host.border.table.inside.items()}
    assert "list_head" in inside["pvscsi_adapter"]
    assert "list_head" in inside["pvscsi_ctx"]
    assert not [
        name
        for name in ("device", "pci_dev", "Scsi_Host", "kobject")
        if "list_head" in inside[name]
    ]


def test_a_struct_on_the_stack_that_is_called_down_with_crosses_by_itself(host: Generated) -> None:
    assert call(host, "pvscsi_get_max_targets").arguments[0].type == "pvscsi_adapter"
    alone, behind = view(host, "pvscsi_adapter"), view(host, "Scsi_Host")
    assert alone["dev"].written
    assert (
        behind["pvscsi_adapter:dev"].offset
        == host.border.behind["Scsi_Host"][1] + alone["dev"].offset
    )


def test_a_format_need_not_be_the_last_argument_before_what_it_is_for(host: Generated) -> None:
    assert call(host, "alloc_workqueue").format == 0
    text = kernel_half(host)
    assert (
        'alloc_workqueue("%s", (unsigned int)arguments[1], (int)arguments[2], (void '
        "*)arguments[0]);" in text
    )


def test_where_a_device_reads_and_writes_the_user_half_can_set_to_nothing_but_0(
    host: Generated,
) -> None:
    for name in ("reqRingPA", "cmpRingPA", "msgRingPA", "ringStatePA", "req_depth", "req_pages"):
        (bound,) = view(host, "Scsi_Host")[f"pvscsi_adapter:{name}"].bounds
        assert (bound.low, bound.high) == (0, 0), name


def test_what_the_kernel_half_goes_by_is_set_once(host: Generated) -> None:
    for name in (
        "pvscsi_adapter:cmd_map",
        "pvscsi_adapter:host",
        "pvscsi_adapter:dev",
        "pvscsi_adapter:reqRingPA",
    ):
        assert view(host, "Scsi_Host")[name].once, name
    assert not view(host, "Scsi_Host")["max_id"].once
    assert "&type_pci_dev, 0, .once = 1 }" in (host.folder / "tables.c").read_text()


def test_a_member_that_is_said_to_be_set_once_and_does_not_cross_is_refused(
    kernel: Kernel, host: Generated, tmp_path: Path
) -> None:
    wishes = replace(host.border.wishes, once=frozenset({"pvscsi_adapter.cmd_pool"}))
    with pytest.raises(
        Refusal, match=r"once: pvscsi_adapter\.cmd_pool is no member that the user half sets"
    ):
        generate(kernel, kernel.module("vmw_pvscsi"), host.border.survey, wishes, tmp_path)


def test_a_host_that_a_failed_probe_has_made_is_taken_from_the_kernel_and_given_back(
    host: Generated,
) -> None:
    assert call(host, "scsi_add_host_with_dma").undo == Undo("scsi_remove_host", (0,), 0)
    assert call(host, "scsi_host_alloc").undo == Undo("scsi_host_put", (-1,), 0)
    rings = (
        kernel_half(host)
        .rpartition("void split_undo_pvscsi_allocate_rings(")[2]
        .partition("\n}")[0]
    )
    assert rings.index("ll_adapter_reset(adapter)") < rings.index("dma_free_coherent(")


def test_a_function_whose_result_is_a_pointer_is_not_asked_of_the_user_half(
    kernel: Kernel, tmp_path: Path
) -> None:
    with pytest.raises(
        Refusal, match=r"pvscsi_info returns a pointer.* place it in the kernel half"
    ):
        made(kernel, tmp_path, pvscsi_info=Side.USER)


def test_a_condition_of_a_list_that_nobody_changes_is_refused(
    kernel: Kernel, host: Generated, tmp_path: Path
) -> None:
    wishes = replace(host.border.wishes, requires={"list_add_tail": "true"})
    with pytest.raises(Refusal, match="list_add_tail is no function that the user half calls"):
        generate(kernel, kernel.module("vmw_pvscsi"), host.border.survey, wishes, tmp_path)


def test_a_fifth_of_the_lines_is_in_the_user_half(host: Generated) -> None:
    found = summary(host, None)
    assert found.kernel_lines <= 0.8 * found.lines


def test_a_summary_as_json_is_as_its_schema_says(host: Generated, tmp_path: Path) -> None:
    module = tmp_path / "vmw_pvscsi.ko"
    module.write_bytes(b"a module")
    built = Built(tmp_path / "ring3_split.ko", module, tmp_path / "vmw_pvscsi", "1", ("panic",))
    assert summary(host, built).module_bytes == 8
    for found in (summary(host, None), summary(host, built)):
        assert conforms.printed(msgspec.json.encode(found), "split-build") is None


def test_a_number_that_the_kernel_half_goes_by_may_be_set_as_long_as_the_plan_says(
    host: Generated,
) -> None:
    name = view(host, "Scsi_Host")["pvscsi_adapter:use_msg"].requires
    body = kernel_half(host).rpartition(f"int {name}(")[2].partition("\n}")[0]
    assert "__typeof__(object->use_msg) value = (__typeof__(object->use_msg))given;" in body
    assert "return !value || !object->cmd_map;" in body
