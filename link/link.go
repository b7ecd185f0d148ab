// Package link moves Ethernet frames between a host and a medium.
//
// Each medium is a package below this one. tap and packet use the kernel's TAP interfaces and
// packet sockets. stream is a socket to a virtual machine or another program. shm is memory shared
// by the processes of one machine. pipe is a switch inside the process. The wrappers capture,
// impair and vlan are links on top of any other link. A program opens a link and passes it to a
// host, such as package netstack's, which receives and sends its frames.
//
// A frame may be a superframe: many packets of one flow behind one header. It is cut as late as
// possible, by the receiver, the kernel or the network card. [Offloads] tells which superframes a
// link accepts.
//
// # Optional interfaces
//
// A link may implement further interfaces. Hosts find them by a type assertion, and work without
// them. A wrapper implements those of its inner link that it can keep.
//
//   - [Poller]: a program receives on its own goroutine
//   - [Carrier]: the medium can lose its carrier, or change its MTU
//   - [Shared]: the medium is memory of this process
//   - [InPlace]: the medium is memory of sender and receiver, in which frames are built and read
//   - [Departures]: the medium reports hosts that have left it
//   - [Clocked]: the medium has a time of its own
//   - [Queues]: the adapter has a queue for each flow, which may be full
//
// ARCHITECTURE.md lists who implements each, who asks for it, and what is lost without it.
package link

import "net"

// A Link sends and receives whole Ethernet frames. Its methods may be called from any goroutine.
type Link interface {
	// Name identifies the link in logs and counters, for example an interface name or "pipe0".
	Name() string
	// MAC is the Ethernet address of the host behind this link, six bytes.
	MAC() net.HardwareAddr
	// MTU is the largest IP packet, in bytes, that one unsegmented frame carries.
	MTU() int
	// Offloads tells which frames larger than the MTU, and which partial checksums, Write
	// accepts.
	Offloads() Offloads
	// Attach starts reception. recv is called on a goroutine of the link, and concurrently if
	// the link has several queues. Frames of one flow (addresses, protocol and ports) arrive in
	// order, in successive calls. recv may modify the frames and their bytes, which are valid
	// until it returns. Attach is called once.
	Attach(recv Receiver)
	// Write sends frames in order and returns the number that it accepted. If that is not all, the
	// error is that of the next frame. A frame that the medium loses counts as accepted. Write does
	// not keep the frames' bytes after it returns.
	Write(frames []Frame) (int, error)
	// Close stops reception, waits until recv has returned, and removes what the link created.
	// recv must not call it.
	Close() error
}

// Poller is a link from which a program can receive on its own goroutine, by polling. Reception is
// then not delayed by waking the link's goroutine.
//
// While a program polls, the link's goroutine may sleep. Once a millisecond it checks whether Poll
// has been called since the last check. If not, or as soon as EndPoll is called, it receives again.
// Without EndPoll, a frame that arrives after the last Poll may be delayed by up to two
// milliseconds.
type Poller interface {
	// Poll passes the frames that have arrived to Attach's receiver, on the caller's goroutine,
	// without waiting for more. It returns false if there were none, or if another goroutine is
	// receiving. It may then yield the thread, because the sender may be waiting for a
	// processor. The receiver must not call Poll.
	Poll() bool
	// EndPoll says that the caller will not call Poll again soon. The link's own goroutine
	// receives again.
	EndPoll()
}

// Wait is how a link's own goroutine waits when no frames arrive and no program polls.
type Wait uint8

const (
	// WaitAdaptive spins for a short while after traffic, then sleeps.
	WaitAdaptive Wait = iota
	// WaitEvent sleeps at once. It uses the least CPU time.
	WaitEvent
	// WaitPoll spins all the time and keeps a processor busy. It has the lowest latency.
	WaitPoll
)

// Shared is a link whose medium is memory of this process. Two hosts on links of one such medium
// can copy messages from memory to memory, without frames. Wrappers that observe, drop or delay
// frames do not implement it.
type Shared interface {
	// Medium returns the same comparable value for all links of one medium, and nil once the
	// link is closed.
	Medium() any
}

// InPlace is a link whose medium is memory shared by sender and receiver. A sender can build a
// frame of RoCE packets in that memory, and the receiver reads it there. Each side then copies the
// payload only once. The packets have no ICRC. Memory does not corrupt data in transit, and a check
// would prove nothing, because the sender can change the memory after it.
type InPlace interface {
	// AllowInPlace is called before Attach. It says that the receiver accepts frames with
	// NoICRC, whose More is memory that the sender can still change. The receiver must read
	// each byte of More at most once, and must not rely on an earlier read. Without
	// AllowInPlace, others send complete packets to this host, and received frames are copies.
	AllowInPlace()
	// Reserve reserves room for one frame of up to n bytes to the host with Ethernet address
	// dst. Data is nil if there is no room or that host does not accept frames in place; the
	// frame must then go through Write. Frames that are written later arrive later.
	Reserve(dst [6]byte, n int) Reservation
	// Backlog returns the number of bytes that wait in this process for room in the memory of the host
	// with Ethernet address dst. The backlog is limited, and frames beyond the limit are lost. A
	// sender can avoid loss by slowing down early.
	Backlog(dst [6]byte) int
}

// Reservation is room in which a frame is built. Commit must be called soon, as it delays other
// frames to the same host.
type Reservation struct {
	// The frame, from the destination address on. The receiver can access this memory at any time.
	Data  []byte
	At    uint64
	Owner Committer
}

// Committer is the owner of a Reservation.
type Committer interface {
	// Commit sends the first n bytes of a reservation as a frame with the fields of f. If n is
	// 0 it cancels the reservation. The checksum of a superframe may be partial, and the ICRCs
	// may be missing.
	Commit(at uint64, f *Frame, n int)
}

// Receiver receives a batch of frames, which arrived together.
type Receiver func(frames []Frame)

// Offloads says which frames a link accepts besides single packets with complete checksums.
type Offloads struct {
	// USO: one Write accepts a UDP superframe. It is cut only where the kernel cannot carry it as one
	// frame.
	USO bool
	// TSO: the same for TCP over IPv4 and IPv6.
	TSO bool
	// Checksum: Write accepts frames with a partial transport checksum (Frame.NeedsChecksum),
	// and received frames may have one.
	Checksum bool
}

// Segmentation tells how a frame longer than the MTU is cut.
type Segmentation uint8

// The kinds of segmentation, with the meaning of virtio-net's gso_type.
const (
	NoSegmentation Segmentation = iota
	TCPv4
	TCPv6
	UDP // RoCE superframes, over IPv4 or IPv6
)

// MaxSegments is the largest number of packets in a superframe. MaxSuperframe is the largest length
// of its IP packet, in bytes. Linux drops larger ones without an error.
const (
	MaxSegments   = 128
	MaxSuperframe = 65535
)

// A Frame is one Ethernet frame, from the destination address on, without FCS.
type Frame struct {
	// Data is the frame, or its beginning if More is not empty. On reception all of it is in
	// Data.
	Data []byte
	// More continues Data, so that gVisor's pieces need not be copied into one. It is nil on
	// reception, except for frames of an [InPlace].
	More [][]byte
	// Segmentation and SegmentSize describe a superframe of equal packets behind one header.
	// SegmentSize is the number of payload bytes after the transport header; the last segment
	// may be shorter.
	Segmentation Segmentation
	SegmentSize  uint16
	// HeaderLen is the length of the Ethernet, IP and transport headers, in bytes. It is set if
	// Segmentation is.
	HeaderLen uint16
	// NeedsChecksum: the transport checksum at ChecksumStart+ChecksumOffset is partial. It
	// holds only the sum of the pseudo header; the sum from ChecksumStart to the end is still
	// to be added. Offsets are in bytes from the start of Data.
	NeedsChecksum                 bool
	ChecksumStart, ChecksumOffset uint16
	// ChecksumValid, on reception: the medium guarantees the transport checksum.
	ChecksumValid bool
	// NoICRC, on reception from an InPlace: the frame holds RoCE packets without ICRCs;
	// each has four unused bytes in its place. HeaderLen is set, and if More is not nil, Data
	// holds that many bytes.
	NoICRC bool
	// TCI belongs to an untagged frame. On reception it is the tag control information of a tag
	// that was removed, or 0. In Write it is a value whose priority link/vlan copies into the
	// tag that it adds. Media ignore it.
	TCI uint16
	// Polled, on reception: a call of Poll received the frame, not the link's own goroutine. The
	// caller will soon call Poll or EndPoll. The receiver may defer work until then.
	Polled bool
}

// Len returns the length of the frame, in bytes.
func (f *Frame) Len() int {
	n := len(f.Data)
	for _, m := range f.More {
		n += len(m)
	}
	return n
}
