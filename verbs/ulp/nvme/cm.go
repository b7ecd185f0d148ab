package nvme

import (
	"fmt"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// Port is the port of the RDMA transport (NVMe-oF 1.1 §7.3).
const Port = 4420

// Lengths in bytes of the private data of rdma_cm.
const (
	ConnRequestLen = 32
	ConnAcceptLen  = 32
	ConnRejectLen  = 4
)

// ConnRequest is the private data of a connection request (NVMe-oF 1.1 §7.3.6.1). Each queue has a
// connection.
//
//	byte  0..1        2..3   4..5      6..7      8..9     10..31
//	  record format | QID | HRQSIZE | HSQSIZE | CNTLID | reserved
type ConnRequest struct {
	RecordFormat uint16 // 0
	QID          uint16 // 0: the Admin queue
	HRQSize      uint16 // receive requests of the host
	HSQSize      uint16 // commands that the host may send, 0's based
	CNTLID       uint16 // of an I/O queue's controller; 0 from hosts of older versions
}

// Append appends the private data, of ConnRequestLen bytes.
func (r *ConnRequest) Append(b []byte) []byte {
	for _, v := range [...]uint16{r.RecordFormat, r.QID, r.HRQSize, r.HSQSize, r.CNTLID} {
		b = le.AppendUint16(b, v)
	}
	return append(b, make([]byte, ConnRequestLen-10)...)
}

// ParseConnRequest parses the private data of a request. Zeros may follow it. An error is a
// *RejectError, with which the request is to be rejected.
func ParseConnRequest(b []byte) (r ConnRequest, err error) {
	if len(b) < ConnRequestLen {
		return r, &RejectError{RejectLength, shorter("connection request", len(b), ConnRequestLen)}
	}
	r = ConnRequest{le.Uint16(b), le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}
	switch {
	case r.RecordFormat != 0:
		return r, &RejectError{RejectRecordFormat, verbs.Errorf(syscall.EPROTO, "parse connection request", "record format %d: must be 0",
			r.RecordFormat)}
	case r.HRQSize == 0:
		return r, &RejectError{RejectHRQSize, verbs.Errorf(syscall.EPROTO, "parse connection request", "HRQSIZE 0: must be 1 at least")}
	}
	return r, nil
}

// ConnAccept is the private data of the reply to a connection request (NVMe-oF 1.1 §7.3.6.2).
type ConnAccept struct {
	RecordFormat uint16 // 0
	CRQSize      uint16 // receive requests of the controller
}

// Append appends the private data, of ConnAcceptLen bytes.
func (a *ConnAccept) Append(b []byte) []byte {
	b = le.AppendUint16(b, a.RecordFormat)
	b = le.AppendUint16(b, a.CRQSize)
	return append(b, make([]byte, ConnAcceptLen-4)...)
}

// ParseConnAccept parses the private data of a reply. Zeros may follow it.
func ParseConnAccept(b []byte) (a ConnAccept, err error) {
	const what = "connection reply"
	if len(b) < 4 { // the rest is reserved
		return a, shorter(what, len(b), 4)
	}
	a = ConnAccept{le.Uint16(b), le.Uint16(b[2:])}
	if a.RecordFormat != 0 {
		return a, verbs.Errorf(syscall.EPROTO, "parse "+what, "record format %d: must be 0", a.RecordFormat)
	}
	return a, nil
}

// RejectStatus is the reason for a rejected connection request (NVMe-oF 1.1 §7.3.6.3).
type RejectStatus uint16

const (
	RejectLength       RejectStatus = 1 // of the private data
	RejectRecordFormat RejectStatus = 2
	RejectQID          RejectStatus = 3
	RejectHSQSize      RejectStatus = 4
	RejectHRQSize      RejectStatus = 5
	RejectNoResources  RejectStatus = 6
	RejectIRD          RejectStatus = 7
	RejectORD          RejectStatus = 8
	RejectCNTLID       RejectStatus = 9
)

var rejectStatuses = [...]string{RejectLength: "invalid length of private data", RejectRecordFormat: "invalid record format",
	RejectQID: "invalid queue ID", RejectHSQSize: "invalid HSQSIZE", RejectHRQSize: "invalid HRQSIZE", RejectNoResources: "no resources",
	RejectIRD: "invalid IRD", RejectORD: "invalid ORD", RejectCNTLID: "invalid controller ID"}

// String returns the reason in words.
func (s RejectStatus) String() string {
	if int(s) < len(rejectStatuses) && s > 0 {
		return rejectStatuses[s]
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// RejectError is the error of a connection request that is rejected.
type RejectError struct {
	Status RejectStatus
	Err    error // details, or nil
}

func (e *RejectError) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return e.Status.String()
}

func (e *RejectError) Unwrap() error { return e.Err }

// ConnReject is the private data of a rejection.
type ConnReject struct {
	RecordFormat uint16 // 0
	Status       RejectStatus
}

// Append appends the private data, of ConnRejectLen bytes.
func (r *ConnReject) Append(b []byte) []byte {
	b = le.AppendUint16(b, r.RecordFormat)
	return le.AppendUint16(b, uint16(r.Status))
}

// ParseConnReject parses the private data of a rejection. Zeros may follow it.
func ParseConnReject(b []byte) (r ConnReject, err error) {
	if len(b) < ConnRejectLen {
		return r, shorter("rejection", len(b), ConnRejectLen)
	}
	return ConnReject{le.Uint16(b), RejectStatus(le.Uint16(b[2:]))}, nil
}
