package verbs

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// This file and injection.go have the API for packages that make a device fail on purpose, such
// as package fault below rdmatransport. Applications need none of it. Without an Injector, a call
// costs one comparison with nil, and a posted or completed request nothing.

// Injector decides what fails on a device. Its methods are called with locks held, at any time and
// from any goroutine: they must be fast, and must not call methods of this package.
type Injector interface {
	// Call returns the errno with which a call fails before it has done anything; 0 lets it run. name
	// is that of libibverbs' function without "ibv_", or of librdmacm's with "rdma_"; that of
	// modify_qp is followed by a colon and the new state, such as "modify_qp:rtr". qp is nil unless
	// the call is one of a QP.
	Call(name string, qp *QP) syscall.Errno
	// Send returns the status with which a send request that was posted fails when it is executed.
	// Nothing of it is sent then. fails says that the request fails anyway, or is flushed: a status
	// has no effect then.
	Send(qp *QP, wr *SendWR, fails bool) WCStatus
	// Recv returns the status with which the message fails that will consume a receive request of a
	// QP: WCLocProtErr, WCLocLenErr, or WCSuccess.
	Recv(qp *QP) WCStatus
	// Seen is called when a request completes with the status that Send or Recv returned for it
	// last. A request that is flushed before, or dropped, does not.
	Seen(qp *QP, recv bool, status WCStatus)
	// Late returns how long a completion, and those after it in its CQ, are not visible yet.
	// A completion is passed by its parts, so that it need not be allocated. It is not counted as a
	// fault: see Injection.Counted.
	Late(qp *QP, opcode WCOpcode, status WCStatus) time.Duration
	// Outcome returns the event and its status, as of librdmacm, with which a call of rdma_cm fails
	// that returns before its outcome is known; ok is false if the call is made.
	Outcome(name string) (event uint8, status int, ok bool)
	// EventLate returns how long an event of rdma_cm is delayed.
	EventLate(event uint8) time.Duration
}

// Injection makes objects of a device fail at once, while its Injector decides about what is done
// to them later.
type Injection struct {
	dev      *Device
	injector Injector
	count    atomic.Uint64

	revoking sync.Mutex // see RevokeMR
	revoked  sync.Cond
}

// InjectedFault returns the error with which a call on devices fails that another package, such as
// rdmacm, is about to make: see Injector.Call. The Injector of each device is asked, so that all
// count the same calls.
func InjectedFault(name string, devs ...*Device) (err error) {
	for _, d := range devs {
		if e := d.fault(name); err == nil {
			err = e
		}
	}
	return err
}

// Injected reports whether an error is that of an Injector: it must not be handled as a state of
// the device that another attempt would find changed.
func Injected(err error) bool {
	var i injectedError
	return errors.As(err, &i)
}

// injectedError is an errno, or the kind of error for it, of an Injector.
type injectedError struct{ error }

func (e injectedError) Unwrap() error { return e.error }

// Attributes is Query for packages between a program and this one. The program does not make this
// call, so the Injector is not asked.
func Attributes(qp *QP) (QPAttr, error) {
	attr, _, err := qp.query()
	return attr, err
}

// Move is Modify to RESET or ERR for package rdmacm, at the end of a connection. The program does
// not make this call, so the Injector is not asked.
func Move(qp *QP, to QPState) error { return qp.modify(&QPAttr{QPState: to}, QPAttrState) }

// InjectorOf returns the Injector of a device, or nil.
func InjectorOf(d *Device) Injector {
	if x := d.injection.Load(); x != nil {
		return x.injector
	}
	return nil
}

// fault returns the error with which a call of the device fails, or nil.
func (d *Device) fault(name string) error {
	if d.injection.Load() == nil {
		return nil
	}
	return d.injected(name)
}

// injected is fault with an Injector.
//
//go:noinline // so that fault is inlined
func (d *Device) injected(name string) error { return d.injection.Load().fail(name, nil) }

// faultCall is fault for a call of the QP.
func (qp *QP) faultCall(name string) error {
	if qp.pd.dev.injection.Load() == nil {
		return nil
	}
	return qp.injectedCall(name)
}

//go:noinline // so that faultCall is inlined
func (qp *QP) injectedCall(name string) error { return qp.pd.dev.injection.Load().fail(name, qp) }

// faultKinds has the kinds of errors that programs look for.
var faultKinds = map[syscall.Errno]error{syscall.EINVAL: ErrInvalid, syscall.ENOMEM: ErrNoMemory, syscall.EBUSY: ErrBusy,
	syscall.EOPNOTSUPP: ErrNotSupported, syscall.EOVERFLOW: ErrCQOverrun, syscall.EAGAIN: ErrAgain}

func (x *Injection) fail(name string, qp *QP) error {
	errno := x.injector.Call(name, qp)
	if errno == 0 {
		return nil
	}
	x.count.Add(1)
	kind := faultKinds[errno]
	if kind == nil {
		kind = errno
	}
	return Errorf(injectedError{kind}, name, "%v (an injected fault)", errno)
}

// modifyNames are the names of Modify by the new state.
var modifyNames = [...]string{"modify_qp:reset", "modify_qp:init", "modify_qp:rtr", "modify_qp:rts", "modify_qp:sqd", "modify_qp:sqe",
	"modify_qp:err"}

func modifyName(attr *QPAttr, mask QPAttrMask) string {
	if attr == nil || mask&QPAttrState == 0 || int(attr.QPState) >= len(modifyNames) {
		return "modify_qp"
	}
	return modifyNames[attr.QPState]
}

// injectedFaults returns the counter injected_faults.
func (d *Device) injectedFaults() uint64 {
	if x := d.injection.Load(); x != nil {
		return x.count.Load()
	}
	return 0
}
