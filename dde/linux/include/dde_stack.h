/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Between the network's glue, which knows the kernel's packets, and lwIP, which knows its own. A
 * packet of the kernel's is a pointer here.
 */
#ifndef DDE_STACK_H
#define DDE_STACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Bytes before a received frame that lwIP has for its description of it, from a multiple of 8 on.
 */
#define DDE_STACK_ROOM 48

/**
 * dde_lwip_parse() - understand ADDRESS/BITS before anything runs
 *
 * Return: false if it is none.
 */
bool dde_lwip_parse(const char *text);

/**
 * dde_lwip_open() - begin as a host with this Ethernet address; @sums says that the card makes and
 * checks sums of TCP and UDP, @segments that it cuts what TCP sends over IPv4
 */
void dde_lwip_open(const uint8_t mac[6], uint16_t longest, bool sums, bool segments);

/** dde_lwip_link() - the link has changed */
void dde_lwip_link(bool up);

/**
 * dde_lwip_input() - a frame has come @packet: what it is of; it is given back by dde_stack_free(),
 * or goes out again by dde_stack_return() @room: DDE_STACK_ROOM bytes at a multiple of 8 that lie
 * before @data in one piece with it @data: the frame, from its Ethernet header on @len: its bytes,
 * without its check sequence @checked: the card has found its sums to be right
 */
void dde_lwip_input(void *packet, void *room, void *data, uint16_t len, bool checked);

/** dde_lwip_tick() - time has passed: what lwIP has timers for is done */
void dde_lwip_tick(void);

/**
 * dde_lwip_flushed() - frames that were sent are the driver's from now on, and not written to any
 * more
 */
void dde_lwip_flushed(void);

/** struct dde_lwip_counts - what its services have seen */
struct dde_lwip_counts {
	uint64_t udp_packets, udp_bytes, tcp_received, tcp_sent;
};

/** dde_lwip_count() - what went through so far */
struct dde_lwip_counts dde_lwip_count(void);

/* The glue's, which lwIP's side calls. */

/** dde_stack_free() - a received packet is not looked at any more */
void dde_stack_free(void *packet);

/**
 * dde_stack_return() - a received packet goes out, as the @len bytes at @data; what was said of it
 * stays valid until all that has come was dealt with
 */
void dde_stack_return(void *packet, void *data, size_t len);

/**
 * dde_stack_frame() - a packet of @len bytes to fill in at *@data and to send; NULL if there is no
 * memory
 */
void *dde_stack_frame(size_t len, void **data);

/**
 * dde_stack_send() - send it, when what has come was dealt with; until dde_lwip_flushed() it may
 * still be written to @start: the card puts in the sum that begins at this byte and belongs to byte
 * @start + @offset; 0 for none @segment: the card cuts it into frames with so many bytes of TCP's
 * each; 0 for a frame as it is
 *
 * Return: false if it is lost, as too many wait.
 */
bool dde_stack_send(void *packet, uint16_t start, uint16_t offset, uint16_t segment);

#endif
