"""e1000's kernel half with a lying probe, a silent user half and a dying self test, in a guest."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ring3_split.annotate import file
from ring3_split.annotate.survey import survey
from ring3_split.errors import Refusal
from ring3_split.generate import build, run
from ring3_split.generate.border import Wishes
from ring3_split.generate.halves import Generated, generate
from ring3_split.kernel import Kernel
from ring3_split.plan import load, subject

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
EXAMPLES = Path(__file__).parents[1] / "examples"
# The interface is there; the probe is about to end.
REGISTERED = "\tcards_found++;\n"
LIES = """\
\tadapter->tx_ring = NULL;
\tadapter->rx_ring = (void *)adapter->rx_ring->desc;
\thw->hw_addr = NULL;
"""
# The guest ends after it.
LIED_TO = """
works() {
    dmesg | grep -o "user half's .* is refused" | sort -u
    up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# Packets go while the kernel half waits for a user half that is stopped, with new rings that have
# no memory yet.
WAITED_FOR = """
linked() {
    for try in $(seq 100); do
        [ "$(cat "/sys/class/net/$name/carrier")" != 1 ] || return 0
        usleep 100000
    done
    return 1
}
works() {
    up || return
    name=$(interface "$CARD")
    echo 60 >/sys/module/ring3_split/parameters/deadline_ms
    for sender in 1 2 3 4; do ping -c 100000 -i 0.004 -s 1400 -W 1 $THERE >/dev/null 2>&1 & done
    for time in 1 2 3 4 5 6; do
        linked || return
        usleep 300000
        kill -STOP "$(cat /tmp/user-half.pid)"
        net control "$name" parameters | grep changed
        kill -CONT "$(cat /tmp/user-half.pid)"
    done
    linked && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# The self test has closed the card.
CLOSED = "\t\t\te1000_close(netdev);\n"
DIES = "{ e1000_close(netdev); __builtin_trap(); }\n"
# Packets wait meanwhile, for longer than the kernel half waits for the next user half.
DIED = """
works() {
    up || return
    name=$(interface "$CARD")
    for sender in 1 2 3 4; do ping -c 100000 -i 0.01 -s 1400 -W 1 $THERE >/dev/null 2>&1 & done
    for time in 1 2 3; do
        net control "$name" test
        usleep 1500000
        dead "$(cat /tmp/user-half.pid)" && split_restart && up && net send $THERE 0.5 || return
    done
    deaths
    ip link set dev "$name" down && up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""


# A net_device that the kernel has not made: one on the stack, and one in memory that was asked for,
# for packets of a size.
CONFIGURED = "\te1000_set_rx_mode(netdev);\n"
MADE = {
    "on its stack": "(void *)(char[8192]){ 0 }",
    "in memory that it has asked for": "kcalloc(1, 8192 - netdev->irq, GFP_KERNEL)",
}
SIZED = """
works() {
    up || return
    name=$(interface "$CARD")
    ip link set dev "$name" mtu 1400
    grep " is refused: " /tmp/user-half.log
    split_kill && split_reload && up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""


# A reset hangs, and nobody takes the one that is to mend it; then comes a user half that resets as
# it should.
RESETS = (
    "void e1000_reset(struct e1000_adapter *adapter)\n{\n\tstruct e1000_hw *hw = &adapter->hw;\n"
)
HANGS = f'char *getenv(const char *name);\n\n{RESETS}\tfor (; getenv("HANGS");)\n\t\tcontinue;\n'
HUNG = """
works() {
    up && split_kill >/dev/null || return
    export HANGS=1
    split_restart && up || return
    echo 1500 >/sys/module/ring3_split/parameters/deadline_ms
    ip link set dev "$(interface "$CARD")" mtu 1400 &
    usleep 1000000
    kill -STOP "$(cat /tmp/user-half.pid)"
    wait $!
    usleep 4000000
    dmesg | grep -o "e1000_.* fails: the user half does not answer"
    split_kill >/dev/null
    unset HANGS
    split_restart && up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# Three resets take longer than they may, of a user half that serves on.
SLOW = f"{RESETS}\tstatic int slow;\n\n\tif (slow++ < 3)\n\t\tmsleep(2000);\n"
WAITED = """
works() {
    up || return
    echo 1500 >/sys/module/ring3_split/parameters/deadline_ms
    ip link set dev "$(interface "$CARD")" mtu 1400
    usleep 4000000
    dmesg | grep -o "e1000_.* fails: the user half does not answer"
    echo 0 >/sys/module/ring3_split/parameters/deadline_ms
    up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# What a user half is refused, or does wrong, if its environment has FAILS; the next one has only
# the watchdog to do.
CONFIGURES = "\te1000_configure_rx(adapter);\n"
AGAIN = "void e1000_reinit_locked(struct e1000_adapter *adapter)\n{\n"
FAILS = 'char *getenv(const char *name);\n\n\tif (getenv("FAILS"))\n\t\t'
REFUSED = f"\t{FAILS}outb(0, 1);\n"
CHANGED = "\tclear_bit(__E1000_RESETTING, &adapter->flags);\n\n\treturn 0;\n"
UNFED = f"\t{{ {FAILS}adapter->alloc_rx_buf = e1000_alloc_dummy_rx_buffers;\n\t}}\n"
MISCONFIGURED = {
    "its receiver is off": {
        CONFIGURES: f"{CONFIGURES}\t{{ struct e1000_hw *hw = &adapter->hw; {FAILS}ew32(RCTL, "
        f"0);\n\t}}\n"
    },
    "it gets no buffers": {CHANGED: f"{UNFED}{CHANGED}"},
}
FOLLOWED = """
works() {
    up && split_kill >/dev/null || return
    export FAILS=1
    split_restart && up || return
    ip link set dev "$(interface "$CARD")" mtu 1400
    # More packets than a ring has buffers.
    ping -c 1000 -i 0.002 -W 1 $THERE | tail -n 2
    dead "$(cat /tmp/user-half.pid)" || echo "it serves on"
    dmesg | grep -o "e1000_.* fails: the user half has died, or gave it up"
    split_kill >/dev/null
    unset FAILS
    split_restart && up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# What frees rings says that it has.
FREES = "void e1000_free_all_{}_resources(struct e1000_adapter *adapter)\n{{\n"
KEPT = """
works() {
    up || return
    ip link set dev "$(interface "$CARD")" down
    dmesg | grep -o "e1000_free_all_.* fails: it has not done what it says"
    up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""
# The card receives by buffers of another length, and nothing ends the driver's name.
NAMED = "\tstruct e1000_adapter *adapter = netdev_priv(netdev);\n\n\tstrscpy(drvinfo->driver"
CHANGES = {
    "e1000_main.c": (CHANGED, f"\tadapter->rx_buffer_len = 0;\n{CHANGED}"),
    "e1000_ethtool.c": (
        NAMED,
        NAMED.replace("\tstrscpy", "\tmemset(e1000_driver_name, 'm', 6);\n\tstrscpy"),
    ),
}
NOTED = """
works() {
    up || return
    name=$(interface "$CARD")
    net control "$name" answers
    ip link set dev "$name" mtu 1400
    dmesg | grep -o "user half's .* is \\(refused\\|zero\\)"
    ip link set dev "$name" down
    up && net send $THERE 0.5 && echo "the card works"
    return 1
}
"""


@pytest.fixture(scope="module")
def generated(kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Generated:
    plan, answers = (
        load(EXAMPLES / "e1000.plan.toml"),
        file.load(EXAMPLES / "e1000.annotations.toml").answers(),
    )
    whole = subject.load(kernel, "e1000", "field", None, subject.Known(None, plan.contexts))
    found = survey(whole.graph, plan.sides(), kernel.name, answers)
    return generate(
        kernel,
        kernel.module("e1000"),
        found,
        Wishes.of(plan, answers),
        tmp_path_factory.mktemp("e1000") / "out",
    )


@pytest.fixture
def halves(generated: Generated, tmp_path: Path) -> Generated:
    """To plant something in."""
    return replace(generated, folder=Path(shutil.copytree(generated.folder, tmp_path / "out")))


def said(kernel: Kernel, halves: Generated, cache: Path, work: str) -> str:
    """What a guest says that does this work, and no more."""
    folder = halves.folder.parent
    (folder / "work.sh").write_text(work)
    request = run.Request(cache, 0.2, folder / "run.log", run.Wanted(work=folder / "work.sh"))
    with pytest.raises(Refusal, match="it works by its user half"):
        run.run(kernel, "e1000", build.build(kernel, halves), request, lambda _line, _step: None)
    return (folder / "run.log").read_text()


def plant(halves: Generated, file: str, place: str, bug: str) -> None:
    """Has the user half do something else at a place of its source."""
    source = halves.folder / "user" / file
    before, found, behind = source.read_text().partition(place)
    assert found
    source.write_text(f"{before}{bug}{behind}")


def test_a_card_that_is_registered_keeps_its_rings_and_registers(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    plant(halves, "e1000_main.c", REGISTERED, f"{REGISTERED}{LIES}")
    log = said(kernel, halves, cache, LIED_TO)
    for name in ("e1000_adapter:tx_ring", "e1000_adapter:rx_ring", "e1000_adapter:hw.hw_addr"):
        assert f"user half's {name} is refused" in log
    assert "the card works" in log


def test_no_packet_comes_to_new_rings_whose_memory_a_user_half_is_waited_for(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    log = said(kernel, halves, cache, WAITED_FOR)
    assert log.count("changed: Input/output error") == 6
    assert "the card works" in log


def test_a_card_that_a_self_test_has_closed_is_open_again_when_that_dies(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    plant(halves, "e1000_ethtool.c", CLOSED, DIES)
    log = said(kernel, halves, cache, DIED)
    assert "3 it died in e1000_diag_test" in log
    assert "the card works" in log


@pytest.mark.parametrize("memory", MADE)
def test_a_struct_that_only_the_kernel_makes_is_not_taken_from_a_user_half(
    kernel: Kernel, halves: Generated, cache: Path, memory: str
) -> None:
    plant(
        halves,
        "e1000_main.c",
        CONFIGURED,
        f"\te1000_set_rx_mode(netdev->mtu == 1400 ? {MADE[memory]} : netdev);\n",
    )
    log = said(kernel, halves, cache, SIZED)
    assert "is refused: Protocol wrong type for socket" in log
    assert "the card works" in log


def test_a_function_that_wants_an_object_is_not_called_with_none(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    plant(
        halves,
        "e1000_main.c",
        CONFIGURED,
        "\te1000_set_rx_mode(netdev->mtu == 1400 ? NULL : netdev);\n",
    )
    log = said(kernel, halves, cache, SIZED)
    assert "is refused: Operation not permitted" in log
    assert "the card works" in log


def test_a_reset_that_a_user_half_hangs_in_is_made_by_the_next_one(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    plant(halves, "e1000_main.c", RESETS, HANGS)
    log = said(kernel, halves, cache, HUNG)
    assert "e1000_reset fails: the user half does not answer" in log
    assert "the card works" in log


def test_a_reset_that_took_too_long_is_made_again_by_a_user_half_that_serves_on(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    plant(halves, "e1000_main.c", RESETS, SLOW)
    log = said(kernel, halves, cache, WAITED)
    assert "e1000_reset fails: the user half does not answer" in log
    assert "the card works" in log


def test_a_card_whose_user_half_gives_its_reset_up_is_reset_by_the_next_one(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    for place, bug in {CONFIGURES: f"{REFUSED}{CONFIGURES}", AGAIN: f"{AGAIN}{REFUSED}"}.items():
        plant(halves, "e1000_main.c", place, bug)
    log = said(kernel, halves, cache, FOLLOWED)
    assert "it serves on" in log
    assert "e1000_configure fails: the user half has died, or gave it up" in log
    assert "the card works" in log


@pytest.mark.parametrize("wrong", MISCONFIGURED)
def test_a_card_that_a_user_half_has_not_configured_is_reset_by_the_next_one(
    kernel: Kernel, halves: Generated, cache: Path, wrong: str
) -> None:
    for place, bug in MISCONFIGURED[wrong].items():
        plant(halves, "e1000_main.c", place, bug)
    log = said(kernel, halves, cache, FOLLOWED)
    assert "it serves on" in log
    assert "fails" not in log
    assert "the card works" in log


def test_rings_that_a_user_half_only_says_to_have_freed_are_freed(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    for kind in ("tx", "rx"):
        place = FREES.format(kind)
        plant(halves, "e1000_main.c", place, f"{place}\tif (adapter)\n\t\treturn;\n")
    log = said(kernel, halves, cache, KEPT)
    for kind in ("tx", "rx"):
        assert f"e1000_free_all_{kind}_resources fails: it has not done what it says" in log
    assert "the card works" in log


def test_buffers_keep_their_length_and_texts_their_end(
    kernel: Kernel, halves: Generated, cache: Path
) -> None:
    for name, (place, bug) in CHANGES.items():
        plant(halves, name, place, bug)
    log = said(kernel, halves, cache, NOTED)
    assert "user half's e1000_adapter:rx_buffer_len is refused" in log
    assert "user half's e1000_driver_name is zero" in log
    assert "the card works" in log
