package verbs

import (
	"fmt"
	"syscall"
)

// The kinds of error. Every error of this package wraps one of them, and through it the errno that libibverbs gives:
// errors.Is finds both.
var (
	ErrInvalid      error = &kind{"invalid argument", syscall.EINVAL}
	ErrNoMemory     error = &kind{"out of resources", syscall.ENOMEM}
	ErrBusy         error = &kind{"object in use", syscall.EBUSY}
	ErrNotSupported error = &kind{"not supported", syscall.EOPNOTSUPP}
	ErrQueueFull    error = &kind{"queue full", syscall.ENOMEM}
	ErrCQOverrun    error = &kind{"completion queue overrun", syscall.EOVERFLOW}
	ErrTimedOut     error = &kind{"timed out", syscall.ETIMEDOUT}
	ErrDestroyed    error = &kind{"object destroyed", syscall.EBADF}
)

type kind struct {
	text  string
	errno syscall.Errno
}

func (k *kind) Error() string { return k.text }
func (k *kind) Unwrap() error { return k.errno }

// Error is a failed call.
type Error struct {
	Op     string // what was tried, such as "create QP"
	Detail string // the argument, its value and the bound
	Err    error  // the kind: ErrInvalid, …, or what the provider said
}

// Errorf makes an error of a kind; providers use it too.
func Errorf(kind error, op, format string, args ...any) error {
	return &Error{Op: op, Detail: fmt.Sprintf(format, args...), Err: kind}
}

func (e *Error) Error() string {
	if e.Detail == "" {
		return e.Op + ": " + e.Err.Error()
	}
	return e.Op + ": " + e.Detail
}

func (e *Error) Unwrap() error { return e.Err }

// PostError tells which work request of a PostSend or PostRecv was refused (bad_wr). Those before it are posted, it
// and those after it are not.
type PostError struct {
	Index int
	Err   error
}

func (e *PostError) Error() string { return fmt.Sprintf("work request %d: %v", e.Index, e.Err) }
func (e *PostError) Unwrap() error { return e.Err }
