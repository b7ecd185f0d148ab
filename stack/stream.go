package stack

import (
	"errors"
	"net"

	"github.com/softrnic/softrnic/link"
)

// Stream is a TCP connection as iWARP needs it: it can be written without waiting, in pieces that are filled in place in
// the send buffer, and read where the data lies in the receive buffer. Its methods may be called from any goroutine;
// Wait, Receive and Read from one at a time.
type Stream interface {
	net.Conn
	// MSS is the payload of a full segment in bytes, as both sides and the path allow it.
	MSS() int
	// Offloaded reports whether pieces larger than MSS leave the host in one frame, for the link to segment.
	Offloaded() bool
	// Send appends a piece of n bytes, at most MaxPiece, to the send buffer, and has fill write it there. It does not wait:
	// it returns false if the buffer has no room now, without having called fill; the function given to OnRoom is called
	// when there is room again. If fill fails, nothing is appended, and the error is ErrNotFilled. A piece of at most MSS bytes is sent in one segment, unless it has to be sent again.
	Send(n int, fill Filler) (bool, error)
	// Unanswered is how many pieces were sent since anything came from the peer, an acknowledgement or data. If it is
	// large, hold small pieces back until something comes; see CallOnAnswer.
	Unanswered() int
	// CallOnAnswer has the function given to OnRoom called once when something comes from the peer, or soon if nothing is
	// unanswered.
	CallOnAnswer()
	// OnRoom sets the function to call, on a goroutine of the stream, when Send may work again. It may be called once.
	OnRoom(f func())
	// Wait waits until Receive has something to return. Past the read deadline its error is a timeout.
	Wait() error
	// Receive passes what has arrived to take, in order and in the pieces it is stored in, until there is no more or take
	// returns false. It does not wait. The error is io.EOF at the end of the stream.
	Receive(take Taker) error
	// SetTOS sets the type of service (IPv4) or traffic class (IPv6) of what is sent from now on, except its two lowest
	// bits, which belong to ECN.
	SetTOS(tos uint8)
	// SetReadBuffer bounds the memory, in bytes, of what has come from the peer and is not read; 0 leaves the bound to the
	// host. Within the bound, the host may give a connection less at first, and more as its traffic needs it. The window that the
	// peer is offered is at most half of it.
	SetReadBuffer(n int)
	// CloseWrite sends what is in the send buffer, then FIN.
	CloseWrite() error
	// Abort sends RST and drops what is buffered.
	Abort()
	// Near is the interface in this process where the connection ends, in the sense of Path.Near.
	Near() NIC
}

// Parker is a Stream that can be waited for without a goroutine.
type Parker interface {
	// Park has f called once, on a goroutine of its own, when Wait would return: at once if it would already. It is called in
	// place of Wait, and Wait not before f is.
	Park(f func())
}

// StreamListener is a listener whose Accept returns Streams.
type StreamListener interface {
	net.Listener
	// SetReadBuffer is Stream.SetReadBuffer for the connections that are accepted from then on. The host
	// itself bounds what it buffers for connections that are not yet accepted.
	SetReadBuffer(n int)
}

// Filler writes a piece of a stream: all of b. It returns false if it cannot.
type Filler interface{ Fill(b []byte) bool }

// ErrNotFilled is the error of Stream.Send if its Filler fails.
var ErrNotFilled = errors.New("the piece could not be filled")

// Taker takes all of b out of a stream, and reports whether it wants more. b belongs to the stream and is valid until
// Take returns. Take must not call the stream.
type Taker interface{ Take(b []byte) bool }

// MaxPiece is the largest piece that Stream.Send takes, in bytes: what fits one frame of a link that segments, behind an
// IP and a TCP header with all options.
const MaxPiece = link.MaxSuperframe - (60 + 60) - 1
