//go:build linux && cgo && (amd64 || arm64)

// Package program does for tests of the engine what a program of C does: it has threads of its own,
// and a handler of SIGSEGV.
package program

/*
#include "program.h"
*/
import "C"

import "unsafe"

// thread is what the threads of Run call.
var thread func(i int)

// Run calls f on n threads of C at once, with numbers from 0 on, and waits until they have ended.
// There is one Run at a time.
func Run(n int, f func(i int)) bool {
	thread = f
	return C.run_threads(C.int(n)) == 0
}

//export programThread
func programThread(i C.int) { thread(int(i)) }

// Kind is a kind of handler of SIGSEGV.
type Kind C.int

const (
	Plain    Kind = iota // without SA_ONSTACK and SA_SIGINFO
	OnStack              // with SA_ONSTACK
	WithInfo             // with SA_SIGINFO
)

// CatchFaults installs a handler of SIGSEGV. Handlers with another mask are others for the engine.
func CatchFaults(kind Kind, mask int) { C.catch_faults(C.int(kind), C.int(mask)) }

// Faults returns whether reading a byte of the program's memory faults, and whether the handler was
// then called with the signal.
func Faults(p unsafe.Pointer) bool { return C.read_faults(p) != 0 }

// Caught returns how often the handler was called.
func Caught() int { return int(C.caught()) }
