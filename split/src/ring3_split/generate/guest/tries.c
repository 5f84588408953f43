// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// Has a user half that runs make a system call that it should not be able to make, as one that was
// taken over would.
//
//     tries PID file|socket|fork|exec|code|device
//
// It says `CALL: refused: WHY`, `CALL: ended by signal N` or `CALL: is made`, and fails after the
// last. Who was refused goes on.

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define SYSCALL 2 // bytes of the instruction
#define TRIES 500 // of 20 ms, until it waits

static pid_t process;

static void die(const char *what)
{
	fprintf(stderr, "tries: %s: %s\n", what, strerror(errno));
	exit(2);
}

// Its next stop. Whoever has ended is told.
static void stop(const char *name)
{
	int status;

	if (waitpid(process, &status, __WALL) != process)
		die("waiting");
	if (WIFSTOPPED(status))
		return;
	if (WIFSIGNALED(status))
		printf("%s: ended by signal %d\n", name, WTERMSIG(status));
	exit(!WIFSIGNALED(status));
}

static void set(struct user_regs_struct *at, long call, unsigned long first, unsigned long second,
		unsigned long third)
{
	at->rip -= SYSCALL;
	at->orig_rax = (unsigned long)-1;
	at->rax = (unsigned long)call;
	at->rdi = first;
	at->rsi = second;
	at->rdx = third;
	at->r10 = MAP_PRIVATE | MAP_ANONYMOUS;
	at->r8 = (unsigned long)-1;
	at->r9 = 0;
}

static int choose(const char *name, struct user_regs_struct *at, unsigned long path)
{
	if (!strcmp(name, "file"))
		set(at, SYS_openat, (unsigned long)AT_FDCWD, path, O_RDONLY);
	else if (!strcmp(name, "socket"))
		set(at, SYS_socket, AF_INET, SOCK_STREAM, 0);
	else if (!strcmp(name, "fork"))
		set(at, SYS_clone, SIGCHLD, 0, 0);
	else if (!strcmp(name, "exec"))
		set(at, SYS_execve, path, 0, 0);
	else if (!strcmp(name, "code"))
		set(at, SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	else if (!strcmp(name, "device"))
		set(at, SYS_ioctl, 3, 0x5401, 0);
	else
		return 0;
	return 1;
}

int main(int argc, char **argv)
{
	struct user_regs_struct before, at;
	const char *name;
	long result;

	if (argc != 3)
		return 2;
	process = atoi(argv[1]);
	name = argv[2];
	if (ptrace(PTRACE_SEIZE, process, 0, PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_INTERRUPT, process, 0, 0))
		die("tracing");
	stop(name);
	// It waits for the next upcall, in a system call, as soon as it has answered the last one.
	for (int try = 0;
	     ptrace(PTRACE_GETREGS, process, 0, &before) || before.orig_rax != SYS_ioctl; try++) {
		if (try == TRIES)
			die("it does not wait for an upcall");
		if (ptrace(PTRACE_CONT, process, 0, 0))
			die("going on");
		usleep(20000);
		if (ptrace(PTRACE_INTERRUPT, process, 0, 0))
			die("stopping");
		stop(name);
	}
	at = before;
	if (!choose(name, &at, before.rsp - 1024))
		return 2;
	if (ptrace(PTRACE_POKEDATA, process, before.rsp - 1024, (unsigned long)'/') ||
	    ptrace(PTRACE_SETREGS, process, 0, &at))
		die("registers");
	for (int side = 0; side < 2; side++) {
		if (ptrace(PTRACE_SYSCALL, process, 0, 0))
			die("going on");
		stop(name);
	}
	if (ptrace(PTRACE_GETREGS, process, 0, &at))
		die("registers");
	result = (long)at.rax;
	// And waits again.
	before.rip -= SYSCALL;
	before.rax = before.orig_rax;
	before.orig_rax = (unsigned long)-1;
	if (ptrace(PTRACE_SETREGS, process, 0, &before) || ptrace(PTRACE_SYSCALL, process, 0, 0))
		die("going on");
	// One that is ended for its call is so only now.
	stop(name);
	if (ptrace(PTRACE_DETACH, process, 0, 0))
		die("letting go");
	if (result < 0)
		printf("%s: refused: %s\n", name, strerror((int)-result));
	else
		printf("%s: is made\n", name);
	return result >= 0;
}
