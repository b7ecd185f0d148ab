//go:build linux && cgo && (amd64 || arm64)

// Memory of NVIDIA's GPUs. A program that uses it has loaded the driver's library, libcuda.so.1,
// which is only looked up here and never loaded. Copies run on streams of this file, which do not
// wait for the program's. The context that is current in a thread of the program is never changed:
// copies run on threads of the engine, and what is called on the program's threads restores its
// context.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "cuda.h"

// Constants of cuda.h, of NVIDIA's toolkit.
enum {
	ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_IS_MANAGED = 8, ATTRIBUTE_DEVICE_ORDINAL = 9,
	MEMORY_OF_DEVICE = 2,
	STREAM_NON_BLOCKING = 1,
	HOST_REGISTER_PORTABLE = 1,
	ERROR_CONTEXT_IS_DESTROYED = 709,
};

struct functions {
	int (*PointerGetAttribute)(void *data, int attribute, uint64_t ptr);
	int (*CtxPushCurrent)(void *context);
	int (*CtxPopCurrent)(void **context);
	int (*DeviceGet)(int *device, int ordinal);
	int (*DevicePrimaryCtxRetain)(void **context, int device);
	int (*DevicePrimaryCtxRelease)(int device);
	int (*StreamCreate)(void **stream, unsigned flags);
	int (*StreamDestroy)(void *stream);
	int (*StreamSynchronize)(void *stream);
	int (*MemcpyDtoHAsync)(void *to, uint64_t from, size_t n, void *stream);
	int (*MemcpyHtoDAsync)(uint64_t to, const void *from, size_t n, void *stream);
	int (*MemHostRegister)(void *p, size_t n, unsigned flags);
	int (*MemHostUnregister)(void *p);
	int (*GetErrorName)(int result, const char **name);
	int (*CtxGetId)(void *context, unsigned long long *id); // since CUDA 12; may be NULL
};

static struct functions cu; // set once, before cu_found
static atomic_int cu_found;
static atomic_ullong looked; // how many libraries the program had loaded, when it had no CUDA

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // innermost; nothing is called under it

static int loads(struct dl_phdr_info *info, size_t size, void *to)
{
	(void)size;
	*(unsigned long long *)to = info->dlpi_adds;
	return 1;
}

// found tells whether the program has the driver's library, with all functions. It does not take
// the dynamic loader's lock unless libraries were loaded since the last call: a constructor of a
// library may register memory with that lock held, or load others for long.
static int found(void)
{
	if (atomic_load(&cu_found))
		return 1;
	unsigned long long now = 0;
	dl_iterate_phdr(loads, &now);
	if (now == atomic_load(&looked))
		return 0;
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (!lib) {
		atomic_store(&looked, now);
		return 0;
	}
	struct functions f;
#define F(field, symbol) (*(void **)&f.field = dlsym(lib, symbol))
	int all = F(PointerGetAttribute, "cuPointerGetAttribute") && F(CtxPushCurrent, "cuCtxPushCurrent_v2") &&
		  F(CtxPopCurrent, "cuCtxPopCurrent_v2") && F(DeviceGet, "cuDeviceGet") &&
		  F(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") &&
		  F(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2") && F(StreamCreate, "cuStreamCreate") &&
		  F(StreamDestroy, "cuStreamDestroy_v2") && F(StreamSynchronize, "cuStreamSynchronize") &&
		  F(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2") && F(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2") &&
		  F(MemHostRegister, "cuMemHostRegister_v2") && F(MemHostUnregister, "cuMemHostUnregister") &&
		  F(GetErrorName, "cuGetErrorName");
	F(CtxGetId, "cuCtxGetId");
#undef F
	// The library stays open, as its functions are in use.
	pthread_mutex_lock(&lock);
	if (all && !atomic_load(&cu_found)) {
		cu = f;
		atomic_store(&cu_found, 1);
	}
	pthread_mutex_unlock(&lock);
	return all;
}

int cuda_dmabuf(int fd)
{
	struct statfs fs;
	return !fstatfs(fd, &fs) && fs.f_type == 0x444d4142; // DMA_BUF_MAGIC of <linux/magic.h>
}

// Whose memory an address is. CUDA does not know that of the processor unless it has allocated or
// registered it.
enum whose { UNKNOWN, PROCESSOR, DEVICE };

static enum whose whose(uint64_t addr)
{
	unsigned type = 0, managed = 0;
	if (cu.PointerGetAttribute(&type, ATTRIBUTE_MEMORY_TYPE, addr))
		return UNKNOWN;
	// Managed memory moves to the processor when that touches it.
	if (type != MEMORY_OF_DEVICE || (!cu.PointerGetAttribute(&managed, ATTRIBUTE_IS_MANAGED, addr) && managed))
		return PROCESSOR;
	return DEVICE;
}

int cuda_find(uint64_t addr, size_t length, struct cuda_memory *m)
{
	if (!length || !found())
		return 0;
	// NCCL registers the pages around its memory. The first or the last one may begin or end where
	// nothing is allocated, or other memory of the GPU.
	enum whose first = whose(addr), last = whose(addr + length - 1);
	if (first != DEVICE && last != DEVICE)
		return 0;
	if (first == PROCESSOR || last == PROCESSOR || addr + length - 1 < addr)
		return -EFAULT;
	uint64_t page = sysconf(_SC_PAGESIZE), end = addr + length - 1;
	if (first != DEVICE) {
		if (whose((addr | (page - 1)) < end ? addr | (page - 1) : end) != DEVICE)
			return -EFAULT;
		addr = end;
	} else if (last != DEVICE && whose((end & ~(page - 1)) > addr ? end & ~(page - 1) : addr) != DEVICE) {
		return -EFAULT;
	}
	*m = (struct cuda_memory){0};
	int ordinal = 0;
	if (cu.PointerGetAttribute(&m->context, ATTRIBUTE_CONTEXT, addr) || !m->context) {
		// Memory that was mapped (cuMemMap), or allocated on a stream, is of no context.
		if (cu.PointerGetAttribute(&ordinal, ATTRIBUTE_DEVICE_ORDINAL, addr) || cu.DeviceGet(&m->device, ordinal) ||
		    cu.DevicePrimaryCtxRetain(&m->context, m->device))
			return -EFAULT;
		m->retained = 1;
	}
	unsigned long long id = 0;
	if (cu.CtxGetId && !cu.CtxGetId(m->context, &id))
		m->identity = id;
	return 1;
}

void cuda_release(struct cuda_memory *m)
{
	if (m->retained)
		cu.DevicePrimaryCtxRelease(m->device);
}

// Streams that no copy uses.
#define STREAMS 32
static struct stream {
	void *stream, *context;
	uint64_t identity;
} streams[STREAMS];

// take_stream returns a stream of the current context, m's.
static int take_stream(struct cuda_memory *m, void **stream)
{
	*stream = NULL;
	pthread_mutex_lock(&lock);
	for (int i = 0; m->identity && !*stream && i < STREAMS; i++) {
		struct stream *s = &streams[i];
		if (s->stream && s->context == m->context && s->identity == m->identity) {
			*stream = s->stream;
			s->stream = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	return *stream ? 0 : cu.StreamCreate(stream, STREAM_NON_BLOCKING);
}

// alive returns an error if a context with an identity is destroyed.
static int alive(void *context, uint64_t identity)
{
	unsigned long long id = 0;
	int err = cu.CtxGetId(context, &id);
	return err || id == identity ? err : ERROR_CONTEXT_IS_DESTROYED;
}

// forget_stream frees the place of a stream whose context is destroyed. The stream ended with it.
static void forget_stream(void)
{
	static unsigned next;
	pthread_mutex_lock(&lock);
	int i = next++ % STREAMS;
	struct stream s = streams[i];
	pthread_mutex_unlock(&lock);
	if (!s.stream || !alive(s.context, s.identity))
		return;
	pthread_mutex_lock(&lock);
	if (streams[i].stream == s.stream && streams[i].identity == s.identity)
		streams[i].stream = NULL;
	pthread_mutex_unlock(&lock);
}

// give_stream keeps a stream for the next copy. Without an identity, the context might be another
// by then.
static void give_stream(struct cuda_memory *m, void *stream)
{
	if (m->identity)
		forget_stream();
	pthread_mutex_lock(&lock);
	for (int i = 0; m->identity && stream && i < STREAMS; i++)
		if (!streams[i].stream) {
			streams[i] = (struct stream){stream, m->context, m->identity};
			stream = NULL;
		}
	pthread_mutex_unlock(&lock);
	if (stream)
		cu.StreamDestroy(stream);
}

// enter makes m's context current. The program may have destroyed it.
static int enter(struct cuda_memory *m)
{
	int err = m->identity ? alive(m->context, m->identity) : 0;
	return err ? err : cu.CtxPushCurrent(m->context);
}

static void leave(void)
{
	void *context;
	cu.CtxPopCurrent(&context);
}

const char *cuda_error(int result)
{
	const char *name;
	return cu.GetErrorName(result, &name) ? "unknown error" : name;
}

// Staging memory is memory of this file, which is only registered with CUDA, so that it stays when
// a context ends. QPs are locked when it is allocated and released. It is therefore registered by
// its first copy, and unregistered after a later one.
#define CLASSES 20
#define MOST_FREE (64 << 20) // bytes
#define HEADER 4096          // bytes before the memory
struct block {
	struct block *next, *next_fresh;
	size_t size; // of the memory: 4 KiB times a power of two
};
static struct block *free_blocks[CLASSES];
static struct block *fresh; // those that are not registered; few
static size_t bytes_free;

static char *memory_of(struct block *b) { return (char *)b + HEADER; }

static int class_of(size_t n)
{
	int c = 0;
	while (c < CLASSES && (size_t)4096 << c < n)
		c++;
	return c;
}

void *cuda_alloc_staging(size_t n, size_t *size)
{
	int c = class_of(n);
	if (c == CLASSES)
		return NULL;
	*size = (size_t)4096 << c;
	pthread_mutex_lock(&lock);
	struct block *b = free_blocks[c];
	if (b) {
		free_blocks[c] = b->next;
		bytes_free -= b->size;
	}
	pthread_mutex_unlock(&lock);
	if (b)
		return memory_of(b);
	b = mmap(NULL, HEADER + *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		return NULL;
	b->size = *size;
	pthread_mutex_lock(&lock);
	b->next_fresh = fresh;
	fresh = b;
	pthread_mutex_unlock(&lock);
	return memory_of(b);
}

void cuda_free_staging(void *p)
{
	struct block *b = (struct block *)((char *)p - HEADER), **to = &free_blocks[class_of(b->size)];
	pthread_mutex_lock(&lock);
	b->next = *to;
	*to = b;
	bytes_free += b->size;
	pthread_mutex_unlock(&lock);
}

// take_fresh removes the block that has p from the fresh ones. The lock is held.
static struct block *take_fresh(char *p)
{
	for (struct block **at = &fresh; *at; at = &(*at)->next_fresh) {
		struct block *b = *at;
		if (p >= memory_of(b) && p < memory_of(b) + b->size) {
			*at = b->next_fresh;
			return b;
		}
	}
	return NULL;
}

// pin registers the staging memory at p before its first copy; without it, copies are slower. A
// context is current.
static void pin(char *p)
{
	pthread_mutex_lock(&lock);
	struct block *b = take_fresh(p);
	pthread_mutex_unlock(&lock);
	if (b)
		cu.MemHostRegister(memory_of(b), b->size, HOST_REGISTER_PORTABLE);
}

// unpin unmaps free staging memory beyond MOST_FREE. A context is current.
static void unpin(void)
{
	for (;;) {
		struct block *b = NULL, *unregistered = NULL;
		pthread_mutex_lock(&lock);
		for (int c = CLASSES - 1; c >= 0 && !b && bytes_free > MOST_FREE; c--)
			if ((b = free_blocks[c])) {
				free_blocks[c] = b->next;
				bytes_free -= b->size;
				unregistered = take_fresh(memory_of(b));
			}
		pthread_mutex_unlock(&lock);
		if (!b)
			return;
		if (!unregistered)
			cu.MemHostUnregister(memory_of(b));
		munmap(b, HEADER + b->size);
	}
}

int cuda_copy(struct cuda_memory *m, uint64_t addr, void *host, size_t n, int to_gpu)
{
	void *stream;
	int err = enter(m);
	if (err)
		return err;
	pin(host);
	if (!(err = take_stream(m, &stream))) {
		err = to_gpu ? cu.MemcpyHtoDAsync(addr, host, n, stream) : cu.MemcpyDtoHAsync(host, addr, n, stream);
		int end = cu.StreamSynchronize(stream);
		err = err ? err : end;
		// After an error the context may be lost, and its streams with it.
		if (!err)
			give_stream(m, stream);
	}
	unpin();
	leave();
	return err;
}
