package mpa

import "fmt"

// ErrorType is the Terminate error type of everything MPA reports (RFC 6581 §8); its layer is 2,
// LLP.
const ErrorType = 0

// Code is MPA's error code in a Terminate message (RFC 5044 §8, RFC 6581 §8).
type Code uint8

// The codes. The last two are RFC 6581's.
const (
	CodeClosed            Code = 1 // TCP closed, reset or lost
	CodeCRC               Code = 2 // the FPDU's CRC is wrong
	CodeMarker            Code = 3 // marker and ULPDU length disagree where the FPDU starts
	CodeInvalidFrame      Code = 4 // MPA request or reply frame not understood
	CodeLocalCatastrophic Code = 5
	CodeInsufficientIRD   Code = 6 // the peer offers fewer READs than are needed
	CodeNoMatchingRTR     Code = 7 // no RTR indication that both sides allow
)

var codeNames = [...]string{
	CodeClosed:            "TCP connection closed or lost",
	CodeCRC:               "CRC of the FPDU is wrong",
	CodeMarker:            "marker and ULPDU length disagree",
	CodeInvalidFrame:      "invalid MPA request or reply frame",
	CodeLocalCatastrophic: "local catastrophic error",
	CodeInsufficientIRD:   "insufficient IRD resources",
	CodeNoMatchingRTR:     "no matching RTR option",
}

// String describes the error.
func (c Code) String() string {
	if c == 0 || int(c) >= len(codeNames) {
		return fmt.Sprintf("MPA error %#x", uint8(c))
	}
	return codeNames[c]
}

// Error is an error with its code in a Terminate message. errors.Is compares Code and Detail; an
// empty Detail matches all errors of the code.
type Error struct {
	Code   Code
	Detail string // more than the code says, or empty
}

// Error returns what the code means, and the detail.
func (e *Error) Error() string {
	if e.Detail == "" {
		return "mpa: " + e.Code.String()
	}
	return "mpa: " + e.Code.String() + ": " + e.Detail
}

// Is is for errors.Is.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && (t.Detail == "" || t.Detail == e.Detail)
}

// Errors without a detail, one of each code.
var (
	ErrClosed            = &Error{Code: CodeClosed}
	ErrCRC               = &Error{Code: CodeCRC}
	ErrMarker            = &Error{Code: CodeMarker}
	ErrInvalidFrame      = &Error{Code: CodeInvalidFrame}
	ErrLocalCatastrophic = &Error{Code: CodeLocalCatastrophic}
	ErrInsufficientIRD   = &Error{Code: CodeInsufficientIRD}
	ErrNoMatchingRTR     = &Error{Code: CodeNoMatchingRTR}

	// Errors in a request or reply frame; each is an ErrInvalidFrame.
	ErrKey         = &Error{CodeInvalidFrame, "key is not the one expected"}
	ErrRevision    = &Error{CodeInvalidFrame, "revision is neither 1 nor 2"}
	ErrPrivateData = &Error{CodeInvalidFrame, "private data longer than 512 bytes"}
	ErrEnhanced    = &Error{CodeInvalidFrame, "too little private data for IRD and ORD"}
)
