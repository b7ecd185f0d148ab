// Fuzzing of what libsoftrnic-sockets.so makes of the agent's answers, of a program's addresses and
// of SOFTRNIC_SOCKETS. The functions are static in cmd/dropin/libsockets/preload.c.
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct name {
	uint8_t family, unused;
	uint16_t port;
	uint8_t addr[16];
	uint32_t scope;
};

int from_name(const struct name *n, sa_family_t family, struct sockaddr *to, socklen_t *len, socklen_t room);
int to_name(struct name *n, const struct sockaddr *from, socklen_t len);
void read_environment(void);

#define CHECK(x) \
	if (!(x)) \
	abort()

// copy returns memory of just the size, so that the sanitizer finds each access beyond it.
static void *copy(const void *from, size_t size)
{
	void *p = malloc(size);
	memcpy(p, from, size);
	return p;
}

// An input is a byte that is the room for an address, a byte for the program's family, and a name.
// All of it is also an address, and the value of the environment variable.
int LLVMFuzzerTestOneInput(const uint8_t *b, size_t size)
{
	char *text = malloc(size + 1);
	memcpy(text, b, size);
	text[size] = 0;
	setenv("SOFTRNIC_SOCKETS", text, 1);
	free(text);
	read_environment();

	struct name n, again;
	struct sockaddr *given = copy(b, size);
	if (to_name(&n, given, size))
		CHECK(n.family == 4 || n.family == 6);
	free(given);

	if (size < 2 + sizeof n)
		return 0;
	memcpy(&n, b + 2, sizeof n);
	sa_family_t family = b[1] & 1 ? AF_INET : AF_INET6;
	socklen_t room = b[0], length = room, full = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	struct sockaddr *to = malloc(room);
	if (from_name(&n, family, to, &length, room)) {
		CHECK(length == full);
		if (room >= full) {
			CHECK(to->sa_family == family && to_name(&again, to, length) && again.port == n.port);
		}
	} else {
		CHECK(length == room);
	}
	free(to);
	return 0;
}
