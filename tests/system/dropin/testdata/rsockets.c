// Rsockets with both ends in one process: their behaviour where sockets would wait, refuse or end,
// with errno as in rsocket(7) and socket(7). The first argument is an address of the device. A
// second argument adds or selects tests: "datagrams" adds datagrams, "defaults" selects the files
// of defaults, "close" and "connect" select those of TestCloseListener.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include <rdma/rsocket.h>

static void fail(int line, const char *what)
{
	printf("line %d: %s: %s\n", line, what, strerror(errno));
	exit(1);
}

#define OK(x) do { if (!(x)) fail(__LINE__, #x); } while (0)
#define FAILS(x, e) do { errno = 0; if ((x) != -1 || errno != (e)) fail(__LINE__, #x); } while (0)

static struct sockaddr_in addr;
static socklen_t len = sizeof addr;

static int option(int s, int level, int name)
{
	int v = -1;
	socklen_t n = sizeof v;
	OK(!rgetsockopt(s, level, name, &v, &n) && n == sizeof v);
	return v;
}

static int tcp_state(int s)
{
	struct tcp_info i = {.tcpi_rtt = 1};
	socklen_t n = sizeof i;
	OK(!rgetsockopt(s, IPPROTO_TCP, TCP_INFO, &i, &n) && n == sizeof i && i.tcpi_snd_mss >= 256 && !i.tcpi_rtt);
	n = 1; // a program built with older headers asks for less
	OK(!rgetsockopt(s, IPPROTO_TCP, TCP_INFO, &i, &n) && n == 1);
	return i.tcpi_state;
}

static int ready(int s, int events, int timeout)
{
	struct pollfd p = {.fd = s, .events = events};
	int n = rpoll(&p, 1, timeout);
	OK(n >= 0 && n == (p.revents != 0));
	return p.revents;
}

static void set_nonblock(int s, int on)
{
	OK(!rfcntl(s, F_SETFL, on ? O_NONBLOCK : 0));
	OK(!(rfcntl(s, F_GETFL) & O_NONBLOCK) == !on);
}

static void *write_later(void *v)
{
	usleep(50000);
	OK(rwrite(*(int *)v, "later", 5) == 5);
	return NULL;
}

static void *write_much(void *v)
{
	static char much[1 << 20];
	for (size_t i = 0; i < sizeof much; i++)
		much[i] = i * 7 >> 4;
	OK(rsend(*(int *)v, much, sizeof much, 0) == sizeof much);
	OK(!rshutdown(*(int *)v, SHUT_WR));
	return NULL;
}

static void test_options(int s)
{
	int v = 64 << 10, one = 1;
	struct linger linger = {.l_onoff = 1, .l_linger = 3}, got;
	socklen_t n = sizeof got;
	OK(!rsetsockopt(s, SOL_SOCKET, SO_SNDBUF, &v, sizeof v) && option(s, SOL_SOCKET, SO_SNDBUF) == v);
	OK(!rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &v, sizeof v) && option(s, SOL_SOCKET, SO_RCVBUF) == v);
	v = 64;
	OK(!rsetsockopt(s, SOL_RDMA, RDMA_SQSIZE, &v, sizeof v) && option(s, SOL_RDMA, RDMA_SQSIZE) == v);
	OK(!rsetsockopt(s, SOL_RDMA, RDMA_RQSIZE, &v, sizeof v) && option(s, SOL_RDMA, RDMA_RQSIZE) == v);
	OK(!rsetsockopt(s, SOL_RDMA, RDMA_INLINE, &v, sizeof v) && option(s, SOL_RDMA, RDMA_INLINE) == v);
	OK(!rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && option(s, SOL_SOCKET, SO_REUSEADDR) == 1);
	OK(!rsetsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) && option(s, SOL_SOCKET, SO_KEEPALIVE) == 1);
	OK(!rsetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) && option(s, IPPROTO_TCP, TCP_NODELAY) == 1);
	OK(!rsetsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	OK(!rgetsockopt(s, SOL_SOCKET, SO_LINGER, &got, &n) && got.l_onoff && got.l_linger == 3);
	OK(option(s, IPPROTO_TCP, TCP_KEEPCNT) == 9 && option(s, IPPROTO_TCP, TCP_KEEPINTVL) == 75);
	v = 3;
	OK(!rsetsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &v, sizeof v) && option(s, IPPROTO_TCP, TCP_KEEPCNT) == v);
	OK(!rsetsockopt(s, IPPROTO_TCP, TCP_KEEPINTVL, &v, sizeof v) && option(s, IPPROTO_TCP, TCP_KEEPINTVL) == v);
	v = 128;
	FAILS(rsetsockopt(s, IPPROTO_TCP, TCP_KEEPCNT, &v, sizeof v), EINVAL);
	OK(option(s, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && option(s, SOL_SOCKET, SO_ERROR) == 0);
	FAILS(rsetsockopt(s, SOL_SOCKET, SO_BROADCAST, &one, sizeof one), ENOPROTOOPT);
	FAILS(rsetsockopt(s, SOL_SOCKET, SO_ERROR, &one, sizeof one), ENOPROTOOPT);
	FAILS(rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &one, 1), EINVAL);
}

static void set_timeout(int s, int name, long usec)
{
	struct timeval t = {.tv_usec = usec}, got = {.tv_sec = 1};
	socklen_t n = sizeof got;
	OK(!rsetsockopt(s, SOL_SOCKET, name, &t, sizeof t));
	OK(!rgetsockopt(s, SOL_SOCKET, name, &got, &n) && n == sizeof got && !got.tv_sec && got.tv_usec == usec);
}

// test_timeouts has calls that time out: a reader, an accept, and a writer whose peer does not
// read. Then the peer reads all data.
static void test_timeouts(int l, int c, int s)
{
	static char much[1 << 20], b[1 << 16];
	struct timeval bad = {.tv_usec = 1000000};
	FAILS(rsetsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &bad, sizeof bad), EDOM);
	FAILS(rsetsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &bad, sizeof bad - 1), EINVAL);
	set_nonblock(c, 0);
	set_timeout(c, SO_RCVTIMEO, 20000);
	set_timeout(c, SO_SNDTIMEO, 20000);
	set_timeout(l, SO_RCVTIMEO, 20000);
	FAILS(rrecv(c, b, 1, 0), EAGAIN);
	FAILS(rrecv(c, b, 1, MSG_WAITALL), EAGAIN);
	FAILS(raccept(l, NULL, NULL), EAGAIN);
	ssize_t put, sent = 0;
	while ((put = rsend(c, much, sizeof much, 0)) > 0)
		sent += put;
	OK(put == -1 && errno == EAGAIN && sent > 0);
	while (sent > 0) {
		ssize_t n = rrecv(s, b, sizeof b < (size_t)sent ? sizeof b : (size_t)sent, 0);
		OK(n > 0);
		sent -= n;
	}
	OK(rsend(s, "ab", 2, 0) == 2 && ready(c, POLLIN, -1) == POLLIN);
	OK(rrecv(c, b, 3, MSG_WAITALL) == 2); // the data at the end of the timeout
	set_timeout(c, SO_RCVTIMEO, 0);
	set_timeout(c, SO_SNDTIMEO, 0);
	set_timeout(l, SO_RCVTIMEO, 0);
	set_nonblock(c, 1);
}

static int listen_somewhere(void)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	OK(s >= 0);
	addr.sin_port = 0;
	OK(!rbind(s, (struct sockaddr *)&addr, sizeof addr));
	OK(!rgetsockname(s, (struct sockaddr *)&addr, &len) && len == sizeof addr && addr.sin_port);
	FAILS(raccept(s, NULL, NULL), EINVAL);
	OK(!rlisten(s, 5));
	return s;
}

// connected creates a connection whose client does not wait.
static void connected(int l, int *client, int *server)
{
	struct sockaddr_in peer;
	socklen_t n = sizeof peer;
	set_nonblock(l, 1);
	FAILS(raccept(l, NULL, NULL), EAGAIN);
	set_nonblock(l, 0);
	OK((*client = rsocket(AF_INET, SOCK_STREAM, IPPROTO_TCP)) >= 0);
	test_options(*client);
	set_nonblock(*client, 1);
	FAILS(rsend(*client, "", 1, 0), ENOTCONN);
	FAILS(rconnect(*client, (struct sockaddr *)&addr, len), EINPROGRESS);
	OK(ready(*client, POLLOUT, -1) == POLLOUT);
	OK(option(*client, SOL_SOCKET, SO_ERROR) == 0);
	FAILS(rconnect(*client, (struct sockaddr *)&addr, len), EISCONN);
	OK(ready(l, POLLIN, -1) == POLLIN);
	OK((*server = raccept(l, (struct sockaddr *)&peer, &n)) >= 0);
	struct sockaddr_in own;
	OK(!rgetsockname(*client, (struct sockaddr *)&own, &n) && own.sin_port == peer.sin_port && own.sin_addr.s_addr == peer.sin_addr.s_addr);
	OK(!rgetpeername(*client, (struct sockaddr *)&own, &n) && own.sin_port == addr.sin_port);
	OK(option(l, SOL_SOCKET, SO_ACCEPTCONN) == 1 && option(*server, SOL_SOCKET, SO_ACCEPTCONN) == 0);
	OK(option(*client, IPPROTO_TCP, TCP_MAXSEG) >= 256);
	OK(tcp_state(*client) == TCP_ESTABLISHED && tcp_state(*server) == TCP_ESTABLISHED && tcp_state(l) == TCP_LISTEN);
	int v = 1 << 20; // too late, and no error
	OK(!rsetsockopt(*client, SOL_SOCKET, SO_SNDBUF, &v, sizeof v) && option(*client, SOL_SOCKET, SO_SNDBUF) == 64 << 10);
	OK(!rsetsockopt(*server, SOL_SOCKET, SO_RCVBUF, &v, sizeof v) && option(*server, SOL_SOCKET, SO_RCVBUF) != v);
	FAILS(rsetsockopt(*client, SOL_RDMA, RDMA_SQSIZE, &v, sizeof v), EINVAL);
}

static void test_stream(int c, int s)
{
	char b[100];
	struct iovec out[] = {{"one ", 4}, {"", 0}, {"two", 3}}, in[] = {{b, 3}, {b + 3, 50}};
	pthread_t t;
	FAILS(rrecv(c, b, sizeof b, 0), EAGAIN);
	FAILS(rrecv(s, b, sizeof b, MSG_DONTWAIT), EAGAIN);
	FAILS(rrecv(s, b, sizeof b, MSG_OOB), EOPNOTSUPP);
	FAILS(rsendto(c, b, 1, 0, (struct sockaddr *)&addr, len), EISCONN);
	FAILS(rsend(c, NULL, 1, 0), EFAULT);
	FAILS(rrecv(c, NULL, 1, 0), EFAULT);
	FAILS(riomap(c, NULL, 1, PROT_WRITE, 0, -1), EFAULT);
	FAILS(riomap(c, b, SIZE_MAX, PROT_WRITE, 0, -1), EINVAL);
	FAILS((ssize_t)riowrite(c, b, SIZE_MAX, 0, 0), EINVAL);
	OK(ready(c, POLLIN | POLLOUT, -1) == POLLOUT);
	OK(ready(s, POLLIN, 0) == 0 && ready(s, POLLIN, 20) == 0);
	OK(rwritev(c, out, 3) == 7);
	OK(rrecv(s, b, 7, MSG_WAITALL) == 7 && !memcmp(b, "one two", 7));
	OK(rsendmsg(s, &(struct msghdr){.msg_iov = out, .msg_iovlen = 3}, MSG_NOSIGNAL) == 7);
	OK(ready(c, POLLIN, -1) == POLLIN);
	OK(rrecv(c, b, 3, MSG_PEEK) == 3 && !memcmp(b, "one", 3));
	OK(rreadv(c, in, 2) >= 4 && !memcmp(b, "one ", 4));
	while (ready(c, POLLIN, 20))
		rread(c, b, sizeof b);

	// A blocking reader, and one that also waits for a pipe.
	OK(!pthread_create(&t, NULL, write_later, &c));
	OK(rread(s, b, sizeof b) == 5 && !memcmp(b, "later", 5));
	OK(!pthread_join(t, NULL));
	int p[2];
	OK(!pipe(p));
	OK(!pthread_create(&t, NULL, write_later, &c));
	struct pollfd fds[] = {{.fd = p[0], .events = POLLIN}, {.fd = s, .events = POLLIN}, {.fd = -1, .events = POLLIN},
		{.fd = p[1], .events = 0}};
	OK(rpoll(fds, 4, -1) == 1 && !fds[0].revents && fds[1].revents == POLLIN && !fds[2].revents && !fds[3].revents);
	OK(!pthread_join(t, NULL));
	OK(write(p[1], "x", 1) == 1);
	OK(rpoll(fds, 4, -1) == 2 && fds[0].revents == POLLIN && fds[1].revents == POLLIN);
	OK(rread(s, b, sizeof b) == 5);
	OK(rpoll(fds, 4, -1) == 1 && fds[0].revents == POLLIN && !fds[1].revents);

	fd_set r, w;
	struct timeval none = {0};
	int top = (p[0] > s ? p[0] : s) + 1;
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_SET(p[0], &r);
	FD_SET(s, &r);
	FD_SET(s, &w);
	OK(rselect(top, &r, &w, NULL, NULL) == 2 && FD_ISSET(p[0], &r) && !FD_ISSET(s, &r) && FD_ISSET(s, &w));
	OK(read(p[0], b, 1) == 1);
	FD_SET(p[0], &r);
	OK(rselect(top, &r, NULL, NULL, &none) == 0 && !FD_ISSET(p[0], &r));
	struct timeval ever = {.tv_sec = LONG_MAX}; // more ns than a number has room for
	FD_ZERO(&r);
	FD_SET(s, &r);
	OK(!pthread_create(&t, NULL, write_later, &c));
	OK(rselect(top, &r, NULL, NULL, &ever) == 1 && FD_ISSET(s, &r));
	OK(!pthread_join(t, NULL) && rread(s, b, sizeof b) == 5);
	close(p[0]);
	close(p[1]);
}

// test_end: the client sends more than all buffers hold, and ends.
static void test_end(int c, int s)
{
	static char b[1 << 20];
	size_t got = 0;
	pthread_t t;
	set_nonblock(c, 0);
	OK(!pthread_create(&t, NULL, write_much, &c));
	while (got < sizeof b) {
		ssize_t n = rrecv(s, b + got, sizeof b - got, 0);
		OK(n > 0);
		got += n;
	}
	for (size_t i = 0; i < sizeof b; i++)
		OK(b[i] == (char)(i * 7 >> 4));
	OK(!pthread_join(t, NULL));
	OK(rread(s, b, 1) == 0);
	OK(ready(s, POLLIN, -1) == POLLIN);
	FAILS(rwrite(c, b, 1), EPIPE);
	OK(rwrite(s, "answer", 6) == 6); // the other half continues
	OK(rrecv(c, b, 6, MSG_WAITALL) == 6);
	OK(!rclose(s));
	OK(rread(c, b, 1) == 0);
	OK(ready(c, POLLIN, -1) & POLLHUP);
	OK(tcp_state(c) == TCP_CLOSE);
	OK(!rclose(c));
	FAILS(rread(c, b, 1), EBADF);
	FAILS(rclose(c), EBADF);
}

static int bound_again(void)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0), one = 1;
	OK(s >= 0 && !rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
	OK(!rbind(s, (struct sockaddr *)&addr, len));
	return s;
}

static int port_of(int s)
{
	struct sockaddr_in a;
	socklen_t n = sizeof a;
	OK(!rgetsockname(s, (struct sockaddr *)&a, &n));
	return a.sin_port;
}

// test_bound: a socket that could not listen or connect keeps its address. addr has no listener.
static void test_bound(void)
{
	struct sockaddr_in nobody = addr;
	addr.sin_port = 0;
	int a = bound_again();
	addr.sin_port = port_of(a);
	int b = bound_again();
	FAILS(rlisten(b, 1), EADDRINUSE); // while another is bound to it, too
	FAILS(rlisten(b, 1), EADDRINUSE);
	OK(!rclose(a));
	FAILS(rconnect(b, (struct sockaddr *)&nobody, len), ECONNREFUSED);
	OK(port_of(b) == addr.sin_port);
	OK(!rlisten(b, 1) && port_of(b) == addr.sin_port);
	int c = rsocket(AF_INET, SOCK_STREAM, 0);
	OK(c >= 0 && !rconnect(c, (struct sockaddr *)&addr, len));
	OK(!rclose(c) && !rclose(b));
	addr = nobody;
}

// test_no_descriptor: a call without a descriptor to sleep on fails, and others still sleep and
// wake. A listener is never writable.
static void test_no_descriptor(int l)
{
	struct pollfd p = {.fd = l, .events = POLLOUT};
	struct rlimit all, few;
	OK(!getrlimit(RLIMIT_NOFILE, &all));
	few = all;
	few.rlim_cur = dup(1);
	OK(!close(few.rlim_cur) && !setrlimit(RLIMIT_NOFILE, &few));
	FAILS(rpoll(&p, 1, 20), EMFILE);
	OK(!setrlimit(RLIMIT_NOFILE, &all) && rpoll(&p, 1, 0) == 0);
	int c = rsocket(AF_INET, SOCK_STREAM, 0), s;
	OK(c >= 0);
	set_nonblock(c, 1);
	FAILS(rconnect(c, (struct sockaddr *)&addr, len), EINPROGRESS);
	OK(ready(l, POLLIN, 30000) == POLLIN);
	OK((s = raccept(l, NULL, NULL)) >= 0 && !rclose(s) && !rclose(c));
}

static int datagrams_at(struct sockaddr_in *a)
{
	int s = rsocket(AF_INET, SOCK_DGRAM, 0);
	socklen_t n = sizeof *a;
	OK(s >= 0 && option(s, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM);
	*a = addr;
	a->sin_port = 0;
	OK(!rbind(s, (struct sockaddr *)a, sizeof *a) && !rgetsockname(s, (struct sockaddr *)a, &n) && a->sin_port);
	return s;
}

static void test_datagrams(void)
{
	struct sockaddr_in a, b, from;
	int x = datagrams_at(&a), y = datagrams_at(&b);
	char buf[3000] = "";
	struct iovec v[] = {{buf, 2}, {buf + 10, 2}};
	struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = v, .msg_iovlen = 2};
	socklen_t n = sizeof from;
	FAILS(rlisten(x, 1), EOPNOTSUPP);
	FAILS(raccept(x, NULL, NULL), EOPNOTSUPP);
	FAILS(rsend(x, buf, 1, 0), EDESTADDRREQ);
	FAILS(rshutdown(x, SHUT_RD), ENOTCONN);
	FAILS(rsendto(x, buf, sizeof buf, 0, (struct sockaddr *)&b, sizeof b), EMSGSIZE);
	FAILS(rrecv(y, buf, sizeof buf, MSG_DONTWAIT), EAGAIN);
	OK(ready(y, POLLIN | POLLOUT, 0) == POLLOUT);
	for (int i = 0; i < 3; i++) { // the first goes by UDP
		OK(rsendto(x, "hello", 5, 0, (struct sockaddr *)&b, sizeof b) == 5);
		OK(ready(y, POLLIN, -1) == POLLIN);
		OK(rrecv(y, buf, sizeof buf, MSG_PEEK) == 5);
		OK(rrecvfrom(y, buf, sizeof buf, 0, (struct sockaddr *)&from, &n) == 5 && !memcmp(buf, "hello", 5) && from.sin_port == a.sin_port);
		OK(rsendto(x, "hello", 5, 0, (struct sockaddr *)&b, sizeof b) == 5);
		OK(rrecv(y, buf, 1, MSG_TRUNC) == 5);
		OK(rsendto(x, "hello", 5, 0, (struct sockaddr *)&b, sizeof b) == 5);
		OK(rrecvmsg(y, &m, 0) == 4 && m.msg_flags == MSG_TRUNC && !memcmp(buf, "he", 2) && !memcmp(buf + 10, "ll", 2) &&
			from.sin_port == a.sin_port);
	}
	OK(!rconnect(y, (struct sockaddr *)&a, sizeof a) && rsend(y, buf, 0, 0) == 0 && rread(x, buf, sizeof buf) == 0);
	OK(!rshutdown(y, SHUT_RDWR) && rread(y, buf, sizeof buf) == 0);
	FAILS(rsend(y, buf, 1, 0), EPIPE);
	OK(!rclose(x) && !rclose(y));

	// An rsocket of the wildcard address receives what is sent to each address, and answers.
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
	struct sockaddr_in6 peer;
	n = sizeof any;
	x = rsocket(AF_INET6, SOCK_DGRAM, 0);
	y = datagrams_at(&b);
	OK(x >= 0 && !rbind(x, (struct sockaddr *)&any, n) && !rgetsockname(x, (struct sockaddr *)&any, &n) && any.sin6_port);
	a = addr;
	a.sin_port = any.sin6_port;
	// The first answers may be UDP datagrams, whose source the machine chooses.
	from.sin_addr.s_addr = 0;
	for (int i = 0; i < 3 || from.sin_addr.s_addr != addr.sin_addr.s_addr; i++) {
		OK(i < 1000);
		n = sizeof peer;
		OK(rsendto(y, "ping", 4, 0, (struct sockaddr *)&a, sizeof a) == 4);
		OK(rrecvfrom(x, buf, sizeof buf, 0, (struct sockaddr *)&peer, &n) == 4 && peer.sin6_port == b.sin_port);
		OK(rsendto(x, "pong", 4, 0, (struct sockaddr *)&peer, n) == 4);
		n = sizeof from;
		OK(rrecvfrom(y, buf, sizeof buf, 0, (struct sockaddr *)&from, &n) == 4 && from.sin_port == a.sin_port);
	}
	OK(!rclose(x) && !rclose(y));
}

// test_defaults: values of the files in /etc/rdma/rsocket, which TestRsocketDefaults creates,
// apply. Otherwise those of rsockets do.
static void test_defaults(void)
{
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	OK(s >= 0);
	OK(option(s, SOL_SOCKET, SO_RCVBUF) == 65536 && option(s, SOL_SOCKET, SO_SNDBUF) == 32768);
	OK(option(s, SOL_RDMA, RDMA_SQSIZE) == 100 && option(s, SOL_RDMA, RDMA_RQSIZE) == 384);
	OK(option(s, SOL_RDMA, RDMA_INLINE) == 0 && option(s, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
	OK(!rclose(s));
}

// close_listener closes a listener after input on standard input, and prints the duration.
static void close_listener(void)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 1};
	int l = rsocket(AF_INET, SOCK_STREAM, 0);
	OK(l >= 0 && !rsetsockopt(l, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
	OK(!rbind(l, (struct sockaddr *)&addr, len) && !rgetsockname(l, (struct sockaddr *)&addr, &len) && !rlisten(l, 100));
	printf("port %d\n", ntohs(addr.sin_port));
	fflush(stdout);
	getchar();
	struct timespec began, ended;
	clock_gettime(CLOCK_MONOTONIC, &began);
	OK(!rclose(l));
	clock_gettime(CLOCK_MONOTONIC, &ended);
	printf("closed in %ld s\n", (long)(ended.tv_sec - began.tv_sec));
}

// hold_connections opens connections to a port, and keeps them.
static void hold_connections(int port)
{
	addr.sin_port = htons(port);
	for (int i = 0; i < 6; i++)
		OK(!rconnect(rsocket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&addr, len));
	puts("connected");
	fflush(stdout);
	pause();
}

int main(int argc, char **argv)
{
	if (argc < 2 || inet_pton(AF_INET, argv[1], &addr.sin_addr) != 1)
		return 2;
	addr.sin_family = AF_INET;
	if (argc > 2 && !strcmp(argv[2], "defaults")) {
		test_defaults();
		return 0;
	}
	if (argc > 2 && !strcmp(argv[2], "close")) {
		close_listener();
		return 0;
	}
	if (argc > 3 && !strcmp(argv[2], "connect")) {
		hold_connections(atoi(argv[3]));
		return 0;
	}
	FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_RAW, 0), ENOTSUP);
	FAILS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
	FAILS(rread(0, argv, 1), EBADF);

	int l = listen_somewhere(), c, s, other = rsocket(AF_INET, SOCK_STREAM, 0);
	OK(other >= 0);
	FAILS(rbind(other, (struct sockaddr *)&addr, len), EADDRINUSE);
	for (int i = 0; i < 3; i++) {
		connected(l, &c, &s);
		test_stream(c, s);
		test_timeouts(l, c, s);
		test_end(c, s);
	}
	test_no_descriptor(l);
	OK(!rclose(l));
	FAILS(rconnect(other, (struct sockaddr *)&addr, len), ECONNREFUSED);
	set_nonblock(other, 1);
	FAILS(rconnect(other, (struct sockaddr *)&addr, len), EINPROGRESS);
	OK(ready(other, POLLOUT, -1) & POLLERR);
	struct sockaddr_in peer;
	FAILS(rgetpeername(other, (struct sockaddr *)&peer, &len), ENOTCONN); // and takes no error
	FAILS(rshutdown(other, SHUT_WR), ENOTCONN);
	OK(option(other, SOL_SOCKET, SO_ERROR) == ECONNREFUSED && option(other, SOL_SOCKET, SO_ERROR) == 0);
	FAILS(rrecv(other, &c, 1, 0), ENOTCONN);
	OK(!rclose(other));
	test_bound();
	if (argc > 2)
		test_datagrams();
	puts("fine");
	return 0;
}
