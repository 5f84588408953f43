/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Random bytes of the host. */
#ifndef DDEKIT_RANDOM_H
#define DDEKIT_RANDOM_H

#include <stddef.h>

/**
 * ddekit_random() - fill memory with random bytes, good enough for keys
 * @bytes: where to
 * @len: how many
 */
void ddekit_random(void *bytes, size_t len);

#endif
