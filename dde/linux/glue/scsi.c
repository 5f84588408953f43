// SPDX-License-Identifier: GPL-2.0-only
/* What a drive calls itself by SCSI. */
#include <linux/string.h>
#include <scsi/scsi_device.h>

#include "dde_block.h"

/* Of [SPC-6, 6.7.2] "INQUIRY": text that ends with spaces and no zero. */
#define MODEL_LEN 16
#define REVISION_LEN 4
/* Of [SPC-6, 7.7.19] "Unit Serial Number". */
#define SERIAL_PAGE 0x80
#define PAGE_HEADER 4

static void copy(char *to, size_t room, const unsigned char *from, size_t len)
{
	while (len > 0 && *from == ' ') {
		from++;
		len--;
	}
	while (len > 0 && (from[len - 1] == ' ' || from[len - 1] == '\0'))
		len--;
	len = min(len, room - 1);
	memcpy(to, from, len);
	to[len] = '\0';
}

void dde_block_identify(struct gendisk *disk, struct dde_identity *identity)
{
	struct scsi_device *drive = to_scsi_device(disk_to_dev(disk)->parent);
	const struct scsi_vpd *page;

	copy(identity->model, sizeof(identity->model), drive->model, MODEL_LEN);
	copy(identity->firmware, sizeof(identity->firmware), drive->rev, REVISION_LEN);
	rcu_read_lock();
	page = rcu_dereference(drive->vpd_pg80);
	if (page && page->len > PAGE_HEADER && page->data[1] == SERIAL_PAGE)
		copy(identity->serial, sizeof(identity->serial), page->data + PAGE_HEADER,
		     page->len - PAGE_HEADER);
	rcu_read_unlock();
}
