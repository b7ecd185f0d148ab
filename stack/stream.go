package stack

import (
	"errors"
	"net"

	"github.com/softrnic/softrnic/link"
)

// Stream is a TCP connection for iWARP. Writes do not wait, and fill pieces in place in the send
// buffer. Reads process the data in place in the receive buffer. Methods may be called from any
// goroutine. Only one goroutine at a time may call Wait, Receive and Read.
type Stream interface {
	net.Conn
	// MSS is the payload of a full segment in bytes, as both sides and the path allow it.
	MSS() int
	// Offloaded reports whether a piece larger than MSS leaves the host in one frame, and the link
	// segments it.
	Offloaded() bool
	// Send appends a piece of n bytes, at most MaxPiece, to the send buffer, and calls fill to write
	// it there. Send does not wait. If the buffer has no room, it returns false and does not call
	// fill. OnRoom's function is called when there is room again. If fill fails, nothing is appended
	// and the error is ErrNotFilled. A piece of at most MSS bytes is sent in one segment, unless it is
	// retransmitted.
	Send(n int, fill PieceWriter) (bool, error)
	// Unanswered returns the number of pieces sent since the peer last sent data or an
	// acknowledgement. If it is large, small pieces should be held back until the peer answers;
	// see CallOnAnswer.
	Unanswered() int
	// CallOnAnswer requests one call of OnRoom's function when the peer answers. If nothing is
	// unanswered, the call comes soon.
	CallOnAnswer()
	// OnRoom sets the function to call, on a goroutine of the stream, when Send may succeed
	// again. OnRoom may be called once.
	OnRoom(f func())
	// Wait waits until Receive has something to return. After the read deadline its error is a
	// timeout.
	Wait() error
	// Receive passes received data to take, in order and in the pieces in which it is stored. It
	// returns when there is no more, or when take returns false. It does not wait. The error is io.EOF
	// at the end of the stream.
	Receive(take Consumer) error
	// SetTOS sets the type of service (IPv4) or traffic class (IPv6) of later packets, except
	// the two ECN bits.
	SetTOS(tos uint8)
	// SetReadBuffer limits the memory for unread data, in bytes; 0 means the host's limit. Within the
	// limit, the host may give a connection less at first, and more when its traffic needs it. The
	// advertised window is at most half of the limit.
	SetReadBuffer(n int)
	// CloseWrite sends the contents of the send buffer, then FIN.
	CloseWrite() error
	// Abort sends RST and drops buffered data.
	Abort()
	// LocalNIC returns the interface in this process where the connection ends, like Path.LocalNIC.
	LocalNIC() NIC
}

// ReadNotifier is a Stream that can be waited for without a goroutine.
type ReadNotifier interface {
	// NotifyReadable replaces Wait. It calls f once, on a goroutine of its own, when Wait would
	// return. If Wait would return now, it calls f at once. Wait must not be called until f has been
	// called.
	NotifyReadable(f func())
}

// StreamListener is a listener whose Accept returns Streams.
type StreamListener interface {
	net.Listener
	// SetReadBuffer is like Stream.SetReadBuffer, for connections that are accepted from then on. The
	// host limits the buffers of connections that are not yet accepted.
	SetReadBuffer(n int)
}

// PieceWriter writes a piece of a stream: all of b. It returns false if it cannot.
type PieceWriter interface{ WritePiece(b []byte) bool }

// ErrNotFilled is the error of Stream.Send if its PieceWriter fails.
var ErrNotFilled = errors.New("the piece could not be filled")

// Consumer consumes all of b from a stream, and reports whether it wants more. b belongs to the
// stream and is valid until Consume returns. Consume must not call the stream.
type Consumer interface{ Consume(b []byte) bool }

// MaxPiece is the largest piece that Stream.Send accepts, in bytes. It fits one frame of a
// segmenting link, after an IP and a TCP header with all options.
const MaxPiece = link.MaxSuperframe - (60 + 60) - 1

// Authenticated is a Stream of a network that authenticates the peer of each connection.
type Authenticated interface {
	// PeerIdentity returns the peer's identity, and false if the peer has not authenticated itself.
	PeerIdentity() (Identity, bool)
}

// Identity is an authenticated peer.
type Identity struct {
	Name      string // "" if it has none
	PublicKey string // the key or its hash, in base64
}
