// Direct connections, between two programs of this machine. In place of its TCP socket each has one
// end of a pair of Unix sockets. This file gives such an end what a TCP socket has: its options,
// and resets.
#define _GNU_SOURCE
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>

static int is_unnamed(int (*name)(int, struct sockaddr *, socklen_t *), int fd)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof a;
	return !name(fd, (struct sockaddr *)&a, &len) && a.ss_family == AF_UNIX && len == sizeof a.ss_family;
}

int is_direct(int fd)
{
	if (!hands_over())
		return 0;
	int before = errno, type;
	socklen_t len = sizeof type;
	struct stat stat;
	// The ends of files come here too, also in sandboxes whose filters of system calls have no
	// getsockopt.
	int direct = !fstat(fd, &stat) && S_ISSOCK(stat.st_mode) &&
		     !next_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_STREAM &&
		     is_unnamed(next_getsockname, fd) && is_unnamed(next_getpeername, fd);
	errno = before;
	return direct;
}

int options_of(int fd)
{
	struct answer a;
	return ask(fd, OPTIONS, NULL, &a) ? -1 : a.socket;
}

// Registrations with epoll

// The last epoll instance with which a descriptor was registered, plus 1. The kernel knows whether
// it still is. Few programs register a socket with one before they connect it, and none is known
// that does so with two.
#define MOST 65536
static _Atomic int registered[MOST];

static int next_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	NEXT(epoll_ctl, int, int, int, struct epoll_event *);
	return next(epoll, op, fd, event);
}

PUBLIC int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	int got = next_epoll_ctl(epoll, op, fd, event);
	if (!got && op == EPOLL_CTL_ADD && fd >= 0 && fd < MOST)
		atomic_store_explicit(&registered[fd], epoll + 1, memory_order_relaxed);
	return got;
}

// registration finds a descriptor's registration (proc(5), /proc/pid/fdinfo), and returns the epoll
// instance, or -1.
static int registration(int fd, struct epoll_event *event)
{
	int epoll = fd >= 0 && fd < MOST ? atomic_load_explicit(&registered[fd], memory_order_relaxed) - 1 : -1;
	char path[64], line[256];
	struct stat stat;
	if (epoll < 0 || fstat(fd, &stat))
		return -1;
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll);
	FILE *f = fopen(path, "re");
	int found = 0;
	while (f && !found && fgets(line, sizeof line, f)) {
		int tfd;
		unsigned events;
		unsigned long long data, inode;
		// A descriptor of this number may have been registered, closed and be open elsewhere.
		found = sscanf(line, "tfd: %d events: %x data: %llx pos:%*d ino:%llx", &tfd, &events, &data, &inode) == 4 && tfd == fd &&
			inode == stat.st_ino;
		if (found)
			*event = (struct epoll_event){.events = events, .data.u64 = data};
	}
	if (f)
		fclose(f);
	return found ? epoll : -1;
}

static const int copied[] = {SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVLOWAT, SO_LINGER, SO_OOBINLINE};

static int aborts(const struct linger *l) { return l->l_onoff && !l->l_linger; }

int replace_socket(int fd, int by)
{
	struct epoll_event event;
	struct linger linger = {0};
	socklen_t len = sizeof linger;
	int flags = fcntl(fd, F_GETFL), own = fcntl(fd, F_GETFD), epoll = registration(fd, &event);
	if (flags >= 0)
		fcntl(by, F_SETFL, flags);
	for (unsigned i = 0; i < sizeof copied / sizeof *copied; i++) {
		struct timeval value; // the largest
		socklen_t size = sizeof value;
		if (!next_getsockopt(fd, SOL_SOCKET, copied[i], &value, &size))
			next_setsockopt(by, SOL_SOCKET, copied[i], &value, size);
	}
	// The agent keeps the former socket, and with it the registration.
	if (epoll >= 0)
		next_epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
	int got = dup3(by, fd, own >= 0 && own & FD_CLOEXEC ? O_CLOEXEC : 0), err = errno;
	close(by);
	if (epoll >= 0)
		next_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	struct answer a;
	if (got >= 0 && !next_getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) && aborts(&linger))
		ask(fd, ABORTS, NULL, &a);
	errno = err;
	return got < 0 ? -1 : 0;
}

// Options

// is_missing reports whether a call for an option has failed since a Unix socket does not have it.
static int is_missing(int level) { return level != SOL_SOCKET && (errno == EOPNOTSUPP || errno == ENOPROTOOPT); }

PUBLIC int setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	struct linger before = {0}, now;
	socklen_t size = sizeof before;
	struct answer a;
	int linger = level == SOL_SOCKET && option == SO_LINGER && len >= sizeof now && is_direct(fd), options;
	if (linger)
		next_getsockopt(fd, SOL_SOCKET, SO_LINGER, &before, &size);
	int got = next_setsockopt(fd, level, option, value, len);
	if (!got && linger) {
		memcpy(&now, value, sizeof now);
		if (aborts(&before) != aborts(&now))
			ask(fd, aborts(&now) ? ABORTS : ENDS, NULL, &a);
	} else if (got && is_missing(level) && is_direct(fd) && (options = options_of(fd)) >= 0) {
		got = next_setsockopt(options, level, option, value, len);
		int err = errno;
		close(options);
		errno = err;
	}
	return got;
}

static int is_ours(int fd)
{
	int before = errno, protocol;
	socklen_t len = sizeof protocol;
	int tcp = !next_getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) && protocol == IPPROTO_TCP;
	errno = before;
	return tcp || is_direct(fd);
}

// If the agent cannot establish a connection, it can only make the kernel report ECONNRESET. The
// agent returns the actual error.
PUBLIC int getsockopt(int fd, int level, int option, void *value, socklen_t *len)
{
	struct answer a;
	socklen_t room = len ? *len : 0;
	int got = next_getsockopt(fd, level, option, value, len), err, status, options;
	if (!has_agent())
		return got;
	if (!got && level == SOL_SOCKET && option == SO_ERROR && *len == sizeof err) {
		memcpy(&err, value, sizeof err);
		if (err == ECONNRESET && is_ours(fd) && (status = ask(fd, FAILURE, NULL, &a)) > 0)
			memcpy(value, &status, sizeof status);
		return got;
	}
	int differs = !got && level == SOL_SOCKET && (option == SO_DOMAIN || option == SO_PROTOCOL);
	if ((differs || (got && is_missing(level))) && is_direct(fd) && (options = options_of(fd)) >= 0) {
		*len = room;
		got = next_getsockopt(options, level, option, value, len);
		err = errno;
		close(options);
		errno = err;
	}
	return got;
}

// Ends of streams

// ended returns what a function returns that has read got bytes of len, into a reset if that is how
// the stream has ended.
static ssize_t ended(int fd, ssize_t got, size_t len)
{
	if (got || !len || !hands_over() || !is_direct(fd))
		return got;
	struct answer a;
	struct pollfd p = {.fd = fd};
	int before = errno;
	int reset = poll(&p, 1, 0) == 1 && p.revents & POLLHUP && ask(fd, END, NULL, &a) == ECONNRESET;
	errno = reset ? ECONNRESET : before;
	return reset ? -1 : got;
}

// is_error_queue reports whether a call reads the queue of errors, which a Unix socket does not
// have. It would read data.
static int is_error_queue(int fd, int flags)
{
	if (!(flags & MSG_ERRQUEUE) || !is_direct(fd))
		return 0;
	errno = EAGAIN;
	return 1;
}

PUBLIC ssize_t read(int fd, void *to, size_t len)
{
	NEXT_OF(ssize_t, read, int, void *, size_t);
	return ended(fd, next(fd, to, len), len);
}

PUBLIC ssize_t __read_chk(int fd, void *to, size_t len, size_t room)
{
	NEXT_OF(ssize_t, __read_chk, int, void *, size_t, size_t);
	return ended(fd, next(fd, to, len, room), len);
}

PUBLIC ssize_t readv(int fd, const struct iovec *to, int n)
{
	NEXT_OF(ssize_t, readv, int, const struct iovec *, int);
	size_t len = 0;
	ssize_t got = next(fd, to, n);
	for (int i = 0; !got && i < n; i++)
		len += to[i].iov_len;
	return ended(fd, got, len);
}

PUBLIC ssize_t recv(int fd, void *to, size_t len, int flags)
{
	NEXT_OF(ssize_t, recv, int, void *, size_t, int);
	return is_error_queue(fd, flags) ? -1 : ended(fd, next(fd, to, len, flags), len);
}

PUBLIC ssize_t __recv_chk(int fd, void *to, size_t len, size_t room, int flags)
{
	NEXT_OF(ssize_t, __recv_chk, int, void *, size_t, size_t, int);
	return is_error_queue(fd, flags) ? -1 : ended(fd, next(fd, to, len, room, flags), len);
}

PUBLIC ssize_t recvfrom(int fd, void *to, size_t len, int flags, struct sockaddr *from, socklen_t *from_len)
{
	NEXT_OF(ssize_t, recvfrom, int, void *, size_t, int, struct sockaddr *, socklen_t *);
	return is_error_queue(fd, flags) ? -1 : ended(fd, next(fd, to, len, flags, from, from_len), len);
}

PUBLIC ssize_t __recvfrom_chk(int fd, void *to, size_t len, size_t room, int flags, struct sockaddr *from, socklen_t *from_len)
{
	NEXT_OF(ssize_t, __recvfrom_chk, int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
	return is_error_queue(fd, flags) ? -1 : ended(fd, next(fd, to, len, room, flags, from, from_len), len);
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	if (is_error_queue(fd, flags))
		return -1;
	size_t len = 0;
	ssize_t got = next_recvmsg(fd, m, flags);
	for (size_t i = 0; !got && i < m->msg_iovlen; i++)
		len += m->msg_iov[i].iov_len;
	return ended(fd, got, len);
}

// As TCP, a direct connection ignores the address of sendto and sendmsg.
PUBLIC ssize_t sendto(int fd, const void *from, size_t len, int flags, const struct sockaddr *to, socklen_t to_len)
{
	NEXT_OF(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t got = next(fd, from, len, flags, to, to_len);
	if (got < 0 && errno == EISCONN && is_direct(fd))
		got = next(fd, from, len, flags, NULL, 0);
	return got;
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	NEXT_OF(ssize_t, sendmsg, int, const struct msghdr *, int);
	ssize_t got = next(fd, m, flags);
	if (got < 0 && errno == EISCONN && is_direct(fd)) {
		struct msghdr unnamed = *m;
		unnamed.msg_name = NULL;
		unnamed.msg_namelen = 0;
		got = next(fd, &unnamed, flags);
	}
	return got;
}
