package stack

import "github.com/softrnic/softrnic/link"

// FramePort sends and receives Ethernet frames beside the host's own traffic.
type FramePort interface {
	// Steer shows s the frames that pass from now on; nil ends that. Calls for frames that came before may still be
	// running when it returns.
	Steer(s *Steering)
	// Sender takes a sender from the port's pool.
	Sender() FrameSender
}

// Steering says who sees the frames of a port. A frame begins with the destination address, has no FCS, and is as it is on
// the wire: one packet of at most the MTU, its checksums complete. It is valid during the call and must not be changed.
// Received frames are shown on the link's receive goroutines, several at the same time where the link has several queues;
// sent frames on a goroutine of the port. A nil function sees none.
type Steering struct {
	// Sniff sees everything received and sent, except what the host sends to itself. Sent frames are copied; copies that
	// are not looked at in time are lost.
	Sniff func(frame []byte)
	// Take is offered every frame received, whatever its destination, except RoCE for one of the host's addresses. It
	// returns true to keep the frame from the host. All packets of a superframe go where the first one went.
	Take func(frame []byte) bool
	// Rest sees what neither Take nor the host wants: frames for another MAC address, or for a group that the host has not
	// joined.
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
