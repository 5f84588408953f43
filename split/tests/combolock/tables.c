/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* What crosses between the halves of the counter, by hand. Both halves compile this file. */
#include "tables.h"

#ifdef __KERNEL__
#define KERNEL_HALF(address) address
unsigned long split_down_count(const unsigned long *arguments);
#else
#define KERNEL_HALF(address) 0
#endif

static const struct split_inside inside_counter[] = { { &split_combolock, 0 } };
static const struct split_type type_counter = { "counter", 8, .inside = inside_counter, .insides = 1 };
static const struct split_field fields[] = { { "count", 4, 4, SPLIT_DATA, 1 } };
static const struct split_view views[] = { { &type_counter, fields, 1 } };
static const struct split_parameter parameters[] = {
	{ "counter", SPLIT_POINTER, 0, 0, &type_counter, 0 },
	{ "ms", SPLIT_DATA, 0, 0, 0, 0 },
};
static const unsigned short allowed[] = { 0 };

static const struct split_entry entries[] = {
	{ .name = "hold", .parameters = parameters, .nparameters = 2, .views = views, .nviews = 1, .failure = -5, .timeout_ms = 10000 },
	{ .name = "deadlock", .parameters = parameters, .nparameters = 2, .views = views, .nviews = 1, .calls = allowed, .ncalls = 1,
	  .failure = -5, .timeout_ms = 1000 },
};

static const struct split_downcall calls[] = { { .name = "count", .call = KERNEL_HALF(split_down_count) } };

const struct split_driver split_driver = {
	.name = "split_counter",
	.layout = 1,
	.entries = entries,
	.downcalls = calls,
	.nentries = 2,
	.ndowncalls = 1,
	.combolocks = 1,
};
