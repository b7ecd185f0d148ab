// The directory with the devices' files. softrnic run creates it before the program, and names it
// in SOFTRNIC_SYSFS. Programs of a container have no softrnic run. The first access of such a
// process then runs the command softrnic, which creates the directory, because the files depend on
// the container's addresses. An access after these have changed runs it again for its ports.
#define _GNU_SOURCE
#include "tree.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

// helper is the call of the command.
struct helper {
	char command[PATH_MAX];
	const char *again; // a directory from before, or NULL
	int out; // the pipe for the name of the directory
};

#define HELPER_STACK (64 << 10)

static int run_helper(void *v)
{
	struct helper *h = v;
	char *args[] = {h->command, "run", "--describe", h->again ? "--tree" : NULL, (char *)h->again, NULL};
	int null = open("/dev/null", O_RDWR);
	// The library of verbs reports the same errors.
	if (null < 0 || dup2(null, 0) < 0 || dup2(null, 2) < 0 || dup2(h->out, 1) < 0)
		_exit(1);
	execve(h->command, args, environ);
	_exit(1);
}

// read_all reads the helper's output, and returns its length without the line feed. It returns 0 if
// the helper has failed.
static size_t read_all(int fd, char *buf, size_t size)
{
	size_t length = 0;
	for (;;) {
		ssize_t n = read(fd, buf + length, size - length);
		if (n > 0)
			length += n;
		else if (n == 0 || errno != EINTR)
			return length && buf[length - 1] == '\n' ? length - 1 : 0;
	}
}

// find_command writes the file of the command softrnic to command. It returns 0 if there is none.
static int find_command(char command[PATH_MAX])
{
	Dl_info self;
	const char *given = secure_getenv("SOFTRNIC_COMMAND");
	if (given)
		return snprintf(command, PATH_MAX, "%s", given) < PATH_MAX && !access(command, X_OK);
	if (!dladdr((void *)devices_tree, &self) || !strrchr(self.dli_fname, '/'))
		return 0;
	int n = strrchr(self.dli_fname, '/') - self.dli_fname;
	return snprintf(command, PATH_MAX, "%.*s/../../bin/softrnic", n, self.dli_fname) < PATH_MAX && !access(command, X_OK);
}

// start runs a function in a child that has this memory until it executes a program or ends. It
// returns the child, or -1. A child that executes no program sends no SIGCHLD, and wait and
// waitpid(-1) of its parent do not return it. With execve, it becomes an ordinary child: so a child
// of the program only starts the command, as a child of its own.
static int start(int (*run)(void *), void *arg)
{
	sigset_t all, before;
	char *stack = mmap(NULL, HELPER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		return -1;
	sigfillset(&all); // no handler of the program runs in the child
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int pid = clone(run, stack + HELPER_STACK, CLONE_VM | CLONE_VFORK, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stack, HELPER_STACK);
	return pid;
}

// above_standard returns the descriptor, or a copy above those of standard input, output and error
// instead. A daemon may have closed these, and the helper's would replace the descriptor.
static int above_standard(int fd)
{
	if (fd > STDERR_FILENO)
		return fd;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	close(fd);
	return copy;
}

// help runs the helper in a child of its own, and waits for its end.
static int help(void *v)
{
	int pid = start(run_helper, v);
	while (pid > 0 && waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	_exit(0);
}

// describe writes the name of the directory to tree, or "" if that fails. The pipe has room for it.
// again is a directory from before that is to be as the devices are now, or NULL.
static void describe(char tree[PATH_MAX], const char *again)
{
	struct helper h;
	int pipe[2], cancel;
	*tree = 0;
	if (!find_command(h.command) || pipe2(pipe, O_CLOEXEC))
		return;
	h.again = again;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	h.out = above_standard(pipe[1]);
	int pid = h.out < 0 ? -1 : start(help, &h);
	if (h.out >= 0)
		close(h.out);
	if (pid > 0) {
		// The end of the output shows whether the helper has succeeded. Its parent has its status.
		tree[read_all(pipe[0], tree, PATH_MAX)] = 0;
		while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
			;
	}
	close(pipe[0]);
	pthread_setcancelstate(cancel, NULL);
}

// answerer is the call of the command for netlink.
struct answerer {
	char command[PATH_MAX], port[16];
	const char *tree;
	int socket;
};

static int run_answerer(void *v)
{
	struct answerer *a = v;
	char *args[] = {a->command, "run", "--netlink", a->port, "--tree", (char *)(*a->tree ? a->tree : "/"), NULL};
	int null = open("/dev/null", O_RDWR);
	if (null < 0 || dup2(null, 1) < 0 || dup2(null, 2) < 0 || dup2(a->socket, 0) < 0)
		_exit(1);
	execve(a->command, args, environ);
	_exit(1);
}

// detach starts the command in a child of its own, which no process needs to wait for.
static int detach(void *v)
{
	_exit(start(run_answerer, v) < 0);
}

int netlink_answers(const char *tree, int flags)
{
	struct answerer a = {.tree = tree};
	int pair[2], cancel, status = 1;
	if (!find_command(a.command) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	snprintf(a.port, sizeof a.port, "%d", getpid());
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	a.socket = above_standard(pair[1]);
	int pid = a.socket < 0 ? -1 : start(detach, &a);
	while (pid > 0 && waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
		;
	if (a.socket >= 0)
		close(a.socket);
	if (pid <= 0 || status) {
		close(pair[0]);
		pair[0] = -1;
	} else {
		if (!(flags & SOCK_CLOEXEC))
			fcntl(pair[0], F_SETFD, 0);
		if (flags & SOCK_NONBLOCK)
			fcntl(pair[0], F_SETFL, O_NONBLOCK);
	}
	pthread_setcancelstate(cancel, NULL);
	return pair[0];
}

// add adds bytes to a hash (FNV-1a).
static uint64_t add(uint64_t hash, const void *data, size_t n)
{
	for (const unsigned char *p = data; n; n--)
		hash = (hash ^ *p++) * 0x100000001b3;
	return hash;
}

#define HASH_OF_NOTHING 0xcbf29ce484222325

// add_flags adds the lines of the kernel's list of IPv6 addresses, which has their flags: an
// address is no GID while it is tentative. Without IPv6 there is no list.
static uint64_t add_flags(uint64_t sum)
{
	char buf[4096];
	ssize_t n;
	uint64_t hash = HASH_OF_NOTHING;
	int fd = syscall(SYS_openat, AT_FDCWD, "/proc/net/if_inet6", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? sum : 0;
	while ((n = read(fd, buf, sizeof buf)) > 0)
		for (ssize_t i = 0; i < n; i++) {
			hash = add(hash, buf + i, 1);
			if (buf[i] == '\n') {
				sum += hash;
				hash = HASH_OF_NOTHING;
			}
		}
	close(fd);
	return sum;
}

// addresses returns a hash of what the files depend on: the states of the interfaces, and the
// addresses. Their order does not matter. It returns 0 if it cannot see them.
static uint64_t addresses(void)
{
	struct ifaddrs *all, *a;
	uint64_t sum = 0;
	int cancel;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	if (!getifaddrs(&all)) {
		for (a = all; a; a = a->ifa_next) {
			uint64_t hash = add(add(HASH_OF_NOTHING, a->ifa_name, strlen(a->ifa_name)), &a->ifa_flags, sizeof a->ifa_flags);
			if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET)
				hash = add(hash, &((struct sockaddr_in *)a->ifa_addr)->sin_addr, 4);
			else if (a->ifa_addr && a->ifa_addr->sa_family == AF_PACKET)
				hash = add(hash, ((struct sockaddr_ll *)a->ifa_addr)->sll_addr, 8);
			sum += hash;
		}
		freeifaddrs(all);
		sum = add_flags(sum);
	}
	pthread_setcancelstate(cancel, NULL);
	return sum;
}

// result is a directory that a helper has created.
struct result {
	struct result *next; // an earlier one
	uid_t user; // a program may change its user, who has a directory of his own
	uint64_t addresses; // for which the helper has been called
	int64_t look; // the time of the next look at them, in milliseconds
	char tree[PATH_MAX]; // empty: there is none
};

static struct result *results;

static struct result *result_of(uid_t user)
{
	struct result *r = __atomic_load_n(&results, __ATOMIC_ACQUIRE);
	while (r && r->user != user)
		r = r->next;
	return r;
}

// Milliseconds between two looks at the addresses. A look costs as much as ten to a hundred
// accesses.
#define LOOK_INTERVAL 100

// Milliseconds until the helper is called again after it has failed.
#define RETRY_INTERVAL 5000

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec * 1000ll + t.tv_nsec / 1000000;
}

// has_changed reports whether the addresses have changed, to one of the threads that ask at once.
static int has_changed(struct result *r)
{
	int64_t look = __atomic_load_n(&r->look, __ATOMIC_RELAXED), time = now();
	if (time < look || !__atomic_compare_exchange_n(&r->look, &look, time + LOOK_INTERVAL, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		return 0;
	uint64_t has = addresses();
	return has && __atomic_exchange_n(&r->addresses, has, __ATOMIC_RELAXED) != has;
}

// retry makes has_changed true after a while.
static void retry(struct result *r)
{
	__atomic_store_n(&r->addresses, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&r->look, now() + RETRY_INTERVAL, __ATOMIC_RELAXED);
}

// create makes the helper create a directory for a user. before is what failed earlier, or NULL.
static struct result *create(uid_t user, struct result *before)
{
	struct result *r = calloc(1, sizeof *r);
	if (!r)
		return before;
	r->user = user;
	r->look = now() + LOOK_INTERVAL;
	r->addresses = addresses();
	describe(r->tree, NULL);
	if (!*r->tree && before) {
		free(r);
		retry(before);
		return before;
	}
	if (!*r->tree)
		retry(r);
	r->next = __atomic_load_n(&results, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&results, &r->next, r, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	return r;
}

// described returns the directory that the helper creates, or NULL. Threads that are here at once
// have a helper each, and all use the same directory. So no lock is held for the time of a helper,
// which a child after fork or a signal handler could wait for.
static const char *described(void)
{
	int before = errno;
	char tree[PATH_MAX];
	struct result *r = result_of(geteuid());
	if (!r || (!*r->tree && has_changed(r))) {
		r = create(geteuid(), r);
	} else if (*r->tree && has_changed(r)) {
		describe(tree, r->tree);
		if (!*tree)
			retry(r);
	}
	errno = before;
	return r && *r->tree ? r->tree : NULL;
}

static int has_prefix(const char *path, const char *prefix) { return !strncmp(path, prefix, strlen(prefix)); }

const char *devices_tree(const char *path)
{
	const char *tree = secure_getenv("SOFTRNIC_SYSFS");
	if (tree || getauxval(AT_SECURE))
		return tree;
	// All other paths are used by programs without RDMA too. They matter if there is a card.
	if (!has_prefix(path, "/sys/class/infiniband") && !has_prefix(path, "/sys/module/nvidia_peermem") &&
		!has_prefix(path, "/dev/infiniband") &&
		!has_prefix(path, "/sys/devices/virtual/infiniband") &&
		!__atomic_load_n(&results, __ATOMIC_ACQUIRE) && !secure_getenv("SOFTRNIC_CARD"))
		return NULL;
	return described();
}
