// SPDX-License-Identifier: GPL-2.0-only
/* There are no users: whoever calls as one is in this process, and his memory is as good as any. */
#include <linux/string.h>
#include <linux/uaccess.h>

unsigned long task_size = ~0ul;

unsigned long raw_copy_from_user(void *to, const void __user *from, unsigned long len)
{
	memcpy(to, (const void __force *)from, len);
	return 0;
}

unsigned long raw_copy_to_user(void __user *to, const void *from, unsigned long len)
{
	memcpy((void __force *)to, from, len);
	return 0;
}

unsigned long __clear_user(void __user *to, unsigned long len)
{
	memset((void __force *)to, 0, len);
	return 0;
}
