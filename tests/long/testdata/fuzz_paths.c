// Fuzzing of the paths that libsoftrnic-sysfs.so redirects. The functions are static in
// cmd/dropin/libsysfs/paths.c.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *redirect(const char *path, char buf[PATH_MAX]);
const char *redirect_at(int dir, const char *path, char buf[PATH_MAX]);
char *unredirect(char *path);

static const char *tree;
static int root, other;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	tree = getenv("SOFTRNIC_SYSFS"); // which TestFuzzC has created
	root = open("/", O_PATH | O_DIRECTORY);
	other = open("/usr", O_PATH | O_DIRECTORY);
	return tree && root >= 0 && other >= 0 ? 0 : 1;
}

#define CHECK(x) \
	if (!(x)) \
	abort()

// check tells whether the result is the path, or the path below the tree.
static void check(const char *path, const char *to, const char *buf)
{
	if (to == path)
		return;
	CHECK(to == buf && strlen(to) < PATH_MAX && !strncmp(to, tree, strlen(tree)));
	to += strlen(tree);
	CHECK(!strcmp(*path == '/' ? to : to + 1, path));
}

int LLVMFuzzerTestOneInput(const uint8_t *b, size_t size)
{
	char *buf = malloc(PATH_MAX), *path = malloc(size + 1);
	memcpy(path, b, size);
	path[size] = 0;
	check(path, redirect(path, buf), buf);
	check(path, redirect_at(root, path, buf), buf);
	check(path, redirect_at(AT_FDCWD, path, buf), buf);
	const char *to = redirect_at(other, path, buf);
	CHECK(to == path || *path == '/');
	unredirect(path);
	CHECK(strlen(path) <= size);
	free(path);

	// What is below the tree becomes the kernel's path again.
	if (strlen(tree) + size < PATH_MAX && size > 5 && (!memcmp(b, "/sys/", 5) || !memcmp(b, "/dev/", 5))) {
		path = malloc(strlen(tree) + size + 1);
		strcpy(path, tree);
		memcpy(path + strlen(tree), b, size);
		path[strlen(tree) + size] = 0;
		unredirect(path);
		CHECK(strlen(path) <= size && !memcmp(path, b, strlen(path)));
		free(path);
	}
	free(buf);
	return 0;
}
