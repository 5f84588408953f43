// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel's packets for lwIP, and lwIP's frames for the driver: the stack is in this process,
 * and so is its memory.
 */
#include <linux/etherdevice.h>
#include <linux/tcp.h>

#include "dde_stack.h"
#include "dde_top.h"

/* Packets that are held for a driver that has no room; more are lost, as in any queue. */
#define HELD 1024

static struct net_device *device;
static struct sk_buff_head out;

static void open(struct net_device *opened)
{
	device = opened;
	__skb_queue_head_init(&out);
	dde_lwip_open(device->dev_addr, device->mtu, device->features &
		      (NETIF_F_HW_CSUM | NETIF_F_IP_CSUM), device->features & NETIF_F_TSO);
}

static void receive(struct sk_buff *skb)
{
	u8 *room;

	if (skb_is_nonlinear(skb) || skb_headroom(skb) < DDE_STACK_ROOM + 8) {
		struct sk_buff *copy = skb_copy_expand(skb, DDE_STACK_ROOM + 8, 0, GFP_ATOMIC);

		consume_skb(skb);
		skb = copy;
	}
	if (!skb)
		return;
	room = PTR_ALIGN_DOWN(skb->data - DDE_STACK_ROOM, 8);
	dde_lwip_input(skb, room, skb->data, skb->len, skb->ip_summed == CHECKSUM_UNNECESSARY);
}

static void idle(void)
{
	dde_lwip_tick();
	dde_lwip_flushed();
	dde_transmit(device, &out);
}

static bool queue(struct sk_buff *skb)
{
	if (skb_queue_len(&out) >= HELD) {
		kfree_skb(skb);
		return false;
	}
	skb->dev = device;
	skb_reset_mac_header(skb);
	skb_set_queue_mapping(skb, 0);
	__skb_queue_tail(&out, skb);
	return true;
}

void dde_stack_free(void *packet)
{
	consume_skb(packet);
}

void dde_stack_return(void *packet, void *data, size_t len)
{
	struct sk_buff *skb = packet;
	long by = (u8 *)data - skb->data;

	if (by < 0)
		skb_push(skb, -by);
	else
		skb_pull(skb, by);
	skb_trim(skb, len);
	skb->ip_summed = CHECKSUM_NONE;
	queue(skb);
}

void *dde_stack_frame(size_t len, void **data)
{
	struct sk_buff *skb = alloc_skb(len + LL_RESERVED_SPACE(device), GFP_ATOMIC);

	if (!skb)
		return NULL;
	skb_reserve(skb, LL_RESERVED_SPACE(device));
	*data = skb_put(skb, len);
	return skb;
}

bool dde_stack_send(void *packet, uint16_t start, uint16_t offset, uint16_t segment)
{
	struct sk_buff *skb = packet;

	if (start) {
		skb->protocol = htons(ETH_P_IP);
		skb_set_network_header(skb, ETH_HLEN);
		/* False is for a sum that lies outside of the packet, which was made here. */
		skb_partial_csum_set(skb, start, offset);
	}
	if (segment) {
		skb_shinfo(skb)->gso_size = segment;
		skb_shinfo(skb)->gso_type = SKB_GSO_TCPV4;
		skb_shinfo(skb)->gso_segs = DIV_ROUND_UP(skb->len - start - sizeof(struct tcphdr),
							 segment);
	}
	return queue(skb);
}

const struct dde_top dde_stack = { .open = open, .receive = receive, .idle = idle,
				   .link = dde_lwip_link };
