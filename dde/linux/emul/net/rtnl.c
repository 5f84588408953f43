// SPDX-License-Identifier: GPL-2.0-only
/* The lock of network configuration; its messages to user space have no receivers. */
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>

void netdev_run_todo(void);

static DEFINE_MUTEX(rtnl_mutex);

void rtnl_lock(void)
{
	mutex_lock(&rtnl_mutex);
}

int rtnl_lock_killable(void)
{
	mutex_lock(&rtnl_mutex);
	return 0;
}

/* What waits for the lock to be given up is done now: devices that were unregistered go. */
void rtnl_unlock(void)
{
	netdev_run_todo();
}

void __rtnl_unlock(void)
{
	mutex_unlock(&rtnl_mutex);
}

int rtnl_trylock(void)
{
	return mutex_trylock(&rtnl_mutex);
}

int rtnl_is_locked(void)
{
	return mutex_is_locked(&rtnl_mutex);
}

bool refcount_dec_and_rtnl_lock(refcount_t *count)
{
	return refcount_dec_and_mutex_lock(count, &rtnl_mutex);
}

void rtnl_kfree_skbs(struct sk_buff *head, struct sk_buff *tail)
{
	while (head) {
		struct sk_buff *next = head == tail ? NULL : head->next;

		kfree_skb(head);
		head = next;
	}
}

void rtmsg_ifinfo(int type, struct net_device *dev, unsigned int change, gfp_t gfp, u32 port,
		  const struct nlmsghdr *header)
{
}

void rtmsg_ifinfo_newnet(int type, struct net_device *dev, unsigned int change, gfp_t gfp,
			 int *nsid, int index)
{
}

struct sk_buff *rtmsg_ifinfo_build_skb(int type, struct net_device *dev, unsigned int change,
				       u32 event, gfp_t gfp, int *nsid, int index, u32 port,
				       const struct nlmsghdr *header)
{
	return NULL;
}

void rtmsg_ifinfo_send(struct sk_buff *skb, struct net_device *dev, gfp_t gfp, u32 port,
		       const struct nlmsghdr *header)
{
}
