// SPDX-License-Identifier: GPL-2.0-only
/* Random numbers are the host's. */
#include <linux/hw_random.h>
#include <linux/random.h>

#include "dde.h"

void get_random_bytes(void *bytes, size_t len)
{
	ddekit_random(bytes, len);
}

u8 get_random_u8(void)
{
	u8 value;

	ddekit_random(&value, sizeof(value));
	return value;
}

u16 get_random_u16(void)
{
	u16 value;

	ddekit_random(&value, sizeof(value));
	return value;
}

u32 get_random_u32(void)
{
	u32 value;

	ddekit_random(&value, sizeof(value));
	return value;
}

u64 get_random_u64(void)
{
	u64 value;

	ddekit_random(&value, sizeof(value));
	return value;
}

u32 __get_random_u32_below(u32 ceil)
{
	return reciprocal_scale(get_random_u32(), ceil);
}

int wait_for_random_bytes(void)
{
	return 0;
}

bool rng_is_initialized(void)
{
	return true;
}

int execute_with_initialized_rng(struct notifier_block *block)
{
	return block->notifier_call(block, 0, NULL);
}

void add_device_randomness(const void *bytes, size_t len)
{
}

void add_interrupt_randomness(int irq)
{
}

void add_hwgenerator_randomness(const void *bytes, size_t len, size_t entropy, bool sleep_after)
{
}
