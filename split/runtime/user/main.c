// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A user half: attaches to its driver and runs upcalls, each in a thread.
 *
 * An upcall may call the kernel, which may call up again before it returns. So one thread is always
 * kept waiting, up to a limit; beyond it a caller gets the entry's error when its time is over.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "split.h"

#define THREADS 32
#define STACK (256UL << 10) /* of a thread; the kernel's have 16 KiB */
#define NOBODY 65534
#define PROMPT 6000UL /* tries, of 10 ms */

int split_device = -1;
static atomic_int waiting, threads;

void split_log(const char *format, ...)
{
	char text[1200];
	int length;
	va_list list;

	va_start(list, format);
	length = snprintf(text, 64, "%s user half: ", split_driver.name);
	vsnprintf(text + length, sizeof(text) - 66, format, list);
	va_end(list);
	length = (int)strlen(text);
	if (text[length - 1] != '\n')
		text[length++] = '\n';
	/* In one piece, whatever other threads say. */
	if (write(2, text, (size_t)length) < 0)
		return;
}

static void *serve(void *unused);

static void keep_one_waiting(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (atomic_load(&waiting) > 0 || atomic_load(&threads) >= THREADS)
		return;
	atomic_fetch_add(&threads, 1);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, serve, NULL) != 0)
		atomic_fetch_sub(&threads, 1);
	pthread_attr_destroy(&attributes);
}

/* Whether the entry came to its end: one that was given up fails. */
static int run(struct split_frame *frame, __s64 *result)
{
	unsigned long arguments[SPLIT_ARGUMENTS];
	const struct split_message *message = (const struct split_message *)frame->message;
	volatile int done = 0;

	split_frame = frame;
	if (setjmp(frame->abandon) == 0) {
		split_unpack(frame);
		for (unsigned int i = 0; i < frame->entry->nparameters; i++)
			arguments[i] = frame->entry->parameters[i].kind == SPLIT_DATA ?
				       message->arguments[i] :
				       (unsigned long)split_pointer(frame, message->arguments[i]);
		*result = split_runners[frame->entry - split_driver.entries](arguments);
		split_repack(frame);
		done = 1;
	}
	split_frame = NULL;
	split_release(frame);
	return done;
}

static void *serve(void *unused)
{
	/*
	 * Zeroed, for the kernel writes it, and who looks for what was never written sees nothing
	 * of that.
	 */
	struct split_frame frame = { .message = calloc(1, SPLIT_MESSAGE_MAX) };
	struct split_next next = { .buffer = (unsigned long)frame.message,
				   .size = SPLIT_MESSAGE_MAX };

	if (!frame.message)
		abort();
	for (;;) {
		int error;

		atomic_fetch_add(&waiting, 1);
		error = ioctl(split_device, SPLIT_IOC_NEXT, &next) < 0 ? errno : 0;
		atomic_fetch_sub(&waiting, 1);
		/* At once: other threads hear the same at the same time. */
		if (error == ENODEV) {
			split_log("the driver is unloaded");
			_exit(0);
		}
		if (error == EINTR || error == EAGAIN) {
			next.frame = 0;
			continue;
		}
		if (error || next.entry >= split_driver.nentries) {
			split_log("waiting for upcalls: %s", strerror(error));
			_exit(1);
		}
		keep_one_waiting();
		frame.id = next.frame;
		frame.entry = &split_driver.entries[next.entry];
		if (getenv("SPLIT_TRACE"))
			split_log("upcall %s", frame.entry->name);
		next.failed = !run(&frame, &next.result);
	}
	return unused;
}

/*
 * Says where it dies, for `addr2line -e`, and dies: what it has changed since its last call is
 * lost, as the kernel believes.
 */
static void fault(int number, siginfo_t *info, void *context)
{
	const ucontext_t *at = context;

	split_log("%s at address %p, code at %#llx, in %s", strsignal(number), info->si_addr,
		  (unsigned long long)at->uc_mcontext.gregs[REG_RIP],
		  split_frame ? split_frame->entry->name : "no upcall");
	/* SA_RESETHAND: the instruction faults again, and the parent sees the signal. */
}

static void watch_faults(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };
	struct sigaction action = { .sa_sigaction = fault,
				    .sa_flags = (int)(SA_SIGINFO | SA_RESETHAND) };

	for (unsigned int i = 0; i < sizeof(signals) / sizeof(*signals); i++)
		sigaction(signals[i], &action, NULL);
}

/* Until the driver is there: its module may be loaded after this program. */
static int attach(unsigned int seconds)
{
	unsigned long tries = seconds ? seconds * 100UL : ~0UL, waited = 0;

	struct split_attach attach = { .version = SPLIT_ABI_VERSION,
				       .layout = split_driver.layout };
	int told = 0;

	snprintf(attach.driver, sizeof(attach.driver), "%s", split_driver.name);
	while (ioctl(split_device, SPLIT_IOC_ATTACH, &attach) < 0) {
		if (errno == ESTALE)
			split_log("the kernel half was built from other tables: build both anew");
		else if (errno == EBUSY && tries > 100)
			tries = 100; /* the one before may still be ending */
		if ((errno != ENODEV && errno != EBUSY) || tries-- == 0)
			return errno;
		if (!told++)
			split_log("waits for its kernel half: %s", strerror(errno));
		/* Whoever waits for long need not be there at once. */
		usleep(waited++ < PROMPT ? 10000 : 200000);
	}
	return 0;
}

struct options {
	unsigned int seconds, user, group;
	int device, unconfined, unpinned;
};

static int usage(const char *program)
{
	fprintf(stderr, "usage: %s [SECONDS] [--user NUMBER[:GROUP]] [--device FD] [--unpinned] "
		"[--unconfined] [--fail N]\n"
		"the user half of the driver %s: waits so long for its kernel half (usual: 30; 0: "
		"for ever), and answers it\n"
		"  --user NUMBER[:GROUP]  whose process it becomes; usual: %u\n"
		"  --device FD            /dev/"
		SPLIT_DEVICE ", which somebody has opened for it, without whom it ends\n"
		"  --unpinned             its memory may be swapped out\n"
		"  --unconfined           it keeps its rights: for debuggers\n"
		"  --fail N               its Nth call of the kernel fails: for who tests the "
		"driver's way out of it\n", program, split_driver.name, NOBODY);
	return 2;
}

static int number(const char *text, unsigned int *to)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	*to = (unsigned int)value;
	return *text && !*end && value <= 0x7fffffff;
}

static int owner(const char *text, struct options *options)
{
	int read = 0, whole = 0;

	sscanf(text, "%u%n:%u%n", &options->user, &read, &options->group, &whole);
	if (read && !text[read])
		options->group = options->user;
	else if (!whole || text[whole])
		return 0;
	return options->user > 0 && options->group > 0;
}

static int parse(int argc, char **argv, struct options *options)
{
	static const struct option known[] = { { "user", required_argument, NULL, 'u' },
					       { "device", required_argument, NULL, 'd' },
					       { "unpinned", no_argument, NULL, 'p' },
					       { "unconfined", no_argument, NULL, 'c' },
					       { "fail", required_argument, NULL, 'f' }, { 0 } };
	unsigned int device, call;
	int one;

	while ((one = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (one == 'p')
			options->unpinned = 1;
		else if (one == 'c')
			options->unconfined = 1;
		else if (one == 'u' && owner(optarg, options))
			continue;
		else if (one == 'd' && number(optarg, &device))
			options->device = (int)device;
		else if (one == 'f' && number(optarg, &call) && call)
			split_fail(call);
		else
			return 0;
	}
	return optind == argc || (optind == argc - 1 && number(argv[optind], &options->seconds));
}

int main(int argc, char **argv)
{
	struct options options = { .seconds = 30, .user = NOBODY, .group = NOBODY, .device = -1 };
	int error;

	if (!parse(argc, argv, &options))
		return usage(argv[0]);
	/* AddressSanitizer tells more of a fault. */
	if (!SPLIT_ASAN)
		watch_faults();
	split_device = options.device >= 0 ? options.device :
		       open("/dev/" SPLIT_DEVICE, O_RDWR | O_CLOEXEC);
	if (split_device < 0) {
		split_log("/dev/" SPLIT_DEVICE
			  ": %s: load ring3_split.ko first, and be root", strerror(errno));
		return 1;
	}
	if (!options.unpinned)
		split_pin();
	if (!options.unconfined && split_confine(options.user, options.group, options.device >= 0))
		return 1;
	error = attach(options.seconds);
	if (error) {
		split_log("attaching: %s: is its kernel half loaded, and no other user half there?",
			  strerror(error));
		return 1;
	}
	split_log("attached");
	atomic_store(&threads, 1);
	serve(NULL);
	return 0;
}
