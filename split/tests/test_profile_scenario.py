"""The scenario that the lab gets, and the tables that it is made from."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ring3_split.errors import Refusal
from ring3_split.model import Module
from ring3_split.profile import build, lab, scenario
from ring3_split.profile.devices import HERE, Device, device, devices, kinds, steps


def run(
    driver: str = "e1000", found: Device | None = None, workload: str = "usual"
) -> scenario.Run:
    module = Path(f"/cache/{driver}.ko")
    return scenario.Run(
        driver,
        found or device(driver),
        workload,
        2.0,
        "6.12",
        (module,),
        ("mii",),
        (Path("/cache/calls"),),
    )


def made(wish: scenario.Run) -> dict[str, Any]:
    return tomllib.loads(scenario.text(wish))


def test_every_device_is_of_a_known_kind() -> None:
    assert {found.kind for found in devices().values()} <= set(kinds())


def test_every_kind_has_its_shell_functions() -> None:
    for name, kind in kinds().items():
        text = (HERE / "guest" / f"{name}.sh").read_text()
        for step in {
            "prepare",
            *(step for workload in kind.workloads.values() for step in workload),
        }:
            assert f"\n{step}() {{" in text, (name, step)


def test_every_program_of_a_kind_has_its_source() -> None:
    for kind in kinds().values():
        assert all((HERE / "guest" / f"{program}.c").is_file() for program in kind.programs)


def test_dashes_and_underscores_name_the_same_driver() -> None:
    assert device("snd_ens1370") == device("snd-ens1370")


def test_a_driver_without_a_device_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(Refusal, match=r"none|no device.*did you mean e1000e"):
        device("e1000ee")


def test_an_unknown_workload_is_refused_with_those_there_are() -> None:
    with pytest.raises(Refusal, match="usual, traffic, control"):
        steps("network", "traffics")


def test_the_driver_is_loaded_by_a_step_after_tracing_begins() -> None:
    made_steps = [step["run"] for step in made(run())["step"]]
    assert made_steps[0].endswith("prepare && trace_begin")
    assert made_steps[1].endswith("load")
    assert "e1000" not in made(run())["modules"]


def test_the_tracer_is_stopped_by_the_last_step() -> None:
    assert made(run(workload="load"))["step"][-1]["run"].endswith("unload && trace_end")


def test_a_network_card_hangs_on_a_wire_with_a_peer_that_has_another_driver() -> None:
    for name, found in devices().items():
        if found.kind == "network":
            card, peer = made(run(name))["device"]
            assert (card["netdev"], peer["netdev"]) == ("hub", "hub")
            assert (peer["model"], made(run(name))["modules"][-1]) != (found.model, name)


def test_a_sound_card_plays_to_nothing() -> None:
    assert made(run("snd-ens1370"))["device"][0]["audio"] == "none"


def test_a_disk_that_the_lab_does_not_make_hangs_on_its_controller() -> None:
    assert '"bus": "card.0"' in made(run("virtio_scsi"))["qemu_arguments"][-1]
    assert made(run("virtio_blk"))["device"][0]["size"] == "1G"


def test_a_revision_is_changed_before_the_driver_comes() -> None:
    wish = replace(run("8139too"), revision=Path("/cache/revision.ko"))
    assert "revision.ko device=$CARD revision=16 && prepare" in made(wish)["step"][0]["run"]


def test_a_longer_workload_has_a_longer_limit() -> None:
    assert made(replace(run(), seconds=60.0))["time_limit"] > made(run())["time_limit"] + 4 * 58


def test_the_build_folder_links_to_all_but_the_modules_own_folders(tmp_path: Path) -> None:
    root, folder = tmp_path / "source", tmp_path / "build"
    for file in (
        "drivers/net/a/main.c",
        "drivers/net/a/core/hw.c",
        "drivers/net/a/other/x.c",
        "drivers/net/b/b.h",
        "include/l.h",
    ):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(file)
    build.mirror(
        root,
        Module("a", "drivers/net/a", ("drivers/net/a/main.c", "drivers/net/a/core/hw.c")),
        folder,
    )
    real = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_dir() and not path.is_symlink()
    }
    assert real == {"drivers", "drivers/net", "drivers/net/a", "drivers/net/a/core"}
    assert (folder / "drivers/net/a/../b/b.h").read_text() == "drivers/net/b/b.h"


def test_a_step_that_fails_is_named_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ring3"
    program.write_text(
        "#!/bin/sh\necho == up\necho eth0: no link\necho '-- failed with exit code 1'\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("RING3", str(program))
    seen: list[tuple[str, bool]] = []
    with pytest.raises(
        Refusal, match=r"failed at 'up' \(exit code 1\): eth0: no link; all output is in .*log"
    ):
        lab.run(
            tmp_path / "s.toml",
            tmp_path,
            tmp_path / "out",
            tmp_path / "log",
            lambda line, step: seen.append((line, step)),
        )
    assert seen[:2] == [("up", True), ("eth0: no link", False)]


def test_a_lab_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RING3", str(tmp_path / "nothing"))
    with pytest.raises(Refusal, match="does not start: No such file"):
        lab.run(
            tmp_path / "s.toml",
            tmp_path,
            tmp_path / "out",
            tmp_path / "log",
            lambda _line, _step: None,
        )
