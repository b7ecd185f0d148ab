package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

const (
	// liveBuffer is the requested receive buffer in bytes. The kernel's default, 208 KiB, holds
	// three superframes.
	liveBuffer = 64 << 20
	// vnetHeader is the size of struct virtio_net_hdr, which precedes each frame.
	vnetHeader = 10
	// askDropped is how many packets are read between two queries of the drop counter. A full
	// buffer holds more packets.
	askDropped = 64
)

// live captures packets of an interface with a packet socket. pcapgo's socket has no larger buffer,
// and no virtio-net headers, which give the segment size of a superframe.
type live struct {
	f       *os.File
	conn    syscall.RawConn
	receive func(fd uintptr) bool // one func value, to avoid an allocation per call
	b       []byte
	control [8]uint64
	msg     unix.Msghdr
	iov     unix.Iovec
	n       int
	errno   syscall.Errno

	cuts    int // segment size of the last frame in bytes of UDP payload
	ask     int // packets until the next query of the drop counter
	asked   int
	refused int // frames refused for lack of a virtio-net header
	closed  atomic.Bool
}

// listen opens an interface and captures all its packets.
func listen(l *node.LinkSpec) (*live, error) {
	name, err := l.Interface()
	if err != nil {
		return nil, err
	}
	intf, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err == nil {
		if err = prepare(fd, intf); err != nil {
			_ = unix.Close(fd) // nothing was read
		}
	}
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%w: listening on an interface needs root, or CAP_NET_RAW", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s := &live{f: os.NewFile(uintptr(fd), name), b: make([]byte, vnetHeader+maxRecord), ask: 1}
	if size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil && size >= liveBuffer {
		s.ask = askDropped
	}
	s.receive = s.recvmsg
	if s.conn, err = s.f.SyscallConn(); err != nil {
		_ = s.f.Close()
		return nil, err
	}
	return s, nil
}

// prepare sets up a packet socket. It binds the socket last, so that it receives nothing before.
func prepare(fd int, intf *net.Interface) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return fmt.Errorf("PACKET_VNET_HDR: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("SO_TIMESTAMPNS: %w", err)
	}
	// Needs CAP_NET_ADMIN.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, liveBuffer) != nil {
		// Up to the system's limit.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, liveBuffer)
	}
	if intf.Flags&net.FlagLoopback != 0 {
		if err := onceOnLoopback(fd); err != nil {
			return err
		}
	}
	all := unix.PacketMreq{Ifindex: int32(intf.Index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &all); err != nil {
		return fmt.Errorf("PACKET_ADD_MEMBERSHIP: %w", err)
	}
	proto := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: intf.Index})
}

// onceOnLoopback drops the sender's copy of each packet on the loopback interface.
func onceOnLoopback(fd int) error {
	p, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		bpf.RetConstant{Val: maxRecord},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(p))
	for i, o := range p {
		filter[i] = unix.SockFilter{Code: o.Op, Jt: o.Jt, Jf: o.Jf, K: o.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(p)), Filter: &filter[0]}); err != nil {
		return fmt.Errorf("SO_ATTACH_FILTER: %w", err)
	}
	return nil
}

// dropped returns the number of packets that the kernel has dropped or refused since the last call.
func (l *live) dropped() int {
	n := l.refused
	l.refused = 0
	if l.asked++; l.asked < l.ask {
		return n
	}
	l.asked = 0
	_ = l.conn.Control(func(fd uintptr) {
		if s, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			n += int(s.Drops)
		}
	})
	return n
}

// why implements lossy.
func (*live) why() string {
	return "before this packet the kernel has dropped %d, which this program was too slow for"
}

// segment returns the segment size of the last frame in bytes of UDP payload, or 0 if it is not to
// be segmented.
func (l *live) segment() int { return l.cuts }

// close ends a call of next and the capture.
func (l *live) close() {
	l.closed.Store(true)
	_ = l.f.Close() // nothing was written
}

// recvmsg is recvmsg(2). It returns false if there is no packet yet.
func (l *live) recvmsg(fd uintptr) bool {
	l.iov = unix.Iovec{Base: &l.b[0]}
	l.iov.SetLen(len(l.b))
	l.msg = unix.Msghdr{Iov: &l.iov, Control: (*byte)(unsafe.Pointer(&l.control))}
	l.msg.SetIovlen(1)
	l.msg.SetControllen(int(unsafe.Sizeof(l.control)))
	// n is the full length of the frame.
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&l.msg)), unix.MSG_TRUNC)
	l.n, l.errno = int(n), errno
	return errno != unix.EAGAIN
}

// timestamp returns when the kernel received the packet.
func (l *live) timestamp() time.Time {
	control := unsafe.Pointer(&l.control)
	h := (*unix.Cmsghdr)(control)
	if int(l.msg.Controllen) < unix.CmsgSpace(int(unsafe.Sizeof(unix.Timespec{}))) || h.Level != unix.SOL_SOCKET ||
		h.Type != unix.SO_TIMESTAMPNS {
		return time.Now()
	}
	return time.Unix((*unix.Timespec)(unsafe.Add(control, unix.CmsgLen(0))).Unix())
}

func (l *live) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	for {
		err := l.conn.Read(l.receive)
		switch {
		case l.closed.Load(), l.errno == unix.ENETDOWN: // or the interface was removed
			return nil, gopacket.CaptureInfo{}, 0, io.EOF
		case err != nil:
			return nil, gopacket.CaptureInfo{}, 0, err
		case l.errno == unix.EINVAL:
			// A superframe of a kind that virtio-net lacks; the kernel has dropped it.
			l.refused++
			continue
		case l.errno != 0:
			return nil, gopacket.CaptureInfo{}, 0, os.NewSyscallError("recvmsg", l.errno)
		case l.n < vnetHeader:
			continue
		}
		l.cuts = 0
		if l.b[1]&^unix.VIRTIO_NET_HDR_GSO_ECN == unix.VIRTIO_NET_HDR_GSO_UDP_L4 {
			l.cuts = int(binary.NativeEndian.Uint16(l.b[4:]))
		}
		data := l.b[vnetHeader:min(l.n, len(l.b))]
		return data, gopacket.CaptureInfo{Timestamp: l.timestamp(), CaptureLength: len(data), Length: l.n - vnetHeader},
			layers.LinkTypeEthernet, nil
	}
}
