/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What stands behind the includes of every file of a user half, which is compiled with the kernel's
 * headers: registers are the kernel's, time is the process's, and a module's init function does not
 * exist.
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
#include <linux/workqueue.h>

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

/*
 * Words that both halves change are the kernel's, and so is what was there; those of this half
 * alone stay here.
 */
bool split_bit(unsigned int operation, unsigned long number, volatile unsigned long *words);
void split_store(atomic_t *word, int value);
#undef set_bit
#undef clear_bit
#undef test_and_set_bit
#undef test_and_clear_bit
#undef atomic_set
#define set_bit(number, words) ((void)split_bit(0, number, words))
#define clear_bit(number, words) ((void)split_bit(1, number, words))
#define test_and_set_bit(number, words) split_bit(0, number, words)
#define test_and_clear_bit(number, words) split_bit(1, number, words)
#define atomic_set(word, value) split_store(word, value)

/* Work items are the kernel's, and run what the kernel half has under that name. */
void split_init_work(struct work_struct *work, work_func_t function);
void split_init_delayed_work(struct delayed_work *work, work_func_t function);
#undef INIT_WORK
#undef INIT_DELAYED_WORK
#define INIT_WORK(work, function) split_init_work(work, function)
#define INIT_DELAYED_WORK(work, function) split_init_delayed_work(work, function)

#undef jiffies
#define jiffies split_jiffies()

#undef module_init
#undef module_exit
#define module_init(function)
#define module_exit(function)

/*
 * The master is the kernel half's: it is unlocked when it is zeroed, and this copy tells nobody
 * anything.
 */
#undef spin_lock_init
#define spin_lock_init(lock) do { } while (0)

#endif
