//go:build linux

package main

import (
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mtu has room for every measured packet.
const mtu = 9000

// openTAPs creates the TAP interfaces of both sides.
func openTAPs(bridge string) (ends [2]int, err error) {
	for side := range ends {
		if ends[side], err = openTAP(side, bridge); err != nil {
			return ends, err
		}
	}
	return ends, learnPorts(ends)
}

// openTAP creates a side's TAP interface and adds it to a bridge. It disappears with the process.
func openTAP(side int, bridge string) (fd int, err error) {
	name := fmt.Sprintf("yard%d", side)
	if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return 0, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return 0, fmt.Errorf("make %s: %w", name, err)
	}
	const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_USO4 | unix.TUN_F_USO6
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offloads); err != nil {
		return 0, fmt.Errorf("offloads of %s: %w", name, err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return 0, fmt.Errorf("bridge %s: %w", bridge, err)
	}
	if err := netlink.LinkSetMTU(l, mtu); err != nil {
		return 0, err
	}
	if err := netlink.LinkSetMaster(l, br); err != nil {
		return 0, err
	}
	return fd, netlink.LinkSetUp(l)
}

// openPackets opens packet sockets on both sides' interfaces.
func openPackets(names []string) (ends [2]int, err error) {
	for side, name := range names {
		if ends[side], err = openPacket(name); err != nil {
			return ends, fmt.Errorf("packet socket on %s: %w", name, err)
		}
	}
	return ends, learnPorts(ends)
}

func openPacket(name string) (fd int, err error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	const all = unix.ETH_P_ALL&0xff<<8 | unix.ETH_P_ALL>>8
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
		return 0, err
	}
	for option, v := range map[int]int{unix.PACKET_VNET_HDR: 1, unix.PACKET_QDISC_BYPASS: 1, unix.PACKET_IGNORE_OUTGOING: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, option, v); err != nil {
			return 0, err
		}
	}
	for _, option := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 32<<20); err != nil {
			return 0, err
		}
	}
	index := l.Attrs().Index
	promiscuous := unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &promiscuous); err != nil {
		return 0, err
	}
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
}

// learnPorts sends a frame each way and waits for it, so that a bridge knows the port of each side.
func learnPorts(ends [2]int) error {
	buf := make([]byte, 1<<16)
	for _, from := range []int{1, 0, 1} { // the first is flooded
		if _, err := unix.Write(ends[from], frame(from, 64, 1)); err != nil {
			return err
		}
		for {
			ready := []unix.PollFd{{Fd: int32(ends[1-from]), Events: unix.POLLIN}}
			if n, err := unix.Poll(ready, 2000); err == unix.EINTR {
				continue
			} else if err != nil || n == 0 {
				return fmt.Errorf("no frame arrives from side %d (%v)", from, err)
			}
			n, err := unix.Read(ends[1-from], buf)
			if err != nil {
				return err
			}
			if data, _ := payload(buf[:n], 1-from); data != nil {
				break
			}
		}
	}
	return nil
}

// pin binds the calling thread to a CPU, if there are several.
func pin(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	_ = unix.SchedSetaffinity(0, &set) // without it the figures are a little worse
}

// yield lets another thread use the CPU.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// cpuSeconds returns the CPU time of this process, in user mode and in the kernel.
func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
