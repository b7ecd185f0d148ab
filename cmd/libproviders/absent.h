// What the stand-ins for the libraries of vendors share. They need no headers of these, and take no arguments: the caller cleans up.
#ifndef ABSENT_H
#define ABSENT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define PUBLIC __attribute__((visibility("default")))

static inline int fail(int err)
{
	errno = err;
	return err;
}

static inline void *fail_null(int err)
{
	errno = err;
	return NULL;
}

static inline int fail_minus(int err)
{
	errno = err;
	return -1;
}

#endif
