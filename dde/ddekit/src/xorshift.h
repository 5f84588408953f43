/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random bytes that are the same each time: Marsaglia's xorshift64. */
#ifndef DDEKIT_SRC_XORSHIFT_H
#define DDEKIT_SRC_XORSHIFT_H

#include <stddef.h>
#include <stdint.h>

/* The next `len` bytes, of all that are taken in a process. */
static inline void xorshift(void *bytes, size_t len)
{
	static uint64_t state = 0x9e3779b97f4a7c15u;
	unsigned char *to = bytes;

	for (size_t i = 0; i < len; i++) {
		state ^= state << 13;
		state ^= state >> 7;
		state ^= state << 17;
		to[i] = (unsigned char)(state >> 32);
	}
}

#endif
