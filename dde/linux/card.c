/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A network card's unmodified driver of Linux as a program: it drives one device and serves the card to other processes.
 *
 *	dde-e1000e --device qtest:e1000e --socket /run/ring3/card [--terms memory=32M] [--arena MIB] [--unprotected] [--verbose] [--with-parent]
 *
 * It says what it does on standard output, a JSON object a line.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "dde_net.h"
#include "ddekit/context.h"
#include "ddekit/device.h"
#include "ddekit/event.h"
#include "ddekit/log.h"

#define MIB (1ul << 20)
#define PATH_ROOM 1024

extern const unsigned long dde_stack_size;
void dde_start_kernel(void);

struct ddekit_device *dde_device;

static struct options {
	const char *device, *socket, *terms;
	unsigned long arena;
	bool unprotected, verbose, with_parent;
} options = { .arena = 64 };

static const struct option names[] = {
	{ "device", required_argument, NULL, 'd' }, { "socket", required_argument, NULL, 's' },
	{ "terms", required_argument, NULL, 't' },  { "arena", required_argument, NULL, 'a' },
	{ "unprotected", no_argument, NULL, 'u' },  { "verbose", no_argument, NULL, 'v' },
	{ "with-parent", no_argument, NULL, 'p' },  { 0 },
};

static void usage(void)
{
	fprintf(stderr, "usage: --device URI --socket PATH [--terms KEY=VALUE,...] [--arena MIB] [--unprotected] [--verbose] [--with-parent]\n");
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
			options.with_parent = true;
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

static void stop(void *arg)
{
	struct signalfd_siginfo said;
	const int *fd = arg;

	if (read(*fd, &said, sizeof(said)) == (ssize_t)sizeof(said))
		dde_net_stop();
}

/* Before any thread is started, so that the signals come here alone. */
static void take_signals(void)
{
	static int fd;
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0 || !ddekit_ev_watch(fd, stop, &fd)) {
		perror("signals");
		exit(1);
	}
	if (options.with_parent)
		prctl(PR_SET_PDEATHSIG, SIGTERM);
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
