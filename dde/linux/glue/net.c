// SPDX-License-Identifier: GPL-2.0-only
/*
 * From the kernel's network card to a card that other processes use, and back: raw frames, above
 * the driver and below any protocol.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_vlan.h>
#include <linux/if_arp.h>
#include <linux/kthread.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>

#include "dde.h"
#include "dde_net.h"
#include "dde_top.h"

struct dde_net_options dde_net_options;
/* Whoever has the frames; NULL for other processes. */
static const struct dde_top *top;

static struct net_device *device;
static struct ddekit_card *card;
static bool full;
/* A thread of the kernel does what may sleep. */
static struct work_struct filter_work, filtered_work, link_work;
static struct delayed_work missed_work;
static struct wish {
	bool promiscuous, all_groups;
	unsigned int unicast_count, group_count;
	u8 unicast[16][ETH_ALEN];
	u8 groups[64][ETH_ALEN];
} wish, set;
static bool stopping;

static rx_handler_result_t receive(struct sk_buff **pskb)
{
	struct sk_buff *skb = *pskb;

	/* The class has frames from their headers on. */
	skb_push(skb, ETH_HLEN);
	if (skb_vlan_tag_present(skb))
		skb = __vlan_hwaccel_push_inside(skb);
	if (skb && top) {
		top->receive(skb);
		return RX_HANDLER_CONSUMED;
	}
	/* The card is open before it is served. */
	if (skb && card && skb_linearize(skb) == 0) {
		ddekit_card_receive(card, skb->data, skb->len,
				    skb->ip_summed == CHECKSUM_UNNECESSARY);
		schedule_delayed_work(&missed_work, HZ / 10);
	}
	if (skb)
		consume_skb(skb);
	return RX_HANDLER_CONSUMED;
}

/* What is to be sent: a packet that is being filled in, and those that are whole. */
static struct sk_buff *sending;
static struct sk_buff_head pending, out;

static enum ddekit_sending begin(const struct ddekit_frame *frame, void **room)
{
	struct netdev_queue *queue = netdev_get_tx_queue(device, 0);

	/* It is lost, as on a wire that is cut, and not held until there is one. */
	if (!netif_running(device) || !netif_carrier_ok(device))
		return DDEKIT_LOST;
	full = !skb_queue_empty(&out) || netif_xmit_frozen_or_stopped(queue);
	sending = full ? NULL : alloc_skb(frame->len + LL_RESERVED_SPACE(device), GFP_ATOMIC);
	if (!sending) {
		full = true;
		return DDEKIT_LATER;
	}
	skb_reserve(sending, LL_RESERVED_SPACE(device));
	*room = skb_put(sending, frame->len);
	if (frame->checksum_start) {
		skb_set_network_header(sending, ETH_HLEN);
		/* False if the sum lies outside of the packet, which is checked before. */
		skb_partial_csum_set(sending, frame->checksum_start, frame->checksum_offset);
		sending->protocol = frame->ipv6 ? htons(ETH_P_IPV6) : htons(ETH_P_IP);
	}
	if (frame->segment) {
		skb_shinfo(sending)->gso_size = frame->segment;
		skb_shinfo(sending)->gso_type = frame->ipv6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4;
		skb_shinfo(sending)->gso_segs = DIV_ROUND_UP(frame->len - frame->headers,
							     frame->segment);
	}
	return DDEKIT_HERE;
}

static void end(bool whole)
{
	if (!whole) {
		kfree_skb(sending);
		return;
	}
	sending->dev = device;
	skb_reset_mac_header(sending);
	skb_set_queue_mapping(sending, 0);
	__skb_queue_tail(&pending, sending);
}

/* The driver has them with one write to its doorbell. */
static void flush(void)
{
	skb_queue_splice_tail_init(&pending, &out);
	full = !dde_transmit(device, &out);
}

/*
 * The driver wakes its queue when descriptors have come back; nobody tells, so that this is looked
 * at after interrupts.
 */
void dde_glue_idle(void)
{
	if (top && device)
		top->idle();
	if (card)
		ddekit_card_flush(card);
	if (!card || !full || netif_tx_queue_stopped(netdev_get_tx_queue(device, 0)))
		return;
	full = !dde_transmit(device, &out);
	if (!full)
		ddekit_card_resume(card);
}

bool dde_glue_busy(void)
{
	bool polled = device && dde_poll_once(device);

	if (polled)
		dde_glue_idle();
	if (polled && card && !full)
		ddekit_card_resume(card);
	return polled;
}

static void apply_filter(struct work_struct *work)
{
	struct wish next = wish;

	rtnl_lock();
	for (unsigned int i = 0; i < next.unicast_count; i++)
		dev_uc_add(device, next.unicast[i]);
	for (unsigned int i = 0; i < next.group_count; i++)
		dev_mc_add(device, next.groups[i]);
	for (unsigned int i = 0; i < set.unicast_count; i++)
		dev_uc_del(device, set.unicast[i]);
	for (unsigned int i = 0; i < set.group_count; i++)
		dev_mc_del(device, set.groups[i]);
	if (next.promiscuous != set.promiscuous)
		dev_set_promiscuity(device, next.promiscuous ? 1 : -1);
	if (next.all_groups != set.all_groups)
		dev_set_allmulti(device, next.all_groups ? 1 : -1);
	set = next;
	rtnl_unlock();
	schedule_work(&filtered_work);
}

/*
 * Some drivers leave it to a work of their own, which was queued before this one and holds the
 * lock.
 */
static void end_filter(struct work_struct *work)
{
	rtnl_lock();
	rtnl_unlock();
	ddekit_card_filtered(card);
}

static void filter(bool promiscuous, bool all_groups, const uint8_t (*unicast)[6],
		   size_t unicast_count, const uint8_t (*groups)[6], size_t group_count)
{
	/* More addresses than are kept: everything of the kind. */
	wish = (struct wish){
		.promiscuous = promiscuous || unicast_count > ARRAY_SIZE(wish.unicast),
		.all_groups = all_groups || group_count > ARRAY_SIZE(wish.groups),
	};
	if (!wish.promiscuous) {
		for (size_t i = 0; i < unicast_count; i++)
			if (!ether_addr_equal_unaligned(unicast[i], device->dev_addr))
				ether_addr_copy(wish.unicast[wish.unicast_count++], unicast[i]);
	}
	if (!wish.all_groups) {
		wish.group_count = group_count;
		memcpy(wish.groups, groups, group_count * ETH_ALEN);
	}
	schedule_work(&filter_work);
}

static void show_link(struct work_struct *work)
{
	struct ethtool_link_ksettings settings = { 0 };
	bool up = netif_carrier_ok(device);
	u32 mbits = 0;
	bool duplex = true;

	rtnl_lock();
	if (up && __ethtool_get_link_ksettings(device, &settings) == 0) {
		mbits = settings.base.speed == SPEED_UNKNOWN ? 0 : settings.base.speed;
		duplex = settings.base.duplex != DUPLEX_HALF;
	}
	rtnl_unlock();
	if (card)
		ddekit_card_link(card, up, mbits, duplex);
	if (top && top->link)
		top->link(up);
	dde_net_link(up, mbits);
	if (up && full)
		dde_glue_idle();
}

/* Who loses frames for want of room receives others: it is asked a moment after it has. */
static void show_missed(struct work_struct *work)
{
	struct rtnl_link_stats64 stats;

	dev_get_stats(device, &stats);
	ddekit_card_missed(card, stats.rx_missed_errors);
}

static int notified(struct notifier_block *block, unsigned long event, void *data)
{
	if (netdev_notifier_info_to_dev(data) == device &&
	    (event == NETDEV_CHANGE || event == NETDEV_UP))
		schedule_work(&link_work);
	return NOTIFY_DONE;
}

static struct notifier_block notifier = { .notifier_call = notified };

static struct net_device *find(void)
{
	struct net_device *found = NULL, *each;

	rtnl_lock();
	for_each_netdev(&init_net, each)
		if (each->type == ARPHRD_ETHER && each->dev.parent) {
			found = each;
			break;
		}
	rtnl_unlock();
	return found;
}

/*
 * What the initialisation of sockets does, of which there are none, and start_kernel() for name
 * spaces.
 */
static int __init prepare(void)
{
	skb_init();
	net_ns_init();
	return 0;
}
core_initcall(prepare);

static const struct ddekit_card_ops operations = { .begin = begin, .end = end, .flush = flush,
						   .stop = dde_net_stop, .ended = dde_net_failed,
						   .filter = filter };

static const struct dde_top *choose_top(void)
{
	switch (dde_net_options.above) {
	case DDE_NET_REFLECTOR:
		return &dde_reflector;
	case DDE_NET_STACK:
		return &dde_stack;
	default:
		return NULL;
	}
}

/* In the thread that has called the drivers' initialisation. */
void dde_run(void)
{
	struct ddekit_card_info info;
	struct net_device *found = find();
	const char *access;
	int result = 0;

	if (!found) {
		dde_net_failed(dde_pci_misfit());
		return;
	}
	rtnl_lock();
	if (dde_net_options.mtu)
		result = dev_set_mtu(found, dde_net_options.mtu);
	rtnl_unlock();
	if (result < 0) {
		dde_net_failed("the driver does not take this MTU");
		return;
	}
	top = choose_top();
	if (top)
		top->open(found);
	device = found;
	INIT_WORK(&filter_work, apply_filter);
	INIT_WORK(&filtered_work, end_filter);
	INIT_WORK(&link_work, show_link);
	INIT_DELAYED_WORK(&missed_work, show_missed);
	info = (struct ddekit_card_info){
		.model = dev_driver_string(device->dev.parent),
		.mtu_min = max(device->min_mtu, 68u),
		.mtu_max = device->mtu,
		.checksums = device->features & NETIF_F_HW_CSUM,
	};
	if (info.checksums && (device->features & NETIF_F_TSO) && (device->features & NETIF_F_TSO6))
		info.segmented_max = min(device->gso_max_size, 32768u);
	__skb_queue_head_init(&pending);
	__skb_queue_head_init(&out);
	ether_addr_copy(info.mac, device->dev_addr);
	rtnl_lock();
	result = netdev_rx_handler_register(device, receive, NULL);
	if (result == 0)
		result = dev_open(device, NULL);
	rtnl_unlock();
	if (result < 0) {
		dde_net_failed("the driver cannot open the card");
		return;
	}
	dde_poll_begin(device);
	access = top ? NULL : dde_net_access(info.mac);
	if (access)
		result = ddekit_card_serve(&info, &operations, access, &card);
	else if (!top)
		result = ddekit_card_lend(&info, &operations, dde_device, &card);
	if (result < 0) {
		dde_net_failed(ddekit_error());
		return;
	}
	register_netdevice_notifier(&notifier);
	dde_net_served(info.model, info.mac);
	schedule_work(&link_work);
	/* The driver lives until the process is told to end. */
	set_current_state(TASK_UNINTERRUPTIBLE);
	while (!READ_ONCE(stopping)) {
		schedule_timeout(HZ / 10);
		set_current_state(TASK_UNINTERRUPTIBLE);
	}
	__set_current_state(TASK_RUNNING);
	/*
	 * To close the device sleeps, and frames come meanwhile: the card outlives what calls it.
	 */
	unregister_netdevice_notifier(&notifier);
	rtnl_lock();
	dev_close(device);
	rtnl_unlock();
	cancel_delayed_work_sync(&missed_work);
	cancel_work_sync(&link_work);
	cancel_work_sync(&filter_work);
	cancel_work_sync(&filtered_work);
	ddekit_card_close(card);
	card = NULL;
	dde_net_closed();
}

void dde_net_stop(void)
{
	stopping = true;
}
