"""Locks: what may run while one is held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import IrModule, parse
from ring3_split.model import Given, Kind, Region
from ring3_split.reader.locks import table
from ring3_split.reader.regions import Held, regions

HERE = Path(__file__).parent
Read = Callable[[str], "Unit"]


class Unit:
    """A few C functions, their lines counted from 1, and what they hold."""

    def __init__(self, module: IrModule) -> None:
        self.module = module
        self.held = regions(module)

    def regions(self, name: str = "f") -> tuple[Region, ...]:
        return self.held.get(name, Held()).regions

    def region(self, name: str = "f") -> Region:
        (only,) = self.regions(name)
        return only

    def given(self, name: str = "f") -> tuple[Given, ...]:
        return self.held.get(name, Held()).given

    def working(self, name: str = "f") -> dict[int, set[str]]:
        """For each work(N) of a function: the locks that may be held there."""
        held = self.held.get(name, Held())
        return {
            int(call.arguments[0]): {
                held.regions[place].lock for place in held.at.get(call.index, ())
            }
            for call in self.module.functions[name].instructions
            if call.callee == "@work"
        }


@pytest.fixture
def read(clang: Path, tmp_path: Path) -> Read:
    def compile_(source: str) -> Unit:
        text = f'#include "locks.h"\n#line 1\n{source}'
        return Unit(parse(compile_c(clang, tmp_path, text, f"-I{HERE}").read_text()))

    return compile_


def test_a_region_goes_from_lock_to_unlock(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        work(1);
        spin_lock(&d->lock);
        work(2);
        work(3);
        spin_unlock(&d->lock);
        work(4);
    }""")
    assert unit.region() == Region(Kind.SPIN, "device.lock", 3, (4, 5, 6), (6,))
    assert unit.working() == {1: set(), 2: {"device.lock"}, 3: {"device.lock"}, 4: set()}


def test_an_early_return_leaves_with_the_lock_held(read: Read) -> None:
    unit = read("""int f(struct device *d) {
        spin_lock(&d->lock);
        if (d->up)
            return 1;
        spin_unlock(&d->lock);
        return 0;
    }
    void g(struct device *d) {
        if (f(d))
            work(1);
        else
            work(2);
    }""")
    assert unit.region().releases == (5,)
    assert unit.working("g") == {1: {"device.lock"}, 2: set()}


def test_every_way_to_out_unlock_releases(read: Read) -> None:
    unit = read("""int f(struct device *d) {
        int error = -5;
        spin_lock(&d->lock);
        if (d->up)
            goto out_unlock;
        work(1);
        error = 0;
    out_unlock:
        spin_unlock(&d->lock);
        work(2);
        return error;
    }
    void g(struct device *d) { f(d); work(3); }""")
    assert unit.region().releases == (9,)
    assert unit.working() == {1: {"device.lock"}, 2: set()}
    assert unit.regions("g") == ()


def test_a_lock_in_a_loop_is_free_between_two_rounds(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        for (int i = 0; i < 10; i++) {
            work(1);
            spin_lock(&d->lock);
            work(2);
            spin_unlock(&d->lock);
        }
        work(3);
    }""")
    assert unit.working() == {1: set(), 2: {"device.lock"}, 3: set()}


def test_a_lock_that_a_loop_may_keep_may_be_held_in_its_next_round(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        while (d->up) {
            work(1);
            spin_lock(&d->lock);
            if (d->up)
                continue;
            spin_unlock(&d->lock);
        }
    }""")
    assert unit.working() == {1: {"device.lock"}}


def test_a_conditional_lock_may_be_held_behind_the_condition(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        if (d->up)
            spin_lock(&d->lock);
        work(1);
        spin_unlock(&d->lock);
        work(2);
    }""")
    assert unit.working() == {1: {"device.lock"}, 2: set()}


def test_the_same_condition_that_locked_unlocks(read: Read) -> None:
    unit = read("""void f(struct device *d, int locking) {
        if (locking)
            spin_lock(&d->lock);
        work(1);
        if (locking)
            spin_unlock(&d->lock);
        work(2);
    }
    void g(struct device *d) { f(d, 1); work(3); }""")
    assert unit.working() == {1: {"device.lock"}, 2: set()}
    assert unit.regions("g") == ()


def test_a_flag_that_remembers_the_lock_unlocks(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        int locked = 0;
        if (d->up) {
            spin_lock(&d->lock);
            locked = 1;
        }
        work(1);
        if (locked)
            spin_unlock(&d->lock);
        work(2);
    }""")
    assert unit.working() == {1: {"device.lock"}, 2: set()}


def test_a_condition_that_changed_since_proves_nothing(read: Read) -> None:
    unit = read("""extern int again(void);
    void f(struct device *d, int locking) {
        if (locking)
            spin_lock(&d->lock);
        locking = again();
        if (locking)
            spin_unlock(&d->lock);
        work(1);
    }""")
    assert unit.working() == {1: {"device.lock"}}


def test_the_same_field_that_locked_unlocks(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        if (d->up > 1)
            spin_lock(&d->lock);
        work(1);
        if (d->up > 1)
            spin_unlock(&d->lock);
        work(2);
    }
    void g(struct device *d) { f(d); work(3); }""")
    assert unit.working() == {1: {"device.lock"}, 2: set()}
    assert unit.regions("g") == ()


def test_the_same_patched_branch_that_locked_unlocks(read: Read) -> None:
    unit = read("""extern _Bool arch_static_branch(void *key, _Bool likely);
    #define static_branch(key) ({ _Bool branch = arch_static_branch(&key, 0); branch; })
    int locking;
    void f(struct device *d) {
        if (static_branch(locking))
            spin_lock(&d->lock);
        work(1);
        if (static_branch(locking))
            spin_unlock(&d->lock);
        work(2);
    }""")
    assert unit.working() == {1: {"device.lock"}, 2: set()}


def test_a_field_that_is_tested_again_with_the_lock_held_anyway_proves_nothing(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        spin_lock(&d->lock);
        if (!d->up) {
            spin_unlock(&d->lock);
            work(1);
            spin_lock(&d->lock);
            if (!d->up) {
                spin_unlock(&d->lock);
                return;
            }
            work(2);
        }
        work(3);
        spin_unlock(&d->lock);
    }""")
    assert unit.working() == {1: set(), 2: {"device.lock"}, 3: {"device.lock"}}


def test_one_of_two_locks_is_given_back_by_those_who_took_it(read: Read) -> None:
    unit = read("""static void take(struct device *d, int sleeping) {
        if (sleeping)
            mutex_lock(&d->mutex);
        else
            spin_lock(&d->lock);
    }
    static void give(struct device *d, int sleeping) {
        if (sleeping)
            mutex_unlock(&d->mutex);
        else
            spin_unlock(&d->lock);
    }
    void f(struct device *d) {
        take(d, d->up);
        work(1);
        give(d, d->up);
        work(2);
    }""")
    assert unit.working() == {1: {"device.lock", "device.mutex"}, 2: set()}


def test_a_failed_trylock_holds_nothing(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        if (!spin_trylock(&d->lock)) {
            work(1);
            return;
        }
        work(2);
        spin_unlock(&d->lock);
    }""")
    assert unit.working() == {1: set(), 2: {"device.lock"}}


def test_an_interrupted_wait_for_a_mutex_holds_nothing(read: Read) -> None:
    unit = read("""int f(struct device *d) {
        int error = mutex_lock_interruptible(&d->mutex);
        if (error < 0) {
            work(1);
            return error;
        }
        work(2);
        mutex_unlock(&d->mutex);
        return 0;
    }""")
    assert unit.working() == {1: set(), 2: {"device.mutex"}}
    assert unit.region().kind is Kind.MUTEX


def test_interrupts_stay_off_when_only_the_spinlock_is_given_back(read: Read) -> None:
    unit = read("""void f(struct device *d, struct device *e) {
        unsigned long flags;
        spin_lock_irqsave(&d->lock, flags);
        spin_lock(e->shared);
        spin_unlock(&d->lock);
        work(1);
        spin_unlock_irqrestore(e->shared, flags);
        work(2);
    }""")
    held = unit.held["f"]
    (call,) = (
        call
        for call in unit.module.functions["f"].instructions
        if call.text.find("@work(i32 noundef 1)") > 0
    )
    assert {held.regions[place].kind for place in held.at[call.index]} == {Kind.SPIN, Kind.IRQ_OFF}
    assert unit.working()[2] == set()


def test_the_locks_of_two_objects_are_two(read: Read) -> None:
    unit = read("""void f(struct device *d, struct device *e) {
        spin_lock(&d->lock);
        spin_lock(&e->lock);
        spin_unlock(&d->lock);
        work(1);
        spin_unlock(&e->lock);
    }""")
    first, second = unit.regions()
    assert (first.line, first.releases) == (2, (4,))
    assert (second.line, second.releases) == (3, (6,))


def test_a_function_that_returns_with_a_lock_is_a_lock(read: Read) -> None:
    unit = read("""static void take(struct device *d) { spin_lock(&d->lock); }
    static void give(struct device *d) { spin_unlock(&d->lock); }
    void f(struct device *d) {
        take(d);
        work(1);
        give(d);
        work(2);
    }""")
    assert unit.region("take").releases == ()
    assert unit.region() == Region(Kind.SPIN, "device.lock", 4, (5, 6), (6,))


def test_a_lock_that_is_passed_has_the_name_that_the_caller_knows(read: Read) -> None:
    unit = read("""static void take(spinlock_t *which) { spin_lock(which); }
    void f(struct device *d) {
        take(d->shared);
        work(1);
    }""")
    assert unit.region("take").lock == "which"
    assert unit.working() == {1: {"device.shared"}}


def test_a_wrapper_tells_by_its_result_whether_it_locked(read: Read) -> None:
    unit = read("""static int try(struct device *d) {
        if (spin_trylock(&d->lock))
            return 0;
        return -16;
    }
    void f(struct device *d) {
        if (try(d))
            work(1);
        else
            work(2);
    }""")
    assert unit.working() == {1: set(), 2: {"device.lock"}}


def test_a_function_that_lets_go_of_its_callers_lock_for_a_while_keeps_it_in_the_end(
    read: Read,
) -> None:
    unit = read("""static void pause(struct device *d) {
        spin_unlock(&d->lock);
        work(1);
        spin_lock(&d->lock);
    }
    void f(struct device *d) {
        spin_lock(&d->lock);
        pause(d);
        work(2);
        spin_unlock(&d->lock);
    }""")
    assert unit.working("pause") == {1: set()}
    assert unit.working() == {2: {"device.lock"}}
    assert unit.region().releases == (10,)


def test_a_summary_that_turns_out_to_be_nothing_is_forgotten(read: Read) -> None:
    unit = read("""static void give(struct device *d) { spin_unlock(&d->lock); }
    static void stop(struct device *d) { spin_lock(&d->lock); give(d); }
    static void close(struct device *d) { stop(d); }
    void f(struct device *d) { close(d); work(1); }""")
    assert set(unit.held) == {"stop", "spin_lock", "give", "spin_unlock"}
    assert unit.given("stop") == unit.given("close") == ()


def test_recursion_ends(read: Read) -> None:
    unit = read("""void f(struct device *d, int n) {
        spin_lock(&d->lock);
        if (n)
            f(d, n - 1);
        work(1);
    }""")
    assert unit.working() == {1: {"device.lock"}}


def test_a_guard_holds_until_its_scope_ends_however_it_ends(read: Read) -> None:
    unit = read("""int f(struct device *d) {
        work(1);
        {
            guard(spinlock_irqsave)(&d->lock);
            if (d->up)
                return 1;
            work(2);
        }
        work(3);
        return 0;
    }
    void g(struct device *d) { f(d); work(4); }""")
    assert unit.working() == {1: set(), 2: {"device.lock"}, 3: set()}
    assert unit.region().kind is Kind.SPIN_IRQ
    assert unit.regions("g") == ()


def test_two_guards_end_one_after_the_other(read: Read) -> None:
    unit = read("""void f(struct device *d, struct device *e) {
        guard(mutex)(&d->mutex);
        work(1);
        { guard(mutex)(&e->mutex); work(2); }
        work(3);
    }""")
    held = unit.held["f"]
    assert [region.releases for region in held.regions] == [(6,), (4,)]


def test_what_has_no_lock_object_nests(read: Read) -> None:
    unit = read("""void f(void) {
        rcu_read_lock();
        rtnl_lock();
        work(1);
        rtnl_unlock();
        work(2);
        rcu_read_unlock();
    }""")
    assert unit.working() == {1: {"", "rtnl_mutex"}, 2: {""}}


def test_an_unlock_without_a_lock_is_no_error(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        spin_unlock(&d->lock);
        work(1);
    }""")
    assert unit.working() == {1: set()}


def test_names_of_old_kernels_are_known(read: Read) -> None:
    unit = read("""spinlock_t lock;
    void f(void) {
        unsigned long flags = _spin_lock_irqsave(&lock);
        work(1);
        _spin_unlock_irqrestore(&lock, flags);
    }""")
    assert (unit.region().kind, unit.region().lock) == (Kind.SPIN_IRQ, "lock")


def test_preemption_is_off_from_idr_preload_to_its_end(read: Read) -> None:
    unit = read("""extern void idr_preload(unsigned flags);
    extern void __preempt_count_sub(int count);
    static inline void idr_preload_end(void) { __preempt_count_sub(1); }
    void f(void) {
        idr_preload(1);
        work(1);
        idr_preload_end();
        work(2);
    }""")
    assert unit.region() == Region(Kind.PREEMPT_OFF, "", 5, (6, 7), (7,))
    assert unit.held["f"].given == ()


def test_a_radix_tree_that_could_not_be_preloaded_leaves_preemption_on(read: Read) -> None:
    unit = read("""extern int radix_tree_preload(unsigned flags);
    extern void radix_tree_preload_end(void);
    void f(void) {
        if (radix_tree_preload(1)) {
            work(1);
            return;
        }
        work(2);
        radix_tree_preload_end();
    }""")
    assert unit.working() == {1: set(), 2: {""}}


def test_the_transmit_lock_of_a_device_is_the_kernels(read: Read) -> None:
    unit = read("""struct net_device;
    extern void netif_tx_lock(struct net_device *dev);
    extern void netif_tx_unlock(struct net_device *dev);
    struct port { struct net_device *dev; };
    void f(struct port *port) {
        netif_tx_lock(port->dev);
        work(1);
        netif_tx_unlock(port->dev);
        work(2);
    }""")
    assert unit.working() == {1: {"net_device.tx_global_lock"}, 2: set()}


def test_the_transmit_lock_of_a_kernel_that_inlines_it_is_the_one_that_the_inline_takes(
    read: Read,
) -> None:
    unit = read("""struct net_device { spinlock_t _xmit_lock; };
    static inline void netif_tx_lock(struct net_device *dev) { spin_lock(&dev->_xmit_lock); }
    void f(struct net_device *dev) {
        netif_tx_lock(dev);
        work(1);
        spin_unlock(&dev->_xmit_lock);
        work(2);
    }""")
    assert unit.working() == {1: {"net_device._xmit_lock"}, 2: set()}


def test_many_ways_through_a_function_are_made_one_that_holds_everything(read: Read) -> None:
    locks = "".join(f"if (d->up & {1 << n}) spin_lock(&d[{n}].lock);\n" for n in range(8))
    unit = read(f"void f(struct device *d) {{\n{locks} work(1); }}")
    assert unit.working() == {1: {"device.lock"}}
    held = unit.held["f"]
    assert max(map(len, held.at.values())) == 8


@pytest.mark.parametrize(
    ("symbol", "kind", "takes"),
    [
        ("_raw_spin_lock_irqsave", Kind.SPIN_IRQ, True),
        ("__raw_spin_unlock_bh", Kind.SPIN_BH, False),
        ("_raw_read_lock", Kind.SPIN, True),
        ("mutex_lock_nested", Kind.MUTEX, True),
        ("__raw_local_irq_save", Kind.IRQ_OFF, True),
        ("__local_bh_enable_ip", Kind.BH_OFF, False),
        ("__preempt_count_dec_and_test", Kind.PREEMPT_OFF, False),
        ("__rcu_read_lock", Kind.RCU, True),
        ("_snd_pcm_stream_lock_irqsave_nested", Kind.SPIN_IRQ, True),
        ("radix_tree_maybe_preload", Kind.PREEMPT_OFF, True),
        ("radix_tree_preload_end", Kind.PREEMPT_OFF, False),
        ("kernel_fpu_begin_mask", Kind.PREEMPT_OFF, True),
        ("kernel_fpu_end", Kind.PREEMPT_OFF, False),
        ("netif_tx_lock", Kind.SPIN, True),
        ("netif_tx_unlock", Kind.SPIN, False),
        ("rhashtable_walk_start_check", Kind.RCU, True),
        ("rhashtable_walk_stop", Kind.RCU, False),
        ("scsi_kmap_atomic_sg", Kind.PREEMPT_OFF, True),
        ("scsi_kunmap_atomic_sg", Kind.PREEMPT_OFF, False),
    ],
)
def test_one_line_of_the_table_stands_for_all_names_of_a_lock(
    symbol: str, kind: Kind, takes: bool
) -> None:
    entry = table().find(symbol)
    assert entry is not None
    assert (entry.kind, entry.takes) == (kind, takes)


@pytest.mark.parametrize(
    "symbol",
    ["e1000_lock", "block", "spin_lock_init", "mutex_is_locked", "downgrade", "up_and_running"],
)
def test_other_names_are_not_locks(symbol: str) -> None:
    assert table().find(symbol) is None


def test_a_function_that_returns_with_a_lock_says_so(read: Read) -> None:
    unit = read("""int f(struct device *d) {
        spin_lock(&d->lock);
        if (d->up)
            return 1;
        spin_unlock(&d->lock);
        return 0;
    }
    void g(struct device *d) {
        spin_lock(&d->lock);
        spin_unlock(&d->lock);
    }""")
    assert (unit.region("f").kept, unit.region("g").kept) == (True, False)


def test_a_function_that_gives_back_its_callers_lock_says_so(read: Read) -> None:
    unit = read("""void f(void) {
        work(1);
        rcu_read_unlock();
    }
    void g(struct device *d) {
        spin_unlock(&d->lock);
        spin_lock(&d->lock);
    }
    void h(void) {
        f();
    }""")
    assert unit.given("f") == (Given(Kind.RCU, "", 3),)
    assert unit.given("g") == (Given(Kind.SPIN, "device.lock", 6),)
    assert unit.given("h") == (Given(Kind.RCU, "", 10),)


def test_switching_interrupts_on_for_a_while_gives_back_what_the_caller_switched_off(
    read: Read,
) -> None:
    unit = read("""void f(void) {
        local_irq_enable();
        work(1);
        local_irq_disable();
    }""")
    assert unit.given("f") == (Given(Kind.IRQ_OFF, "", 2),)


def test_a_function_whose_locks_are_paired_gives_nothing(read: Read) -> None:
    unit = read("""void f(struct device *d) {
        unsigned long flags;
        spin_lock_irqsave(&d->lock, flags);
        work(1);
        spin_unlock_irqrestore(&d->lock, flags);
    }""")
    assert unit.given("f") == ()
