/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Each test is a function that its name describes; the program runs the one that it is given. */
#ifndef DDEKIT_TESTS_H
#define DDEKIT_TESTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(function) { #function, function }

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, \
				#condition); \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

#define MAIN(tests)                                                                            \
	int main(int argc, char **argv)                                                        \
	{                                                                                      \
		for (size_t i = 0; argc == 2 && i < sizeof(tests) / sizeof((tests)[0]); i++) { \
			if (strcmp((tests)[i].name, argv[1]) == 0) {                           \
				(tests)[i].run();                                              \
				return 0;                                                      \
			}                                                                      \
		}                                                                              \
		fprintf(stderr, "no such test\n");                                             \
		return 2;                                                                      \
	}

#endif
