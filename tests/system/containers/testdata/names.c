// Loads libibverbs as NCCL does, by the name without a version first, and counts its devices.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *lib = dlopen("libibverbs.so", RTLD_NOW);
	if (!lib)
		lib = dlopen("libibverbs.so.1", RTLD_NOW);
	void **(*get)(int *) = lib ? (void **(*)(int *))dlvsym(lib, "ibv_get_device_list", "IBVERBS_1.1") : NULL;
	if (!get) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	int n = 0;
	get(&n);
	printf("%d devices\n", n);
	return 0;
}
