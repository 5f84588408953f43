/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Random numbers of the programs that try what a user half must not be able to do: the same seed
 * gives the same ones.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

/* Each thread has its own. */
static __thread uint64_t state;

static inline uint64_t any(void)
{
	/* xorshift64* */
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return state * 2685821657736338717ULL;
}

/* Seeds that differ by one give sequences that have nothing in common. */
static inline void begin(uint64_t seed)
{
	state = seed * 0x9e3779b97f4a7c15ULL | 1;
	for (int i = 0; i < 8; i++)
		any();
}

#endif
