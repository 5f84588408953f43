// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Traffic for a network card, and the questions that its owner asks of it.
//
//     net serve                   takes TCP on port 7001, gives it on 7002, echoes UDP on 7003,
//                                 until it is ended
//     net send HOST SECONDS       as fast as TCP lets it
//     net receive HOST SECONDS WINDOW
//                                 WINDOW: bytes that may be on their way at a time; 0 for what the
//                                 kernel takes
//     net echo HOST COUNT BYTES   one datagram after the other; a lost one is waited for 100 ms
//     net control INTERFACE [PART]
//                                 what ethtool and mii-tool do, and a multicast group; PART: one of
//                                 `parts` alone
//
// What a card does not support is no failure: control says what each request came to.

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/mii.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SINK = 7001, SOURCE = 7002, ECHO = 7003 };

static char buffer[1 << 16];

static void die(const char *what)
{
	fprintf(stderr, "net: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct sockaddr_in address(const char *host, int port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	if (host && inet_pton(AF_INET, host, &to.sin_addr) != 1) {
		errno = EINVAL;
		die(host);
	}
	return to;
}

static int open_socket(int type)
{
	int fd = socket(AF_INET, type, 0), on = 1;

	if (fd < 0)
		die("socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return fd;
}

static int connected(int type, const char *host, int port, int window)
{
	struct sockaddr_in to = address(host, port);
	struct timeval limit = { .tv_sec = 10 };
	int fd = open_socket(type);

	if (window && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)))
		die("setting the window");

	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)))
		die("connecting");
	return fd;
}

static int listening(int type, int port)
{
	struct sockaddr_in here = address(NULL, port);
	int fd = open_socket(type);

	if (bind(fd, (struct sockaddr *)&here, sizeof(here)) ||
	    (type == SOCK_STREAM && listen(fd, 4)))
		die("listening");
	return fd;
}

// One process for each connection keeps this simple.
static void take(int listener, int sends)
{
	int fd = accept(listener, NULL, NULL);

	if (fd >= 0 && fork() == 0) {
		if (sends)
			while (write(fd, buffer, sizeof(buffer)) > 0)
				;
		else
			while (read(fd, buffer, sizeof(buffer)) > 0)
				;
		_exit(0);
	}
	close(fd);
}

static int serve(void)
{
	struct pollfd wait[] = {
		{ .fd = listening(SOCK_STREAM, SINK), .events = POLLIN },
		{ .fd = listening(SOCK_STREAM, SOURCE), .events = POLLIN },
		{ .fd = listening(SOCK_DGRAM, ECHO), .events = POLLIN },
	};

	signal(SIGCHLD, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	while (poll(wait, 3, -1) > 0 || errno == EINTR) {
		struct sockaddr_in from;
		socklen_t length = sizeof(from);

		for (int i = 0; i < 2; i++)
			if (wait[i].revents)
				take(wait[i].fd, i == 1);
		if (wait[2].revents) {
			ssize_t size = recvfrom(wait[2].fd, buffer, sizeof(buffer), 0,
						(struct sockaddr *)&from, &length);

			if (size >= 0)
				sendto(wait[2].fd, buffer, (size_t)size, 0,
				       (struct sockaddr *)&from, length);
		}
	}
	return 1;
}

static int stream(const char *host, double seconds, int sends, int window)
{
	int fd = connected(SOCK_STREAM, host, sends ? SINK : SOURCE, window);
	double start = now();
	uint64_t total = 0;

	while (now() - start < seconds) {
		ssize_t size = sends ? write(fd, buffer,
					     sizeof(buffer)) : read(fd, buffer, sizeof(buffer));

		if (size <= 0)
			die(sends ? "sending" : "receiving");
		total += (uint64_t)size;
	}
	printf("%s %.6f MB in %.3f s\n", sends ? "sent" : "received", (double)total / 1e6,
	       now() - start);
	return 0;
}

static int echo(const char *host, int count, size_t size)
{
	int fd = connected(SOCK_DGRAM, host, ECHO, 0), back = 0;
	struct timeval limit = { .tv_usec = 100000 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	for (int i = 0; i < count; i++) {
		if (send(fd, buffer, size, 0) < 0)
			die("sending a datagram");
		back += recv(fd, buffer, sizeof(buffer), 0) >= 0;
	}
	printf("%d of %d datagrams of %zu bytes came back\n", back, count, size);
	return back * 2 < count;
}

// Asks the interface; what cannot be done is printed and forgotten.
static int ask(const struct ifreq *interface, const char *what, unsigned long request, void *data)
{
	static int fd = -1;
	struct ifreq question = *interface;
	int result;

	if (fd < 0)
		fd = open_socket(SOCK_DGRAM);
	question.ifr_data = data;
	result = ioctl(fd, request, &question);
	printf("%s%s%s\n", what, result < 0 ? ": " : "", result < 0 ? strerror(errno) : "");
	return result;
}

// Big enough for what the largest card answers.
static uint32_t answer[1 << 16];

static void *command(uint32_t number)
{
	memset(answer, 0, sizeof(answer));
	answer[0] = number;
	return answer;
}

// Reads a set of parameters and writes it back as it is: the driver goes through all that a change
// means to it.
static void both(const struct ifreq *interface, const char *what, uint32_t get, uint32_t set)
{
	if (ask(interface, what, SIOCETHTOOL, command(get)) == 0) {
		answer[0] = set;
		ask(interface, "  written back", SIOCETHTOOL, answer);
	}
}

static void link_settings(const struct ifreq *interface)
{
	struct ethtool_link_settings *settings = command(ETHTOOL_GLINKSETTINGS);

	// The kernel says how many words its masks have; then it is asked again.
	ask(interface, "size of link settings", SIOCETHTOOL, settings);
	settings->link_mode_masks_nwords = (int8_t)-settings->link_mode_masks_nwords;
	settings->cmd = ETHTOOL_GLINKSETTINGS;
	if (ask(interface, "link settings", SIOCETHTOOL, settings) == 0) {
		settings->cmd = ETHTOOL_SLINKSETTINGS;
		ask(interface, "  written back", SIOCETHTOOL, settings);
	}
}

static void statistics(const struct ifreq *interface, const struct ethtool_drvinfo *driver)
{
	struct ethtool_stats *statistics = command(ETHTOOL_GSTATS);

	statistics->n_stats = driver->n_stats;
	ask(interface, "statistics", SIOCETHTOOL, statistics);
}

// The least that says whether the driver answers.
static void answers(const struct ifreq *interface)
{
	struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };

	if (ask(interface, "driver", SIOCETHTOOL, &driver) == 0)
		statistics(interface, &driver);
}

static void dumps(const struct ifreq *interface)
{
	struct ethtool_drvinfo driver = { .cmd = ETHTOOL_GDRVINFO };
	struct ethtool_regs *registers;
	struct ethtool_eeprom *eeprom;
	struct ethtool_gstrings *strings;

	if (ask(interface, "driver", SIOCETHTOOL, &driver))
		return;
	registers = command(ETHTOOL_GREGS);
	registers->len = driver.regdump_len;
	ask(interface, "registers", SIOCETHTOOL, registers);
	eeprom = command(ETHTOOL_GEEPROM);
	eeprom->len = driver.eedump_len;
	if (driver.eedump_len && ask(interface, "EEPROM", SIOCETHTOOL, eeprom) == 0) {
		eeprom->cmd = ETHTOOL_SEEPROM;
		eeprom->len = 2;
		ask(interface, "  a word written back", SIOCETHTOOL, eeprom);
	}
	for (uint32_t set = ETH_SS_TEST; set <= ETH_SS_PRIV_FLAGS; set++) {
		strings = command(ETHTOOL_GSTRINGS);
		strings->string_set = set;
		ask(interface, "strings", SIOCETHTOOL, strings);
	}
	statistics(interface, &driver);
}

static void levels(const struct ifreq *interface)
{
	both(interface, "message level", ETHTOOL_GMSGLVL, ETHTOOL_SMSGLVL);
	both(interface, "wake on LAN", ETHTOOL_GWOL, ETHTOOL_SWOL);
	both(interface, "coalescing", ETHTOOL_GCOALESCE, ETHTOOL_SCOALESCE);
	both(interface, "pause", ETHTOOL_GPAUSEPARAM, ETHTOOL_SPAUSEPARAM);
	both(interface, "energy", ETHTOOL_GEEE, ETHTOOL_SEEE);
	both(interface, "channels", ETHTOOL_GCHANNELS, ETHTOOL_SCHANNELS);
	both(interface, "private flags", ETHTOOL_GPFLAGS, ETHTOOL_SPFLAGS);
	both(interface, "receive checksums", ETHTOOL_GRXCSUM, ETHTOOL_SRXCSUM);
	ask(interface, "flow hash", SIOCETHTOOL, command(ETHTOOL_GRXFH));
	ask(interface, "receive rules", SIOCETHTOOL, command(ETHTOOL_GRXRINGS));
	ask(interface, "time stamping", SIOCETHTOOL, command(ETHTOOL_GET_TS_INFO));
	ask(interface, "rings", SIOCETHTOOL, command(ETHTOOL_GRINGPARAM));
}

static void parameters(const struct ifreq *interface)
{
	struct ethtool_ringparam *rings = command(ETHTOOL_GRINGPARAM);

	levels(interface);
	if (ask(interface, "rings", SIOCETHTOOL, rings) == 0) {
		uint32_t pending = rings->rx_pending;

		rings->cmd = ETHTOOL_SRINGPARAM;
		rings->rx_pending = pending > 128 ? pending / 2 : pending * 2;
		ask(interface, "  changed", SIOCETHTOOL, rings);
		rings->rx_pending = pending;
		ask(interface, "  changed back", SIOCETHTOOL, rings);
	}
}

static void blink(const struct ifreq *interface)
{
	struct ethtool_value *value = command(ETHTOOL_PHYS_ID);

	value->data = 1;
	ask(interface, "blinking for a second", SIOCETHTOOL, value);
	ask(interface, "negotiating again", SIOCETHTOOL, command(ETHTOOL_NWAY_RST));
}

static void test(const struct ifreq *interface)
{
	struct ethtool_test *test;

	for (uint32_t flags = 0; flags <= ETH_TEST_FL_OFFLINE; flags++) {
		test = command(ETHTOOL_TEST);
		test->flags = flags;
		ask(interface, flags ? "self test, offline" : "self test, online", SIOCETHTOOL,
		    test);
	}
	ask(interface, "link", SIOCETHTOOL, command(ETHTOOL_GLINK));
}

static void phy(const char *name)
{
	struct ifreq request = { 0 };
	struct mii_ioctl_data *data = (struct mii_ioctl_data *)&request.ifr_ifru;
	int fd = open_socket(SOCK_DGRAM), result;

	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	result = ioctl(fd, SIOCGMIIPHY, &request);
	for (uint16_t reg = 0; result == 0 && reg < 8; reg++) {
		data->reg_num = reg;
		result = ioctl(fd, SIOCGMIIREG, &request);
	}
	if (result == 0) {
		data->reg_num = MII_ADVERTISE;
		result = ioctl(fd, SIOCGMIIREG, &request);
		data->val_in = data->val_out;
		result = result ? result : ioctl(fd, SIOCSMIIREG, &request);
	}
	printf("PHY registers%s%s\n", result ? ": " : "", result ? strerror(errno) : "");
	close(fd);
}

static void group(const char *name)
{
	struct ip_mreqn membership = { .imr_ifindex = (int)if_nametoindex(name) };
	int fd = open_socket(SOCK_DGRAM), result = 0;

	for (uint32_t i = 1; i <= 20 && result == 0; i++) {
		membership.imr_multiaddr.s_addr = htonl(0xef010100 + i);
		result = setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &membership,
				    sizeof(membership));
	}
	printf("multicast groups%s%s\n", result ? ": " : "", result ? strerror(errno) : "");
	close(fd); // leaves them
}

static int control(const char *name, const char *part)
{
	static const struct {
		const char *name;
		void (*ask)(const struct ifreq *);
		void (*call)(const char *);
		int alone; // part of another one
	} parts[] = {
		{ "dumps", dumps, NULL, 0 }, { "answers", answers, NULL, 1 },
			{ "parameters", parameters, NULL, 0 },
		{ "levels", levels, NULL, 1 },
		{ "settings", link_settings, NULL, 0 }, { "phy", NULL, phy, 0 },
			{ "group", NULL, group, 0 },
		{ "blink", blink, NULL, 0 }, { "test", test, NULL, 0 },
	};
	struct ifreq interface = { 0 };
	int done = 0;

	strncpy(interface.ifr_name, name, IFNAMSIZ - 1);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		if (part ? strcmp(part, parts[i].name) : parts[i].alone)
			continue;
		done = 1;
		if (parts[i].ask)
			parts[i].ask(&interface);
		else
			parts[i].call(name);
	}
	return !done;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "serve"))
		return serve();
	if (!strcmp(what, "send") && argc == 4)
		return stream(argv[2], atof(argv[3]), 1, 0);
	if (!strcmp(what, "receive") && argc == 5)
		return stream(argv[2], atof(argv[3]), 0, atoi(argv[4]));
	if (!strcmp(what, "echo") && argc == 5)
		return echo(argv[2], atoi(argv[3]), (size_t)atoi(argv[4]));
	if (!strcmp(what, "control") && (argc == 3 || argc == 4))
		return control(argv[2], argc == 4 ? argv[3] : NULL);
	fprintf(stderr, "usage: net serve | send HOST SECONDS | receive HOST SECONDS WINDOW | echo "
		"HOST COUNT BYTES | control INTERFACE [PART]\n");
	return 2;
}
