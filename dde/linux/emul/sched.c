// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads of the kernel as contexts. One runs until it sleeps, as on one processor without
 * preemption, which is what the kernel was configured for; its locks cost nothing then. The first
 * context is the idle task: it runs when nobody else wants to, and waits for the host.
 */
#include <linux/completion.h>
#include <linux/cpumask.h>
#include <linux/kthread.h>
#include <linux/nsproxy.h>
#include <linux/rcupdate.h>
#include <linux/rcuwait.h>
#include <linux/sched.h>
#include <linux/sched/debug.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/wake_q.h>
#include <linux/slab.h>

#include "dde.h"

/* How long threads may run one after the other before the host is heard, ns. */
#define SLICE 1000000u

struct thread {
	struct task_struct task;
	struct ddekit_ctx *ctx;
	struct list_head ready;
	bool queued;
	/* It has ended, and its stack is gone; nobody holds its task any more. */
	bool buried, released;
	int (*function)(void *arg);
	void *arg;
};

struct task_struct init_task = {
	.__state = TASK_RUNNING,
	.usage = REFCOUNT_INIT(2),
	.flags = PF_KTHREAD,
	.prio = MAX_PRIO - 20,
	.static_prio = MAX_PRIO - 20,
	.normal_prio = MAX_PRIO - 20,
	.cpus_ptr = &init_task.cpus_mask,
	.cpus_mask = CPU_MASK_ALL,
	.nr_cpus_allowed = 1,
	.comm = "idle",
	.tasks = LIST_HEAD_INIT(init_task.tasks),
	.nsproxy = NULL,
};

static struct thread idle;
static LIST_HEAD(ready);
static struct thread *running = &idle;
/* Whose stack can be taken back, once another one runs. */
static struct thread *gone;
static u64 heard;

static struct thread *thread_of(struct task_struct *task)
{
	return task == &init_task ? &idle : container_of(task, struct thread, task);
}

#if DDE_LINUX_7
/* Who runs on the one processor: `current`. */
struct task_struct *cpu_tasks[NR_CPUS] = { &init_task };

static void make_current(struct task_struct *task)
{
	cpu_tasks[0] = task;
}

static void give_stack(struct task_struct *task, struct ddekit_ctx *ctx)
{
	task->stack = ddekit_ctx_stack(ctx);
}
#else
/* `current` is whose stack is used. */
static void make_current(struct task_struct *task)
{
}

static void give_stack(struct task_struct *task, struct ddekit_ctx *ctx)
{
	struct thread_info *info = ddekit_ctx_stack(ctx);

	*info = (struct thread_info){ .task = task };
	task->stack = info;
}
#endif

void dde_sched_init(void)
{
	idle.ctx = ddekit_ctx_self();
	give_stack(&init_task, idle.ctx);
	INIT_LIST_HEAD(&idle.ready);
}

static void enqueue(struct thread *thread)
{
	if (thread == &idle || thread->queued)
		return;
	thread->queued = true;
	list_add_tail(&thread->ready, &ready);
}

static void bury(void)
{
	struct thread *thread = gone;

	gone = NULL;
	if (!thread)
		return;
	ddekit_ctx_destroy(thread->ctx);
	thread->buried = true;
	if (thread->released)
		kfree(thread);
}

static void switch_to_thread(struct thread *next)
{
	if (next == running)
		return;
	running = next;
	make_current(next == &idle ? &init_task : &next->task);
	ddekit_ctx_switch(next->ctx);
	bury();
}

/*
 * Time, interrupts and frames come in here as well, so that threads that wake each other do not
 * keep them out.
 */
static void hear(void)
{
	u64 now = ddekit_now_coarse();

	if (now - heard < SLICE || irqs_disabled() || in_interrupt())
		return;
	heard = now;
	dde_poll(0);
}

asmlinkage __visible void __sched schedule(void)
{
	struct thread *self = running, *next = &idle;

	if (in_interrupt())
		ddekit_panic("dde: %s sleeps in an interrupt", current->comm);
	rcu_qs();
	/*
	 * Before the state is looked at: what is heard may wake this thread, and wake() leaves it
	 * to here to enqueue who runs.
	 */
	hear();
	if (self != &idle && READ_ONCE(self->task.__state) == TASK_RUNNING)
		enqueue(self);
	if (!list_empty(&ready)) {
		next = list_first_entry(&ready, struct thread, ready);
		list_del(&next->ready);
		next->queued = false;
	}
	switch_to_thread(next);
}

void __sched schedule_preempt_disabled(void)
{
	preempt_enable_no_resched();
	schedule();
	preempt_disable();
}

void __sched io_schedule(void)
{
	schedule();
}

long __sched io_schedule_timeout(long timeout)
{
	return schedule_timeout(timeout);
}

void __sched yield(void)
{
	__set_current_state(TASK_RUNNING);
	schedule();
}

int __sched __cond_resched(void)
{
	if (running == &idle || in_interrupt() || irqs_disabled())
		return 0;
	hear();
	if (list_empty(&ready))
		return 0;
	schedule();
	return 1;
}

int __cond_resched_lock(spinlock_t *lock)
{
	return 0;
}

/* Wakes a task that sleeps in one of `states`: 1 if it slept. */
static int wake(struct task_struct *task, unsigned int states)
{
	struct thread *thread = thread_of(task);

	if (!(READ_ONCE(task->__state) & states))
		return 0;
	WRITE_ONCE(task->__state, TASK_RUNNING);
	if (thread != running)
		enqueue(thread);
	return 1;
}

int wake_up_process(struct task_struct *task)
{
	return wake(task, TASK_NORMAL);
}

int wake_up_state(struct task_struct *task, unsigned int state)
{
	return wake(task, state);
}

int default_wake_function(wait_queue_entry_t *entry, unsigned int mode, int flags, void *key)
{
	return wake(entry->private, mode);
}

int try_to_wake_up(struct task_struct *task, unsigned int state, int flags)
{
	return wake(task, state);
}

void wake_q_add(struct wake_q_head *head, struct task_struct *task)
{
	struct wake_q_node *node = &task->wake_q;

	if (node->next)
		return;
	get_task_struct(task);
	node->next = WAKE_Q_TAIL;
	*head->lastp = node;
	head->lastp = &node->next;
}

void wake_q_add_safe(struct wake_q_head *head, struct task_struct *task)
{
	wake_q_add(head, task);
	put_task_struct(task);
}

void wake_up_q(struct wake_q_head *head)
{
	struct wake_q_node *node = head->first;

	while (node != WAKE_Q_TAIL) {
		struct task_struct *task = container_of(node, struct task_struct, wake_q);

		node = node->next;
		task->wake_q.next = NULL;
		wake_up_process(task);
		put_task_struct(task);
	}
}

int rcuwait_wake_up(struct rcuwait *wait)
{
	struct task_struct *task = rcu_dereference_raw(wait->task);

	return task ? wake_up_process(task) : 0;
}

static void begin(void *arg)
{
	struct thread *self = arg;

	bury();
	do_exit(self->function(self->arg));
}

/* Like its processes, a thread that has ended keeps its task until nobody holds it. */
void __noreturn do_exit(long code)
{
	struct thread *self = running;

	self->task.exit_code = code;
	if (self->task.vfork_done)
		complete(self->task.vfork_done);
	WRITE_ONCE(self->task.__state, TASK_DEAD);
	put_task_struct(&self->task);
	gone = self;
	for (;;)
		schedule();
}

void __put_task_struct(struct task_struct *task)
{
	struct thread *thread = thread_of(task);

	free_kthread_struct(task);
	thread->released = true;
	if (thread->buried)
		kfree(thread);
}

#if DDE_LINUX_7
void __put_task_struct_rcu_cb(struct rcu_head *head)
{
	__put_task_struct(container_of(head, struct task_struct, rcu));
}
#endif

static pid_t numbers;

pid_t kernel_thread(int (*function)(void *), void *arg, const char *name, unsigned long flags)
{
	struct thread *thread = kzalloc(sizeof(*thread), GFP_KERNEL);
	struct task_struct *task = thread ? &thread->task : NULL;

	if (!thread)
		return -ENOMEM;
	thread->function = function;
	thread->arg = arg;
	thread->ctx = ddekit_ctx_create(THREAD_SIZE, begin, thread);
	if (!thread->ctx) {
		kfree(thread);
		return -ENOMEM;
	}
	task->flags = PF_KTHREAD;
	task->prio = task->static_prio = task->normal_prio = DEFAULT_PRIO;
	task->cpus_mask = *cpu_possible_mask;
	task->cpus_ptr = &task->cpus_mask;
	task->nr_cpus_allowed = 1;
	task->pid = task->tgid = ++numbers;
	task->group_leader = task->real_parent = task->parent = task;
	/* The one that do_exit() puts; no parent waits for a thread of the kernel. */
	refcount_set(&task->usage, 1);
	spin_lock_init(&task->alloc_lock);
	raw_spin_lock_init(&task->pi_lock);
	INIT_LIST_HEAD(&task->tasks);
	strscpy(task->comm, name ?: "kthread", sizeof(task->comm));
	give_stack(task, thread->ctx);
	if (!set_kthread_struct(task)) {
		ddekit_ctx_destroy(thread->ctx);
		kfree(thread);
		return -ENOMEM;
	}
	enqueue(thread);
	return task->pid;
}

void __set_task_comm(struct task_struct *task, const char *name, bool exec)
{
	strscpy_pad(task->comm, name, sizeof(task->comm));
}

char *__get_task_comm(char *name, size_t len, struct task_struct *task)
{
	strscpy_pad(name, task->comm, len);
	return name;
}

/* One processor, one class, one priority. */
int sched_setscheduler_nocheck(struct task_struct *task, int policy,
			       const struct sched_param *param)
{
	return 0;
}

int sched_setattr_nocheck(struct task_struct *task, const struct sched_attr *attr)
{
	return 0;
}

#if DDE_LINUX_7
int set_cpus_allowed_ptr(struct task_struct *task, const struct cpumask *mask)
{
	return 0;
}

void set_cpus_allowed_force(struct task_struct *task, const struct cpumask *mask)
{
}

bool cpus_share_cache(int one, int other)
{
	return true;
}
#endif

void sched_set_fifo(struct task_struct *task)
{
}

void sched_set_fifo_low(struct task_struct *task)
{
}

void sched_set_normal(struct task_struct *task, int nice)
{
}

void set_user_nice(struct task_struct *task, long nice)
{
}

unsigned long wait_task_inactive(struct task_struct *task, unsigned int state)
{
	return thread_of(task) != running;
}

int idle_cpu(int cpu)
{
	return running == &idle;
}

void ignore_signals(struct task_struct *task)
{
}

void recalc_sigpending(void)
{
}

unsigned long nr_iowait(void)
{
	return 0;
}

unsigned int nr_running(void)
{
	return 1;
}
