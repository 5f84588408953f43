/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What goes wrong, in words, and the end of the process where nothing else is left. */
#ifndef DDEKIT_LOG_H
#define DDEKIT_LOG_H

#include <stddef.h>

/**
 * enum ddekit_level - how much a line matters
 * @DDEKIT_ERROR: something does not work
 * @DDEKIT_WARN: something may not work
 * @DDEKIT_NOTE: what a user wants to know
 * @DDEKIT_DEBUG: what only a developer wants to know
 */
enum ddekit_level { DDEKIT_ERROR, DDEKIT_WARN, DDEKIT_NOTE, DDEKIT_DEBUG };

/**
 * ddekit_log_limit() - keep lines of up to @level, and drop the others
 * @level: DDEKIT_WARN if this was never called
 */
void ddekit_log_limit(enum ddekit_level level);

/**
 * ddekit_log() - write a line to standard error
 * @level: how much it matters
 * @text: the line; line breaks at its end are left out
 * @len: its bytes
 */
void ddekit_log(enum ddekit_level level, const char *text, size_t len);

/**
 * ddekit_logf() - the same, formatted as printf does
 * @level: how much it matters
 * @format: of printf; a line is cut after 500 bytes
 */
void ddekit_logf(enum ddekit_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/**
 * ddekit_panic() - write a line and a backtrace, and end the process by SIGABRT
 * @format: of printf
 */
void ddekit_panic(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
