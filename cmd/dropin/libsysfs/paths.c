// softrnic run preloads libsoftrnic-sysfs.so if the user may not create a mount namespace, and
// containers with a device of softrnic cdi preload it. It replaces the C library's functions that
// take a path. They redirect the paths of RDMA devices, and of their card if they have one, to
// SOFTRNIC_SYSFS, a directory with these files. Other paths, listings of /sys/class and /dev, and
// programs that make system calls directly are unchanged.
#define _GNU_SOURCE
#include "tree.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#define PUBLIC __attribute__((visibility("default")))

// ours are the paths that SOFTRNIC_SYSFS may have in place of the kernel, with all below them. A
// path that ends with a slash stands for each of the entries that SOFTRNIC_SYSFS has there.
static const char *const ours[] = {
	"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/infiniband_mad", "/dev/infiniband",
	"/sys/module/nvidia_peermem",
	// Of cards and virtual devices, beside the kernel's.
	"/sys/bus/pci/devices", "/sys/bus/pci/drivers/", "/sys/class/net", "/sys/class/pci_bus", "/sys/devices/",
};

// The paths from this index on have entries of the kernel, too.
#define FIRST_MERGED 5

// exists reports whether a file or a symbolic link exists. It keeps errno.
static int exists(const char *path)
{
	char target[1];
	int before = errno, found = !syscall(SYS_faccessat, AT_FDCWD, path, F_OK) || syscall(SYS_readlinkat, AT_FDCWD, path, target, 1) > 0;
	errno = before;
	return found;
}

// redirect returns the path to use in place of another: the same, or one written to buf.
static const char *redirect(const char *path, char buf[PATH_MAX])
{
	const char *root;
	if (!path || (strncmp(path, "/sys/", 5) && strncmp(path, "/dev/inf", 8)))
		return path;
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
		size_t n = strlen(ours[i]);
		if (strncmp(path, ours[i], n))
			continue;
		if (ours[i][n - 1] == '/')
			n += strcspn(path + n, "/");
		else if (path[n] && path[n] != '/')
			continue;
		if (!(root = devices_tree(path)))
			return path;
		size_t length = strlen(root);
		if (length + strlen(path) >= PATH_MAX)
			return path;
		memcpy(buf, root, length);
		memcpy(buf + length, path, n);
		buf[length + n] = 0;
		if (!exists(buf))
			return path;
		strcpy(buf + length + n, path + n);
		// The kernel may have an entry that SOFTRNIC_SYSFS was made without: a later interface.
		return i >= FIRST_MERGED && !exists(buf) && exists(path) ? path : buf;
	}
	return path;
}

// redirect_at is redirect for a path relative to an open directory, which matters if that is the
// root.
static const char *redirect_at(int dir, const char *path, char buf[PATH_MAX])
{
	struct stat d, root;
	char absolute[PATH_MAX];
	if (!path || dir < 0 || (strncmp(path, "sys/", 4) && strncmp(path, "dev/", 4)) || strlen(path) + 2 > sizeof absolute)
		return redirect(path, buf);
	int before = errno, other = fstat(dir, &d) || fstatat(AT_FDCWD, "/", &root, 0) || d.st_dev != root.st_dev || d.st_ino != root.st_ino;
	errno = before;
	if (other)
		return path;
	absolute[0] = '/';
	strcpy(absolute + 1, path);
	const char *to = redirect(absolute, buf);
	return to == buf ? buf : path;
}

// unredirect removes the directory from the resolved form of a redirected path, so that programs
// see the kernel's path.
static char *unredirect(char *path)
{
	char root[PATH_MAX];
	const char *name = devices_tree("/sys/");
	static char *(*resolve)(const char *, char *);
	if (!resolve)
		resolve = (char *(*)(const char *, char *))dlsym(RTLD_NEXT, "realpath");
	if (!path || !name || !resolve(name, root))
		return path;
	size_t n = strlen(root);
	if (!strncmp(path, root, n) && (!strncmp(path + n, "/sys/", 5) || !strncmp(path + n, "/dev/", 5)))
		memmove(path, path + n, strlen(path + n) + 1);
	return path;
}

// NEXT declares next, the function that this library replaces.
#define NEXT(result, name, ...) \
	static result (*next)(__VA_ARGS__); \
	if (!next) \
		next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

// Functions that the C library no longer has, or does not have yet, fail.
#define ABSENT(failure) \
	if (!next) { \
		errno = ENOSYS; \
		return failure; \
	}

#define OPEN(name) \
	PUBLIC int name(const char *path, int flags, ...) \
	{ \
		char buf[PATH_MAX]; \
		va_list args; \
		va_start(args, flags); \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args); \
		NEXT(int, name, const char *, int, ...); \
		return next(redirect(path, buf), flags, mode); \
	}
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
	PUBLIC int name(int dir, const char *path, int flags, ...) \
	{ \
		char buf[PATH_MAX]; \
		va_list args; \
		va_start(args, flags); \
		mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0; \
		va_end(args); \
		NEXT(int, name, int, const char *, int, ...); \
		return next(dir, redirect_at(dir, path, buf), flags, mode); \
	}
OPENAT(openat)
OPENAT(openat64)

// Programs compiled with _FORTIFY_SOURCE call these if they give no mode.
#define OPEN_2(name) \
	PUBLIC int name(const char *path, int flags); \
	PUBLIC int name(const char *path, int flags) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, const char *, int); \
		return next(redirect(path, buf), flags); \
	}
OPEN_2(__open_2)
OPEN_2(__open64_2)

#define OPENAT_2(name) \
	PUBLIC int name(int dir, const char *path, int flags); \
	PUBLIC int name(int dir, const char *path, int flags) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, int, const char *, int); \
		return next(dir, redirect_at(dir, path, buf), flags); \
	}
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

#define FOPEN(name) \
	PUBLIC FILE *name(const char *restrict path, const char *restrict mode) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(FILE *, name, const char *, const char *); \
		return next(redirect(path, buf), mode); \
	}
FOPEN(fopen)
FOPEN(fopen64)

PUBLIC DIR *opendir(const char *path)
{
	char buf[PATH_MAX];
	NEXT(DIR *, opendir, const char *);
	return next(redirect(path, buf));
}

PUBLIC int chdir(const char *path)
{
	char buf[PATH_MAX];
	NEXT(int, chdir, const char *);
	return next(redirect(path, buf));
}

#define SCANDIR(name, entry) \
	PUBLIC int name(const char *restrict path, struct entry ***restrict list, int (*keep)(const struct entry *), \
		int (*compare)(const struct entry **, const struct entry **)) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, const char *, struct entry ***, int (*)(const struct entry *), \
			int (*)(const struct entry **, const struct entry **)); \
		return next(redirect(path, buf), list, keep, compare); \
	}
SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

#define STAT(name, kind) \
	PUBLIC int name(const char *restrict path, struct kind *restrict st) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, const char *, struct kind *); \
		ABSENT(-1) \
		return next(redirect(path, buf), st); \
	}
STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)

#define STATAT(name, kind) \
	PUBLIC int name(int dir, const char *restrict path, struct kind *restrict st, int flags) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, int, const char *, struct kind *, int); \
		ABSENT(-1) \
		return next(dir, redirect_at(dir, path, buf), st, flags); \
	}
STATAT(fstatat, stat)
STATAT(fstatat64, stat64)

// Programs compiled against a glibc before 2.33 call these for stat and lstat.
#define XSTAT(name, kind) \
	PUBLIC int name(int version, const char *path, struct kind *st); \
	PUBLIC int name(int version, const char *path, struct kind *st) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, int, const char *, struct kind *); \
		ABSENT(-1) \
		return next(version, redirect(path, buf), st); \
	}
XSTAT(__xstat, stat)
XSTAT(__lxstat, stat)
XSTAT(__xstat64, stat64)
XSTAT(__lxstat64, stat64)

#define XSTATAT(name, kind) \
	PUBLIC int name(int version, int dir, const char *path, struct kind *st, int flags); \
	PUBLIC int name(int version, int dir, const char *path, struct kind *st, int flags) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(int, name, int, int, const char *, struct kind *, int); \
		ABSENT(-1) \
		return next(version, dir, redirect_at(dir, path, buf), st, flags); \
	}
XSTATAT(__fxstatat, stat)
XSTATAT(__fxstatat64, stat64)

PUBLIC int statx(int dir, const char *restrict path, int flags, unsigned int mask, struct statx *restrict st)
{
	char buf[PATH_MAX];
	NEXT(int, statx, int, const char *, int, unsigned int, struct statx *);
	ABSENT(-1)
	return next(dir, redirect_at(dir, path, buf), flags, mask, st);
}

PUBLIC int access(const char *path, int mode)
{
	char buf[PATH_MAX];
	NEXT(int, access, const char *, int);
	return next(redirect(path, buf), mode);
}

PUBLIC int faccessat(int dir, const char *path, int mode, int flags)
{
	char buf[PATH_MAX];
	NEXT(int, faccessat, int, const char *, int, int);
	return next(dir, redirect_at(dir, path, buf), mode, flags);
}

PUBLIC ssize_t readlink(const char *restrict path, char *restrict to, size_t size)
{
	char buf[PATH_MAX];
	NEXT(ssize_t, readlink, const char *, char *, size_t);
	return next(redirect(path, buf), to, size);
}

PUBLIC char *realpath(const char *restrict path, char *restrict to)
{
	char buf[PATH_MAX];
	NEXT(char *, realpath, const char *, char *);
	const char *at = redirect(path, buf);
	return at == buf ? unredirect(next(at, to)) : next(path, to);
}

PUBLIC char *canonicalize_file_name(const char *path) { return realpath(path, NULL); }

PUBLIC ssize_t readlinkat(int dir, const char *restrict path, char *restrict to, size_t size)
{
	char buf[PATH_MAX];
	NEXT(ssize_t, readlinkat, int, const char *, char *, size_t);
	return next(dir, redirect_at(dir, path, buf), to, size);
}

// Programs compiled with _FORTIFY_SOURCE call these if the size of the buffer is known.
PUBLIC char *__realpath_chk(const char *path, char *to, size_t room);
PUBLIC char *__realpath_chk(const char *path, char *to, size_t room)
{
	char buf[PATH_MAX];
	NEXT(char *, __realpath_chk, const char *, char *, size_t);
	const char *at = redirect(path, buf);
	return at == buf ? unredirect(next(at, to, room)) : next(path, to, room);
}

PUBLIC ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
PUBLIC ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room)
{
	char buf[PATH_MAX];
	NEXT(ssize_t, __readlink_chk, const char *, char *, size_t, size_t);
	return next(redirect(path, buf), to, size, room);
}

PUBLIC ssize_t __readlinkat_chk(int dir, const char *path, char *to, size_t size, size_t room);
PUBLIC ssize_t __readlinkat_chk(int dir, const char *path, char *to, size_t size, size_t room)
{
	char buf[PATH_MAX];
	NEXT(ssize_t, __readlinkat_chk, int, const char *, char *, size_t, size_t);
	return next(dir, redirect_at(dir, path, buf), to, size, room);
}

#define GETXATTR(name) \
	PUBLIC ssize_t name(const char *path, const char *attribute, void *value, size_t size) \
	{ \
		char buf[PATH_MAX]; \
		NEXT(ssize_t, name, const char *, const char *, void *, size_t); \
		return next(redirect(path, buf), attribute, value, size); \
	}
GETXATTR(getxattr)
GETXATTR(lgetxattr)
