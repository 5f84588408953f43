"""Disks, interrupts and cards in an asyncio loop, over their descriptors."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from ring3._ring3 import Buffer, CardQueue, DiskQueue, Irq

# Seconds between two looks at a queue that has no interrupt.
_LOOK = 0.001


class _Watch:
    """Sleeps of one queue in a loop: calls `turn` when there may be something."""

    def __init__(self, queue: DiskQueue | CardQueue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        try:
            self._fd = queue.fileno()
        except OSError:
            self._fd = -1
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._woken)

    def turn(self) -> None:
        """Takes what there is."""
        raise NotImplementedError

    def _woken(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self.turn()
        limit = self._queue.arm()
        if limit is None:
            # Something has come meanwhile, or the queue is polled.
            if self._fd >= 0:
                self._timer = self._loop.call_soon(self._woken)
            else:
                self._timer = self._loop.call_later(_LOOK, self._woken)
        elif limit >= 0:
            self._timer = self._loop.call_later(limit, self._woken)

    def _end(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)


class AsyncDisk(_Watch):
    """A queue of a disk in the running loop, whose requests are awaited.

    Requests that are begun before the loop turns next are handed to the device together.

        async with ring3.AsyncDisk(disk.queue()) as queue:
            await queue.read(0, buffer)
    """

    def __init__(self, queue: DiskQueue) -> None:
        self._room = asyncio.Event()
        self._begun = False
        self._pending: set[asyncio.Future[None]] = set()
        self._disk = queue
        super().__init__(queue)

    async def read(
        self, lba: int, buffer: Buffer, *, offset: int = 0, blocks: int | None = None
    ) -> None:
        """Reads blocks into a buffer."""
        while not self._disk.submit(
            "read", lba, buffer, offset=offset, blocks=blocks, token=(end := self._future())
        ):
            await self._until_room()
        await self._begin(end)

    async def write(
        self,
        lba: int,
        buffer: Buffer,
        *,
        offset: int = 0,
        blocks: int | None = None,
        fua: bool = False,
    ) -> None:
        """Writes blocks from a buffer; durable at its end with `fua`."""
        while not self._disk.submit(
            "write",
            lba,
            buffer,
            offset=offset,
            blocks=blocks,
            fua=fua,
            token=(end := self._future()),
        ):
            await self._until_room()
        await self._begin(end)

    async def flush(self) -> None:
        """Makes what was written durable."""
        while not self._disk.submit("flush", token=(end := self._future())):
            await self._until_room()
        await self._begin(end)

    def turn(self) -> None:
        """Ends what has ended."""
        ended = self._disk.reap()
        for end, error in ended:
            assert isinstance(end, asyncio.Future)
            # Nobody waits any more for one that was cancelled.
            if end.done():
                continue
            if error is None:
                end.set_result(None)
            else:
                end.set_exception(error)
        if ended:
            self._room.set()

    def close(self) -> None:
        """Stops what is in flight, whose tasks are cancelled, and ends the queue."""
        self._end()
        self._disk.close()
        for end in list(self._pending):
            end.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _future(self) -> asyncio.Future[None]:
        return self._loop.create_future()

    async def _until_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    def _begin(self, end: asyncio.Future[None]) -> asyncio.Future[None]:
        self._pending.add(end)
        end.add_done_callback(self._pending.discard)
        if not self._begun:
            self._begun = True
            self._loop.call_soon(self._ring)
        return end

    def _ring(self) -> None:
        self._begun = False
        self._disk.ring()
        self._woken()


class _Packets(_Watch):
    def __init__(self, queue: CardQueue) -> None:
        self._card = queue
        self._frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._pieces = b""
        super().__init__(queue)

    def turn(self) -> None:
        while pieces := self._card.receive():
            for piece, more in pieces:
                self._pieces += piece
                if not more:
                    self._frames.put_nowait(self._pieces)
                    self._pieces = b""


async def packets(queue: CardQueue) -> AsyncIterator[bytes]:
    """The frames that a card receives, from now on."""
    watch = _Packets(queue)
    try:
        watch._woken()
        while True:
            yield await watch._frames.get()
    finally:
        watch._end()


async def raised(irq: Irq) -> int:
    """Waits until an interrupt is raised, and takes it: how often it was."""
    loop = asyncio.get_running_loop()
    while not (count := irq.take()):
        woken = asyncio.Event()
        loop.add_reader(irq.fileno(), woken.set)
        try:
            await woken.wait()
        finally:
            loop.remove_reader(irq.fileno())
    return count
