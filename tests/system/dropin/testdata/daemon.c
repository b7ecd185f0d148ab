// A daemon that starts as root. It allocates memory, sockets and files that only root may, goes to
// the background, becomes nobody, and uses RDMA. With "before" it opens the device as root, with
// "after" as nobody. It exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <grp.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "loopback.h"

enum { nobody = 65534, locked = 64 << 20, huge = 2 << 20 };

static void use_rdma(char *memory, size_t size)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	memset(l.memory, 7, 8192);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)memory + size - 8192, mr->rkey, 8192);
	CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS);
	CHECK(memory[size - 1] == 7);
	CHECK(!ibv_dereg_mr(mr));
	loopback_close(&l);
}

int main(int argc, char **argv)
{
	CHECK(argc == 4 && geteuid() == 0);
	int before = !strcmp(argv[1], "before"), huge_pages = atoi(argv[3]);

	char *memory = mmap(NULL, locked, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
	struct rlimit little = {64 << 10, 64 << 10};
	CHECK(!setrlimit(RLIMIT_MEMLOCK, &little)); // it does not apply with CAP_IPC_LOCK
	CHECK(memory != MAP_FAILED && !mlock(memory, locked));
	char *pages = NULL;
	if (huge_pages) {
		pages = mmap(NULL, huge, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_HUGETLB, -1, 0);
		CHECK(pages != MAP_FAILED);
		pages[0] = 1;
	}
	CHECK(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP) >= 0);
	CHECK(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)) >= 0);
	CHECK(!nice(-1) || errno == 0);
	CHECK(!chown(argv[2], nobody, nobody));
	CHECK(!access("/sys/class/infiniband/softrnic0/node_guid", R_OK));

	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
	}
	CHECK(setsid() > 0);
	if (before)
		device_open();
	gid_t none[1];
	CHECK(!setgroups(0, none) && !setgid(nobody) && !setuid(nobody));
	CHECK(setuid(0) && getuid() == nobody && !getgroups(0, none));
	CHECK(!access("/sys/class/infiniband/softrnic0/node_guid", R_OK));
	if (!before)
		device_open();
	use_rdma(memory, locked);
	if (pages)
		use_rdma(pages, huge);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("all is so");
	return 0;
}
