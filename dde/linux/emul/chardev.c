// SPDX-License-Identifier: GPL-2.0-only
/* Character devices: numbers are given out, and nobody can open one. */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>

/* Beyond those that are assigned. */
#define FIRST_MAJOR 300

int alloc_chrdev_region(dev_t *number, unsigned int first, unsigned int count, const char *name)
{
	static unsigned int major = FIRST_MAJOR;

	*number = MKDEV(major++, first);
	return 0;
}

int register_chrdev_region(dev_t number, unsigned int count, const char *name)
{
	return 0;
}

int __register_chrdev(unsigned int major, unsigned int first, unsigned int count, const char *name,
		      const struct file_operations *operations)
{
	return 0;
}

void __unregister_chrdev(unsigned int major, unsigned int first, unsigned int count,
			 const char *name)
{
}

void unregister_chrdev_region(dev_t number, unsigned int count)
{
}

void cdev_init(struct cdev *cdev, const struct file_operations *operations)
{
	*cdev = (struct cdev){ .ops = operations };
}

int cdev_add(struct cdev *cdev, dev_t number, unsigned int count)
{
	return 0;
}

void cdev_del(struct cdev *cdev)
{
}

/* Who waits for the device waits for this. */
int cdev_device_add(struct cdev *cdev, struct device *dev)
{
	return device_add(dev);
}

void cdev_device_del(struct cdev *cdev, struct device *dev)
{
	device_del(dev);
}
