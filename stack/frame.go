package stack

import "github.com/softrnic/softrnic/link"

// FramePort sends and receives whole Ethernet frames, in addition to the host's own traffic.
type FramePort interface {
	// Steer passes the frames that are received and sent from now on to the functions of s; nil ends that. Calls for earlier
	// frames may still be running when it returns.
	Steer(s *Steering)
	// Sender takes a sender from the port's pool.
	Sender() FrameSender
}

// Steering is the functions that the frames of a port are passed to. A frame begins with the destination address, has no FCS,
// and is as on the wire: one packet of at most the MTU, its checksums complete. It is valid during the call and must not be
// changed. For received frames the functions are called on the link's receive goroutines, several at the same time where the
// link has several queues; for sent frames, on a goroutine of the port. A nil function is not called.
type Steering struct {
	// Sniff gets all frames received and sent, except those that the host sends to itself. Sent frames are copied into a
	// bounded queue, and lost if that is full.
	Sniff func(frame []byte)
	// Take is offered every frame received, whatever its destination, except RoCE for one of the host's addresses. It
	// returns true to keep the frame from the host. All packets of a superframe go where the first one went.
	Take func(frame []byte) bool
	// Rest gets the frames that Take has not kept and that are not for the host: those for another MAC address, or for a group
	// that the host has not joined.
	Rest func(frame []byte)
}

// FrameSender gathers frames and sends them. It is for one goroutine at a time.
type FrameSender interface {
	// Frame adds a frame of n bytes, from the destination address on, for the caller to fill in before the next call. It
	// returns nil if n is less than an Ethernet header, or more than the MTU and a header with two tags. The link refuses a
	// frame whose PacketLen is more than the MTU. A frame shorter than Ethernet's minimum is padded.
	Frame(n int) []byte
	// Drop takes back the frame that Frame returned last.
	Drop()
	// Flush sends everything and gives the sender back to the pool: it must not be used afterwards.
	Flush()
}

// PacketLen is the number of bytes in a frame behind its Ethernet header and tags.
func PacketLen(frame []byte) int { return len(frame) - link.NetworkOffset(frame) }
