/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A file of sound for a hosted card: WAV, which is RIFF of the form WAVE, with PCM in it.
 * [Multimedia Programming Interface 1.0]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dde_sound.h"

#define CHUNK_HEADER 8
#define FORM_HEADER 12
#define FORMAT_LEN 16
#define FORMAT_PCM 1
/* The format proper is the first two bytes of an identifier then. */
#define FORMAT_EXTENSIBLE 0xfffe
#define EXTENSIBLE_LEN 40
#define EXTENSIBLE_FORMAT 24
#define CHANNELS_MAX 32
#define LEN_MAX (1l << 30)

static struct dde_wave wave;
static char wrong[160];

static uint32_t little(const uint8_t *bytes, int count)
{
	uint32_t value = 0;

	while (count-- > 0)
		value = value << 8 | bytes[count];
	return value;
}

static uint8_t *read_file(const char *path, size_t *len)
{
	FILE *file = fopen(path, "rb");
	uint8_t *bytes = NULL;
	struct stat stat;

	if (!file || fstat(fileno(file), &stat) != 0) {
		snprintf(wrong, sizeof(wrong), "%s", strerror(errno));
	} else if (!S_ISREG(stat.st_mode) || stat.st_size > LEN_MAX) {
		snprintf(wrong, sizeof(wrong), "a file of at most 1 GiB is played");
	} else {
		*len = stat.st_size;
		bytes = malloc(*len + 1);
		if (!bytes || fread(bytes, 1, *len, file) != *len) {
			snprintf(wrong, sizeof(wrong), "it cannot be read as a whole");
			free(bytes);
			bytes = NULL;
		}
	}
	if (file)
		fclose(file);
	return bytes;
}

/* The chunk that is called `name`, whose bytes are all there; NULL if there is none. */
static const uint8_t *find(const uint8_t *bytes, size_t len, const char *name, size_t *chunk)
{
	for (size_t at = FORM_HEADER; len - at >= CHUNK_HEADER;
	     at += CHUNK_HEADER + *chunk + *chunk % 2) {
		*chunk = little(bytes + at + 4, 4);
		if (*chunk > len - at - CHUNK_HEADER) {
			snprintf(wrong, sizeof(wrong), "its chunk %.4s has %zu bytes by its own "
				 "account, and %zu are there", (const char *)bytes + at, *chunk,
				 len - at - CHUNK_HEADER);
			return NULL;
		}
		if (memcmp(bytes + at, name, 4) == 0)
			return bytes + at + CHUNK_HEADER;
		/* An odd one at the end may lack what fills it up. */
		if (*chunk % 2 && *chunk == len - at - CHUNK_HEADER)
			break;
	}
	snprintf(wrong, sizeof(wrong), "it has no chunk \"%s\"", name);
	return NULL;
}

/* False says what is wrong. */
static bool parse(const uint8_t *bytes, size_t len)
{
	const uint8_t *format, *data;
	size_t format_len, data_len;
	uint32_t tag, align;

	if (len < FORM_HEADER || memcmp(bytes, "RIFF", 4) != 0 ||
	    memcmp(bytes + 8, "WAVE", 4) != 0) {
		snprintf(wrong, sizeof(wrong),
			 "this is no WAV file: it does not begin with RIFF and WAVE");
		return false;
	}
	format = find(bytes, len, "fmt ", &format_len);
	if (!format)
		return false;
	if (format_len < FORMAT_LEN) {
		snprintf(wrong, sizeof(wrong), "its format has %zu bytes, less than %d", format_len,
			 FORMAT_LEN);
		return false;
	}
	tag = little(format, 2);
	if (tag == FORMAT_EXTENSIBLE && format_len >= EXTENSIBLE_LEN)
		tag = little(format + EXTENSIBLE_FORMAT, 2);
	wave.channels = little(format + 2, 2);
	wave.rate = little(format + 4, 4);
	align = little(format + 12, 2);
	wave.bits = little(format + 14, 2);
	if (tag != FORMAT_PCM || (wave.bits != 8 && wave.bits != 16)) {
		snprintf(wrong, sizeof(wrong), "PCM of 8 or 16 bits is played, and it has format %"
			 PRIu32 " of %" PRIu32 " bits", tag, wave.bits);
		return false;
	}
	if (wave.channels == 0 || wave.channels > CHANNELS_MAX || wave.rate == 0 ||
	    align != wave.channels * wave.bits / 8) {
		snprintf(wrong, sizeof(wrong), "its format contradicts itself: %" PRIu32
			 " channels, %" PRIu32 " bytes for a sample of all", wave.channels, align);
		return false;
	}
	data = find(bytes, len, "data", &data_len);
	if (!data)
		return false;
	wave.samples = data;
	wave.frames = data_len / align;
	if (wave.frames == 0)
		snprintf(wrong, sizeof(wrong), "there is no sample in it");
	return wave.frames > 0;
}

const char *dde_wave_open(const char *path)
{
	size_t len;
	uint8_t *bytes = read_file(path, &len);

	return bytes && parse(bytes, len) ? NULL : wrong;
}

const struct dde_wave *dde_sound_wave(void)
{
	return wave.frames ? &wave : NULL;
}

void dde_sound_begins(const char *driver, const char *card)
{
	printf("{\"plays\":true,\"driver\":\"%s\",\"card\":\"%s\",\"rate\":%"
	       PRIu32 ",\"channels\":%" PRIu32 ",\"bits\":%" PRIu32 ",\"frames\":%"
	       PRIu64 "}\n", driver, card, wave.rate, wave.channels, wave.bits, wave.frames);
	fflush(stdout);
}

void dde_sound_played(uint64_t frames, unsigned int underruns)
{
	printf("{\"played\":%" PRIu64 ",\"underruns\":%u}\n", frames, underruns);
	fflush(stdout);
	if (underruns)
		fprintf(stderr, "the card has had no samples in time, %u times: what it played has "
			"gaps\n", underruns);
}
