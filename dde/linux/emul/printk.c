// SPDX-License-Identifier: GPL-2.0-only
/* What the kernel says goes to the log of the process; what ends a kernel ends the process. */
#include <linux/kernel.h>
#include <linux/panic.h>
#include <linux/printk.h>
#include <linux/utsname.h>

#include "dde.h"

#define LINE 400

int oops_in_progress;
int panic_timeout;
int panic_on_oops;
int panic_on_warn;
int suppress_printk;
int console_printk[4] = { 7, 4, 1, 7 };
const char linux_banner[] = "Linux, in a process";
int __read_mostly dmesg_restrict;

static enum ddekit_level level_of(int level)
{
	if (level <= 3)
		return DDEKIT_ERROR;
	if (level == 4)
		return DDEKIT_WARN;
	return level == 7 ? DDEKIT_DEBUG : DDEKIT_NOTE;
}

int vprintk_emit(int facility, int level, const struct dev_printk_info *info, const char *format,
		 va_list args)
{
	static bool continued;
	char line[LINE];
	const char *text = line;
	int len = vscnprintf(line, sizeof(line), format, args), said;

	while ((said = printk_get_level(text)) != 0) {
		if (said >= '0' && said <= '7' && level < 0)
			level = said - '0';
		continued = said == 'c';
		text += 2;
		len -= 2;
	}
	if (len > 0)
		ddekit_log(continued ? DDEKIT_DEBUG : level_of(level < 0 ? 4 : level), text, len);
	continued = false;
	return len;
}

int vprintk(const char *format, va_list args)
{
	return vprintk_emit(0, -1, NULL, format, args);
}

asmlinkage __visible int _printk(const char *format, ...)
{
	va_list args;
	int len;

	va_start(args, format);
	len = vprintk(format, args);
	va_end(args);
	return len;
}

int _printk_deferred(const char *format, ...)
{
	va_list args;
	int len;

	va_start(args, format);
	len = vprintk(format, args);
	va_end(args);
	return len;
}

int __printk_ratelimit(const char *function)
{
	return 1;
}

void panic(const char *format, ...)
{
	char line[LINE];
	va_list args;

	va_start(args, format);
	vscnprintf(line, sizeof(line), format, args);
	va_end(args);
	ddekit_panic("Linux panics: %s", line);
}

void warn_slowpath_fmt(const char *file, int number, unsigned int taint, const char *format, ...)
{
	char line[LINE] = "";
	va_list args;

	if (format) {
		va_start(args, format);
		vscnprintf(line, sizeof(line), format, args);
		va_end(args);
	}
	ddekit_logf(DDEKIT_WARN, "Linux warns at %s:%d: %s", file, number, line);
}

void __warn_printk(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintk(format, args);
	va_end(args);
}

void add_taint(unsigned int flag, enum lockdep_ok lockdep)
{
}

int test_taint(unsigned int flag)
{
	return 0;
}

const char *print_tainted(void)
{
	return "";
}

void dump_stack_lvl(const char *level)
{
}

void dump_stack(void)
{
}

