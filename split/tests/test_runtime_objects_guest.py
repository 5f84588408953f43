"""Objects that a user half makes and frees, in a guest whose kernel poisons what is freed.

A driver by hand, and a liar.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tomlkit

from ring3_split.generate.build import make, runtime_module
from ring3_split.generate.halves import RUNTIME
from ring3_split.generate.run import GUEST
from ring3_split.kernel import Kernel
from ring3_split.profile import lab
from ring3_split.profile.headers import checks_itself, version

pytestmark = [pytest.mark.guest, pytest.mark.kernel]
OBJECTS = Path(__file__).parent / "objects"
SCRIPT = GUEST / "split.sh"
# Upcalls, once beyond the last number that handles begin with.
MANY = 40
STEP = f"""
. /lib/ring3/split.sh
leaks_begin
insmod /lib/ring3/ring3_split.ko first_upcall=65520 && insmod /lib/ring3/split_objects.ko || exit 1
at=/proc/split_objects
liar {MANY} >/tmp/liar & half=$!
sleep 1
once() {{ echo 1 >$at || echo "the upcall has failed"; }}
once; echo "found: $(cat $at)"
once; echo "found: $(cat $at)"
once & first=$!
usleep 500000
once; wait $first
echo 100000 >$at; echo "the work item has ended"
echo 200000 >$at || echo "the upcall has failed"
once & first=$!
usleep 100000
once; wait $first
deadline=/sys/module/ring3_split/parameters/deadline_ms
echo 2000 >$deadline
echo 1 >$at 2>/dev/null || echo "the upcall that keeps rtnl has failed"
echo 300000 >$at 2>/dev/null || echo "the upcall with rtnl has failed"
ifconfig lo up && echo "rtnl is free"
echo 0 >$deadline
echo 500000 >$at
once
once & first=$!
usleep 500000
once; wait $first
echo 600000 >$at
# What the kernel half still has goes.
cat $at >/dev/null
once; echo "after an error: $(cat $at)"
once; echo "after a success: $(cat $at)"
echo 400000 >$at || echo "there is no memory"
echo {MANY} >$at || echo "the upcalls have failed"
wait $half; cat /tmp/liar
cat $at >/dev/null
rmmod split_objects && rmmod ring3_split || exit 1
dmesg | grep split_objects:
{{ dmesg; leaks; }} >/tmp/log
if complaints </tmp/log; then tail -n 300 /tmp/log; exit 1; fi
lockdep_is_on || {{ echo "lockdep has switched itself off"; exit 1; }}
"""


@pytest.fixture(scope="module")
def said(kernel: Kernel, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("objects")
    runtime = runtime_module(kernel)
    shutil.copytree(RUNTIME, folder / "runtime")
    shutil.copytree(OBJECTS, folder / "runtime/objects")
    module = folder / "runtime/objects/split_objects.ko"
    make(kernel, module, [f"KBUILD_EXTRA_SYMBOLS={runtime.parent / 'Module.symvers'}"])
    program = lab.compiled_file(OBJECTS / "liar.c", folder, RUNTIME, OBJECTS)
    scenario = {
        "about": "a user half frees objects, goes on with them, and frees them again",
        "kernel": version(kernel),
        "kernel_arguments": ["slub_debug=FZPU"],
        "iommu": "none",
        "memory": "1G" if checks_itself(kernel) else "512M",
        "time_limit": 1200,
        "programs": [str(program)],
        "files": {f"/lib/ring3/{file.name}": str(file) for file in (runtime, module, SCRIPT)},
        "step": [{"name": "objects", "run": STEP}],
    }
    (folder / "scenario.toml").write_text(tomlkit.dumps(scenario))
    lab.run(
        folder / "scenario.toml",
        cache,
        folder / "out",
        folder / "run.log",
        lambda _line, _step: None,
    )
    return (folder / "run.log").read_text()


def test_what_a_call_has_freed_is_no_object_any_more(said: str) -> None:
    assert "a thing ends: done" in said
    assert "what led to it: 0, 0" in said
    for again in ("it ends again", "it is held again", "it is used as it was"):
        assert f"{again}: Bad file descriptor" in said


def test_what_was_taken_by_an_object_is_given_back_before_it_ends(said: str) -> None:
    assert "a thing ends with 0 holders" in said
    assert "a thing ends with 1 holders" not in said


def test_memory_of_the_device_is_given_with_attributes_that_leave_the_kernel_an_address(
    said: str,
) -> None:
    assert "memory that is written at once: given" in said
    assert "memory without an address: refused" in said
    assert "memory of an unknown kind: refused" in said


def test_a_text_of_the_user_half_ends_where_its_member_ends(said: str) -> None:
    # By a member; a call has filled the first two bytes since.
    assert 'the text is "ffmmmmm"' in said
    assert "a text is filled to its end: Protocol wrong type for socket" in said
    assert "a part of a text is filled: done" in said


def test_a_mutex_is_taken_when_it_is_initialised_and_stays_what_it_is(said: str) -> None:
    assert "a bare mutex is taken: Invalid argument" in said
    assert "it is initialised: done" in said
    assert "it is taken then: done" in said
    assert "it is initialised when held: Device or resource busy" in said
    assert "it is given back: done" in said
    assert "it is initialised again: done" in said


def test_a_mutex_of_the_drivers_is_given_back_by_who_has_lost_track_of_what_ended(
    said: str,
) -> None:
    assert "the lasting mutex is taken: done" in said
    assert "the lasting mutex is free" in said


def test_locks_that_nobody_has_initialised_can_be_taken_by_the_kernel_half(said: str) -> None:
    assert "the bare locks are free" in said


def test_who_answers_with_an_error_keeps_nothing_that_its_calls_have_taken(said: str) -> None:
    assert "after an error: thing with 0 holders" in said
    assert "after a success: thing with 1 holders" in said


def test_an_object_that_lies_where_another_one_has_ended_can_be_used(said: str) -> None:
    assert "another thing is held: done" in said
    assert "and ends: done" in said


def test_the_kernel_half_finds_nothing_of_what_has_ended(said: str) -> None:
    assert "found: thing none, part 0" in said


def test_memory_that_the_kernel_half_goes_by_stays_when_the_user_half_frees_it(said: str) -> None:
    assert "its memory is freed: done" in said
    assert "and again: Bad file descriptor" in said
    assert "found: thing none, part 42" in said


def test_memory_that_only_the_user_half_knows_is_free_when_it_frees_it(said: str) -> None:
    assert f"{MANY} MiB came and went" in said


def test_an_object_that_ends_in_one_upcall_has_ended_in_another(said: str) -> None:
    assert "the other one holds it: done" in said
    assert "it ends in one: done" in said
    assert "it is held in the other: Bad file descriptor" in said
    assert "the other goes on: done" in said


def test_every_upcall_has_its_object_whatever_its_number(said: str) -> None:
    assert f"0 of {MANY} upcalls had no object" in said


def test_a_call_that_waits_for_the_work_item_that_it_answers_for_does_not_wait(said: str) -> None:
    assert "it waits for itself: done" in said
    assert "the work item has ended" in said


def test_what_runs_alone_is_called_by_one_after_the_other_and_finds_what_it_requires(
    said: str,
) -> None:
    assert "one's turn: done" in said
    assert "the other's turn: done" in said


def test_an_upcall_of_what_runs_alone_may_call_it(said: str) -> None:
    assert "a part's turn: done" in said


def test_rtnl_is_taken_once_given_back_by_who_has_it_and_free_when_an_upcall_has_failed(
    said: str,
) -> None:
    results = [
        "given back: Operation not",
        "taken: done",
        "taken again: Operation not",
        "given back then: done",
        "kept: done",
    ]
    for result in results:
        assert f"rtnl is {result}" in said
    assert "the upcall that keeps rtnl has failed" in said
    assert "rtnl is free" in said


def test_an_upcall_waits_for_rtnl_no_longer_than_it_is_waited_for(said: str) -> None:
    assert "rtnl of who waits: Operation not permitted" in said
    assert "the upcall with rtnl has failed" in said
