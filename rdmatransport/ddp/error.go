package ddp

import "fmt"

// ErrorType is the type of a DDP error in a Terminate message (RFC 5041 §7.2); the layer is 1.
type ErrorType uint8

// The types. The latter two say which header the invalid segment has.
const (
	LocalCatastrophic ErrorType = 0
	TaggedError       ErrorType = 1
	UntaggedError     ErrorType = 2
)

// String returns the name of the type.
func (t ErrorType) String() string {
	switch t {
	case LocalCatastrophic:
		return "local catastrophic"
	case TaggedError:
		return "tagged buffer error"
	case UntaggedError:
		return "untagged buffer error"
	}
	return fmt.Sprintf("DDP error type %#x", uint8(t))
}

// Error is a DDP error number. Compare it with the variables below.
type Error struct {
	Type ErrorType
	Code uint8 // within the type
}

// Error returns the names of type and code.
func (e *Error) Error() string { return "ddp: " + e.String() }

// String returns the names of type and code.
func (e *Error) String() string {
	var names []string
	switch e.Type {
	case LocalCatastrophic:
		return e.Type.String()
	case TaggedError:
		names = taggedNames[:]
	case UntaggedError:
		names = untaggedNames[:]
	}
	if int(e.Code) < len(names) && names[e.Code] != "" {
		return e.Type.String() + ": " + names[e.Code]
	}
	return fmt.Sprintf("%v: code %#x", e.Type, e.Code)
}

// Is is for errors.Is: it compares type and code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && *t == *e
}

var taggedNames = [...]string{
	0: "invalid STag",
	1: "base or bounds violation",
	2: "STag not associated with the stream",
	3: "TO wraps",
	4: "invalid DDP version",
}

var untaggedNames = [...]string{
	1: "invalid QN",
	2: "no buffer for the MSN",
	3: "MSN out of range",
	4: "invalid MO",
	5: "message too long for its buffer",
	6: "invalid DDP version",
}

// The errors of RFC 5041 §7.2.
var (
	ErrLocalCatastrophic = &Error{LocalCatastrophic, 0}

	ErrInvalidSTag       = &Error{TaggedError, 0}
	ErrBounds            = &Error{TaggedError, 1}
	ErrSTagNotAssociated = &Error{TaggedError, 2}
	ErrTOWrap            = &Error{TaggedError, 3}
	ErrTaggedVersion     = &Error{TaggedError, 4}

	ErrInvalidQN       = &Error{UntaggedError, 1}
	ErrNoBuffer        = &Error{UntaggedError, 2}
	ErrMSNRange        = &Error{UntaggedError, 3}
	ErrInvalidMO       = &Error{UntaggedError, 4}
	ErrTooLong         = &Error{UntaggedError, 5}
	ErrUntaggedVersion = &Error{UntaggedError, 6}

	// ErrShort means that a segment is shorter than its header. The RFC has no number for that.
	ErrShort = ErrLocalCatastrophic
)
