/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What an allocator tells AddressSanitizer or memcheck of its memory, if the program is compiled
 * for one of them (-fsanitize=address, or DDEKIT_VALGRIND defined); otherwise nothing of this
 * exists in the program.
 */
#ifndef DDEKIT_CHECK_H
#define DDEKIT_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(DDEKIT_VALGRIND)
#define DDEKIT_CHECKED 1

/** ddekit_check_open() - @len bytes may be used; @filled says that what they hold counts */
void ddekit_check_open(const void *memory, size_t len, bool filled);

/** ddekit_check_close() - nobody may use @len bytes until they are opened again */
void ddekit_check_close(const void *memory, size_t len);

/**
 * ddekit_check_returned() - the same for what was in use until now; who uses it all the same is
 * told who has returned it
 */
void ddekit_check_returned(const void *memory, size_t len);

/**
 * ddekit_check_allocated() - @len bytes are somebody's object now; memcheck remembers who asked for
 * it
 */
void ddekit_check_allocated(const void *object, size_t len, bool filled);

/**
 * ddekit_check_freed() - the object at @object is nobody's now; who uses it all the same is told
 * who has freed it
 */
void ddekit_check_freed(const void *object, size_t len);

/**
 * ddekit_check_device_writes() - a device may write to @len bytes from now on, so that what they
 * hold counts
 */
void ddekit_check_device_writes(const void *memory, size_t len);

/** ddekit_check_device_done() - it may not any more */
void ddekit_check_device_done(const void *memory);

/**
 * ddekit_check_print() - say on standard error who is at @place with this frame, and who has called
 * him
 */
void ddekit_check_print(const void *place, const void *frame);

#else
#define DDEKIT_CHECKED 0

static inline void ddekit_check_open(const void *memory, size_t len, bool filled)
{
	(void)memory, (void)len, (void)filled;
}

static inline void ddekit_check_close(const void *memory, size_t len)
{
	(void)memory, (void)len;
}

static inline void ddekit_check_returned(const void *memory, size_t len)
{
	(void)memory, (void)len;
}

static inline void ddekit_check_allocated(const void *object, size_t len, bool filled)
{
	(void)object, (void)len, (void)filled;
}

static inline void ddekit_check_freed(const void *object, size_t len)
{
	(void)object, (void)len;
}

static inline void ddekit_check_device_writes(const void *memory, size_t len)
{
	(void)memory, (void)len;
}

static inline void ddekit_check_device_done(const void *memory)
{
	(void)memory;
}
#endif

#endif
