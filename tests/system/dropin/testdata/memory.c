// Two processes write to and read from each other's memory of every kind that a program may
// register, and compare the data. The first argument is a directory for files. The program exits
// with 1 at the first failed check, and prints the kinds that are missing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include "loopback.h"

#define SIZE (4 << 20) // two huge pages

static const char *dir;
static int to_peer, from_peer;

// A kind of memory, and the descriptor behind it, or -1.
struct kind {
	const char *name;
	void *(*map)(int *fd);
};

static void *map(int flags, int fd) { return mmap(NULL, SIZE, PROT_READ | PROT_WRITE, flags, fd, 0); }

static int file(void)
{
	char name[4096];
	snprintf(name, sizeof name, "%s/memoryXXXXXX", dir);
	int fd = mkstemp(name);
	CHECK(fd >= 0 && !unlink(name) && !ftruncate(fd, SIZE));
	return fd;
}

static void *heap(int *fd) { (void)fd; return malloc(SIZE); }
static void *private_anonymous(int *fd) { (void)fd; return map(MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void *shared_anonymous(int *fd) { (void)fd; return map(MAP_SHARED | MAP_ANONYMOUS, -1); }
static void *shared_file(int *fd) { return map(MAP_SHARED, *fd = file()); }
static void *private_file(int *fd) { (void)fd; return map(MAP_PRIVATE, file()); }
static void *huge(int *fd) { (void)fd; return map(MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1); }
static void *shared_huge(int *fd) { (void)fd; return map(MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1); }

static void *memfd(int *fd)
{
	CHECK((*fd = memfd_create("memory", MFD_CLOEXEC)) >= 0 && !ftruncate(*fd, SIZE));
	return map(MAP_SHARED, *fd);
}

static const struct kind kinds[] = {
	{"heap", heap}, {"MAP_PRIVATE", private_anonymous}, {"MAP_SHARED", shared_anonymous}, {"MAP_SHARED of a file", shared_file},
	{"MAP_PRIVATE of a file", private_file}, {"MAP_SHARED of a memfd", memfd}, {"MAP_HUGETLB", huge},
		{"MAP_HUGETLB and MAP_SHARED", shared_huge},
};

// send_to_peer sends data to the peer, and receive_from_peer receives it.
static void send_to_peer(const void *v, size_t n) { CHECK(write(to_peer, v, n) == (ssize_t)n); }
static void receive_from_peer(void *v, size_t n) { CHECK(read(from_peer, v, n) == (ssize_t)n); }

static void exchange(const void *ours, void *theirs, size_t n)
{
	send_to_peer(ours, n);
	receive_from_peer(theirs, n);
}

static void fill(uint32_t *m, uint32_t seed)
{
	for (uint32_t i = 0; i < SIZE / 4; i++)
		m[i] = (seed + i) * 2654435761u;
}

static void compare(const uint32_t *m, uint32_t seed)
{
	for (uint32_t i = 0; i < SIZE / 4; i++)
		CHECK(m[i] == (seed + i) * 2654435761u);
}

// compare_behind checks that data written to a shared mapping is in the mapped file.
static void compare_behind(int fd, uint32_t seed)
{
	static uint32_t copy[SIZE / 4];
	if (fd < 0)
		return;
	CHECK(pread(fd, copy, SIZE, 0) == SIZE);
	compare(copy, seed);
}

static void transfer(struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode op, struct ibv_mr *mr, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, SIZE, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {to, rkey}}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad) && wait_for(cq).status == IBV_WC_SUCCESS);
}

int main(int argc, char **argv)
{
	int there[2], back[2], status;
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc > 2 && !pipe(there) && !pipe(back));
	dir = argv[1];
	pid_t child = fork(); // before the device is used
	CHECK(child >= 0);
	to_peer = child ? there[1] : back[1];
	from_peer = child ? back[0] : there[0];
	close(child ? there[0] : there[1]);
	close(child ? back[1] : back[0]);
	if (!child)
		CHECK(!setenv("SOFTRNIC_ADDR", argv[2], 1));
	device_open();
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = cq ? ibv_create_qp(pd, &a) : NULL;
	CHECK(qp);
	uint32_t qpn;
	union ibv_gid own = gid;
	exchange(&own, &gid, sizeof gid);
	exchange(&qp->qp_num, &qpn, sizeof qpn);
	connect_qp(qp, qpn);
	for (unsigned int k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		struct { uint64_t addr; uint32_t rkey, err; } ours = {0}, theirs;
		uint32_t seed = 1000 * (k + 1);
		char done = 0;
		int fd = -1;
		errno = ENOMEM;
		void *m = kinds[k].map(&fd);
		struct ibv_mr *mr = NULL;
		if (m == MAP_FAILED || !m) {
			ours.err = errno;
		} else {
			memset(m, 0, SIZE);
			CHECK((mr = ibv_reg_mr(pd, m, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
			ours.addr = (uintptr_t)m;
			ours.rkey = mr->rkey;
		}
		exchange(&ours, &theirs, sizeof ours);
		if (ours.err || theirs.err) {
			if (child)
				printf("%s: there is none: %s\n", kinds[k].name, strerror(ours.err ? ours.err : theirs.err));
		} else if (child) {
			fill(m, seed);
			transfer(qp, cq, IBV_WR_RDMA_WRITE, mr, theirs.addr, theirs.rkey);
			send_to_peer(&done, 1);
			receive_from_peer(&done, 1); // it has compared, and has other content now
			transfer(qp, cq, IBV_WR_RDMA_READ, mr, theirs.addr, theirs.rkey);
			compare(m, seed + 7);
			compare_behind(fd, seed + 7);
			printf("%s: passed\n", kinds[k].name);
		} else {
			receive_from_peer(&done, 1);
			compare(m, seed);
			compare_behind(fd, seed);
			fill(m, seed + 7);
			send_to_peer(&done, 1);
		}
		exchange(&done, &done, 1);
		if (mr)
			CHECK(!ibv_dereg_mr(mr));
		if (mr && kinds[k].map != heap)
			CHECK(!munmap(m, SIZE));
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	if (child)
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	return 0;
}
