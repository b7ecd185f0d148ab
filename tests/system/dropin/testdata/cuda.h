// The part of CUDA's driver interface that programs use before they register memory of a GPU, as
// libcuda.c has it. The names and numbers are those of NVIDIA's cuda.h.
#include <stddef.h>
#include <stdint.h>

typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef uint64_t CUdeviceptr;

enum { CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400, CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_CONTEXT_IS_DESTROYED = 709, CUDA_ERROR_LAUNCH_FAILED = 719 };
enum { CU_POINTER_ATTRIBUTE_CONTEXT = 1, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE };
enum { CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124 };
enum { CU_MEM_ATTACH_GLOBAL = 1 };
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int ordinal);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuCtxCreate_v2(CUcontext *c, unsigned flags, int device);
int cuCtxDestroy_v2(CUcontext c);
int cuCtxPushCurrent_v2(CUcontext c);
int cuCtxPopCurrent_v2(CUcontext *c);
int cuCtxGetCurrent(CUcontext *c);
int cuCtxGetId(CUcontext c, unsigned long long *id);
int cuDevicePrimaryCtxRetain(CUcontext *c, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuMemAlloc_v2(CUdeviceptr *p, size_t n);
int cuMemAllocAsync(CUdeviceptr *p, size_t n, CUstream s);
int cuMemAllocManaged(CUdeviceptr *p, size_t n, unsigned flags);
int cuMemAllocHost_v2(void **p, size_t n);
int cuMemFree_v2(CUdeviceptr p);
int cuMemGetHandleForAddressRange(void *handle, CUdeviceptr p, size_t n, int type, unsigned long long flags);
int cuPointerGetAttribute(void *data, int attribute, CUdeviceptr p);
int cuMemHostRegister_v2(void *p, size_t n, unsigned flags);
int cuMemHostUnregister(void *p);
int cuStreamCreate(CUstream *s, unsigned flags);
int cuStreamDestroy_v2(CUstream s);
int cuStreamSynchronize(CUstream s);
int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t n, CUstream s);
int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t n, CUstream s);
int cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n);
int cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
	CUstream s, void **parameters, void **extra);
int cuStreamQuery(CUstream s);
int cuGetErrorName(int error, const char **name);

// Only of the stand-in: the number of copies after which one fails, and of copies so far.
#ifndef REAL_CUDA
extern int standin_fail_after, standin_copies;
#else
static int standin_fail_after, standin_copies;
#endif
