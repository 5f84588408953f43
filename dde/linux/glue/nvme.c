// SPDX-License-Identifier: GPL-2.0-only
/* What an NVMe controller calls itself. */
#include <linux/string.h>

#include "drivers/nvme/host/nvme.h"
#include "dde_block.h"

/* Text of the specification's, which ends with spaces and no zero. */
static void copy(char *to, size_t room, const char *from, size_t len)
{
	while (len > 0 && (from[len - 1] == ' ' || from[len - 1] == '\0'))
		len--;
	len = min(len, room - 1);
	memcpy(to, from, len);
	to[len] = '\0';
}

void dde_block_identify(struct gendisk *disk, struct dde_identity *identity)
{
	const struct nvme_ns *ns = disk->private_data;
	const struct nvme_subsystem *subsys = ns->ctrl->subsys;

	copy(identity->model, sizeof(identity->model), subsys->model, sizeof(subsys->model));
	copy(identity->serial, sizeof(identity->serial), subsys->serial, sizeof(subsys->serial));
	copy(identity->firmware, sizeof(identity->firmware), subsys->firmware_rev,
	     sizeof(subsys->firmware_rev));
}
