// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What a user half gives up before any code of the driver runs: all but the device that it has
 * open.
 *
 * # Order
 * As in ring3's sandbox of drivers (crates/processes/sandbox): descriptors, limits, files, user,
 * capabilities, system calls. Nothing is undone on the way: a process of which a step has failed
 * ends. One that is not root's has nothing to give up but files and system calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "split.h"

#define DEVICE 3 /* where the descriptor of the device is, the only one beside the standard ones */
#define FILES 16
#define THREADS_OF_USER 4096

static int failed(const char *what)
{
	split_log("it cannot be confined (%s: %s): start it as root, or with --unconfined", what,
		  strerror(errno));
	return -1;
}

/* The device, the standard descriptors, and no other. */
static int close_others(void)
{
	if (split_device != DEVICE && dup2(split_device, DEVICE) < 0)
		return failed("its device");
	split_device = DEVICE;
	if (syscall(SYS_close_range, DEVICE + 1, ~0U, 0) < 0)
		return failed("closing descriptors");
	return 0;
}

static int limit(void)
{
	static const struct {
		__rlimit_resource_t resource;
		rlim_t most;
	} limits[] = { { RLIMIT_NOFILE, FILES }, { RLIMIT_CORE, 0 },
		       { RLIMIT_NPROC, THREADS_OF_USER } };

	for (unsigned int i = 0; i < sizeof(limits) / sizeof(*limits); i++) {
		struct rlimit now;

		/* One that is lower stays. */
		if (getrlimit(limits[i].resource, &now) < 0)
			return failed("its limits");
		if (now.rlim_max > limits[i].most)
			now.rlim_max = limits[i].most;
		if (now.rlim_cur > now.rlim_max)
			now.rlim_cur = now.rlim_max;
		if (setrlimit(limits[i].resource, &now) < 0)
			return failed("its limits");
	}
	return 0;
}

/* An empty read-only folder as root, and no network, in namespaces of its own. */
static int empty_root(void)
{
	static const char *const places[] = { "/proc", "/sys", "/dev", "/tmp" };
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY;
	const char *at = NULL;
	struct stat found;

	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) < 0)
		return failed("namespaces");
	if (mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0)
		return failed("private mounts");
	/* One of these folders is there on every system; what it holds is not touched. */
	for (unsigned int i = 0; !at && i < sizeof(places) / sizeof(*places); i++)
		if (mount("ring3", places[i], "tmpfs", flags, "size=4k,nr_inodes=1,mode=0555") == 0)
			at = places[i];
	if (!at || chdir(at) < 0)
		return failed("an empty root");
	if (syscall(SYS_pivot_root, ".", ".") == 0) {
		if (umount2(".", MNT_DETACH) < 0)
			return failed("letting go of the old root");
	} else if (errno != EINVAL || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0) {
		/* An initial RAM file system cannot be let go of. It is covered. */
		return failed("changing the root");
	}
	if (chdir("/") < 0)
		return failed("the new root");
	/* Seen, not believed. */
	if (lstat("/proc", &found) == 0 || errno != ENOENT)
		return failed("there is something in the new root");
	return 0;
}

static int change_user(unsigned int user, unsigned int group)
{
	if (setgroups(0, NULL) < 0 || setresgid(group, group, group) < 0 ||
	    setresuid(user, user, user) < 0)
		return failed("another user");
	return 0;
}

static int drop_bounding(void)
{
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (unsigned long one = 0; prctl(PR_CAPBSET_READ, one, 0, 0, 0) >= 0; one++)
		if (prctl(PR_CAPBSET_DROP, one, 0, 0, 0) < 0)
			return failed("capabilities");
	return 0;
}

static int drop_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { 0 }, left[2];

	if (syscall(SYS_capset, &header, none) < 0 || syscall(SYS_capget, &header, left) < 0 ||
	    memcmp(none, left, sizeof(none)))
		return failed("capabilities");
	return 0;
}

/*
 * All that the kernel's landlock knows of files, ports, sockets and signals; nothing is allowed.
 * [landlock(7)]
 */
static int restrict_files(void)
{
	struct {
		unsigned long long files, ports, others;
	} handled = { 0x1fff, 0, 0 };
	long version = syscall(SYS_landlock_create_ruleset, NULL, 0, 1), rules;

	if (version < 1) {
		split_log("this kernel has no landlock: only the empty root and the filter of "
			  "system calls keep it from files");
		return 0;
	}
	if (version >= 2)
		handled.files |= 1 << 13; /* refer */
	if (version >= 3)
		handled.files |= 1 << 14; /* truncate */
	if (version >= 4)
		handled.ports = 3; /* bind, connect */
	if (version >= 5)
		handled.files |= 1 << 15; /* ioctl of devices that it would open */
	if (version >= 6)
		handled.others = 3; /* abstract sockets, signals */
	rules = syscall(SYS_landlock_create_ruleset, &handled,
			version >= 6 ? 24 : version >= 4 ? 16 : 8, 0);
	if (rules < 0 || syscall(SYS_landlock_restrict_self, rules, 0) < 0 || close((int)rules) < 0)
		return failed("landlock");
	return 0;
}

/*
 * A system call that is allowed if `argument & mask == value`; with an error it is answered, and
 * not made.
 */
struct rule {
	unsigned int call, argument, mask, value, error;
};

#define THREAD (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD)
#define ELSEWHERE \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | \
	 CLONE_NEWPID | CLONE_NEWNET | CLONE_PTRACE)
#define ANY(name) { SYS_##name, 0, 0, 0, 0 }
#define ONLY(name, argument, mask, value) { SYS_##name, argument, mask, (unsigned int)(value), 0 }
#define ANSWER(name, error) { SYS_##name, 0, 0, 0, error }

static const struct rule rules[] = {
	/* The device: upcalls and calls. */
	ONLY(ioctl, 1, ~0U, SPLIT_IOC_ATTACH),
	ONLY(ioctl, 1, ~0U, SPLIT_IOC_NEXT),
	ONLY(ioctl, 1, ~0U, SPLIT_IOC_CALL),
	/* The log. */
	ONLY(write, 0, ~0U, 2),
	/* Memory, never to be executed. */
	ONLY(mmap, 2, PROT_EXEC, 0),
	ONLY(mprotect, 2, PROT_EXEC, 0),
	ANY(munmap),
	ANY(mremap),
	ANY(brk),
	ONLY(madvise, 2, ~0U, MADV_DONTNEED),
	/* 102 is MADV_GUARD_INSTALL: guard pages of stacks, as newer C libraries make them. */
	ONLY(madvise, 2, ~0U, 102),
	/*
	 * Threads, and no process. The C library does without clone3, whose arguments no filter
	 * sees.
	 */
	ONLY(clone, 0, THREAD | ELSEWHERE, THREAD),
	ANSWER(clone3, ENOSYS),
	ANY(set_robust_list),
	ANY(rseq),
	ANY(futex),
	ANY(gettid),
	ANY(getpid),
	ANY(exit),
	ANY(exit_group),
	/* Signals of its own: a fault is told, and ends it. */
	ANY(rt_sigaction),
	ANY(rt_sigprocmask),
	ANY(rt_sigreturn),
	ANY(sigaltstack),
	ONLY(tgkill, 0, ~0U, 0 /* its own number */),
	/* Time. */
	ANY(clock_gettime),
	ANY(clock_nanosleep),
	ANY(nanosleep),
	ANY(restart_syscall),
	ANY(getrandom),
	/* What the C library looks for and can do without. */
	ANSWER(openat, EACCES),
};

#define COUNT (sizeof(rules) / sizeof(*rules))
#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned int)(at))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, (unsigned int)(what))
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip)

/* Any other system call ends the process: whoever makes one is not the driver that was meant. */
static int filter_calls(void)
{
	static struct sock_filter code[5 + 6 * COUNT];
	struct sock_fprog program = { .filter = code };
	unsigned short n = 0;

	code[n++] = (struct sock_filter)LOAD(offsetof(struct seccomp_data, arch));
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1,
						 0);
	code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	for (const struct rule *rule = rules; rule < rules + COUNT; rule++) {
		unsigned int verdict = rule->error ? SECCOMP_RET_ERRNO | rule->error :
				       SECCOMP_RET_ALLOW;
		unsigned int value = rule->call == SYS_tgkill ? (unsigned int)getpid() :
				     rule->value;

		code[n++] = (struct sock_filter)LOAD(offsetof(struct seccomp_data, nr));
		if (rule->mask) {
			code[n++] = (struct sock_filter)UNLESS(rule->call, 4);
			/* The lower half, which is all that the kernel looks at of these. */
			code[n++] = (struct sock_filter)LOAD(offsetof(struct seccomp_data,
								      args[rule->argument]));
			code[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K,
								 rule->mask);
			code[n++] = (struct sock_filter)UNLESS(value, 1);
		} else {
			code[n++] = (struct sock_filter)UNLESS(rule->call, 1);
		}
		code[n++] = (struct sock_filter)RETURN(verdict);
	}
	code[n++] = (struct sock_filter)RETURN(SECCOMP_RET_KILL_PROCESS);
	program.len = n;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
		return failed("filtering system calls");
	return 0;
}

/*
 * Whoever has opened the device for it is to end it, and does so when he ends himself. He reads the
 * log, and may have ended already.
 */
static int tie_to_parent(void)
{
	struct pollfd log = { .fd = 2 };

	if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
		return failed("its end with its parent");
	return poll(&log, 1, 0) > 0 && log.revents & POLLERR ? -1 : 0;
}

/*
 * Confines this process, which has one thread and the device open, as one of `user`; `tied`: it
 * ends with its parent. After an error it must end.
 */
int split_confine(unsigned int user, unsigned int group, int tied)
{
	int rights = geteuid() == 0;

	if (close_others() || limit())
		return -1;
	if (rights && (drop_bounding() || empty_root()))
		return -1;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return failed("no new privileges");
	if ((rights && change_user(user, group)) || (tied && tie_to_parent()) || restrict_files() ||
	    drop_capabilities())
		return -1;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return failed("hiding its memory");
	return filter_calls();
}
