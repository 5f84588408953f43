"""Reads 4 KiB blocks in batches, for tests/reads, which counts what a read costs.

reads.py sim:nvme BATCH BATCHES
"""

import sys

import ring3


def main() -> None:
    uri, batch, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with ring3.Disk(uri) as disk, disk.queue(depth=64) as queue:
        buffer = disk.alloc(batch * 4096)
        for _ in range(batches):
            for nth in range(batch):
                queue.submit("read", nth * 8, buffer, offset=nth * 4096, blocks=8)
            queue.ring()
            missing = batch
            while missing:
                for _, error in queue.reap():
                    if error:
                        raise error
                    missing -= 1


main()
