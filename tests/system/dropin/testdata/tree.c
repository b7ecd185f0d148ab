// A program in a container whose environment is unusual when it first looks at sysfs. It is linked
// with libsysfs/tree.c. The command that tree.c runs prints "/of-UID", or fails for user 3. With
// CALLS in the environment, it adds a byte to this file, and prints "/up" if there is an address.
#define _GNU_SOURCE
#include "../../../../cmd/dropin/libsysfs/tree.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static FILE *report; // standard output may be closed
static int failed;

static void fail(const char *what, const char *got)
{
	fprintf(report, "%s: %s\n", what, got ? got : "(none)");
	failed = 1;
}

static volatile sig_atomic_t ended;
static void on_end(int signal) { ended = signal; }

// wait_for_any waits for the program's children, as shells do. There are none.
static void *wait_for_any(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
		int status;
		if (waitpid(-1, &status, WNOHANG) > 0)
			fail("waitpid(-1)", "it has returned the helper");
	}
	return NULL;
}

static void describes(const char *when, const char *want)
{
	const char *got = devices_tree("/sys/class/infiniband");
	if ((got != NULL) != (want != NULL) || (got && strcmp(got, want)))
		fail(when, got);
}

// loopback_up gives the new network namespace an address.
static int loopback_up(void)
{
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), bad = ioctl(s, SIOCSIFFLAGS, &r);
	close(s);
	return bad;
}

int main(int argc, char **argv)
{
	const char *test = argc > 1 ? argv[1] : "";
	pthread_t waiter;
	int stop = 0;
	if (!(report = fdopen(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10), "w")))
		return 1;
	setvbuf(report, NULL, _IONBF, 0);
	if (!strcmp(test, "signal")) { // no SIGCHLD, and no child for waitpid(-1)
		signal(SIGCHLD, on_end);
		pthread_create(&waiter, NULL, wait_for_any, &stop);
		describes(test, "/of-0");
		__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
		pthread_join(waiter, NULL);
		if (ended)
			fail(test, "SIGCHLD");
		if (waitpid(-1, NULL, WNOHANG | __WALL) != -1 || errno != ECHILD)
			fail(test, "a child is left");
	} else if (!strcmp(test, "ignored")) {
		signal(SIGCHLD, SIG_IGN);
		describes(test, "/of-0");
	} else if (!strcmp(test, "closed")) {
		char got[8] = "";
		for (int fd = 0; fd <= 2; fd++)
			close(fd);
		describes(test, "/of-0");
		int fd = netlink_answers("/", 0); // the command returns what it receives
		if (fd < 0 || send(fd, "hello", 5, 0) != 5 || recv(fd, got, sizeof got - 1, 0) != 5 || strcmp(got, "hello"))
			fail("netlink_answers", got);
	} else if (!strcmp(test, "user")) { // each user has his own directory
		describes("root", "/of-0");
		if (seteuid(3))
			fail("seteuid", strerror(errno));
		describes("a user without a directory", NULL);
		if (seteuid(0) || setuid(7))
			fail("setuid", strerror(errno));
		describes("another user", "/of-7");
	} else if (!strcmp(test, "changed")) { // the command runs again after a change, and only then
		struct stat first, calls;
		if (unshare(CLONE_NEWNET))
			fail("unshare", strerror(errno));
		describes("without an address", "/of-0");
		for (int i = 0; i < 30; i++, usleep(10000))
			describes("nothing has changed", "/of-0");
		if (stat(getenv("CALLS"), &first))
			fail("stat", strerror(errno));
		if (loopback_up())
			fail("loopback_up", strerror(errno));
		for (int i = 0; i < 1000 && !stat(getenv("CALLS"), &calls) && calls.st_size == first.st_size; i++, usleep(10000))
			describes("with an address", "/of-0");
		for (int i = 0; i < 30; i++, usleep(10000))
			describes("after the change", "/of-0");
	} else {
		fail("no test", test);
	}
	return failed;
}
