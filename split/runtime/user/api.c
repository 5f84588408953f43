// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Functions of the kernel that a process can have itself, and those that become one of the run
 * time's calls.
 *
 * They are declared here as the linker knows them: the kernel's headers, which the driver's code is
 * compiled with, and the C library's cannot be included together.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "split.h"

#define HZ 250 /* CONFIG_HZ of the distribution's kernels */

/* The log. */

static void log_text(const char *prefix, const char *format, va_list list)
{
	char text[1024];

	split_format(text, sizeof(text), format, list);
	split_log("%s%s", prefix, text);
}

#define LOG(name, prefix, ...) \
	void name(__VA_ARGS__, const char *format, ...) \
	{ \
		va_list list; \
		(void)device; \
		va_start(list, format); \
		log_text(prefix, format, list); \
		va_end(list); \
	}
LOG(_dev_emerg, "", const void *device)
LOG(_dev_alert, "", const void *device)
LOG(_dev_crit, "", const void *device)
LOG(_dev_err, "", const void *device)
LOG(_dev_warn, "", const void *device)
LOG(_dev_notice, "", const void *device)
LOG(_dev_info, "", const void *device)
LOG(netdev_err, "", const void *device)
LOG(netdev_warn, "", const void *device)
LOG(netdev_notice, "", const void *device)
LOG(netdev_info, "", const void *device)

/* Debug messages are off where nobody has turned them on. */
void __dynamic_netdev_dbg(void *descriptor, const void *device, const char *format, ...)
{
	(void)descriptor;
	(void)device;
	(void)format;
}

void __dynamic_dev_dbg(void *descriptor, const void *device, const char *format, ...)
{
	(void)descriptor;
	(void)device;
	(void)format;
}

void __dynamic_pr_debug(void *descriptor, const char *format, ...)
{
	(void)descriptor;
	(void)format;
}

void netdev_printk(const char *level, const void *device, const char *format, ...)
{
	va_list list;

	(void)level;
	(void)device;
	va_start(list, format);
	log_text("", format, list);
	va_end(list);
}

void __warn_printk(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	log_text("", format, list);
	va_end(list);
}

void print_hex_dump(const char *level, const char *prefix, int kind, int width, int group,
		    const unsigned char *bytes, size_t length, _Bool text)
{
	(void)level;
	(void)kind;
	(void)group;
	(void)text;
	for (size_t at = 0; at < length; at += (size_t)width) {
		char line[3 * 32 + 1] = "";

		for (size_t i = 0; i < (size_t)width && i < 32 && at + i < length; i++)
			snprintf(line + 3 * i, 4, " %02x", bytes[at + i]);
		split_log("%s%08zx:%s", prefix, at, line);
	}
}

int _printk(const char *format, ...)
{
	va_list list;

	/* The level is a control character and a digit. */
	if (*format == 1)
		format += 2;
	va_start(list, format);
	log_text("", format, list);
	va_end(list);
	return 0;
}

/* Time. */

static void sleep_ns(unsigned long ns)
{
	struct timespec time = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };

	while (nanosleep(&time, &time) != 0)
		;
}

static unsigned long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (unsigned long)now.tv_sec * 1000000000 + (unsigned long)now.tv_nsec;
}

/* As the kernel does: to sleep for less than this takes several times as long. */
#define SPIN_NS 200000

static void delay_ns(unsigned long ns)
{
	unsigned long start = now_ns();

	if (ns > SPIN_NS)
		sleep_ns(ns);
	while (now_ns() - start < ns)
		;
}

void __udelay(unsigned long us) { delay_ns(us * 1000); }
void __ndelay(unsigned long ns) { delay_ns(ns); }
/* The argument is microseconds * 2^32 / 10^6. */
void __const_udelay(unsigned long loops)
{
	delay_ns((unsigned long)((unsigned __int128)loops * 1000000000 >> 32));
}
/* Who sleeps may wait for what others do meanwhile. */
static void sleep_in_step(unsigned long ns)
{
	sleep_ns(ns);
	if (split_frame)
		split_kernel(SPLIT_CALL_STEP, 0, 0, 0);
}

void msleep(unsigned int ms) { sleep_in_step(ms * 1000000UL); }
unsigned long msleep_interruptible(unsigned int ms)
{
	msleep(ms);
	return 0;
}
void usleep_range_state(unsigned long min, unsigned long max, unsigned int state)
{
	(void)max;
	(void)state;
	sleep_in_step(min * 1000);
}
long schedule_timeout_uninterruptible(long jiffies)
{
	sleep_in_step((unsigned long)jiffies * (1000000000 / HZ));
	return 0;
}
unsigned long split_jiffies(void) { return now_ns() / (1000000000 / HZ); }

/*
 * What is called through a trampoline of the kernel's (static_call): nobody waits for this thread's
 * processor.
 */
int __SCT__cond_resched(void) { return 0; }
/* What a kernel with DEBUG_ATOMIC_SLEEP asks at such places; a process may sleep anywhere. */
void __might_sleep(const char *file, int line)
{
	(void)file;
	(void)line;
}
void __might_resched(const char *file, int line, unsigned int offsets)
{
	(void)offsets;
	__might_sleep(file, line);
}

/* Bits and strings. */

unsigned long _find_next_bit(const unsigned long *words, unsigned long bits, unsigned long start)
{
	while (start < bits && !(words[start / 64] >> start % 64 & 1))
		start++;
	return start < bits ? start : bits;
}

long sized_strscpy(char *to, const char *from, size_t size)
{
	size_t length = strnlen(from, size);

	if (!size)
		return -7; /* E2BIG */
	memcpy(to, from, length < size ? length : size - 1);
	to[length < size ? length : size - 1] = 0;
	return length < size ? (long)length : -7;
}

unsigned long split_string(const void *text) { return strlen(text) + 1; }

int scnprintf(char *to, size_t size, const char *format, ...)
{
	va_list list;
	int length;

	va_start(list, format);
	length = split_format(to, size, format, list);
	va_end(list);
	return !size ? 0 : length < (int)size ? length : (int)size - 1;
}

/*
 * The first 32 link modes have the numbers that they always had; what follows is zero in what the
 * core hands to a driver.
 */
void ethtool_convert_legacy_u32_to_link_mode(unsigned long *modes, unsigned int legacy)
{
	modes[0] = legacy;
}
_Bool ethtool_convert_link_mode_to_legacy_u32(unsigned int *legacy, const unsigned long *modes)
{
	/* There have been more than 64 and fewer than 129 modes since 5.7. */
	*legacy = (unsigned int)modes[0];
	return !(modes[0] >> 32) && !modes[1];
}

/* Memory and locks of the kernel. */

void kfree(const void *pointer)
{
	if (pointer)
		split_kernel(SPLIT_CALL_FREE, split_handle(split_frame, pointer), 0, 0);
}
void kvfree(const void *pointer) { kfree(pointer); }
void vfree(const void *pointer) { kfree(pointer); }

static unsigned long object(const void *pointer, const char *what)
{
	unsigned long handle = split_handle(split_frame, pointer);

	if (handle == SPLIT_BAD_HANDLE)
		split_abandon("%s of memory that only the user half has", what);
	return handle;
}

void __mutex_init(void *mutex, const char *name, void *key)
{
	(void)name;
	(void)key;
	split_kernel(SPLIT_CALL_MUTEX_INIT, object(mutex, "mutex_init"), 0, 0);
}
void mutex_lock(void *mutex) { split_kernel(SPLIT_CALL_LOCK, object(mutex, "mutex_lock"), 0, 0); }
void mutex_unlock(void *mutex)
{
	split_kernel(SPLIT_CALL_UNLOCK, object(mutex, "mutex_unlock"), 0, 0);
}
int mutex_lock_interruptible(void *mutex)
{
	mutex_lock(mutex);
	return 0;
}

/* The same in headers of a kernel that checks locks (CONFIG_DEBUG_LOCK_ALLOC). */
void mutex_lock_nested(void *mutex, unsigned int subclass)
{
	(void)subclass;
	mutex_lock(mutex);
}
int mutex_lock_interruptible_nested(void *mutex, unsigned int subclass)
{
	(void)subclass;
	return mutex_lock_interruptible(mutex);
}

_Bool split_bit(unsigned int operation, unsigned long number, unsigned long *words)
{
	unsigned long handle = split_handle(split_frame, words);
	unsigned long *word = words + number / 64, bit = 1UL << number % 64;
	_Bool was = *word & bit;

	if (handle != SPLIT_BAD_HANDLE && SPLIT_GENERATION(handle) != SPLIT_SYMBOLS)
		return split_kernel(SPLIT_CALL_WORD, handle, operation, number);
	*word = operation == SPLIT_SET_BIT ? *word | bit : *word & ~bit;
	return was;
}

void split_store(int *word, int value)
{
	unsigned long handle = split_handle(split_frame, word);

	if (handle != SPLIT_BAD_HANDLE && SPLIT_GENERATION(handle) != SPLIT_SYMBOLS)
		split_kernel(SPLIT_CALL_WORD, handle, SPLIT_STORE, (unsigned int)value);
	else
		*word = value;
}

/*
 * Spinlocks. Combolocks are the kernel's. For those that only this half takes one lock stands for
 * all, for their copies tell nobody anything.
 */
static pthread_mutex_t spinlocks = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

void _raw_spin_lock(void *lock)
{
	unsigned long handle = split_combolock_handle(split_frame, lock);

	if (handle)
		split_kernel(SPLIT_CALL_LOCK, handle, 1, 0);
	else
		pthread_mutex_lock(&spinlocks);
}
void _raw_spin_unlock(void *lock)
{
	unsigned long handle = split_combolock_handle(split_frame, lock);

	if (handle)
		split_kernel(SPLIT_CALL_UNLOCK, handle, 1, 0);
	else
		pthread_mutex_unlock(&spinlocks);
}
void _raw_spin_lock_irq(void *lock) { _raw_spin_lock(lock); }
void _raw_spin_unlock_irq(void *lock) { _raw_spin_unlock(lock); }
void _raw_spin_lock_bh(void *lock) { _raw_spin_lock(lock); }
void _raw_spin_unlock_bh(void *lock) { _raw_spin_unlock(lock); }
unsigned long _raw_spin_lock_irqsave(void *lock)
{
	_raw_spin_lock(lock);
	return 0;
}
void _raw_spin_unlock_irqrestore(void *lock, unsigned long flags)
{
	(void)flags;
	_raw_spin_unlock(lock);
}
