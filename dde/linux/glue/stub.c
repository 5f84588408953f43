// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the generated stubs end: something of the kernel was called that is neither compiled nor
 * emulated.
 */
#include "dde.h"

void __noreturn dde_stub(const char *name);

void __noreturn dde_stub(const char *name)
{
	ddekit_panic("dde: %s() was called and is not there. Next: compile its file (lists/), "
		     "emulate it (emul/), or say in lists/reviewed.list what it may answer", name);
}
