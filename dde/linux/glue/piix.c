// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a PC's firmware does for the driver of an IDE function of Intel's: it has both channels
 * decode their ports. [PIIX3 2.3.9, IDETIM]
 */
#include <linux/init.h>
#include <linux/pci.h>

#include "dde.h"

#define IDETIM 0x40
#define CHANNELS 2
#define DECODE_ENABLE 0x8000u

static int __init enable(void)
{
	for (unsigned int channel = 0; channel < CHANNELS; channel++) {
		u32 timing = ddekit_cfg_read(dde_device, IDETIM + 2 * channel, 2);

		if (!(timing & DECODE_ENABLE) &&
		    ddekit_cfg_write(dde_device, IDETIM + 2 * channel, 2, timing | DECODE_ENABLE) <
		    0) pr_warn("dde: channel %u of the IDE function stays off: %s\n", channel,
			       ddekit_error());
	}
	return 0;
}
fs_initcall(enable);
