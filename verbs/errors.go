package verbs

import (
	"fmt"
	"strings"
	"syscall"
)

// The kinds of error. Every error of this package wraps one of them, or an error of the provider. A
// kind wraps the errno that libibverbs returns, so that errors.Is finds both.
var (
	ErrInvalid      error = &errorKind{"invalid argument", syscall.EINVAL}
	ErrNoMemory     error = &errorKind{"out of resources", syscall.ENOMEM}
	ErrBusy         error = &errorKind{"object in use", syscall.EBUSY}
	ErrNotSupported error = &errorKind{"not supported", syscall.EOPNOTSUPP}
	ErrQueueFull    error = &errorKind{"queue full", syscall.ENOMEM}
	ErrCQOverrun    error = &errorKind{"completion queue overrun", syscall.EOVERFLOW}
	ErrClosed       error = &errorKind{"object closed", syscall.ENOENT}
	ErrAgain        error = &errorKind{"no event is pending", syscall.EAGAIN}
)

type errorKind struct {
	text  string
	errno syscall.Errno
}

func (k *errorKind) Error() string { return k.text }
func (k *errorKind) Unwrap() error { return k.errno }

// Error is a failed call.
type Error struct {
	Op     string // the operation, such as "create QP"
	Detail string // the argument, its value and the bound; if empty, the text of Err is used
	Err    error  // the kind (ErrInvalid, …), or an error of the provider
}

// Errorf returns an *Error of a kind, with a formatted Detail. Providers and package rdmacm use it
// too.
func Errorf(kind error, op, format string, args ...any) error {
	return &Error{Op: op, Detail: fmt.Sprintf(format, args...), Err: kind}
}

// Error returns the operation and the detail. If Err is an *Error of the same operation, the
// operation appears only once. An example is a provider's error of "modify QP" within an error of
// "modify QP 0x11".
func (e *Error) Error() string {
	if e.Detail != "" {
		return e.Op + ": " + e.Detail
	}
	cause, ok := e.Err.(*Error)
	switch {
	case ok && sameOp(e.Op, cause.Op):
		return (&Error{e.Op, cause.Detail, cause.Err}).Error()
	case ok && sameOp(cause.Op, e.Op):
		return cause.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

// sameOp reports whether long is the operation short, with or without an object.
func sameOp(long, short string) bool { return long == short || strings.HasPrefix(long, short+" ") }

func (e *Error) Unwrap() error { return e.Err }

// PostError reports the work request of a PostSend or PostRecv that was rejected (bad_wr). The
// requests before it are posted; it and the requests after it are not.
type PostError struct {
	Index int
	Err   error
}

func (e *PostError) Error() string { return fmt.Sprintf("work request %d: %v", e.Index, e.Err) }
func (e *PostError) Unwrap() error { return e.Err }
