// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames that are for the card go back to who has sent them, in the memory in which they came,
 * below any protocol: echo requests of ICMP as replies, UDP between the same ports the other way
 * round, unless it is for the port that discards [RFC 863], and anything else with its Ethernet
 * addresses swapped. Nothing else is answered: who asks for an address by ARP is not.
 */
#include <linux/etherdevice.h>
#include <linux/icmp.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/ip.h>

#include "dde_top.h"

#define DISCARD 9
/* Ethernet's, the longest of IPv4 and the first words of what follows. */
#define HEADERS (ETH_HLEN + 60 + 8)
/* Packets that are held for a driver that has no room. */
#define HELD 4096

static struct net_device *device;
static struct sk_buff_head out;

static void open(struct net_device *opened)
{
	device = opened;
	__skb_queue_head_init(&out);
}

/* Turns an IPv4 packet around; false if nobody wants an answer. */
static bool turn_ip(struct iphdr *ip, unsigned int len)
{
	unsigned int header = ip->ihl * 4;
	struct icmphdr *icmp = (void *)ip + header;
	struct udphdr *udp = (void *)ip + header;

	if (header < sizeof(*ip) || len < header + sizeof(*udp))
		return true;
	swap(ip->saddr, ip->daddr);
	/* A later piece of a packet has no header behind its own. */
	if (ip->frag_off & htons(IP_OFFSET))
		return true;
	if (ip->protocol == IPPROTO_ICMP && icmp->type == ICMP_ECHO) {
		icmp->type = ICMP_ECHOREPLY;
		csum_replace2(&icmp->checksum, htons(ICMP_ECHO << 8), htons(ICMP_ECHOREPLY << 8));
	} else if (ip->protocol == IPPROTO_UDP) {
		if (udp->dest == htons(DISCARD))
			return false;
		swap(udp->source, udp->dest);
	}
	return true;
}

static void receive(struct sk_buff *skb)
{
	/* A long packet may lie in several pages, of which the headers alone are looked at. */
	bool answer = skb->len >= ETH_HLEN &&
		      pskb_may_pull(skb, min_t(unsigned int, skb->len, HEADERS));
	struct ethhdr *frame = (void *)skb->data;
	u8 from[ETH_ALEN];

	answer = answer && ether_addr_equal(frame->h_dest, device->dev_addr) &&
		 skb_queue_len(&out) < HELD;
	if (answer && frame->h_proto == htons(ETH_P_IP) &&
	    skb->len >= ETH_HLEN + sizeof(struct iphdr))
		answer = turn_ip((void *)(frame + 1), skb->len - ETH_HLEN);
	if (!answer) {
		consume_skb(skb);
		return;
	}
	ether_addr_copy(from, frame->h_source);
	ether_addr_copy(frame->h_source, frame->h_dest);
	ether_addr_copy(frame->h_dest, from);
	skb->dev = device;
	skb->ip_summed = CHECKSUM_NONE;
	skb_set_queue_mapping(skb, 0);
	__skb_queue_tail(&out, skb);
}

static void idle(void)
{
	dde_transmit(device, &out);
}

const struct dde_top dde_reflector = { .open = open, .receive = receive, .idle = idle };
