// The agent in softrnic run, and the functions of the C library below those that this library
// replaces.
#ifndef AGENT_H
#define AGENT_H
#include <dlfcn.h>
#include <stdint.h>
#include <sys/socket.h>

#define PUBLIC __attribute__((visibility("default")))

// Requests to the agent. A request is one packet on a new connection, and carries the socket that
// it concerns. The answer is one packet too, and may carry a socket. Integers are in host byte
// order, addresses and ports in network byte order. softrnic/internal/sockets/request.go has the
// same definitions.
enum { CONNECT = 1, BIND, LISTEN, PEER, LOCAL, FAILURE, TAKE, OPTIONS, ABORTS, ENDS, END };

#define TOKEN 16

struct name {
	uint8_t family; // 4 or 6; 0: none
	uint8_t unused;
	uint16_t port;
	uint8_t addr[16];
	uint32_t scope;
};

struct request {
	uint8_t token[TOKEN];
	uint32_t op;
	struct name name;
};

struct answer {
	int32_t status; // 0: done; an errno; or DECLINED: proceed without RDMA
	struct name name;
	int32_t socket; // not in the packet: a descriptor; NO_SOCKET; or LOST_SOCKET, if this process had no room for it
};

#define DECLINED (-1)
#define NO_SOCKET (-1)
#define LOST_SOCKET (-2)

// NEXT declares next, the function that this library replaces.
#define NEXT_OF(type, name, ...) \
	static type (*next)(__VA_ARGS__); \
	if (!next) \
		next = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define NEXT(name, ...) NEXT_OF(int, name, __VA_ARGS__)

// Whether there is an agent, and whether it hands connections over.
int has_agent(void);
int hands_over(void);

// ask sends a request that is answered at once. It returns the status.
int ask(int fd, int op, const struct name *name, struct answer *answer);

int next_getpeername(int fd, struct sockaddr *to, socklen_t *len);
int next_getsockname(int fd, struct sockaddr *to, socklen_t *len);
int next_getsockopt(int fd, int level, int option, void *value, socklen_t *len);
int next_setsockopt(int fd, int level, int option, const void *value, socklen_t len);
ssize_t next_recvmsg(int fd, struct msghdr *m, int flags);

// is_direct reports whether a descriptor is the program's end of a direct connection, or may be.
int is_direct(int fd);

// options_of returns a new descriptor of the TCP socket that has the options of a direct
// connection, or -1.
int options_of(int fd);

// is_new says that a descriptor has just been made, so that epoll cannot know it.
void is_new(int fd);

// replace_socket makes a descriptor one of another socket, whose descriptor it closes. It keeps
// flags, options and registrations with epoll.
int replace_socket(int fd, int by);
#endif
