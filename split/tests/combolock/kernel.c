// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel half of a driver that counts under a combolock: by a timer, by an interrupt that nothing has but what is injected, and,
 * on demand, in process context, by its user half, and in an atomic context that nobody holds off.
 */
#include <linux/ktime.h>
#include <linux/proc_fs.h>
#include <linux/timer.h>

#define SPLIT_HOLDS_IRQS
#include "combolock.h"

#define IRQ 7 /* an edge, of a printer that is not there */

static struct counter {
	spinlock_t lock;
	int count;
} counter;
static int ticks, interrupts, sent_away;
static struct proc_dir_entry *folder;

static void tick(struct timer_list *timer)
{
	/* As the generator has it. */
	if (split_is_held_off(split_host)) {
		sent_away++;
		mod_timer(timer, jiffies + 1);
		return;
	}
	spin_lock(&counter.lock);
	counter.count++;
	ticks++;
	spin_unlock(&counter.lock);
	mod_timer(timer, jiffies + 1);
}
static DEFINE_TIMER(timer, tick);

static irqreturn_t handle(int irq, void *dev)
{
	spin_lock(&counter.lock);
	counter.count++;
	interrupts++;
	spin_unlock(&counter.lock);
	return IRQ_HANDLED;
}

/* What the user half calls down. */
unsigned long split_down_count(const unsigned long *arguments);
unsigned long split_down_count(const unsigned long *arguments)
{
	unsigned long flags;

	spin_lock_irqsave(&counter.lock, flags);
	counter.count++;
	spin_unlock_irqrestore(&counter.lock, flags);
	return 0;
}

enum { HOLD, DEADLOCK, INJECT, INTRUDE, TAKE, TICKS, INTERRUPTS, SENT_AWAY }; /* the first two are entries */
static const char *const names[] = { "hold", "deadlock", "inject", "intrude", "take", "ticks", "interrupts", "sent_away" };

static long set(unsigned long what, unsigned int ms)
{
	switch (what) {
	case HOLD:
	case DEADLOCK:
		return split_upcall(split_host, what, (unsigned long[]){ (unsigned long)&counter, ms });
	case INJECT:
		return irq_inject_interrupt(IRQ);
	case INTRUDE:
		preempt_disable();
		split_down_count(NULL);
		preempt_enable();
		return 0;
	}
	return -EPERM;
}

/* How long it takes to count in process context, in milliseconds. */
static long take(void)
{
	u64 start = ktime_get_ns();

	split_down_count(NULL);
	return (ktime_get_ns() - start) / NSEC_PER_MSEC;
}

static ssize_t write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned int ms;
	long error = kstrtouint_from_user(from, size, 0, &ms) ?: set((unsigned long)pde_data(file_inode(file)), ms);

	return error ?: size;
}

static ssize_t read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	unsigned long what = (unsigned long)pde_data(file_inode(file));
	char text[24];

	if (*at)
		return 0;
	snprintf(text, sizeof(text), "%ld\n", what == TAKE ? take() : what == TICKS ? ticks : what == INTERRUPTS ? interrupts : sent_away);
	return simple_read_from_buffer(to, size, at, text, strlen(text));
}

static const struct proc_ops operations = { .proc_write = write, .proc_read = read };

static int __init begin(void)
{
	unsigned long i;
	int error;

	spin_lock_init(&counter.lock);
	error = request_irq(IRQ, handle, 0, "split_counter", &counter);
	if (error)
		return error;
	/* Parameters of the module would wait for each other. */
	folder = proc_mkdir("split_counter", NULL);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		proc_create_data(names[i], 0600, folder, &operations, (void *)i);
	mod_timer(&timer, jiffies + 1);
	return 0;
}
module_init(begin);

static void __exit end(void)
{
	proc_remove(folder);
	timer_shutdown_sync(&timer);
	free_irq(IRQ, &counter);
}
module_exit(end);
MODULE_DESCRIPTION("A split driver that counts under a combolock");
MODULE_LICENSE("GPL");
