// softrnic run --sockets preloads libsoftrnic-sockets.so. It replaces the C library's functions
// that connect, bind and name TCP sockets. They first send a request to the agent in softrnic run,
// which carries the program's connections over RDMA. For the program, a connection is always a
// kernel socket: read, write, epoll, fork, dup and sendfile are unchanged.
#define _GNU_SOURCE
#include "agent.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <netinet/in.h>
#include <sys/un.h>

static struct sockaddr_un agent;
static socklen_t agent_len; // 0: no agent
static uint8_t token[TOKEN];
static int direct;

int has_agent(void) { return agent_len != 0; }

int hands_over(void) { return direct; }

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// read_environment reads SOFTRNIC_SOCKETS once, as programs change their environment. It is the
// name of a socket in the abstract namespace, a colon, the token in hexadecimal, and ":direct" if
// the agent hands connections over.
__attribute__((constructor)) static void read_environment(void)
{
	const char *s = getenv("SOFTRNIC_SOCKETS"), *colon = s ? strchr(s, ':') : NULL;
	if (!colon || (size_t)(colon - s) >= sizeof agent.sun_path - 1 || strlen(colon + 1) < 2 * TOKEN)
		return;
	const char *rest = colon + 1 + 2 * TOKEN;
	if (*rest && strcmp(rest, ":direct"))
		return;
	for (int i = 0; i < TOKEN; i++) {
		int high = digit(colon[1 + 2 * i]), low = digit(colon[2 + 2 * i]);
		if (high < 0 || low < 0)
			return;
		token[i] = high << 4 | low;
	}
	agent.sun_family = AF_UNIX;
	memcpy(agent.sun_path + 1, s, colon - s);
	direct = *rest != 0;
	agent_len = offsetof(struct sockaddr_un, sun_path) + 1 + (colon - s);
}

static int next_connect(int fd, const struct sockaddr *to, socklen_t len)
{
	NEXT(connect, int, const struct sockaddr *, socklen_t);
	return next(fd, to, len);
}

int next_getpeername(int fd, struct sockaddr *to, socklen_t *len)
{
	NEXT(getpeername, int, struct sockaddr *, socklen_t *);
	return next(fd, to, len);
}

int next_getsockname(int fd, struct sockaddr *to, socklen_t *len)
{
	NEXT(getsockname, int, struct sockaddr *, socklen_t *);
	return next(fd, to, len);
}

int next_getsockopt(int fd, int level, int option, void *value, socklen_t *len)
{
	NEXT(getsockopt, int, int, int, void *, socklen_t *);
	return next(fd, level, option, value, len);
}

int next_setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
	NEXT(setsockopt, int, int, int, const void *, socklen_t);
	return next(fd, level, option, value, len);
}

ssize_t next_recvmsg(int fd, struct msghdr *m, int flags)
{
	NEXT_OF(ssize_t, recvmsg, int, struct msghdr *, int);
	return next(fd, m, flags);
}

// to_name converts an address to the form of requests. It returns whether it is an IP address.
static int to_name(struct name *n, const struct sockaddr *from, socklen_t len)
{
	struct sockaddr_in a4;
	struct sockaddr_in6 a6;
	memset(n, 0, sizeof *n);
	if (from && len >= sizeof a4 && from->sa_family == AF_INET) {
		memcpy(&a4, from, sizeof a4);
		n->family = 4;
		n->port = a4.sin_port;
		memcpy(n->addr, &a4.sin_addr, 4);
	} else if (from && len >= sizeof a6 && from->sa_family == AF_INET6) {
		memcpy(&a6, from, sizeof a6);
		n->family = 6;
		n->port = a6.sin6_port;
		memcpy(n->addr, &a6.sin6_addr, 16);
		n->scope = a6.sin6_scope_id;
	}
	return n->family != 0;
}

// from_name converts an address of an answer to the family of the program's socket, as the kernel
// does. It returns 0 if the address does not fit the family.
static int from_name(const struct name *n, sa_family_t family, struct sockaddr *to, socklen_t *len, socklen_t room)
{
	struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = n->port};
	struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = n->port, .sin6_scope_id = n->scope};
	if (!n->family || (family == AF_INET && n->family != 4))
		return 0;
	if (n->family == 4) {
		memcpy(&a4.sin_addr, n->addr, 4);
		a6.sin6_addr.s6_addr[10] = a6.sin6_addr.s6_addr[11] = 0xff;
		memcpy(a6.sin6_addr.s6_addr + 12, n->addr, 4);
	} else {
		memcpy(&a6.sin6_addr, n->addr, 16);
	}
	const void *real = family == AF_INET ? (void *)&a4 : (void *)&a6;
	socklen_t size = family == AF_INET ? sizeof a4 : sizeof a6;
	memcpy(to, real, room < size ? room : size);
	*len = size;
	return 1;
}

static void close_socket(void *s)
{
	if (*(int *)s >= 0)
		close(*(int *)s);
}

// Control message with one descriptor.
union rights {
	struct cmsghdr header;
	char room[CMSG_SPACE(sizeof(int))];
};

// receive_answer receives an answer, and returns whether it is one.
static int receive_answer(int s, struct answer *answer, int *interrupted)
{
	struct iovec v = {.iov_base = answer, .iov_len = offsetof(struct answer, socket)};
	union rights control;
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t got;
	while ((got = next_recvmsg(s, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		*interrupted = 1;
	answer->socket = NO_SOCKET;
	if (got <= 0)
		return 0;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&answer->socket, CMSG_DATA(c), sizeof(int));
	else if (m.msg_flags & MSG_CTRUNC)
		answer->socket = LOST_SOCKET;
	return got == (ssize_t)v.iov_len;
}

// ask_long sends a request to the agent and waits for the answer. If the agent no longer exists,
// the request is declined. *interrupted becomes 1 if a signal handler without SA_RESTART has run
// meanwhile.
static int ask_long(int fd, int op, const struct name *name, struct answer *answer, int *interrupted)
{
	struct request r = {.op = op};
	struct iovec v = {.iov_base = &r, .iov_len = sizeof r};
	union rights control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int before = errno, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), got = 0;
	answer->socket = NO_SOCKET;
	memcpy(r.token, token, sizeof token);
	if (name)
		r.name = *name;
	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	pthread_cleanup_push(close_socket, &s);
	if (s >= 0 && !next_connect(s, (struct sockaddr *)&agent, agent_len) && sendmsg(s, &m, MSG_NOSIGNAL) == sizeof r)
		got = receive_answer(s, answer, interrupted);
	pthread_cleanup_pop(1);
	errno = before;
	return got ? answer->status : DECLINED;
}

// ask is ask_long for requests that are answered at once. The thread is not cancelled meanwhile, as
// it may hold a descriptor that accept has returned.
int ask(int fd, int op, const struct name *name, struct answer *answer)
{
	int interrupted, before;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	int status = ask_long(fd, op, name, answer, &interrupted);
	pthread_setcancelstate(before, &before);
	return status;
}

// is_tcp reports whether there is an agent and a descriptor is a TCP socket.
static int is_tcp(int fd)
{
	int before = errno, protocol, domain;
	socklen_t len = sizeof protocol;
	int tcp = agent_len && !next_getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) && protocol == IPPROTO_TCP &&
		  !next_getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) && (domain == AF_INET || domain == AF_INET6);
	errno = before;
	return tcp;
}

static int result(int err)
{
	if (!err)
		return 0;
	errno = err;
	return -1;
}

// interrupted_connect is connect over TCP after a signal has interrupted the call. As in the
// kernel, the connection is then established in the background.
static int interrupted_connect(int fd, const struct sockaddr *to, socklen_t len)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || flags & O_NONBLOCK || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return next_connect(fd, to, len);
	int got = next_connect(fd, to, len), err = errno;
	fcntl(fd, F_SETFL, flags);
	errno = got && err == EINPROGRESS ? EINTR : err;
	return got;
}

PUBLIC int socket(int domain, int type, int protocol)
{
	NEXT(socket, int, int, int);
	int fd = next(domain, type, protocol);
	is_new(fd);
	return fd;
}

// As for TCP, connect of a nonblocking socket returns EINPROGRESS. The agent continues, and in the
// kernel the socket waits for the answer to a SYN.
PUBLIC int connect(int fd, const struct sockaddr *to, socklen_t len)
{
	struct name n;
	struct answer a;
	if (!is_tcp(fd) && is_direct(fd)) {
		int again = ask(fd, CONNECT, NULL, &a);
		return again == DECLINED ? next_connect(fd, to, len) : result(again);
	}
	if (!is_tcp(fd) || !to_name(&n, to, len))
		return next_connect(fd, to, len);
	int interrupted = 0, status = ask_long(fd, CONNECT, &n, &a, &interrupted);
	if (status == DECLINED)
		return interrupted ? interrupted_connect(fd, to, len) : next_connect(fd, to, len);
	if (a.socket == LOST_SOCKET)
		return result(EMFILE);
	if (a.socket != NO_SOCKET && replace_socket(fd, a.socket))
		return -1;
	return result(status ? status : fcntl(fd, F_GETFL) & O_NONBLOCK ? EINPROGRESS : 0);
}

PUBLIC int bind(int fd, const struct sockaddr *to, socklen_t len)
{
	NEXT(bind, int, const struct sockaddr *, socklen_t);
	struct name n;
	struct answer a;
	int got = next(fd, to, len);
	if (!got || errno != EADDRNOTAVAIL || !is_tcp(fd) || !to_name(&n, to, len))
		return got;
	int status = ask(fd, BIND, &n, &a);
	return result(status == DECLINED ? EADDRNOTAVAIL : status);
}

// RDMA listens before TCP, so that a peer that reaches TCP can use RDMA. But if the port is 0, the
// kernel only now chooses it, and RDMA listens after.
PUBLIC int listen(int fd, int backlog)
{
	NEXT(listen, int, int);
	struct answer a;
	struct sockaddr_storage at;
	struct name n = {0};
	socklen_t len = sizeof at;
	if (!is_tcp(fd))
		return next(fd, backlog);
	if (!next_getsockname(fd, (struct sockaddr *)&at, &len))
		to_name(&n, (struct sockaddr *)&at, len);
	if (n.port)
		ask(fd, LISTEN, NULL, &a);
	int got = next(fd, backlog);
	if (!got && !n.port)
		ask(fd, LISTEN, NULL, &a);
	return got;
}

static int is_loopback(const struct name *n)
{
	static const uint8_t one[16] = {[15] = 1}, mapped[13] = {[10] = 0xff, 0xff, 127};
	return n->family == 4 ? n->addr[0] == 127 : n->family == 6 && (!memcmp(n->addr, one, 16) || !memcmp(n->addr, mapped, 13));
}

// may_be_ours reports whether the agent may have established a connection or bound its socket. The
// other end is then on this machine.
static int may_be_ours(int fd)
{
	struct sockaddr_storage a;
	struct name local = {0}, peer = {0};
	int before = errno;
	socklen_t len = sizeof a;
	if (!is_tcp(fd))
		return 0;
	if (!next_getsockname(fd, (struct sockaddr *)&a, &len))
		to_name(&local, (struct sockaddr *)&a, len);
	len = sizeof a;
	if (!next_getpeername(fd, (struct sockaddr *)&a, &len))
		to_name(&peer, (struct sockaddr *)&a, len);
	errno = before;
	return is_loopback(&local) || is_loopback(&peer) || (peer.family && !memcmp(peer.addr, local.addr, sizeof peer.addr));
}

// family_of returns the family of the program's socket, or -1.
static int family_of(int fd)
{
	int family;
	socklen_t size = sizeof family;
	return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) ? -1 : family;
}

// rename_ours replaces an address of the kernel by the address over RDMA, if the agent carries the
// connection. It returns 0 or an errno.
static int rename_ours(int fd, int op, struct sockaddr *to, socklen_t *len, socklen_t room)
{
	struct answer a;
	int direct = is_direct(fd);
	if (!direct && !may_be_ours(fd))
		return 0;
	int status = ask(fd, op, NULL, &a);
	if (status)
		return direct && status != DECLINED ? status : 0;
	int family = family_of(fd);
	if (direct && !a.name.family) { // not connected yet
		memset(to, 0, room);
		*len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
		if (room >= sizeof to->sa_family)
			to->sa_family = family;
		return 0;
	}
	from_name(&a.name, family, to, len, room);
	return 0;
}

PUBLIC int getpeername(int fd, struct sockaddr *to, socklen_t *len)
{
	socklen_t room = len ? *len : 0;
	int got = next_getpeername(fd, to, len);
	return got ? got : result(rename_ours(fd, PEER, to, len, room));
}

PUBLIC int getsockname(int fd, struct sockaddr *to, socklen_t *len)
{
	socklen_t room = len ? *len : 0;
	int got = next_getsockname(fd, to, len);
	return got ? got : result(rename_ours(fd, LOCAL, to, len, room));
}

// accepted takes the program's end of a direct connection, and replaces the address of the kernel.
// It returns the descriptor, or -1.
static int accepted(int fd, struct sockaddr *from, socklen_t *len, socklen_t room)
{
	struct answer a;
	int named = from && len;
	is_new(fd);
	if (fd < 0 || (!named && !hands_over()) || !may_be_ours(fd))
		return fd;
	int family = family_of(fd), status = ask(fd, hands_over() ? TAKE : PEER, NULL, &a);
	if (a.socket == LOST_SOCKET || (a.socket != NO_SOCKET && replace_socket(fd, a.socket))) {
		close(fd);
		return result(EMFILE);
	}
	if (!status && named)
		from_name(&a.name, family, from, len, room);
	return fd;
}

PUBLIC int accept(int fd, struct sockaddr *from, socklen_t *len)
{
	NEXT(accept, int, struct sockaddr *, socklen_t *);
	socklen_t room = from && len ? *len : 0;
	return accepted(next(fd, from, len), from, len, room);
}

PUBLIC int accept4(int fd, struct sockaddr *from, socklen_t *len, int flags)
{
	NEXT(accept4, int, struct sockaddr *, socklen_t *, int);
	socklen_t room = from && len ? *len : 0;
	return accepted(next(fd, from, len, flags), from, len, room);
}
