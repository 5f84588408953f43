/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * lwIP in the process of a hosted driver: a host of its own, which answers echo requests of ICMP,
 * echoes (port 7) and takes (9) UDP and TCP, and sends TCP without end (19).
 *
 * A received packet is lwIP's without a copy: its description (struct pbuf) lies in the room before
 * the frame, so that lwIP may also write its headers there and answer in place.
 */
#include <lwip/etharp.h>
#include <lwip/inet_chksum.h>
#include <lwip/init.h>
#include <lwip/ip.h>
#include <lwip/ip4_frag.h>
#include <lwip/netif.h>
#include <lwip/pbuf.h>
#include <lwip/priv/tcp_priv.h>
#include <lwip/tcp.h>
#include <lwip/timeouts.h>
#include <lwip/udp.h>
#include <netif/ethernet.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dde_stack.h"
#include "ddekit/log.h"
#include "ddekit/random.h"
#include "ddekit/time.h"

/* Services that every host once had. [RFC 862, 863, 864] */
#define ECHO 7
#define DISCARD 9
#define CHARGEN 19
#define MILLISECOND 1000000u
#define ETHERNET 14
#define LEAST_IP 20
/* lwIP puts options into no segment with data. */
#define HEADERS (ETHERNET + LEAST_IP + TCP_HLEN)
#define TCP_SUM 16
#define UDP_SUM 6
/*
 * Segments in what a card gets to cut: it must fit into an IP packet, and twice into the window of
 * who does not scale his.
 */
#define SEGMENTS 22

/* A received packet, in the room before its frame. */
struct received {
	struct pbuf_custom pbuf;
	void *packet;
};
_Static_assert(sizeof(struct received) <= DDE_STACK_ROOM,
	       "a description does not fit before a frame");

static struct netif interface;
static ip4_addr_t address, mask;
static u16_t mtu;
static bool card_sums, card_segments;
static struct dde_lwip_counts counts;
/* What is sent without end. */
static unsigned char text[TCP_MSS * SEGMENTS];

u32_t sys_now(void)
{
	return (u32_t)(ddekit_now_coarse() / MILLISECOND);
}

uint32_t dde_lwip_random(void)
{
	uint32_t number;

	ddekit_random(&number, sizeof(number));
	return number;
}

bool dde_lwip_parse(const char *words)
{
	char ip[16];
	const char *slash = strchr(words, '/');
	char *end;
	unsigned long bits = slash ? strtoul(slash + 1, &end, 10) : 0;
	size_t len = slash ? (size_t)(slash - words) : sizeof(ip);

	if (len >= sizeof(ip) || slash[1] == '\0' || *end != '\0' || bits < 1 || bits > 30)
		return false;
	memcpy(ip, words, len);
	ip[len] = '\0';
	ip4_addr_set_u32(&mask, lwip_htonl(~0u << (32 - bits)));
	return ip4addr_aton(ip, &address) && !ip4_addr_isany_val(address);
}

static void received_free(struct pbuf *pbuf)
{
	struct received *received = (struct received *)pbuf;

	if (received->packet)
		dde_stack_free(received->packet);
}

/* Whether all of a packet is where it came, and was not sent yet. */
static bool is_received(const struct pbuf *pbuf)
{
	const struct received *received = (const struct received *)pbuf;

	return (pbuf->flags & PBUF_FLAG_IS_CUSTOM) &&
	       received->pbuf.custom_free_function == received_free && received->packet;
}

/*
 * Where the sum of a segment or datagram lies in its frame, for the card to put in; 0 for none.
 * What stands there is the sum of what is not in the frame.
 */
static u16_t leave_sum(unsigned char *frame, u16_t len, u16_t *offset)
{
	const unsigned int headers = (frame[ETHERNET] & 15u) * 4;
	const unsigned int protocol = frame[ETHERNET + 9];
	unsigned int start = ETHERNET + headers, words;

	/* A piece of a packet has no sum of its own. */
	if (frame[12] != 8 || frame[13] != 0 || headers < LEAST_IP ||
	    (frame[ETHERNET + 6] & 0x3f) || frame[ETHERNET + 7] ||
	    (protocol != IP_PROTO_TCP && protocol != IP_PROTO_UDP))
		return 0;
	*offset = protocol == IP_PROTO_TCP ? TCP_SUM : UDP_SUM;
	if (start + *offset + 2u > len)
		return 0;
	words = protocol +
		(((unsigned int)frame[ETHERNET + 2] << 8 | frame[ETHERNET + 3]) - headers);
	for (unsigned int at = ETHERNET + 12; at < ETHERNET + LEAST_IP; at += 2)
		words += (unsigned int)frame[at] << 8 | frame[at + 1];
	words = (words & 0xffff) + (words >> 16);
	words = (words & 0xffff) + (words >> 16);
	frame[start + *offset] = (unsigned char)(words >> 8);
	frame[start + *offset + 1] = (unsigned char)words;
	return (u16_t)start;
}

/*
 * Bytes of a segment with these headers that its receiver has. lwIP sends a segment again as a
 * whole, which of so many frames might never come as a whole: what has come needs not be in it.
 */
static u16_t acknowledged(const unsigned char *headers)
{
	const struct ip_hdr *ip = (const struct ip_hdr *)(headers + ETHERNET);
	const struct tcp_hdr *tcp = (const struct tcp_hdr *)(headers + ETHERNET + LEAST_IP);
	const struct tcp_pcb *pcb = tcp_active_pcbs;
	const s32_t len = lwip_ntohs(IPH_LEN(ip)) - LEAST_IP - TCP_HLEN;
	s32_t known;

	while (pcb && (lwip_htons(pcb->local_port) != tcp->src || lwip_htons(pcb->remote_port) !=
		       tcp->dest || ip4_addr_get_u32(ip_2_ip4(&pcb->remote_ip)) != ip->dest.addr))
		pcb = pcb->next;
	known = pcb ? (s32_t)(pcb->lastack - lwip_ntohl(tcp->seqno)) : 0;
	return known > 0 && known < len ? (u16_t)known : 0;
}

/*
 * Whether it is several segments to its receiver, whatever the MTU is: no connection has longer
 * ones.
 */
static bool is_to_be_cut(const struct pbuf *pbuf)
{
	return pbuf->tot_len > HEADERS + TCP_MSS && IPH_PROTO((const struct ip_hdr *)(
		(const unsigned char *)pbuf->payload + ETHERNET)) == IP_PROTO_TCP;
}

/* The segment in this frame of @len bytes begins so many bytes later than its headers say. */
static void begin_later(unsigned char *frame, u16_t len, u16_t bytes)
{
	struct ip_hdr *ip = (struct ip_hdr *)(frame + ETHERNET);
	struct tcp_hdr *tcp = (struct tcp_hdr *)(frame + ETHERNET + LEAST_IP);

	tcp->seqno = lwip_htonl(lwip_ntohl(tcp->seqno) + bytes);
	IPH_LEN_SET(ip, lwip_htons(len - ETHERNET));
	IPH_CHKSUM_SET(ip, 0);
	IPH_CHKSUM_SET(ip, inet_chksum(ip, LEAST_IP));
}

/* The last frame that only acknowledges, while it waits for the driver; NULL for none. */
static unsigned char *waiting;

/*
 * Whether it is a segment without data and options that says nothing but how far its sender has
 * come.
 */
static bool only_acknowledges(const struct pbuf *pbuf)
{
	const unsigned char *frame = pbuf->payload;
	const struct tcp_hdr *tcp = (const struct tcp_hdr *)(frame + ETHERNET + LEAST_IP);

	return pbuf->len == HEADERS && pbuf->tot_len == HEADERS && frame[12] == 8 &&
	       frame[13] == 0 &&
	       IPH_PROTO((const struct ip_hdr *)(frame + ETHERNET)) == IP_PROTO_TCP &&
	       TCPH_FLAGS(tcp) == TCP_ACK;
}

/*
 * Whether @later says more than @earlier of the same connection. The same once more says that
 * something is missing, and has to be heard as often as it is said. [RFC 5681 3.2]
 */
static bool supersedes(const unsigned char *later, const unsigned char *earlier)
{
	const struct tcp_hdr *now = (const struct tcp_hdr *)(later + ETHERNET + LEAST_IP),
		*before = (const struct tcp_hdr *)(earlier + ETHERNET + LEAST_IP);

	/* Addresses of both ends, ports, and what was sent: no data lie between. */
	return memcmp(later, earlier, ETHERNET) == 0 &&
	       memcmp(later + ETHERNET + 12, earlier + ETHERNET + 12, 12) == 0 &&
	       now->seqno == before->seqno &&
	       (s32_t)(lwip_ntohl(now->ackno) - lwip_ntohl(before->ackno)) > 0;
}

void dde_lwip_flushed(void)
{
	waiting = NULL;
}

/*
 * A frame goes out: the packet that it came in, if it is all of one and nobody else has it;
 * otherwise a copy.
 */
static err_t output(struct netif *netif, struct pbuf *pbuf)
{
	void *packet, *data;
	u16_t start = 0, offset = 0, known = 0, len;
	const bool cut = is_to_be_cut(pbuf), only = only_acknowledges(pbuf);

	(void)netif;
	if (is_received(pbuf) && !pbuf->next && pbuf->ref == 1) {
		struct received *received = (struct received *)pbuf;

		/* It is an answer in place: lwIP has seen to its sums, or it has none. */
		dde_stack_return(received->packet, pbuf->payload, pbuf->len);
		received->packet = NULL;
		return ERR_OK;
	}
	if (only && waiting && supersedes(pbuf->payload, waiting)) {
		/*
		 * What has come together is acknowledged at once, as by the kernel, which puts it
		 * together first (GRO).
		 */
		memcpy(waiting, pbuf->payload, HEADERS);
		if (card_sums)
			leave_sum(waiting, HEADERS, &offset);
		return ERR_OK;
	}
	if (cut)
		known = acknowledged(pbuf->payload);
	len = pbuf->tot_len - known;
	packet = dde_stack_frame(len, &data);
	if (!packet)
		return ERR_MEM;
	pbuf_copy_partial(pbuf, data, known ? HEADERS : len, 0);
	if (known) {
		pbuf_copy_partial(pbuf, (unsigned char *)data + HEADERS, len - HEADERS,
				  HEADERS + known);
		begin_later(data, len, known);
	}
	if (card_sums)
		start = leave_sum(data, len, &offset);
	if (dde_stack_send(packet, start, offset, cut && len > HEADERS + TCP_MSS ? TCP_MSS : 0) &&
	    only)
		waiting = data;
	return ERR_OK;
}

/*
 * What is longer than the wire takes: segments of TCP are the card's to cut, and the rest is
 * fragmented here, as lwIP was told of no MTU.
 */
static err_t output_ip(struct netif *netif, struct pbuf *pbuf, const ip4_addr_t *to)
{
	err_t result;

	if (pbuf->tot_len <= mtu || IPH_PROTO((struct ip_hdr *)pbuf->payload) == IP_PROTO_TCP)
		return etharp_output(netif, pbuf, to);
	netif->mtu = mtu;
	result = ip4_frag(pbuf, netif, to);
	netif->mtu = 0;
	return result;
}

static err_t begin(struct netif *netif)
{
	netif->name[0] = 'd';
	netif->name[1] = 'e';
	netif->output = card_segments ? output_ip : etharp_output;
	netif->linkoutput = output;
	netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP;
	netif->hwaddr_len = ETH_HWADDR_LEN;
	return ERR_OK;
}

/* Which sums are lwIP's: those that the card neither has made nor will make. */
static void choose_sums(bool checked)
{
	const u16_t check = checked ? NETIF_CHECKSUM_CHECK_TCP | NETIF_CHECKSUM_CHECK_UDP : 0;
	const u16_t make = card_sums ? NETIF_CHECKSUM_GEN_TCP | NETIF_CHECKSUM_GEN_UDP : 0;

	NETIF_SET_CHECKSUM_CTRL(&interface, (u16_t)(NETIF_CHECKSUM_ENABLE_ALL & ~(check | make)));
}

/* ---- services ---- */

static void echo_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *pbuf, const ip_addr_t *from,
			  u16_t port)
{
	(void)arg;
	counts.udp_packets++;
	counts.udp_bytes += pbuf->tot_len;
	udp_sendto(pcb, pbuf, from, port);
	pbuf_free(pbuf);
}

static void take_datagram(void *arg, struct udp_pcb *pcb, struct pbuf *pbuf, const ip_addr_t *from,
			  u16_t port)
{
	(void)arg, (void)pcb, (void)from, (void)port;
	counts.udp_packets++;
	counts.udp_bytes += pbuf->tot_len;
	pbuf_free(pbuf);
}

static err_t close_connection(struct tcp_pcb *pcb)
{
	if (tcp_close(pcb) == ERR_OK)
		return ERR_OK;
	tcp_abort(pcb);
	return ERR_ABRT;
}

static err_t take_bytes(void *arg, struct tcp_pcb *pcb, struct pbuf *pbuf, err_t error)
{
	(void)arg, (void)error;
	if (!pbuf)
		return close_connection(pcb);
	counts.tcp_received += pbuf->tot_len;
	tcp_recved(pcb, pbuf->tot_len);
	pbuf_free(pbuf);
	return ERR_OK;
}

static err_t echo_bytes(void *arg, struct tcp_pcb *pcb, struct pbuf *pbuf, err_t error)
{
	(void)arg, (void)error;
	if (!pbuf)
		return close_connection(pcb);
	/* Who does not take its echo has to wait: it is given again. */
	if (pbuf->tot_len > tcp_sndbuf(pcb))
		return ERR_MEM;
	for (struct pbuf *piece = pbuf; piece; piece = piece->next)
		if (tcp_write(pcb, piece->payload, piece->len, TCP_WRITE_FLAG_COPY) != ERR_OK) {
			tcp_abort(pcb);
			return ERR_ABRT;
		}
	counts.tcp_received += pbuf->tot_len;
	counts.tcp_sent += pbuf->tot_len;
	tcp_recved(pcb, pbuf->tot_len);
	pbuf_free(pbuf);
	tcp_output(pcb);
	return ERR_OK;
}

/*
 * From now on what this connection sends in one go is one segment to lwIP, for the card to cut.
 * lwIP never lets less out than a segment, and its shortest congestion window is one: so not before
 * the window has grown to two, and not with a peer who takes shorter frames than all others.
 */
static void let_card_cut(struct tcp_pcb *pcb)
{
	if (card_segments && pcb->mss == TCP_MSS && pcb->cwnd >= 2 * sizeof(text))
		pcb->mss = sizeof(text);
}

static err_t send_more(void *arg, struct tcp_pcb *pcb, u16_t acknowledged)
{
	(void)arg, (void)acknowledged;
	let_card_cut(pcb);
	/* What is sent never changes, so that nobody copies it before the packet. */
	while (tcp_sndbuf(pcb) >= sizeof(text) && tcp_write(pcb, text, sizeof(text), 0) == ERR_OK)
		counts.tcp_sent += sizeof(text);
	tcp_output(pcb);
	return ERR_OK;
}

static err_t accept(void *arg, struct tcp_pcb *pcb, err_t error)
{
	const unsigned int port = (unsigned int)(uintptr_t)arg;

	if (error != ERR_OK || !pcb)
		return ERR_VAL;
	tcp_recv(pcb, port == ECHO ? echo_bytes : take_bytes);
	if (port != CHARGEN)
		return ERR_OK;
	tcp_sent(pcb, send_more);
	return send_more(NULL, pcb, 0);
}

static void serve_udp(u16_t port, udp_recv_fn function)
{
	struct udp_pcb *pcb = udp_new();

	if (!pcb || udp_bind(pcb, IP_ADDR_ANY, port) != ERR_OK)
		ddekit_panic("lwIP: no memory for UDP's port %u", port);
	udp_recv(pcb, function, NULL);
}

static void serve_tcp(u16_t port)
{
	struct tcp_pcb *pcb = tcp_new();

	if (pcb && tcp_bind(pcb, IP_ADDR_ANY, port) == ERR_OK)
		pcb = tcp_listen(pcb);
	if (!pcb)
		ddekit_panic("lwIP: no memory for TCP's port %u", port);
	tcp_arg(pcb, (void *)(uintptr_t)port);
	tcp_accept(pcb, accept);
}

/* ---- what the glue calls ---- */

void dde_lwip_open(const uint8_t mac[6], uint16_t longest, bool sums, bool segments)
{
	static const ip4_addr_t none;

	lwip_init();
	mtu = longest;
	card_sums = sums;
	/* A segment of a shorter MTU is not TCP_MSS long. */
	card_segments = segments && sums && mtu >= TCP_MSS + 40;
	if (!netif_add(&interface, &address, &mask, &none, NULL, begin, ethernet_input))
		ddekit_panic("lwIP: it takes no interface");
	memcpy(interface.hwaddr, mac, ETH_HWADDR_LEN);
	interface.mtu = card_segments ? 0 : mtu;
	choose_sums(false);
	netif_set_default(&interface);
	netif_set_up(&interface);
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (unsigned char)(' ' + i % 95);
	serve_udp(ECHO, echo_datagram);
	serve_udp(DISCARD, take_datagram);
	serve_tcp(ECHO);
	serve_tcp(DISCARD);
	serve_tcp(CHARGEN);
}

void dde_lwip_link(bool up)
{
	if (up)
		netif_set_link_up(&interface);
	else
		netif_set_link_down(&interface);
}

void dde_lwip_input(void *packet, void *room, void *data, uint16_t len, bool checked)
{
	struct received *received = room;
	struct pbuf *pbuf;

	received->pbuf.custom_free_function = received_free;
	received->packet = packet;
	pbuf = pbuf_alloced_custom(PBUF_RAW, len, PBUF_RAM, &received->pbuf, data, len);
	choose_sums(checked);
	if (interface.input(pbuf, &interface) != ERR_OK)
		pbuf_free(pbuf);
}

void dde_lwip_tick(void)
{
	sys_check_timeouts();
}

struct dde_lwip_counts dde_lwip_count(void)
{
	return counts;
}
