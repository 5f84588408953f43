"""Allocations: how much memory of what, and where it is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ir_from_c import compile_c
from ring3_split.ir.module import parse
from ring3_split.ir.origin import Origins
from ring3_split.model import Allocation
from ring3_split.reader.allocations import allocations, table
from ring3_split.reader.uses import Uses

Read = Callable[[str], tuple[Allocation, ...]]
KERNEL = """
typedef unsigned long size_t;
extern void *__kmalloc_noprof(size_t size, int flags);
extern void *kmalloc_array_noprof(size_t n, size_t size, int flags);
extern void *vzalloc(size_t size);
extern void *dma_alloc_coherent(void *device, size_t size, void *handle, int flags);
extern void *alloc_etherdev_mqs(int size, int tx, int rx);
extern void *netdev_priv(void *device);
static inline size_t size_add(size_t a, size_t b) { return a + b; }
static inline size_t size_mul(size_t a, size_t b) { return a * b; }
struct buffer { void *data; int length; };
struct ring { unsigned count; unsigned size; struct buffer *buffers; void *descriptors; \
void **pages; };
struct nic { int queues; struct ring *rings; char name[40]; };
struct table { int length; struct buffer entries[]; };
struct ring *first;
"""


@pytest.fixture
def read(clang: Path, tmp_path: Path) -> Read:
    def allocated(source: str) -> tuple[Allocation, ...]:
        module = parse(compile_c(clang, tmp_path, f"{KERNEL}\n#line 1\n{source}").read_text())
        body = module.functions["f"]
        return allocations(module, body, Origins.within(module, body), Uses(body))

    return allocated


def test_an_array_is_so_many_elements_as_a_field_says(read: Read) -> None:
    (found,) = read(
        "void f(struct nic *n) { n->rings = kmalloc_array_noprof(n->queues, sizeof(struct ring), "
        "0); }"
    )
    assert found == Allocation(
        "kmalloc_array", 1, "nic.queues * sizeof(struct ring)", "ring", "field nic.rings"
    )


def test_a_size_may_be_computed_in_a_variable_before(read: Read) -> None:
    (found,) = read("""void f(struct ring *r) {
        int size;
        size = sizeof(struct buffer) * r->count;
        r->buffers = vzalloc(size);
    }""")
    assert (found.size, found.into) == ("ring.count * sizeof(struct buffer)", "field ring.buffers")


def test_one_object_is_its_size(read: Read) -> None:
    (found,) = read("int f(void) { first = __kmalloc_noprof(sizeof(*first), 0); return !first; }")
    assert found == Allocation("kmalloc", 1, "sizeof(struct ring)", "ring", "global first")


def test_a_constant_size_is_a_number_of_elements(read: Read) -> None:
    (found,) = read(
        "void f(struct nic *n) { n->rings = __kmalloc_noprof(4 * sizeof(struct ring), 0); }"
    )
    assert found.size == "4 * sizeof(struct ring)"


def test_pointers_and_bytes_keep_their_numbers(read: Read) -> None:
    pages, bytes_ = read("""void f(struct ring *r) {
        r->pages = kmalloc_array_noprof(r->count, sizeof(void *), 0);
        r->descriptors = dma_alloc_coherent(0, r->size, 0, 0);
    }""")
    assert (pages.size, pages.type, pages.into) == ("ring.count * 8", "", "field ring.pages")
    assert (bytes_.size, bytes_.type, bytes_.into) == ("ring.size", "", "field ring.descriptors")


def test_a_struct_that_ends_in_an_array_is_both_sizes(read: Read) -> None:
    (found,) = read("""struct table *f(int n) {
        size_t size = size_add(sizeof(struct table), size_mul(n, sizeof(struct buffer)));
        struct table *t = __kmalloc_noprof(size, 0);
        return t;
    }""")
    assert found == Allocation(
        "kmalloc", 3, "sizeof(struct table) + param 0 * sizeof(struct buffer)", "table", "return"
    )


def test_the_size_of_a_network_device_is_that_of_the_drivers_part(read: Read) -> None:
    (found,) = read("""struct net_device { void *priv; };
    void f(void) {
        struct net_device *device = alloc_etherdev_mqs(sizeof(struct nic), 1, 1);
        struct nic *n = netdev_priv(device);
        n->queues = 1;
    }""")
    assert (found.size, found.type) == ("sizeof(struct nic)", "net_device")


def test_two_allocations_through_one_variable_go_to_two_places(read: Read) -> None:
    first, second = read("""void f(struct nic *n, struct ring *r) {
        void *p = __kmalloc_noprof(16, 0);
        n->rings = p;
        p = __kmalloc_noprof(32, 0);
        r->descriptors = p;
    }""")
    assert (first.into, second.into) == ("field nic.rings", "field ring.descriptors")


def test_a_size_that_was_set_in_two_ways_is_the_variable(read: Read) -> None:
    (found,) = read("""void *f(struct ring *r) {
        int size = 100;
        if (r->count)
            size = r->count;
        return __kmalloc_noprof(size, 0);
    }""")
    assert (found.size, found.into) == ("local size", "return")


@pytest.mark.parametrize(
    ("symbol", "api"),
    [
        ("kmalloc_node_noprof", "kmalloc"),
        ("__kvmalloc_node_noprof", "kvmalloc"),
        ("devm_kcalloc", "devm_kcalloc"),
    ],
)
def test_one_line_of_the_table_stands_for_all_names_of_an_allocator(symbol: str, api: str) -> None:
    allocator = table().find(symbol)
    assert allocator is not None
    assert allocator.api == api
