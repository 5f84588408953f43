// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// What `ring3 split bench` times in its guest.
//
//     bench time COMMAND...         how long a command takes
//     bench ethtool INTERFACE TIMES what the program ethtool asks a driver for, each so many times
//     bench pace HOST SECONDS MBIT_S
//                                   sends messages of 32 KiB over TCP to the port 7001 of `net
//                                   serve`, so many megabits a second
//     bench restart PARAMETER TIMES COMMAND...
//                                   the command is a user half whose driver calls up when 1 is
//                                   written to PARAMETER: how long it takes, so many times, from
//                                   its death until another one has answered
//     bench mortal FILE COMMAND...  while FILE is there, kills the command every two seconds and
//                                   starts it again; then says who is left, and how many were
//                                   killed. A shell would take more for that than the command's own
//                                   start
//
// Times are nanoseconds.

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SINK = 7001, MESSAGE = 32 << 10, SOCKET_BUFFER = 256 << 10 };

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int die(const char *what)
{
	fprintf(stderr, "bench: %s: %s\n", what, strerror(errno));
	return 1;
}

static int timed(char **command)
{
	int64_t start = now();
	pid_t child = fork();
	int status;

	if (child < 0)
		return die("fork");
	if (child == 0) {
		execvp(command[0], command);
		_exit(die(command[0]));
	}
	if (waitpid(child, &status, 0) < 0 || status)
		return die(command[0]);
	printf("%lld\n", (long long)(now() - start));
	return 0;
}

static struct ifreq interface;
static int fd;
static uint32_t buffer[1 << 16];

static int ask(void *data)
{
	interface.ifr_data = data;
	return ioctl(fd, SIOCETHTOOL, &interface);
}

static void *command(uint32_t number)
{
	memset(buffer, 0, 4096);
	buffer[0] = number;
	return buffer;
}

static struct ethtool_drvinfo driver;

static int info(void) // -i
{
	driver.cmd = ETHTOOL_GDRVINFO;
	return ask(&driver);
}

static int statistics(void) // -S
{
	struct ethtool_gstrings *strings = command(ETHTOOL_GSTRINGS);
	struct ethtool_stats *values;

	strings->string_set = ETH_SS_STATS;
	if (ask(strings))
		return -1;
	values = command(ETHTOOL_GSTATS);
	values->n_stats = driver.n_stats;
	return ask(values);
}

static int registers(void) // -d
{
	struct ethtool_regs *request = command(ETHTOOL_GREGS);

	request->len = driver.regdump_len;
	return ask(request);
}

static int eeprom(void) // -e
{
	struct ethtool_eeprom *request = command(ETHTOOL_GEEPROM);

	request->len = driver.eedump_len;
	return driver.eedump_len ? ask(request) : -1;
}

static int features(void) // -k; the kernel answers it by itself, the driver has set them before
{
	struct ethtool_gfeatures *request = command(ETHTOOL_GFEATURES);

	request->size = 2;
	return ask(request);
}

static int link_is_up(void) // "Link detected"
{
	return ask(command(ETHTOOL_GLINK));
}

static int settings(void) // without an option
{
	struct ethtool_link_settings *request = command(ETHTOOL_GLINKSETTINGS);

	if (ask(request))
		return -1;
	request->link_mode_masks_nwords = (int8_t)-request->link_mode_masks_nwords;
	request->cmd = ETHTOOL_GLINKSETTINGS;
	return ask(request);
}

static const struct {
	const char *name;
	int (*run)(void);
} questions[] = {
	{ "-i", info },	      { "-S", statistics }, { "-d", registers }, { "-e", eeprom },
	{ "-k", features }, { "link", link_is_up },	   { "settings", settings },
};

static int ethtool(const char *name, int times)
{
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	if (fd < 0)
		return die("socket");
	strncpy(interface.ifr_name, name, IFNAMSIZ - 1);
	for (size_t i = 0; i < sizeof(questions) / sizeof(*questions); i++) {
		int64_t start = now();
		int left = times, result = 0;

		while (left-- && !result)
			result = questions[i].run();
		if (result)
			fprintf(stderr, "bench: %s: %s\n", questions[i].name, strerror(errno));
		else
			printf("%s %lld\n", questions[i].name, (long long)(now() - start) / times);
	}
	return 0;
}

static int pace(const char *host, double seconds, double mbit_s)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(SINK) };
	int64_t start, sent = 0, size = SOCKET_BUFFER, passed;
	int size_of_buffer = (int)size;

	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || inet_pton(AF_INET, host, &to.sin_addr) != 1)
		return die(host);
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size_of_buffer, sizeof(size_of_buffer));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return die("connecting");
	start = now();
	while ((passed = now() - start) < (int64_t)(seconds * 1e9)) {
		// when the next message is to go
		int64_t due = (int64_t)((double)sent * 8e3 / mbit_s);

		if (due > passed) {
			struct timespec wait = { .tv_sec = (due - passed) / 1000000000,
						 .tv_nsec = (due - passed) % 1000000000 };

			nanosleep(&wait, NULL);
			continue;
		}
		if ((size = write(fd, buffer, MESSAGE)) <= 0)
			return die("sending");
		sent += size;
	}
	printf("sent %.6f MB in %.3f s\n", (double)sent / 1e6, (double)(now() - start) / 1e9);
	return 0;
}

static int called_up(const char *parameter)
{
	FILE *file = fopen(parameter, "w");
	int bad = !file || fputs("1", file) < 0;

	return (file && fclose(file)) || bad ? die(parameter) : 0;
}

static int restart(const char *parameter, int times, char **command)
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	pid_t child = 0;
	int64_t start = 0;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, 2, 1);
	for (int i = 0; i <= times; i++) { // the first one is only started
		if (i == 1)
			start = now();
		if (i && (kill(child, SIGKILL) || waitpid(child, NULL, 0) != child))
			return die(command[0]);
		errno = posix_spawnp(&child, command[0], &actions, NULL, command, environ);
		if (errno)
			return die(command[0]);
		if (called_up(parameter))
			return 1;
	}
	printf("%lld\n", (long long)(now() - start));
	return 0;
}

static int mortal(const char *file, char **command)
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	pid_t child;

	// Its words go where those of others go: standard output is for the result.
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, 2, 1);
	for (int deaths = 0;; deaths++) {
		int error = posix_spawnp(&child, command[0], &actions, NULL, command, environ),
			status;

		if (error) {
			errno = error;
			return die(command[0]);
		}
		sleep(2);
		if (access(file, F_OK)) {
			printf("%d %d\n", child, deaths);
			return 0;
		}
		if (kill(child, SIGKILL) || waitpid(child, &status, 0) != child)
			return die(command[0]);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
			fprintf(stderr, "bench: %s ended by itself\n", command[0]);
			return 1;
		}
	}
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "time") && argc > 2)
		return timed(argv + 2);
	if (!strcmp(what, "ethtool") && argc == 4 && atoi(argv[3]) > 0)
		return ethtool(argv[2], atoi(argv[3]));
	if (!strcmp(what, "pace") && argc == 5 && atof(argv[4]) > 0)
		return pace(argv[2], atof(argv[3]), atof(argv[4]));
	if (!strcmp(what, "restart") && argc > 4 && atoi(argv[3]) > 0)
		return restart(argv[2], atoi(argv[3]), argv + 4);
	if (!strcmp(what, "mortal") && argc > 3)
		return mortal(argv[2], argv + 3);
	fprintf(stderr, "usage: bench time COMMAND... | ethtool INTERFACE TIMES | pace HOST "
		"SECONDS MBIT_S | restart PARAMETER TIMES COMMAND... |"
		" mortal FILE COMMAND...\n");
	return 2;
}
