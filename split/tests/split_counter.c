// SPDX-License-Identifier: GPL-2.0
/*
 * A driver that counts under a spinlock: by a timer, by an interrupt that nothing has but what is
 * injected, and when somebody writes to /proc/split_counter. Its user half is to have `hold` and
 * `ask`.
 */
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/interrupt.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/timer.h>

#define IRQ 7 /* an edge, of a printer that is not there */

struct counter {
	spinlock_t lock;
	int count;
	struct timer_list timer;
	int ticks, interrupts;
};

static struct counter *counter;
static struct proc_dir_entry *folder;

static void tick(struct timer_list *timer)
{
	struct counter *this = from_timer(this, timer, timer);

	spin_lock(&this->lock);
	this->count++;
	this->ticks++;
	spin_unlock(&this->lock);
	mod_timer(timer, jiffies + 1);
}

static irqreturn_t handle(int irq, void *data)
{
	struct counter *this = data;

	spin_lock(&this->lock);
	this->count++;
	this->interrupts++;
	spin_unlock(&this->lock);
	return IRQ_HANDLED;
}

static void count(struct counter *this)
{
	unsigned long flags;

	spin_lock_irqsave(&this->lock, flags);
	this->count++;
	spin_unlock_irqrestore(&this->lock, flags);
}

/*
 * Counts slowly, and looks whether anybody counts meanwhile. In a process one may sleep with the
 * lock.
 */
static int hold(struct counter *this, unsigned int ms)
{
	int error = 0, before;

	spin_lock_irq(&this->lock);
	before = this->count;
	msleep(ms);
	if (this->count != before)
		error = -EBUSY;
	this->count++;
	spin_unlock_irq(&this->lock);
	return error;
}

static int ask(struct counter *this)
{
	count(this);
	return 0;
}

enum { HOLD, ASK, INJECT, INTRUDE, TAKE, TICKS, INTERRUPTS };
static const char *const names[] = { "hold", "ask", "inject", "intrude", "take", "ticks",
				     "interrupts" };

static int set(unsigned long what, unsigned int ms)
{
	switch (what) {
	case HOLD:
		return hold(counter, ms);
	case ASK:
		return ask(counter);
	case INJECT:
		return irq_inject_interrupt(IRQ);
	case INTRUDE:
		/* As the judge of a plan does not see it. */
		asm volatile("cli");
		count(counter);
		asm volatile("sti");
		return 0;
	}
	return -EPERM;
}

/* How long it takes to count in process context, in milliseconds. */
static long take(void)
{
	u64 start = ktime_get_ns();

	count(counter);
	return (ktime_get_ns() - start) / NSEC_PER_MSEC;
}

static ssize_t write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned int ms;
	int error = kstrtouint_from_user(from, size, 0, &ms);

	if (!error)
		error = set((unsigned long)pde_data(file_inode(file)), ms);
	return error ? error : size;
}

static ssize_t read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	unsigned long what = (unsigned long)pde_data(file_inode(file));
	char text[24];

	if (*at)
		return 0;
	snprintf(text, sizeof(text), "%ld\n",
		 what == TAKE ? take() : what == TICKS ? counter->ticks : counter->interrupts);
	return simple_read_from_buffer(to, size, at, text, strlen(text));
}

static const struct proc_ops operations = { .proc_write = write, .proc_read = read };

static int __init begin(void)
{
	unsigned long i;
	int error;

	counter = kzalloc(sizeof(*counter), GFP_KERNEL);
	if (!counter)
		return -ENOMEM;
	spin_lock_init(&counter->lock);
	error = request_irq(IRQ, handle, 0, "split_counter", counter);
	if (error) {
		kfree(counter);
		return error;
	}
	folder = proc_mkdir("split_counter", NULL);
	for (i = 0; i < ARRAY_SIZE(names); i++)
		proc_create_data(names[i], 0600, folder, &operations, (void *)i);
	timer_setup(&counter->timer, tick, 0);
	mod_timer(&counter->timer, jiffies + 1);
	return 0;
}
module_init(begin);

static void __exit end(void)
{
	proc_remove(folder);
	timer_shutdown_sync(&counter->timer);
	free_irq(IRQ, counter);
	kfree(counter);
}
module_exit(end);
MODULE_DESCRIPTION("Counts under a spinlock");
MODULE_LICENSE("GPL");
