package host

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// LostError is the error of commands when the queues of a controller have ended. It wraps the
// reason: ETIMEDOUT if a command has timed out, EPROTO if the target has violated the protocol,
// ECONNRESET if it has closed a connection or has accessed memory without permission, ErrClosed
// after Close or Reset, or the error of a work request.
type LostError struct {
	QID uint16 // the queue that was the first to end
	Err error
}

func (e *LostError) Error() string { return fmt.Sprintf("queue %d has ended: %v", e.QID, e.Err) }

func (e *LostError) Unwrap() error { return e.Err }

// Reasons for the end of a queue.
var (
	errGone = &verbs.Error{Op: "wait for responses", Detail: "the target has closed the connection, or has accessed memory without permission",
		Err: syscall.ECONNRESET}
	errClosed = &verbs.Error{Op: "use controller", Detail: "the controller is closed", Err: verbs.ErrClosed}
	errReset  = &verbs.Error{Op: "use controller", Detail: "the controller was reset", Err: verbs.ErrClosed}
)

// violation returns the error of a target that violates the protocol.
func violation(format string, args ...any) error {
	return verbs.Errorf(syscall.EPROTO, "handle response", format, args...)
}

// rejection returns the error of a connection attempt, with the target's reason if it has sent one.
func rejection(err error) error {
	if e := (*rdmacm.EventError)(nil); errors.As(err, &e) && e.Type == rdmacm.Rejected {
		if r, parsed := nvme.ParseConnReject(e.PrivateData); parsed == nil && r.Status != 0 {
			return errors.Join(&nvme.RejectError{Status: r.Status}, err)
		}
	}
	return err
}
