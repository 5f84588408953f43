/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An unmodified driver of Linux, of a network card or a disk, as a program that is run over a
 * recorded device and an input of bytes, and ends: under a fuzzer, or to see one run again.
 *
 * 	dde-e1000e --recording FILE [--input FILE] [--seconds N] [--verbose]
 *
 * It ends with 0 when the driver has closed its device, or has not taken the device; by SIGABRT, or
 * with a report of AddressSanitizer's and 99, where something is wrong; with 98, and where it was,
 * when N seconds have passed.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "../ddekit/fuzz/fuzz.h"
#include "dde_disk.h"
#include "dde_net.h"
#include "dde_options.h"
#include "ddekit/check.h"
#include "ddekit/context.h"
#include "ddekit/device.h"
#include "ddekit/log.h"

#define ARENA (48ul << 20)
/*
 * What the driver has after the input's end, of its own time, until it is told to close its device;
 * ns.
 */
#define AFTERWARDS 2000000000ull
#define HANGS 98

extern const unsigned long dde_stack_size;
void dde_start_kernel(void);

struct ddekit_device *dde_device;

static const struct option names[] = {
	{ "recording", required_argument, NULL, 'r' }, { "input", required_argument, NULL, 'i' },
	{ "seconds", required_argument, NULL, 's' },   { "verbose", no_argument, NULL, 'v' },
	{ 0 },
};

static void usage(void)
{
	fprintf(stderr, "usage: --recording FILE [--input FILE] [--seconds N] [--verbose]\n");
	exit(2);
}

const char *dde_net_access(const uint8_t *mac)
{
	(void)mac;
	return "fuzz";
}

void dde_net_served(const char *driver, const uint8_t *mac)
{
	(void)driver, (void)mac;
}

void dde_net_link(bool up, uint32_t mbits)
{
	(void)up, (void)mbits;
}

const char *dde_block_access(void)
{
	return "fuzz";
}

void dde_block_served(const char *driver, const char *model, uint64_t blocks, uint32_t block_size)
{
	(void)driver, (void)model, (void)blocks, (void)block_size;
}

/* Not to take a device that is broken is no fault. */
void dde_net_failed(const char *why)
{
	ddekit_logf(DDEKIT_NOTE, "%s", why);
	_exit(0);
}

void dde_net_closed(void)
{
	_exit(0);
}

static void hangs(int signal, siginfo_t *info, void *context)
{
	const greg_t *registers = ((const ucontext_t *)context)->uc_mcontext.gregs;

	(void)signal, (void)info;
	fprintf(stderr, "the driver has not come to an end; it was here:\n");
	ddekit_check_print((const void *)registers[REG_RIP], (const void *)registers[REG_RBP]);
	_exit(HANGS);
}

static void start(void *arg)
{
	(void)arg;
	dde_start_kernel();
}

int main(int argc, char **argv)
{
	const struct ddekit_device_options wanted = { .arena = ARENA };
	const struct sigaction action = { .sa_sigaction = hangs, .sa_flags = SA_SIGINFO };
	const char *recording = NULL;
	struct ddekit_ctx *kernel;
	unsigned int seconds = 0;
	int name;

	dde_stand_still(argv);
	ddekit_log_limit(DDEKIT_ERROR);
	while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
		if (name == 'r')
			recording = optarg;
		else if (name == 'i')
			fuzz_input_file(optarg);
		else if (name == 's')
			seconds = (unsigned int)atoi(optarg);
		else if (name == 'v')
			ddekit_log_limit(DDEKIT_NOTE);
		else
			usage();
	}
	if (optind < argc || !recording)
		usage();
	if (!fuzz_load(recording)) {
		fprintf(stderr, "%s: %m\n", recording);
		return 2;
	}
	if (ddekit_dev_open("fuzz", &wanted, &dde_device) < 0) {
		perror("memory for the device");
		return 2;
	}
	sigaction(SIGALRM, &action, NULL);
	alarm(seconds);
	fuzz_on_limit(AFTERWARDS, dde_net_stop);
	kernel = ddekit_ctx_create(dde_stack_size, start, NULL);
	if (!kernel) {
		fprintf(stderr, "no memory for a stack\n");
		return 2;
	}
	ddekit_ctx_switch(kernel);
	return 0;
}
