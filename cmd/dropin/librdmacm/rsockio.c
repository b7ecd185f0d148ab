// Data transfer over rsockets.
#include "rsock.h"
#include <limits.h>

// Flags that have no effect: rsockets raise no SIGPIPE, receive no descriptors and never delay
// data.
#define IGNORED_FLAGS (MSG_NOSIGNAL | MSG_CMSG_CLOEXEC | MSG_MORE)

// The largest datagram in bytes; rsocket.MaxDatagram.
#define MAX_DATAGRAM 2048

// receive_datagram receives one datagram. from and truncated may be NULL. With MSG_TRUNC the result
// is the datagram's length.
static ssize_t receive_datagram(struct rsock *s, const struct iovec *v, size_t n, int flags, struct sr_cm_addr *from, int *truncated)
{
	char b[MAX_DATAGRAM];
	struct sr_cm_addr ignored;
	size_t got, at = 0;
	int err, wait = !s->nonblock && !(flags & MSG_DONTWAIT);
	int64_t end = wait ? deadline(s->receive_timeout) : -1;
	if (flags & ~(MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC | MSG_WAITALL | IGNORED_FLAGS))
		return result(EOPNOTSUPP);
	enter_engine();
	while ((err = engine->rs_recvfrom(s->handle, b, sizeof b, flags & MSG_PEEK, &got, from ? from : &ignored)) == EAGAIN && wait)
		if ((err = wait_rsock(s, POLLIN, end)))
			break;
	if (err)
		return result(err);
	for (size_t i = 0; i < n && at < got; i++) {
		size_t some = v[i].iov_len < got - at ? v[i].iov_len : got - at;
		memcpy(v[i].iov_base, b + at, some);
		at += some;
	}
	if (truncated)
		*truncated = at < got;
	return flags & MSG_TRUNC ? got : at;
}

// transmit_datagram sends one datagram, to the address of rconnect if to is NULL.
static ssize_t transmit_datagram(struct rsock *s, const struct iovec *v, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	char b[MAX_DATAGRAM];
	struct sr_cm_addr a;
	size_t sum = 0;
	int err = to ? get_name(s, &a, to, len) : 0, wait = !s->nonblock && !(flags & MSG_DONTWAIT);
	int64_t end = wait ? deadline(s->send_timeout) : -1;
	if (err)
		return result(err);
	if (flags & ~(MSG_DONTWAIT | MSG_WAITALL | MSG_EOR | IGNORED_FLAGS))
		return result(EOPNOTSUPP);
	for (size_t i = 0; i < n; i++) {
		if (v[i].iov_len > sizeof b - sum)
			return result(EMSGSIZE);
		memcpy(b + sum, v[i].iov_base, v[i].iov_len);
		sum += v[i].iov_len;
	}
	enter_engine();
	while ((err = engine->rs_sendto(s->handle, b, sum, to ? &a : NULL)) == EAGAIN && wait)
		if ((err = wait_rsock(s, POLLOUT, end)))
			break;
	return err ? result(err) : (ssize_t)sum;
}

static ssize_t receive(int fd, const struct iovec *v, size_t n, int flags)
{
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	if (s->type == SOCK_DGRAM)
		return receive_datagram(s, v, n, flags, NULL, NULL);
	if (flags & ~(MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | IGNORED_FLAGS))
		return result(EOPNOTSUPP);
	int wait = !s->nonblock && !(flags & MSG_DONTWAIT), all = flags & MSG_WAITALL && !(flags & MSG_PEEK);
	int64_t end = wait ? deadline(s->receive_timeout) : -1;
	ssize_t total = 0;
	enter_engine();
	for (size_t i = 0; i < n; i++) {
		for (size_t at = 0; at < v[i].iov_len;) {
			size_t got;
			int err = engine->rs_recv(s->handle, (char *)v[i].iov_base + at, v[i].iov_len - at, flags & MSG_PEEK, &got);
			if (err == EAGAIN && wait && (!total || all))
				err = wait_rsock(s, POLLIN, end);
			else if (!err && !got)
				return total;
			if (err)
				return total ? total : result(err);
			at += got;
			total += got;
			if (got && flags & MSG_PEEK)
				return total; // another peek would return the same data
			if (got && at < v[i].iov_len && !all)
				return total;
		}
	}
	return total;
}

static ssize_t transmit(int fd, const struct iovec *v, size_t n, int flags)
{
	struct rsock *s = find_rsock(fd);
	if (!s)
		return -1;
	if (s->type == SOCK_DGRAM)
		return transmit_datagram(s, v, n, flags, NULL, 0);
	// MSG_WAITALL is always in effect.
	if (flags & ~(MSG_DONTWAIT | MSG_WAITALL | MSG_EOR | IGNORED_FLAGS))
		return result(EOPNOTSUPP);
	int wait = !s->nonblock && !(flags & MSG_DONTWAIT);
	int64_t end = wait ? deadline(s->send_timeout) : -1;
	ssize_t total = 0;
	enter_engine();
	for (size_t i = 0; i < n; i++) {
		for (size_t at = 0; at < v[i].iov_len;) {
			size_t put;
			int err = engine->rs_send(s->handle, (char *)v[i].iov_base + at, v[i].iov_len - at, &put);
			if (err == EAGAIN && wait)
				err = wait_rsock(s, POLLOUT, end);
			if (err)
				return total ? total : result(err);
			at += put;
			total += put;
		}
	}
	return total;
}

// check_iov checks a list as the kernel does. It returns 0 or an errno.
static int check_iov(const struct iovec *v, size_t n)
{
	size_t sum = 0;
	if (n > IOV_MAX)
		return EINVAL;
	for (size_t i = 0; i < n; i++) {
		if (v[i].iov_len > SSIZE_MAX - sum)
			return EINVAL;
		sum += v[i].iov_len;
	}
	return 0;
}

static ssize_t receive_one(int fd, void *buf, size_t n, int flags)
{
	struct iovec v = {.iov_base = buf, .iov_len = n < SSIZE_MAX ? n : SSIZE_MAX};
	return receive(fd, &v, 1, flags);
}

static ssize_t transmit_one(int fd, const void *buf, size_t n, int flags)
{
	struct iovec v = {.iov_base = (void *)buf, .iov_len = n < SSIZE_MAX ? n : SSIZE_MAX};
	return transmit(fd, &v, 1, flags);
}

PUBLIC ssize_t rrecv(int fd, void *buf, size_t n, int flags) { return receive_one(fd, buf, n, flags); }
PUBLIC ssize_t rread(int fd, void *buf, size_t n) { return receive_one(fd, buf, n, 0); }

// As for TCP, the address of a stream's peer is not set.
PUBLIC ssize_t rrecvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *from, socklen_t *len)
{
	struct rsock *s = find_rsock(fd);
	if (s && s->type == SOCK_DGRAM) {
		struct iovec v = {.iov_base = buf, .iov_len = n};
		struct sr_cm_addr a = {0};
		ssize_t got = receive_datagram(s, &v, 1, flags, &a, NULL);
		if (got >= 0 && from && len)
			give_name(&a, from, len);
		return got;
	}
	ssize_t got = receive_one(fd, buf, n, flags);
	if (got >= 0 && from && len)
		*len = 0;
	return got;
}

PUBLIC ssize_t rreadv(int fd, const struct iovec *v, int n)
{
	int err = n < 0 ? EINVAL : check_iov(v, n);
	return err ? result(err) : receive(fd, v, n, 0);
}

PUBLIC ssize_t rrecvmsg(int fd, struct msghdr *m, int flags)
{
	int err = check_iov(m->msg_iov, m->msg_iovlen);
	if (err)
		return result(err);
	struct rsock *s = find_rsock(fd);
	struct sr_cm_addr a = {0};
	int truncated = 0, datagrams = s && s->type == SOCK_DGRAM;
	ssize_t got = datagrams ? receive_datagram(s, m->msg_iov, m->msg_iovlen, flags, &a, &truncated)
				: receive(fd, m->msg_iov, m->msg_iovlen, flags);
	if (got < 0)
		return got;
	if (datagrams && m->msg_name)
		give_name(&a, m->msg_name, &m->msg_namelen);
	else
		m->msg_namelen = 0;
	m->msg_controllen = 0;
	m->msg_flags = truncated ? MSG_TRUNC : 0;
	return got;
}

PUBLIC ssize_t rsend(int fd, const void *buf, size_t n, int flags) { return transmit_one(fd, buf, n, flags); }
PUBLIC ssize_t rwrite(int fd, const void *buf, size_t n) { return transmit_one(fd, buf, n, 0); }

PUBLIC ssize_t rsendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *to, socklen_t len)
{
	struct rsock *s = find_rsock(fd);
	if (s && s->type == SOCK_DGRAM) {
		struct iovec v = {.iov_base = (void *)buf, .iov_len = n};
		return transmit_datagram(s, &v, 1, flags, to, len);
	}
	if (to || len)
		return result(s ? EISCONN : EBADF);
	return transmit_one(fd, buf, n, flags);
}

PUBLIC ssize_t rwritev(int fd, const struct iovec *v, int n)
{
	int err = n < 0 ? EINVAL : check_iov(v, n);
	return err ? result(err) : transmit(fd, v, n, 0);
}

PUBLIC ssize_t rsendmsg(int fd, const struct msghdr *m, int flags)
{
	int err = check_iov(m->msg_iov, m->msg_iovlen);
	if (!err && m->msg_controllen)
		err = EOPNOTSUPP;
	struct rsock *s = find_rsock(fd);
	if (!err && s && s->type == SOCK_DGRAM)
		return transmit_datagram(s, m->msg_iov, m->msg_iovlen, flags, m->msg_name, m->msg_namelen);
	return err ? result(err) : transmit(fd, m->msg_iov, m->msg_iovlen, flags);
}
