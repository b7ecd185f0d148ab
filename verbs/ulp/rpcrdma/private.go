package rpcrdma

import "encoding/binary"

// private is the private data of a connection request or reply (RFC 8797 §4.1):
//
//	magic (4 bytes)  version  flags  send size  receive size
//
// Each size is in units of 1024 bytes, less one.
type private struct {
	invalidate bool // the sender accepts SENDs with invalidate
	send, recv int  // bytes: the sender's inline thresholds
}

const (
	privateMagic      = 0xf6ab0e18
	privateVersion    = 1
	privateLen        = 8
	privateInvalidate = 0x01
	sizeUnit          = 1024
	maxInline         = 256 * sizeUnit
)

// absent are the values for a peer that sends no private data (RFC 8797 §4; RFC 8166 §3.3.2).
var absent = private{send: sizeUnit, recv: sizeUnit}

// parsePrivate parses the peer's private data. rdma_cm may have appended zeros to it.
func parsePrivate(b []byte) private {
	if len(b) < privateLen || binary.BigEndian.Uint32(b) != privateMagic || b[4] != privateVersion {
		return absent
	}
	return private{
		invalidate: b[5]&privateInvalidate != 0,
		send:       (int(b[6]) + 1) * sizeUnit,
		recv:       (int(b[7]) + 1) * sizeUnit,
	}
}

// bytes returns the private data to send. The sizes are multiples of sizeUnit.
func (p private) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, privateMagic)
	flags := byte(0)
	if p.invalidate {
		flags = privateInvalidate
	}
	return append(b, privateVersion, flags, byte(p.send/sizeUnit-1), byte(p.recv/sizeUnit-1))
}
