/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What stands behind the includes of every file of a user half, which is compiled with the kernel's headers: registers are the
 * kernel's, time is the process's, and a module's init function does not exist.
 */
#ifndef PRELUDE_H
#define PRELUDE_H

#include <linux/delay.h>
#include <linux/io.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

unsigned int split_port_read(unsigned long port, unsigned long size);
void split_port_write(unsigned long port, unsigned long size, unsigned int value);
unsigned int split_io_read(const volatile void __iomem *address, unsigned long size);
void split_io_write(volatile void __iomem *address, unsigned long size, unsigned int value);
unsigned long split_jiffies(void);

#undef inb
#undef inw
#undef inl
#undef outb
#undef outw
#undef outl
#define inb(port) ((u8)split_port_read(port, 1))
#define inw(port) ((u16)split_port_read(port, 2))
#define inl(port) ((u32)split_port_read(port, 4))
#define outb(value, port) split_port_write(port, 1, value)
#define outw(value, port) split_port_write(port, 2, value)
#define outl(value, port) split_port_write(port, 4, value)

#undef readb
#undef readw
#undef readl
#undef writeb
#undef writew
#undef writel
#define readb(address) ((u8)split_io_read(address, 1))
#define readw(address) ((u16)split_io_read(address, 2))
#define readl(address) ((u32)split_io_read(address, 4))
#define writeb(value, address) split_io_write(address, 1, value)
#define writew(value, address) split_io_write(address, 2, value)
#define writel(value, address) split_io_write(address, 4, value)
#undef ioread8
#undef ioread16
#undef ioread32
#undef iowrite8
#undef iowrite16
#undef iowrite32
#define ioread8 readb
#define ioread16 readw
#define ioread32 readl
#define iowrite8 writeb
#define iowrite16 writew
#define iowrite32 writel

#undef jiffies
#define jiffies split_jiffies()

#undef module_init
#undef module_exit
#define module_init(function)
#define module_exit(function)

/* The master is the kernel half's: it is unlocked when it is zeroed, and this copy tells nobody anything. */
#undef spin_lock_init
#define spin_lock_init(lock) do { } while (0)

#endif
