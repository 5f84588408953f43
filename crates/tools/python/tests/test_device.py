"""Registers, memory and interrupts of a device: QEMU's teaching device, and its model."""

import asyncio

import pytest

import ring3

# [EDU, MMIO area spec]
IDENTIFICATION, LIVENESS, FACTORIAL, STATUS = 0x00, 0x04, 0x08, 0x20
IRQ_STATUS, IRQ_RAISE, IRQ_ACKNOWLEDGE = 0x24, 0x60, 0x64
DMA_SOURCE, DMA_DESTINATION, DMA_COUNT, DMA_COMMAND = 0x80, 0x88, 0x90, 0x98

DEVICES = pytest.mark.parametrize("uri", ["sim:edu", "qtest:edu"])


def opened(uri: str) -> ring3.Device:
    return ring3.Device(uri, arena=1 << 20, below=1 << 28)


@DEVICES
def test_registers_are_read_and_written(uri: str) -> None:
    with opened(uri) as device:
        assert device.config_read(0) == 0x11E81234
        registers = device.bar(0)
        assert registers.read(IDENTIFICATION) & 0xFF == 0xED
        registers.write(LIVENESS, 0x12345678)
        assert registers.read(LIVENESS) == 0xFFFFFFFF ^ 0x12345678
        with pytest.raises(ValueError, match="a register of 3 bytes"):
            registers.read(0, 3)
        with pytest.raises(ValueError, match="at 0x"):
            registers.read(len(registers))


@DEVICES
def test_memory_is_moved_there_and_back(uri: str) -> None:
    with opened(uri) as device:
        device.set_bus_master(True)
        registers, out, back = device.bar(0), device.alloc(4096), device.alloc(4096)
        memoryview(out)[:4] = b"edu!"
        for source, destination, command in [(out.iova, 0x40000, 1), (0x40000, back.iova, 3)]:
            registers.write(DMA_SOURCE, source, 8)
            registers.write(DMA_DESTINATION, destination, 8)
            registers.write(DMA_COUNT, 4095, 8)
            registers.write(DMA_COMMAND, command, 8)
            while registers.read(DMA_COMMAND, 4) & 1:
                pass
        assert bytes(back)[:5] == b"edu!\0"


@DEVICES
def test_an_interrupt_is_awaited(uri: str) -> None:
    async def work(device: ring3.Device) -> None:
        registers, [irq] = device.bar(0), device.irqs("msi")
        irq.unmask()
        for number in range(1, 4):
            waiting = asyncio.create_task(ring3.raised(irq))
            await asyncio.sleep(0)
            registers.write(IRQ_RAISE, number)
            assert await waiting >= 1
            assert registers.read(IRQ_STATUS) == number
            registers.write(IRQ_ACKNOWLEDGE, number)

    with opened(uri) as device:
        device.set_bus_master(True)
        asyncio.run(asyncio.wait_for(work(device), 60))


def test_an_interrupt_that_does_not_come_is_waited_for_so_long() -> None:
    with opened("sim:edu") as device:
        [irq] = device.irqs("msi")
        assert irq.wait(0.01) == 0
