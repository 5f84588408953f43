/* SPDX-License-Identifier: GPL-2.0-only */
/* Between the network's glue, which knows the kernel, and the program, which knows the host. */
#ifndef DDE_NET_H
#define DDE_NET_H

#include <stdbool.h>
#include <stdint.h>

/* Who has the card. */
enum dde_net_above {
	/* Other processes, by a socket. */
	DDE_NET_CARD,
	/* Who sends to it gets his frames back. */
	DDE_NET_REFLECTOR,
	/* lwIP, in this process. */
	DDE_NET_STACK,
};

/* What the program asks of the glue, before the kernel's side starts. */
struct dde_net_options {
	enum dde_net_above above;
	/*
	 * Most bytes of a packet without its Ethernet header; 0 for as many as the driver has by
	 * itself.
	 */
	uint32_t mtu;
};
extern struct dde_net_options dde_net_options;

/*
 * The program's: where the card with this address is to be served, PATH[,KEY=VALUE]...; NULL if
 * whoever has leased the device takes the card.
 */
const char *dde_net_access(const uint8_t *mac);
/* It is served. */
void dde_net_served(const char *driver, const uint8_t *mac);
/* The link has changed. */
void dde_net_link(bool up, uint32_t mbits);
/* Why there is no card. Does not return. */
void dde_net_failed(const char *why) __attribute__((noreturn));
/* The driver has closed the card, as it was asked. Does not return. */
void dde_net_closed(void) __attribute__((noreturn));

/* The glue's: has the driver close the card. */
void dde_net_stop(void);

#endif
