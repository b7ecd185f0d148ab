//go:build linux && cgo && (amd64 || arm64)

// Command libsoftrnic is the engine of the drop-in libraries: a shared library (-buildmode=c-shared) whose functions for C are
// described in softrnic.h. Programs never load it themselves: the fronts libibverbs.so.1 and librdmacm.so.1 do, at the first
// call that needs it.
package main

/*
#cgo CFLAGS: -O2 -fvisibility=hidden
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"syscall"
)

func main() {}

// errno is what a function returns for an error: the errno that it wraps.
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
	if errors.As(err, &e) && e != 0 {
		return C.int(e)
	}
	return C.int(syscall.EINVAL)
}

const (
	// invalid is what a function returns for an argument that is none.
	invalid = C.int(syscall.EINVAL)
	// gone is what a function returns for a handle of nothing, or of another context, as the kernel does.
	gone = C.int(syscall.ENOENT)
)
