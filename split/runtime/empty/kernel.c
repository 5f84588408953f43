// SPDX-License-Identifier: GPL-2.0
/*
 * The kernel half of the empty driver.
 *
 * Whoever writes a count to `upcall`, `call`, `register`, `mapped` or `getppid` has so many of
 * these done one after the other, and reads from it the nanoseconds that they took. An upcall is
 * timed here. What the user half does is timed there, in one upcall: an empty call down, a read of
 * a register by a call and one by a load (of a page of memory, so that no device is in it), and a
 * system call that does nothing.
 */
#include <linux/ktime.h>

#include "kernel_half.h"

/* the first three as user.c has them */
enum { REPEAT_CALL, REPEAT_REGISTER, REPEAT_GETPPID, UPCALL };

struct cost {
	int what;
	int page;
	u64 ns;
};
static struct cost costs[] = { { UPCALL }, { REPEAT_CALL }, { REPEAT_REGISTER },
			       { REPEAT_REGISTER, 1 }, { REPEAT_GETPPID } };
static unsigned long pages[2]; /* the second can be mapped */

unsigned long split_down_nothing(const unsigned long *arguments);
unsigned long split_down_nothing(const unsigned long *arguments)
{
	return 0;
}

static long upcalls(unsigned int count)
{
	u64 start = ktime_get_ns();

	while (count--)
		if (split_upcall(split_host, 0, NULL))
			return -EIO;
	return ktime_get_ns() - start;
}

static int measure(const char *text, const struct kernel_param *parameter)
{
	struct cost *cost = parameter->arg;
	unsigned int count;
	long ns = kstrtouint(text, 0, &count);

	if (ns)
		return ns;
	if (cost->what == UPCALL)
		ns = upcalls(count);
	else
		ns = split_upcall(split_host, 1,
				  (unsigned long[]){ cost->what, count, pages[cost->page] });
	if (ns < 0)
		return ns;
	cost->ns = ns;
	return 0;
}

static int tell(char *text, const struct kernel_param *parameter)
{
	const struct cost *cost = parameter->arg;

	return sysfs_emit(text, "%llu\n", cost->ns);
}

static const struct kernel_param_ops operations = { .set = measure, .get = tell };
module_param_cb(upcall, &operations, &costs[0], 0600);
module_param_cb(call, &operations, &costs[1], 0600);
module_param_cb(register, &operations, &costs[2], 0600);
module_param_cb(mapped, &operations, &costs[3], 0600);
module_param_cb(getppid, &operations, &costs[4], 0600);

static void give_pages_back(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		split_deny_io(split_host, (void __iomem *)pages[i]);
		free_page(pages[i]);
	}
}

static int __init begin(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		pages[i] = get_zeroed_page(GFP_KERNEL);
		if (!pages[i]) {
			give_pages_back();
			return -ENOMEM;
		}
		split_allow_io(split_host, (void __iomem *)pages[i], PAGE_SIZE,
			       i ? virt_to_phys((void *)pages[i]) : 0);
	}
	return 0;
}
module_init(begin);

static void __exit end(void)
{
	give_pages_back();
}
module_exit(end);
MODULE_DESCRIPTION("A split driver that does nothing, to measure crossings");
MODULE_LICENSE("GPL");
