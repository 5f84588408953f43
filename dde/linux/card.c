/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A network card's unmodified driver of Linux as a program: it drives one device and serves the card to other processes.
 *
 *	dde-e1000e --device qtest:e1000e --socket /run/ring3/card [--terms memory=32M] [--arena MIB] [--unprotected] [--verbose] [--with-parent PID]
 *
 * It says what it does on standard output, a JSON object a line.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "dde_net.h"
#include "ddekit/context.h"
#include "ddekit/device.h"
#include "ddekit/event.h"
#include "ddekit/log.h"

#define MIB (1ul << 20)
#define PATH_ROOM 1024
/* Seconds that a driver has to close its card. */
#define LAST_WORDS 10

extern const unsigned long dde_stack_size;
void dde_start_kernel(void);

struct ddekit_device *dde_device;

static struct options {
	const char *device, *socket, *terms;
	unsigned long arena, parent;
	bool unprotected, verbose;
} options = { .arena = 64 };

static const struct option names[] = {
	{ "device", required_argument, NULL, 'd' }, { "socket", required_argument, NULL, 's' },
	{ "terms", required_argument, NULL, 't' },  { "arena", required_argument, NULL, 'a' },
	{ "unprotected", no_argument, NULL, 'u' },  { "verbose", no_argument, NULL, 'v' },
	{ "with-parent", required_argument, NULL, 'p' },  { 0 },
};

static void usage(void)
{
	fprintf(stderr, "usage: --device URI --socket PATH [--terms KEY=VALUE,...] [--arena MIB] [--unprotected] [--verbose] [--with-parent PID]\n");
	exit(2);
}

static void parse(int argc, char **argv)
{
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
		default:
			usage();
		}
	}
	if (optind < argc || !options.device || !options.socket)
		usage();
}

static void format_mac(char text[18], const uint8_t *mac)
{
	snprintf(text, 18, "%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
}

/* The card's own address is its one user's, unless the terms say otherwise. */
const char *dde_net_access(const uint8_t *mac)
{
	static char access[PATH_ROOM];
	char text[18];
	int len;

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

	format_mac(text, mac);
	printf("{\"served\":true,\"driver\":\"%s\",\"mac\":\"%s\",\"pid\":%d}\n", driver, text, getpid());
	fflush(stdout);
}

void dde_net_link(bool up, uint32_t mbits)
{
	printf("{\"link\":%s,\"mbits\":%u}\n", up ? "true" : "false", mbits);
	fflush(stdout);
}

void dde_net_failed(const char *why)
{
	fprintf(stderr, "%s: %s\n", options.device, why);
	ddekit_dev_close(dde_device);
	exit(1);
}

void dde_net_closed(void)
{
	ddekit_dev_close(dde_device);
	exit(0);
}

/* What the event loop hears of signals by. */
static int told = -1;

static void stop(void *arg)
{
	uint64_t count;

	(void)arg;
	if (read(told, &count, sizeof(count)) == (ssize_t)sizeof(count))
		dde_net_stop();
}

/* Whoever hangs, in a probe or in what closes the card, never looks at the descriptor: SIGALRM, which nobody takes, ends him. */
static void tell(int signal)
{
	static volatile sig_atomic_t warned;
	const int kept = errno;
	const uint64_t one = 1;

	(void)signal;
	if (!warned)
		alarm(LAST_WORDS);
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
	bool taken;

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
		fprintf(stderr, "--with-parent %lu: this is not its child, or it has ended\n", options.parent);
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
	ddekit_log_limit(options.verbose ? DDEKIT_NOTE : DDEKIT_WARN);
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
	kernel = ddekit_ctx_create(dde_stack_size, start, NULL);
	if (!kernel) {
		fprintf(stderr, "no memory for a stack\n");
		return 1;
	}
	ddekit_ctx_switch(kernel);
	return 0;
}
