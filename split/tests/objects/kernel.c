// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel half: who writes a count to /proc/split_objects has so many upcalls made, one behind the other; who reads it, what the
 * kernel half finds in its box by then.
 */
#include <linux/proc_fs.h>

#include "kernel_half.h"
#include "objects.h"

static struct box box;

unsigned long split_down_make(const unsigned long *arguments);
unsigned long split_down_end(const unsigned long *arguments);
unsigned long split_down_hold(const unsigned long *arguments);
unsigned long split_down_drop(const unsigned long *arguments);
void split_undo_hold(const unsigned long *arguments, unsigned long result);

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

static ssize_t run(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	unsigned int count;
	long error = kstrtouint_from_user(from, size, 0, &count);

	while (!error && count--)
		error = split_upcall(split_host, 0, (unsigned long[]){ (unsigned long)&box });
	return error ? error : size;
}

/* What it finds it takes. */
static ssize_t look(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char text[64];

	if (*at)
		return 0;
	snprintf(text, sizeof(text), "thing %s, part %lu\n", box.thing ? "there" : "none", box.part ? box.part->number : 0);
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
	remove_proc_entry("split_objects", NULL);
}
module_exit(end);
MODULE_DESCRIPTION("A split driver whose user half makes and frees objects");
MODULE_LICENSE("GPL");
