// A server that sets a variable, and writes its title over its arguments and its first
// environment, as Valkey does. Then it opens its devices. It exits with 0 if one has the address of
// its argument.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 2 || setenv("SOFTRNIC_ADDR", argv[1], 1))
		return 2;
	uint8_t address[16] = {[10] = 0xff, [11] = 0xff};
	if (inet_pton(AF_INET, strtok(argv[1], "/"), address + 12) != 1)
		return 2;

	char *end = argv[0];
	for (char **p = argv; *p; p++)
		end = *p + strlen(*p);
	static char *copies[1000];
	int n = 0;
	for (; environ[n]; n++) {
		if (environ[n] == end + 1)
			end += 1 + strlen(environ[n]);
		copies[n] = strdup(environ[n]);
	}
	environ = copies;
	memset(argv[0], 'x', end - argv[0]);

	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++) {
		struct ibv_context *ctx = ibv_open_device(list[i]);
		union ibv_gid gid;
		for (int j = 0; ctx && !ibv_query_gid(ctx, 1, j, &gid); j++)
			if (!memcmp(gid.raw, address, sizeof address))
				return 0;
	}
	return 1;
}
