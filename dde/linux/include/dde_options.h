/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program asks of the kernel's side, before it starts that. */
#ifndef DDE_OPTIONS_H
#define DDE_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct dde_options - all zero is as usual @dma_copies: each buffer that a driver maps is copied
 * to memory of its own and back, for comparison; otherwise nothing is copied @no_msix: the device
 * has no MSI-X, for all that its driver can see @journaled: the device is recorded or replayed:
 * what the driver does shall depend on nothing else @poll_ns: how long a network card is polled,
 * with its interrupts off, after its last packet; 0 waits for interrupts
 */
struct dde_options {
	bool dma_copies;
	bool no_msix;
	bool journaled;
	uint64_t poll_ns;
};
extern struct dde_options dde_options;
/*
 * Starts the program anew, with all of it where it lay the last time; comes back where that is so,
 * or cannot be.
 */
void dde_stand_still(char **argv);
/* The kernel's barriers bring the device's memory and the driver's into step, which are two. */
extern bool dde_two_memories;

#endif
