/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A network card whose driver is in this process, for other processes: the way out of it. */
#ifndef DDEKIT_CARD_H
#define DDEKIT_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ddekit_card;
struct ddekit_device;

/**
 * struct ddekit_frame - a frame that is to be sent, without its check sequence @len: its bytes
 * @checksum_start: the card puts in the checksum that begins at this byte; 0 if there is none to
 * make @checksum_offset: where that belongs, from its first byte on; the sum of what is not in the
 * frame stands there @segment: the card cuts it into frames with so many bytes of payload; 0 if not
 * @headers: bytes of the headers of each of them @ipv6: they are of IPv6
 */
struct ddekit_frame {
	uint32_t len;
	uint16_t checksum_start, checksum_offset;
	uint16_t segment, headers;
	bool ipv6;
};

/**
 * enum ddekit_sending - what becomes of a frame
 * @DDEKIT_HERE: it is copied to the room that was given
 * @DDEKIT_LATER: the driver has no room: it is asked again after ddekit_card_resume()
 * @DDEKIT_LOST: it is not sent, as on a wire that is cut
 */
enum ddekit_sending { DDEKIT_HERE, DDEKIT_LATER, DDEKIT_LOST };

/**
 * struct ddekit_card_ops - what the event loop calls @begin: a frame is to be sent: where its bytes
 * shall be @end: they are there, or, if that is false, could not be read: it is not sent then
 * @flush: what has ended so far goes to the driver, as nothing follows at once @stop: whoever has
 * leased the device wants the driver to end: it closes the card, then the device; NULL for a card
 * that is served @ended: its users cannot be served any more, for this reason; does not come back
 * @filter: what the card shall let through, beside what is for its own address and for everybody:
 * each address has 6 bytes
 */
struct ddekit_card_ops {
	enum ddekit_sending (*begin)(const struct ddekit_frame *frame, void **room);
	void (*end)(bool whole);
	void (*flush)(void);
	void (*stop)(void);
	void (*ended)(const char *why);
	void (*filter)(bool promiscuous, bool all_groups, const uint8_t (*unicast)[6],
		       size_t unicast_count, const uint8_t (*groups)[6], size_t group_count);
};

/**
 * struct ddekit_card_info - what the card is @model: its maker's name for it @mac: its address
 * @mtu_min: the least packet without its Ethernet header, bytes @mtu_max: the largest @checksums:
 * it makes those of TCP and UDP, and says which of them it has found right @segmented_max: most
 * bytes of a packet of TCP that it cuts into frames, headers included; 0 if it cuts none
 */
struct ddekit_card_info {
	const char *model;
	uint8_t mac[6];
	uint32_t mtu_min;
	uint32_t mtu_max;
	bool checksums;
	uint32_t segmented_max;
};

/**
 * ddekit_card_serve() - serve the card at @access, PATH[,KEY=VALUE]... as ring3 serve net takes it
 *
 * Return: 0 or a negative errno; ddekit_error() says more.
 */
int ddekit_card_serve(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		      const char *access, struct ddekit_card **card);

/**
 * ddekit_card_lend() - give the card of @device, which was opened as lease:N, to whoever has leased
 * it, who makes an interface of it
 *
 * Return: 0 or a negative errno; ddekit_error() says more.
 */
int ddekit_card_lend(const struct ddekit_card_info *info, const struct ddekit_card_ops *ops,
		     const struct ddekit_device *device, struct ddekit_card **card);

/** ddekit_card_filtered() - the filter that was asked for last is set; its users wait for that */
void ddekit_card_filtered(struct ddekit_card *card);

/** ddekit_card_close() - take the card from its users; NULL is ignored */
void ddekit_card_close(struct ddekit_card *card);

/**
 * ddekit_card_missed() - say how many frames the device has lost for want of room, since it was
 * opened
 */
void ddekit_card_missed(struct ddekit_card *card, uint64_t frames);

/** ddekit_card_link() - say how the link is; a speed of 0 Mbit/s is one that is not known */
void ddekit_card_link(struct ddekit_card *card, bool up, uint32_t mbits, bool full_duplex);

/**
 * ddekit_card_receive() - a frame has come, without its check sequence, @checked if the card has
 * found its checksum right; false if its users have no room for it
 */
bool ddekit_card_receive(struct ddekit_card *card, const void *frame, size_t len, bool checked);

/**
 * ddekit_card_flush() - all frames that have come were received: its users have them from now on
 */
void ddekit_card_flush(struct ddekit_card *card);

/**
 * ddekit_card_resume() - the driver has room again, or somebody polls: what is to be sent is looked
 * for, without a system call
 */
void ddekit_card_resume(struct ddekit_card *card);

#endif
