// What a process must be allowed to have for the engine. Go's runtime ends a process in which it
// gets too little, although a program that does not need RDMA could go on.
#include "front.h"
#include <stdio.h>
#include <sys/mman.h>

// What the engine takes when it opens the devices, with a margin. The threads also have stacks.
#define ADDRESSES ((size_t)768 << 20) // Go's runtime reserves most of it, and never uses it
#define MEMORY ((size_t)64 << 20)
#define THREADS 8

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; // closed while the threads must exist

static void *pass(void *v)
{
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
	return v;
}

static void *map(size_t size, int protection)
{
	return mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static void unmap(void *p, size_t size)
{
	if (p != MAP_FAILED)
		munmap(p, size);
}

// within_limits tries to take what the engine will take, all at once, and gives it back. If it
// cannot, it prints why, and returns 0.
int within_limits(void)
{
	pthread_t threads[THREADS];
	const char *lacks = NULL;
	int n = 0, err = 0;
	void *addresses = map(ADDRESSES, PROT_NONE), *memory = map(MEMORY, PROT_READ | PROT_WRITE);
	pthread_mutex_lock(&gate);
	if (addresses == MAP_FAILED) {
		lacks = "768 MiB of address space (ulimit -v)";
	} else if (memory == MAP_FAILED) {
		lacks = "64 MiB of memory (ulimit -d or -v)";
	} else {
		while (n < THREADS && !(err = pthread_create(&threads[n], NULL, pass, NULL)))
			n++;
		if (err)
			lacks = "8 threads with their stacks (ulimit -u, -d or -v, or pids.max of a control group)";
	}
	pthread_mutex_unlock(&gate);
	while (n > 0)
		pthread_join(threads[--n], NULL);
	unmap(addresses, ADDRESSES);
	unmap(memory, MEMORY);
	if (lacks)
		fprintf(stderr, "softrnic: no devices, because this process cannot have %s\n", lacks);
	return !lacks;
}
