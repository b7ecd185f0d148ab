// Programs with memory of a GPU, on libcuda.c in place of NVIDIA's driver, or on that (gpu.sh):
//
//	gpu ask [FILE]               asks and registers as NCCL, UCX, perftest, Mooncake and NVSHMEM do
//	gpu server ADDR PORT HOW     the passive side of a transfer
//	gpu client ADDR PORT move    moves data between GPUs and processor, and verifies it
//	gpu client ADDR PORT busy    first moves data while a kernel occupies the default stream
//	gpu client ADDR PORT destroy     destroys its CUDA context while it writes
//	gpu client ADDR PORT destroyed   the server destroys its context meanwhile
//	gpu client ADDR PORT free        frees its memory while it writes
//	gpu client ADDR PORT freed       the server frees its memory meanwhile
//	gpu client ADDR PORT fail        a copy of the server fails
//	gpu client ADDR PORT measure     prints bandwidth and latency of writes, beside those of cuMemcpy
//
// The server's HOW is the client's. The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include "cmevents.h"
#include "cuda.h"

#define SIZE (1 << 20)
#define DEPTH 16
#define EVERY (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define CU(x) CHECK(!(x))

static struct rdma_cm_id *conn;
static CUcontext own;

// IN_CONTEXT makes a call of the program in its context, which is otherwise not current: the
// libraries use that of the pointer.
#define IN_CONTEXT(call) \
	do { \
		CUcontext c_; \
		CU(cuCtxPushCurrent_v2(own)); \
		CU(call); \
		CU(cuCtxPopCurrent_v2(&c_)); \
		CHECK(c_ == own); \
	} while (0)

static CUdeviceptr gpu_memory(size_t n)
{
	CUdeviceptr p;
	IN_CONTEXT(cuMemAlloc_v2(&p, n));
	return p;
}

// has_dmabuf tells whether this GPU's memory can be a dma-buf, which depends on NVIDIA's driver.
static int has_dmabuf(void)
{
	int has, device;
	CU(cuDeviceGet(&device, 0));
	CU(cuDeviceGetAttribute(&has, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device));
	return has;
}

static int dmabuf_of(CUdeviceptr p, size_t n)
{
	int fd = -1;
	IN_CONTEXT(cuMemGetHandleForAddressRange(&fd, p, n, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	return fd;
}

// nccl registers as NCCL does with DMA-BUF support: the pages around the memory, by a descriptor
// that is closed at once, at the GPU's address.
static struct ibv_mr *nccl(struct ibv_pd *pd, CUdeviceptr p, size_t n)
{
	size_t page = sysconf(_SC_PAGESIZE);
	CUdeviceptr at = p & ~(page - 1);
	n = (p + n - at + page - 1) & ~(page - 1);
	int fd = dmabuf_of(at, n);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, n, at, fd, EVERY | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->length == n);
	close(fd);
	return mr;
}

// struct mr_init_attr is struct ibv_mr_init_attr of rdma-core 65.
struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};

static void ask(const char *peermem)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(ctx && pd);
	if (peermem) // NVSHMEM, Mooncake, and NCCL and UCX without DMA-BUF
		CHECK(!access(peermem, F_OK));
	// NCCL and UCX ask with a descriptor that does not exist. UCX expects EBADF.
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) && errno == EBADF);
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, sysconf(_SC_PAGESIZE), 0, -1, EVERY) && errno == EBADF);
	int file = open("/dev/null", O_RDWR);
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, file, EVERY) && errno == EINVAL); // no dma-buf
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 1, -1, EVERY) && errno == EINVAL); // another position in the page

	CUdeviceptr p = gpu_memory(SIZE), none, managed;
	struct ibv_mr *mr;
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, p, file, EVERY) && errno == EINVAL); // no dma-buf, but the GPU's address
	char *host = calloc(1, SIZE);
	CHECK((mr = ibv_reg_mr(pd, host, SIZE, EVERY)));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)p, SIZE, 0) == IBV_REREG_MR_ERR_CMD && errno == EOPNOTSUPP);
	CHECK(!ibv_dereg_mr(mr) && (mr = ibv_reg_mr(pd, (void *)p, SIZE, EVERY)));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, host, SIZE, 0) == IBV_REREG_MR_ERR_CMD && errno == EOPNOTSUPP);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) && !ibv_dereg_mr(mr));
	CHECK((mr = ibv_reg_mr(pd, (void *)p, SIZE, EVERY)) && mr->addr == (void *)p && !ibv_dereg_mr(mr)); // NVSHMEM
	CHECK((mr = ibv_reg_mr_iova(pd, (void *)p, SIZE, 1 << 20, EVERY)) && !ibv_dereg_mr(mr)); // NVSHMEM, memory with an alias
	CHECK((mr = ibv_reg_mr_iova2(pd, (void *)p, SIZE, p, EVERY | IBV_ACCESS_RELAXED_ORDERING)) && !ibv_dereg_mr(mr)); // NCCL
	if (has_dmabuf()) {
		mr = nccl(pd, p + 100, 5000); // NCCL and NVSHMEM
		CHECK(mr->lkey && mr->rkey && !ibv_dereg_mr(mr));
		int fd = dmabuf_of(p, SIZE); // perftest: ibv_reg_mr_ex, and without it ibv_reg_dmabuf_mr
		struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct mr_init_attr *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
		CHECK(reg_ex);
		struct mr_init_attr attr = {.length = SIZE, .access = EVERY, .comp_mask = 1 | 4 | 8, .iova = p, .fd = fd};
		CHECK((mr = reg_ex(pd, &attr)) && !ibv_dereg_mr(mr));
		CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, SIZE, p, fd, EVERY)) && !ibv_dereg_mr(mr));
		CHECK((mr = ibv_reg_dmabuf_mr(pd, 4096, SIZE - 4096, p + 4096, fd, EVERY)) && !ibv_dereg_mr(mr)); // Mooncake
		attr.fd = -1;
		errno = 0;
		CHECK(!reg_ex(pd, &attr) && errno == EBADF);
		close(fd);
	} else {
		printf("result: this GPU's driver makes no dma-bufs\n");
	}

	IN_CONTEXT(cuMemAllocAsync(&none, SIZE, NULL)); // memory of no context
	CHECK((mr = ibv_reg_mr(pd, (void *)none, SIZE, EVERY)) && !ibv_dereg_mr(mr));
	IN_CONTEXT(cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
	CHECK((mr = ibv_reg_mr(pd, (void *)managed, SIZE, EVERY)) && !ibv_dereg_mr(mr));
	errno = 0;
	CHECK(!ibv_reg_mr(pd, (void *)p, SIZE + (64 << 20), EVERY) && errno == EFAULT); // beyond the GPU's memory
	CUcontext c;
	CU(cuCtxGetCurrent(&c));
	CHECK(!c); // the libraries leave no context
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	printf("asked\n");
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = {.cap = {DEPTH, DEPTH, 2, 2, 0}, .qp_type = IBV_QPT_RC};
	CHECK(!rdma_create_qp(id, NULL, &a));
}

// status_of waits for a completion, and returns its status.
static int status_of(struct ibv_cq *cq) { return wait_for(cq).status; }

static void post(struct ibv_mr *mr, uint64_t at, size_t n, struct ibv_send_wr wr)
{
	struct ibv_sge sge = {at, n, mr->lkey};
	struct ibv_send_wr *bad;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.send_flags |= IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(conn->qp, &wr, &bad));
}

static void receive(struct ibv_mr *mr, uint64_t at, size_t n)
{
	struct ibv_sge sge = {at, n, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(conn->qp, &wr, &bad));
}

static char pattern(size_t i, int round) { return (char)(i * 7 + (i >> 8) + round); }

static void fill(char *b, size_t n, int round)
{
	for (size_t i = 0; i < n; i++)
		b[i] = pattern(i, round);
}

static void verify(const char *b, size_t n, int round)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != pattern(i, round)) {
			printf("round %d: byte %zu of %zu is wrong\n", round, i, n);
			exit(1);
		}
}

// struct memory is a side's: in the GPU, and of the processor.
struct memory {
	CUdeviceptr gpu;
	char *host;
	struct ibv_mr *gpu_mr, *host_mr;
};

static struct memory memory_of(struct ibv_pd *pd, int dmabuf)
{
	struct memory m = {.gpu = gpu_memory(2 * SIZE), .host = calloc(1, 2 * SIZE)};
	m.gpu_mr = dmabuf && has_dmabuf() ? nccl(pd, m.gpu, 2 * SIZE) : ibv_reg_mr(pd, (void *)m.gpu, 2 * SIZE, EVERY);
	m.host_mr = ibv_reg_mr(pd, m.host, 2 * SIZE, EVERY);
	CHECK(m.gpu_mr && m.host_mr);
	return m;
}

static void server(struct sockaddr *addr, const char *how)
{
	struct rdma_cm_id *listener;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, addr) && !rdma_listen(listener, 1));
	printf("listens\n");
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_CONNECT_REQUEST);
	conn = e->id;
	rdma_ack_cm_event(e);
	make_qp(conn);
	struct memory m = memory_of(conn->pd, 1);
	receive(m.gpu_mr, m.gpu + SIZE, SIZE);
	struct target t[] = {{m.gpu, m.gpu_mr->rkey}, {(uintptr_t)m.host, m.host_mr->rkey}};
	struct rdma_conn_param p = {.private_data = t, .private_data_len = sizeof t, .rnr_retry_count = 7,
		.responder_resources = 4, .initiator_depth = 4};
	CHECK(!rdma_accept(conn, &p));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ESTABLISHED));
	int status = status_of(conn->recv_cq);
	if (!strcmp(how, "move") || !strcmp(how, "busy")) {
		CHECK(!status);
		// When the completion is there, the bytes are in the GPU.
		IN_CONTEXT(cuMemcpyDtoH_v2(m.host, m.gpu + SIZE, SIZE));
		verify(m.host, SIZE, 5);
		post(m.gpu_mr, m.gpu + SIZE, SIZE, (struct ibv_send_wr){.opcode = IBV_WR_SEND});
		CHECK(!status_of(conn->send_cq));
	} else if (!status) { // the client has begun
		if (!strcmp(how, "destroyed"))
			CU(cuCtxDestroy_v2(own));
		if (!strcmp(how, "freed"))
			IN_CONTEXT(cuMemFree_v2(m.gpu));
		if (!strcmp(how, "fail"))
			standin_fail_after = standin_copies + 5;
	}
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	printf("disconnected\n");
	rdma_destroy_qp(conn);
	CHECK(!ibv_dereg_mr(m.gpu_mr) && !ibv_dereg_mr(m.host_mr) && !rdma_destroy_id(conn) && !rdma_destroy_id(listener));
}

// move moves data with the server's memory: t[0] in its GPU, and t[1] of its processor.
static void move(struct memory *m, struct target *t)
{
	struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {t->addr, t->rkey}}, read = write;
	read.opcode = IBV_WR_RDMA_READ;
	struct ibv_send_wr to_host = write, from_host = read; // GPU to processor, and back
	to_host.wr.rdma.remote_addr = from_host.wr.rdma.remote_addr = t[1].addr;
	to_host.wr.rdma.rkey = from_host.wr.rdma.rkey = t[1].rkey;
	fill(m->host, SIZE, 3);
	IN_CONTEXT(cuMemcpyHtoD_v2(m->gpu, m->host, SIZE));
	post(m->gpu_mr, m->gpu, SIZE, to_host);
	post(m->host_mr, (uintptr_t)m->host + SIZE, SIZE, from_host);
	post(m->gpu_mr, m->gpu + SIZE, SIZE, from_host);
	for (int i = 0; i < 3; i++)
		CHECK(!status_of(conn->send_cq));
	verify(m->host + SIZE, SIZE, 3);
	memset(m->host, 0, SIZE);
	IN_CONTEXT(cuMemcpyDtoH_v2(m->host, m->gpu + SIZE, SIZE));
	verify(m->host, SIZE, 3);
	fill(m->host, SIZE, 1); // GPU to GPU, and back
	IN_CONTEXT(cuMemcpyHtoD_v2(m->gpu, m->host, SIZE));
	post(m->gpu_mr, m->gpu, SIZE, write);
	post(m->gpu_mr, m->gpu + SIZE, SIZE, read);
	CHECK(!status_of(conn->send_cq) && !status_of(conn->send_cq));
	memset(m->host, 0, SIZE);
	IN_CONTEXT(cuMemcpyDtoH_v2(m->host, m->gpu + SIZE, SIZE));
	verify(m->host, SIZE, 1);
	fill(m->host, SIZE, 2); // processor to GPU, and back
	post(m->host_mr, (uintptr_t)m->host, SIZE, write);
	post(m->host_mr, (uintptr_t)m->host + SIZE, SIZE, read);
	CHECK(!status_of(conn->send_cq) && !status_of(conn->send_cq));
	verify(m->host + SIZE, SIZE, 2);
	uint64_t old = 40, found; // an atomic between GPUs
	IN_CONTEXT(cuMemcpyHtoD_v2(m->gpu, &old, 8));
	post(m->gpu_mr, m->gpu, 8, write);
	post(m->gpu_mr, m->gpu + 8, 8, (struct ibv_send_wr){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .wr.atomic = {t->addr, 2, 0, t->rkey}});
	post(m->gpu_mr, m->gpu + 16, 8, read);
	for (int i = 0; i < 3; i++)
		CHECK(!status_of(conn->send_cq));
	IN_CONTEXT(cuMemcpyDtoH_v2(&old, m->gpu + 8, 8));
	IN_CONTEXT(cuMemcpyDtoH_v2(&found, m->gpu + 16, 8));
	CHECK(old == 40 && found == 42);
	struct ibv_send_wr swap = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .wr.atomic = {t->addr, 42, 99, t->rkey}};
	post(m->gpu_mr, m->gpu + 8, 8, swap);
	post(m->host_mr, (uintptr_t)m->host, 8, swap); // it does not find the value
	post(m->gpu_mr, m->gpu + 16, 8, read);
	for (int i = 0; i < 3; i++)
		CHECK(!status_of(conn->send_cq));
	IN_CONTEXT(cuMemcpyDtoH_v2(&old, m->gpu + 8, 8));
	IN_CONTEXT(cuMemcpyDtoH_v2(&found, m->gpu + 16, 8));
	CHECK(old == 42 && found == 99 && !memcmp(m->host, &found, 8));
	fill(m->host, SIZE, 5); // a message, and its echo
	IN_CONTEXT(cuMemcpyHtoD_v2(m->gpu, m->host, SIZE));
	receive(m->gpu_mr, m->gpu + SIZE, SIZE);
	post(m->gpu_mr, m->gpu, SIZE, (struct ibv_send_wr){.opcode = IBV_WR_SEND});
	CHECK(!status_of(conn->send_cq) && !status_of(conn->recv_cq));
	memset(m->host, 0, SIZE);
	IN_CONTEXT(cuMemcpyDtoH_v2(m->host, m->gpu + SIZE, SIZE));
	verify(m->host, SIZE, 5);
	printf("moved\n");
}

// spin is a kernel that waits until a word is not 0.
static const char spin[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
	".visible .entry spin(.param .u64 word)\n{\n"
	".reg .pred %p<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<3>;\n"
	"ld.param.u64 %rd1, [word];\ncvta.to.global.u64 %rd2, %rd1;\n"
	"AGAIN:\nld.volatile.global.u32 %r1, [%rd2];\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 bra AGAIN;\n"
	"ret;\n}\n";

// busy moves data while a kernel of this program occupies the default stream, for which copies of
// other streams would wait unless they say otherwise.
static void busy(struct memory *m, struct target *t)
{
	struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {t->addr, t->rkey}}, read = write;
	read.opcode = IBV_WR_RDMA_READ;
	void *module, *kernel;
	volatile uint32_t *word;
	IN_CONTEXT(cuMemAllocHost_v2((void **)&word, 4096));
	*word = 0;
	IN_CONTEXT(cuModuleLoadData(&module, spin) || cuModuleGetFunction(&kernel, module, "spin"));
	void *argument = (void *)word, *arguments[] = {&argument};
	IN_CONTEXT(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	fill(m->host, SIZE, 4);
	post(m->host_mr, (uintptr_t)m->host, SIZE, write);
	post(m->gpu_mr, m->gpu, SIZE, read);
	CHECK(!status_of(conn->send_cq) && !status_of(conn->send_cq));
	write.wr.rdma.remote_addr += SIZE / 2;
	read.wr.rdma.remote_addr += SIZE / 2;
	post(m->gpu_mr, m->gpu, SIZE / 2, write);
	post(m->host_mr, (uintptr_t)m->host + SIZE, SIZE / 2, read);
	CHECK(!status_of(conn->send_cq) && !status_of(conn->send_cq));
	verify(m->host + SIZE, SIZE / 2, 4);
	int status;
	IN_CONTEXT((status = cuStreamQuery(NULL)) && status != CUDA_ERROR_NOT_READY);
	CHECK(status == CUDA_ERROR_NOT_READY); // the kernel is running yet
	*word = 1;
	IN_CONTEXT(cuStreamSynchronize(NULL));
}

// write_until writes until a write fails. It destroys the context, or frees the memory, meanwhile
// if that is asked for.
static void write_until(struct memory *m, struct target *t, int destroy, int free_memory)
{
	struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {t->addr, t->rkey}};
	post(m->gpu_mr, m->gpu, 64, (struct ibv_send_wr){.opcode = IBV_WR_SEND});
	CHECK(!status_of(conn->send_cq));
	int status = 0, done = 0;
	for (int i = 0; i < DEPTH / 2; i++)
		post(m->gpu_mr, m->gpu, SIZE, write);
	for (double end = now() + 20; !status; done++) {
		CHECK(now() < end);
		status = status_of(conn->send_cq);
		if (!status)
			post(m->gpu_mr, m->gpu, SIZE, write);
		if (done == 3 && destroy)
			CU(cuCtxDestroy_v2(own));
		if (done == 3 && free_memory)
			IN_CONTEXT(cuMemFree_v2(m->gpu));
	}
	printf("a write failed: %s\n", ibv_wc_status_str(status));
}

// copies returns the MB/s of copies from the GPU to memory of the processor and back.
static double copies(struct memory *m, void *through)
{
	int done = 0;
	double began = now();
	for (; now() < began + 1; done++)
		IN_CONTEXT(cuMemcpyDtoH_v2(through, m->gpu, SIZE) || cuMemcpyHtoD_v2(m->gpu, through, SIZE));
	return done * (double)SIZE / (now() - began) / 1e6;
}

// measure prints MB/s and microseconds of writes from GPU to GPU, and of copies through the
// processor's memory.
static void measure(struct memory *m, struct target *t)
{
	struct ibv_send_wr write = {.opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {t->addr, t->rkey}};
	post(m->gpu_mr, m->gpu, 64, (struct ibv_send_wr){.opcode = IBV_WR_SEND});
	CHECK(!status_of(conn->send_cq));
	int posted = 0, done = 0;
	double began = now(), took;
	for (; now() < began + 3; done++) {
		for (; posted - done < DEPTH; posted++)
			post(m->gpu_mr, m->gpu, SIZE, write);
		CHECK(!status_of(conn->send_cq));
	}
	took = now() - began;
	double written = done * (double)SIZE / took / 1e6;
	for (; done < posted; done++)
		CHECK(!status_of(conn->send_cq));
	void *pinned;
	IN_CONTEXT(cuMemAllocHost_v2(&pinned, SIZE));
	double copied = copies(m, m->host), by_pinned = copies(m, pinned);
	began = now();
	for (done = 0; now() < began + 1; done++) {
		post(m->gpu_mr, m->gpu, 8, write);
		CHECK(!status_of(conn->send_cq));
	}
	printf("result: writes %.0f MB/s, copies through the processor %.0f MB/s, ratio %.2f; through its pinned memory %.0f MB/s, ratio %.2f; "
	       "8 bytes in %.1f us\n", written, copied, written / copied, by_pinned, written / by_pinned, (now() - began) / done * 1e6);
}

static void client(struct sockaddr *addr, const char *how)
{
	struct target t[2];
	resolve(&conn, addr);
	make_qp(conn);
	struct memory m = memory_of(conn->pd, 0);
	struct rdma_conn_param p = {.retry_count = 7, .rnr_retry_count = 7, .responder_resources = 4, .initiator_depth = 4};
	CHECK(!rdma_connect(conn, &p));
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_ESTABLISHED);
	memcpy(t, e->param.conn.private_data, sizeof t);
	rdma_ack_cm_event(e);
	if (!strcmp(how, "busy"))
		busy(&m, t);
	if (!strcmp(how, "move") || !strcmp(how, "busy"))
		move(&m, t);
	else if (!strcmp(how, "measure"))
		measure(&m, t);
	else
		write_until(&m, t, !strcmp(how, "destroy"), !strcmp(how, "free"));
	CHECK(!rdma_disconnect(conn));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	rdma_destroy_qp(conn);
	CHECK(!ibv_dereg_mr(m.gpu_mr) && !ibv_dereg_mr(m.host_mr) && !rdma_destroy_id(conn));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CUcontext c;
	int device;
	CU(cuInit(0));
	CU(cuDeviceGet(&device, 0));
	CU(cuCtxCreate_v2(&own, 0, device));
	CU(cuCtxPopCurrent_v2(&c));
	if (argc > 1 && !strcmp(argv[1], "ask")) {
		ask(argv[2]);
		return 0;
	}
	CHECK(argc > 4);
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	CHECK(inet_aton(argv[2], &addr.sin_addr));
	CHECK((channel = rdma_create_event_channel()));
	if (!strcmp(argv[1], "server"))
		server((struct sockaddr *)&addr, argv[4]);
	else
		client((struct sockaddr *)&addr, argv[4]);
	return 0;
}
