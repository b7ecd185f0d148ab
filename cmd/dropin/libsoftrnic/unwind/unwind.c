// The two functions of gcc that run the cleanup handlers of a cancelled thread. Linked as usual,
// they make each library need libgcc_s.so.1, which small container images lack. Linked statically,
// they need a glibc later than the libraries do. So they are looked up when they are first called:
// the C library has then loaded libgcc_s.so.1, because it cancels no thread without that.
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// ThreadSanitizer would give _Unwind_Resume a cleanup handler, which calls _Unwind_Resume again.
#define NO_SANITIZER __attribute__((no_sanitize_thread, no_sanitize_address))

NO_SANITIZER static void *of_gcc(const char *name)
{
	void *lib = dlopen("libgcc_s.so.1", RTLD_NOW);
	void *f = lib ? dlsym(lib, name) : NULL;
	if (!f)
		abort();
	return f;
}

int __gcc_personality_v0(int version, int actions, uint64_t class, void *exception, void *context);
NO_SANITIZER int __gcc_personality_v0(int version, int actions, uint64_t class, void *exception, void *context)
{
	int (*f)(int, int, uint64_t, void *, void *) = (int (*)(int, int, uint64_t, void *, void *))of_gcc(__func__);
	return f(version, actions, class, exception, context);
}

__attribute__((noreturn)) void _Unwind_Resume(void *exception);
NO_SANITIZER __attribute__((noreturn)) void _Unwind_Resume(void *exception)
{
	void (*f)(void *) = (void (*)(void *))of_gcc(__func__);
	f(exception);
	abort();
}
