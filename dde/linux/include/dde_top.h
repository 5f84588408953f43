/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What stands above the one network card of the process: other processes (net.c), a reflector, or a
 * protocol stack.
 */
#ifndef DDE_TOP_H
#define DDE_TOP_H

#include <linux/netdevice.h>
#include <linux/skbuff.h>

/**
 * struct dde_top - who has the frames
 * @open: the card is open and nothing has come yet
 * @receive: a frame has come, from its Ethernet header on; it is the top's now
 * @idle: all that has come was given, and time has passed
 * @link: the link has changed
 */
struct dde_top {
	void (*open)(struct net_device *device);
	void (*receive)(struct sk_buff *skb);
	void (*idle)(void);
	void (*link)(bool up);
};
extern const struct dde_top dde_reflector, dde_stack;

/*
 * Hands packets to the driver, in one go: one write to its doorbell. What it has no room for stays
 * in @list. False while there is some.
 */
bool dde_transmit(struct net_device *device, struct sk_buff_head *list);

/* Has @device polled, if that is wanted, from now on. */
void dde_poll_begin(struct net_device *device);
/* Polls @device once: whether it is polled at all now, so that nobody sleeps. */
bool dde_poll_once(struct net_device *device);

#endif
