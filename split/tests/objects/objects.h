/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT */
#ifndef OBJECTS_H
#define OBJECTS_H

struct part { /* which the user half allocates */
	unsigned long number;
};

struct thing { /* which the kernel makes */
	char *label;
	unsigned long number, holders;
};

struct box { /* which every upcall is about */
	struct thing *thing, *seen; /* the second is the kernel half's */
	struct part *part;
	char text[8]; /* which the kernel half prints */
	char behind[8];
};

enum { MAKE, END, HOLD, DROP, WAIT, TURN, TAKE_RTNL, GIVE_RTNL, FILL };
enum { LASTING, BARE }; /* mutexes of the kernel half: the second is zeroed memory */
#define BY_WORK 100000 /* instead of a count */
#define ALONE 200000
#define WITH_RTNL 300000
#define MEMORY 400000
#define TEXT 500000
#define LOCKS 600000

#endif
