/* SPDX-License-Identifier: GPL-2.0-only */
/* ddekit's headers are written for C's own types; the kernel has them under this name. */
#include <linux/types.h>
#ifndef UINT64_MAX
#define UINT64_MAX (~0ull)
#endif
