package nvme

import "fmt"

// Status is the status of a completion (NVMe 1.4 §4.6.1), without the phase tag: the status code in
// bits 7:0, its type in bits 10:8, More in bit 13 and DoNotRetry in bit 14.
type Status uint16

// DoNotRetry means that the same command would fail again.
const DoNotRetry Status = 1 << 14

// Generic status codes (NVMe 1.4 §4.6.1.2.1), command specific ones (type 1, §4.6.1.2.2) and media
// errors (type 2, §4.6.1.2.3).
const (
	Success               Status = 0x00
	InvalidOpcode         Status = 0x01
	InvalidField          Status = 0x02
	DataTransferError     Status = 0x04
	InternalError         Status = 0x06
	AbortRequested        Status = 0x07
	InvalidNamespace      Status = 0x0b
	CommandSequenceError  Status = 0x0c
	SGLDataLengthInvalid  Status = 0x0f
	SGLTypeInvalid        Status = 0x11
	SGLOffsetInvalid      Status = 0x16
	KeepAliveInvalid      Status = 0x1a
	WriteProtected        Status = 0x20
	LBAOutOfRange         Status = 0x80
	CapacityExceeded      Status = 0x81
	NamespaceNotReady     Status = 0x82
	InvalidQueueID        Status = 0x101
	AbortLimitExceeded    Status = 0x103
	AsyncEventLimit       Status = 0x105
	InvalidLogPage        Status = 0x109
	FeatureNotSaveable    Status = 0x10d
	FeatureNotChangeable  Status = 0x10e
	ConnectFormat         Status = 0x180 // NVMe-oF 1.1 §3.3, as are those up to ConnectHost
	ConnectBusy           Status = 0x181
	ConnectInvalid        Status = 0x182
	ConnectRestart        Status = 0x183
	ConnectHost           Status = 0x184
	AuthRequired          Status = 0x191 // NVMe 2.0 §8.13.1
	WriteFault            Status = 0x280
	UnrecoveredReadError  Status = 0x281
	CompareFailure        Status = 0x285
	DeallocatedOrUnwriten Status = 0x287
)

var statuses = map[Status]string{
	Success: "success", InvalidOpcode: "invalid opcode", InvalidField: "invalid field in command", DataTransferError: "data transfer error",
	InternalError: "internal error", AbortRequested: "command abort requested", InvalidNamespace: "invalid namespace or format",
	CommandSequenceError: "command sequence error", SGLDataLengthInvalid: "data SGL length invalid",
	SGLTypeInvalid: "SGL descriptor type invalid", SGLOffsetInvalid: "SGL offset invalid", KeepAliveInvalid: "keep alive timeout invalid",
	WriteProtected: "namespace is write protected", LBAOutOfRange: "LBA out of range", CapacityExceeded: "capacity exceeded",
	NamespaceNotReady: "namespace not ready", InvalidQueueID: "invalid queue identifier", AbortLimitExceeded: "abort command limit exceeded",
	AsyncEventLimit: "asynchronous event request limit exceeded", InvalidLogPage: "invalid log page",
	FeatureNotSaveable: "feature identifier not saveable", FeatureNotChangeable: "feature not changeable",
	// I/O commands have the codes of the first four too, for other errors. A status alone does not
	// tell which command it is of.
	ConnectFormat:  "connect: incompatible format (of an I/O command: conflicting attributes)",
	ConnectBusy:    "connect: controller busy (of an I/O command: invalid protection information)",
	ConnectInvalid: "connect: invalid parameters (of an I/O command: attempted write to read only range)",
	ConnectRestart: "connect: restart discovery (of an I/O command: command size limit exceeded)",
	ConnectHost:    "connect: invalid host", AuthRequired: "authentication required", WriteFault: "write fault",
	UnrecoveredReadError: "unrecovered read error", CompareFailure: "compare failure",
	DeallocatedOrUnwriten: "deallocated or unwritten logical block",
}

// Code returns the status code and its type, without the flags.
func (s Status) Code() Status { return s & 0x7ff }

// String returns the status in words.
func (s Status) String() string {
	if text := statuses[s.Code()]; text != "" {
		return text
	}
	return fmt.Sprintf("status type %d, code %#02x", s>>8&7, uint8(s))
}

// Err returns nil for Success, otherwise a *StatusError.
func (s Status) Err() error {
	if s.Code() == Success {
		return nil
	}
	return &StatusError{s}
}

// StatusError is the error of a command that the controller has completed with another status than
// Success.
type StatusError struct{ Status Status }

func (e *StatusError) Error() string { return e.Status.String() }
