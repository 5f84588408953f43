"""Disks that ring3 drives for a program in Python."""

import asyncio
import errno
import gc
import os
import signal

import numpy as np
import pytest

import ring3


def test_a_block_is_written_and_read_on_each_backend(any_disk: ring3.Disk) -> None:
    with any_disk.queue() as queue:
        buffer, other = any_disk.alloc(4096), any_disk.alloc(4096)
        memoryview(buffer)[:5] = b"ring3"
        queue.write(0, buffer)
        queue.read(0, other)
        assert bytes(other)[:6] == b"ring3\0"


def test_a_disk_says_what_it_is(disk: ring3.Disk) -> None:
    info = disk.info
    assert disk.name == "sim:nvme namespace 1"
    assert info.block_size == 512
    assert info.blocks * info.block_size == 64 << 20
    assert info.max_transfer >= 4096


def test_an_array_of_numpy_is_the_buffer_and_no_copy(disk: ring3.Disk) -> None:
    with disk.queue() as queue:
        buffer = disk.alloc(8192)
        array = np.frombuffer(memoryview(buffer), dtype=np.uint32)
        array[:] = np.arange(2048, dtype=np.uint32)
        queue.write(8, buffer)
        array[:] = 0
        queue.read(8, buffer)
        assert array[2047] == 2047
        assert array.ctypes.data == buffer.address


def test_an_array_keeps_its_memory_after_the_disk_is_closed() -> None:
    with ring3.Disk("sim:nvme") as disk:
        array = np.frombuffer(memoryview(disk.alloc(4096)), dtype=np.uint8)
        array[:] = 7
    gc.collect()
    assert array.sum() == 7 * 4096


def test_many_requests_in_flight_end_with_their_tokens(disk: ring3.Disk) -> None:
    with disk.queue(depth=16) as queue:
        buffer = disk.alloc(64 * 512)
        begun = 0
        ended: set[object] = set()
        while len(ended) < 64:
            while begun < 64 and queue.submit(
                "read", begun, buffer, offset=begun * 512, blocks=1, token=f"block {begun}"
            ):
                begun += 1
            queue.ring()
            assert queue.wait(20)
            for token, error in queue.reap():
                assert error is None
                ended.add(token)
        assert ended == {f"block {number}" for number in range(64)}
        assert queue.in_flight == 0


def test_requests_that_make_no_sense_are_refused(disk: ring3.Disk) -> None:
    with disk.queue() as queue:
        buffer = disk.alloc(4096)
        with pytest.raises(OSError, match="beyond the end of the disk") as caught:
            queue.read(1 << 40, buffer)
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(ValueError, match="of a buffer of 4096"):
            queue.read(0, buffer, blocks=9)
        with pytest.raises(ValueError, match="needs a buffer"):
            queue.submit("read", 0)
        with pytest.raises(ValueError, match="no operation"):
            queue.submit("erase", 0)  # type: ignore[arg-type]


def test_a_device_that_is_not_there_is_an_oserror_that_says_what_there_is() -> None:
    with pytest.raises(OSError, match="does not name a device"):
        ring3.Disk("nonsense")
    with pytest.raises(OSError, match="it has no disk"):
        ring3.Disk("sim:e1000")


def test_what_is_closed_says_so(disk: ring3.Disk) -> None:
    queue = disk.queue()
    queue.close()
    with pytest.raises(ValueError, match="the queue is closed"):
        queue.ring()
    disk.close()
    with pytest.raises(ValueError, match="the disk is closed"):
        disk.alloc(4096)


def test_a_queue_that_is_closed_gives_the_buffers_of_its_requests_back(disk: ring3.Disk) -> None:
    for _ in range(200):
        with disk.queue() as queue:
            buffer = disk.alloc(1 << 20)
            assert queue.submit("read", 0, buffer)
            queue.ring()
        del buffer


def test_memory_of_others_is_registered_and_shared(disk: ring3.Disk) -> None:
    fd = os.memfd_create("mine")
    os.ftruncate(fd, 8192)
    lent = disk.register(fd, 8192)
    os.pwrite(fd, b"theirs", 4096)
    with disk.queue() as queue:
        queue.write(3, lent, offset=4096, blocks=8)
        queue.read(3, lent, offset=0, blocks=8)
    assert os.pread(fd, 6, 0) == b"theirs"
    os.close(fd)


def test_requests_are_awaited_in_a_loop(any_disk: ring3.Disk) -> None:
    async def work() -> None:
        async with ring3.AsyncDisk(any_disk.queue(depth=8)) as queue:
            buffers = [any_disk.alloc(4096) for _ in range(40)]
            for number, buffer in enumerate(buffers):
                memoryview(buffer)[0] = number
            await asyncio.gather(*(queue.write(8 * n, b) for n, b in enumerate(buffers)))
            await queue.flush()
            for buffer in buffers:
                memoryview(buffer)[0] = 255
            await asyncio.gather(*(queue.read(8 * n, b) for n, b in enumerate(buffers)))
            assert [bytes(buffer)[0] for buffer in buffers] == list(range(40))

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_loop_goes_on_while_a_disk_works(disk: ring3.Disk) -> None:
    async def work() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with ring3.AsyncDisk(disk.queue()) as queue:
            buffer = disk.alloc(4096)
            for _ in range(50):
                await queue.read(0, buffer)
        counting.cancel()
        return turns

    assert asyncio.run(asyncio.wait_for(work(), 60)) > 50


def test_a_request_that_fails_raises_where_it_is_awaited() -> None:
    async def work(disk: ring3.Disk) -> None:
        async with ring3.AsyncDisk(disk.queue()) as queue:
            with pytest.raises(OSError, match="beyond the end"):
                await queue.read(1 << 40, disk.alloc(4096))

    with ring3.Disk("sim:nvme") as disk:
        asyncio.run(asyncio.wait_for(work(disk), 60))


def test_a_polled_queue_is_awaited_too() -> None:
    async def work(disk: ring3.Disk) -> None:
        async with ring3.AsyncDisk(disk.queue()) as queue:
            await queue.read(0, disk.alloc(4096))

    with ring3.Disk("sim:nvme", polled=True) as disk:
        asyncio.run(asyncio.wait_for(work(disk), 60))


def test_an_endless_wait_is_ended_by_a_signal(disk: ring3.Disk) -> None:
    def ring(_signal: int, _frame: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with disk.queue() as queue, pytest.raises(InterruptedError):
            queue.wait()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_queue_that_is_closed_cancels_who_waits_for_it(disk: ring3.Disk) -> None:
    async def work() -> None:
        queue = ring3.AsyncDisk(disk.queue())
        waiting = asyncio.create_task(queue.read(0, disk.alloc(4096)))
        await asyncio.sleep(0)
        queue.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(asyncio.wait_for(work(), 60))
