/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* lwIP as hosted network drivers have it: one thread, no sockets, IPv4, memory of the C library. */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0
#define LWIP_IPV6 0
#define LWIP_DHCP 0
#define LWIP_IGMP 0
#define LWIP_DNS 0
#define LWIP_RAW 0
#define LWIP_STATS 0

#define MEM_ALIGNMENT 8
#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 1
#define LWIP_SUPPORT_CUSTOM_PBUF 1

/* What the card does is said for each packet. */
#define LWIP_CHECKSUM_CTRL_PER_NETIF 1

#define TCP_MSS 1460
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 3
#define TCP_WND (256 * 1024)
#define TCP_SND_BUF (256 * 1024)
#define TCP_SND_QUEUELEN 1024
#define TCP_SNDLOWAT 16384
#define TCP_SNDQUEUELOWAT 64
#define TCP_QUEUE_OOSEQ 1
#define LWIP_TCP_TIMESTAMPS 0

#endif
