// SPDX-License-Identifier: GPL-2.0-only
/* Packets to the driver, without a queue before it. */
#include <linux/netdevice.h>

#include "dde_top.h"

bool dde_transmit(struct net_device *device, struct sk_buff_head *list)
{
	struct netdev_queue *queue = netdev_get_tx_queue(device, 0);
	struct sk_buff *skb;

	if (skb_queue_empty(list))
		return true;
	/* They are lost, as on a wire that is cut, and not held until there is one. */
	if (!netif_running(device) || !netif_carrier_ok(device)) {
		device->stats.tx_carrier_errors += skb_queue_len(list);
		__skb_queue_purge(list);
		return true;
	}
	local_bh_disable();
	HARD_TX_LOCK(device, queue, 0);
	while (!netif_xmit_frozen_or_stopped(queue) && (skb = __skb_dequeue(list))) {
		/* Other answers than OK and BUSY are of drivers that have freed it. */
		if (!dev_xmit_complete(netdev_start_xmit(skb, device, queue,
							 !skb_queue_empty(list)))) {
			__skb_queue_head(list, skb);
			break;
		}
	}
	HARD_TX_UNLOCK(device, queue);
	local_bh_enable();
	return skb_queue_empty(list);
}
