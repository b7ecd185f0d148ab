package stack

import "github.com/softrnic/softrnic/link"

// FramePort sends and receives whole Ethernet frames, in addition to the host's own traffic.
type FramePort interface {
	// Steer passes frames that are received and sent from now on to the functions of s; nil
	// ends that. Calls for earlier frames may still be running when Steer returns.
	Steer(s *Steering)
	// Sender takes a sender from the port's pool.
	Sender() FrameSender
}

// Steering has the functions that get a port's frames. A frame begins with the destination address
// and has no FCS. It is one packet of at most the MTU with complete checksums, as on the wire. It
// is valid during the call and must not be modified. For received frames the functions run on the
// link's receive goroutines, concurrently if the link has several queues. For sent frames they run
// on a goroutine of the port. A function that is nil is not called.
type Steering struct {
	// Sniff gets all received and sent frames, except those that the host sends to itself. Sent
	// frames are copied into a bounded queue, and dropped if it is full.
	Sniff func(frame []byte)
	// Take gets every received frame with any destination, except RoCE to one of the host's addresses.
	// It returns true to withhold the frame from the host. All packets of a superframe are treated
	// like the first one.
	Take func(frame []byte) bool
	// Rest gets frames that Take has not withheld and that are not for the host: frames to
	// another MAC address, or to a group that the host has not joined.
	Rest func(frame []byte)
}

// FrameSender collects frames and sends them. Only one goroutine at a time may use it.
type FrameSender interface {
	// Frame adds a frame of n bytes, from the destination address on, which the caller fills in
	// before the next call. It returns nil if n is less than an Ethernet header, or more than
	// the MTU plus a header with two tags. The link refuses a frame whose PacketLen exceeds the
	// MTU. A frame shorter than Ethernet's minimum is padded.
	Frame(n int) []byte
	// Drop removes the last frame.
	Drop()
	// Flush sends all frames and returns the sender to the pool. The caller must not use it
	// afterwards.
	Flush()
}

// PacketLen returns the number of bytes after a frame's Ethernet header and tags.
func PacketLen(frame []byte) int { return len(frame) - link.NetworkOffset(frame) }
