// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pieces of pages, as sockets have them: the driver receives into such. Of sockets nothing else is
 * here.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/skbuff.h>
#include <net/sock.h>

/* Pages that are taken at once, if there are so many together. */
#define ORDER 3

bool skb_page_frag_refill(unsigned int size, struct page_frag *piece, gfp_t flags)
{
	if (piece->page) {
		/* Nobody else has what was cut from it before. */
		if (page_ref_count(piece->page) == 1)
			piece->offset = 0;
		if (piece->offset + size <= piece->size)
			return true;
		put_page(piece->page);
	}
	piece->offset = 0;
	piece->size = PAGE_SIZE << ORDER;
	piece->page = alloc_pages((flags & ~__GFP_DIRECT_RECLAIM) | __GFP_COMP | __GFP_NOWARN |
				  __GFP_NORETRY, ORDER);
	if (!piece->page) {
		piece->size = PAGE_SIZE;
		piece->page = alloc_page(flags);
	}
	return piece->page != NULL;
}
