// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel half: who writes a count to /proc/split_objects has so many upcalls made, one behind
 * the other, or one by a work item (BY_WORK), in a section that runs alone (ALONE), or with rtnl
 * (WITH_RTNL), or one about a text (TEXT), or memory of a device allocated (MEMORY), or has it said
 * which locks are free (LOCKS); who reads it, what the kernel half finds in its box by then.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/platform_device.h>
#include <linux/proc_fs.h>
#include <linux/rtnetlink.h>

#include "kernel_half.h"
#include "objects.h"

static struct box box;
DEFINE_MUTEX(split_lasting);
/* As what the driver's source initialises in the user half. */
struct mutex split_bare;
static spinlock_t bare_spinlock;
extern struct mutex split_lasting, split_bare;

unsigned long split_down_make(const unsigned long *arguments);
unsigned long split_down_end(const unsigned long *arguments);
unsigned long split_down_hold(const unsigned long *arguments);
unsigned long split_down_drop(const unsigned long *arguments);
unsigned long split_down_wait(const unsigned long *arguments);
unsigned long split_down_turn(const unsigned long *arguments);
int split_requires_turn(const unsigned long *arguments);
unsigned long split_down_fill(const unsigned long *arguments);
void split_undo_hold(const unsigned long *arguments, unsigned long result);

static long upcall(void)
{
	return split_upcall(split_host, 0, (unsigned long[]){ (unsigned long)&box });
}

static void work(struct work_struct *item)
{
	upcall();
}

static DECLARE_WORK(item, work);

/* For the work item, which may be what the caller answers for. */
unsigned long split_down_wait(const unsigned long *arguments)
{
	return cancel_work_sync(&item);
}

static bool taken;

/* It takes its time between what it has looked at and what it goes by. */
int split_requires_turn(const unsigned long *arguments)
{
	if (taken)
		return 0;
	msleep(300);
	return 1;
}

unsigned long split_down_turn(const unsigned long *arguments)
{
	SPLIT_ALONE;
	bool fails = taken;

	taken = true;
	msleep(300);
	taken = false;
	return fails;
}

unsigned long split_down_make(const unsigned long *arguments)
{
	struct thing *thing = kzalloc(sizeof(*thing), GFP_KERNEL);

	if (thing)
		thing->label = kstrdup("a thing with a label", GFP_KERNEL);
	/* As what is made is known elsewhere, too. */
	box.seen = thing;
	return (unsigned long)thing;
}

unsigned long split_down_end(const unsigned long *arguments)
{
	struct thing *thing = (struct thing *)arguments[0];

	if (thing) {
		pr_info("split_objects: a thing ends with %lu holders\n", thing->holders);
		kfree(thing->label);
		kfree(thing);
	}
	return 0;
}

unsigned long split_down_hold(const unsigned long *arguments)
{
	((struct thing *)arguments[0])->holders++;
	return 0;
}

unsigned long split_down_drop(const unsigned long *arguments)
{
	((struct thing *)arguments[0])->holders--;
	return 0;
}

void split_undo_hold(const unsigned long *arguments, unsigned long result)
{
	split_down_drop(arguments);
}

unsigned long split_down_take_rtnl(const unsigned long *arguments);
unsigned long split_down_give_rtnl(const unsigned long *arguments);
int split_requires_take_rtnl(const unsigned long *arguments);
int split_requires_give_rtnl(const unsigned long *arguments);
void split_undo_take_rtnl(const unsigned long *arguments, unsigned long result);

int split_requires_take_rtnl(const unsigned long *arguments)
{
	return split_take_rtnl(split_host);
}

int split_requires_give_rtnl(const unsigned long *arguments)
{
	return split_give_rtnl(split_host);
}

unsigned long split_down_take_rtnl(const unsigned long *arguments)
{
	return 0;
}

unsigned long split_down_give_rtnl(const unsigned long *arguments)
{
	return 0;
}

void split_undo_take_rtnl(const unsigned long *arguments, unsigned long result)
{
	split_requires_give_rtnl(arguments);
}

static void allocate(struct device *device, const char *what, unsigned long attributes)
{
	dma_addr_t bus;
	void *address = dma_alloc_attrs(device, PAGE_SIZE, &bus, GFP_KERNEL, attributes);

	pr_info("split_objects: memory %s: %s\n", what, address ? "given" : "refused");
	if (address)
		dma_free_attrs(device, PAGE_SIZE, address, bus, attributes);
}

/* As a user half may have a driver's code allocate it. */
static long memory(void)
{
	struct platform_device *device =
		platform_device_register_simple("split_objects", PLATFORM_DEVID_NONE, NULL, 0);
	long error = PTR_ERR_OR_ZERO(device);

	if (error)
		return error;
	error = dma_coerce_mask_and_coherent(&device->dev, DMA_BIT_MASK(32));
	if (!error) {
		allocate(&device->dev, "that is written at once", DMA_ATTR_WRITE_COMBINE);
		allocate(&device->dev, "without an address", DMA_ATTR_NO_KERNEL_MAPPING);
		allocate(&device->dev, "of an unknown kind", 1UL << 40);
	}
	platform_device_unregister(device);
	return error;
}

unsigned long split_down_fill(const unsigned long *arguments)
{
	memset((void *)arguments[0], 'f', arguments[1]);
	return 0;
}

static long text(void)
{
	long error;

	memset(box.text, 0, sizeof(box.text));
	strscpy(box.behind, "behind");
	error = upcall();
	pr_info("split_objects: the text is \"%s\"\n", box.text);
	return error;
}

/* Of what nobody has initialised, too. */
static void locks(void)
{
	bool lasting = mutex_trylock(&split_lasting);

	pr_info("split_objects: the lasting mutex is %s\n", lasting ? "free" : "held");
	if (lasting)
		mutex_unlock(&split_lasting);
	spin_lock(&bare_spinlock);
	spin_unlock(&bare_spinlock);
	mutex_lock(&split_bare);
	mutex_unlock(&split_bare);
	pr_info("split_objects: the bare locks are free\n");
	/* What it has been led to has ended. */
	box.seen = NULL;
}

static ssize_t run(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned int count;
	long error = kstrtouint_from_user(from, size, 0, &count);

	if (!error && count == BY_WORK) {
		schedule_work(&item);
		flush_work(&item);
	} else if (!error && count == ALONE) {
		SPLIT_ALONE;

		error = upcall();
	} else if (!error && count == WITH_RTNL) {
		rtnl_lock();
		error = upcall();
		rtnl_unlock();
	} else if (!error && count == MEMORY) {
		error = memory();
	} else if (!error && count == TEXT) {
		error = text();
	} else if (!error && count == LOCKS) {
		locks();
	} else {
		while (!error && count--)
			error = upcall();
	}
	return error ? error : size;
}

/* What it finds it takes. */
static ssize_t look(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char text[64];

	if (*at)
		return 0;
	if (box.thing) {
		snprintf(text, sizeof(text), "thing with %lu holders\n", box.thing->holders);
		kfree(box.thing->label);
	} else {
		snprintf(text, sizeof(text), "thing none, part %lu\n",
			 box.part ? box.part->number : 0);
	}
	kfree(box.thing);
	kfree(box.part);
	box = (struct box){};
	return simple_read_from_buffer(to, size, at, text, strlen(text));
}

static const struct proc_ops operations = { .proc_write = run, .proc_read = look };

static int __init begin(void)
{
	return proc_create("split_objects", 0600, NULL, &operations) ? 0 : -ENOMEM;
}
module_init(begin);

static void __exit end(void)
{
	cancel_work_sync(&item);
	remove_proc_entry("split_objects", NULL);
}
module_exit(end);
MODULE_DESCRIPTION("A split driver whose user half makes and frees objects");
MODULE_LICENSE("GPL");
