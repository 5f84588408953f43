/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A network card whose driver is in this process, for other processes: the way out of it. */
#ifndef DDEKIT_CARD_H
#define DDEKIT_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ddekit_card;

/**
 * struct ddekit_card_ops - what the event loop calls
 * @send: a frame is to be sent, without its check sequence; false if the driver has no room: it is asked again after ddekit_card_resume()
 * @ended: its users cannot be served any more, for this reason; does not come back
 * @filter: what the card shall let through, beside what is for its own address and for everybody: each address has 6 bytes
 */
struct ddekit_card_ops {
	bool (*send)(const void *frame, size_t len);
	void (*ended)(const char *why);
	void (*filter)(bool promiscuous, bool all_groups, const uint8_t (*unicast)[6], size_t unicast_count,
		       const uint8_t (*groups)[6], size_t group_count);
};

/**
 * struct ddekit_card_info - what the card is
 * @model: its maker's name for it
 * @mac: its address
 * @mtu_min: the least packet without its Ethernet header, bytes
 * @mtu_max: the largest
 */
struct ddekit_card_info {
	const char *model;
	uint8_t mac[6];
	uint32_t mtu_min;
	uint32_t mtu_max;
};

/**
 * ddekit_card_serve() - serve the card at @access, PATH[,KEY=VALUE]... as ring3 serve net takes it
 *
 * Return: 0 or a negative errno; ddekit_error() says more.
 */
int ddekit_card_serve(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops, const char *access,
		      struct ddekit_card **card);

/** ddekit_card_filtered() - the filter that was asked for last is set; its users wait for that */
void ddekit_card_filtered(struct ddekit_card *card);

/** ddekit_card_close() - take the card from its users; NULL is ignored */
void ddekit_card_close(struct ddekit_card *card);

/** ddekit_card_link() - say how the link is; a speed of 0 Mbit/s is one that is not known */
void ddekit_card_link(struct ddekit_card *card, bool up, uint32_t mbits, bool full_duplex);

/** ddekit_card_receive() - a frame has come, without its check sequence; false if its users have no room for it */
bool ddekit_card_receive(struct ddekit_card *card, const void *frame, size_t len);

/** ddekit_card_resume() - the driver has room again */
void ddekit_card_resume(struct ddekit_card *card);

#endif
