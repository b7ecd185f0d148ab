package rdmap

import (
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

// Layer is the layer that found an error.
type Layer uint8

// The layers (RFC 5040 §4.8).
const (
	LayerRDMA Layer = 0
	LayerDDP  Layer = 1
	LayerLLP  Layer = 2 // here always MPA
)

// Error types of LayerRDMA. Those of the others are [ddp.ErrorType] and [mpa.ErrorType].
const (
	TypeLocalCatastrophic = 0
	TypeRemoteProtection  = 1
	TypeRemoteOperation   = 2
)

// Cause is the reason for the end of a stream, as in a Terminate message (RFC 5040 §4.8). It is
// also the error that this package and its user return for an invalid message.
type Cause struct {
	Layer Layer
	Type  uint8 // 4 bits, of the layer
	Code  uint8 // of the type
}

// The errors of RDMAP (RFC 5040 §4.8).
var (
	LocalCatastrophic = Cause{LayerRDMA, TypeLocalCatastrophic, 0}

	InvalidSTag       = Cause{LayerRDMA, TypeRemoteProtection, 0}
	BoundsViolation   = Cause{LayerRDMA, TypeRemoteProtection, 1}
	AccessViolation   = Cause{LayerRDMA, TypeRemoteProtection, 2}
	STagNotAssociated = Cause{LayerRDMA, TypeRemoteProtection, 3}
	TOWrap            = Cause{LayerRDMA, TypeRemoteProtection, 4}
	CannotInvalidate  = Cause{LayerRDMA, TypeRemoteProtection, 9}
	ProtectionError   = Cause{LayerRDMA, TypeRemoteProtection, 0xff}

	InvalidVersion      = Cause{LayerRDMA, TypeRemoteOperation, 5}
	UnexpectedOpcode    = Cause{LayerRDMA, TypeRemoteOperation, 6}
	StreamCatastrophic  = Cause{LayerRDMA, TypeRemoteOperation, 7}
	GlobalCatastrophic  = Cause{LayerRDMA, TypeRemoteOperation, 8}
	InvalidateOperation = Cause{LayerRDMA, TypeRemoteOperation, 9} // STag cannot be invalidated
	OperationError      = Cause{LayerRDMA, TypeRemoteOperation, 0xff}
)

var rdmaNames = map[Cause]string{
	InvalidSTag:         "invalid STag",
	BoundsViolation:     "base or bounds violation",
	AccessViolation:     "access rights violation",
	STagNotAssociated:   "STag not associated with the stream",
	TOWrap:              "TO wraps",
	CannotInvalidate:    "STag cannot be invalidated",
	ProtectionError:     "unspecified",
	InvalidVersion:      "invalid RDMAP version",
	UnexpectedOpcode:    "unexpected opcode",
	StreamCatastrophic:  "catastrophic error of this stream",
	GlobalCatastrophic:  "catastrophic error of all streams",
	InvalidateOperation: "STag cannot be invalidated",
	OperationError:      "unspecified",
}

// String returns the names of layer, type and code.
func (c Cause) String() string {
	switch c.Layer {
	case LayerRDMA:
		kind := ""
		switch c.Type {
		case TypeLocalCatastrophic:
			return "RDMA local catastrophic error"
		case TypeRemoteProtection:
			kind = "RDMA remote protection error"
		case TypeRemoteOperation:
			kind = "RDMA remote operation error"
		}
		if name, ok := rdmaNames[c]; ok {
			return kind + ": " + name
		}
	case LayerDDP:
		return "DDP " + (&ddp.Error{Type: ddp.ErrorType(c.Type), Code: c.Code}).String()
	case LayerLLP:
		if c.Type == mpa.ErrorType {
			return "MPA error: " + mpa.Code(c.Code).String()
		}
	}
	return fmt.Sprintf("layer %#x error type %#x code %#x", uint8(c.Layer), c.Type, c.Code)
}

// Error returns the names of layer, type and code.
func (c Cause) Error() string { return "rdmap: " + c.String() }

// CauseOf returns the cause in a Terminate message for err, an error of one of the three layers.
// For any other error, ok is false and the cause is LocalCatastrophic.
func CauseOf(err error) (c Cause, ok bool) {
	var (
		placement *ddp.Error
		framing   *mpa.Error
	)
	switch {
	case errors.As(err, &c):
		return c, true
	case errors.As(err, &placement):
		return Cause{LayerDDP, uint8(placement.Type), placement.Code}, true
	case errors.As(err, &framing):
		return Cause{LayerLLP, mpa.ErrorType, uint8(framing.Code)}, true
	case errors.Is(err, ErrLen):
		return StreamCatastrophic, true
	}
	return LocalCatastrophic, false
}
