/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/log.h"

#include <execinfo.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "ddekit/check.h"

#define LINE 500
#define FRAMES 48

static enum ddekit_level limit = DDEKIT_WARN;

void ddekit_log_limit(enum ddekit_level level)
{
	limit = level;
}

void ddekit_log(enum ddekit_level level, const char *text, size_t len)
{
	if (level > limit)
		return;
	while (len > 0 && text[len - 1] == '\n')
		len--;
	/* One call, and no buffer on the stack, which may be small. */
	const struct iovec line[] = { { (void *)(uintptr_t)text, len },
				      { (void *)(uintptr_t)"\n", 1 } };

	if (writev(STDERR_FILENO, line, 2) < 0)
		return;
}

static void log_format(enum ddekit_level level, const char *format, va_list args)
{
	char line[LINE];
	int len = vsnprintf(line, sizeof(line), format, args);

	if (len >= 0)
		ddekit_log(level, line,
			   (size_t)len < sizeof(line) ? (size_t)len : sizeof(line) - 1);
}

void ddekit_logf(enum ddekit_level level, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	log_format(level, format, args);
	va_end(args);
}

void ddekit_panic(const char *format, ...)
{
	void *frames[FRAMES];
	va_list args;

	va_start(args, format);
	log_format(DDEKIT_ERROR, format, args);
	va_end(args);
#if DDEKIT_CHECKED
	ddekit_check_print(__builtin_return_address(0), __builtin_frame_address(0));
#endif
	backtrace_symbols_fd(frames, backtrace(frames, FRAMES), STDERR_FILENO);
	abort();
}
