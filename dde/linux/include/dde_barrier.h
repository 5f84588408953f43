/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Before every file of the kernel, in the place of its arch/x86/um/asm/barrier.h: a full barrier
 * between the processor and a device. Where the device is recorded, each of the two has a memory of
 * its own, and a barrier is where they are brought into step. So what a driver writes for its
 * device before it, and reads of it behind (a virtqueue's event index, the shadow doorbells of
 * NVMe), is as in one memory.
 */
#if defined(__KERNEL__) && !defined(__UM_HOST__) && !defined(__ASSEMBLY__) && \
	!defined(_ASM_UM_BARRIER_H_)
#define _ASM_UM_BARRIER_H_

extern _Bool dde_two_memories;
void dde_barrier(void);

#define mb()                                               \
	do {                                               \
		asm volatile("mfence" : : : "memory");     \
		if (__builtin_expect(dde_two_memories, 0)) \
			dde_barrier();                     \
	} while (0)
#define rmb() asm volatile("lfence" : : : "memory")
#define wmb() asm volatile("sfence" : : : "memory")

#include <asm-generic/barrier.h>

#endif
