//go:build linux && cgo && (amd64 || arm64)

// Command libsoftrnic is the engine of the drop-in libraries: a shared library
// (-buildmode=c-shared) with the C interface of softrnic.h. Programs do not load it themselves. The
// fronts, libibverbs.so.1 and librdmacm.so.1, load it at the first call that needs it.
package main

/*
#cgo CFLAGS: -O2 -fvisibility=hidden
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"net"
	"syscall"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
)

func main() {}

// errno returns the errno that an error wraps, and logs the error.
func errno(err error) C.int {
	if err == nil {
		return 0
	}
	stacks.logError(err)
	return errnoQuietly(err)
}

// errnoQuietly is errno for an error that is not logged.
func errnoQuietly(err error) C.int {
	var e syscall.Errno
	switch {
	case errors.As(err, &e) && e != 0:
		return C.int(e)
	case errors.Is(err, net.ErrClosed): // of an rsocket that another thread has closed
		return C.int(syscall.EBADF)
	}
	return invalid
}

// with calls f with the object of a handle, and returns the errno of its error.
func with[T any](t *handle.Table[T], h C.uint32_t, f func(*T) error) C.int {
	return errno(t.Use(uint32(h), f))
}

// enum converts a value of an enum of C. One that is too large becomes 255, which is not a value of
// any enum, so that package verbs refuses it.
func enum[T ~uint8](v C.uint32_t) T { return T(min(v, 255)) }

// flag returns C's number for a boolean.
func flag[T ~int | ~int32 | ~uint8](b bool) (v T) {
	if b {
		v = 1
	}
	return v
}

const (
	// invalid is the result for an invalid argument.
	invalid = C.int(syscall.EINVAL)
	// notFound is the result for a handle that has no object, or one of another context, as in the
	// kernel.
	notFound = C.int(syscall.ENOENT)
)
