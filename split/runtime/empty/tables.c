/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/*
 * A driver of which nothing crosses, written by hand: what a crossing costs by itself. Both halves
 * compile this file.
 */
#include "tables.h"

#ifdef __KERNEL__
#define KERNEL_HALF(address) address
unsigned long split_down_nothing(const unsigned long *arguments);
#else
#define KERNEL_HALF(address) 0
#endif

static const struct split_parameter repeat_parameters[] = {
	{ "what", SPLIT_DATA, 0, 0, 0, 0 },
	{ "times", SPLIT_DATA, 0, 0, 0, 0 },
	{ "registers", SPLIT_OPAQUE, 0, 0, &split_opaque, 0 },
};
static const unsigned short repeat_calls[] = { 0 };

static const struct split_entry entries[] = {
	{ .name = "nothing", .failure = -5, .timeout_ms = 10000 },
	{ .name = "repeat", .parameters = repeat_parameters, .nparameters = 3,
	  .calls = repeat_calls, .ncalls = 1, .failure = -5, .timeout_ms = 600000 },
};

static const struct split_downcall calls[] = {
	{ .name = "nothing", .call = KERNEL_HALF(split_down_nothing) },
};

const struct split_driver split_driver = {
	.name = "split_empty",
	.layout = 1,
	.entries = entries,
	.downcalls = calls,
	.nentries = 2,
	.ndowncalls = 1,
	.maps = 1,
};
