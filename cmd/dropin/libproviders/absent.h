// Declarations that the stand-ins for the vendors' libraries share. The functions need no headers
// of the vendors and take no parameters, as the caller cleans up the arguments.
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
