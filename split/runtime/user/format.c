// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The kernel's formats: as those of the C library, without floating point, but a pointer has
 * letters behind it that say what is there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "split.h"

/*
 * The numbers that stand for stars are put in. Returns the first character behind flags, width,
 * precision and size.
 */
static const char *conversion(const char *format, char *piece, size_t room, int *longs,
			      va_list *list)
{
	size_t length = (size_t)snprintf(piece, room, "%%");

	for (*longs = 0; *format && strchr("-+ #0123456789.*hlzjtL", *format); format++) {
		if (*format == '*')
			length += (size_t)snprintf(piece + length, room - length, "%d",
						   va_arg(*list, int));
		else if (length + 1 < room)
			piece[length++] = *format;
		*longs |= strchr("lzjtL", *format) != NULL;
	}
	piece[length] = 0;
	return format;
}

/* Ethernet addresses and bytes; how many letters behind the p that were. */
static int pointer(char *to, size_t size, const char *letters, const char *piece,
		   const unsigned char *at)
{
	int bytes = *letters == 'M' || *letters == 'm' ? 6 :
		    *letters == 'h' && piece[1] ? atoi(piece + 1) : 0;
	int plain = *letters == 'm' || (*letters == 'h' && letters[1] == 'N');
	char between = *letters == 'M' || letters[1] == 'C' ? ':' : letters[1] == 'D' ? '-' : ' ';
	size_t length = 0;

	*to = 0;
	/* What this half has no copy of is a handle, from which nothing can be read. */
	if (!bytes || bytes > 64 || !at || (unsigned long)at >> 60) {
		snprintf(to, size, "%p", (const void *)at);
		return 0;
	}
	for (int i = 0; i < bytes && length < size; i++) {
		if (i && !plain)
			length += (size_t)snprintf(to + length, size - length, "%c", between);
		if (length < size)
			length += (size_t)snprintf(to + length, size - length, "%02x", at[i]);
	}
	return *letters == 'h' && letters[1] && strchr("CDN", letters[1]) ? 2 : 1;
}

static void append(char *to, size_t size, size_t *at, const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++, ++*at)
		if (*at + 1 < size)
			to[*at] = text[i];
}

int split_format(char *to, size_t size, const char *format, va_list given)
{
	size_t at = 0;
	va_list list;

	va_copy(list, given);
	while (*format) {
		char piece[48], text[1024];
		size_t plain = strcspn(format, "%");
		int longs;

		append(to, size, &at, format, plain);
		format += plain;
		if (!*format++)
			break;
		format = conversion(format, piece, sizeof(piece) - 1, &longs, &list);
		if (!*format)
			break;
		strncat(piece, format, 1);
		if (*format == '%')
			strcpy(text, "%");
		else if (*format == 's')
			snprintf(text, sizeof(text), piece, va_arg(list, char *));
		else if (*format == 'p') format += pointer(text, sizeof(text), format + 1, piece,
							   va_arg(list, unsigned char *));
		else if (longs)
			snprintf(text, sizeof(text), piece, va_arg(list, long));
		else
			snprintf(text, sizeof(text), piece, va_arg(list, int));
		append(to, size, &at, text, strlen(text));
		format++;
	}
	if (size)
		to[at < size ? at : size - 1] = 0;
	va_end(list);
	return (int)at;
}
