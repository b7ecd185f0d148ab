// Package link moves Ethernet frames between a host and a medium.
//
// Each medium is a package below this one: tap and packet are the kernel's TAP interfaces and packet sockets, stream is a socket
// to a virtual machine or another program, shm is memory that the processes of one machine share, pipe is a switch inside the
// process. The wrappers capture, impair and vlan are links too, and stand on any other link. A program opens a link and gives
// it to a host, such as one of package netstack, which receives and sends its frames.
//
// A frame may be a superframe: many packets of one flow behind one header, which are cut apart as late as possible, by the
// receiver, the kernel or the network card. [Offloads] says what of that a link takes.
package link

import "net"

// A Link sends and receives whole Ethernet frames. Its methods may be called from any goroutine.
type Link interface {
	// Name identifies the link in logs and counters: an interface name, or "pipe0".
	Name() string
	// MAC is the Ethernet address that the host behind this link uses, six bytes.
	MAC() net.HardwareAddr
	// MTU is the largest IP packet, in bytes, that one unsegmented frame carries.
	MTU() int
	// Offloads says which frames larger than MTU, and which unfinished checksums, Write takes.
	Offloads() Offloads
	// Attach starts reception: recv is called for what arrives, on a goroutine of the link, and on several at the same
	// time if the link has several queues. Frames of one flow (addresses, protocol and ports) come in order, one call
	// after the other. The frames and their bytes are recv's to change, and are valid until it returns. Attach is
	// called once.
	Attach(recv Receiver)
	// Write sends frames in order and returns how many it took; an error says why the next one was not. A frame
	// that the medium loses counts as taken. Write does not keep the frames' bytes after it returns.
	Write(frames []Frame) (int, error)
	// Close stops reception, waits until recv has returned, and removes what the link created. recv must not call it.
	Close() error
}

// Poller is a link whose frames a program can receive on its own goroutine, by polling. A program that polls does not wait for
// the link's goroutine to wake up.
//
// While a program polls, the link's goroutine may sleep. Once a millisecond it looks whether Poll was called since it last
// looked; if not, or as soon as EndPoll is called, it receives again. So a frame that arrives after the last Poll may wait for
// a millisecond or two if EndPoll is not called.
type Poller interface {
	// Poll passes what has arrived to the receiver of Attach, on the caller's goroutine, and does not wait for more. It
	// returns false if nothing had arrived, or if another goroutine is receiving. It may then let other threads run first:
	// the sender may be one that waits for a processor. The receiver must not call it.
	Poll() bool
	// EndPoll says that the caller will not call Poll again soon: the link's own goroutine receives again.
	EndPoll()
}

// Wait is what a link's own goroutine does when nothing arrives and nobody polls.
type Wait uint8

const (
	// WaitAdaptive polls for a short while after traffic, then sleeps.
	WaitAdaptive Wait = iota
	// WaitEvent sleeps at once: least work for the processor.
	WaitEvent
	// WaitPoll polls always, and keeps a processor busy: least latency.
	WaitPoll
)

// Shared is a link whose medium is memory of this process. Two hosts on links of one such medium can copy messages from the
// memory of one to that of the other, without frames. A wrapper whose purpose is to see, lose or delay frames does not
// implement Shared.
type Shared interface {
	// Medium is the same comparable value for all links of one medium; nil once the link is closed.
	Medium() any
}

// Placer is a link whose medium is memory that sender and receiver share. A frame of RoCE packets can be built there, where the
// receiver reads it, so that its payload is copied once on either side; and as memory does not change on its way by itself, the
// packets have no ICRC. Nobody can verify one there, as the sender can change the memory after the check.
type Placer interface {
	// TakeInPlace says, before Attach, what the receiver is prepared for: frames whose NoICRC is set, and whose More is memory
	// that the sender can still change. The receiver must read each byte of it once at most, and rely on nothing that it read
	// before. Without it others send this host complete packets, and what is received is a copy.
	TakeInPlace()
	// Reserve sets room for one frame of up to n bytes to the host with Ethernet address dst aside. Its Data is nil if the
	// frame is to go through Write: there is no room, or that host does not take frames in place. What is written later
	// arrives later.
	Reserve(dst [6]byte, n int) Room
	// Backlog is how many bytes wait in this process for room in the memory of the host with Ethernet address dst. Up to a
	// bound they are kept; a sender that slows down while there are many loses nothing.
	Backlog(dst [6]byte) int
}

// Room is where a frame is built. Commit must be called soon: other frames to the same host wait for it.
type Room struct {
	Data []byte // the frame's, from the destination address on; memory that the receiver can read and write at any time
	At   uint64
	In   Committer
}

// Committer is what has given a room.
type Committer interface {
	// Commit sends the first n bytes of a room with what f says of them, or gives the room back if n is 0. A superframe's
	// checksum need not be complete, nor any ICRC be there.
	Commit(at uint64, f *Frame, n int)
}

// Receiver takes a batch of frames that arrived together.
type Receiver func(frames []Frame)

// Offloads are what a link can do beyond sending one finished packet per frame.
type Offloads struct {
	// USO: a UDP superframe goes in one Write, and is cut only where the kernel cannot carry it whole.
	USO bool
	// TSO: the same for TCP over IPv4 and IPv6.
	TSO bool
	// Checksum: Write takes frames whose transport checksum is partial (Frame.NeedsChecksum), and what arrives may
	// have one.
	Checksum bool
}

// Segmentation says how a frame longer than the MTU is cut.
type Segmentation uint8

// The kinds of segmentation, with the meaning of virtio-net's gso_type.
const (
	NoSegmentation Segmentation = iota
	TCPv4
	TCPv6
	UDP // RoCE superframes, over IPv4 or IPv6
)

// MaxSegments is the largest number of packets in a superframe, and MaxSuperframe the largest IP packet that one may
// be, in bytes: Linux loses larger ones without an error.
const (
	MaxSegments   = 128
	MaxSuperframe = 65535
)

// A Frame is one Ethernet frame, from the destination address on, without FCS.
type Frame struct {
	// Data is the frame, or its beginning where More is not empty. On reception all of it is in Data.
	Data []byte
	// More continues Data: gVisor's pieces are not copied into one. Nil on reception, but for a [Placer]'s frames.
	More [][]byte
	// Segmentation and SegmentSize (payload bytes after the transport header, the last segment may be shorter)
	// describe a superframe of equal packets behind one header.
	Segmentation Segmentation
	SegmentSize  uint16
	// HeaderLen is the number of bytes of Ethernet, IP and transport header before the first segment's payload; set
	// where Segmentation is.
	HeaderLen uint16
	// NeedsChecksum: the transport checksum at ChecksumStart+ChecksumOffset holds only the pseudo header's sum; the
	// sum of everything from ChecksumStart on is to be folded in. Offsets in bytes from the start of Data.
	NeedsChecksum                 bool
	ChecksumStart, ChecksumOffset uint16
	// ChecksumValid, on reception: the medium vouches for the transport checksum.
	ChecksumValid bool
	// NoICRC, on reception from a Placer: the frame is one of RoCE packets without ICRC; four bytes are where each would
	// be. HeaderLen is set, and if More is not nil, Data holds so many bytes.
	NoICRC bool
	// TCI, of a frame without a tag: on reception, the control information of the tag that was taken off, 0 if there was
	// none; in Write, the value whose priority link/vlan puts into the tag that it adds. Media ignore it.
	TCI uint16
	// Polled, on reception: a call of Poll received the frame, not the link's own goroutine. Whoever called Poll will soon
	// call it again, or EndPoll, so the receiver can leave until then what it would otherwise do at once.
	Polled bool
}

// Len is the number of bytes in the frame.
func (f *Frame) Len() int {
	n := len(f.Data)
	for _, m := range f.More {
		n += len(m)
	}
	return n
}
