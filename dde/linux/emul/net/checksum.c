// SPDX-License-Identifier: GPL-2.0-only
/* The sum of the Internet's protocols, which the architecture has in assembly. [RFC 1071] */
#include <linux/unaligned.h>
#include <net/checksum.h>

__wsum csum_partial(const void *bytes, int len, __wsum sum)
{
	const u8 *at = bytes;
	u64 total = (__force u32)sum;

	for (; len >= 4; len -= 4, at += 4)
		total += get_unaligned((const u32 *)at);
	if (len & 2) {
		total += get_unaligned((const u16 *)at);
		at += 2;
	}
	if (len & 1)
		total += *at;
	total = (total & 0xffffffff) + (total >> 32);
	total = (total & 0xffffffff) + (total >> 32);
	return (__force __wsum)(u32)total;
}

__sum16 ip_compute_csum(const void *bytes, int len)
{
	return csum_fold(csum_partial(bytes, len, 0));
}
