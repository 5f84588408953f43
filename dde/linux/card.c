/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An unmodified driver of Linux as a program: it drives one device, and serves the card or the disk
 * that this is to other processes.
 *
 * 	dde-e1000e --device qtest:e1000e --socket /run/ring3/card [--terms memory=32M] [--arena MIB]
 * 	[--unprotected] [--verbose] [--with-parent PID]
 *
 * Or it has the card to itself, in place of --socket: --reflect sends back what comes, --lwip
 * 10.0.0.2/24 is a host with that address. Either way, --dma copy copies each buffer of the
 * driver's, --poll US polls for so long after a packet, and --no-msix takes MSI-X away. A sound
 * card plays --play FILE.wav, and the program ends.
 *
 * It says what it does on standard output, a JSON object a line. With --device lease:3 it is a
 * driver process of ring3d's, which gives it its device and takes its card or its disk.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dde_disk.h"
#include "dde_net.h"
#include "dde_options.h"
#include "dde_sound.h"
#include "dde_stack.h"
#include "ddekit/context.h"
#include "ddekit/device.h"
#include "ddekit/event.h"
#include "ddekit/log.h"

#define MIB (1ul << 20)
#define PATH_ROOM 1024
/* Seconds that a driver has to close its card. */
#define LAST_WORDS 10
/*
 * The same while it is recorded or replayed, where each access compares all pages that the device
 * reaches.
 */
#define LAST_WORDS_JOURNALED 50
/* The same where the device is gone: there is nothing to close, and users wait to be told. */
#define LAST_WORDS_GONE 2
/* Exit code of a driver whose device was wanted back. */
#define WANTED_BACK 3

extern const unsigned long dde_stack_size;
void dde_start_kernel(void);

struct ddekit_device *dde_device;

static struct options {
	const char *device, *socket, *terms;
	unsigned long arena, parent;
	bool unprotected, verbose, leased, plays;
} options = { .arena = 64 };

static const struct option names[] = {
	{ "device", required_argument, NULL, 'd' }, { "socket", required_argument, NULL, 's' },
	{ "terms", required_argument, NULL, 't' },  { "arena", required_argument, NULL, 'a' },
	{ "unprotected", no_argument, NULL, 'u' },  { "verbose", no_argument, NULL, 'v' },
	{ "with-parent", required_argument, NULL, 'p' },  { "reflect", no_argument, NULL, 'r' },
	{ "lwip", required_argument, NULL, 'l' },   { "dma", required_argument, NULL, 'm' },
	{ "poll", required_argument, NULL, 'o' },   { "no-msix", no_argument, NULL, 'x' },
	{ "mtu", required_argument, NULL, 'b' },     { "play", required_argument, NULL, 'w' },
	{ 0 },
};

static void usage(void)
{
	fprintf(stderr, "usage: --device URI (--socket PATH [--terms KEY=VALUE,...] | --reflect | "
		"--lwip ADDRESS/BITS | --play FILE.wav) [--dma copy|zero-copy] [--poll US] "
		"[--no-msix] [--mtu BYTES]\n"
		"       [--arena MIB] [--unprotected] [--verbose] [--with-parent PID]\n");
	exit(2);
}

/* What a program of disks has not: there is nobody above a card then. */
struct dde_net_options dde_net_options __attribute__((weak));
void dde_stack_free(void *packet) __attribute__((weak));

bool __attribute__((weak)) dde_lwip_parse(const char *text)
{
	(void)text;
	return false;
}

const char *__attribute__((weak)) dde_wave_open(const char *path)
{
	(void)path;
	return "this is for sound cards, which the driver does not drive";
}

static void wrong(const char *option, const char *value, const char *wanted)
{
	fprintf(stderr, "--%s %s: %s\n", option, value, wanted);
	exit(2);
}

/* Of a hosted network card, beside what any program has; false if it is none of these. */
static bool parse_net(int name)
{
	unsigned long us;
	char *end;

	if (strchr("rlb", name) && !dde_stack_free) {
		fprintf(stderr, "--reflect, --lwip and --mtu are for network cards\n");
		exit(2);
	}
	switch (name) {
	case 'r':
		dde_net_options.above = DDE_NET_REFLECTOR;
		return true;
	case 'l':
		dde_net_options.above = DDE_NET_STACK;
		if (!dde_lwip_parse(optarg))
			wrong("lwip", optarg,
			      "an address and the bits of its network: 10.0.0.2/24");
		return true;
	case 'm':
		dde_options.dma_copies = strcmp(optarg, "copy") == 0;
		if (!dde_options.dma_copies && strcmp(optarg, "zero-copy") != 0)
			wrong("dma", optarg, "copy or zero-copy");
		return true;
	case 'o':
		us = strtoul(optarg, &end, 10);
		if (*end != '\0' || us > 1000000)
			wrong("poll", optarg, "0 to 1000000 microseconds");
		dde_options.poll_ns = us * 1000;
		return true;
	case 'b':
		dde_net_options.mtu = strtoul(optarg, &end, 10);
		if (*end != '\0' || dde_net_options.mtu < 68 || dde_net_options.mtu > 9000)
			wrong("mtu", optarg, "68 to 9000 bytes");
		return true;
	case 'x':
		dde_options.no_msix = true;
		return true;
	default:
		return false;
	}
}

static void parse(int argc, char **argv)
{
	const char *why;
	char *end;
	int name;

	while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (name) {
		case 'd':
			options.device = optarg;
			break;
		case 's':
			options.socket = optarg;
			break;
		case 't':
			options.terms = optarg;
			break;
		case 'a':
			options.arena = strtoul(optarg, &end, 10);
			if (*end != '\0' || options.arena < 16 || options.arena > 2048) {
				fprintf(stderr, "--arena %s: 16 to 2048 MiB\n", optarg);
				exit(2);
			}
			break;
		case 'u':
			options.unprotected = true;
			break;
		case 'v':
			options.verbose = true;
			break;
		case 'p':
			options.parent = strtoul(optarg, &end, 10);
			if (*end != '\0' || options.parent == 0) {
				fprintf(stderr, "--with-parent %s: a process's number\n", optarg);
				exit(2);
			}
			break;
		case 'w':
			why = dde_wave_open(optarg);
			if (why)
				wrong("play", optarg, why);
			options.plays = true;
			break;
		default:
			if (!parse_net(name))
				usage();
		}
	}
	if (optind < argc || !options.device)
		usage();
	options.leased = strncmp(options.device, "lease:", strlen("lease:")) == 0;
	/* One of these has the device. */
	if ((options.socket != NULL) + options.leased + options.plays +
	    (dde_net_options.above != DDE_NET_CARD) != 1)
		usage();
}

static void format_mac(char text[18], const uint8_t *mac)
{
	snprintf(text, 18, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4],
		 mac[5]);
}

/* The card's own address is its one user's, unless the terms say otherwise. */
const char *dde_net_access(const uint8_t *mac)
{
	static char access[PATH_ROOM];
	char text[18];
	int len;

	if (options.leased)
		return NULL;
	format_mac(text, mac);
	if (options.terms)
		len = snprintf(access, sizeof(access), "%s,%s", options.socket, options.terms);
	else
		len = snprintf(access, sizeof(access), "%s,mac=%s", options.socket, text);
	if (len < 0 || (size_t)len >= sizeof(access))
		dde_net_failed("the socket's path is too long");
	return access;
}

void dde_net_served(const char *driver, const uint8_t *mac)
{
	char text[18];

	if (options.leased)
		return;
	format_mac(text, mac);
	printf("{\"served\":true,\"driver\":\"%s\",\"mac\":\"%s\",\"pid\":%d}\n", driver, text,
	       getpid());
	fflush(stdout);
}

void dde_net_link(bool up, uint32_t mbits)
{
	if (options.leased)
		return;
	printf("{\"link\":%s,\"mbits\":%u}\n", up ? "true" : "false", mbits);
	fflush(stdout);
}

void dde_net_failed(const char *why)
{
	fprintf(stderr, "%s: %s\n", options.device, why);
	ddekit_dev_close(dde_device);
	exit(1);
}

/* The platform has asked for the device. */
static bool wanted_back;

void dde_net_closed(void)
{
	const char *verdict;

	ddekit_dev_close(dde_device);
	verdict = ddekit_dev_verdict();
	if (verdict) {
		fprintf(stderr, "%s\n", verdict);
		exit(1);
	}
	exit(wanted_back ? WANTED_BACK : 0);
}

/* All ones where each function has its maker's number. [PCI 6.1] */
static bool is_gone(void)
{
	return (uint16_t)ddekit_cfg_read(dde_device, 0, sizeof(uint16_t)) == 0xffff;
}

static void give_up(int signal)
{
	(void)signal;
	_exit(WANTED_BACK);
}

/*
 * Drivers may wait for their device without end, as those of virtio do for what their control queue
 * and their reset answer: they end with the reason all the same.
 */
static void give_back(void *arg)
{
	struct sigaction action = { .sa_handler = give_up, .sa_flags = SA_ONSTACK };
	bool gone = is_gone();

	(void)arg;
	wanted_back = true;
	if (gone)
		fprintf(stderr, "%s: the device is gone; whoever uses it loses it\n",
			options.device);
	else
		fprintf(stderr, "%s: the system wants the device back; whoever uses it loses it\n",
			options.device);
	/* It is a known signal and a function: this does not fail. */
	sigaction(SIGALRM, &action, NULL);
	alarm(gone ? LAST_WORDS_GONE : LAST_WORDS);
	dde_net_stop();
}

const char *dde_block_access(void)
{
	static char access[PATH_ROOM];
	int len;

	if (options.leased)
		return NULL;
	len = snprintf(access, sizeof(access), "%s%s%s", options.socket, options.terms ? "," : "",
		       options.terms ? options.terms : "");

	if (len < 0 || (size_t)len >= sizeof(access))
		dde_net_failed("the socket's path is too long");
	return access;
}

/* What a device calls itself, as JSON has text: what is not printed of ASCII is left out. */
static void say_text(const char *text)
{
	for (; *text; text++)
		if (*text >= ' ' && *text <= '~')
			printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
}

void dde_block_served(const char *driver, const char *model, uint64_t blocks, uint32_t block_size)
{
	if (options.leased)
		return;
	printf("{\"served\":true,\"driver\":\"%s\",\"disk\":\"", driver);
	say_text(model);
	printf("\",\"blocks\":%" PRIu64 ",\"block_size\":%"
	       PRIu32 ",\"pid\":%d}\n", blocks, block_size, getpid());
	fflush(stdout);
}

/* What the event loop hears of signals by. */
static int told = -1;

static void stop(void *arg)
{
	uint64_t count;

	(void)arg;
	/* In a replay nobody has told it now. */
	if (read(told, &count, sizeof(count)) == (ssize_t)sizeof(count) || dde_options.journaled)
		dde_net_stop();
}

/*
 * Whoever hangs, in a probe or in what closes the card, never looks at the descriptor: SIGALRM ends
 * him.
 */
static void tell(int signal)
{
	static volatile sig_atomic_t warned;
	const int kept = errno;
	const uint64_t one = 1;

	(void)signal;
	if (!warned)
		alarm(dde_options.journaled ? LAST_WORDS_JOURNALED : LAST_WORDS);
	warned = 1;
	/* Full means that it is readable. */
	if (write(told, &one, sizeof(one)) < 0)
		errno = kept;
}

/* On a stack of its own, as those of the kernel's threads are small. */
static void take_signals(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	static unsigned char room[64 << 10];
	const stack_t stack = { .ss_sp = room, .ss_size = sizeof(room) };
	struct sigaction action = { .sa_handler = tell, .sa_flags = SA_RESTART | SA_ONSTACK };
	sigset_t none;
	bool taken;

	/* Who has started this may hold signals back, and what he starts then does, too. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	told = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	taken = told >= 0 && ddekit_ev_watch(told, stop, NULL) && sigaltstack(&stack, NULL) == 0;
	for (size_t i = 0; taken && i < sizeof(signals) / sizeof(signals[0]); i++)
		taken = sigaction(signals[i], &action, NULL) == 0;
	/* Who reads what this says may go before it. */
	action.sa_handler = SIG_IGN;
	if (!taken || sigaction(SIGPIPE, &action, NULL) != 0) {
		perror("signals");
		exit(1);
	}
}

/* Ends with whoever has started this, who may have ended before that was asked for. */
static void follow_parent(void)
{
	if (options.parent == 0)
		return;
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || (unsigned long)getppid() != options.parent) {
		fprintf(stderr, "--with-parent %lu: this is not its child, or it has ended\n",
			options.parent);
		exit(1);
	}
}

static void start(void *arg)
{
	(void)arg;
	dde_start_kernel();
}

int main(int argc, char **argv)
{
	struct ddekit_device_options wanted = { 0 };
	struct ddekit_ctx *kernel;

	parse(argc, argv);
	if (strstr(options.device, ",record=") ||
	    strncmp(options.device, "replay:", strlen("replay:")) == 0) {
		if (dde_options.poll_ns > 0) {
			fprintf(stderr, "%s: a device that is recorded or replayed is not polled: "
				"leave --poll out\n", options.device);
			return 1;
		}
		/* What a driver leaves in memory that the device has may be pointers. */
		dde_stand_still(argv);
	}
	ddekit_log_limit(options.verbose ? DDEKIT_NOTE : DDEKIT_WARN);
	/*
	 * Who leases the device closes what was opened before, and ends this process by other ways.
	 */
	if (options.leased)
		signal(SIGPIPE, SIG_IGN);
	else
		take_signals();
	follow_parent();
	wanted.arena = options.arena * MIB;
	/* Drivers of old devices want addresses of 32 bits. */
	wanted.below = 1ull << 32;
	wanted.unprotected = options.unprotected;
	if (ddekit_dev_open(options.device, &wanted, &dde_device) < 0) {
		fprintf(stderr, "%s: %s\n", options.device, ddekit_error());
		return 1;
	}
	dde_options.journaled = ddekit_dev_journaled();
	dde_options.dma_copies |= dde_options.journaled;
	dde_two_memories = dde_options.journaled;
	/* Of a device that somebody else holds, that hears of it. */
	if (!options.leased)
		ddekit_dev_wanted_back(dde_device, give_back, NULL);
	kernel = ddekit_ctx_create(dde_stack_size, start, NULL);
	if (!kernel) {
		fprintf(stderr, "no memory for a stack\n");
		return 1;
	}
	ddekit_ctx_switch(kernel);
	return 0;
}
