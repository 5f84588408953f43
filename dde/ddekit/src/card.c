/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/card.h"

#include <errno.h>
#include <ring3.h>
#include <stdlib.h>
#include <string.h>

#include "ddekit/event.h"

/* An Ethernet header with a tag before the largest packet there is. */
#define FRAME (9000 + 18)

struct ddekit_card {
	struct ring3_card *card;
	struct ddekit_card_ops ops;
	struct ddekit_watch *watch;
	/* A frame that the driver had no room for. */
	size_t held;
	unsigned char frame[FRAME];
};

/* Gives the driver what is to be sent, until it has no room or there is nothing. */
static void pump(struct ddekit_card *card)
{
	for (;;) {
		if (card->held == 0) {
			const int len = ring3_card_take(card->card, card->frame, sizeof(card->frame));

			if (len == 0)
				return;
			if (len == -EPIPE) {
				card->ops.ended(ring3_error());
				return;
			}
			if (len < 0)
				continue;
			card->held = (size_t)len;
		}
		if (!card->ops.send(card->frame, card->held))
			return;
		card->held = 0;
	}
}

static void wanted(void *arg)
{
	struct ddekit_card *card = arg;
	struct ring3_card_filter filter;

	ring3_card_heard(card->card);
	if (ring3_card_filter(card->card, &filter) == 1)
		card->ops.filter(filter.promiscuous, filter.all_groups, filter.unicast, filter.unicast_count, filter.groups,
				 filter.group_count);
	pump(card);
}

int ddekit_card_serve(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops, const char *access,
		      struct ddekit_card **card)
{
	struct ring3_card_info said = { .model = info->model, .mtu_min = info->mtu_min, .mtu_max = info->mtu_max };
	struct ddekit_card *made = calloc(1, sizeof(*made));
	int result;

	if (!made)
		return -ENOMEM;
	made->ops = *ops;
	memcpy(said.mac, info->mac, sizeof(said.mac));
	result = ring3_card_new(&said, &made->card);
	if (result == 0) {
		made->watch = ddekit_ev_watch(ring3_card_fd(made->card), wanted, made);
		result = made->watch ? ring3_card_serve(made->card, access) : -errno;
	}
	if (result < 0) {
		ddekit_card_close(made);
		return result;
	}
	*card = made;
	return 0;
}

void ddekit_card_filtered(struct ddekit_card *card)
{
	ring3_card_filtered(card->card);
}

void ddekit_card_close(struct ddekit_card *card)
{
	if (!card)
		return;
	ddekit_ev_unwatch(card->watch);
	ring3_card_close(card->card);
	free(card);
}

void ddekit_card_link(struct ddekit_card *card, bool up, uint32_t mbits, bool full_duplex)
{
	ring3_card_set_link(card->card, up, mbits, full_duplex);
}

bool ddekit_card_receive(struct ddekit_card *card, const void *frame, size_t len)
{
	return ring3_card_receive(card->card, frame, len) == 0;
}

void ddekit_card_resume(struct ddekit_card *card)
{
	pump(card);
}
