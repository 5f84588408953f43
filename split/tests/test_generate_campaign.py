"""What `ring3 split campaign` asks of its guests, and what it makes of what they say."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomlkit

import conforms
from ring3_split.errors import Refusal
from ring3_split.generate import campaign as campaigning
from ring3_split.generate import run as running
from ring3_split.generate.build import Built
from ring3_split.generate.campaign import Request, Share, campaign, shares
from ring3_split.generate.run import GUEST
from ring3_split.generate.tally import KINDS, Guest, Kept, Report, report, show, take
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.devices import device
from ring3_split.profile.scenario import Run

BACK = "fault 0 null mtu code 1 1 2 0 back 3000"


def guest(*lines: str) -> Guest:
    found = Guest(0)
    for line in lines:
        take(found, line)
    return found


def reported(*guests: Guest) -> Report:
    return report(
        Kept("e1000", "6.12", (), "1", ("e1000_open", "e1000_change_mtu"), 1, 9, 0, 0, list(guests))
    )


def test_every_kind_of_fault_is_injected_as_often_as_any_other(tmp_path: Path) -> None:
    faults = [fault for share in shares(Request(tmp_path, faults=18)) for fault in share.faults]
    assert Counter(fault[1] for fault in faults) == dict.fromkeys(KINDS, 2)


def test_the_same_seed_gives_the_same_campaign_and_another_one_another(tmp_path: Path) -> None:
    one, again, other = (
        list(shares(Request(tmp_path, faults=30, seed=seed))) for seed in (7, 7, 8)
    )
    assert one == again != other


def test_all_faults_and_messages_are_shared_out_among_the_guests(tmp_path: Path) -> None:
    found = list(shares(Request(tmp_path, faults=125, messages=1000)))
    assert [len(share.faults) for share in found] == [50, 50, 25]
    assert sum(share.messages for share in found) == 1000


def test_messages_without_faults_have_a_guest(tmp_path: Path) -> None:
    assert [share.messages for share in shares(Request(tmp_path, faults=0, messages=10))] == [10]


def test_a_line_of_the_guest_is_a_fault_with_the_entry_that_it_hit() -> None:
    row = reported(guest(BACK)).rows[0]
    assert (row.injected, row.upcall, row.effect, row.died, row.failed, row.back) == (
        1,
        1,
        1,
        1,
        1,
        1,
    )
    assert reported(guest(BACK)).entries == {"e1000_change_mtu": 1}


def test_a_fault_that_was_not_injected_is_not_counted() -> None:
    assert reported(guest(BACK.replace("code", "none"))).rows[0].injected == 0


def test_a_fault_that_nothing_came_of_has_no_effect() -> None:
    row = reported(guest("fault 3 flip mtu code 1 0 0 0 back 100")).rows[KINDS.index("flip")]
    assert (row.injected, row.effect, row.back) == (1, 0, 1)


@pytest.mark.parametrize(
    "line", ["fault 0 null mtu code", BACK.replace("3000", "x"), BACK.replace("back", "perhaps")]
)
def test_a_line_that_is_no_fault_is_refused(line: str) -> None:
    with pytest.raises(Refusal, match="none of its reports"):
        guest(line)


def test_tcp_while_it_dies_has_a_guest_of_its_own(tmp_path: Path) -> None:
    found = list(shares(Request(tmp_path, faults=1, messages=5, minutes=0.5)))
    assert [(len(share.faults), share.messages, share.seconds) for share in found] == [
        (1, 5, 0),
        (0, 0, 30),
    ]


def test_the_table_says_how_much_went_both_ways_while_it_died() -> None:
    text = show(reported(guest("endured 600 100.25 90.5 250")))
    assert (
        "600 s by the guest's clock both ways at once, 100.2 Mbit/s sent and 90.5 received, while "
        "the user half died 250 times" in text
    )


@pytest.mark.parametrize("lines", [(), (BACK, "complaint BUG", "endured 600 100.25 90.5 250")])
def test_a_report_as_json_is_as_its_schema_says(lines: tuple[str, ...]) -> None:
    out = msgspec.json.encode(reported(guest(*lines)))
    assert conforms.printed(out, "split-campaign") is None


def test_messages_are_those_of_all_guests_together() -> None:
    one = guest("1000 messages, 3 calls taken", "9000 messages, 5 taken, 2 attached")
    told = reported(one, one).told
    assert (told.lies, told.lies_taken, told.ioctls, told.ioctls_taken) == (2000, 6, 18000, 10)


def test_a_campaign_in_which_all_came_back_and_the_kernel_was_silent_is_well() -> None:
    assert reported(guest(BACK, "atomic 0")).well


@pytest.mark.parametrize(
    "line",
    [
        BACK.replace("back", "lost"),
        BACK.replace("back", "reloaded"),
        "complaint [ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1",
        "atomic 1",
    ],
)
def test_a_campaign_in_which_anything_was_lost_or_the_kernel_complained_is_not(line: str) -> None:
    assert not reported(guest(line)).well


def test_a_campaign_of_which_a_guest_did_not_end_is_not_well() -> None:
    found = reported(Guest(3, failed="it hangs"))
    assert not found.well
    assert "guest 3: it hangs" in show(found)


def test_the_table_has_the_times_of_return() -> None:
    text = show(reported(guest(BACK, BACK.replace("3000", "1000"), BACK.replace("3000", "2000"))))
    assert "2000 (1000-3000)" in text


class Labs:
    """Stands for the lab: what a guest says, and how many there were."""

    def __init__(self, say: Callable[[int], list[str]]) -> None:
        self.say, self.runs = say, 0

    def run(self, *arguments: Any) -> None:
        self.runs += 1
        hear = arguments[-1]
        for line in self.say(self.runs):
            hear(line, False)


def tried(monkeypatch: pytest.MonkeyPatch, request: Request, labs: Labs) -> Report:
    monkeypatch.setattr(lab, "run", labs.run)
    monkeypatch.setattr(running, "guest_run", lambda *_: made())
    monkeypatch.setattr(campaigning, "text", lambda *_: "")
    kernel, built = Kernel.__new__(Kernel), Built(Path(), Path(), Path(), "1", ())
    monkeypatch.setattr(Kernel, "name", "6.12", raising=False)
    return campaign(kernel, "e1000", built, request, lambda *_: None)


def test_a_guest_that_reports_fewer_faults_than_it_was_given_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tried(monkeypatch, Request(tmp_path, faults=2, messages=0), Labs(lambda _: [BACK]))
    assert "1 of 2 faults were reported" in found.failed[0]


def test_what_a_guest_has_said_whose_emulator_failed_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [BACK, "complaint BUG: none of ours", f"QEMU aborted{lab.AGAIN}", BACK, BACK]
    found = tried(monkeypatch, Request(tmp_path, faults=2, messages=0), Labs(lambda _: said))
    assert (found.failed, found.complaints, found.faults) == ([], [], 2)


def test_a_guest_that_was_run_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(number: int) -> list[str]:
        if number == 2:
            raise KeyboardInterrupt
        return [BACK] * 50

    request = Request(tmp_path, faults=51, messages=0, resume=tmp_path / "kept.json")
    with pytest.raises(KeyboardInterrupt):
        tried(monkeypatch, request, Labs(cut))
    labs = Labs(lambda _: [BACK])
    assert tried(monkeypatch, request, labs).faults == 51
    assert labs.runs == 1


def test_what_another_campaign_has_kept_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    tried(monkeypatch, Request(tmp_path, faults=1, messages=0, resume=kept), Labs(lambda _: [BACK]))
    with pytest.raises(Refusal, match="of another driver"):
        tried(monkeypatch, Request(tmp_path, faults=2, messages=0, resume=kept), Labs(lambda _: []))


def complaints(*lines: str) -> list[str]:
    done = subprocess.run(
        ["sh", "-c", f". {GUEST / 'split.sh'}; complaints"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "line",
    [
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG kmalloc-64 (Tainted: G           OE     ): Poison overwritten",
        "WARNING: CPU: 1 PID: 77 at kernel/locking/mutex.c:950",
        "Oops: general protection fault, probably for non-canonical address 0xdead000000000100: "
        "0000 [#1]",
        "list_del corruption. prev->next should be ffff888, but was ffff889",
        "INFO: task ip:345 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
        "BUG: KASAN: slab-use-after-free in split_pack+0x10/0x20 [ring3_split]",
        "UBSAN: array-index-out-of-bounds in drivers/net/a.c:1:2",
        "WARNING: possible recursive locking detected",
        "WARNING: possible circular locking dependency detected",
        "WARNING: lock held when returning to user space!",
        "BUG: sleeping function called from invalid context at kernel/locking/mutex.c:585",
        "unreferenced object 0xffff888003b1e000 (size 64):",
        "DMA-API: e1000 0000:01:00.0: device driver has pending DMA allocations while released",
        "WARNING: suspicious RCU usage",
    ],
)
def test_what_the_kernel_says_of_a_bug_is_a_complaint(line: str) -> None:
    assert complaints(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "traps: split-e1000[102] general protection fault ip:40123a sp:7f0000 error:0 in "
        "split-e1000[401000+a0000]",
        "split-e1000[103]: segfault at 0 ip 0000000000401234 sp 00007f error 4 in "
        "split-e1000[401000+a0000]",
        "e1000: e1000_reset fails: the user half has died, or gave it up",
        "DMA-API: preallocated 65536 debug entries",
        "DMA-API: debugging enabled by kernel config",
        "kasan: KernelAddressSanitizer initialized",
    ],
)
def test_what_it_says_of_a_process_is_none(line: str) -> None:
    assert complaints(line) == []


def made(*, checks: bool = False) -> Run:
    return Run(
        "e1000",
        device("e1000"),
        "load",
        1,
        "debug" if checks else "6.12",
        (Path("a.ko"), Path("b.ko")),
        (),
        (Path("program"),),
        checks=checks,
    )


def scenario(run: Run, seconds: float = 0) -> dict[str, Any]:
    """As the lab reads it."""
    return tomlkit.parse(
        campaigning.text(run, "1", Share(0, [], 0, 1, seconds), Path("faults"))
    ).unwrap()


def test_a_guest_has_the_time_that_its_tcp_takes() -> None:
    assert scenario(made(), 600)["time_limit"] == scenario(made())["time_limit"] + 600


def test_a_kernel_that_checks_itself_has_memory_and_time_for_that_and_no_second_poison() -> None:
    usual, checks = scenario(made()), scenario(made(checks=True))
    assert (usual.get("memory"), checks["memory"]) == (None, "1G")
    assert checks["time_limit"] > 5 * usual["time_limit"]
    assert int(checks["variables"]["SLOWNESS"]) > int(usual["variables"]["SLOWNESS"])
    assert usual["kernel_arguments"]
    assert checks["kernel_arguments"] == []
