// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A user half that lies and knows types: it has the driver's own tables, calls what its upcalls may
// call with objects of the type that is wanted, sets members to such, and frees, sets and frees
// again what it has got.
//
//     liar SEED UPCALLS
//
// It ends after so many upcalls, or when none has come for half a minute, and says how many of its
// calls the kernel took. It writes no register: what a card does with memory, only an IOMMU can
// hold it to.

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "abi.h"
#include "random.h"
// Addresses of the user half's functions and data are none of its.
#define extern __attribute__((weak)) extern
#include "tables.c"
#undef extern

#define KNOWN 512
#define WAIT_MS 2000
#define QUIET 15
#define ACTIONS 40 // at most, of an upcall

const struct split_type split_bytes = { .name = "bytes" }, split_opaque = { .name = "opaque" },
	split_io = { .name = "io" };
const struct split_type split_mutex = { .name = "mutex" },
	split_combolock = { .name = "combolock" };

struct known { // an object, or what was one
	uint64_t handle;
	const struct split_type *type;
	unsigned int at; // its members in the message; 0: none
	const struct split_view *view;
};

static int device;
static char *message;
static struct split_next frame = { .size = 1 << 20, .wait_ms = WAIT_MS };
static const struct split_entry *entry;
static struct known known[KNOWN];
static unsigned int nknown;
static long taken, refused;

static void learn(uint64_t handle, const struct split_type *type, unsigned int at,
		  const struct split_view *view)
{
	unsigned int i = 0;

	while (i < nknown && known[i].handle != handle)
		i++;
	if (i == KNOWN)
		return;
	nknown += i == nknown;
	known[i] = (struct known){ handle, type ? type : known[i].type, at, view };
}

// What the message has; where objects lie may have changed.
static void look(void)
{
	const struct split_message *head = (const struct split_message *)message;
	unsigned int at = sizeof(*head);

	for (unsigned int i = 0; i < head->parts; i++) {
		const struct split_part *part = (const struct split_part *)(message + at);
		const struct split_view *view = part->type < entry->nviews ?
						&entry->views[part->type] : NULL;

		at += sizeof(*part);
		learn(part->handle, view ? view->type : &split_bytes, at, view);
		at = (at + part->length + 7) & ~7U;
	}
}

// Where a struct of a type lies in another one; -1: nowhere.
static long inside(const struct split_type *outer, const struct split_type *type)
{
	if (outer == type)
		return 0;
	for (unsigned int i = 0; outer && i < outer->insides; i++) {
		long offset = inside(outer->inside[i].type, type);

		if (offset >= 0)
			return outer->inside[i].offset + offset;
	}
	return -1;
}

// Mostly an object of the type, whether it is still one or not.
static uint64_t object(const struct split_type *type)
{
	unsigned int start = any() % (nknown + 1);

	if (any() % 16 == 0)
		return 0;
	for (unsigned int i = 0; i < nknown; i++) {
		const struct known *one = &known[(start + i) % nknown];
		long offset = type && type != &split_opaque ? inside(one->type, type) : 0;

		if (offset >= 0)
			return one->handle + (uint64_t)offset;
	}
	for (unsigned int i = 0; i < split_driver.nsymbols; i++)
		if (split_driver.symbols[i].type == type)
			return SPLIT_HANDLE(SPLIT_SYMBOLS, i, 0);
	return nknown ? known[any() % nknown].handle : 0;
}

static long call(struct split_call *call)
{
	long error;

	call->frame = frame.frame;
	call->buffer = (uintptr_t)message;
	call->size = 1 << 20;
	error = ioctl(device, SPLIT_IOC_CALL, call) < 0 ? -errno : 0;
	*(error ? &refused : &taken) += 1;
	if (!error)
		look();
	return error;
}

static uint64_t number(void)
{
	static const uint64_t numbers[] = { 0, 1, 2, 8, 64, 256, 1500, 4096, 65535, 0x7fffffff,
					    0xffffffff, UINT64_MAX };

	return any() % 2 ? numbers[any() % 12] : any() % 5000;
}

static void of_table(void)
{
	static char text[] = "liar";
	static uint64_t memory[1 << 14];
	struct split_call one = { .function = entry->ncalls ? entry->calls[any() % entry->ncalls] :
					      0 };
	const struct split_downcall *function = &split_driver.downcalls[one.function];

	if (!entry->ncalls)
		return;
	for (unsigned int i = 0; i < function->narguments; i++) {
		const struct split_argument *argument = &function->arguments[i];

		one.arguments[i] = number();
		if (argument->way == SPLIT_OBJECT)
			one.arguments[i] = object(argument->type);
		else if (argument->way == SPLIT_TEXT || argument->way == SPLIT_BRIEF)
			one.arguments[i] = (uintptr_t)text;
		else if (argument->way == SPLIT_COUNTED) one.arguments[i] =
			any() % 2 ? object(&split_bytes) : (uintptr_t)memory | SPLIT_OWN_MEMORY;
		else if (argument->way == SPLIT_RESULT)
			one.arguments[i] = 1;
	}
	if (call(&one))
		return;
	if (function->result.way == SPLIT_OBJECT && one.result > 0)
		learn((uint64_t)one.result, function->result.type, 0, NULL);
	for (unsigned int i = 0; i < function->narguments; i++)
		if (function->arguments[i].way == SPLIT_RESULT && one.arguments[i])
			learn(one.arguments[i], function->arguments[i].type, 0, NULL);
}

// Memory, of a type that the user half may have, or of a size that something of the kernel's has.
static void allocate(void)
{
	const struct split_view *view = entry->nviews ? &entry->views[any() % entry->nviews] : NULL;
	struct split_call one = { .function = SPLIT_CALL_ALLOCATE, .arguments =
				  { view ? view->type->size * (1 + any() % 4) : number() } };

	if (call(&one) == 0)
		learn((uint64_t)one.result, view && view->type->own ? view->type : &split_bytes, 0,
		      NULL);
}

// A member of an object that it may set, to what it may point to, or to a number.
static void set(void)
{
	const struct known *one = nknown ? &known[any() % nknown] : NULL;
	unsigned int at = one ? one->at : 0;

	if (!at || !one->view)
		return;
	for (unsigned int f = 0; f < one->view->nfields; f++) {
		const struct split_field *field = &one->view->fields[f];
		uint64_t value = field->kind == SPLIT_DATA || field->kind == SPLIT_BITS ? number() :
				 object(field->type);

		if (field->written && any() % 4 == 0)
			memcpy(message + at, &value, field->size < 8 ? field->size : 8);
		at += field->size;
	}
}

static void act(void)
{
	struct split_call one = { .arguments = { object(NULL), any() % 3, any() % 64 } };

	switch (any() % 8) {
	case 0:
		allocate();
		return;
	case 1:
		one.function = SPLIT_CALL_FREE;
		break;
	case 2:
		set();
		one = (struct split_call){ .function = SPLIT_CALL_STEP };
		break;
	case 3:
		one.function = SPLIT_CALL_WORD;
		break;
	case 4:
		one.function = any() % 2 ? SPLIT_CALL_LOCK : SPLIT_CALL_UNLOCK;
		one.arguments[0] = object(&split_mutex);
		one.arguments[1] = 0;
		break;
	default:
		of_table();
		return;
	}
	call(&one);
}

int main(int argc, char **argv)
{
	struct split_attach attach = { .version = SPLIT_ABI_VERSION,
				       .layout = split_driver.layout };
	long upcalls = 0, most = argc == 3 ? atol(argv[2]) : 0;

	device = open("/dev/" SPLIT_DEVICE, O_RDWR);
	if (argc != 3 || device < 0) {
		fprintf(stderr, "liar SEED UPCALLS, with /dev/" SPLIT_DEVICE "\n");
		return 2;
	}
	begin(strtoull(argv[1], NULL, 0));
	snprintf(attach.driver, sizeof(attach.driver), "%s", split_driver.name);
	message = malloc(1 << 20);
	frame.buffer = (uintptr_t)message;
	if (ioctl(device, SPLIT_IOC_ATTACH, &attach) < 0) {
		perror("attach");
		return 1;
	}
	for (int quiet = 0; upcalls < most && quiet < QUIET;) {
		if (ioctl(device, SPLIT_IOC_NEXT, &frame) < 0) {
			quiet += errno == EAGAIN;
			frame.frame = 0;
			continue;
		}
		quiet = 0;
		entry = &split_driver.entries[frame.entry];
		// What it knew of the upcall before is none of this one; some of it is tried all
		// the same.
		nknown = any() % 4 ? 0 : nknown;
		for (unsigned int i = 0; i < nknown; i++)
			known[i].at = 0;
		look();
		for (unsigned int n = any() % ACTIONS; n; n--)
			act();
		frame.result = any() % 4 ? 0 : -EIO;
		upcalls++;
	}
	printf("%ld upcalls of one that knows types, %ld calls taken, %ld refused\n", upcalls,
	       taken, refused);
	return 0;
}
