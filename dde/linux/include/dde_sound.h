/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Between the glue of sound cards, which knows the kernel, and the program, which knows the host;
 * how it ends is as dde_net.h has it.
 */
#ifndef DDE_SOUND_H
#define DDE_SOUND_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct dde_wave - what is to be played @samples: frames, one behind the other: a sample for each
 * channel, of 8 bits without a sign or of 16 with one, the low byte first
 */
struct dde_wave {
	const uint8_t *samples;
	uint64_t frames;
	uint32_t rate, channels, bits;
};

/* The program's: what it was told to play; NULL for nothing. */
const struct dde_wave *dde_sound_wave(void);
/* It is played from now on, by this card. */
void dde_sound_begins(const char *driver, const char *card);
/* So many frames were, and so often the card has had none in time. */
void dde_sound_played(uint64_t frames, unsigned int underruns);

/* Of the program's own files: has this file played. NULL, or what is wrong with it. */
const char *dde_wave_open(const char *path);

#endif
