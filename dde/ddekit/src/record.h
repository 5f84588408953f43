/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a device is and what its registers gave, written to the file that the variable DDEKIT_RECORD
 * names: what fuzz/device.c is made of.
 */
#ifndef DDEKIT_SRC_RECORD_H
#define DDEKIT_SRC_RECORD_H

#include "device.h"

/* Begins, if the variable is set: 0 or a negative errno. */
int record_begin(struct ddekit_device *device);
/* Whether all reads must come by. */
bool record_is_on(void);
void record_read(const struct ring3_bar *bar, uint64_t offset, uint32_t width, uint64_t value);
void record_end(void);

#endif
