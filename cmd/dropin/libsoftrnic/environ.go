//go:build linux && cgo && (amd64 || arm64)

package main

/*
#define _GNU_SOURCE
#include <unistd.h>
*/
import "C"

import (
	"os"
	"strings"
	"unsafe"
)

// inheritEnvironment gives Go the environment that C has now. Go has read the strings with which
// the process began. The program may have called setenv since, and servers such as Valkey write
// their title over those strings, after they have copied them. A variable of SoftRNIC that C no
// longer has stays, as servers such as nginx keep few variables. As with getenv, no other thread
// may change the environment meanwhile. Setenv sets a variable in C too, to the value that it has
// there.
func inheritEnvironment() {
	now := map[string]string{}
	for p := C.environ; p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		name, value, ok := strings.Cut(C.GoString(*p), "=")
		if _, again := now[name]; ok && !again { // getenv finds the first
			now[name] = value
		}
	}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		switch is, ok := now[name]; {
		case ok && is == value:
			delete(now, name)
		case !ok && !strings.HasPrefix(name, "SOFTRNIC_") && name != "XDG_RUNTIME_DIR":
			_ = os.Unsetenv(name)
		}
	}
	for name, value := range now {
		_ = os.Setenv(name, value) // an invalid name has no meaning for anyone
	}
}
