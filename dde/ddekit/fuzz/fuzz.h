/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A host of ddekit's that is made of bytes: a device that does what a recording of a real one did,
 * except where the bytes of an input say otherwise; time that passes when somebody waits; random
 * numbers that are always the same. Two runs with one input are one and the same.
 *
 * # Input
 *
 * At each register that is read one byte is taken from its front, and each time the process would
 * sleep one from its back, so that neither moves the other. A byte below 0x80 says that nothing
 * happens here and at as many places of the kind after it. What others mean is said in device.c. An
 * input has ended where both meet, and is zeroes then.
 */
#ifndef DDEKIT_FUZZ_H
#define DDEKIT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUIET_PLACES 0x80u

/** fuzz_input_file() - where the input is; NULL is none */
void fuzz_input_file(const char *path);

/**
 * fuzz_begin() - what comes now depends on the input
 *
 * Under AFL++, everything before is done once, and everything after by one child for each input.
 */
void fuzz_begin(void);

enum fuzz_end { FUZZ_FRONT, FUZZ_BACK };

/** fuzz_byte() - the next byte of the input; 0 after its end */
uint8_t fuzz_byte(enum fuzz_end from);

/** fuzz_bytes() - the next @count bytes, the first one lowest; 0 to 8 */
uint64_t fuzz_bytes(enum fuzz_end from, unsigned int count);

/** fuzz_ended() - whether the input has no byte more */
bool fuzz_ended(void);

/** fuzz_event() - what the device and its users do at a time when the process would sleep */
void fuzz_event(void);

/** fuzz_disk_served() - whether the driver has made a disk, and not closed it */
bool fuzz_disk_served(void);

/**
 * fuzz_disk_request() - a user asks the disk for something: the operation is @kind's, the blocks
 * are the input's
 */
void fuzz_disk_request(unsigned int kind);

/**
 * fuzz_load() - take a recording that ddekit_dev_open() has written: false, and errno, if there is
 * none
 */
bool fuzz_load(const char *path);

/**
 * fuzz_on_limit() - have @stop called, once, when the input has ended and @ns of the process's time
 * have passed after it
 */
void fuzz_on_limit(uint64_t ns, void (*stop)(void));

/** fuzz_pass() - let time pass until @until */
void fuzz_pass(uint64_t until);

#endif
