// Direct connections, between two programs of this machine. In place of its TCP socket each has one
// end of a pair of Unix sockets. This file gives such an end what a TCP socket has: its options,
// and resets.
#define _GNU_SOURCE
#include "agent.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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

// The epoll instance with which a descriptor was registered, plus 1; SEVERAL; or 0. The kernel
// knows whether it still is.
#define MOST 65536
#define SEVERAL (-1)
static _Atomic int registered[MOST];

void is_new(int fd)
{
	if (fd >= 0 && fd < MOST)
		atomic_store_explicit(&registered[fd], 0, memory_order_relaxed);
}

static int next_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	NEXT(epoll_ctl, int, int, int, struct epoll_event *);
	return next(epoll, op, fd, event);
}

PUBLIC int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	int got = next_epoll_ctl(epoll, op, fd, event);
	if (!got && op == EPOLL_CTL_ADD && fd >= 0 && fd < MOST) {
		int known = atomic_load_explicit(&registered[fd], memory_order_relaxed);
		while (!atomic_compare_exchange_weak(&registered[fd], &known, known && known != epoll + 1 ? SEVERAL : epoll + 1))
			;
	}
	return got;
}

struct registration {
	int epoll;
	struct epoll_event event;
};

struct registrations {
	struct registration *all;
	int n;
};

// unregister_with ends a descriptor's registration with an epoll instance, if there is one
// (proc(5), /proc/pid/fdinfo), and adds it to r.
static void unregister_with(struct registrations *r, int epoll, int fd, ino_t inode)
{
	char path[64], line[256];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		int tfd;
		unsigned events;
		unsigned long long data, of;
		// A descriptor of this number may have been registered, closed and be open elsewhere.
		if (sscanf(line, "tfd: %d events: %x data: %llx pos:%*d ino:%llx", &tfd, &events, &data, &of) != 4 || tfd != fd || of != inode)
			continue;
		struct registration *all = realloc(r->all, (r->n + 1) * sizeof *all);
		if (!all)
			break;
		r->all = all;
		r->all[r->n++] = (struct registration){epoll, {.events = events, .data.u64 = data}};
		next_epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL);
		break;
	}
	if (f)
		fclose(f);
}

// unregister ends the registrations of a descriptor with epoll, and returns them.
static struct registrations unregister(int fd)
{
	struct registrations r = {0};
	int known = fd >= 0 && fd < MOST ? atomic_load_explicit(&registered[fd], memory_order_relaxed) : 0;
	struct stat stat;
	if (!known || fstat(fd, &stat))
		return r;
	if (known != SEVERAL) {
		unregister_with(&r, known - 1, fd, stat.st_ino);
		return r;
	}
	static const char epoll[] = "anon_inode:[eventpoll]";
	DIR *all = opendir("/proc/self/fd");
	for (struct dirent *e; all && (e = readdir(all));) {
		char to[sizeof epoll];
		if (readlinkat(dirfd(all), e->d_name, to, sizeof to) == sizeof epoll - 1 && !memcmp(to, epoll, sizeof epoll - 1))
			unregister_with(&r, atoi(e->d_name), fd, stat.st_ino);
	}
	if (all)
		closedir(all);
	return r;
}

static void register_again(struct registrations *r, int fd)
{
	for (int i = 0; i < r->n; i++)
		next_epoll_ctl(r->all[i].epoll, EPOLL_CTL_ADD, fd, &r->all[i].event);
	free(r->all);
}

// copy_signals copies who gets which signal when a socket is ready (fcntl(2), O_ASYNC).
static void copy_signals(int from, int to)
{
	struct f_owner_ex owner;
	int signal = fcntl(from, F_GETSIG);
	if (!fcntl(from, F_GETOWN_EX, &owner) && owner.pid)
		fcntl(to, F_SETOWN_EX, &owner);
	if (signal > 0)
		fcntl(to, F_SETSIG, signal);
}

static const int copied[] = {SO_RCVTIMEO,  SO_SNDTIMEO,  SO_RCVLOWAT,  SO_LINGER,  SO_OOBINLINE,
			     SO_KEEPALIVE, SO_REUSEADDR, SO_REUSEPORT, SO_PRIORITY};

static int aborts(const struct linger *l) { return l->l_onoff && !l->l_linger; }

int replace_socket(int fd, int by)
{
	struct linger linger = {0};
	socklen_t len = sizeof linger;
	int flags = fcntl(fd, F_GETFL), own = fcntl(fd, F_GETFD);
	if (flags >= 0)
		fcntl(by, F_SETFL, flags & ~O_ASYNC);
	copy_signals(fd, by);
	for (unsigned i = 0; i < sizeof copied / sizeof *copied; i++) {
		struct timeval value; // the largest
		socklen_t size = sizeof value;
		if (!next_getsockopt(fd, SOL_SOCKET, copied[i], &value, &size))
			next_setsockopt(by, SOL_SOCKET, copied[i], &value, size);
	}
	// The agent keeps the former socket, and with it the registration.
	struct registrations r = unregister(fd);
	int got = dup3(by, fd, own >= 0 && own & FD_CLOEXEC ? O_CLOEXEC : 0), err = errno;
	close(by);
	register_again(&r, fd);
	if (got >= 0 && flags >= 0 && flags & O_ASYNC) // of this descriptor, not of by
		fcntl(fd, F_SETFL, flags);
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
	if (!got && level == IPPROTO_TCP && option == TCP_DEFER_ACCEPT && hands_over()) {
		// The agent waits until the program has accepted a connection, and then hands it over.
		int never = 0;
		next_setsockopt(fd, level, option, &never, sizeof never);
	} else if (!got && linger) {
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

// state_of returns the state of a direct connection, as in TCP_INFO. A connection that both sides
// have ended is CLOSE-WAIT too, as the kernel does not say who was first.
static uint8_t state_of(int fd)
{
	struct answer a;
	struct pollfd p = {.fd = fd, .events = POLLOUT | POLLRDHUP};
	int before = errno;
	poll(&p, 1, 0);
	int peer_ended = p.revents & POLLRDHUP, ended = send(fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno == EPIPE;
	int pending = !(p.revents & POLLOUT) && ask(fd, PEER, NULL, &a) == ENOTCONN;
	errno = before;
	return peer_ended ? TCP_CLOSE_WAIT : ended ? TCP_FIN_WAIT2 : pending ? TCP_SYN_SENT : TCP_ESTABLISHED;
}

static int is_of_unix(int option)
{
	return option == SO_DOMAIN || option == SO_PROTOCOL || option == SO_PEERCRED || option == SO_PEERSEC || option == SO_PEERGROUPS;
}

// take_reset returns ECONNRESET if a direct connection has ended by a reset, and 0 later, as TCP
// reports that once.
static int take_reset(int fd)
{
	struct answer a;
	struct pollfd p = {.fd = fd};
	int before = errno;
	int reset = is_direct(fd) && poll(&p, 1, 0) == 1 && p.revents & POLLHUP && ask(fd, END, NULL, &a) == ECONNRESET;
	errno = before;
	return reset ? ECONNRESET : 0;
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
		else if (!err && (status = take_reset(fd)))
			memcpy(value, &status, sizeof status);
		return got;
	}
	int differs = !got && level == SOL_SOCKET && is_of_unix(option);
	if ((differs || (got && is_missing(level))) && is_direct(fd) && (options = options_of(fd)) >= 0) {
		*len = room;
		got = next_getsockopt(options, level, option, value, len);
		err = errno;
		close(options);
		errno = err;
		if (!got && level == IPPROTO_TCP && option == TCP_INFO && *len)
			*(uint8_t *)value = state_of(fd); // tcpi_state
	}
	return got;
}

// Ends of streams

// ended returns what a function returns that has read got bytes of len, into a reset if that is how
// the stream has ended.
static ssize_t ended(int fd, ssize_t got, size_t len)
{
	if (got || !len)
		return got;
	int reset = take_reset(fd);
	if (!reset)
		return got;
	errno = reset;
	return -1;
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

static size_t length(const struct msghdr *m)
{
	size_t len = 0;
	for (size_t i = 0; i < m->msg_iovlen; i++)
		len += m->msg_iov[i].iov_len;
	return len;
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	if (is_error_queue(fd, flags))
		return -1;
	ssize_t got = next_recvmsg(fd, m, flags);
	return got ? got : ended(fd, got, length(m));
}

PUBLIC int recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags, struct timespec *timeout)
{
	NEXT_OF(int, recvmmsg, int, struct mmsghdr *, unsigned, int, struct timespec *);
	if (is_error_queue(fd, flags))
		return -1;
	int got = next(fd, m, n, flags, timeout);
	for (int i = 0; i < got; i++) {
		if (m[i].msg_len || !length(&m[i].msg_hdr))
			continue;
		if (!is_direct(fd))
			return got; // an empty datagram
		// A reset is an error of the next call, if this one has read something.
		return i ? i : ended(fd, 0, 1) ? -1 : got;
	}
	return got;
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

PUBLIC int sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
	NEXT_OF(int, sendmmsg, int, struct mmsghdr *, unsigned, int);
	int got = next(fd, m, n, flags);
	if (got >= 0 || errno != EISCONN || !is_direct(fd))
		return got;
	for (got = 0; got < (int)n; got++) {
		ssize_t sent = sendmsg(fd, &m[got].msg_hdr, flags);
		if (sent < 0)
			return got ? got : -1;
		m[got].msg_len = sent;
	}
	return got;
}
