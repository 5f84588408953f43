// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Plays, records and turns the knobs of a sound card, by ALSA's device files.
//
//     sound play DEVICE SECONDS       /dev/snd/pcmC0D0p: a tone, then pause, resume and drain
//     sound record DEVICE SECONDS     /dev/snd/pcmC0D0c
//     sound mixer DEVICE              /dev/snd/controlC0: every control is read, written back, and
//                                     turned to both of its ends
//     sound midi DEVICE               /dev/snd/midiC0D0: some notes, and what comes in within 200
//                                     ms

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <sound/asound.h>

enum { CHANNELS = 2, PERIOD = 1024, BUFFER = 32768 }; // both in frames

static int16_t frames[PERIOD * CHANNELS];

static void die(const char *what)
{
	fprintf(stderr, "sound: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void report(const char *what, int result)
{
	printf("%s%s%s\n", what, result < 0 ? ": " : "", result < 0 ? strerror(errno) : "");
}

static void choose(struct snd_pcm_hw_params *wish, int parameter, unsigned bit)
{
	struct snd_mask *mask = &wish->masks[parameter - SNDRV_PCM_HW_PARAM_FIRST_MASK];

	memset(mask->bits, 0, sizeof(mask->bits));
	mask->bits[bit / 32] = 1u << bit % 32;
}

static struct snd_interval *interval(struct snd_pcm_hw_params *wish, int parameter)
{
	return &wish->intervals[parameter - SNDRV_PCM_HW_PARAM_FIRST_INTERVAL];
}

// At least `value`: of what is left, the kernel takes the smallest rate and period.
static void at_least(struct snd_pcm_hw_params *wish, int parameter, unsigned value)
{
	interval(wish, parameter)->min = value;
}

static struct snd_pcm_hw_params anything(void)
{
	struct snd_pcm_hw_params wish = { .rmask = ~0u, .info = ~0u };

	for (size_t i = 0; i < sizeof(wish.masks) / sizeof(wish.masks[0]); i++)
		memset(wish.masks[i].bits, 0xff, sizeof(wish.masks[i].bits));
	for (size_t i = 0; i < sizeof(wish.intervals) / sizeof(wish.intervals[0]); i++)
		wish.intervals[i].max = ~0u;
	choose(&wish, SNDRV_PCM_HW_PARAM_ACCESS, SNDRV_PCM_ACCESS_RW_INTERLEAVED);
	choose(&wish, SNDRV_PCM_HW_PARAM_FORMAT, SNDRV_PCM_FORMAT_S16_LE);
	choose(&wish, SNDRV_PCM_HW_PARAM_SUBFORMAT, SNDRV_PCM_SUBFORMAT_STD);
	at_least(&wish, SNDRV_PCM_HW_PARAM_CHANNELS, CHANNELS);
	interval(&wish, SNDRV_PCM_HW_PARAM_CHANNELS)->max = CHANNELS;
	return wish;
}

// The next rate from `rate` up, or the highest that there is.
static unsigned configure(int fd, unsigned rate)
{
	struct snd_pcm_hw_params wish = anything();
	struct snd_pcm_sw_params flow = { .period_step = 1, .avail_min = 1 };
	unsigned size;

	if (ioctl(fd, SNDRV_PCM_IOCTL_HW_REFINE, &wish))
		die("asking what the card can do");
	if (rate > interval(&wish, SNDRV_PCM_HW_PARAM_RATE)->max)
		rate = interval(&wish, SNDRV_PCM_HW_PARAM_RATE)->max;
	wish = anything();
	at_least(&wish, SNDRV_PCM_HW_PARAM_RATE, rate);
	at_least(&wish, SNDRV_PCM_HW_PARAM_PERIOD_SIZE, PERIOD);
	at_least(&wish, SNDRV_PCM_HW_PARAM_PERIODS, 2);
	interval(&wish, SNDRV_PCM_HW_PARAM_BUFFER_SIZE)->max = BUFFER;
	if (ioctl(fd, SNDRV_PCM_IOCTL_HW_PARAMS, &wish))
		die("setting format and rate");
	size = interval(&wish, SNDRV_PCM_HW_PARAM_BUFFER_SIZE)->min;
	flow.start_threshold = size / 2;
	flow.stop_threshold = flow.boundary = size;
	if (ioctl(fd, SNDRV_PCM_IOCTL_SW_PARAMS, &flow) || ioctl(fd, SNDRV_PCM_IOCTL_PREPARE))
		die("preparing");
	return interval(&wish, SNDRV_PCM_HW_PARAM_RATE)->min;
}

static void ask(int fd)
{
	struct snd_pcm_info info = { 0 };
	struct snd_pcm_status status = { 0 };
	snd_pcm_sframes_t delay;

	report("info", ioctl(fd, SNDRV_PCM_IOCTL_INFO, &info));
	report("status", ioctl(fd, SNDRV_PCM_IOCTL_STATUS, &status));
	report("delay", ioctl(fd, SNDRV_PCM_IOCTL_DELAY, &delay));
}

// Moves periods both ways. A card that ran over or dry (EPIPE) or that a busy host let wait too
// long (EIO) is prepared again.
static unsigned transfer(int fd, unsigned long request, unsigned periods)
{
	unsigned broken = 0;

	for (unsigned i = 0; i < periods && broken < 20; i++) {
		struct snd_xferi move = { .buf = frames, .frames = PERIOD };

		if (ioctl(fd, request, &move) == 0)
			continue;
		if (errno != EPIPE && errno != EIO)
			die("moving frames");
		broken++;
		ioctl(fd, SNDRV_PCM_IOCTL_DROP);
		if (ioctl(fd, SNDRV_PCM_IOCTL_PREPARE))
			die("preparing again");
	}
	return broken;
}

static void play_once(const char *device, double seconds, unsigned wish)
{
	int fd = open(device, O_RDWR);
	unsigned rate, broken;

	if (fd < 0)
		die(device);
	rate = configure(fd, wish);
	for (int i = 0; i < PERIOD * CHANNELS; i++)
		frames[i] = (int16_t)((i / CHANNELS % 100 < 50) ? 8000 : -8000);
	broken = transfer(fd, SNDRV_PCM_IOCTL_WRITEI_FRAMES,
			  (unsigned)(seconds * rate / PERIOD) + BUFFER / PERIOD);
	ask(fd);
	report("pause", ioctl(fd, SNDRV_PCM_IOCTL_PAUSE, 1));
	report("resume", ioctl(fd, SNDRV_PCM_IOCTL_PAUSE, 0));
	report("drain", ioctl(fd, SNDRV_PCM_IOCTL_DRAIN));
	printf("played %.1f s at %u Hz, dry %u times\n", seconds, rate, broken);
	close(fd);
}

static int play(const char *device, double seconds)
{
	static const unsigned rates[] = { 44100, 22050, 5000 };

	for (int i = 0; i < 3; i++)
		play_once(device, seconds / 3, rates[i]);
	return 0;
}

static int record(const char *device, double seconds)
{
	int fd = open(device, O_RDWR);
	unsigned rate, broken;

	if (fd < 0)
		die(device);
	rate = configure(fd, 22050);
	if (ioctl(fd, SNDRV_PCM_IOCTL_START))
		die("starting to record");
	broken = transfer(fd, SNDRV_PCM_IOCTL_READI_FRAMES,
			  (unsigned)(seconds * rate / PERIOD) + 1);
	ask(fd);
	report("drop", ioctl(fd, SNDRV_PCM_IOCTL_DROP));
	printf("recorded %.1f s at %u Hz, over %u times\n", seconds, rate, broken);
	close(fd);
	return 0;
}

static void turn(int fd, const struct snd_ctl_elem_id *id)
{
	struct snd_ctl_elem_info info = { .id = *id };
	struct snd_ctl_elem_value value = { .id = *id }, before;
	long ends[2] = { 0, 1 };

	if (ioctl(fd, SNDRV_CTL_IOCTL_ELEM_INFO, &info) ||
	    ioctl(fd, SNDRV_CTL_IOCTL_ELEM_READ, &value))
		return;
	if (info.type == SNDRV_CTL_ELEM_TYPE_INTEGER) {
		ends[0] = info.value.integer.min;
		ends[1] = info.value.integer.max;
	} else if (info.type == SNDRV_CTL_ELEM_TYPE_ENUMERATED) {
		ends[1] = (long)info.value.enumerated.items - 1;
	}
	before = value;
	for (int end = 0; end < 2 && (info.access & SNDRV_CTL_ELEM_ACCESS_WRITE); end++) {
		for (unsigned i = 0; i < info.count && i < 128; i++) {
			if (info.type == SNDRV_CTL_ELEM_TYPE_ENUMERATED)
				value.value.enumerated.item[i] = (unsigned)ends[end];
			else if (info.type == SNDRV_CTL_ELEM_TYPE_INTEGER ||
				 info.type == SNDRV_CTL_ELEM_TYPE_BOOLEAN)
				value.value.integer.value[i] = ends[end];
		}
		ioctl(fd, SNDRV_CTL_IOCTL_ELEM_WRITE, &value);
	}
	if (info.access & SNDRV_CTL_ELEM_ACCESS_WRITE)
		ioctl(fd, SNDRV_CTL_IOCTL_ELEM_WRITE, &before);
}

static int mixer(const char *device)
{
	int fd = open(device, O_RDWR);
	struct snd_ctl_card_info card = { 0 };
	struct snd_ctl_elem_list list = { .space = 256 };

	list.pids = calloc(list.space, sizeof(*list.pids));
	if (fd < 0 || !list.pids)
		die(device);
	report("card", ioctl(fd, SNDRV_CTL_IOCTL_CARD_INFO, &card));
	if (ioctl(fd, SNDRV_CTL_IOCTL_ELEM_LIST, &list))
		die("listing controls");
	for (unsigned i = 0; i < list.used; i++)
		turn(fd, &list.pids[i]);
	printf("%u controls of %s\n", list.used, (const char *)card.name);
	close(fd);
	return 0;
}

static int midi(const char *device)
{
	static const unsigned char notes[] = { 0x90, 60, 100, 0x80, 60, 0, 0x90, 64, 100, 0x80, 64,
					       0 };
	unsigned char in[64];
	int fd = open(device, O_RDWR | O_NONBLOCK);
	struct pollfd wait = { .fd = fd, .events = POLLIN };

	if (fd < 0)
		die(device);
	for (int i = 0; i < 50; i++)
		if (write(fd, notes, sizeof(notes)) < 0 && errno != EAGAIN)
			die("writing notes");
	poll(&wait, 1, 200);
	report("read", (int)read(fd, in, sizeof(in)));
	close(fd);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(what, "play") && argc == 4)
		return play(argv[2], atof(argv[3]));
	if (!strcmp(what, "record") && argc == 4)
		return record(argv[2], atof(argv[3]));
	if (!strcmp(what, "mixer") && argc == 3)
		return mixer(argv[2]);
	if (!strcmp(what, "midi") && argc == 3)
		return midi(argv[2]);
	fprintf(stderr, "usage: sound play DEVICE SECONDS | record DEVICE SECONDS | mixer DEVICE | "
		"midi DEVICE\n");
	return 2;
}
