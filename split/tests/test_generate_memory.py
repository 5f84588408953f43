"""What the run time may do when a kernel half frees."""

from __future__ import annotations

import re
import subprocess

import pytest

from ring3_split.generate.build import runtime_module
from ring3_split.kernel import Kernel

# None of these sleeps; a mutex would.
NEVER_SLEEP = {
    "__fentry__",
    "__x86_return_thunk",
    "__xa_erase",
    "xa_load",
    "_raw_spin_lock_irqsave",
    "_raw_spin_unlock_irqrestore",
    "kfree",
}


@pytest.mark.kernel
def test_a_kernel_half_frees_with_locks_held_for_nothing_sleeps_in_it(kernel: Kernel) -> None:
    module = str(runtime_module(kernel))
    listing = subprocess.run(
        ["objdump", "-dr", "--no-show-raw-insn", module], check=True, capture_output=True, text=True
    ).stdout
    functions = dict(re.findall(r"^[0-9a-f]+ <(\w+)>:\n((?:.+\n)+)", listing, re.MULTILINE))
    reached, left = set(), ["split_free"]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += re.findall(r"R_X86_64_(?:PLT|PC)32\s+([.\w]+)[+-]", functions.get(name, ""))
            left += re.findall(r"\b(?:call|jmp)\s+[0-9a-f]+ <(\w+)>", functions.get(name, ""))
    assert "kfree" in reached
    assert {name for name in reached if name not in functions} <= NEVER_SLEEP
