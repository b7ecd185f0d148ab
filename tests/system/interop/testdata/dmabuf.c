// A program with memory in dma-bufs, which a real kernel exports:
//
//	dmabuf udmabuf    pages of a memfd (/dev/udmabuf)
//	dmabuf system     the system heap (/dev/dma_heap/system)
//
// It ends with 2 if the kernel lacks the exporter, and with 1 at the first failed check.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <linux/dma-heap.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/udmabuf.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include "loopback.h"

#define PAGES 4
#define IOVA 0x500000000000
#define EVERY (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static size_t page, size;

static int device(const char *path)
{
	int fd = open(path, O_RDWR);
	if (fd < 0) {
		printf("%s: %s\n", path, strerror(errno));
		exit(2);
	}
	return fd;
}

// The dma-buf, and another mapping of its memory.
static int export(const char *how, char **mem)
{
	int fd, from;
	if (!strcmp(how, "udmabuf")) {
		int dev = device("/dev/udmabuf");
		CHECK((from = memfd_create("dma-buf", MFD_ALLOW_SEALING)) >= 0 && !ftruncate(from, size));
		CHECK(!fcntl(from, F_ADD_SEALS, F_SEAL_SHRINK));
		struct udmabuf_create c = {.memfd = from, .flags = UDMABUF_FLAGS_CLOEXEC, .size = size};
		CHECK((fd = ioctl(dev, UDMABUF_CREATE, &c)) >= 0 && !close(dev));
	} else {
		int dev = device("/dev/dma_heap/system");
		struct dma_heap_allocation_data a = {.len = size, .fd_flags = O_RDWR | O_CLOEXEC};
		CHECK(!ioctl(dev, DMA_HEAP_IOCTL_ALLOC, &a) && !close(dev));
		fd = from = a.fd;
	}
	CHECK((*mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0)) != MAP_FAILED);
	return fd;
}

static void refused(int fd, uint64_t offset, size_t length, uint64_t iova, int access, int want)
{
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access));
	if (errno != want) {
		printf("descriptor %d, offset %#lx, length %#zx: %s, want %s\n", fd, (long)offset, length, strerror(errno), strerror(want));
		exit(1);
	}
}

static int status(struct loopback *l, enum ibv_wr_opcode op, struct ibv_sge sge, uint64_t to, uint32_t rkey)
{
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED}, *bad;
	if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 2;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = rkey;
	}
	CHECK(!ibv_post_send(l->qp, &wr, &bad));
	return wait_for(l->cq).status;
}

// From now on the exporter refuses to begin or to end an access of the processor.
static void refuse_sync(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)DMA_BUF_IOCTL_SYNC, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = {sizeof f / sizeof *f, f};
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &p));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	page = sysconf(_SC_PAGESIZE);
	size = PAGES * page;
	char *mem;
	int fd = export(argv[1], &mem);
	device_open();

	refused(-1, 0, page, 0, EVERY, EBADF);
	refused(fd + 100, 0, page, 0, EVERY, EBADF);
	int null = open("/dev/null", O_RDWR), file = memfd_create("no dma-buf", 0);
	CHECK(null >= 0 && file >= 0 && !ftruncate(file, size));
	refused(null, 0, page, 0, EVERY, EINVAL);
	refused(file, 0, page, 0, EVERY, EINVAL);
	refused(fd, 0, 0, 0, EVERY, EINVAL);
	refused(fd, page, size, IOVA, EVERY, EINVAL);  // beyond the end
	refused(fd, size, page, IOVA, EVERY, EINVAL);
	refused(fd, 8, page, IOVA, EVERY, EINVAL);     // another position in the page
	int dev = open("/dev/dma_heap/system", O_RDWR);
	struct dma_heap_allocation_data read_only = {.len = size, .fd_flags = O_RDONLY | O_CLOEXEC};
	CHECK(dev >= 0 && !ioctl(dev, DMA_HEAP_IOCTL_ALLOC, &read_only) && !close(dev));
	refused(read_only.fd, 0, page, IOVA, EVERY, EOPNOTSUPP); // its exporter allows no mapping for that

	// The second and the third page, of which the first 64 bytes are left out.
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, page + 64, 2 * page - 64, IOVA + 64, fd, EVERY);
	struct ibv_mr *source = ibv_reg_dmabuf_mr(pd, 0, size, IOVA, fd, 0); // it is only read
	CHECK(mr && source && mr->length == 2 * page - 64 && !close(fd));

	struct loopback l;
	loopback_open(&l);
	struct ibv_sge host = {(uintptr_t)l.memory, page, l.mr->lkey};
	char *at = mem + page + 100;
	for (size_t i = 0; i < page; i++)
		l.memory[i] = i * 7 + 3;
	memset(mem, 0xee, size);
	CHECK(!status(&l, IBV_WR_RDMA_WRITE, host, IOVA + 100, mr->rkey)); // in
	CHECK(!memcmp(at, l.memory, page));
	for (char *p = mem; p < mem + size; p++)
		CHECK((p >= at && p < at + page) || *p == (char)0xee);
	memset(l.memory, 0, page);
	CHECK(!status(&l, IBV_WR_RDMA_READ, host, IOVA + 100, mr->rkey)); // and out
	CHECK(!memcmp(at, l.memory, page));
	memset(l.memory, 0, page);
	struct ibv_sge part = {IOVA + page + 100, page, source->lkey};
	CHECK(!status(&l, IBV_WR_RDMA_WRITE, part, (uintptr_t)l.memory, l.mr->rkey)); // out, as the source
	CHECK(!memcmp(at, l.memory, page));
	part = (struct ibv_sge){IOVA + page + 200, page / 2, mr->lkey};
	CHECK(!status(&l, IBV_WR_RDMA_READ, part, IOVA + 100, mr->rkey)); // from one part to another
	CHECK(!memcmp(mem + 2 * page + 200, at, page / 2));
	uint64_t word = 40;
	memcpy(mem + page + 128, &word, 8);
	host.length = 8;
	CHECK(!status(&l, IBV_WR_ATOMIC_FETCH_AND_ADD, host, IOVA + 128, mr->rkey));
	CHECK(*(uint64_t *)l.memory == 40);
	memcpy(&word, mem + page + 128, 8);
	CHECK(word == 42);

	// Outside the region.
	CHECK(status(&l, IBV_WR_RDMA_WRITE, host, IOVA + 2 * page - 4, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	loopback_close(&l);
	loopback_open(&l);
	host = (struct ibv_sge){(uintptr_t)l.memory, 8, l.mr->lkey};
	CHECK(status(&l, IBV_WR_RDMA_WRITE, host, IOVA + 60, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	loopback_close(&l);

	// Each access begins and ends with the exporter's consent.
	refuse_sync();
	loopback_open(&l);
	host = (struct ibv_sge){(uintptr_t)l.memory, 8, l.mr->lkey};
	CHECK(status(&l, IBV_WR_RDMA_WRITE, host, IOVA + 64, mr->rkey) == IBV_WC_REM_OP_ERR);
	loopback_close(&l);
	loopback_open(&l);
	part = (struct ibv_sge){IOVA, 8, source->lkey};
	CHECK(status(&l, IBV_WR_RDMA_WRITE, part, (uintptr_t)l.memory, l.mr->rkey) == IBV_WC_LOC_PROT_ERR);
	loopback_close(&l);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(source));
	printf("moved\n");
}
