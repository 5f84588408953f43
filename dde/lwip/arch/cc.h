/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What lwIP is told of the compiler and the machine. */
#ifndef LWIP_ARCH_CC_H
#define LWIP_ARCH_CC_H

#include <stdint.h>

#include "ddekit/log.h"

uint32_t dde_lwip_random(void);

#define LWIP_PLATFORM_DIAG(words) \
	do {                      \
	} while (0)
#define LWIP_PLATFORM_ASSERT(text) ddekit_panic("lwIP: %s", text)
#define LWIP_RAND() dde_lwip_random()

#endif
