package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/ifstate"
	"github.com/softrnic/softrnic/link/internal/vnet"
)

// bufferBytes is the requested size of the send and receive buffers. The kernel's default, 208 KiB,
// holds three superframes.
const bufferBytes = 16 << 20

func open(c *config) (*Link, error) {
	ifce, err := c.findInterface()
	if err != nil {
		return nil, err
	}
	own := net.HardwareAddr(ifce.HardwareAddr)
	if c.InterfaceMAC {
		c.MAC = own
	} else if c.MAC.String() == own.String() {
		c.InterfaceMAC = true
	}
	var fds []int
	for err == nil && len(fds) < c.Queues {
		var fd int
		// No frame arrives before the socket is bound.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			err = c.explain("open", err)
			break
		}
		fds = append(fds, fd)
		err = c.prepare(fd, ifce.Index)
	}
	if err == nil && c.Queues > 1 {
		err = c.joinFanout(fds)
	}
	// The sockets have received nothing so far. Before they joined the fanout group, each would
	// have received every frame.
	for i := 0; i < len(fds) && err == nil; i++ {
		err = c.setFilter(fds[i], forMAC([6]byte(c.MAC)))
	}
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, err
	}
	// vnet cuts superframes that the device or the kernel does not support.
	o := link.Offloads{USO: true, TSO: true, Checksum: true}
	carrier, err := ifstate.New(c.name, false)
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, fmt.Errorf("packet %w", err)
	}
	conn, err := vnet.NewPacketConn(fds, c.name, carrier.MTU, o, c.Wait)
	if err != nil {
		carrier.Close()
		return nil, err
	}
	return &Link{medium: conn, carrier: carrier, name: c.name, mac: c.MAC}, nil
}

func (c *config) findInterface() (*netlink.LinkAttrs, error) {
	have, err := netlink.LinkByName(c.name)
	if err != nil {
		return nil, fmt.Errorf("packet %s: no such interface (%w): ip link shows those there are", c.name, err)
	}
	at := have.Attrs()
	switch {
	case at.EncapType != "ether" || len(at.HardwareAddr) != 6:
		return nil, fmt.Errorf("packet %s: interface of type %s does not carry Ethernet: choose one that does", c.name, at.EncapType)
	case at.RawFlags&unix.IFF_UP == 0:
		return nil, fmt.Errorf("packet %s: interface is down: have root bring it up: ip link set dev %s up", c.name, c.name)
	case at.MTU < link.MinMTU:
		return nil, fmt.Errorf("packet %s: MTU is %d, at least %d is needed: ip link set dev %s mtu 1500",
			c.name, at.MTU, link.MinMTU, c.name)
	}
	return at, nil
}

func (c *config) prepare(fd, index int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
		return c.explain("PACKET_VNET_HDR", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return c.explain("PACKET_AUXDATA", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return c.explain("PACKET_IGNORE_OUTGOING (Linux 4.20)", err)
	}
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bufferBytes) != nil { // needs CAP_NET_ADMIN
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bufferBytes) // capped by the system's limit
		}
	}
	if err := c.setFilter(fd, dropAll); err != nil {
		return err
	}
	// All multicast frames are received, because the link does not know which groups the host
	// joins.
	kinds := []uint16{unix.PACKET_MR_ALLMULTI}
	if !c.InterfaceMAC {
		kinds = append(kinds, unix.PACKET_MR_PROMISC)
	}
	for _, kind := range kinds {
		mreq := unix.PacketMreq{Ifindex: int32(index), Type: kind}
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &mreq); err != nil {
			return c.explain("PACKET_ADD_MEMBERSHIP", err)
		}
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return c.explain("bind", err)
	}
	return nil
}

// joinFanout makes the kernel choose one of the sockets for each frame, by its flow.
func (c *config) joinFanout(fds []int) error {
	const kind = unix.PACKET_FANOUT_HASH | unix.PACKET_FANOUT_FLAG_IGNORE_OUTGOING
	group := (kind | unix.PACKET_FANOUT_FLAG_UNIQUEID) << 16
	for i, fd := range fds {
		err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, group)
		if err == nil && i == 0 {
			group, err = unix.GetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT)
			group = group&0xffff | kind<<16
		}
		if err != nil {
			return c.explain("PACKET_FANOUT (with kernels before 6.0, use Queues(1))", err)
		}
	}
	return nil
}

// setFilter sets the filter of received frames.
func (c *config) setFilter(fd int, filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		return c.explain("SO_ATTACH_FILTER", err)
	}
	return nil
}

// dropAll is a program that drops every frame.
var dropAll = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

// forMAC returns a classic BPF program that passes frames to mac and to groups. Without it, each
// frame that a promiscuous interface receives for other hosts would cost a copy.
func forMAC(mac [6]byte) []unix.SockFilter {
	const (
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		ifSet    = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ifEqual  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret      = unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: loadByte, K: 0},
		{Code: ifSet, K: 1, Jt: 4},
		{Code: loadWord, K: 0},
		{Code: ifEqual, K: binary.BigEndian.Uint32(mac[:4]), Jf: 3},
		{Code: loadHalf, K: 4},
		{Code: ifEqual, K: uint32(binary.BigEndian.Uint16(mac[4:])), Jf: 1},
		{Code: ret, K: 0xffffffff},
		{Code: ret, K: 0},
	}
}

func (c *config) explain(operation string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("packet %s: no permission for packet sockets (%w): run as root, "+
			"or have root give the program CAP_NET_RAW: setcap cap_net_raw+ep PROGRAM", c.name, err)
	}
	return fmt.Errorf("packet %s: %s: %w", c.name, operation, err)
}
