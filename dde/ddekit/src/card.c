/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/card.h"

#include <errno.h>
#include <ring3.h>
#include <stdlib.h>
#include <string.h>

#include "ddekit/context.h"
#include "ddekit/event.h"
#include "ddekit/log.h"
#include "device.h"
#include "journal.h"

/* Frames that are handed on together. */
#define BATCH 64
/* Addresses of a filter, in a recording. */
#define ADDRESSES 65536u
/* Turns of the server's before the device is heard again. */
#define TURNS 8

struct ddekit_card {
	struct ring3_card *card;
	struct ddekit_card_ops ops;
	struct ddekit_watch *watch;
	/* It has a server in this loop, for which there is something. */
	bool served, due;
	/* Has that take a turn soon. */
	struct ddekit_timer soon;
	/* Of the filter, where there is a recording. */
	void *addresses[2];
};

/* A call on the host's stack: the server is the host's. */
struct call {
	struct ddekit_card *card;
	const char *access;
	int result;
};

static void call_serve(void *arg)
{
	struct call *call = arg;

	call->result = journal_is_replayed() ? 0 : ring3_card_serve(call->card->card, call->access);
	call->result = journal_answer(call->result, NULL, 0);
}

static void call_turn(void *arg)
{
	struct call *call = arg;

	call->result = journal_is_replayed() ? 0 : ring3_card_turn(call->card->card);
	call->result = journal_answer(call->result, NULL, 0);
}

static void call_close(void *arg)
{
	ring3_card_close(arg);
}

/* The next frame that is to be sent: 1 if there is one. */
static int next_frame(const struct ddekit_card *card, struct ring3_card_frame *next)
{
	*next = (struct ring3_card_frame){ 0 };
	return journal_answer(journal_is_replayed() ? 0 : ring3_card_next(card->card, next), next,
			      sizeof(*next));
}

/* Its bytes: false if they are gone. */
static bool take_frame(const struct ddekit_card *card, void *room, uint32_t len)
{
	const int taken = journal_is_replayed() ? 0 : ring3_card_take(card->card, room, len);

	return journal_answer(taken, room, len) == (int)len;
}

/* `count` addresses, which lie at `there`, or in `kept` where there is a recording. */
static const void *take_addresses(const void *there, size_t count, void **kept)
{
	const size_t len = count * 6;

	if (!journal_is_on() || count == 0)
		return there;
	if (count > ADDRESSES)
		journal_refuse("more addresses than a card has");
	free(*kept);
	*kept = malloc(len);
	if (!*kept)
		ddekit_panic("no memory for a card's addresses");
	if (!journal_is_replayed())
		memcpy(*kept, there, len);
	journal_answer(0, *kept, len);
	return *kept;
}

/* The filter, if another one is wanted: 1 if it is. */
static int next_filter(struct ddekit_card *card, struct ring3_card_filter *filter)
{
	int result;

	*filter = (struct ring3_card_filter){ 0 };
	result = journal_answer(journal_is_replayed() ? 0 : ring3_card_filter(card->card, filter),
				filter, sizeof(*filter));
	if (result == 1) {
		filter->unicast = take_addresses(filter->unicast, filter->unicast_count,
						 &card->addresses[0]);
		filter->groups = take_addresses(filter->groups, filter->group_count,
						&card->addresses[1]);
	}
	return result;
}

/*
 * Gives the driver what is to be sent, up to a batch; true if there may be more that it has room
 * for.
 */
static bool pump_batch(struct ddekit_card *card)
{
	enum ddekit_sending answer = DDEKIT_HERE;
	unsigned int count = 0;

	while (count < BATCH && answer != DDEKIT_LATER) {
		struct ring3_card_frame next;
		struct ddekit_frame frame;
		void *room = NULL;
		const int found = next_frame(card, &next);

		if (found == -ESHUTDOWN)
			card->ops.stop();
		else if (found < 0)
			card->ops.ended(ring3_error());
		if (found <= 0)
			break;
		frame = (struct ddekit_frame){
			.len = next.len,
			.checksum_start = next.checksum_start,
			.checksum_offset = next.checksum_offset,
			.segment = next.segment,
			.headers = next.headers,
			.ipv6 = next.ipv6,
		};
		answer = card->ops.begin(&frame, &room);
		if (answer == DDEKIT_LOST)
			ring3_card_lose(card->card);
		if (answer == DDEKIT_HERE) {
			/* A user whose memory is gone meanwhile has lost what was in it. */
			card->ops.end(take_frame(card, room, frame.len));
			count++;
		}
	}
	if (count > 0) {
		card->ops.flush();
		/* Their buffers are to go back. */
		card->due = card->served;
	}
	return count == BATCH;
}

/* Gives the driver what is wanted of it. */
static void pump(struct ddekit_card *card)
{
	struct ring3_card_filter filter;

	if (next_filter(card, &filter) == 1)
		card->ops.filter(filter.promiscuous, filter.all_groups, filter.unicast,
				 filter.unicast_count, filter.groups, filter.group_count);
	while (pump_batch(card))
		;
}

/* The server takes what was received and gives what is to be sent, until neither has anything. */
static void serve(struct ddekit_card *card)
{
	for (int turns = 0; turns < TURNS; turns++) {
		struct call call = { .card = card };

		card->due = false;
		if (card->served)
			ddekit_ctx_call_host(call_turn, &call);
		if (call.result < 0)
			card->ops.ended(ring3_error());
		pump(card);
		if (call.result <= 0 && !card->due)
			return;
	}
	/* Its users are fast, and the device is not to wait for them. */
	ddekit_ev_timer_set(&card->soon, 1);
}

static void serve_soon(void *arg)
{
	serve(arg);
}

/* What was said of the card is heard by its users at the next turn. */
static void say(struct ddekit_card *card)
{
	if (card->served)
		ddekit_ev_timer_set(&card->soon, 1);
}

static void wanted(void *arg)
{
	struct ddekit_card *card = arg;

	if (!journal_is_replayed())
		ring3_card_heard(card->card);
	serve(card);
}

/* Makes the card. */
static int make(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		struct ddekit_card **card)
{
	struct ring3_card_info said = { .model = info->model, .mtu_min = info->mtu_min,
					.mtu_max = info->mtu_max, .checksums = info->checksums,
					.segmented_max = info->segmented_max };
	struct ddekit_card *made = calloc(1, sizeof(*made));
	int result;

	if (!made)
		return -ENOMEM;
	made->ops = *ops;
	memcpy(said.mac, info->mac, sizeof(said.mac));
	made->soon = (struct ddekit_timer){ .function = serve_soon, .arg = made };
	result = ring3_card_new(&said, &made->card);
	if (result < 0)
		free(made);
	else
		*card = made;
	return result;
}

/* Hears what is wanted of the card and hands it out, unless nobody has got it. */
static int give(struct ddekit_card *made, int result, struct ddekit_card **card)
{
	if (result == 0) {
		made->watch = ddekit_ev_watch(ring3_card_fd(made->card), wanted, made);
		result = made->watch ? 0 : -errno;
	}
	if (result < 0)
		ddekit_card_close(made);
	else
		*card = made;
	return result;
}

int ddekit_card_serve(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		      const char *access, struct ddekit_card **card)
{
	struct call call = { .access = access };
	const int result = make(info, ops, &call.card);

	if (result < 0)
		return result;
	ddekit_ctx_call_host(call_serve, &call);
	call.card->served = call.result == 0;
	return give(call.card, call.result, card);
}

int ddekit_card_lend(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		     const struct ddekit_device *device, struct ddekit_card **card)
{
	struct ddekit_card *made;
	const int result = make(info, ops, &made);

	return result < 0 ? result : give(made, ring3_card_lend(made->card, device->device), card);
}

void ddekit_card_filtered(struct ddekit_card *card)
{
	ring3_card_filtered(card->card);
	say(card);
}

void ddekit_card_close(struct ddekit_card *card)
{
	if (!card)
		return;
	ddekit_ev_unwatch(card->watch);
	ddekit_ev_timer_cancel(&card->soon);
	ddekit_ctx_call_host(call_close, card->card);
	free(card->addresses[0]);
	free(card->addresses[1]);
	free(card);
}

void ddekit_card_link(struct ddekit_card *card, bool up, uint32_t mbits, bool full_duplex)
{
	ring3_card_set_link(card->card, up, mbits, full_duplex);
	say(card);
}

void ddekit_card_missed(struct ddekit_card *card, uint64_t frames)
{
	ring3_card_set_missed(card->card, frames);
	say(card);
}

bool ddekit_card_receive(struct ddekit_card *card, const void *frame, size_t len, bool checked)
{
	card->due = card->served;
	return journal_answer(journal_is_replayed() ? 0 :
			      ring3_card_receive(card->card, frame, len, checked), NULL, 0) == 0;
}

void ddekit_card_flush(struct ddekit_card *card)
{
	if (card->due)
		serve(card);
}

void ddekit_card_resume(struct ddekit_card *card)
{
	serve(card);
}
