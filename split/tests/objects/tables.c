/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
/* A driver by hand, whose user half makes and frees objects. Both halves compile this file. */
#include "tables.h"
#include "objects.h"

#ifdef __KERNEL__
#include <linux/mutex.h>

#include "ring3_split.h"
#define KERNEL_HALF(address) address
#else
#define KERNEL_HALF(address) 0
#endif
unsigned long split_down_make(const unsigned long *arguments);
unsigned long split_down_end(const unsigned long *arguments);
unsigned long split_down_hold(const unsigned long *arguments);
unsigned long split_down_drop(const unsigned long *arguments);
unsigned long split_down_wait(const unsigned long *arguments);
unsigned long split_down_turn(const unsigned long *arguments);
int split_requires_turn(const unsigned long *arguments);
unsigned long split_down_take_rtnl(const unsigned long *arguments);
unsigned long split_down_give_rtnl(const unsigned long *arguments);
int split_requires_take_rtnl(const unsigned long *arguments);
int split_requires_give_rtnl(const unsigned long *arguments);
void split_undo_take_rtnl(const unsigned long *arguments, unsigned long result);
unsigned long split_down_fill(const unsigned long *arguments);
void split_undo_hold(const unsigned long *arguments, unsigned long result);

static const struct split_type part = { "part", sizeof(struct part), .own = 1 };
static const struct split_type thing = { "thing", sizeof(struct thing) };
static const struct split_type box = { "box", sizeof(struct box) };

static const struct split_field box_fields[] = {
	{ "thing", 0, 8, SPLIT_POINTER, 1, &thing, 0 },
	{ "seen", 8, 8, SPLIT_POINTER, 0, &thing, 0 },
	{ "part", 16, 8, SPLIT_POINTER, 1, &part, 0 },
	{ "text", 24, 8, SPLIT_DATA, 1, .texts = (const unsigned int[]){ 7 }, .ntexts = 1 },
};
static const struct split_field thing_fields[] = {
	{ "label", 0, 8, SPLIT_POINTER, 0, &split_bytes, KERNEL_HALF(split_string) },
	{ "number", 8, 8, SPLIT_DATA, 1 },
};
static const struct split_field part_fields[] = {
	{ "number", 0, 8, SPLIT_DATA, 1 },
};
static const struct split_view views[] = { { &box, box_fields, 4 }, { &thing, thing_fields, 2 },
					   { &part, part_fields, 1 } };
static const struct split_parameter parameters[] = { { "box", SPLIT_POINTER, 0, 0, &box, 0 } };
static const unsigned short allowed[] = { MAKE, END, HOLD, DROP, WAIT, TURN, TAKE_RTNL, GIVE_RTNL,
					FILL };

static const struct split_entry entries[] = {
	{ .name = "work", .parameters = parameters, .nparameters = 1, .views = views, .nviews = 3,
	  .calls = allowed, .ncalls = 9, .frees = 1, .failure = -5, .timeout_ms = 30000 },
};

#define A_THING { { SPLIT_OBJECT, &thing } }
static const struct split_downcall calls[] = {
	[MAKE] = { "make", KERNEL_HALF(split_down_make), 1, { { SPLIT_SCALAR } },
		   { SPLIT_OBJECT, &thing } },
	[END] = { "end", KERNEL_HALF(split_down_end), 1, A_THING, .ends = 1 },
	[HOLD] = { "hold", KERNEL_HALF(split_down_hold), 1, A_THING, { 0 },
		   KERNEL_HALF(split_undo_hold), DROP + 1, 0, 0 },
	[DROP] = { "drop", KERNEL_HALF(split_down_drop), 1, A_THING },
	[WAIT] = { "wait", KERNEL_HALF(split_down_wait), 1, { { SPLIT_SCALAR } } },
	[TURN] = { "turn", KERNEL_HALF(split_down_turn), 1, { { SPLIT_SCALAR } }, .alone = 1,
		   .requires = KERNEL_HALF(split_requires_turn) },
	[TAKE_RTNL] = { "take_rtnl", KERNEL_HALF(split_down_take_rtnl), 0, { { 0 } }, { 0 },
			KERNEL_HALF(split_undo_take_rtnl), GIVE_RTNL + 1,
			.requires = KERNEL_HALF(split_requires_take_rtnl) },
	[GIVE_RTNL] = { "give_rtnl", KERNEL_HALF(split_down_give_rtnl), 0, { { 0 } },
			.requires = KERNEL_HALF(split_requires_give_rtnl) },
	[FILL] = { "fill", KERNEL_HALF(split_down_fill), 2,
		   { { SPLIT_COUNTED, &split_bytes, 1, 1 }, { SPLIT_SCALAR } } },
};

#ifdef __KERNEL__
extern struct mutex split_lasting, split_bare;
static const struct split_symbol symbols[] = {
	[LASTING] = { "lasting", &split_lasting, sizeof(struct mutex), &split_mutex },
	[BARE] = { "bare", &split_bare, sizeof(struct mutex), &split_mutex },
};
#endif

const struct split_driver split_driver = {
	.name = "split_objects",
	.layout = 1,
	.entries = entries,
	.downcalls = calls,
	.nentries = 1,
	.ndowncalls = 9,
#ifdef __KERNEL__
	.symbols = symbols,
	.nsymbols = 2,
#endif
};
