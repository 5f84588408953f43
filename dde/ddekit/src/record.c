/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ddekit/irq.h"

#define CONFIG 4096u

static FILE *file;
static const struct ddekit_device *recorded;

int record_begin(struct ddekit_device *device)
{
	const char *path = getenv("DDEKIT_RECORD");

	if (!path)
		return 0;
	file = fopen(path, "we");
	if (!file)
		return -errno;
	recorded = device;
	for (unsigned int at = 0; at < CONFIG; at += 4)
		fprintf(file, "c %x %x\n", at, ddekit_cfg_read(device, at, 4));
	for (unsigned int i = 0; i < BARS; i++) {
		struct ddekit_bar_info info;

		if (ddekit_bar_info(device, i, &info) == 0)
			fprintf(file, "b %u %llx %u\n", i, (unsigned long long)info.len,
				info.ports);
	}
	for (unsigned int kind = DDEKIT_INTX; kind <= DDEKIT_MSIX; kind++)
		fprintf(file, "i %u %u\n", kind, ddekit_irq_count(device, kind));
	return 0;
}

bool record_is_on(void)
{
	return file != NULL;
}

void record_read(const struct ring3_bar *bar, uint64_t offset, uint32_t width, uint64_t value)
{
	for (unsigned int i = 0; i < BARS; i++)
		if (recorded->bars[i] == bar)
			fprintf(file, "r %u %llx %u %llx\n", i, (unsigned long long)offset, width,
				(unsigned long long)value);
}

void record_end(void)
{
	if (file)
		fclose(file);
	file = NULL;
}
