// The engine's access to a GPU (cmd/dropin/libsoftrnic/cuda.c), with libcuda.c in place of NVIDIA's
// driver: when it looks for the driver, and what of its staging memory is pinned. Prints "staged".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cuda.h"
#include "../../../../cmd/dropin/libsoftrnic/cuda.h"

#define CHECK(x) \
	do { \
		if (!(x)) { \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #x); \
			exit(1); \
		} \
	} while (0)
#define CALL(f, ...) CHECK(!((typeof(f) *)dlsym(lib, #f))(__VA_ARGS__))
#define BLOCK (8 << 20)
#define BLOCKS 12

static int looked; // calls of dlopen

void *dlopen(const char *name, int flags)
{
	looked++;
	return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags);
}

static struct cuda_memory m;
static CUdeviceptr p;

// copy moves a block to the GPU and back, on a thread of its own, and keeps its staging memory.
static void *copy(void *arg)
{
	char seed = (char)(uintptr_t)arg, *b;
	size_t size;
	CHECK((b = cuda_alloc_staging(BLOCK, &size)) && size == BLOCK);
	memset(b, seed, BLOCK);
	CHECK(!cuda_copy(&m, p + (size_t)seed * BLOCK, b, BLOCK, 1));
	memset(b, 0, BLOCK);
	CHECK(!cuda_copy(&m, p + (size_t)seed * BLOCK + 5, b + 5, BLOCK - 5, 0)); // not from its beginning on
	CHECK(!b[0] && !b[4] && b[5] == seed && !memcmp(b + 5, b + 6, BLOCK - 6));
	return b;
}

// streams_end destroys many contexts after a copy in each. The streams of a further one are kept
// all the same.
static void streams_end(void *lib)
{
	int *streams = dlsym(lib, "standin_streams"), before = 0;
	char *b;
	size_t size;
	CHECK((b = cuda_alloc_staging(8, &size)));
	for (int i = 0; i < 100; i++) {
		CUcontext c;
		CALL(cuCtxCreate_v2, &c, 0, 0);
		CALL(cuMemAlloc_v2, &p, 5000);
		CHECK(cuda_find(p, 5000, &m) == 1 && !cuda_copy(&m, p, b, 8, 1));
		before = *streams;
		for (int k = 0; k < 40; k++)
			CHECK(!cuda_copy(&m, p, b, 8, 1));
		CHECK(*streams == before);
		// The pages around memory, of which the last one is not allocated in full.
		CHECK(cuda_find(p, 8192, &m) == 1 && cuda_find(p + 4096, 4096, &m) == 1 && !cuda_copy(&m, p + 4096, b, 8, 0));
		CHECK(!cuda_find(p + 5000, 100, &m));
		CALL(cuMemFree_v2, p);
		CALL(cuCtxDestroy_v2, c);
	}
	cuda_free_staging(b);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	for (int i = 0; i < 100; i++)
		CHECK(!cuda_find((uintptr_t)&m, 1, &m));
	CHECK(looked == 1); // not for each registration
	void *lib = dlopen(argv[1], RTLD_NOW), *blocks[BLOCKS];
	CHECK(lib);
	CUcontext own, c;
	CALL(cuCtxCreate_v2, &own, 0, 0);
	CALL(cuMemAlloc_v2, &p, (size_t)BLOCKS * BLOCK);
	CALL(cuCtxPopCurrent_v2, &c);
	CHECK(cuda_find(p, (size_t)BLOCKS * BLOCK, &m) == 1 && m.context == own);
	int *pinned = dlsym(lib, "standin_pinned");
	size_t size;
	void *idle = cuda_alloc_staging(100, &size);
	CHECK(idle && *pinned == 0); // the QP is locked then, and pinning takes long
	cuda_free_staging(idle);
	pthread_t threads[BLOCKS];
	for (intptr_t i = 0; i < BLOCKS; i++)
		CHECK(!pthread_create(&threads[i], NULL, copy, (void *)i));
	for (int i = 0; i < BLOCKS; i++)
		CHECK(!pthread_join(threads[i], &blocks[i]));
	CHECK(*pinned == BLOCKS);
	for (int i = 0; i < BLOCKS; i++)
		cuda_free_staging(blocks[i]);
	CHECK(*pinned == BLOCKS); // the QP is locked here too
	cuda_free_staging(copy(NULL));
	CHECK(*pinned == 8); // 64 MiB stay
	CALL(cuCtxGetCurrent, &c);
	CHECK(!c);
	CALL(cuCtxDestroy_v2, own);
	CHECK(cuda_copy(&m, p, blocks[0], 8, 1));
	streams_end(lib);
	printf("staged\n");
	return 0;
}
