// A stand-in for NVIDIA's libcuda.so.1. Memory of its GPU is a range of addresses of the program
// that allows no access, so that a direct access ends the program. Copies go through another
// mapping. They are asynchronous and late by a random time. As with a GPU, copies and streams need
// their context to be current, and end with it. The one kernel that there is waits until the word
// that its argument points to is not 0, and meanwhile the default stream and those that wait for it
// do nothing.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "cuda.h"

struct context {
	int alive;
	unsigned long long id;
};

static struct memory {
	CUdeviceptr at;
	size_t size, asked; // CUDA knows what was asked for, and pages have the rest
	char *seen; // the other mapping; NULL: the memory is managed
	int fd;
	CUcontext context; // NULL: of no context
	int free;
} memories[256];

struct job {
	struct job *next;
	struct memory *memory;
	char *device, *host;
	size_t n;
	int to_device;
};

struct stream {
	CUcontext context;
	struct job *first, **last;
	int blocking, busy, error, ended;
	pthread_t thread;
	pthread_cond_t changed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int allocated;
static unsigned long long ids;
static struct context primary = {1, 1000};
static volatile uint32_t *kernel; // what the running kernel waits for, or NULL
static __thread CUcontext stack[8];
static __thread int depth;
int standin_fail_after = -1, standin_copies, standin_pinned, standin_streams;

int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal; } // there is one, 0

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	*value = attribute == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
	return device;
}

int cuCtxPushCurrent_v2(CUcontext c)
{
	if (!c || !c->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (depth == 8)
		abort(); // contexts that are not taken away again
	stack[depth++] = c;
	return 0;
}

int cuCtxPopCurrent_v2(CUcontext *c)
{
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*c = stack[--depth];
	return 0;
}

int cuCtxGetCurrent(CUcontext *c)
{
	*c = depth ? stack[depth - 1] : NULL;
	return 0;
}

static CUcontext current(void)
{
	CUcontext c;
	cuCtxGetCurrent(&c);
	return c && c->alive ? c : NULL;
}

int cuCtxCreate_v2(CUcontext *c, unsigned flags, int device)
{
	(void)flags; (void)device;
	*c = calloc(1, sizeof **c); // never freed
	**c = (struct context){1, ++ids};
	return cuCtxPushCurrent_v2(*c);
}

int cuCtxDestroy_v2(CUcontext c)
{
	pthread_mutex_lock(&lock);
	c->alive = 0;
	for (int i = 0; i < allocated; i++)
		if (memories[i].context == c)
			memories[i].free = 1;
	pthread_mutex_unlock(&lock);
	if (depth && stack[depth - 1] == c)
		depth--;
	return 0;
}

int cuCtxGetId(CUcontext c, unsigned long long *id)
{
	if (!c->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	*id = c->id;
	return 0;
}

int cuDevicePrimaryCtxRetain(CUcontext *c, int device)
{
	(void)device;
	*c = &primary;
	return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return device; }

static int allocate(CUdeviceptr *p, size_t n, CUcontext c)
{
	int fd = memfd_create("GPU", MFD_CLOEXEC);
	size_t asked = n;
	n = (n + 65535) & ~(size_t)65535;
	if (fd < 0 || ftruncate(fd, n) || allocated == 256)
		return CUDA_ERROR_OUT_OF_MEMORY;
	void *at = mmap(NULL, n, PROT_NONE, MAP_SHARED, fd, 0), *seen = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED || seen == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	memories[allocated++] = (struct memory){(uintptr_t)at, n, asked, seen, fd, c, 0};
	pthread_mutex_unlock(&lock);
	*p = (uintptr_t)at;
	return 0;
}

int cuMemAlloc_v2(CUdeviceptr *p, size_t n) { return current() ? allocate(p, n, current()) : CUDA_ERROR_INVALID_CONTEXT; }

int cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s)
{
	return current() && !s ? allocate(p, n, NULL) : CUDA_ERROR_INVALID_CONTEXT;
}

int cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags)
{
	if (!current() || flags != CU_MEM_ATTACH_GLOBAL)
		return CUDA_ERROR_INVALID_CONTEXT;
	void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_mutex_lock(&lock);
	memories[allocated++] = (struct memory){(uintptr_t)at, n, n, NULL, -1, current(), 0};
	pthread_mutex_unlock(&lock);
	*p = (uintptr_t)at;
	return 0;
}

int cuMemAllocHost_v2(void **p, size_t n) // the GPU has it at the same address
{
	return current() && (*p = calloc(1, n)) ? 0 : CUDA_ERROR_INVALID_CONTEXT;
}

// memory_at returns the memory that has n bytes at p. The lock is held.
static struct memory *memory_at(CUdeviceptr p, size_t n)
{
	for (int i = 0; i < allocated; i++) {
		struct memory *m = &memories[i];
		if (!m->free && p >= m->at && p - m->at <= m->size && n <= m->size - (p - m->at))
			return m;
	}
	return NULL;
}

int cuMemFree_v2(CUdeviceptr p)
{
	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(p, 1);
	if (m)
		m->free = 1;
	pthread_mutex_unlock(&lock);
	return m ? 0 : CUDA_ERROR_INVALID_VALUE;
}

int cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t n, int type, unsigned long long flags)
{
	size_t page = sysconf(_SC_PAGESIZE);
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(p, n);
	pthread_mutex_unlock(&lock);
	if (!current() || !m || p % page || n % page || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)handle = dup(m->fd);
	return 0;
}

// fstatfs is libc's, except that the handles of this GPU's memory are dma-bufs.
int fstatfs(int fd, struct statfs *fs)
{
	struct stat is, of;
	int err = syscall(SYS_fstatfs, fd, fs);
	if (err || fstat(fd, &is))
		return err;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < allocated; i++)
		if (memories[i].seen && !fstat(memories[i].fd, &of) && is.st_dev == of.st_dev && is.st_ino == of.st_ino)
			fs->f_type = 0x444d4142; // DMA_BUF_MAGIC
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p)
{
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(p, 1);
	pthread_mutex_unlock(&lock);
	if (!m || p - m->at >= m->asked)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = m->context;
		return 0;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = CU_MEMORYTYPE_DEVICE;
		return 0;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = !m->seen;
		return 0;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = 0;
		return 0;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

int cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	(void)p; (void)n; (void)flags;
	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	__atomic_add_fetch(&standin_pinned, 1, __ATOMIC_RELAXED);
	return 0;
}

int cuMemHostUnregister(void *p)
{
	if (!current())
		abort(); // the memory would stay registered
	__atomic_sub_fetch(&standin_pinned, 1, __ATOMIC_RELAXED);
	return !p;
}

// execute executes a copy, late. The lock is not held.
static int execute(struct job *j, CUcontext c)
{
	static __thread unsigned seed;
	if (!seed)
		seed = (uintptr_t)&seed;
	usleep(rand_r(&seed) % 300);
	pthread_mutex_lock(&lock);
	int err = standin_fail_after >= 0 && standin_copies >= standin_fail_after ? CUDA_ERROR_LAUNCH_FAILED : 0;
	standin_copies++;
	if (!c->alive)
		err = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else if (j->memory->free)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err && j->to_device)
		memcpy(j->device, j->host, j->n);
	else if (!err)
		memcpy(j->host, j->device, j->n);
	pthread_mutex_unlock(&lock);
	return err;
}

int cuModuleLoadData(void **module, const void *image)
{
	*module = (void *)image;
	return current() ? 0 : CUDA_ERROR_INVALID_CONTEXT;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	*function = module;
	return !name;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	CUstream s, void **parameters, void **extra)
{
	if (!current() || !function || s || extra || shared || gx * gy * gz * bx * by * bz != 1)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	kernel = *(volatile uint32_t **)parameters[0];
	pthread_mutex_unlock(&lock);
	return 0;
}

// await_kernel is for the default stream, and streams that wait for it. The lock is held, but not
// meanwhile.
static void await_kernel(void)
{
	while (kernel && !*kernel) {
		pthread_mutex_unlock(&lock);
		usleep(100);
		pthread_mutex_lock(&lock);
	}
	kernel = NULL;
}

int cuStreamQuery(CUstream s)
{
	pthread_mutex_lock(&lock);
	int busy = s ? s->first || s->busy : kernel && !*kernel;
	pthread_mutex_unlock(&lock);
	return busy ? CUDA_ERROR_NOT_READY : 0;
}

static void *work(void *arg)
{
	struct stream *s = arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (!s->first && !s->ended)
			pthread_cond_wait(&s->changed, &lock);
		if (!s->first)
			break;
		struct job *j = s->first;
		if (!(s->first = j->next))
			s->last = &s->first;
		s->busy = 1;
		if (s->blocking)
			await_kernel();
		pthread_mutex_unlock(&lock);
		int err = execute(j, s->context);
		free(j);
		pthread_mutex_lock(&lock);
		s->busy = 0;
		if (err)
			s->error = err;
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&lock);
	free(s);
	return NULL;
}

int cuStreamCreate(CUstream *to, unsigned flags)
{
	if (!current())
		return CUDA_ERROR_INVALID_CONTEXT;
	struct stream *s = calloc(1, sizeof *s);
	__atomic_add_fetch(&standin_streams, 1, __ATOMIC_RELAXED);
	s->context = current();
	s->last = &s->first;
	s->blocking = !(flags & 1);
	pthread_cond_init(&s->changed, NULL);
	pthread_create(&s->thread, NULL, work, s);
	pthread_detach(s->thread);
	*to = s;
	return 0;
}

int cuStreamDestroy_v2(CUstream s)
{
	pthread_mutex_lock(&lock);
	s->ended = 1;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuStreamSynchronize(CUstream s)
{
	pthread_mutex_lock(&lock);
	if (!s) {
		await_kernel();
		pthread_mutex_unlock(&lock);
		return 0;
	}
	while (s->first || s->busy)
		pthread_cond_wait(&s->changed, &lock);
	int err = s->error;
	pthread_mutex_unlock(&lock);
	return err;
}

static int copy(CUdeviceptr device, char *host, size_t n, int to_device, CUstream s)
{
	CUcontext c = current();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&lock);
	struct memory *m = memory_at(device, n);
	int err = s && s->context != c ? CUDA_ERROR_INVALID_HANDLE : !m || !m->seen ? CUDA_ERROR_INVALID_VALUE : 0;
	if (err) {
		pthread_mutex_unlock(&lock);
		return err;
	}
	struct job j = {NULL, m, m->seen + (device - m->at), host, n, to_device};
	if (s) {
		struct job *queued = malloc(sizeof j);
		*queued = j;
		*s->last = queued;
		s->last = &queued->next;
		pthread_cond_broadcast(&s->changed);
	} else { // the program's own copies do not fail, and are late only by a kernel
		await_kernel();
		to_device ? memcpy(j.device, host, n) : memcpy(host, j.device, n);
	}
	pthread_mutex_unlock(&lock);
	return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s) { return copy(from, to, n, 0, s); }
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s) { return copy(to, (char *)from, n, 1, s); }
int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n) { return copy(from, to, n, 0, NULL); }
int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n) { return copy(to, (char *)from, n, 1, NULL); }

int cuGetErrorName(int error, const char **name)
{
	*name = error == CUDA_ERROR_CONTEXT_IS_DESTROYED ? "CUDA_ERROR_CONTEXT_IS_DESTROYED" : "CUDA_ERROR";
	return 0;
}
