// Memory of NVIDIA's GPUs, by the driver interface of CUDA. See cuda.c.
#ifndef SOFTRNIC_CUDA_H
#define SOFTRNIC_CUDA_H

#include <stddef.h>
#include <stdint.h>

// A region in a GPU's memory.
struct cuda_memory {
	void *context;     // of the pointer, which need not be current
	uint64_t identity; // of the context: another one may later be at the same address; 0: unknown
	int device, retained; // the context is the primary one of the device, and is retained
};

// cuda_find returns 1 and fills in m if [addr, addr+length) is memory of a GPU that only copies
// reach; one end of it may be unallocated. It returns 0 if it is any other memory, and a negative
// errno if one end of it is a GPU's and the other is the processor's.
int cuda_find(uint64_t addr, size_t length, struct cuda_memory *m);

// cuda_release ends the use of a region.
void cuda_release(struct cuda_memory *m);

// cuda_copy copies n bytes between a GPU's memory and memory of the processor, and returns when
// they are there. It returns 0 or a CUresult.
int cuda_copy(struct cuda_memory *m, uint64_t addr, void *host, size_t n, int to_gpu);

// cuda_error returns the name of a CUresult.
const char *cuda_error(int result);

// cuda_alloc_staging returns memory of the processor that copies pin if possible, of at least n
// bytes. Its size is in *size. cuda_free_staging takes it back. Neither calls CUDA.
void *cuda_alloc_staging(size_t n, size_t *size);
void cuda_free_staging(void *p);

// cuda_dmabuf tells whether a descriptor is a dma-buf.
int cuda_dmabuf(int fd);

#endif
