// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A fault for a user half that runs, which is the program that everyone runs: it is traced, and
// knows nothing of it.
//
//     inject PID KIND SEED MILLISECONDS
//
// All threads are traced until one of them is at the Nth crossing of an upcall (N by SEED), then
// that thread goes on by a number of single instructions, and the fault is put where it stands.
// Without an upcall in so many milliseconds it gets a thread that waits.
//
//     null     the next instructions read from address 0
//     jump     it goes on at an address that is none of its code
//     illegal  the next instruction is none
//     flip     one bit of the code that comes next is another
//     write    random bytes in its memory: where its registers point, on the stack and anywhere
//              else
//     loop     the next instruction is a jump to itself
//     stop     SIGSTOP
//     kill     SIGKILL
//     call     SIGKILL a moment after a call of the kernel has begun
//
// It says `injected KIND PLACE ENTRY CROSSINGS INSTRUCTIONS`: PLACE is code, call or idle, ENTRY
// the number of the entry.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"
#include "random.h"

#define THREADS 64
#define STEPS 256 // instructions behind a crossing, at most
#define RANGES 256

static struct thread {
	pid_t id;
	long entry; // that it runs; -1: none that is known
} threads[THREADS];
static int nthreads;
static pid_t process;
static volatile sig_atomic_t late;

static void too_late(int number)
{
	(void)number;
	late = 1;
}

static void die(const char *what)
{
	fprintf(stderr, "inject: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct thread *thread(pid_t id)
{
	for (int i = 0; i < nthreads; i++)
		if (threads[i].id == id)
			return &threads[i];
	if (nthreads == THREADS)
		die("threads");
	threads[nthreads] = (struct thread){ id, -1 };
	return &threads[nthreads++];
}

static void trace_all(void)
{
	char path[64];
	struct dirent *one;
	DIR *folder;

	snprintf(path, sizeof(path), "/proc/%d/task", process);
	folder = opendir(path);
	if (!folder)
		die(path);
	while ((one = readdir(folder))) {
		pid_t id = atoi(one->d_name);

		if (!id)
			continue;
		if (ptrace(PTRACE_SEIZE, id, 0, PTRACE_O_TRACECLONE | PTRACE_O_TRACESYSGOOD) ||
		    ptrace(PTRACE_INTERRUPT, id, 0, 0))
			die("tracing");
		thread(id);
	}
	closedir(folder);
}

// Whether a thread that has stopped at a system call is in an upcall, and whether the call of the
// kernel is yet to come.
static int crossing(struct thread *at, int *enters)
{
	struct __ptrace_syscall_info info = { 0 };
	struct user_regs_struct registers;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, at->id, sizeof(info), &info) < 0 ||
	    ptrace(PTRACE_GETREGS, at->id, 0, &registers))
		return 0;
	*enters = info.op == PTRACE_SYSCALL_INFO_ENTRY;
	if (registers.orig_rax != SYS_ioctl)
		return 0;
	if ((unsigned int)registers.rsi == (unsigned int)SPLIT_IOC_CALL)
		return 1;
	if ((unsigned int)registers.rsi != (unsigned int)SPLIT_IOC_NEXT)
		return 0;
	if (*enters || registers.rax) {
		at->entry = -1;
		return 0;
	}
	// The upcall has come.
	at->entry = (unsigned int)(ptrace(PTRACE_PEEKDATA, at->id,
					  registers.rdx + offsetof(struct split_next, entry), 0) &
				   0xffffffff);
	return 1;
}

// Lets all run until one of them stops at a system call; NULL when it is too late. Nobody waits for
// one that we hold.
static struct thread *wait_stop(void)
{
	while (!late) {
		int status, number;
		pid_t id = waitpid(-1, &status, __WALL);

		if (id < 0 && errno == EINTR)
			continue;
		if (id < 0)
			return NULL;
		if (!WIFSTOPPED(status))
			continue;
		number = WSTOPSIG(status);
		if (number == (SIGTRAP | 0x80))
			return thread(id);
		// A stop of the tracer's own is none of the process.
		ptrace(PTRACE_SYSCALL, id, 0, status >> 16 ? 0 : number);
	}
	return NULL;
}

// Until one is at its crossing, which is the last of `crossings`: of those that enter the kernel
// alone, if that is wanted.
static struct thread *wait_crossing(long *crossings, int *enters, int calls)
{
	long left = *crossings;
	struct thread *at;

	*crossings = 0;
	while ((at = wait_stop())) {
		if (crossing(at, enters) && (*enters || !calls)) {
			++*crossings;
			if (--left <= 0)
				return at;
		}
		ptrace(PTRACE_SYSCALL, at->id, 0, 0);
	}
	return NULL;
}

// Until the system call of one is done.
static struct thread *wait_exit(struct thread *one)
{
	struct thread *at;

	ptrace(PTRACE_SYSCALL, one->id, 0, 0);
	while ((at = wait_stop()) && at != one)
		ptrace(PTRACE_SYSCALL, at->id, 0, 0);
	return at;
}

static struct thread *interrupted(void)
{
	int status;

	ptrace(PTRACE_INTERRUPT, process, 0, 0);
	// It may have stopped of itself; then it is not interrupted any more.
	if (waitpid(process, &status, __WALL) != process || !WIFSTOPPED(status))
		die("the process is gone");
	return thread(process);
}

static int next_is_call(pid_t id)
{
	struct user_regs_struct registers;

	if (ptrace(PTRACE_GETREGS, id, 0, &registers))
		return 1;
	return (ptrace(PTRACE_PEEKTEXT, id, registers.rip, 0) & 0xffff) == 0x050f; // syscall
}

// Further by so many instructions of its own, but not into the next call of the kernel.
static long step(pid_t id, long steps)
{
	long done = 0;
	int status;

	while (done < steps && !next_is_call(id) && !ptrace(PTRACE_SINGLESTEP, id, 0, 0) &&
	       waitpid(id, &status, __WALL) == id && WIFSTOPPED(status))
		done++;
	return done;
}

static void put_code(pid_t id, const struct user_regs_struct *registers, uint64_t code, int bytes)
{
	uint64_t mask = bytes == 8 ? ~0ULL : (1ULL << 8 * bytes) - 1;
	uint64_t word = (uint64_t)ptrace(PTRACE_PEEKTEXT, id, registers->rip, 0);

	ptrace(PTRACE_POKETEXT, id, registers->rip, (word & ~mask) | code);
}

static void flip(pid_t id, const struct user_regs_struct *registers)
{
	uint64_t at = registers->rip + any() % 32;

	ptrace(PTRACE_POKETEXT, id, at, ptrace(PTRACE_PEEKTEXT, id, at, 0) ^ (1L << any() % 8));
}

struct range {
	uint64_t start, end;
};

static int writable(struct range *ranges)
{
	char path[64], line[512], rights[5];
	int count = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", process);
	maps = fopen(path, "r");
	while (maps && count < RANGES && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %4s", &ranges[count].start, &ranges[count].end,
			   rights) == 3 && rights[1] == 'w')
			count++;
	if (maps)
		fclose(maps);
	return count;
}

static void write_bytes(int memory, uint64_t at, int words)
{
	for (int i = 0; i < words; i++) {
		uint64_t value = any();

		// Whole words, and numbers that may be right.
		if (any() % 2)
			value %= 65536;
		if (pwrite(memory, &value, any() % 4 ? 8 : 1, (off_t)(at + 8 * (uint64_t)i)) < 0)
			return;
	}
}

static void write_wild(const struct user_regs_struct *registers)
{
	const uint64_t pointers[] =
		{ registers->rax, registers->rbx, registers->rcx, registers->rdx, registers->rsi,
		  registers->rdi, registers->rbp, registers->r8, registers->r9, registers->r10,
		  registers->r12, registers->r13, registers->r14, registers->r15, registers->rsp };
	struct range ranges[RANGES];
	int count = writable(ranges), memory;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/mem", process);
	memory = open(path, O_RDWR);
	if (memory < 0 || !count)
		die(path);
	for (unsigned int i = 0; i < sizeof(pointers) / sizeof(*pointers); i++)
		for (int r = 0; r < count; r++)
			if (pointers[i] >= ranges[r].start && pointers[i] < ranges[r].end &&
			    any() % 2)
				write_bytes(memory, pointers[i] + any() % 512, 1 + any() % 8);
	for (uint64_t n = any() % 64; n; n--) {
		const struct range *range = &ranges[any() % (uint64_t)count];

		write_bytes(memory, (range->start + any() % (range->end - range->start)) & ~7ULL,
			    1 + any() % 8);
	}
	close(memory);
}

static void inject(const char *kind, pid_t id)
{
	struct user_regs_struct registers;

	if (ptrace(PTRACE_GETREGS, id, 0, &registers))
		die("registers");
	if (!strcmp(kind, "null")) {
		put_code(id, &registers, 0x008bc031, 4); // xor eax, eax; mov eax, [rax]
	} else if (!strcmp(kind, "illegal")) {
		put_code(id, &registers, 0x0b0f, 2); // ud2
	} else if (!strcmp(kind, "loop")) {
		put_code(id, &registers, 0xfeeb, 2); // jmp to itself
	} else if (!strcmp(kind, "flip")) {
		flip(id, &registers);
	} else if (!strcmp(kind, "write")) {
		write_wild(&registers);
	} else if (!strcmp(kind, "jump")) {
		registers.rip = any() % 2 ? any() >> 17 : any() % 65536;
		ptrace(PTRACE_SETREGS, id, 0, &registers);
	} else if (!strcmp(kind, "stop")) {
		kill(process, SIGSTOP);
	} else if (!strcmp(kind, "kill")) {
		kill(process, SIGKILL);
	} else if (strcmp(kind, "call")) {
		fprintf(stderr, "inject: no kind of fault: %s\n", kind);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct itimerval limit = { 0 };
	struct sigaction action = { .sa_handler = too_late };
	long crossings, steps = 0;
	const char *kind, *place = "code";
	int enters = 0, in_call;
	struct thread *at;

	if (argc != 5) {
		fprintf(stderr, "usage: inject PID KIND SEED MILLISECONDS\n");
		return 2;
	}
	process = atoi(argv[1]);
	kind = argv[2];
	begin(strtoull(argv[3], NULL, 0));
	in_call = !strcmp(kind, "call");
	// As many near the begin of an upcall as deep in a long one.
	crossings = 1 + (long)(any() % (2ULL << any() % 9));
	limit.it_value.tv_sec = atol(argv[4]) / 1000;
	limit.it_value.tv_usec = atol(argv[4]) % 1000 * 1000;
	trace_all();
	printf("traced\n");
	fflush(stdout);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &limit, NULL);
	at = wait_crossing(&crossings, &enters, in_call);
	if (at && enters && !in_call)
		// Behind the call it is the process's own code again.
		at = wait_exit(at);
	else if (at && enters)
		place = "call";
	if (!at) {
		at = interrupted();
		place = "idle";
	} else if (!in_call) {
		steps = step(at->id, (long)(any() % STEPS));
	}
	if (in_call) {
		// All go on; the process ends while the kernel works for it, or a little later.
		ptrace(PTRACE_DETACH, at->id, 0, 0);
		usleep((useconds_t)(any() % 4 ? any() % 300 : any() % 5000));
		kill(process, SIGKILL);
	} else {
		inject(kind, at->id);
		// Not left to our end, which would let it go on by single instructions, into
		// SIGTRAP.
		ptrace(PTRACE_DETACH, at->id, 0, 0);
	}
	printf("injected %s %s %ld %ld %ld\n", kind, place, at->entry, crossings, steps);
	// Who traces ends, and all threads go on untraced.
	return 0;
}
