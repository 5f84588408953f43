// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtio devices reach what they are given through the device layer, or they are not driven: one
 * without VIRTIO_F_ACCESS_PLATFORM would take addresses for those of the machine's memory. [VIRTIO
 * 6.1]
 */
#include <linux/virtio.h>
#include <linux/virtio_anchor.h>

bool virtio_require_restricted_mem_acc(struct virtio_device *dev)
{
	return true;
}

bool (*virtio_check_mem_acc_cb)(struct virtio_device *dev) = virtio_require_restricted_mem_acc;
