// SPDX-License-Identifier: GPL-2.0
/*
 * Upcalls: frames from their caller to a thread of the user half and back.
 *
 * # Waiting
 * A caller waits for `grace_ms` at most until there is a user half, and for the entry's time until
 * it answers. It goes on earlier when it is killed, and when the user half dies. Whatever ends it,
 * no call of the user half touches its objects afterwards.
 */
#include <linux/hardirq.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "runtime.h"

static unsigned int grace_ms = 2000;
module_param(grace_ms, uint, 0644);
MODULE_PARM_DESC(grace_ms, "how long an upcall waits for a user half, when there is none");

static unsigned int deadline_ms;
module_param(deadline_ms, uint, 0644);
MODULE_PARM_DESC(deadline_ms, "how long a user half may take to answer, where its entry allows "
		 "more; 0: what the entry allows");

static unsigned int timeout_factor = 1;
module_param(timeout_factor, uint, 0644);
MODULE_PARM_DESC(timeout_factor, "times as long as its entry allows may a user half take, for one "
		 "that a debugger stops or a checker slows down; default 1");

static unsigned int first_upcall;
module_param(first_upcall, uint, 0444);
MODULE_PARM_DESC(first_upcall, "a driver's upcalls are counted from here on: for tests, of what "
		 "comes after 65,534 of them");

static atomic_t failed, atomic;

static int get_count(char *buffer, const struct kernel_param *parameter)
{
	return sysfs_emit(buffer, "%d\n", atomic_read((atomic_t *)parameter->arg));
}

static const struct kernel_param_ops count = { .get = get_count };
module_param_cb(failed, &count, &failed, 0444);
MODULE_PARM_DESC(failed, "upcalls that have ended with their entry's error");
module_param_cb(atomic, &count, &atomic, 0444);
MODULE_PARM_DESC(atomic, "upcalls that were refused because their caller may not sleep");

static LIST_HEAD(hosts);
static DEFINE_MUTEX(hosts_lock);

/*
 * A line for each driver: its name, whether it has a user half, and how many upcalls that one has
 * left unanswered.
 */
static int get_halves(char *buffer, const struct kernel_param *parameter)
{
	struct split_host *host;
	int length = 0;

	mutex_lock(&hosts_lock);
	list_for_each_entry(host, &hosts, link)
		length += sysfs_emit_at(buffer, length, "%s %d %d\n", host->driver->name,
					!!READ_ONCE(host->file), atomic_read(&host->unanswered));
	mutex_unlock(&hosts_lock);
	return length;
}

static const struct kernel_param_ops halves = { .get = get_halves };
module_param_cb(halves, &halves, NULL, 0444);
MODULE_PARM_DESC(halves, "drivers: name, whether there is a user half, upcalls that it has not "
		 "answered in time");

static void free_host(struct kref *kref)
{
	struct split_host *host = container_of(kref, struct split_host, references);

	split_memory_end(host);
	split_dma_end(host);
	kfree(host);
}

void split_host_put(struct split_host *host)
{
	kref_put(&host->references, free_host);
}

static void free_frame(struct kref *kref)
{
	struct split_frame *frame = container_of(kref, struct split_frame, references);

	split_frame_forget(frame);
	split_host_put(frame->host);
	kfree(frame);
}

void split_frame_put(struct split_frame *frame)
{
	kref_put(&frame->references, free_frame);
}

struct split_frame *split_frame_of(struct split_host *host, const struct task_struct *answerer)
{
	struct split_frame *frame;

	list_for_each_entry(frame, &host->running, link)
		if (READ_ONCE(frame->answerer) == answerer)
			return frame;
	return NULL;
}

bool split_answers_for(struct split_host *host, const struct work_struct *work)
{
	const struct split_frame *frame;
	bool answers;

	mutex_lock(&host->lock);
	frame = split_frame_of(host, current);
	answers = frame && work && frame->work == work;
	mutex_unlock(&host->lock);
	return answers;
}
EXPORT_SYMBOL_GPL(split_answers_for);

static struct split_frame *new_frame(struct split_host *host, unsigned int entry,
				     const unsigned long *arguments)
{
	struct split_frame *frame = kzalloc(sizeof(*frame), GFP_KERNEL), *before;

	if (!frame)
		return NULL;
	kref_init(&frame->references);
	mutex_init(&frame->lock);
	init_completion(&frame->done);
	init_waitqueue_head(&frame->granted);
	kref_get(&host->references);
	frame->host = host;
	frame->number = entry;
	frame->caller = current;
	frame->entry = &host->driver->entries[entry];
	memcpy(frame->arguments, arguments, frame->entry->nparameters * sizeof(*arguments));
	mutex_lock(&host->lock);
	before = split_frame_of(host, current);
	frame->work = current_work() ?: before ? before->work : NULL;
	/* 0 stands for no frame. */
	frame->id = ++host->serial ?: ++host->serial;
	frame->endings = READ_ONCE(host->endings);
	mutex_unlock(&host->lock);
	return frame;
}

/* Ends a frame, once. With frame->lock held, so that no call of it is running. */
void split_frame_end(struct split_frame *frame, long result, bool failed)
{
	struct split_host *host = frame->host;

	if (frame->state == SPLIT_ENDED)
		return;
	frame->state = SPLIT_ENDED;
	frame->result = result;
	frame->failed = failed;
	split_unlock_combolocks(frame);
	mutex_lock(&host->lock);
	list_del_init(&frame->link);
	mutex_unlock(&host->lock);
	complete(&frame->done);
}

static void cancel(struct split_frame *frame)
{
	WRITE_ONCE(frame->cancelled, true);
	wake_up_all(&frame->host->alone_ended);
	wake_up(&frame->granted);
	mutex_lock(&frame->lock);
	atomic_add(frame->state == SPLIT_RUNNING, &frame->host->late);
	split_frame_end(frame, 0, true);
	mutex_unlock(&frame->lock);
}

/* Whether a sleep is allowed where the caller stands. CONFIG_PREEMPT_COUNT makes this exact. */
bool split_may_sleep(void)
{
	return IS_ENABLED(CONFIG_PREEMPT_COUNT) && !in_atomic() && !irqs_disabled() &&
	       !rcu_preempt_depth();
}

/* How long the user half may take. */
static unsigned long limit(const struct split_entry *entry)
{
	unsigned long ms = min_not_zero(entry->timeout_ms, READ_ONCE(deadline_ms));

	return msecs_to_jiffies(min(ms * READ_ONCE(timeout_factor), (unsigned long)INT_MAX));
}

static bool serves(struct split_host *host)
{
	return READ_ONCE(host->file) && !READ_ONCE(host->leaving);
}

/*
 * One of whose threads hangs would not answer this either: what need not be asked of it is not, nor
 * of one that has just failed.
 */
bool split_asks(struct split_host *host)
{
	return host && split_may_sleep() && serves(host) && !atomic_read(&host->late) &&
	       time_after_eq(jiffies, READ_ONCE(host->hold_off));
}
EXPORT_SYMBOL_GPL(split_asks);

static bool enqueue(struct split_host *host, struct split_frame *frame)
{
	bool there;

	/* One that is about to go is none: what ends with it is asked of the next one. */
	if (!serves(host))
		wait_event_killable_timeout(host->attached, serves(host) || host->gone,
					    msecs_to_jiffies(grace_ms));
	mutex_lock(&host->lock);
	there = serves(host) && !host->gone;
	if (there)
		list_add_tail(&frame->link, &host->waiting);
	mutex_unlock(&host->lock);
	if (there)
		wake_up(&host->work);
	return there;
}

/* One try. `died` tells whether the user half has died in it, or gave it up. */
static long upcall(struct split_host *host, unsigned int entry, const unsigned long *arguments,
		   bool *died)
{
	struct split_frame *frame;
	const char *why = NULL;
	long result, left;

	*died = false;
	result = host->driver->entries[entry].failure;
	if (!split_may_sleep()) {
		atomic_inc(&atomic);
		pr_err_ratelimited("%s: %s is called in atomic context: refused\n",
				   host->driver->name, host->driver->entries[entry].name);
		return result;
	}
	frame = new_frame(host, entry, arguments);
	if (!frame)
		return result;
	INIT_LIST_HEAD(&frame->link);
	split_cross(true);
	if (split_pack(frame)) {
		why = "its message is too long";
	} else if (!enqueue(host, frame)) {
		why = "there is no user half";
	} else {
		left = split_wait(frame, limit(frame->entry));
		if (left == 0)
			atomic_inc(&host->unanswered);
		if (left <= 0)
			cancel(frame);
		split_unlock_mutexes(frame);
		*died = frame->failed && left > 0;
		/*
		 * Its caller takes an int, and what is no error for a success, as the core does
		 * that probes.
		 */
		if (!frame->failed && (int)frame->result >= 0 && frame->entry->ensures &&
		    !frame->entry->ensures(arguments)) {
			frame->failed = true;
			why = "it has not done what it says";
		} else if (!frame->failed)
			result = frame->result;
		else
			why = left == 0 ? "the user half does not answer" : left < 0 ?
			      "the caller is killed" : "the user half has died, or gave it up";
	}
	/*
	 * Who answers with an error is to have given back all that it took: its caller goes by
	 * that, and never calls what would give it back.
	 */
	if (frame->failed || (frame->entry->failure < 0 && (int)frame->result < 0))
		split_undo(frame);
	if (why) {
		/*
		 * What can wait is tried again in a second at the earliest, unless another user
		 * half is there.
		 */
		WRITE_ONCE(host->hold_off, jiffies + HZ);
		atomic_inc(&failed);
		pr_warn_ratelimited("%s: %s fails: %s\n", host->driver->name, frame->entry->name,
				    why);
	}
	split_frame_put(frame);
	return result;
}

long split_upcall(struct split_host *host, unsigned int entry, const unsigned long *arguments)
{
	bool died;
	long result;

	if (!host)
		return -ENODEV;
	result = upcall(host, entry, arguments, &died);
	return died && host->driver->entries[entry].again ? upcall(host, entry, arguments, &died) :
	       result;
}
EXPORT_SYMBOL_GPL(split_upcall);

/*
 * The next upcall of the user half, with a reference; NULL when there is none in time, or the
 * thread has a signal.
 */
struct split_frame *split_frame_next(struct split_host *host, struct file *file, u32 wait_ms)
{
	struct split_frame *frame = NULL;
	long left = wait_ms ? msecs_to_jiffies(wait_ms) : MAX_SCHEDULE_TIMEOUT;

	while (!frame && left > 0) {
		/*
		 * One thread for each upcall: who was woken for nothing would take the processor
		 * from the one that answers.
		 */
		left = ___wait_event(host->work,
				     ___wait_cond_timeout(!list_empty_careful(&host->waiting) ||
							  host->gone), TASK_INTERRUPTIBLE, 1, left,
				     __ret = schedule_timeout(__ret));
		if (left <= 0 || host->gone)
			break;
		mutex_lock(&host->lock);
		frame = host->file == file ?
			list_first_entry_or_null(&host->waiting, struct split_frame, link) : NULL;
		if (frame) {
			list_move_tail(&frame->link, &host->running);
			kref_get(&frame->references);
		}
		mutex_unlock(&host->lock);
	}
	return frame;
}

/* A running frame of the user half, with a reference. */
struct split_frame *split_frame_get(struct split_host *host, struct file *file, u64 id)
{
	struct split_frame *frame, *found = NULL;

	mutex_lock(&host->lock);
	if (host->file == file) {
		list_for_each_entry(frame, &host->running, link) {
			if (frame->id == id) {
				kref_get(&frame->references);
				found = frame;
				break;
			}
		}
	}
	mutex_unlock(&host->lock);
	return found;
}

int split_attach(struct split_host *host, struct file *file)
{
	int error = 0;

	mutex_lock(&host->lock);
	if (host->gone)
		error = -ENODEV;
	else if (host->file)
		error = -EBUSY;
	else
		host->file = file;
	if (!error) {
		atomic_set(&host->unanswered, 0);
		atomic_set(&host->late, 0);
		WRITE_ONCE(host->hold_off, jiffies);
	}
	mutex_unlock(&host->lock);
	if (!error)
		wake_up_all(&host->attached);
	return error;
}

/*
 * The user half is gone: what it had begun, and what it had not, fails now. Only then can another
 * one attach.
 */
void split_detach(struct split_host *host, struct file *file)
{
	struct split_frame *frame;

	do {
		mutex_lock(&host->lock);
		host->leaving = true;
		frame = list_first_entry_or_null(&host->running, struct split_frame, link) ?:
			list_first_entry_or_null(&host->waiting, struct split_frame, link);
		if (frame) {
			kref_get(&frame->references);
		} else {
			host->leaving = false;
			host->file = NULL;
		}
		mutex_unlock(&host->lock);
		if (frame) {
			cancel(frame);
			split_frame_put(frame);
		}
	} while (frame);
}

/*
 * The host of a driver, with a reference. Halves that were built apart do not fit: members would
 * lie at other places. The driver's tables are only looked at under the lock, and while one of its
 * entries runs: a user half must not keep its module from going.
 */
struct split_host *split_host_find(const char *name, u64 layout)
{
	struct split_host *host, *found = ERR_PTR(-ENODEV);

	mutex_lock(&hosts_lock);
	list_for_each_entry(host, &hosts, link) {
		if (strcmp(host->driver->name, name))
			continue;
		found = ERR_PTR(-ESTALE);
		if (host->driver->layout == layout) {
			kref_get(&host->references);
			found = host;
		}
		break;
	}
	mutex_unlock(&hosts_lock);
	return found;
}

struct split_host *split_register(const struct split_driver *driver)
{
	struct split_host *host = kzalloc(sizeof(*host), GFP_KERNEL);
	unsigned int i;

	if (!host)
		return NULL;
	host->driver = driver;
	host->symbols = (void *)ULONG_MAX;
	for (i = 0; i < driver->nsymbols; i++)
		host->symbols = min_t(const void *, host->symbols, driver->symbols[i].address);
	host->maps = driver->maps;
	host->serial = first_upcall;
	kref_init(&host->references);
	mutex_init(&host->lock);
	INIT_LIST_HEAD(&host->waiting);
	INIT_LIST_HEAD(&host->running);
	INIT_LIST_HEAD(&host->texts);
	init_waitqueue_head(&host->work);
	init_waitqueue_head(&host->attached);
	init_waitqueue_head(&host->given_back);
	spin_lock_init(&host->holding);
	spin_lock_init(&host->holding_alone);
	init_waitqueue_head(&host->alone_ended);
	init_rwsem(&host->objects);
	xa_init_flags(&host->allocations, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&host->dma, XA_FLAGS_LOCK_IRQ);
	mutex_lock(&hosts_lock);
	list_add(&host->link, &hosts);
	mutex_unlock(&hosts_lock);
	return host;
}
EXPORT_SYMBOL_GPL(split_register);

/*
 * At the driver's exit: no entry is running any more. A user half that is still there is told to
 * go.
 */
void split_unregister(struct split_host *host)
{
	if (!host)
		return;
	mutex_lock(&hosts_lock);
	list_del(&host->link);
	mutex_unlock(&hosts_lock);
	mutex_lock(&host->lock);
	host->gone = true;
	split_close_windows(host);
	mutex_unlock(&host->lock);
	wake_up_all(&host->work);
	split_host_put(host);
}
EXPORT_SYMBOL_GPL(split_unregister);
