// A further engine for a child after fork. The dynamic linker loads a file once, and its data is
// then that of the parent's engine. So the child loads a copy of the file.
#include "front.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static int copy_file(int to, const char *path)
{
	struct stat st;
	off_t at = 0;
	ssize_t n = 1;
	int from = open(path, O_RDONLY | O_CLOEXEC);
	if (from < 0)
		return -1;
	if (fstat(from, &st))
		n = -1;
	while (n > 0 && at < st.st_size)
		n = sendfile(to, from, &at, st.st_size - at);
	close(from);
	if (!n)
		errno = EIO; // the file has become shorter
	return n > 0 ? 0 : -1;
}

// load_from_memory needs memfd_create and /proc. A name that has been loaded stands for what was
// loaded then, so the name is longer in each generation.
static void *load_from_memory(const char *path)
{
	char name[4096];
	int fd = memfd_create("libsoftrnic.so", MFD_CLOEXEC), length = sprintf(name, "/proc/self/fd/");
	void *lib = NULL;
	if (fd < 0)
		return NULL;
	for (unsigned int i = 0; i < front_generation && length < (int)sizeof name - 16; i++)
		length += sprintf(name + length, "./");
	sprintf(name + length, "%d", fd);
	if (!copy_file(fd, path))
		lib = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	close(fd);
	return lib;
}

static void *failed(const char *path, const char *why)
{
	fprintf(stderr, "softrnic: this child of a process with devices has none, because it cannot load a copy of %s: %s\n", path, why);
	return NULL;
}

// load_from_file uses a temporary file, which it removes.
static void *load_from_file(const char *path)
{
	const char *dir = secure_getenv("TMPDIR");
	char name[4096];
	snprintf(name, sizeof name, "%s/libsoftrnic.so-XXXXXX", dir ? dir : "/tmp");
	int fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0)
		return failed(path, strerror(errno));
	int err = copy_file(fd, path) ? errno : 0;
	void *lib = err ? NULL : dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	close(fd);
	unlink(name);
	return lib ? lib : failed(path, err ? strerror(err) : dlerror());
}

void *load_copy(const char *path)
{
	void *lib = load_from_memory(path);
	return lib ? lib : load_from_file(path);
}
