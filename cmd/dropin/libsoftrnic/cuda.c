//go:build linux && cgo && (amd64 || arm64)

// Memory of NVIDIA's GPUs. A program that uses it has loaded the driver's library, libcuda.so.1,
// which is only looked up here and never loaded. Copies run on streams of this file, which do not
// wait for the program's. The context that is current in a thread of the program is never changed:
// copies run on threads of the engine, and what is called on the program's threads restores its
// context.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "cuda.h"

// Constants of cuda.h, of NVIDIA's toolkit.
enum {
	ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_IS_MANAGED = 8, ATTRIBUTE_DEVICE_ORDINAL = 9,
	MEMORY_OF_DEVICE = 2,
	STREAM_NON_BLOCKING = 1,
	HOST_REGISTER_PORTABLE = 1,
	ERROR_CONTEXT_IS_DESTROYED = 709,
};

static struct {
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
} cu;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // innermost

// found tells whether the program has the driver's library, with all functions.
static int found(void)
{
	static int is;
	pthread_mutex_lock(&lock);
	void *lib = is ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	if (lib) {
#define F(field, symbol) (*(void **)&cu.field = dlsym(lib, symbol))
		is = F(PointerGetAttribute, "cuPointerGetAttribute") && F(CtxPushCurrent, "cuCtxPushCurrent_v2") &&
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
	}
	int result = is;
	pthread_mutex_unlock(&lock);
	return result;
}

static int on_device(uint64_t addr)
{
	unsigned type = 0, managed = 0;
	if (cu.PointerGetAttribute(&type, ATTRIBUTE_MEMORY_TYPE, addr) || type != MEMORY_OF_DEVICE)
		return 0;
	// Managed memory moves to the processor when that touches it.
	return cu.PointerGetAttribute(&managed, ATTRIBUTE_IS_MANAGED, addr) || !managed;
}

int cuda_find(uint64_t addr, size_t length, struct cuda_memory *m)
{
	if (!length || !found())
		return 0;
	int first = on_device(addr);
	if (first != on_device(addr + length - 1))
		return -EFAULT;
	if (!first)
		return 0;
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

// give_stream keeps a stream for the next copy. Without an identity, the context might be another
// by then.
static void give_stream(struct cuda_memory *m, void *stream)
{
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
	unsigned long long id = 0;
	if (m->identity) {
		int err = cu.CtxGetId(m->context, &id);
		if (err || id != m->identity)
			return err ? err : ERROR_CONTEXT_IS_DESTROYED;
	}
	return cu.CtxPushCurrent(m->context);
}

static void leave(void)
{
	void *context;
	cu.CtxPopCurrent(&context);
}

int cuda_copy(struct cuda_memory *m, uint64_t addr, void *host, size_t n, int to_gpu)
{
	void *stream;
	int err = enter(m);
	if (err)
		return err;
	if (!(err = take_stream(m, &stream))) {
		err = to_gpu ? cu.MemcpyHtoDAsync(addr, host, n, stream) : cu.MemcpyDtoHAsync(host, addr, n, stream);
		int end = cu.StreamSynchronize(stream);
		err = err ? err : end;
		// After an error the context may be lost, and its streams with it.
		if (!err)
			give_stream(m, stream);
	}
	leave();
	return err;
}

const char *cuda_error(int result)
{
	const char *name;
	return cu.GetErrorName(result, &name) ? "unknown error" : name;
}

// Staging memory that is free, by size: 4 KiB times a power of two. It is memory of this file,
// which is only registered with CUDA, so that it stays when a context ends.
#define CLASSES 20
#define MOST_FREE (64 << 20) // bytes
static struct free_memory {
	struct free_memory *next;
} *free_staging[CLASSES];
static size_t bytes_free;

static int class_of(size_t n)
{
	int c = 0;
	while (c < CLASSES && (size_t)4096 << c < n)
		c++;
	return c;
}

void *cuda_alloc_staging(struct cuda_memory *m, size_t n, size_t *size)
{
	int c = class_of(n);
	if (c == CLASSES)
		return NULL;
	*size = (size_t)4096 << c;
	pthread_mutex_lock(&lock);
	struct free_memory *p = free_staging[c];
	if (p) {
		free_staging[c] = p->next;
		bytes_free -= *size;
	}
	pthread_mutex_unlock(&lock);
	if (p)
		return p;
	void *new = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (new == MAP_FAILED)
		return NULL;
	if (!enter(m)) {
		cu.MemHostRegister(new, *size, HOST_REGISTER_PORTABLE); // without it, copies are slower
		leave();
	}
	return new;
}

void cuda_free_staging(void *p, size_t size)
{
	int c = class_of(size);
	pthread_mutex_lock(&lock);
	int keep = bytes_free + size <= MOST_FREE;
	if (keep) {
		struct free_memory *f = p;
		f->next = free_staging[c];
		free_staging[c] = f;
		bytes_free += size;
	}
	pthread_mutex_unlock(&lock);
	if (!keep) {
		cu.MemHostUnregister(p);
		munmap(p, size);
	}
}
