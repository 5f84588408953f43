/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "ddekit/random.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

#include "ddekit/log.h"
#include "journal.h"
#include "xorshift.h"

void ddekit_random(void *bytes, size_t len)
{
	unsigned char *at = bytes;

	if (journal_is_on()) {
		xorshift(bytes, len);
		return;
	}
	while (len > 0) {
		ssize_t got = getrandom(at, len, 0);

		if (got < 0 && errno != EINTR)
			ddekit_panic("the host has no random bytes");
		if (got > 0) {
			at += got;
			len -= (size_t)got;
		}
	}
}
