/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Inside of the run time.
 *
 * A host is a driver that has registered. A frame is one upcall: the objects that the user half
 * sees of it, and the message that holds a copy of their members. The kernel's objects are the
 * masters: what the user half has changed goes back when it calls the kernel and when it returns,
 * and only where the entry's table says so.
 *
 * # Locking
 * host->lock: lists, `file`, allocations. frame->lock: everything of a frame while the user half's
 * calls run; who cancels a frame takes it, too, so that nothing touches its objects after the
 * caller has gone on. frame->lock goes before host->objects (ended.c), and that before host->lock.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "abi.h"
#include "ring3_split.h"

#define SPLIT_OBJECTS 4096   /* of a frame */
/* locks, bits and results of calls that a frame is answerable for at once */
#define SPLIT_TAKEN 32
#define SPLIT_MEMORY (16UL << 20) /* that a user half may allocate */
#define SPLIT_DMA_MEMORY (64UL << 20) /* of the device's, that both halves may allocate */
/* of objects that a host remembers for frames that have not looked since */
#define SPLIT_ENDINGS 64
#define SPLIT_TEXTS (64UL << 10)
#define SPLIT_RANGES 16
#define SPLIT_IRQS 8 /* that a driver with combolocks may have */

struct split_allocation {
	void *address;
	size_t size;
	unsigned int frames; /* that know it */
	bool freed;	     /* waits for them */
	bool kept;	     /* the kernel half has been given its address */
	bool let_go;	     /* the user half has freed it: it is the kernel half's alone */
};

struct split_ended { /* an object that a call has freed */
	unsigned long start, size;
	bool along; /* what calls have given since it is known goes with it */
};

struct split_range { /* of registers */
	unsigned long start, size;
	phys_addr_t bus; /* of a mapping, if known */
	u32 window;	 /* 0: it cannot be mapped */
	bool port;
};

struct split_host {
	struct kref references; /* of its registration, its user half and its frames */
	const struct split_driver *driver;
	const void *symbols; /* the first in memory */
	struct list_head link;
	struct mutex lock;
	struct list_head waiting, running; /* frames */
	wait_queue_head_t work, attached;
	struct file *file; /* the user half */
	struct xarray allocations; /* by address; its lock is that of their counts, too */
	size_t memory;	/* of all of them */
	struct xarray dma; /* accounts by address: see dma.c; its lock is that of their sum, too */
	size_t dma_memory;
	struct list_head texts;
	size_t text_bytes;
	struct split_range ranges[SPLIT_RANGES];
	unsigned int nranges;
	u32 windows; /* numbers that were given */
	bool maps;
	/*
	 * Combolocks: see lock.c. `held`, and what `holder` leads to, are the user half's as long
	 * as `holding` is.
	 */
	struct split_frame *holder;
	const spinlock_t *held;
	spinlock_t holding;
	wait_queue_head_t given_back;
	struct task_struct *alone; /* in a function that runs alone: see alone.c; only compared */
	spinlock_t holding_alone;
	wait_queue_head_t alone_ended;
	unsigned int irqs[SPLIT_IRQS], nirqs;
	u32 serial;
	struct rw_semaphore objects; /* see ended.c */
	struct split_ended ended[SPLIT_ENDINGS];
	u32 endings; /* that there were */
	atomic_t unanswered; /* upcalls, by the user half that there is */
	/* of its threads, whose frame was cancelled and that have not come back yet */
	atomic_t late;
	/* jiffies: until then, after an upcall has failed, what can wait does */
	unsigned long hold_off;
	bool gone;    /* the driver is unloaded */
	bool leaving; /* the user half has closed the device, and its frames are being ended */
};

struct split_object {
	void *address;
	const struct split_type *type;
	const struct split_view *view; /* NULL: a handle only, or bytes */
	struct split_allocation *allocation;
	u32 size, count;
	u32 at;	       /* where its bytes are in the message; 0: not in it */
	bool written;  /* of bytes */
	bool gone;
	bool made;     /* a call has given it */
	/* the object by whose members it was found, and 1; 0: by an argument or a call */
	u32 via;
	u32 ending;    /* by which it ended, and 1 */
};

/*
 * What a frame gives back if the user half does not: a lock at its end, all else only when it
 * fails.
 */
struct split_taken {
	/*
	 * Of the table, SPLIT_CALL_WORD, or SPLIT_CALL_LOCK: of a lock, whether it spins, and
	 * whether it outlasts all objects.
	 */
	u32 function;
	unsigned long arguments[SPLIT_ARGUMENTS], result;
};

enum split_state { SPLIT_WAITING, SPLIT_RUNNING, SPLIT_ENDED };

struct split_frame {
	struct kref references;
	struct list_head link;
	struct split_host *host;
	const struct split_entry *entry;
	u32 number; /* of the entry */
	u32 id;
	struct mutex lock;
	enum split_state state;
	bool cancelled; /* read without the lock by what waits in a call */
	struct task_struct *caller; /* who waits for the answer; only compared */
	struct task_struct *answerer; /* in a call of this frame; NULL: none is; only compared */
	bool rtnl; /* which it has taken */
	bool undoes; /* its answerer gives back what a frame of its own upcalls had taken */
	/* in which, or in whose answer, it was called up; only compared */
	const struct work_struct *work;
	/*
	 * It has ended, or wishes: each is completed once, and its caller looks which. A wish is a
	 * lock that the caller is to take or to give back (lock.c); 0: none.
	 */
	struct completion done;
	unsigned long wish;
	wait_queue_head_t granted;
	long result;
	bool failed;
	unsigned long arguments[SPLIT_ARGUMENTS]; /* as the kernel has them */
	struct split_object *objects;
	u32 nobjects, room;
	u32 via;     /* the object whose members are looked at, and 1 */
	bool placed; /* what is found now has no place in the message */
	u32 endings; /* of the host's, that it has heard of */
	char *sent, *given; /* the message as it went out, and as it comes back; one allocation */
	u32 length;
	struct split_taken taken[SPLIT_TAKEN];
	unsigned int ntaken;
};

/* upcall.c; the frame that `answerer` is in a call of. With host->lock held. */
struct split_frame *split_frame_of(struct split_host *host, const struct task_struct *answerer);

/* alone.c */
bool split_alone_begin_call(struct split_frame *frame, struct split_alone *alone);

/* crossing.c */
void split_cross(bool up);

/* object.c */
u32 split_frame_add(struct split_frame *frame, void *address, const struct split_type *type,
		    unsigned long count, bool written);
u64 split_frame_handle(struct split_frame *frame, void *address, const struct split_type *type,
		       unsigned long count, bool written);
int split_frame_resolve(struct split_frame *frame, u64 handle, const struct split_type *type,
			void **address);
int split_frame_bytes(struct split_frame *frame, u64 handle, unsigned long size, bool reads,
		      void **address);
int split_frame_word(struct split_frame *frame, u64 handle, void **address);
u64 split_frame_result(struct split_frame *frame, void *address, const struct split_type *type);
bool split_frame_keep(struct split_frame *frame, u64 handle);
void split_frame_forget(struct split_frame *frame);

/* ended.c */
int split_hear(struct split_frame *frame);
bool split_is_ended(const struct split_frame *frame, const void *address);
int split_ending(struct split_frame *frame, u32 function, u64 handle, unsigned long address,
		 struct split_ended *ended);
int split_hear_of(struct split_frame *frame, const struct split_ended *ended);

/* memory.c */
void *split_allocate(struct split_frame *frame, size_t size);
int split_frame_free(struct split_frame *frame, u64 handle);
struct split_allocation *split_allocation_get(struct split_host *host, void *address);
bool split_allocation_keep(struct split_host *host, struct split_allocation *allocation);
void split_allocation_put(struct split_host *host, struct split_allocation *allocation);
char *split_text(struct split_host *host, const char __user *text);
void split_memory_end(struct split_host *host);
void split_dma_end(struct split_host *host);

static inline bool split_is_bytes(const struct split_object *object)
{
	return object->type == &split_bytes;
}

/* message.c */
void *split_pointer_at(const void *address);
int split_pack(struct split_frame *frame);

/* apply.c */
int split_apply(struct split_frame *frame);

/* call.c */
long split_call(struct split_frame *frame, struct split_call *call);

/* taken.c */
void split_take(struct split_frame *frame, u32 function, const unsigned long *arguments,
		unsigned long result);
void split_given_back(struct split_frame *frame, struct split_taken *one);
struct split_taken *split_find_taken(struct split_frame *frame, u32 function, unsigned long first,
				     unsigned long second);
void split_note(struct split_frame *frame, u32 function, const unsigned long *arguments,
		unsigned long result);
int split_give_up(struct split_frame *frame, struct split_taken *one);
void split_undo(struct split_frame *frame);

/* lock.c */
long split_wait(struct split_frame *frame, unsigned long timeout);
int split_unlock(struct split_frame *frame, struct split_taken *one);
long split_lock_call(struct split_frame *frame, const struct split_call *call);
void split_unlock_combolocks(struct split_frame *frame);
void split_unlock_mutexes(struct split_frame *frame);

/* registers.c */
bool split_is_register_call(u32 function);
long split_register_call(struct split_frame *frame, struct split_call *call);
int split_map_window(struct file *file, struct vm_area_struct *vma);
void split_close_windows(struct split_host *host);

/* upcall.c */
bool split_may_sleep(void);
struct split_host *split_host_find(const char *name, u64 layout);
int split_attach(struct split_host *host, struct file *file);
void split_detach(struct split_host *host, struct file *file);
struct split_frame *split_frame_next(struct split_host *host, struct file *file, u32 wait_ms);
struct split_frame *split_frame_get(struct split_host *host, struct file *file, u64 id);
void split_frame_put(struct split_frame *frame);
void split_frame_end(struct split_frame *frame, long result, bool failed);
void split_host_put(struct split_host *host);

#endif
