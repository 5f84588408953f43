"""Drivers of ring3's in the process of a Python program: disks, network cards, devices.

>>> import ring3
>>> with ring3.Disk("sim:nvme") as disk, disk.queue() as queue:
...     buffer = disk.alloc(4096)
...     queue.read(0, buffer)
...     memoryview(buffer)[:4].tolist()
[0, 0, 0, 0]

What fails raises OSError with an errno and a text that says what to do next.
"""

from ring3._ring3 import Bar, Buffer, Card, CardQueue, Device, Disk, DiskInfo, DiskQueue, Irq
from ring3.aio import AsyncDisk, packets, raised

__all__ = [
    "AsyncDisk",
    "Bar",
    "Buffer",
    "Card",
    "CardQueue",
    "Device",
    "Disk",
    "DiskInfo",
    "DiskQueue",
    "Irq",
    "packets",
    "raised",
]
