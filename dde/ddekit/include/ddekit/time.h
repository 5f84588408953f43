/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Clocks, in nanoseconds. */
#ifndef DDEKIT_TIME_H
#define DDEKIT_TIME_H

#include <stdint.h>

/**
 * ddekit_now() - nanoseconds of a clock that never jumps and stands still while the machine sleeps
 */
uint64_t ddekit_now(void);

/** ddekit_now_coarse() - the same, up to some milliseconds before; never a system call */
uint64_t ddekit_now_coarse(void);

/** ddekit_realtime() - nanoseconds since 1970 */
uint64_t ddekit_realtime(void);

/**
 * ddekit_delay() - let time pass without doing anything else
 * @ns: how much; up to 50 us are spent looking at the clock, longer ones sleeping
 */
void ddekit_delay(uint64_t ns);

#endif
