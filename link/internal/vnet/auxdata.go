//go:build linux

package vnet

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// auxdata reads from a packet socket with PACKET_AUXDATA. The kernel takes the first tag off whatever it receives, whoever
// it is for, and tells of it beside the frame.
type auxdata struct {
	msg     unix.Msghdr
	iov     unix.Iovec
	control [8]uint64 // 64 bytes for a message of 16 and 20
}

const (
	auxdataAt  = unix.SizeofCmsghdr // of the data, which is aligned to the header's size
	auxdataEnd = auxdataAt + int(unsafe.Sizeof(unix.TpacketAuxdata{}))
)

// read is recvmsg(2), which does not wait, into b; tag is the one that was taken off, type and control information, or 0.
func (a *auxdata) read(fd int, b []byte) (n int, tag uint32, errno unix.Errno) {
	a.iov = iovec(b)
	control := unsafe.Pointer(&a.control)
	a.msg = unix.Msghdr{Iov: &a.iov, Control: (*byte)(control)}
	a.msg.SetIovlen(1)
	a.msg.SetControllen(int(unsafe.Sizeof(a.control)))
	r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&a.msg)), unix.MSG_DONTWAIT)
	if errno != 0 || int(a.msg.Controllen) < auxdataEnd {
		return int(r), 0, errno
	}
	h := (*unix.Cmsghdr)(control)
	aux := (*unix.TpacketAuxdata)(unsafe.Add(control, auxdataAt))
	if h.Level == unix.SOL_PACKET && h.Type == unix.PACKET_AUXDATA && aux.Status&unix.TP_STATUS_VLAN_VALID != 0 {
		tag = unix.ETH_P_8021Q<<16 | uint32(aux.Vlan_tci)
		if aux.Status&unix.TP_STATUS_VLAN_TPID_VALID != 0 {
			tag = uint32(aux.Vlan_tpid)<<16 | uint32(aux.Vlan_tci)
		}
	}
	return int(r), tag, 0
}

// putBack puts the tag into f again, whose data ends where b does and has that much room in front.
func putBack(f *link.Frame, b []byte, tag uint32) {
	const addresses = 12
	copy(b, f.Data[:addresses])
	binary.BigEndian.PutUint32(b[addresses:], tag)
	f.SetTagged(b)
}
