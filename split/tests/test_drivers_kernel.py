"""Real drivers of the distribution's kernel.

Their roots, what is critical, and which modules they are made of.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import conforms
from ring3_split import cli, context, critical, driver, roots
from ring3_split.driver import Driver
from ring3_split.graph import Graph, lines, link
from ring3_split.kernel import Kernel
from ring3_split.roots.signatures import signatures

pytestmark = pytest.mark.kernel


def names(keys: object) -> set[str]:
    return {key.rpartition(":")[2] for key in keys}  # type: ignore[attr-defined]


def critical_of(graph: Graph, rule: str = "signature") -> set[str]:
    found = critical.propagate(graph, roots.of(graph, graph.driver, rule))
    return {key for key in found if graph.own(key)}


@pytest.mark.parametrize("rule", ["signature", "binding"])
def test_e1000_has_the_roots_that_a_person_finds(e1000: Driver, rule: str) -> None:
    found = roots.of(link(e1000), e1000, rule)
    assert names(found) == {"e1000_intr", "e1000_test_intr", "e1000_clean", "e1000_xmit_frame"}


def test_33_of_the_250_functions_of_e1000_are_critical(e1000: Driver) -> None:
    graph = link(e1000)
    found = critical_of(graph)
    assert (len(found), len(dict(graph.owned()))) == (33, 250)
    assert sum(lines(graph.functions[key]) for key in found) == 1795


def test_the_critical_functions_of_e1000_are_those_that_its_text_names(
    kernel: Kernel, e1000: Driver
) -> None:
    """An independent way: the words in the source of each function, from the roots on.

    No compiler, no types.

    The two pointers that the text calls through stand for the functions that it assigns to them.
    """
    graph = link(e1000)
    by_name = {function.name: function for _, function in graph.owned()}
    files = {
        function.file: (kernel.root / function.file).read_text().splitlines()
        for function in by_name.values()
    }
    whole = re.sub(r"\s+", " ", "\n".join("\n".join(text) for text in files.values()))
    reached, waiting = (
        set[str](),
        ["e1000_intr", "e1000_test_intr", "e1000_clean", "e1000_xmit_frame"],
    )
    while waiting:
        name = waiting.pop()
        reached.add(name)
        function = by_name[name]
        body = "\n".join(files[function.file][function.line : function.end])
        body = re.sub(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", "", body, flags=re.DOTALL)
        words = set(re.findall(r"(\w+)\s*\(", body))
        for pointer in {"clean_rx", "alloc_rx_buf"} & words:
            words |= set(re.findall(rf"adapter->{pointer} = (\w+);", whole))
        waiting += [word for word in words & by_name.keys() if word not in reached]
    assert reached == names(critical_of(graph))


def test_every_entry_of_e1000_has_a_known_context(e1000: Driver) -> None:
    graph = link(e1000, "field")
    assert context.unknown(graph) == {}
    atomic = {
        key
        for key, entries in context.of(graph).items()
        if any(entry.context == "atomic" for entry in entries)
    }
    kept = {
        "e1000_set_rx_mode",
        "e1000_tx_timeout",
        "e1000_netpoll",
        "e1000_get_link",
        "e1000_ioctl",
    }
    assert names(atomic) == kept | {
        "e1000_intr",
        "e1000_test_intr",
        "e1000_clean",
        "e1000_xmit_frame",
    }


def test_nothing_of_e1000_is_called_that_the_graph_does_not_have(e1000: Driver) -> None:
    assert link(e1000, "field").leaving == {}


def test_a_pointer_to_a_register_function_is_told_from_others_of_its_type_by_its_field(
    kernel: Kernel,
) -> None:
    pcnet32 = driver.load(kernel, "pcnet32")
    by_type, by_field = critical_of(link(pcnet32, "signature")), critical_of(link(pcnet32, "field"))
    assert by_field < by_type
    assert names(by_type - by_field) == {
        "pcnet32_dwio_read_bcr",
        "pcnet32_dwio_write_bcr",
        "pcnet32_wio_read_bcr",
        "pcnet32_wio_write_bcr",
    }


@pytest.mark.parametrize(
    ("name", "parts"),
    [("ne2k-pci", ["ne2k-pci", "8390"]), ("ahci", ["ahci", "libahci"]), ("mscc", ["mscc"])],
)
def test_a_driver_has_its_library_and_not_its_class(
    kernel: Kernel, name: str, parts: list[str]
) -> None:
    loaded = driver.load(kernel, name)
    assert [part.module.name for part in loaded.modules] == parts


def test_the_roots_of_ne2k_pci_are_in_its_library(kernel: Kernel) -> None:
    loaded = driver.load(kernel, "ne2k-pci")
    found = roots.of(link(loaded), loaded, "binding")
    assert set(found) == {
        "drivers/net/ethernet/8390/8390.c:ei_interrupt",
        "drivers/net/ethernet/8390/8390.c:ei_start_xmit",
    }


def test_a_kernel_lacks_fields_of_other_kernels_and_its_headers_say_which(kernel: Kernel) -> None:
    found = signatures(kernel, "net")
    assert "net_device_ops.ndo_start_xmit" in found.hashes
    assert "net_device.hard_start_xmit" in found.absent


def test_a_type_of_entry_points_that_are_not_critical_is_no_sign(kernel: Kernel) -> None:
    found = signatures(kernel, "sound")
    assert "snd_pcm_ops.trigger" in found.hashes
    assert found.shared["snd_pcm_ops.ack"] in ("snd_pcm_ops.open", "snd_pcm_ops.prepare")


def test_what_is_passed_to_ps2_init_is_a_root_by_its_type_too(kernel: Kernel) -> None:
    loaded = driver.load(kernel, "psmouse")
    graph = link(loaded, "field")
    signature, binding = (roots.of(graph, loaded, rule) for rule in ("signature", "binding"))
    assert names(signature) >= {"psmouse_pre_receive_byte", "psmouse_receive_byte"}
    assert set(binding) <= set(signature)


@pytest.mark.parametrize("family", sorted(roots.families()))
def test_each_familys_templates_compile_with_the_kernels_headers(
    kernel: Kernel, family: str
) -> None:
    found = signatures(kernel, family)
    for template in roots.templates(family):
        assert template.fields, f"{template.name} has no field, and so no type"
        others = (set(found.absent) | set(found.shared)).issuperset(template.fields)
        assert others or any(name in found.hashes for name in template.fields)
    assert found.hashes


def shown(cache: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["show", "e1000", "--cache", str(cache), *arguments]) == 0
    return capsys.readouterr().out


def test_show_gives_a_critical_function_with_its_chain(
    cache: Path, capsys: pytest.CaptureFixture[str], e1000: Driver
) -> None:
    assert e1000.failures == ()
    text = shown(cache, capsys)
    assert re.search(
        r"e1000_clean > e1000_set_itr \(line \d+\) > e1000_update_itr \(line \d+\)", text
    )
    assert re.search(r"critical +33 functions", text)


def test_show_says_the_same_in_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(cache, capsys, "--json", "--precision", "field")
    found = json.loads(out)
    assert conforms.printed(out, "split-show") is None
    assert (found["all"]["functions"], found["critical"]["functions"]) == (250, 33)
    one = next(one for one in found["functions"] if one["name"] == "e1000_clean_rx_irq")
    assert one["side"] == "critical"
    assert one["chain"][0]["field"] == "e1000_adapter.clean_rx"
    kept = next(one for one in found["functions"] if one["name"] == "e1000_set_rx_mode")
    assert kept["reasons"][0]["kind"] == "entry"


def test_show_gives_one_function_in_the_same_form(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(cache, capsys, "--json", "--function", "e1000_open")
    assert conforms.printed(out, "split-show") is None
    assert [one["name"] for one in json.loads(out)["functions"]] == ["e1000_open"]


def test_show_gives_one_function_with_its_callers(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(cache, capsys, "--function", "e1000_update_itr")
    assert "e1000_set_itr" in text
    assert "e1000_intr" not in text


def test_show_names_near_functions(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "e1000", "--cache", str(cache), "--function", "e1000_cleam"]) == 1
    assert "e1000_clean" in capsys.readouterr().err


def test_show_refuses_a_rule_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "e1000", "--rule", "magic"]) == 1
    assert "signature+binding" in capsys.readouterr().err
