// A program without RDMA, for softrnic run --sockets.
//
//	bounce serve ADDR PORT   sends back what its connections send
//	bounce ADDR PORT         for each byte of stdin, sends some and gets it back; says how that went
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LEN = 4096, RECONNECT = 100 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

// serve ends connections that do not take what they have sent.
static void serve(const struct sockaddr_in *at)
{
	static char b[16 * LEN];
	struct epoll_event e = {.events = EPOLLIN}, all[64];
	int one = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), poll = epoll_create1(0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (const struct sockaddr *)at, sizeof *at) || listen(l, 1024))
		fail("listen");
	e.data.fd = l;
	if (epoll_ctl(poll, EPOLL_CTL_ADD, l, &e))
		fail("epoll_ctl");
	for (;;) {
		int n = epoll_wait(poll, all, 64, -1);
		for (int i = 0; i < n; i++) {
			int fd = all[i].data.fd;
			if (fd == l) {
				e.data.fd = accept4(l, NULL, NULL, SOCK_NONBLOCK);
				if (e.data.fd >= 0 && epoll_ctl(poll, EPOLL_CTL_ADD, e.data.fd, &e))
					close(e.data.fd);
				continue;
			}
			ssize_t got = read(fd, b, sizeof b);
			if (got < 0 && errno == EAGAIN)
				continue;
			if (got <= 0 || write(fd, b, got) != got)
				close(fd);
		}
	}
}

static int transfer(int fd, unsigned char *b)
{
	unsigned char back[LEN];
	for (int i = 0; i < LEN; i++)
		b[i] = rand();
	if (send(fd, b, LEN, MSG_NOSIGNAL) != LEN || recv(fd, back, LEN, MSG_WAITALL) != LEN)
		return -1;
	if (!memcmp(b, back, LEN))
		return 0;
	errno = EBADMSG;
	return -1;
}

int main(int argc, char **argv)
{
	int server = argc == 4, fd = -1, n = 0, one = 1;
	if (argc != 3 && !server)
		return 2;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[argc - 1]))};
	if (inet_pton(AF_INET, argv[argc - 2], &at.sin_addr) != 1)
		return 2;
	if (server) {
		signal(SIGPIPE, SIG_IGN);
		serve(&at);
	}
	puts("ready");
	fflush(stdout);
	struct timeval patience = {.tv_sec = 5};
	unsigned char b[LEN];
	while (getchar() != EOF) {
		const char *failed = NULL;
		if (n++ % RECONNECT == 0 && fd >= 0) {
			close(fd);
			fd = -1;
		}
		if (fd < 0) {
			fd = socket(AF_INET, SOCK_STREAM, 0);
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
			setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			if (connect(fd, (struct sockaddr *)&at, sizeof at))
				failed = "connect";
		}
		if (!failed && transfer(fd, b))
			failed = "transfer";
		printf("%s%s%s\n", failed ? failed : "ok", failed ? ": " : "", failed ? strerror(errno) : "");
		fflush(stdout);
		if (failed) {
			close(fd);
			fd = -1;
		}
	}
	return 0;
}
