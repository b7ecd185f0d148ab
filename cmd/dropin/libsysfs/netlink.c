// iproute2's command rdma asks the kernel about RDMA devices by netlink. Instead of the kernel, a
// process of the command softrnic answers, over a unix socket. The functions here make the socket
// look like one of netlink.
#define _GNU_SOURCE
#include "tree.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include <linux/netlink.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PUBLIC __attribute__((visibility("default")))

#define NEXT(result, name, ...) \
	static result (*next)(__VA_ARGS__); \
	if (!next) \
		next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

// The sockets, by their inodes: a descriptor may be closed, or duplicated.
#define MAX_SOCKETS 64
static ino_t sockets[MAX_SOCKETS];
static unsigned int opened;

// is_ours reports whether a descriptor is one of the last MAX_SOCKETS sockets.
static int is_ours(int fd)
{
	struct stat st;
	unsigned int n = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
	if (!n) // in almost every program
		return 0;
	int before = errno, failed = fstat(fd, &st);
	errno = before;
	for (unsigned int i = 0; !failed && S_ISSOCK(st.st_mode) && i < MAX_SOCKETS && i < n; i++)
		if (__atomic_load_n(&sockets[i], __ATOMIC_RELAXED) == st.st_ino)
			return 1;
	return 0;
}

PUBLIC int socket(int domain, int type, int protocol)
{
	NEXT(int, socket, int, int, int);
	const char *tree;
	struct stat st;
	int fd;
	if (domain != AF_NETLINK || protocol != NETLINK_RDMA || !(tree = devices_tree("/sys/class/infiniband")))
		return next(domain, type, protocol);
	int before = errno;
	if ((fd = netlink_answers(tree, type)) < 0 || fstat(fd, &st)) {
		if (fd >= 0)
			close(fd);
		return next(domain, type, protocol);
	}
	errno = before;
	__atomic_store_n(&sockets[__atomic_fetch_add(&opened, 1, __ATOMIC_ACQ_REL) % MAX_SOCKETS], st.st_ino, __ATOMIC_RELEASE);
	return fd;
}

PUBLIC int bind(int fd, __CONST_SOCKADDR_ARG address, socklen_t length)
{
	NEXT(int, bind, int, __CONST_SOCKADDR_ARG, socklen_t);
	return is_ours(fd) ? 0 : next(fd, address, length);
}

// name writes an address of netlink.
static void name(void *to, socklen_t *length, pid_t port)
{
	struct sockaddr_nl a = {.nl_family = AF_NETLINK, .nl_pid = port};
	memcpy(to, &a, *length < sizeof a ? *length : sizeof a);
	*length = sizeof a;
}

PUBLIC int getsockname(int fd, __SOCKADDR_ARG address, socklen_t *restrict length)
{
	NEXT(int, getsockname, int, __SOCKADDR_ARG, socklen_t *);
	if (!is_ours(fd))
		return next(fd, address, length);
	name(address.__sockaddr__, length, getpid());
	return 0;
}

PUBLIC int setsockopt(int fd, int level, int option, const void *value, socklen_t length)
{
	NEXT(int, setsockopt, int, int, int, const void *, socklen_t);
	return level == SOL_NETLINK && is_ours(fd) ? 0 : next(fd, level, option, value, length);
}

PUBLIC ssize_t sendto(int fd, const void *data, size_t size, int flags, __CONST_SOCKADDR_ARG to, socklen_t length)
{
	NEXT(ssize_t, sendto, int, const void *, size_t, int, __CONST_SOCKADDR_ARG, socklen_t);
	if (to.__sockaddr__ && is_ours(fd)) {
		to.__sockaddr__ = NULL;
		length = 0;
	}
	return next(fd, data, size, flags, to, length);
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	NEXT(ssize_t, sendmsg, int, const struct msghdr *, int);
	if (!message || !message->msg_name || !is_ours(fd))
		return next(fd, message, flags);
	struct msghdr m = *message;
	m.msg_name = NULL;
	m.msg_namelen = 0;
	return next(fd, &m, flags);
}

PUBLIC ssize_t recvfrom(int fd, void *restrict data, size_t size, int flags, __SOCKADDR_ARG from, socklen_t *restrict length)
{
	NEXT(ssize_t, recvfrom, int, void *, size_t, int, __SOCKADDR_ARG, socklen_t *);
	if (!from.__sockaddr__ || !length || !is_ours(fd))
		return next(fd, data, size, flags, from, length);
	__SOCKADDR_ARG none = {.__sockaddr__ = NULL};
	ssize_t n = next(fd, data, size, flags, none, NULL);
	if (n >= 0)
		name(from.__sockaddr__, length, 0);
	return n;
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	NEXT(ssize_t, recvmsg, int, struct msghdr *, int);
	if (!message || !message->msg_name || !is_ours(fd))
		return next(fd, message, flags);
	socklen_t length = message->msg_namelen;
	ssize_t n = next(fd, message, flags);
	if (n >= 0) {
		name(message->msg_name, &length, 0);
		message->msg_namelen = length;
	}
	return n;
}
